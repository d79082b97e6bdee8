"""Resolution of the project of a call: from the client's roots if it has any, else from the server's directory."""

from __future__ import annotations

import asyncio
import os
import posixpath
from pathlib import PureWindowsPath
from urllib.parse import unquote, urlsplit
from weakref import WeakKeyDictionary

from portico import Context, ProtocolError, ToolError
from portico.errors import TransportError
from portico.extend import FIRST_MODERN_VERSION, BackgroundTasks, ClientConnection, is_loopback, run_blocking
from portico.types import Root
from portico_services import git_project
from portico_services.git_project import ProjectInfo

# Waited once per connection: not every client that declares roots answers.
ROOTS_TIMEOUT_SECONDS = 3.0
_STATE_KEY = "roots"


class _ClientRootsState:
    """State of the roots request to one client."""

    def __init__(self, changes: int) -> None:
        # Version of the client's roots when they were requested.
        self.changes = changes
        self.where: ProjectInfo | None = None
        self.task: asyncio.Task[None] | None = None
        # Whether a call has already waited for the response; later calls do not wait again.
        self.late = False


class ProjectResolver:
    """Resolves the project of each call.

    `name` sets one project for all calls; `folder` is the directory to detect it from. Without either, clients are
    asked for their roots once per connection.
    """

    def __init__(self, name: str | None = None, folder: str | os.PathLike[str] | None = None) -> None:
        self._name = name
        self._folder = folder
        self._server_project: ProjectInfo | None = None
        # Weak keys: a closed connection must not stay alive through its state.
        self._roots_cache: WeakKeyDictionary[ClientConnection, _ClientRootsState] = WeakKeyDictionary()
        self._questions = BackgroundTasks()

    @property
    def is_named(self) -> bool:
        """Return whether a setting names the project, so that the repository here may be a different one."""
        return self._name is not None

    async def resolve_default(self) -> ProjectInfo:
        """Return the project of the server's own directory."""
        if self._server_project is None:
            result = await run_blocking(git_project.detect_project, self._folder)
            self._server_project = result if self._name is None else _with_name(self._name, result)
        return self._server_project

    async def resolve(self, ctx: Context) -> ProjectInfo:
        """Return the project that a call is about. A client that does not answer is treated as having no roots."""
        if self._name is not None or self._folder is not None or ctx.client_capabilities.roots is None:
            return await self.resolve_default()
        return await self._resolve_client(ctx) or await self.resolve_default()

    async def _resolve_client(self, ctx: Context) -> ProjectInfo | None:
        conversation = ctx.connection
        if conversation is None:
            return await _project_of_first_root(await ctx.list_roots(key=_STATE_KEY), ctx)
        state = self._roots_cache.get(conversation)
        if state is None or state.changes != conversation.roots_version:
            before, state = state, _ClientRootsState(conversation.roots_version)
            if ctx.protocol_version < FIRST_MODERN_VERSION:
                state.where = None if before is None else before.where
                self._request_roots(ctx, state)
            else:
                # In stateless protocol versions the call ends here and the client repeats it with the roots.
                state.where = await _project_of_first_root(await ctx.list_roots(key=_STATE_KEY), ctx)
            self._roots_cache[conversation] = state
        if state.task is not None and not state.late:
            await asyncio.wait({state.task}, timeout=ROOTS_TIMEOUT_SECONDS)
            # A client that did not answer once is not waited for again, or every call would take three seconds.
            state.late = True
        return state.where

    def _request_roots(self, ctx: Context, state: _ClientRootsState) -> None:
        """Request the roots in a separate task, so that a late response is still available to the next call."""
        state.task = self._questions.start(_on_roots_received(ctx, state))


async def _on_roots_received(ctx: Context, state: _ClientRootsState) -> None:
    try:
        state.where = await _project_of_first_root(await ctx.list_roots(key=_STATE_KEY), ctx)
    except (ToolError, ProtocolError, TransportError):
        pass  # The client has no usable roots after all.
    finally:
        # The task would keep the connection alive.
        state.task = None


def _with_name(name: str, project_info: ProjectInfo) -> ProjectInfo:
    project = git_project.normalize_project_name(name)
    return ProjectInfo(project, project_info.branch, project_info.root, name if name != project else None)


async def _project_of_first_root(roots: list[Root], ctx: Context) -> ProjectInfo | None:
    """Return the project of the first root, which is the directory that the client was opened in."""
    path = next((result for root in roots[:1] if (result := path_from_file_uri(root.uri)) is not None), None)
    if path is None:
        return None
    # Only local clients may cause this server to inspect one of its directories.
    if ctx.client_address is None or is_loopback(ctx.client_address):
        return await run_blocking(_detect_cached, path)
    return ProjectInfo(git_project.project_from_path(path))


def _detect_cached(path: str) -> ProjectInfo:
    # A path with two slashes is on another machine (UNC); resolving it would open a network connection.
    if not path.startswith("//") and os.path.isdir(path):
        return git_project.detect_project(path)
    return ProjectInfo(git_project.project_from_path(path))


def path_from_file_uri(uri: str) -> str | None:
    """Return the absolute path of a `file://` URI, or None for any other URI."""
    try:
        parts = urlsplit(uri)
    except ValueError:
        return None
    path = posixpath.normpath(unquote(parts.path))
    if parts.scheme != "file" or not path.startswith("/") or "\0" in path:
        return None
    path = f"/{path.lstrip('/')}"
    # RFC 8089, appendix E.3: another host is a UNC path.
    if parts.netloc not in ("", "localhost"):
        return f"//{parts.netloc}{path}"
    return path[1:] if PureWindowsPath(path[1:]).is_absolute() else path
