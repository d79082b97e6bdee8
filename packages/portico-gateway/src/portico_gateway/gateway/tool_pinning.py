"""Pins: what the tools and prompts of the upstreams were when they were approved, and what is held back since.

Descriptions are what models obey, and an upstream may change them after it was approved. So what is first seen of an
upstream is pinned in a lock file, and what is not as it was is told, or held back until a person has approved of it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from threading import Lock
from typing import Any, Literal

import msgspec
from msgspec import Struct, field

from portico.definitions import LOCK_VERSION, format_lock, lock_kind, read_lock, write_lock
from portico.protocol.errors import UsageError
from portico_gateway.gateway.catalog_entries import ListedEntry

log = logging.getLogger("portico.gateway")

PINS_FILE_NAME = "pins.lock"
# Where gateways wrote their pins before; now the lock of `portico contracts`.
_OLD_FILE_NAME = "contracts.lock"

PinMode = Literal["off", "warn", "hold"]
NewTools = Literal["trust", "hold"]
PinState = Literal["as pinned", "changed", "new", "gone"]

# The lists whose entries are pinned, by their names in the file. Resources come and go, and are no promise.
PINNED = {"tools": "tools/list", "prompts": "prompts/list"}
_KINDS = {method: kind for kind, method in PINNED.items()}


class _PinnedEntry(Struct, frozen=True):
    digest: str
    definition: dict[str, Any]


class _UpstreamPins(Struct):
    tools: dict[str, _PinnedEntry] = field(default_factory=dict)
    prompts: dict[str, _PinnedEntry] = field(default_factory=dict)

    def of(self, kind: str) -> dict[str, _PinnedEntry]:
        found: dict[str, _PinnedEntry] = getattr(self, kind)
        return found


class _PinFile(Struct):
    lock: int = LOCK_VERSION
    upstreams: dict[str, _UpstreamPins] = field(default_factory=dict)


class ToolPin(Struct, frozen=True):
    """One tool or prompt: how it was pinned, and how it is; None where it is not there."""

    alias: str
    kind: str
    name: str
    was: dict[str, Any] | None
    now: dict[str, Any] | None

    @property
    def state(self) -> PinState:
        if self.was is None or self.now is None:
            return "new" if self.was is None else "gone"
        return "as pinned" if _digest(self.was) == _digest(self.now) else "changed"


class PinSettings(Struct, frozen=True):
    """How the pins of an upstream are treated."""

    mode: PinMode = "off"
    new_tools: NewTools = "hold"


class Pins:
    """The pins of all upstreams of a gateway. Without a path they are kept for as long as it runs."""

    def __init__(self) -> None:
        self.path: Path | None = None
        # Whether what is first seen is pinned; a command that only looks does not.
        self.recording = True
        self._writing = Lock()
        self._upstreams: dict[str, _UpstreamPins] = {}
        self._settings: dict[str, PinSettings] = {}
        # By alias, method and name: the entry, and its definition.
        self._known: dict[tuple[str, str, str], tuple[ListedEntry, dict[str, Any], str]] = {}
        self._told: set[tuple[str, str, str]] = set()
        # Warnings that were logged about a lock file, which is read again and again.
        self._file_warnings: set[tuple[str, Path]] = set()

    def use(self, alias: str, settings: PinSettings) -> None:
        self._settings[alias] = settings

    @property
    def used(self) -> bool:
        return any(one.mode != "off" for one in self._settings.values())

    # The file

    def load(self, path: Path) -> None:
        """Read the lock file, if there is one. Raises UsageError for one that makes no sense."""
        self.path = path
        source = _find_file(path)
        found = _read(source)
        self._upstreams = found.upstreams
        if source != path:
            self._warn_once("%s holds the pins of this gateway; rename it to %s", source, path.name)
        if found.lock != LOCK_VERSION:
            self._warn_once(
                "%s was written by an older version, which did not pin _meta, icons and unknown members; tools and "
                "prompts that have them were never approved: see `portico pins diff`, then run `portico pins approve`",
                source,
            )

    def _warn_once(self, message: str, source: Path, *values: str) -> None:
        if (message, source) not in self._file_warnings:
            self._file_warnings.add((message, source))
            log.warning(message, source, *values)

    def write(self) -> None:
        """Write the lock file. Raises UsageError."""
        if self.path is not None:
            _write(self.path, self._upstreams)

    def recorded(self) -> Callable[[], None]:
        """What writes down all that was pinned by now, in any thread: what the file says already stands."""
        path, known = self.path, msgspec.json.encode(self._upstreams)

        def record() -> None:
            if path is None:
                return
            with self._writing:
                upstreams = _read(_find_file(path)).upstreams
                for alias, pins in msgspec.json.decode(known, type=dict[str, _UpstreamPins]).items():
                    there = upstreams.setdefault(alias, pins)
                    for kind in PINNED:
                        for name, pinned in pins.of(kind).items():
                            there.of(kind).setdefault(name, pinned)
                _write(path, upstreams)

        return record

    # Looking at what there is

    def why_held(self, alias: str, method: str, entry: ListedEntry) -> str:
        """Why something is not shown; empty if it is."""
        settings, kind = self._settings.get(alias), _KINDS.get(method)
        if settings is None or settings.mode != "hold" or kind is None or alias not in self._upstreams:
            return ""
        pinned = self._upstreams[alias].of(kind).get(entry.key)
        if pinned is None:
            return f"it is new at {alias}, and waits for `portico pins approve`"
        if pinned.digest != self._digest_of(alias, method, entry)[1]:
            return (
                f"its definition at {alias} is not the one that was approved; see `portico pins diff` and approve it "
                "with `portico pins approve`"
            )
        return ""

    def see(self, alias: str, lists: Mapping[str, tuple[ListedEntry, ...]]) -> bool:
        """Look at what an upstream lists. What is seen for the first time is pinned; whether something was."""
        settings = self._settings.get(alias)
        if settings is None or settings.mode == "off" or "tools/list" not in lists:
            return False
        first = alias not in self._upstreams
        pins = self._upstreams.setdefault(alias, _UpstreamPins()) if self.recording else None
        pinned = False
        for kind, method in PINNED.items():
            for entry in lists.get(method, ()):
                if pins is not None and (first or self._trusts(settings)) and entry.key not in pins.of(kind):
                    definition, digest = self._digest_of(alias, method, entry)
                    pins.of(kind)[entry.key] = _PinnedEntry(digest, definition)
                    pinned = True
                    if not first:
                        log.warning("%s.%s is new, and pinned as it is", alias, entry.key)
        self._warn(alias, lists)
        return pinned

    def _trusts(self, settings: PinSettings) -> bool:
        return settings.mode == "warn" or settings.new_tools == "trust"

    def _warn(self, alias: str, lists: Mapping[str, tuple[ListedEntry, ...]]) -> None:
        """Say once what is not as it was."""
        for pin in self.pins_of(alias, lists):
            if pin.state in ("changed", "new") and alias in self._upstreams:
                key = (alias, pin.name, _digest(pin.now or {}))
                if key not in self._told:
                    self._told.add(key)
                    log.warning("%s.%s is %s: see `portico pins diff`", alias, pin.name, pin.state)

    def pins_of(self, alias: str, lists: Mapping[str, tuple[ListedEntry, ...]]) -> Iterator[ToolPin]:
        """Every tool and prompt that is pinned, or there."""
        pins = self._upstreams.get(alias, _UpstreamPins())
        for kind, method in PINNED.items():
            entries = {entry.key: entry for entry in lists.get(method, ())}
            for name in sorted({*entries, *pins.of(kind)}):
                was = pins.of(kind).get(name)
                now = self._digest_of(alias, method, entries[name])[0] if name in entries else None
                yield ToolPin(alias, kind, name, None if was is None else was.definition, now)

    def approve(self, pin: ToolPin) -> None:
        """Pin something as it is now; what is gone is forgotten."""
        pins = self._upstreams.setdefault(pin.alias, _UpstreamPins()).of(pin.kind)
        if pin.now is None:
            pins.pop(pin.name, None)
        else:
            pins[pin.name] = _PinnedEntry(_digest(pin.now), pin.now)

    def _digest_of(self, alias: str, method: str, entry: ListedEntry) -> tuple[dict[str, Any], str]:
        known = self._known.get((alias, method, entry.key))
        if known is None or known[0] is not entry:
            definition = _definition(entry)
            known = self._known[alias, method, entry.key] = (entry, definition, _digest(definition))
        return known[1:]


def _definition(entry: ListedEntry) -> dict[str, Any]:
    """Return all members of an entry, including unknown ones: clients are given them as they come. An entry
    that cannot be decoded is pinned by its fingerprint."""
    try:
        return {name: msgspec.json.decode(member) for name, member in entry.members.items()}
    except (msgspec.DecodeError, RecursionError):
        return {"name": entry.key, "fingerprint": entry.digest().hex()}


def _digest(definition: dict[str, Any]) -> str:
    return f"sha256:{sha256(msgspec.json.encode(definition, order='sorted')).hexdigest()}"


def _read(path: Path) -> _PinFile:
    """Return the pins in a lock file. Those of an older version hold for what they pin: an entry with more members than
    were pinned has changed."""
    found = read_lock(path, "pins", _PinFile)
    if found is None:
        return _PinFile()
    for alias, pins in found.upstreams.items():
        for kind in PINNED:
            for name, pinned in pins.of(kind).items():
                if pinned.digest != _digest(pinned.definition):
                    raise UsageError(f"{path}: {alias}.{name} does not have the digest beside it")
    return found


def _find_file(path: Path) -> Path:
    """Return the file to read the pins from: the one with the old name where only that one has pins."""
    old = path.with_name(_OLD_FILE_NAME)
    if path.name != PINS_FILE_NAME or path.exists() or not old.exists() or lock_kind(old) == "contracts":
        return path
    # Also one that cannot be read: to ignore it would be to approve of everything that was held back.
    return old


def _write(path: Path, upstreams: dict[str, _UpstreamPins]) -> None:
    write_lock(path, "pins", format_lock("pins", {"upstreams": upstreams}))
