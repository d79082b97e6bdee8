"""Applying changes of the gateway's files while it serves, and what is known of the last attempt."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from msgspec import Struct

from portico.gateway.config import GatewaySettings
from portico.wire.errors import UsageError

# How often the files are checked for changes.
WATCH_SECONDS = 1.0
# A configuration that could not be applied is tried again after this time: what it refers to may be there by then.
RETRY_SECONDS = 30.0

log = logging.getLogger("portico.gateway")


class ReloadStatus(Struct):
    """Whether the file's content is in effect. Times are seconds since the epoch."""

    path: str = ""
    applied_at: float = 0.0
    # The reason why the file as it is now is not in effect, and since when; empty if it is.
    problem: str = ""
    not_applied_since: float | None = None
    failures: int = 0

    def describe(self) -> str:
        """Return a line for probes, without the reason; empty if the configuration is in effect."""
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
    """Reloads the configuration when its file changes, and the pins when theirs does.

    `read` is called in a thread and raises UsageError for an invalid file. `apply` returns what it could not apply.
    """

    def __init__(
        self,
        path: Path,
        pins: Callable[[], Path | None],
        read: Callable[[], GatewaySettings],
        apply: Callable[[GatewaySettings], list[str]],
        load_pins: Callable[[], Any],
    ) -> None:
        self._path, self._pins = path, pins
        self._read, self._apply, self._load_pins = read, apply, load_pins
        self.status = ReloadStatus(str(path), applied_at=time.time())
        self._seen, self._seen_pins = _stamp(path), _stamp(pins())
        self._retry_at = 0.0

    async def check(self) -> None:
        """Apply what has changed since the last time. Raises nothing for an invalid file: that is logged."""
        stamp, pins = _stamp(self._path), _stamp(self._pins())
        if stamp != self._seen:
            self._seen = stamp
            await self._reload(again=False)
        elif self.status.problem and time.monotonic() >= self._retry_at:
            await self._reload(again=True)
        if pins != self._seen_pins:
            self._seen_pins = pins
            await self._reload_pins()

    async def _reload(self, *, again: bool) -> None:
        before = self.status.problem
        try:
            settings = await asyncio.to_thread(self._read)
            problems = self._apply(settings)
        except UsageError as mistake:
            problems = [str(mistake)]
        except Exception as failure:
            # Whatever it was, the file must go on being watched.
            log.exception("error while applying %s", self._path)
            problems = [f"{type(failure).__name__}: {failure}"]
        self._retry_at = time.monotonic() + RETRY_SECONDS
        if not problems:
            self.status.succeed()
            return
        self.status.fail("; ".join(problems))
        # Every change of the file is answered in the log; what is only tried again is logged if the reason is new.
        if not again or self.status.problem != before:
            for problem in problems:
                log.error("%s is not applied: %s", self._path, problem)

    async def _reload_pins(self) -> None:
        try:
            if self._pins() is not None:
                await self._load_pins()
        except UsageError as mistake:
            log.error("the pins are not reloaded: %s", mistake)


def _stamp(path: Path | None) -> tuple[int, int, int] | None:
    """Return what changes when a file does, or None if there is no file."""
    if path is None:
        return None
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
