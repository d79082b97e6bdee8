"""Pinning of tool and prompt definitions: detect changes after approval.

Models follow descriptions, and an upstream may change them after it was approved. The first definitions of an upstream
are therefore pinned in a lock file. Later changes are logged, or held back until the operator approves them.
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
from portico_gateway.gateway.catalog_entries import CatalogEntry

log = logging.getLogger("portico.gateway")

PINS_FILE_NAME = "pins.lock"
# Former name of the pin file; today it is the lock file of `portico contracts`.
_OLD_FILE_NAME = "contracts.lock"

PinningMode = Literal["off", "warn", "enforce"]
NewToolPolicy = Literal["allow", "require_approval"]
PinStatus = Literal["as pinned", "changed", "new", "gone"]

# Lists whose entries are pinned, by their names in the file. Resources are not pinned, since they change all the time.
PINNED_METHODS = {"tools": "tools/list", "prompts": "prompts/list"}
_KINDS = {method: kind for kind, method in PINNED_METHODS.items()}


class _PinnedDefinition(Struct, frozen=True):
    digest: str
    definition: dict[str, Any]


class _UpstreamPins(Struct):
    tools: dict[str, _PinnedDefinition] = field(default_factory=dict)
    prompts: dict[str, _PinnedDefinition] = field(default_factory=dict)

    def entries_of(self, kind: str) -> dict[str, _PinnedDefinition]:
        result: dict[str, _PinnedDefinition] = getattr(self, kind)
        return result


class _PinFile(Struct):
    lock: int = LOCK_VERSION
    upstreams: dict[str, _UpstreamPins] = field(default_factory=dict)


class ToolPin(Struct, frozen=True):
    """A tool or prompt with its pinned and its current definition; None if it has none."""

    alias: str
    kind: str
    name: str
    was: dict[str, Any] | None
    now: dict[str, Any] | None

    @property
    def status(self) -> PinStatus:
        """Return how the current definition compares to the pinned one."""
        if self.was is None or self.now is None:
            return "new" if self.was is None else "gone"
        return "as pinned" if _digest(self.was) == _digest(self.now) else "changed"


class PinningSettings(Struct, frozen=True):
    """Pinning settings of an upstream."""

    mode: PinningMode = "off"
    new_tools: NewToolPolicy = "require_approval"


class PinStore:
    """Pins of all upstreams of a gateway. Without a path they exist in memory only."""

    def __init__(self) -> None:
        self.path: Path | None = None
        # Whether new definitions are pinned; read-only commands turn it off.
        self.is_recording = True
        # The file is read, merged and written in a thread; two threads would lose one set of pins.
        self._writing = Lock()
        self._upstreams: dict[str, _UpstreamPins] = {}
        self._settings: dict[str, PinningSettings] = {}
        # Alias, method and name → entry, definition and digest.
        self._definition_cache: dict[tuple[str, str, str], tuple[CatalogEntry, dict[str, Any], str]] = {}
        self._warned: set[tuple[str, str, str]] = set()
        # Warnings about a lock file that were already logged, since the file is read repeatedly.
        self._file_warnings: set[tuple[str, Path]] = set()

    def configure_upstream(self, alias: str, settings: PinningSettings) -> None:
        self._settings[alias] = settings

    @property
    def is_used(self) -> bool:
        return any(setting.mode != "off" for setting in self._settings.values())

    # The file

    def load(self, path: Path) -> None:
        """Load the lock file, if it exists. Raises UsageError if it is invalid."""
        self.path = path
        source = _find_file(path)
        result = _read(source)
        self._upstreams = result.upstreams
        if source != path:
            self._warn_once("%s contains the pins of this gateway; rename it to %s", source, path.name)
        if result.lock != LOCK_VERSION:
            self._warn_once(
                "%s was written by an older version, which did not pin _meta, icons and unknown members; tools "
                "and prompts with such members were never approved: check them with `portico pins diff`, then "
                "run `portico pins approve`",
                source,
            )

    def _warn_once(self, message: str, source: Path, *values: str) -> None:
        if (message, source) not in self._file_warnings:
            self._file_warnings.add((message, source))
            log.warning(message, source, *values)

    def save(self) -> None:
        """Write the lock file. Raises UsageError if that fails."""
        if self.path is not None:
            _write(self.path, self._upstreams)

    def make_writer(self) -> Callable[[], None]:
        """Return a function that adds the current pins to the file, in any thread. Existing pins in the file are
        preserved.
        """
        # Encode now, on the event loop: the pins may change while the thread writes.
        path, encoded = self.path, msgspec.json.encode(self._upstreams)

        def record() -> None:
            if path is None:
                return
            with self._writing:
                upstreams = _read(_find_file(path)).upstreams
                for alias, pins in msgspec.json.decode(encoded, type=dict[str, _UpstreamPins]).items():
                    merged = upstreams.setdefault(alias, pins)
                    for kind in PINNED_METHODS:
                        for name, pinned in pins.entries_of(kind).items():
                            # The file wins. Another process or the operator may have approved a definition since this
                            # process read it, and recording must never replace an approval.
                            merged.entries_of(kind).setdefault(name, pinned)
                _write(path, upstreams)

        return record

    # Comparison

    def unapproved_reason(self, alias: str, method: str, entry: CatalogEntry) -> str:
        """Return why an entry is held back; an empty string if it is not."""
        settings, kind = self._settings.get(alias), _KINDS.get(method)
        # An upstream without pins is seen for the first time: trust on first use, as SSH does with host keys.
        if settings is None or settings.mode != "enforce" or kind is None or alias not in self._upstreams:
            return ""
        pinned = self._upstreams[alias].entries_of(kind).get(entry.key)
        if pinned is None:
            return f"it is new at {alias} and must be approved with `portico pins approve`"
        if pinned.digest != self._digest_of(alias, method, entry)[1]:
            return (
                f"its definition at {alias} differs from the approved one; check it with `portico pins diff` "
                "and approve it with `portico pins approve`"
            )
        return ""

    def check_catalog(self, alias: str, lists: Mapping[str, tuple[CatalogEntry, ...]]) -> bool:
        """Compare the lists of an upstream with its pins. Pin new definitions and return whether there were any."""
        settings = self._settings.get(alias)
        if settings is None or settings.mode == "off" or "tools/list" not in lists:
            return False
        # An empty list of tools pins an upstream too, so tools that it adds later need approval.
        first = alias not in self._upstreams
        pins = self._upstreams.setdefault(alias, _UpstreamPins()) if self.is_recording else None
        pinned = False
        for kind, method in PINNED_METHODS.items():
            for entry in lists.get(method, ()):
                if (
                    pins is not None
                    and (first or settings.mode == "warn" or settings.new_tools == "allow")
                    and entry.key not in pins.entries_of(kind)
                ):
                    definition, digest = self._digest_of(alias, method, entry)
                    pins.entries_of(kind)[entry.key] = _PinnedDefinition(digest, definition)
                    pinned = True
                    if not first:
                        log.warning("%s.%s is new and was pinned", alias, entry.key)
        self._warn(alias, lists)
        return pinned

    def _warn(self, alias: str, lists: Mapping[str, tuple[CatalogEntry, ...]]) -> None:
        """Log changed and new definitions once."""
        for pin in self.list_pins(alias, lists):
            if pin.status in ("changed", "new") and alias in self._upstreams:
                # The digest is part of the key: a second change of the same tool is logged again.
                key = (alias, pin.name, _digest(pin.now or {}))
                if key not in self._warned:
                    self._warned.add(key)
                    log.warning("%s.%s is %s: see `portico pins diff`", alias, pin.name, pin.status)

    def list_pins(self, alias: str, lists: Mapping[str, tuple[CatalogEntry, ...]]) -> Iterator[ToolPin]:
        """Yield every tool and prompt that is pinned or listed."""
        pins = self._upstreams.get(alias, _UpstreamPins())
        for kind, method in PINNED_METHODS.items():
            entries = {entry.key: entry for entry in lists.get(method, ())}
            for name in sorted({*entries, *pins.entries_of(kind)}):
                before = pins.entries_of(kind).get(name)
                now = self._digest_of(alias, method, entries[name])[0] if name in entries else None
                yield ToolPin(alias, kind, name, None if before is None else before.definition, now)

    def approve(self, pin: ToolPin) -> None:
        """Pin the current definition, or remove the pin of a component that no longer exists."""
        pins = self._upstreams.setdefault(pin.alias, _UpstreamPins()).entries_of(pin.kind)
        if pin.now is None:
            pins.pop(pin.name, None)
        else:
            pins[pin.name] = _PinnedDefinition(_digest(pin.now), pin.now)

    def _digest_of(self, alias: str, method: str, entry: CatalogEntry) -> tuple[dict[str, Any], str]:
        cached = self._definition_cache.get((alias, method, entry.key))
        # Entries are immutable and replaced when the list changes, so identity is enough and no definition is hashed
        # twice.
        if cached is None or cached[0] is not entry:
            definition = _definition(entry)
            cached = self._definition_cache[alias, method, entry.key] = (entry, definition, _digest(definition))
        return cached[1:]


def _definition(entry: CatalogEntry) -> dict[str, Any]:
    """Return all members of an entry, including unknown ones, since clients receive them unchanged.

    An entry that cannot be decoded is pinned by its digest.
    """
    try:
        return {name: msgspec.json.decode(member) for name, member in entry.members.items()}
    except (msgspec.DecodeError, RecursionError):
        return {"name": entry.key, "fingerprint": entry.digest().hex()}


def _digest(definition: dict[str, Any]) -> str:
    return f"sha256:{sha256(msgspec.json.encode(definition, order='sorted')).hexdigest()}"


def _read(path: Path) -> _PinFile:
    """Return the pins of a lock file.

    Pins of an older version still apply: an entry with more members than were pinned counts as changed.
    """
    lock = read_lock(path, "pins", _PinFile)
    if lock is None:
        return _PinFile()
    for alias, pins in lock.upstreams.items():
        for kind in PINNED_METHODS:
            for name, pinned in pins.entries_of(kind).items():
                # Detects a file that was edited by hand in one of the two places; an approval must be made by
                # `portico pins approve`.
                if pinned.digest != _digest(pinned.definition):
                    raise UsageError(f"{path}: the digest of {alias}.{name} does not match its definition")
    return lock


def _find_file(path: Path) -> Path:
    """Return the file to read: the one with the former name if only that contains pins."""
    old = path.with_name(_OLD_FILE_NAME)
    if path.name != PINS_FILE_NAME or path.exists() or not old.exists() or lock_kind(old) == "contracts":
        return path
    # Include an unreadable file: ignoring it would approve everything that was held back.
    return old


def _write(path: Path, upstreams: dict[str, _UpstreamPins]) -> None:
    write_lock(path, "pins", format_lock("pins", {"upstreams": upstreams}))
