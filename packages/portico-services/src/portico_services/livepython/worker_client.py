"""Asking an image on behalf of a client: what every tool of live Python does."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import islice
from typing import Annotated, Any, TypeVar
from urllib.parse import quote

from msgspec import Meta

from portico import Context, Server, Service, ToolError, UsageError
from portico.extend import InternalError, identity_of
from portico_services.livepython import replies
from portico_services.livepython.replies import InvalidReply
from portico_services.livepython.sandbox.name_resolution import InspectionError
from portico_services.livepython.sandbox.syscalls import SandboxUnavailable
from portico_services.livepython.sandbox.worker import WorkerEnded, WorkerReply
from portico_services.livepython.session_pool import MAIN, Interpreters

T = TypeVar("T")

# Also of a method with its class and its module.
LONGEST_NAME = 1000
# Owners whose classes are remembered, and classes of each.
MOST_OWNERS = 1000
MOST_KNOWN = 500
LONGEST_EXPRESSION = 256 * 1024

Name = Annotated[str, Meta(max_length=LONGEST_NAME)]
SessionName = Annotated[Name, "Whose names to use: each session has its own"]
ClassName = Annotated[Name, "A class: its name, or with its module, as in json.decoder.JSONDecoder"]
OwnerName = Annotated[Name, "A class or a module, such as json.decoder; __main__ for functions of the session"]
Expression = Annotated[str, Meta(max_length=LONGEST_EXPRESSION)]

READ = {"readOnlyHint": True, "openWorldHint": False}
CHANGE = {"readOnlyHint": False, "destructiveHint": False, "openWorldHint": False}
DESTROY = {**CHANGE, "destructiveHint": True, "idempotentHint": True}


class LiveError(ToolError):
    """A call that live Python did not answer: it was refused, took too long, or lost its session."""

    kind = "ToolExecutionError"

    def __init__(self, reason: str, *, kind: str | None = None) -> None:
        super().__init__(f"Error: {reason}", kind=kind)
        self.reason = reason


class Rejected(LiveError):
    """The session is well, and its code said no: there is no such class, or an expression raised an exception."""


class Asking(Service):
    """A service whose tools ask the image of a session."""

    def _start(
        self, mode: str, interpreters: Interpreters, timeout: float, longest: float, *, remote: bool = False
    ) -> None:
        super().__init__()
        self.mode = mode
        self._interpreters = interpreters
        self.timeout, self.longest_timeout = timeout, longest
        # Only clients on this machine, unless others are meant: the listener checks this before it binds an address.
        self.local_only = not remote
        self._servers: set[Server] = set()
        # Of each owner the classes that were told of, for when they are gone.
        self._known: dict[str | None, set[str]] = {}

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        try:
            await self._interpreters.open()
        except SandboxUnavailable as reason:
            await self._interpreters.close()
            raise UsageError(f"live Python cannot start: {reason}") from None
        try:
            yield
        finally:
            await self._interpreters.close()

    def added(self, server: Server) -> None:
        self._servers.add(server)

    # Changes

    def _changed(self, ctx: Context, session: str, classes: replies.ChangedClasses) -> None:
        """Tell the subscribers of these classes and their methods. Resources are those of the first session."""
        if not classes or session != MAIN:
            return
        known = self._known.setdefault(owner(ctx), set())
        known.update(islice(classes, MOST_KNOWN - len(known)))
        if len(self._known) > MOST_OWNERS:
            del self._known[next(iter(self._known))]
        self._tell([f"class/{quote(name)}" for name in classes])
        self._tell(
            [f"method/{quote(name)}/{quote(one)}" for name, members in classes.items() for one in members if one]
        )
        self._tell(["package/__main__"])

    def _forgotten(self, ctx: Context, session: str) -> None:
        """The session begins anew: what it had defined is not there any more."""
        if session == MAIN:
            self._changed(ctx, session, {name: [] for name in self._known.pop(owner(ctx), ())})
            self._known.pop(owner(ctx), None)

    def _tell(self, places: list[str]) -> None:
        schemes = {*self.schemes, *self.schemes.values()}
        for server in self._servers:
            for place in places:
                for scheme in schemes:
                    server.resource_updated(f"{scheme}://{place}")

    # Asking

    async def _ask(
        self, ctx: Context, op: str, session: str = MAIN, seconds: float | None = None, /, **asked: Any
    ) -> WorkerReply:
        """The worker's reply. Raises LiveError, whatever went wrong."""
        seconds = seconds or self.timeout
        try:
            answer = await self._interpreters.ask((owner(ctx), session), op, asked, seconds)
        except (InspectionError, SandboxUnavailable) as refusal:
            raise LiveError(str(refusal)) from None
        except WorkerEnded as end:
            raise LiveError(self._ended(ctx, session, end), kind="TimeoutError" if end.late else None) from None
        if answer.interrupted:
            raise LiveError(kept(session, seconds), kind="TimeoutError")
        if answer.refusal is not None:
            reason = answer.refusal if answer.note is None else f"{answer.refusal} {answer.note}"
            raise Rejected(reason, kind="ResourceNotFound" if answer.missing else None)
        return answer

    def _ended(self, ctx: Context, session: str, end: WorkerEnded) -> str:
        """What became of a session whose worker has ended, in words."""
        if end.kept is not None:
            return f"It was ended, because {end.reason}. The session {session!r} {end.kept}."
        self._forgotten(ctx, session)
        return lost(session, end.reason)

    async def _read(
        self, ctx: Context, kind: type[T], op: str, session: str = MAIN, seconds: float | None = None, /, **asked: Any
    ) -> T:
        answer = await self._ask(ctx, op, session, seconds, **asked)
        try:
            return replies.read(answer.result, kind)
        except InvalidReply:
            raise self._end_session(ctx, session) from None

    def _end_session(self, ctx: Context, session: str) -> LiveError:
        """Code can write in its worker's name. It gains nothing by it, and loses its session."""
        self._interpreters.reset((owner(ctx), session))
        self._forgotten(ctx, session)
        return LiveError(lost(session, "it answered with nonsense"))

    async def _resource(self, ctx: Context, kind: type[T], op: str, **asked: Any) -> T | None:
        """The contents of a resource; None if there is no such object."""
        try:
            return await self._read(ctx, kind, op, **asked)
        except Rejected:
            return None
        except LiveError as failure:
            raise InternalError(failure.reason) from None


def owner(ctx: Context) -> str | None:
    """Whose sessions these are: of everybody on stdio, or of one principal."""
    return identity_of(ctx.principal)


def lost(name: str, reason: str) -> str:
    return f"The session {name!r} was ended, because {reason}. It begins anew, without its names, with the next call."


def kept(name: str, seconds: float) -> str:
    return f"It did not finish within {seconds:g} s and was stopped. The names of the session {name!r} are kept."
