"""Client for the workers of sessions, used by all tools of live Python."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from itertools import islice
from typing import Annotated, Any, TypeVar
from urllib.parse import quote

from msgspec import Meta

from portico import Context, Server, ToolError, UsageError
from portico.caching import LruCache
from portico.errors import InternalError
from portico.extend import principal_id
from portico_services.livepython import replies
from portico_services.livepython.replies import InvalidReply
from portico_services.livepython.sandbox.name_resolution import InspectionError
from portico_services.livepython.sandbox.syscalls import SandboxUnavailable
from portico_services.livepython.sandbox.worker import WorkerEnded, WorkerReply
from portico_services.livepython.session_pool import DEFAULT_SESSION, InterpreterPool

T = TypeVar("T")

# Enough for a method qualified with its class and module.
MAX_NAME_CHARS = 1000
# Owners whose changed classes are tracked, and classes per owner.
MAX_TRACKED_OWNERS = 1000
MAX_TRACKED_CLASSES = 500
MAX_EXPRESSION_CHARS = 256 * 1024

NameParameter = Annotated[str, Meta(max_length=MAX_NAME_CHARS)]
SessionName = Annotated[NameParameter, "Session name; each session has its own variables; default main"]
ClassName = Annotated[NameParameter, "Class name, optionally with module, e.g. json.decoder.JSONDecoder"]
OwnerName = Annotated[NameParameter, "Class or module, e.g. json.decoder; __main__ for functions of the session"]
Expression = Annotated[str, Meta(max_length=MAX_EXPRESSION_CHARS)]

READ_ONLY_HINTS = {"readOnlyHint": True, "openWorldHint": False}
WRITE_HINTS = {"readOnlyHint": False, "destructiveHint": False, "openWorldHint": False}
DESTRUCTIVE_HINTS = {**WRITE_HINTS, "destructiveHint": True, "idempotentHint": True}


class LivePythonError(ToolError):
    """A failed call: it was rejected, timed out, or lost its session."""

    error_type = "ToolExecutionError"

    def __init__(self, reason: str, *, kind: str | None = None) -> None:
        super().__init__(f"Error: {reason}", error_type=kind)
        self.reason = reason


class OperationRejected(LivePythonError):
    """The session is intact, but rejected the operation: the object does not exist, or an expression raised an
    exception.
    """


class WorkerClient:
    """Client that sends requests to interpreters and notifies resource subscribers when classes change.

    `schemes` are the URI schemes of the resources.
    """

    def __init__(
        self, mode: str, interpreters: InterpreterPool, timeout: float, max_timeout: float, schemes: Collection[str]
    ) -> None:
        self.mode = mode
        self.interpreters = interpreters
        self.timeout, self.max_timeout = timeout, max_timeout
        self.servers: set[Server] = set()
        self._schemes = schemes
        # Classes per owner that subscribers were notified of, to notify them again when the classes are lost.
        self._known: LruCache[str | None, set[str]] = LruCache(MAX_TRACKED_OWNERS)

    @asynccontextmanager
    async def run(self) -> AsyncIterator[None]:
        try:
            await self.interpreters.open()
        except SandboxUnavailable as reason:
            await self.interpreters.close()
            raise UsageError(f"live Python cannot start: {reason}") from None
        try:
            yield
        finally:
            await self.interpreters.close()

    # Changes

    def notify_changed(self, ctx: Context, session: str, classes: replies.ChangedClasses) -> None:
        """Notify the subscribers of these classes and their methods. Resources show only the default session."""
        if not classes or session != DEFAULT_SESSION:
            return
        published = self._known.setdefault(session_owner(ctx), set())
        # Bounded per owner: code can define classes in a loop.
        published.update(islice(classes, MAX_TRACKED_CLASSES - len(published)))
        self._notify_servers([f"class/{quote(name)}" for name in classes])
        self._notify_servers(
            [
                f"method/{quote(name)}/{quote(member)}"
                for name, members in classes.items()
                for member in members
                if member
            ]
        )
        # The list of the session's classes may have changed with each of them.
        self._notify_servers(["package/__main__"])

    def notify_forgotten(self, ctx: Context, session: str) -> None:
        """Notify subscribers that the classes of a session are lost, because the session starts over."""
        if session == DEFAULT_SESSION:
            self.notify_changed(ctx, session, {name: [] for name in self._known.pop(session_owner(ctx), ())})
            self._known.pop(session_owner(ctx), None)

    def _notify_servers(self, uris: list[str]) -> None:
        for server in self.servers:
            for uri in uris:
                for scheme in self._schemes:
                    server.notify_resource_updated(f"{scheme}://{uri}")

    # Requests

    async def ask(
        self, ctx: Context, op: str, session: str = DEFAULT_SESSION, seconds: float | None = None, /, **arguments: Any
    ) -> WorkerReply:
        """Send a request to a worker and return its reply. Raises LivePythonError on every failure."""
        seconds = seconds or self.timeout
        try:
            answer = await self.interpreters.request((session_owner(ctx), session), op, arguments, seconds)
        except (InspectionError, SandboxUnavailable) as refusal:
            raise LivePythonError(str(refusal)) from None
        except WorkerEnded as end:
            raise LivePythonError(
                self.describe_end(ctx, session, end), kind="TimeoutError" if end.timed_out else None
            ) from None
        # Before the refusal: interrupted code often fails with an unrelated error on its way out.
        if answer.interrupted:
            raise LivePythonError(session_saved_message(session, seconds), kind="TimeoutError")
        if answer.refusal is not None:
            reason = answer.refusal if answer.note is None else f"{answer.refusal} {answer.note}"
            raise OperationRejected(reason, kind="ResourceNotFound" if answer.missing else None)
        return answer

    def describe_end(self, ctx: Context, session: str, end: WorkerEnded) -> str:
        """Return a message that describes what happened to a session whose worker ended."""
        if end.was_rescued is not None:
            return f"It was ended, because {end.reason}. The session {session!r} {end.was_rescued}."
        self.notify_forgotten(ctx, session)
        return session_lost_message(session, end.reason)

    async def read(
        self,
        ctx: Context,
        kind: type[T],
        op: str,
        session: str = DEFAULT_SESSION,
        seconds: float | None = None,
        /,
        **arguments: Any,
    ) -> T:
        """Send a request and decode the result as `kind`. Raises LivePythonError on every failure."""
        answer = await self.ask(ctx, op, session, seconds, **arguments)
        try:
            return replies.decode_reply(answer.result, kind)
        except InvalidReply:
            raise self.end_session(ctx, session) from None

    def end_session(self, ctx: Context, session: str) -> LivePythonError:
        """Reset a session that sent an invalid reply, and return the error to raise.

        Code can write replies in the name of its worker; doing so costs it the session.
        """
        self.interpreters.reset((session_owner(ctx), session))
        self.notify_forgotten(ctx, session)
        return LivePythonError(session_lost_message(session, "its reply was invalid"))

    async def resource(self, ctx: Context, kind: type[T], op: str, **arguments: Any) -> T | None:
        """Return the contents of a resource, or None if the object does not exist."""
        try:
            return await self.read(ctx, kind, op, **arguments)
        except OperationRejected:
            return None
        except LivePythonError as failure:
            raise InternalError(failure.reason) from None


def session_owner(ctx: Context) -> str | None:
    """Return the owner of the caller's sessions: its principal, or None without authentication (as on stdio)."""
    return principal_id(ctx.principal)


def session_lost_message(name: str, reason: str) -> str:
    return f"The session {name!r} was ended, because {reason}. The next call starts it again, without its names."


def session_saved_message(name: str, seconds: float) -> str:
    return f"It did not finish within {seconds:g} s and was stopped. The session {name!r} still has its names."
