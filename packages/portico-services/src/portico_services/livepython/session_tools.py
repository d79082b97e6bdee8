"""Tools that patch methods at run time, and tools that save and restore sessions."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable
from hashlib import sha256
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from portico import Context, Service, ToolResult, tool
from portico.extend import run_blocking
from portico.jsonschema import schema_for_type
from portico_services.livepython import replies
from portico_services.livepython.sandbox.limits import MAX_SESSION_BYTES, SESSION_CHUNK_BYTES
from portico_services.livepython.sandbox.name_resolution import InspectionError, NameNotFound
from portico_services.livepython.session_files import SavedSession, SessionFileStore, new_saved_session
from portico_services.livepython.session_pool import DEFAULT_SESSION, validate_session_name
from portico_services.livepython.worker_client import (
    DESTRUCTIVE_HINTS,
    READ_ONLY_HINTS,
    WRITE_HINTS,
    Expression,
    LivePythonError,
    NameParameter,
    OwnerName,
    SessionName,
    WorkerClient,
    session_owner,
)

T = TypeVar("T")

SavedName = Annotated[str, Meta(min_length=1, max_length=64), "Name of the saved session"]


class SessionTools(Service):
    """Tools to patch a session's classes and to save and restore its names. `saved` is None if saving is disabled."""

    def __init__(self, client: WorkerClient, saved: SessionFileStore | None) -> None:
        super().__init__()
        self._client = client
        self._saved = saved

    @tool(annotations=WRITE_HINTS, version="1.1.0")
    async def define_method(
        self,
        ctx: Context,
        className: OwnerName,
        source: Annotated[Expression, "One `def` with its decorators, as written in the class or module"],
        session: SessionName = DEFAULT_SESSION,
    ) -> replies.PatchedMethod:
        """Define a method of a class or a function of a module, replacing an existing one. Existing objects and modules
        that imported the function use the new one immediately.
        """
        arguments = {"className": className, "source": source}
        reply = await self._client.read(ctx, replies.DefineMethodReply, "define_method", session, **arguments)
        self._client.notify_changed(ctx, session, reply.changed_classes)
        return msgspec.convert(reply, replies.PatchedMethod, from_attributes=True)

    @tool(annotations=READ_ONLY_HINTS, output_schema=schema_for_type(replies.PatchReport, for_output=True))
    async def list_changes(self, ctx: Context, session: SessionName = DEFAULT_SESSION) -> ToolResult:
        """List the methods changed in the session, with a patch that applies the same changes to the source."""
        result = await self._client.read(ctx, replies.PatchReport, "list_changes", session)
        return ToolResult(content=result.patch or "No methods were changed.", structured=result)

    @tool(annotations=WRITE_HINTS)
    async def undo_change(
        self,
        ctx: Context,
        className: OwnerName,
        selector: Annotated[NameParameter, "Method or function name"],
        session: SessionName = DEFAULT_SESSION,
    ) -> replies.PatchedMethod:
        """Undo the last change of a method or function that define_method made, and restore the one before it."""
        arguments = {"className": className, "selector": selector}
        reply = await self._client.read(ctx, replies.DefineMethodReply, "undo_change", session, **arguments)
        self._client.notify_changed(ctx, session, reply.changed_classes)
        return msgspec.convert(reply, replies.PatchedMethod, from_attributes=True)

    @tool(annotations=DESTRUCTIVE_HINTS)
    async def save_session(self, ctx: Context, name: SavedName, session: SessionName = DEFAULT_SESSION) -> SavedSession:
        """Save the names of a session, replacing an earlier save. Returns skipped names with reasons.

        Modules, functions, classes and values are saved; files and open or running resources are not.
        """
        _validate_saved_name(name)
        report = await self._client.read(
            ctx, replies.SavedNamesReport, "save", session, self._client.max_timeout, limit=MAX_SESSION_BYTES
        )
        data = await self._fetch_data(ctx, session, report.size)
        # The chunks are separate requests: another save may have replaced the data between two of them.
        if sha256(data).hexdigest() != report.digest:
            raise LivePythonError("Another call saved the session at the same time. Try again.")
        saved = new_saved_session(name, session, self._client.interpreters.info()["python"])
        saved.size, saved.names, saved.total = len(data), report.names, report.total
        saved.left_out = report.failed
        await self._files(lambda files: files.write(session_owner(ctx), saved, data, report.digest))
        return saved

    async def _fetch_data(self, ctx: Context, session: str, size: int) -> bytes:
        """Fetch the saved data from a worker in chunks.

        The size is reported by the worker, which is untrusted, so it is capped at MAX_SESSION_BYTES.
        """
        data = bytearray()
        while len(data) < min(size, MAX_SESSION_BYTES):
            part = await self._client.read(
                ctx, replies.SessionChunk, "saved_part", session, at=len(data), size=SESSION_CHUNK_BYTES
            )
            try:
                piece = b64decode(part.data, validate=True)
            except ValueError:
                piece = b""
            # An empty chunk would loop forever, a larger one would exceed the limit: neither comes from the genuine
            # worker.
            if not 0 < len(piece) <= SESSION_CHUNK_BYTES:
                raise self._client.end_session(ctx, session)
            data += piece
        return bytes(data)

    @tool(annotations=WRITE_HINTS)
    async def restore_session(
        self, ctx: Context, name: SavedName, session: SessionName = DEFAULT_SESSION
    ) -> replies.RestoreSessionResult:
        """Restore saved names into a session. Its other names are unchanged. Returns skipped names with reasons."""
        _validate_saved_name(name)
        _, data = await self._files(lambda files: files.read(session_owner(ctx), name))
        # Each chunk carries its offset, so that the worker can detect two restores that are interleaved.
        for at in range(0, len(data), SESSION_CHUNK_BYTES):
            await self._client.ask(
                ctx, "restore_part", session, at=at, data=b64encode(data[at : at + SESSION_CHUNK_BYTES]).decode()
            )
        report = await self._client.read(ctx, replies.NamesReport, "restore", session, self._client.max_timeout)
        self._client.notify_changed(ctx, session, report.changed_classes)
        return replies.RestoreSessionResult(name, session, report.names, report.total, report.failed)

    @tool(annotations=READ_ONLY_HINTS)
    async def list_saved_sessions(self, ctx: Context) -> list[SavedSession]:
        """List the saved sessions, newest first."""
        return await self._files(lambda files: files.list(session_owner(ctx)))

    @tool(annotations=DESTRUCTIVE_HINTS)
    async def delete_saved_session(self, ctx: Context, name: SavedName) -> replies.DeleteSessionResult:
        """Delete a saved session."""
        _validate_saved_name(name)
        await self._files(lambda files: files.remove(session_owner(ctx), name))
        return replies.DeleteSessionResult(name, deleted=True)

    async def _files(self, step: Callable[[SessionFileStore], T]) -> T:
        if self._saved is None:
            raise LivePythonError("This server does not save sessions.")
        try:
            # Up to MAX_SESSION_BYTES are read or written, possibly on a network file system.
            return await run_blocking(step, self._saved)
        except InspectionError as refusal:
            kind = "ResourceNotFound" if isinstance(refusal, NameNotFound) else None
            raise LivePythonError(str(refusal), kind=kind) from None
        except OSError as failure:
            raise LivePythonError(f"The directory of saved sessions is not accessible: {failure.strerror}.") from None


def _validate_saved_name(name: str) -> None:
    try:
        validate_session_name(name)
    except InspectionError as refusal:
        raise LivePythonError(str(refusal), kind="ValidationError") from None
