"""One interface: whatever answers a Call is a Handler."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextvars import copy_context
from types import coroutine
from typing import Any

from msgspec import UNSET, Raw, Struct

from portico.wire.jsonrpc import NOTHING, RequestId
from portico.wire.meta import NO_CAPABILITIES, ClientCapabilities, Implementation, ProgressToken
from portico.wire.revisions import Revision

Emit = Callable[[str, Any], None]
"""Says something on the way to the answer: a notification's method and params."""

Ask = Callable[[str, Any], Awaitable[Raw]]
"""Asks the client something and waits: only the handshake revisions have this."""


def _silence(method: str, params: Any) -> None:
    """Where nobody listens."""


class Call(Struct, kw_only=True):
    """A request (or a notification, when it has no id) with everything that is known about who sent it.

    A Call stands alone: 2026-07-28 sends all of this each time, and the session of a handshake revision fills it in.
    """

    method: str
    params: Raw = NOTHING
    id: RequestId | None = None
    # None until somebody has said which: the sender in `_meta`, or the session it belongs to.
    revision: Revision | None = None
    capabilities: ClientCapabilities = NO_CAPABILITIES
    client: Implementation | None = None
    principal: Any = None
    progress_token: ProgressToken | None = None
    log_level: str | None = None
    emit: Emit = _silence
    ask: Ask | None = None
    # Set when the other side has lost interest. A body in a thread cannot be stopped, but it can look.
    cancelled: bool = False
    # The same, because its time is up; the caller is told so, and waits no longer.
    expired: bool = False
    # True while the Call runs inside the reader's own step, before it has a task of its own: see `hand_over`.
    instant: bool = False
    # What the transport waits for when the other side reads more slowly than we write.
    drain: Callable[[], Awaitable[None]] | None = None
    # Lets go of the connection while the work goes on; the client comes back for the answer (2025-11-25 over HTTP).
    release: Callable[[], None] | None = None
    # The questions of the body that makes this call from the inside, which then are this call's too.
    rounds: Any = None
    # Whether its body may go on as a task: see `ctx.detach`.
    detachable: bool = False
    # Others reach the same endpoint, and nobody has said which of them this is.
    public: bool = False
    # What the call is about, where somebody had to look already.
    name: str = ""
    # Whose results these are, for a failure that is said on the answerer's behalf.
    stamp: Any = UNSET
    # The code of the error it was answered with, for transports that have a status of their own.
    error: int = 0


Handler = Callable[[Call], Awaitable[Any]]
Middleware = Callable[[Handler], Handler]


def first_step(call: Call, coro: Coroutine[Any, Any, Any]) -> tuple[Any, asyncio.Task[Any] | None]:
    """Run a Call as far as it goes without waiting: most are answered by then, and never need a task.

    Gives what it came to, or the task that has the rest of it. Each Call has its own contextvars either way.
    """
    context = copy_context()
    call.instant = True
    try:
        context.run(coro.send, None)
    except StopIteration as done:
        return done.value, None
    return None, asyncio.get_running_loop().create_task(coro, context=context)


@coroutine
def hand_over(call: Call) -> Generator[None, None, None]:
    """Give the Call a task of its own, if it has none yet.

    A Call that needs no waiting is answered within the read that brought it, which spares a task for each. Whoever
    is about to wait for something, or to run code that may, awaits this first.
    """
    if call.instant:
        call.instant = False
        yield
