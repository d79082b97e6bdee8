"""Shared base of the service's tools: the machine, and the audit record of each access."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, TypeVar
from urllib.parse import urlsplit
from urllib.request import url2pathname

from msgspec import Meta

from portico import Context
from portico_services.system.errors import NotFound, PathNotAllowed, SystemToolError

if TYPE_CHECKING:
    from portico_services.system.machine import Machine

# A user cannot judge a longer list of directories in one dialog.
MAX_REQUESTED_ROOTS = 20
MAX_PATH_CHARS = 4096


class ClientRoots:
    """Requests access to the client's roots from its user when a call needs one of them.

    Only for a single local client, as on stdio: it runs as the user who owns the files. Over HTTP a client would name
    directories of a machine that is not its own. The user's answer for a directory is remembered for the lifetime of
    the service.
    """

    def __init__(self, machine: Callable[[], Machine], allow: Callable[[list[str]], None]) -> None:
        self._machine = machine
        self._allow = allow
        # The user's answer for each directory.
        self._answers: dict[str, bool] = {}
        # Serialize requests: concurrent calls would ask the same question.
        self._asking = asyncio.Lock()

    async def request_access(self, ctx: Context, path: str | None) -> bool:
        """Return whether to retry: the user allowed a directory that contains the path, or any directory if it
        is None.
        """
        # A client with an address is on HTTP, possibly on another machine; its roots do not name local directories.
        if ctx.client_address is not None or ctx.client_capabilities.roots is None:
            return False
        async with self._asking:
            folders = [
                folder for root in await ctx.list_roots(key="roots") if (folder := _folder(root.uri)) is not None
            ]
            requested = [folder for folder in folders if path is None or _is_below(path, folder)][:MAX_REQUESTED_ROOTS]
            unknown = [folder for folder in requested if folder not in self._answers]
            if unknown and not ctx.client_capabilities.supports_elicitation("form"):
                raise PathNotAllowed(
                    "The path is in a root of the client, but the client cannot ask its user for access. The "
                    "operator of this server can allow it: portico serve --allow-path PATH."
                )
            if unknown:
                await self._elicit_consent(ctx, unknown)
            return any(self._answers[folder] for folder in requested)

    async def _elicit_consent(self, ctx: Context, folders: list[str]) -> None:
        listed = "\n".join(f"- {folder}" for folder in folders)
        # Name the server: with several servers the user must know which one asks.
        question = f"Allow the tools of {ctx.server.name!r} to read these directories?\n{listed}"
        answer = await ctx.elicit(question, ["yes", "no"], key="roots-consent")
        agreed = answer.action == "accept" and answer.data == "yes"
        await ctx.run_in_thread(self._record_consent, folders, agreed)
        self._answers |= dict.fromkeys(folders, agreed)

    def _record_consent(self, folders: list[str], agreed: bool) -> None:
        self._machine().audit.add("roots", {"folders": "\n".join(folders)}, "ok" if agreed else "denied")
        if agreed:
            self._allow(folders)


def _folder(uri: str) -> str | None:
    """Return the local directory that a URI names, or None."""
    try:
        url = urlsplit(uri)
        path = url2pathname(url.path)
    except ValueError:
        return None
    # A host part names another machine (`file://server/share`).
    is_here = url.scheme == "file" and url.netloc in ("", "localhost")
    if not is_here or "\0" in path or len(path) > MAX_PATH_CHARS or not os.path.isabs(path):
        return None
    path = os.path.normpath(path)
    # The path is shown to the user; control characters could disguise another one.
    return path if path.isprintable() and os.path.isdir(path) else None


def _is_below(path: str, folder: str) -> bool:
    """Return whether a path is lexically in a directory; a relative path may be in any."""
    if not os.path.isabs(path):
        return True
    normal = os.path.normcase(os.path.normpath(path))
    top = os.path.normcase(folder)
    return normal == top or normal.startswith(top.rstrip(os.sep) + os.sep)


T = TypeVar("T")

CursorParameter = Annotated[str | None, Meta(description="`nextCursor` from the previous page", max_length=16 * 1024)]

PROGRESS_INTERVAL_SECONDS = 0.5

READ_ONLY_HINTS = {"readOnlyHint": True, "openWorldHint": False}


class MachineAccess:
    """Access to the machine for tools. `options` are those of Machine. With `client_roots`, users may allow more
    directories.
    """

    def __init__(self, options: dict[str, Any], *, client_roots: bool = False) -> None:
        self.options = options
        self._machine: Machine | None = None
        self._lock = threading.Lock()
        self.client_roots = ClientRoots(lambda: self.machine, self._allow_directories) if client_roots else None

    @property
    def machine(self) -> Machine:
        """Return the machine, created on first use."""
        with self._lock:
            if self._machine is None:
                # Machine has many imports, so it is loaded for the first call only.
                from portico_services.system.machine import Machine

                self._machine = Machine(**self.options)
            return self._machine

    def _allow_directories(self, folders: list[str]) -> None:
        """Allow additional directories for the lifetime of the service."""
        self.machine.allow(folders)
        # Also in the options, so that a machine created after a restart of the service allows them too.
        self.options["allowed_paths"] += folders

    def close(self) -> None:
        with self._lock:
            if self._machine is not None:
                self._machine.close()
                self._machine = None

    @contextmanager
    def audit(self, tool: str, **arguments: Any) -> Iterator[None]:
        """Record this call in the audit log."""
        # Recorded if neither branch below is reached: the call was cancelled.
        outcome = "stopped"
        # Check first: nothing may happen that cannot be recorded.
        self.machine.audit.ensure_writable()
        try:
            yield
            outcome = "ok"
        except SystemToolError as refusal:
            outcome = refusal.outcome
            raise
        except Exception:
            outcome = "failed"
            raise
        finally:
            self.machine.audit.add(tool, arguments, outcome)

    def run_audited(self, tool: str, operation: Callable[[], T], **arguments: Any) -> Callable[[], T]:
        """Return a function that calls `operation` and records each call."""

        def run() -> T:
            with self.audit(tool, **arguments):
                return operation()

        return run

    async def run_with_roots(
        self, ctx: Context, path: str | None, tool: str, operation: Callable[[], T], /, **arguments: Any
    ) -> T:
        """Run `operation` on the allowed paths, and again after the user allowed a client root.

        Each attempt is recorded with the tool and its arguments.
        """
        operation = self.run_audited(tool, operation, **arguments)
        try:
            return await run_with_progress(ctx, operation)
        except PathNotAllowed:
            if self.client_roots is None or not await self.client_roots.request_access(ctx, path):
                raise
        return await run_with_progress(ctx, operation)

    def resource(self, uri: str, read: Callable[[], T]) -> T | None:
        """Return the content of a resource, or None if it does not exist."""
        try:
            with self.audit(f"read {uri.partition('://')[0]}", uri=uri):
                return read()
        except NotFound:
            return None


async def run_with_progress(ctx: Context, operation: Callable[[], T]) -> T:
    """Run `operation` in a thread and return its result.

    Report the elapsed time to a client that requested progress.
    """
    if "progressToken" not in ctx.meta:
        return await ctx.run_in_thread(operation)
    running = asyncio.create_task(ctx.run_in_thread(operation))
    seconds = 0.0
    try:
        # `asyncio.wait` does not cancel the task on timeout, unlike `asyncio.wait_for`.
        while not (await asyncio.wait([running], timeout=PROGRESS_INTERVAL_SECONDS))[0]:
            seconds += PROGRESS_INTERVAL_SECONDS
            ctx.report_progress(seconds, message=f"Running for {seconds:g} s")
        return running.result()
    finally:
        running.cancel()
