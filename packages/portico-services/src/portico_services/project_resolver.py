"""The project that a call is about: by the client's roots where it has them, else by the folder of this server."""

from __future__ import annotations

import asyncio
import os
import posixpath
from pathlib import PureWindowsPath
from urllib.parse import unquote, urlsplit
from weakref import WeakKeyDictionary

from portico import Context, ProtocolError, ToolError
from portico.extend import MODERN, Conversation, Root, TransportError, is_loopback
from portico_services import git_project
from portico_services.git_project import Where

# Once for each connection, and no longer: not every client that declares roots answers.
ROOTS_SECONDS = 3.0
_KEY = "roots"


class _Asked:
    """What one client said of its roots; or that it still has to say it."""

    def __init__(self, changes: int) -> None:
        # How often they had changed when it was asked.
        self.changes = changes
        self.where: Where | None = None
        self.task: asyncio.Task[None] | None = None
        # It has been waited for once.
        self.late = False


class Projects:
    """Tells the projects of calls apart. `name` is one for all of them; `folder` is where it is looked for if it is not
    the clients who say it. Without either, clients are asked for their roots, once for each connection."""

    def __init__(self, name: str | None = None, folder: str | os.PathLike[str] | None = None) -> None:
        self._name = name
        self._folder = folder
        self._ours: Where | None = None
        self._asked: WeakKeyDictionary[Conversation, _Asked] = WeakKeyDictionary()
        self._questions: set[asyncio.Task[None]] = set()

    @property
    def is_named(self) -> bool:
        """Whether a setting names the project, so that the repository here may be another one."""
        return self._name is not None

    async def here(self) -> Where:
        """The project of this server's own folder."""
        if self._ours is None:
            found = await asyncio.to_thread(git_project.look, self._folder)
            self._ours = found if self._name is None else _named(self._name, found)
        return self._ours

    async def of(self, ctx: Context) -> Where:
        """The project that a call is about. A client that does not answer is taken for one without roots."""
        if self._name is not None or self._folder is not None or ctx.capabilities.roots is None:
            return await self.here()
        return await self._theirs(ctx) or await self.here()

    async def _theirs(self, ctx: Context) -> Where | None:
        conversation = ctx.conversation
        if conversation is None:
            return await _first(await ctx.roots(key=_KEY), ctx)
        asked = self._asked.get(conversation)
        if asked is None or asked.changes != conversation.root_changes:
            before, asked = asked, _Asked(conversation.root_changes)
            if ctx.revision < MODERN:
                asked.where = None if before is None else before.where
                self._ask(ctx, asked)
            else:
                # The call ends here, and comes again with the answer.
                asked.where = await _first(await ctx.roots(key=_KEY), ctx)
            self._asked[conversation] = asked
        if asked.task is not None and not asked.late:
            await asyncio.wait({asked.task}, timeout=ROOTS_SECONDS)
            asked.late = True
        return asked.where

    def _ask(self, ctx: Context, asked: _Asked) -> None:
        """In a task of its own: an answer that comes late is still of use to the next call."""
        asked.task = asyncio.create_task(_heard(ctx, asked))
        self._questions.add(asked.task)
        asked.task.add_done_callback(self._questions.discard)


async def _heard(ctx: Context, asked: _Asked) -> None:
    try:
        asked.where = await _first(await ctx.roots(key=_KEY), ctx)
    except (ToolError, ProtocolError, TransportError):
        pass  # it has none, after all
    finally:
        # It would keep the connection alive.
        asked.task = None


def _named(name: str, found: Where) -> Where:
    project = git_project.spelled(name)
    return Where(project, found.branch, found.root, name if name != project else None)


async def _first(roots: list[Root], ctx: Context) -> Where | None:
    """The project of the first root, which is the folder that the client was opened in."""
    path = next((found for root in roots[:1] if (found := path_of(root.uri)) is not None), None)
    if path is None:
        return None
    # What is in a folder of this machine is the business of those who are on it.
    if ctx.address is None or is_loopback(ctx.address):
        return await asyncio.to_thread(_looked, path)
    return Where(git_project.by_path(path))


def _looked(path: str) -> Where:
    # Two slashes are another machine, which is not to be called for the asking.
    if not path.startswith("//") and os.path.isdir(path):
        return git_project.look(path)
    return Where(git_project.by_path(path))


def path_of(uri: str) -> str | None:
    """The absolute path that a `file://` URI stands for; None for any other."""
    try:
        parts = urlsplit(uri)
    except ValueError:
        return None
    path = posixpath.normpath(unquote(parts.path))
    if parts.scheme != "file" or not path.startswith("/") or "\0" in path:
        return None
    path = f"/{path.lstrip('/')}"
    if parts.netloc not in ("", "localhost"):
        return f"//{parts.netloc}{path}"
    return path[1:] if PureWindowsPath(path[1:]).is_absolute() else path
