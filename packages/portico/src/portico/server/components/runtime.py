"""What a body needs of its server to be run: the Runtime, and in it worker threads for bodies that block.

There are few threads, they are started when they are needed, and they do not delay the end of the process. Where more
calls wait than there are threads, callers take turns.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from contextvars import Context, copy_context
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct

from portico._lazy import LazyModule
from portico.rpc.fair_queue import NO_CALLER, Caller, Turns

if TYPE_CHECKING:
    from queue import SimpleQueue

    from portico.server.context import session_state
    from portico.server.context.session_state import ConversationStates
    from portico.server.server import Server
else:
    session_state = LazyModule("portico.server.context.session_state")

# Bodies that block mostly wait, so how many may do so has little to do with the number of cores.
MOST_THREADS = 40

ArgumentErrors = Literal["auto", "result", "protocol"]


class _ThreadCall(Struct, eq=False):
    fn: Callable[..., Any]
    args: Sequence[Any]
    context: Context
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]


class Threads:
    """The standard pool makes a second future for each call and waits for its threads at exit; this does neither."""

    def __init__(self, most: int = MOST_THREADS) -> None:
        self.most = most
        self._turns: Turns[_ThreadCall] = Turns()
        # At least as many as there are calls in `_turns`: what threads wait for.
        self._tickets: SimpleQueue[None] | None = None
        self._lock = threading.Lock()
        self._started = 0
        self._busy = 0

    async def run(self, fn: Callable[..., Any], args: Sequence[Any], caller: Caller = NO_CALLER) -> Any:
        """What the function returns, called in a thread. Raises ToolError where too many calls wait already."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        # Before there is a thread that could look for it.
        queue = self._queue
        call = _ThreadCall(fn, args, copy_context(), loop, future)
        with self._lock:
            self._make_room(caller)
            self._turns.add(caller, call)
        queue.put(None)
        try:
            return await future
        except asyncio.CancelledError:
            with self._lock:
                self._turns.drop(caller, call)
            raise

    @property
    def _queue(self) -> SimpleQueue[None]:
        """Made with the first call: many servers have no body that blocks."""
        if self._tickets is None:
            from queue import SimpleQueue

            self._tickets = SimpleQueue()
        return self._tickets

    def _make_room(self, caller: Caller) -> None:
        if self._started > self._busy + self._turns.total:
            return  # a thread waits for it
        if self._started < self.most:
            self._started += 1
            threading.Thread(target=self._work, name=f"portico-{self._started}", daemon=True).start()
        else:
            self._turns.check_room(caller, self.most)

    def _work(self) -> None:
        while True:
            self._queue.get()
            began = time.monotonic()
            with self._lock:
                if not self._turns.total:
                    continue  # what was cancelled meanwhile waits no longer, and has left its ticket behind
                call = self._turns.take()
                self._busy += 1
            self._do(call)
            del call
            with self._lock:
                self._turns.took(time.monotonic() - began)
                self._busy -= 1

    def _do(self, call: _ThreadCall) -> None:
        if call.future.cancelled():
            return  # cancelled before it began
        value: Any = None
        failure: BaseException | None = None
        try:
            value = call.context.run(call.fn, *call.args)
        except StopIteration as stop:
            # A future cannot hold one: it would end the coroutine that waits for it.
            failure = RuntimeError("the body raised StopIteration")
            failure.__cause__ = stop
        except BaseException as raised:
            failure = raised
        try:
            call.loop.call_soon_threadsafe(_deliver, call.future, value, failure)
        except RuntimeError:
            pass  # the loop is closed, and the future with it


def _deliver(future: asyncio.Future[Any], value: Any, failure: BaseException | None) -> None:
    if future.cancelled():
        return
    if failure is None:
        future.set_result(value)
    else:
        future.set_exception(failure)


class Runtime(Struct, frozen=True, eq=False, dict=True):
    """What a server lends to the bodies that it runs."""

    # The server's: what a body logs says it.
    name: str
    # It answers the calls that a body makes from the inside, its `seal` closes the state of one that asks the client
    # something, and it knows which of them were `spent`.
    server: Server
    threads: Threads
    # How wrong arguments are told: by a result, by an error of the protocol, or as the revision has it.
    argument_errors: ArgumentErrors
    # The headers that bodies see, in lower case.
    headers: tuple[str, ...] = ()
    # Whether arguments that only fit after a repair are refused.
    strict_arguments: bool = False
    # The class of the Contexts that bodies receive; None: `Context`.
    context_class: Any = None

    @cached_property
    def states(self) -> ConversationStates:
        """What bodies keep from one call of a conversation to the next."""
        return session_state.ConversationStates()
