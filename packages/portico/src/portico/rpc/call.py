"""One interface: whatever answers a Call is a Handler. The way back of a Call is its Reply."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any, Protocol

from msgspec import Raw, Struct

from portico.protocol.errors import Closed, InternalError
from portico.protocol.header_params import Mirror
from portico.protocol.jsonrpc import NOTHING, RequestId
from portico.protocol.meta import (
    NO_CAPABILITIES,
    ClientCapabilities,
    Implementation,
    ProgressToken,
    ServerCapabilities,
)
from portico.protocol.methods import METHODS
from portico.protocol.notifications import MESSAGE, PROGRESS, read_progress
from portico.protocol.tools import ToolAnnotations
from portico.protocol.versions import Revision

Emit = Callable[[str, Any], None]
"""Takes a notification: its method and its params."""

Ask = Callable[[str, Any], Awaitable[Raw]]
"""Takes a question to the client, method and params, and returns the client's result."""


class Conversation(Protocol):
    """What the requests of one client share, as long as it is connected. It can be a key of a weak dictionary."""

    # How often the client has said that its roots are others now.
    root_changes: int

    def when_closed(self, then: Callable[[], None], /) -> None:
        """Have something called at its end; at once, if it is over."""


class Reply:
    """The way back of one request: what is said before the answer, and whether the client still waits for it.

    It lives as long as its request. Once the request is answered or cancelled it is closed, and a body that goes on in
    a thread or in a task of its own speaks to nothing. Transports override the methods that begin with `_`, and
    `begin` and `finish`, which the door calls.
    """

    # Answered, or cancelled.
    closed = False
    # The client has lost interest. A body in a thread cannot be stopped, but it can look.
    cancelled = False
    # The task that works on the request has begun.
    running = False
    # Whether the revision and the transport have questions from server to client.
    asks = False
    # Whether it is a body of ours that asks, and looks after the tasks it begins: also those of a mounted handler.
    follows = False
    # The code of the error that was the answer, for transports that have a status of their own.
    error = 0
    # The scopes without which the handler would not answer.
    lacking: frozenset[str] | None = None
    # What an observer keeps of the request until its end.
    kept: Any = None
    # What finds the traceback of an unexpected exception in the log.
    error_id = ""
    # How many bytes the answer had.
    size = 0
    # The seconds after which to try again, where too much was asked.
    retry_after: float | None = None
    # Refused before the handler was asked: the envelope was at fault.
    refused = False
    # Whether log messages may be sent: the server has declared them, and the client wants them.
    logs = True
    # Put what is emitted into the words of an older revision.
    notice: Callable[[Any], Any] | None = None
    # Looks at what is asked, method and params, and puts the params into the words of the revision.
    question: Callable[[str, Any], Any] | None = None
    # Waits until the client may be asked.
    ready: Callable[[], Awaitable[None]] | None = None
    # None where each request stands alone.
    conversation: Conversation | None = None
    _progress = float("-inf")

    def emit(self, method: str, params: Any) -> None:
        """Send a notification that belongs to this request. Progress that does not grow, or is no number, is dropped;
        so are log messages where there are to be none."""
        if self.closed or (method == MESSAGE and not self.logs):
            return
        if method == PROGRESS:
            progress, params = read_progress(params)
            if progress is None or progress <= self._progress:
                return
            self._progress = progress
        self._emit(method, params if self.notice is None else self.notice(params))

    async def ask(self, method: str, params: Any) -> Raw:
        """Put a question to the client and return its result; only the handshake revisions have this."""
        if self.closed:
            raise Closed("the request is over")
        if self.ready is not None:
            await self.ready()
        return await self._ask(method, params if self.question is None else self.question(method, params))

    async def drain(self) -> None:
        """Wait until the client has read enough of what was emitted."""

    def release(self) -> None:
        """Let go of the connection while the work goes on; a client of 2025-11-25 over HTTP comes back."""

    def lack(self, scopes: frozenset[str]) -> None:
        """The handler would not answer for want of these scopes; a transport may know where to get them."""
        self.lacking = scopes

    def postpone(self, seconds: float) -> None:
        """Too much was asked, and after so long it may be tried again; a transport may have words for it."""
        self.retry_after = seconds

    def close(self) -> None:
        """Cut it off: nothing can be said on it any more."""
        self.closed = True

    def cancel(self) -> None:
        self.cancelled = True
        self.close()

    # What a transport does

    def _emit(self, method: str, params: Any) -> None:
        """Write a notification."""

    async def _ask(self, method: str, params: Any) -> Raw:
        raise InternalError(f"There is no client here that could answer {method}")

    def claim(self, token: ProgressToken) -> None:
        """The request wants its progress told under this token. Raises InvalidParams if another has it already."""

    def begin(self, call: Call, task: asyncio.Task[Any]) -> None:
        """The request takes longer than one step: `task` is working on it."""

    def finish(self, message: bytes | None) -> None:
        """Write the response that the task came to; None if there is none, because it was cancelled."""
        self.close()


def stop(reply: Reply, task: asyncio.Task[Any]) -> None:
    """Cancel the task of a request; one that has not begun, in the next turn of the loop: cancelled before its first
    step it would never run its `finally`, and leave the coroutine that it was to await behind."""
    if reply.running:
        task.cancel()
    elif not task.get_loop().is_closed():
        task.get_loop().call_soon(task.cancel)


class Listening(Reply):
    """The Reply of a Call that this process makes itself: notifications go to a function."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit  # type: ignore[method-assign, assignment]


class _Silent(Reply):
    """The Reply of a Call that came without one. Calls share it, so that it is never closed."""

    def close(self) -> None: ...
    def cancel(self) -> None: ...


class Facet(Protocol):
    """A part of a server that can be spoken to by itself."""

    def shows(self, owner: str, name: str) -> bool:
        """Whether something is part of it: by whose it is, and the name that it has there."""
        ...


class Call(Struct, frozen=True, kw_only=True):
    """A request (or a notification, when it has no id) with everything that is known about its sender.

    A Call stands alone: 2026-07-28 sends all of this each time, and the session of a handshake revision fills it in.
    """

    method: str
    params: Raw = NOTHING
    id: RequestId | None = None
    # None until it is known: from the sender's `_meta`, or from the session it belongs to.
    revision: Revision | None = None
    capabilities: ClientCapabilities = NO_CAPABILITIES
    client: Implementation | None = None
    principal: Any = None
    progress_token: ProgressToken | None = None
    log_level: str | None = None
    # Where the transport has them: the request's headers, names in lower case, and where it came from.
    headers: Mapping[bytes, bytes] | None = None
    address: str | None = None
    reply: Reply = _Silent()
    # The part of the server that it was sent to; None is all of it.
    facet: Facet | None = None
    # What answers in place of the server, where one of its faces was asked: see `Server.answer_with`.
    answer: Callable[[Call], Any] | None = None
    # The params as the door has read them already, and the bytes they were read from: see `typed`.
    read: tuple[Raw, Any] | None = None

    def typed(self) -> Any:
        """The params as the Struct of this method. Raises InvalidParams for what does not fit."""
        if self.read is not None and self.read[0] is self.params:
            return self.read[1]
        return METHODS[self.method].decode(self.params)

    @property
    def anonymous(self) -> bool:
        """Whether others can reach the same endpoint, and the sender has not said who it is."""
        return self.address is not None and self.principal is None


class Handler(Protocol):
    """Whatever answers a Call: a server, a gateway, a connection to a remote server, a function.

    A Handler may have more members than this one; `members` reads them, and says what they are.
    """

    async def __call__(self, call: Call, /) -> Any: ...


HandlerMiddleware = Callable[[Handler], Handler]


class Members(Struct, frozen=True):
    """What a Handler may offer besides answering, with what it means if it does not."""

    # Answers without waiting where it can: a result, or a coroutine that comes to it. Never waits itself.
    start: Callable[[Call], Any]
    # Entered while the handler answers.
    lifespan: Callable[[], AbstractAsyncContextManager[Any]]
    # Who answers, for results that say so; None for a handler that does not say.
    info: Implementation | None
    # The arguments of each tool that stand in HTTP headers too; as it changes.
    mirrored: Mapping[str, Sequence[Mirror]]
    # The entries of the list that a method such as `tools/list` gives, if they are at hand and the same for everybody:
    # the same object until something changes. None: the method has to be called.
    listed: Callable[[str], Sequence[Any] | None]
    # Whether it may send log messages; one that does not say what it can do may.
    logs: bool
    # The scopes that a method needs for what its request is about, such as the name of a tool; empty if it is unknown.
    needs: Callable[[str, str], Collection[str]]
    # What it calls a thing of a kind itself, given any name of it; None if there is none. One that does not say knows
    # everything by one name.
    canonical: Callable[[str, str], str | None]
    # Whether a thing of a kind is there, and the sender of this call is not to learn of it.
    hides: Callable[[Call, str, str], bool]
    # Whether a tool is known to run only as a task.
    needs_task: Callable[[str], bool]
    # What a tool says of itself now, to the sender of this call; None where only a list can tell.
    hints: Callable[[Call, str], ToolAnnotations | None]
    # Is told of a request that was not let in: the status, why, and from where it came.
    refused: Callable[[int, str, str | None], None]
    # The handlers of other paths, where a transport has paths; as they change.
    endpoints: Callable[[], Mapping[str, Handler]]
    # What it depends on: the name of each, and what is wrong with it, which is empty where nothing is.
    readiness: Callable[[], Mapping[str, str]]
    # Whether all that it depends on has been tried; starts what is still to be tried.
    is_settled: Callable[[], bool]
    # Conditions that an operator should see beside the readiness, and that do not change it.
    conditions: Callable[[], Mapping[str, str]]
    # More for the page of metrics, in lines of the text format of Prometheus.
    measures: Callable[[], Sequence[str]]


def members(handler: Handler) -> Members:
    """The optional members of a Handler. This is the only place that asks whether they are there."""
    able = getattr(handler, "capabilities", None)
    return Members(
        start=getattr(handler, "start", handler),
        lifespan=getattr(handler, "lifespan", nullcontext),
        info=getattr(handler, "info", None),
        mirrored=getattr(handler, "mirrored", {}),
        listed=getattr(handler, "listed", _not_at_hand),
        logs=not isinstance(able, ServerCapabilities) or able.logging is not None,
        needs=getattr(handler, "needs", _nothing_needed),
        canonical=getattr(handler, "canonical", _same_name),
        hides=getattr(handler, "hides", _hides_nothing),
        needs_task=getattr(handler, "needs_task", _needs_none),
        hints=getattr(handler, "hints", _no_hints),
        refused=getattr(handler, "refused", _not_told),
        endpoints=getattr(handler, "endpoints", _no_endpoints),
        readiness=getattr(handler, "readiness", _depends_on_nothing),
        is_settled=getattr(handler, "is_settled", _is_always_settled),
        conditions=getattr(handler, "conditions", _depends_on_nothing),
        measures=getattr(handler, "measures", _no_measures),
    )


def _nothing_needed(method: str, name: str) -> Collection[str]:
    return ()


def _not_told(status: int, reason: str, address: str | None) -> None:
    pass


def _depends_on_nothing() -> Mapping[str, str]:
    return {}


def _is_always_settled() -> bool:
    return True


def _no_measures() -> Sequence[str]:
    return ()


def _no_endpoints() -> Mapping[str, Handler]:
    return {}


def _not_at_hand(method: str) -> None:
    return None


def _same_name(kind: str, name: str) -> str:
    return name


def _hides_nothing(call: Call, kind: str, name: str) -> bool:
    return False


def _needs_none(tool: str) -> bool:
    return False


def _no_hints(call: Call, tool: str) -> None:
    return None
