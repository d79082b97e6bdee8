"""A server in a file that is loaded again when the file changes. What cannot be loaded leaves the last good one."""

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

LOOK_SECONDS = 0.25
# An editor may write a file in several steps.
SETTLE_SECONDS = 0.05
# How long calls may still use what the version before has opened.
RETIRE_SECONDS = 10.0
MOST_FILES = 5000
LONGEST_TRACE = 8000


class DevState(Struct, kw_only=True):
    """How the file is: as the page shows it."""

    state: Literal["ok", "broken"]
    file: str
    error: str | None = None
    line: int | None = None
    at: float
    # How often it was loaded well.
    loads: int = 0


class Reloader:
    """Loads the Server that a target names, `file.py` or `file.py:object`, and again whenever its files change."""

    def __init__(self, target: str) -> None:
        place = target if target.endswith(".py") else target.rpartition(":")[0]
        if not place.endswith(".py"):
            raise UsageError(f"{target!r} is no file of Python: path/to/file.py, or path/to/file.py:object")
        if not os.path.isfile(place):
            raise UsageError(f"there is no file {place}")
        self.target = target
        self.path = os.path.abspath(place)
        self.folder = os.path.dirname(self.path)
        self.state = DevState(state="broken", file=os.path.basename(self.path), at=time.time())
        self.listeners: list[Callable[[], None]] = []
        # Whether calls of the version before may still be under way.
        self.busy: Callable[[], bool] = lambda: False
        self._seen: dict[str, int] = {}
        self._ending: set[asyncio.Task[None]] = set()

    def first(self) -> Server:
        """The server at the start; an empty one, if the file cannot be loaded yet."""
        # What was compiled a moment ago may look as new as what is written now.
        sys.dont_write_bytecode = True
        server = self._load()
        if server is None:
            name = os.path.splitext(os.path.basename(self.path))[0]
            server = Server(name, instructions=f"{self.state.file} cannot be loaded yet.")
        return server

    async def follow(self, server: Server) -> None:
        """Have a server be what its file says, for as long as it is served."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if self._changed() == self._seen:
                continue
            await asyncio.sleep(SETTLE_SECONDS)
            # In a thread: a file may take its time, and the version before goes on serving.
            fresh = await asyncio.to_thread(self._load)
            if fresh is not None:
                await self._replace(server, fresh)
            self._tell()

    async def _replace(self, server: Server, fresh: Server) -> None:
        try:
            end = await become(server, fresh)
        except Exception as failure:
            self._broken(failure)
            return
        task = asyncio.get_running_loop().create_task(self._retire(end))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _retire(self, end: Callable[[], Awaitable[None]]) -> None:
        """End what the version before has opened, when its calls have ended, or after a while."""
        for _ in range(int(RETIRE_SECONDS / LOOK_SECONDS)):
            if not self.busy():
                break
            await asyncio.sleep(LOOK_SECONDS)
        await end()

    # Loading

    def _load(self) -> Server | None:
        """The server as the file has it now; None if it has none, and the state says why."""
        before = self._own_modules()
        for name in before:
            del sys.modules[name]
        importlib.invalidate_caches()
        paths = list(sys.path)
        try:
            found = importer.load(self.target)
            if not isinstance(found, Server):
                raise UsageError(f"{self.target} is not a Server")
        except (Exception, SystemExit) as failure:
            self._broken(failure)
            for name in self._own_modules():
                del sys.modules[name]
            sys.modules.update(before)
            return None
        finally:
            # What lies beside the file is found; once is enough.
            sys.path[:] = paths if self.folder in paths else [self.folder, *paths]
            self._seen = self._changed()
        self.state = DevState(
            state="ok", file=self.state.file, at=time.time(), loads=self.state.loads + 1
        )  # fmt: skip
        return found

    def _own_modules(self) -> dict[str, ModuleType]:
        """What was imported from the folder of the file: it is imported again with it."""
        own = {}
        for name, module in list(sys.modules.items()):
            path = getattr(module, "__file__", None) or ""
            if name != "__main__" and path.startswith(self.folder + os.sep) and "site-packages" not in path:
                own[name] = module
        return own

    def _changed(self) -> dict[str, int]:
        """When each of the files was changed."""
        files = {str(module.__file__) for module in self._own_modules().values()} | {self.path} | set(self._seen)
        found = {}
        for path in sorted(files)[:MOST_FILES]:
            try:
                found[path] = os.stat(path).st_mtime_ns
            except OSError:
                found[path] = 0
        return found

    def _broken(self, failure: BaseException) -> None:
        if isinstance(failure, importer.LoadFailed) and failure.__cause__ is not None:
            failure = failure.__cause__
        lines = traceback.format_exception(failure)
        own = [frame.lineno for frame in traceback.extract_tb(failure.__traceback__) if frame.filename == self.path]
        line = failure.lineno if isinstance(failure, SyntaxError) else own[-1] if own else None
        text = "".join(_of_file(lines, self.folder))[-LONGEST_TRACE:].replace(self.folder + os.sep, "")
        place = self.state.file if line is None else f"{self.state.file}, line {line}"
        log.warning("%s: cannot be loaded: %s", place, lines[-1].strip())
        self.state = DevState(
            state="broken", file=self.state.file, error=text, line=line, at=time.time(), loads=self.state.loads
        )  # fmt: skip

    def _tell(self) -> None:
        for told in self.listeners:
            told()


def _of_file(lines: list[str], folder: str) -> list[str]:
    """A traceback without the frames of those who load the file."""
    return [line for line in lines if not line.startswith('  File "') or folder in line.partition("\n")[0]]
