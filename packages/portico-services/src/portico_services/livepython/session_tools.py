"""What stays: methods that are changed in place, and sessions that are saved for another day."""

from __future__ import annotations

import asyncio
from base64 import b64decode, b64encode
from collections.abc import Callable
from hashlib import sha256
from typing import Annotated, TypeVar

from msgspec import Meta

from portico import Context, ToolResult, tool
from portico.jsonschema import schema
from portico_services.livepython import replies
from portico_services.livepython.sandbox.limits import LARGEST, PART
from portico_services.livepython.sandbox.name_resolution import InspectionError, NameNotFound
from portico_services.livepython.session_files import SavedSession, SavedSessions, about
from portico_services.livepython.session_pool import MAIN, check_name
from portico_services.livepython.worker_client import (
    CHANGE,
    DESTROY,
    READ,
    Asking,
    Expression,
    LiveError,
    Name,
    OwnerName,
    SessionName,
    owner,
)

T = TypeVar("T")

SavedName = Annotated[str, Meta(min_length=1, max_length=64), "The name it is saved under"]


class Keeping(Asking):
    """Tools that change a session's classes, and that save and restore its names."""

    _saved: SavedSessions | None = None

    @tool(annotations=CHANGE, version="1.1.0")
    async def define_method(
        self,
        ctx: Context,
        className: OwnerName,
        source: Annotated[Expression, "One `def` with its decorators, as it would stand in the class or module"],
        session: SessionName = MAIN,
    ) -> replies.ChangedMethod:
        """Give a class a method, or a module a function, replacing the one it has. Existing objects and modules that
        imported the function use the new one immediately."""
        asked = {"className": className, "source": source}
        told = await self._read(ctx, replies.DefinedMethod, "define_method", session, **asked)
        self._changed(ctx, session, told.changed_classes)
        return replies.ChangedMethod(told.class_name, told.selector, told.kind, told.module)

    @tool(annotations=READ, output_schema=schema(replies.ChangedMethods, output=True))
    async def list_changes(self, ctx: Context, session: SessionName = MAIN) -> ToolResult:
        """The methods that were changed in place, and a patch that makes the same changes to the source."""
        found = await self._read(ctx, replies.ChangedMethods, "list_changes", session)
        return ToolResult(content=found.patch or "Nothing was changed.", structured=found)

    @tool(annotations=CHANGE)
    async def undo_change(
        self,
        ctx: Context,
        className: OwnerName,
        selector: Annotated[Name, "The name of the method or function"],
        session: SessionName = MAIN,
    ) -> replies.ChangedMethod:
        """Undo the last change of a method or function that define_method made, and restore the one before it."""
        asked = {"className": className, "selector": selector}
        told = await self._read(ctx, replies.DefinedMethod, "undo_change", session, **asked)
        self._changed(ctx, session, told.changed_classes)
        return replies.ChangedMethod(told.class_name, told.selector, told.kind, told.module)

    @tool(annotations=DESTROY)
    async def save_session(self, ctx: Context, name: SavedName, session: SessionName = MAIN) -> SavedSession:
        """Save the names of a session, in place of what was saved under this name. Says what could not be saved.

        Modules, functions, classes and values are saved; files are not, nor anything that is open or running.
        """
        _check(name)
        told = await self._read(ctx, replies.NamesSaved, "save", session, self.longest_timeout, most=LARGEST)
        data = await self._fetched(ctx, session, told.size)
        if sha256(data).hexdigest() != told.digest:
            raise LiveError("The session was saved twice at the same time. Try again.")
        saved = about(name, session, self._interpreters.info()["python"])
        saved.size, saved.names, saved.total = len(data), told.names, told.total
        saved.left_out = told.failed
        await self._files(lambda files: files.write(owner(ctx), saved, data, told.digest))
        return saved

    async def _fetched(self, ctx: Context, session: str, size: int) -> bytes:
        """What a worker has made, in parts. It says how much there is, and is not believed beyond the bound."""
        data = bytearray()
        while len(data) < min(size, LARGEST):
            part = await self._read(ctx, replies.SavedPart, "saved_part", session, at=len(data), size=PART)
            try:
                piece = b64decode(part.data, validate=True)
            except ValueError:
                piece = b""
            if not 0 < len(piece) <= PART:
                raise self._end_session(ctx, session)
            data += piece
        return bytes(data)

    @tool(annotations=CHANGE)
    async def restore_session(
        self, ctx: Context, name: SavedName, session: SessionName = MAIN
    ) -> replies.RestoredSession:
        """Put the names that were saved into a session. What it has besides stays. Says what could not be restored."""
        _check(name)
        _, data = await self._files(lambda files: files.read(owner(ctx), name))
        for at in range(0, len(data), PART):
            await self._ask(ctx, "restore_part", session, at=at, data=b64encode(data[at : at + PART]).decode())
        told = await self._read(ctx, replies.NamesTold, "restore", session, self.longest_timeout)
        self._changed(ctx, session, told.changed_classes)
        return replies.RestoredSession(name, session, told.names, told.total, told.failed)

    @tool(annotations=READ)
    async def list_saved_sessions(self, ctx: Context) -> list[SavedSession]:
        """The sessions that were saved, the newest first."""
        return await self._files(lambda files: files.list(owner(ctx)))

    @tool(annotations=DESTROY)
    async def delete_saved_session(self, ctx: Context, name: SavedName) -> replies.DeletedSession:
        """Delete a session that was saved."""
        _check(name)
        await self._files(lambda files: files.remove(owner(ctx), name))
        return replies.DeletedSession(name, deleted=True)

    async def _files(self, step: Callable[[SavedSessions], T]) -> T:
        if self._saved is None:
            raise LiveError("Sessions are not saved here.")
        try:
            return await asyncio.to_thread(step, self._saved)
        except InspectionError as refusal:
            kind = "ResourceNotFound" if isinstance(refusal, NameNotFound) else None
            raise LiveError(str(refusal), kind=kind) from None
        except OSError as failure:
            raise LiveError(f"Saved sessions cannot be reached here: {failure.strerror}.") from None


def _check(name: str) -> None:
    try:
        check_name(name)
    except InspectionError as refusal:
        raise LiveError(str(refusal), kind="ValidationError") from None
