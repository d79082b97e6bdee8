"""Load a server from a file, and reload it when the file changes.

If a version cannot be loaded, the last working one stays in service.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import sys
import time
import traceback
from collections.abc import Awaitable, Callable
from types import ModuleType
from typing import Literal

from msgspec import Struct

from portico.protocol.errors import UsageError
from portico.rpc.supervision import BackgroundTasks
from portico.server.reload import replace_server
from portico.server.server import Server
from portico.transports import importer

# Polling works on every platform and file system, including mounted volumes of containers.
POLL_INTERVAL_SECONDS = 0.25
# An editor may write a file in several steps.
DEBOUNCE_SECONDS = 0.05
# How long calls of the previous version may still use its lifespans.
DRAIN_TIMEOUT_SECONDS = 10.0
# Each poll calls stat() for every file.
MAX_WATCHED_FILES = 5000
MAX_ERROR_CHARS = 8000


class ReloadState(Struct, kw_only=True):
    """Whether the file was loaded, and the error otherwise."""

    state: Literal["ok", "broken"]
    file: str
    error: str | None = None
    line: int | None = None
    at: float
    # How often it was loaded without an error.
    loads: int = 0


class Reloader:
    """Loads the Server of a target, `file.py` or `file.py:object`, and reloads it when its files change."""

    def __init__(self, target: str) -> None:
        module_path = target if target.endswith(".py") else target.rpartition(":")[0]
        if not module_path.endswith(".py"):
            raise UsageError(f"invalid target {target!r}: expected path/to/file.py or path/to/file.py:object")
        if not os.path.isfile(module_path):
            raise UsageError(f"file not found: {module_path}")
        self.target = target
        self.path = os.path.abspath(module_path)
        self.folder = os.path.dirname(self.path)
        self.state = ReloadState(state="broken", file=os.path.basename(self.path), at=time.time())
        self.listeners: list[Callable[[], None]] = []
        # Whether calls of the previous version may still be in flight.
        self.busy: Callable[[], bool] = lambda: False
        self._versions: dict[str, int] = {}
        self._background = BackgroundTasks()

    def load_initial(self) -> Server:
        """Return the initial server: an empty one if the file cannot be loaded yet."""
        # Bytecode that was just compiled can have the modification time of a source written now.
        sys.dont_write_bytecode = True
        server = self._load()
        if server is None:
            name = os.path.splitext(os.path.basename(self.path))[0]
            server = Server(name, instructions=f"{self.state.file} has not been loaded yet.")
        return server

    async def watch(self, server: Server) -> None:
        """Replace the server with the new version of its file after each change, until cancelled."""
        while True:
            await asyncio.sleep(POLL_INTERVAL_SECONDS)
            if self._file_versions() == self._versions:
                continue
            await asyncio.sleep(DEBOUNCE_SECONDS)
            # In a thread: the file may load slowly while the previous version keeps serving.
            new_server = await asyncio.to_thread(self._load)
            if new_server is not None:
                await self._swap(server, new_server)
            self._notify()

    async def _swap(self, server: Server, new_server: Server) -> None:
        try:
            # The lifespan of the new version starts here and may fail as well; the old one then keeps serving.
            end = await replace_server(server, new_server)
        except Exception as failure:
            self._record_failure(failure)
            return
        self._background.start(self._drain_previous(end))

    async def _drain_previous(self, end: Callable[[], Awaitable[None]]) -> None:
        """End the previous version's lifespans when its calls have finished, or after DRAIN_TIMEOUT_SECONDS."""
        for _ in range(int(DRAIN_TIMEOUT_SECONDS / POLL_INTERVAL_SECONDS)):
            if not self.busy():
                break
            await asyncio.sleep(POLL_INTERVAL_SECONDS)
        await end()

    # Loading

    def _load(self) -> Server | None:
        """Load the file and return its server, or None if it fails, with the reason in `state`."""
        before = self._project_modules()
        # Taken before loading: a file that changes while it is being loaded is loaded again.
        versions = self._file_versions()
        for name in before:
            del sys.modules[name]
        # Import finders cache directory listings, so a module that was added just now would not be found.
        importlib.invalidate_caches()
        paths = list(sys.path)
        try:
            result = importer.import_server(self.target)
            if not isinstance(result, Server):
                raise UsageError(f"{self.target} is not a Server")
        # A file without a `__main__` guard may call sys.exit(), which must not end the development server.
        except (Exception, SystemExit) as failure:
            self._record_failure(failure)
            for name in self._project_modules():
                del sys.modules[name]
            # The previous version still runs and may import its modules lazily.
            sys.modules.update(before)
            return None
        finally:
            # Modules next to the file can be imported. Loading adds the directory each time; once is enough.
            sys.path[:] = paths if self.folder in paths else [self.folder, *paths]
            self._versions = {**self._file_versions(), **versions}
        self.state = ReloadState(
            state="ok", file=self.state.file, at=time.time(), loads=self.state.loads + 1
        )  # fmt: skip
        return result

    def _project_modules(self) -> dict[str, ModuleType]:
        """Return the modules imported from the directory of the file, which are reloaded with it."""
        modules = {}
        for name, module in list(sys.modules.items()):
            path = getattr(module, "__file__", None) or ""
            if name != "__main__" and path.startswith(self.folder + os.sep) and "site-packages" not in path:
                modules[name] = module
        return modules

    def _file_versions(self) -> dict[str, int]:
        """Return the modification time of each watched file."""
        files = (
            {str(module.__file__) for module in self._project_modules().values()} | {self.path} | set(self._versions)
        )
        result = {}
        for path in sorted(files)[:MAX_WATCHED_FILES]:
            try:
                result[path] = os.stat(path).st_mtime_ns
            except OSError:
                # A deleted file is a change too, and some editors delete a file before they write it again.
                result[path] = 0
        return result

    def _record_failure(self, failure: BaseException) -> None:
        # The cause has the traceback into the user's file; the wrapper was raised by the importer.
        if isinstance(failure, importer.LoadFailed) and failure.__cause__ is not None:
            failure = failure.__cause__
        own = [frame.lineno for frame in traceback.extract_tb(failure.__traceback__) if frame.filename == self.path]
        line = failure.lineno if isinstance(failure, SyntaxError) else own[-1] if own else None
        # The same message as `portico serve` prints: one sentence and the user's own frames.
        text = importer.describe_failure(self.state.file, failure)
        text = text.replace(self.folder + os.sep, "")[:MAX_ERROR_CHARS]
        self.state = ReloadState(
            state="broken", file=self.state.file, error=text, line=line, at=time.time(), loads=self.state.loads
        )  # fmt: skip

    def _notify(self) -> None:
        for listener in self.listeners:
            listener()
