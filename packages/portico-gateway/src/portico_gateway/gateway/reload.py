"""Reload of the gateway's configuration and pins while it serves, and the status of the last attempt."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from portico.protocol.errors import UsageError
from portico_gateway.gateway.settings import GatewaySettings

# Interval at which the files are checked for changes.
WATCH_SECONDS = 1.0
# A failed configuration is retried after this time; a missing secret or file may exist by then.
RETRY_SECONDS = 30.0

log = logging.getLogger("portico.gateway")
# Applied changes. `portico serve` prints them although they are not warnings.
changes_log = logging.getLogger("portico.gateway.configuration")


class ReloadStatus(Struct):
    """Whether the file's content is applied. Times are in seconds since the epoch."""

    path: str = ""
    applied_at: float = 0.0
    # Reason why the current file is not applied, and since when; empty if it is.
    problem: str = ""
    not_applied_since: float | None = None
    failures: int = 0

    def describe(self) -> str:
        """Return a line for health probes, without the reason; empty if the configuration is applied."""
        if self.not_applied_since is None:
            return ""
        since = time.strftime("%H:%M:%S", time.localtime(self.not_applied_since))
        return f"not applied since {since}: see the log or the gateway status"

    def succeed(self) -> None:
        self.applied_at, self.problem, self.not_applied_since = time.time(), "", None

    def fail(self, problem: str) -> None:
        self.failures += 1
        self.problem, self.not_applied_since = problem, self.not_applied_since or time.time()


class ConfigurationWatch:
    """Reloads the configuration and the pins when their files change.

    `read` runs in a thread and raises UsageError for an invalid file. `current` returns the settings in effect. `apply`
    returns the problems.
    """

    def __init__(
        self,
        path: Path,
        pins: Callable[[], Path | None],
        read: Callable[[], GatewaySettings],
        current: Callable[[], GatewaySettings],
        apply: Callable[[GatewaySettings], list[str]],
        load_pins: Callable[[], Any],
    ) -> None:
        self._path, self._pins = path, pins
        self._read, self._current, self._apply, self._load_pins = read, current, apply, load_pins
        self.status = ReloadStatus(str(path), applied_at=time.time())
        self._file_stamp, self._seen_pins = _stamp(path), _stamp(pins())
        self._retry_at = 0.0

    async def check(self) -> None:
        """Apply changes since the last check. Invalid files are logged, not raised."""
        stamp, pins = _stamp(self._path), _stamp(self._pins())
        if stamp != self._file_stamp:
            self._file_stamp = stamp
            await self._reload(again=False)
        elif self.status.problem and time.monotonic() >= self._retry_at:
            await self._reload(again=True)
        if pins != self._seen_pins:
            self._seen_pins = pins
            await self._reload_pins()

    async def _reload(self, *, again: bool) -> None:
        before, changes = self.status.problem, ""
        try:
            settings = await asyncio.to_thread(self._read)
            changes = describe_changes(self._current(), settings)
            problems = self._apply(settings)
        except UsageError as mistake:
            problems = [str(mistake)]
        except Exception as failure:
            # Whatever failed, the file must remain watched.
            log.exception("failed to apply %s", self._path)
            problems = [f"{type(failure).__name__}: {failure}"]
        self._retry_at = time.monotonic() + RETRY_SECONDS
        if not problems:
            self.status.succeed()
            changes_log.info("configuration applied: %s", changes)
            return
        self.status.fail("; ".join(problems))
        # Every change of the file is logged; a retry is logged only if the reason is new.
        if not again or self.status.problem != before:
            for problem in problems:
                log.error("%s is not applied: %s", self._path, problem)

    async def _reload_pins(self) -> None:
        try:
            if self._pins() is not None:
                await self._load_pins()
                changes_log.info("pins reloaded: %s", self._pins())
        except UsageError as mistake:
            log.error("cannot reload the pins: %s", mistake)


def describe_changes(before: GatewaySettings, after: GatewaySettings) -> str:
    """Describe how two configurations differ, such as "1 rule changed, upstream x removed"."""
    tables = (
        _describe_tables(name, before.access.sections.get(name), after.access.sections.get(name))
        for name in {**before.access.sections, **after.access.sections}
    )
    parts = [
        *(part for part in tables if part),
        *_describe_names("upstream", before.upstreams, after.upstreams),
        *_describe_names("view", before.views, after.views),
    ]
    return ", ".join(parts) or "no changes that can be applied at run time"


def _describe_tables(name: str, before: Any, after: Any) -> str:
    old, new = (list(getattr(section, "tables", None) or ()) for section in (before, after))
    if before == after:
        return ""
    added = sum(item not in old for item in new)
    removed = sum(item not in new for item in old)
    changed = min(added, removed)
    counts = {"changed": changed, "added": added - changed, "removed": removed - changed}
    parts = [f"{count} {name}{'s' if count > 1 else ''} {change}" for change, count in counts.items() if count]
    return ", ".join(parts) or f"[{name}] changed"


def _describe_names(kind: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    return [
        *(f"{kind} {name} removed" for name in before if name not in after),
        *(f"{kind} {name} added" for name in after if name not in before),
        *(f"{kind} {name} changed" for name in after if name in before and after[name] != before[name]),
    ]


def _stamp(path: Path | None) -> tuple[int, int, int] | None:
    """Return a value that changes with the file, or None if the file does not exist."""
    if path is None:
        return None
    try:
        result = path.stat()
    except OSError:
        return None
    return result.st_mtime_ns, result.st_size, result.st_ino
