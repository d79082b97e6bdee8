"""Load a server from a file, and load it again when the file changes.

A version that cannot be loaded leaves the last good one in place.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import sys
import time
import traceback
from collections.abc import Awaitable, Callable
from types import ModuleType
from typing import Literal

from msgspec import Struct

from portico.protocol.errors import UsageError
from portico.server.reload import become
from portico.server.server import Server
from portico.transports import importer

log = logging.getLogger("portico")

POLL_INTERVAL_SECONDS = 0.25
# An editor may write a file in several steps.
DEBOUNCE_SECONDS = 0.05
# How long calls to the previous version may still use its lifespans.
DRAIN_TIMEOUT_SECONDS = 10.0
MAX_WATCHED_FILES = 5000
MAX_TRACEBACK_CHARS = 8000


class ReloadState(Struct, kw_only=True):
    """Whether the file could be loaded, and the error if not."""

    state: Literal["ok", "broken"]
    file: str
    error: str | None = None
    line: int | None = None
    at: float
    # How often it was loaded without an error.
    loads: int = 0


class Reloader:
    """Load the Server that a target names, `file.py` or `file.py:object`, whenever its files change."""

    def __init__(self, target: str) -> None:
        place = target if target.endswith(".py") else target.rpartition(":")[0]
        if not place.endswith(".py"):
            raise UsageError(f"invalid target {target!r}: expected path/to/file.py or path/to/file.py:object")
        if not os.path.isfile(place):
            raise UsageError(f"file not found: {place}")
        self.target = target
        self.path = os.path.abspath(place)
        self.folder = os.path.dirname(self.path)
        self.state = ReloadState(state="broken", file=os.path.basename(self.path), at=time.time())
        self.listeners: list[Callable[[], None]] = []
        # Whether calls to the previous version may still be in flight.
        self.busy: Callable[[], bool] = lambda: False
        self._seen: dict[str, int] = {}
        self._ending: set[asyncio.Task[None]] = set()

    def load_initial(self) -> Server:
        """Return the server at the start: an empty one if the file cannot be loaded yet."""
        # Bytecode compiled a moment ago can have the modification time of the source written now.
        sys.dont_write_bytecode = True
        server = self._load()
        if server is None:
            name = os.path.splitext(os.path.basename(self.path))[0]
            server = Server(name, instructions=f"{self.state.file} has not been loaded yet.")
        return server

    async def watch(self, server: Server) -> None:
        """Replace a server by the new version of its file after each change, until cancelled."""
        while True:
            await asyncio.sleep(POLL_INTERVAL_SECONDS)
            if self._file_versions() == self._seen:
                continue
            await asyncio.sleep(DEBOUNCE_SECONDS)
            # In a thread: the file may load slowly, and the previous version goes on serving.
            fresh = await asyncio.to_thread(self._load)
            if fresh is not None:
                await self._swap(server, fresh)
            self._notify()

    async def _swap(self, server: Server, fresh: Server) -> None:
        try:
            end = await become(server, fresh)
        except Exception as failure:
            self._record_failure(failure)
            return
        task = asyncio.get_running_loop().create_task(self._drain_previous(end))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _drain_previous(self, end: Callable[[], Awaitable[None]]) -> None:
        """End the previous version's lifespans when its calls have ended, or after DRAIN_TIMEOUT_SECONDS."""
        for _ in range(int(DRAIN_TIMEOUT_SECONDS / POLL_INTERVAL_SECONDS)):
            if not self.busy():
                break
            await asyncio.sleep(POLL_INTERVAL_SECONDS)
        await end()

    # Loading

    def _load(self) -> Server | None:
        """Load the file and return its server; None if it fails, with the reason in `state`."""
        before = self._project_modules()
        for name in before:
            del sys.modules[name]
        importlib.invalidate_caches()
        paths = list(sys.path)
        try:
            found = importer.load(self.target)
            if not isinstance(found, Server):
                raise UsageError(f"{self.target} is not a Server")
        except (Exception, SystemExit) as failure:
            self._record_failure(failure)
            for name in self._project_modules():
                del sys.modules[name]
            sys.modules.update(before)
            return None
        finally:
            # Modules next to the file can be imported. Loading adds the folder each time; once is enough.
            sys.path[:] = paths if self.folder in paths else [self.folder, *paths]
            self._seen = self._file_versions()
        self.state = ReloadState(
            state="ok", file=self.state.file, at=time.time(), loads=self.state.loads + 1
        )  # fmt: skip
        return found

    def _project_modules(self) -> dict[str, ModuleType]:
        """Return the modules imported from the folder of the file: they are imported again with it."""
        own = {}
        for name, module in list(sys.modules.items()):
            path = getattr(module, "__file__", None) or ""
            if name != "__main__" and path.startswith(self.folder + os.sep) and "site-packages" not in path:
                own[name] = module
        return own

    def _file_versions(self) -> dict[str, int]:
        """Return the modification time of each watched file."""
        files = {str(module.__file__) for module in self._project_modules().values()} | {self.path} | set(self._seen)
        found = {}
        for path in sorted(files)[:MAX_WATCHED_FILES]:
            try:
                found[path] = os.stat(path).st_mtime_ns
            except OSError:
                found[path] = 0
        return found

    def _record_failure(self, failure: BaseException) -> None:
        if isinstance(failure, importer.LoadFailed) and failure.__cause__ is not None:
            failure = failure.__cause__
        lines = traceback.format_exception(failure)
        own = [frame.lineno for frame in traceback.extract_tb(failure.__traceback__) if frame.filename == self.path]
        line = failure.lineno if isinstance(failure, SyntaxError) else own[-1] if own else None
        text = "".join(_trim_traceback(lines, self.folder))[-MAX_TRACEBACK_CHARS:].replace(self.folder + os.sep, "")
        place = self.state.file if line is None else f"{self.state.file}, line {line}"
        log.warning("failed to load %s: %s", place, lines[-1].strip())
        self.state = ReloadState(
            state="broken", file=self.state.file, error=text, line=line, at=time.time(), loads=self.state.loads
        )  # fmt: skip

    def _notify(self) -> None:
        for told in self.listeners:
            told()


def _trim_traceback(lines: list[str], folder: str) -> list[str]:
    """Remove the frames of the importer from a traceback."""
    return [line for line in lines if not line.startswith('  File "') or folder in line.partition("\n")[0]]
