"""The Runtime that a server provides to its functions, and the thread pool for functions that block.

Threads are started on demand and do not delay process exit. When more calls wait than there are threads, callers take
turns.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from contextvars import Context, copy_context
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Protocol

from msgspec import Struct

from portico._lazy import LazyModule
from portico.rpc.fair_queue import ANONYMOUS_CALLER, Caller, TurnQueue

if TYPE_CHECKING:
    from queue import SimpleQueue

    from msgspec import Raw

    from portico.rpc.call import Call
    from portico.server.context import session_state
    from portico.server.context.current import ContextMarker
    from portico.server.context.replay_guard import UsedStates
    from portico.server.context.request_state import RequestStateSealer
    from portico.server.context.session_state import SessionStateStore
else:
    session_state = LazyModule("portico.server.context.session_state")

# Blocking functions mostly wait for I/O, so the limit is independent of the number of cores.
MAX_THREADS = 40

ArgumentErrorMode = Literal["auto", "result", "protocol"]


class _ThreadCall(Struct, eq=False):
    fn: Callable[..., Any]
    args: Sequence[Any]
    context: Context
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]


class ThreadPool:
    """Thread pool with fair queueing.

    Unlike the standard library's pool it creates no second future per call and does not join its threads at exit.
    """

    def __init__(self, max_threads: int = MAX_THREADS) -> None:
        self.max_threads = max_threads
        self._turns: TurnQueue[_ThreadCall] = TurnQueue()
        # At least one ticket per queued call; threads wait for tickets.
        self._tickets: SimpleQueue[None] | None = None
        self._lock = threading.Lock()
        # Threads are never ended: an idle one costs less than starting a new one for the next call.
        self._started = 0
        self._busy = 0

    async def run(self, fn: Callable[..., Any], args: Sequence[Any], caller: Caller = ANONYMOUS_CALLER) -> Any:
        """Call a function in a thread and return its result. Raises ToolError if too many calls are queued."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        # Create the queue before any thread could read it.
        queue = self._queue
        # Copy the context variables, so that the function sees the current call and the trace of
        # its request.
        call = _ThreadCall(fn, args, copy_context(), loop, future)
        with self._lock:
            self._make_room(caller)
            self._turns.add(caller, call)
        queue.put(None)
        try:
            return await future
        except asyncio.CancelledError:
            # The call may not have started: remove it so that it does not occupy a place in the queue.
            with self._lock:
                self._turns.discard(caller, call)
            raise

    @property
    def _queue(self) -> SimpleQueue[None]:
        """Return the ticket queue, created with the first call: many servers have no blocking function."""
        if self._tickets is None:
            from queue import SimpleQueue

            self._tickets = SimpleQueue()
        return self._tickets

    def _make_room(self, caller: Caller) -> None:
        if self._started > self._busy + self._turns.size:
            return  # an idle thread will take it
        if self._started < self.max_threads:
            self._started += 1
            threading.Thread(target=self._work, name=f"portico-{self._started}", daemon=True).start()
        else:
            # Only when all threads are busy does a queue form; its length per caller is bounded
            # here.
            self._turns.check_capacity(caller, self.max_threads)

    def _work(self) -> None:
        while True:
            self._queue.get()
            started_at = time.monotonic()
            with self._lock:
                if not self._turns.size:
                    continue  # the call was cancelled, but its ticket remained
                call = self._turns.pop()
                self._busy += 1
            self._do(call)
            # Otherwise this frame would keep the arguments of the last call alive until the next
            # one.
            del call
            with self._lock:
                self._turns.record_duration(time.monotonic() - started_at)
                self._busy -= 1

    def _do(self, call: _ThreadCall) -> None:
        if call.future.cancelled():
            return  # cancelled before it began
        value: Any = None
        failure: BaseException | None = None
        try:
            value = call.context.run(call.fn, *call.args)
        except StopIteration as stop:
            # A future cannot hold StopIteration: it would end the awaiting coroutine.
            failure = RuntimeError("the function raised StopIteration")
            failure.__cause__ = stop
        except BaseException as raised:
            failure = raised
        try:
            call.loop.call_soon_threadsafe(_deliver, call.future, value, failure)
        except RuntimeError:
            pass  # the event loop is closed, so the future is not awaited


def _deliver(future: asyncio.Future[Any], value: Any, failure: BaseException | None) -> None:
    if future.cancelled():
        return
    if failure is None:
        future.set_result(value)
    else:
        future.set_exception(failure)


class RuntimeServer(Protocol):
    """The part of a Server that its functions use."""

    @property
    def state_sealer(self) -> RequestStateSealer: ...

    @property
    def used_states(self) -> UsedStates: ...

    async def __call__(self, call: Call) -> Any: ...


class ContextModule(Protocol):
    """The module that creates Contexts. It is loaded on first use: many servers have no function with a Context."""

    def context_of(
        self, call: Call, runtime: Runtime, params: Any, target: str, arguments: bytes | Raw, /
    ) -> ContextMarker: ...

    def create_request_context(self, call: Call, runtime: Runtime, /) -> ContextMarker: ...


class Runtime(Struct, frozen=True, eq=False, dict=True):
    """Services that a server provides to its functions."""

    # Name of the server, used as the logger of log messages.
    name: str
    # The server answers nested calls, seals request states, and records used ones.
    server: RuntimeServer
    thread_pool: ThreadPool
    contexts: ContextModule
    # How to report invalid arguments: as a result, as a protocol error, or depending on the protocol version.
    argument_errors: ArgumentErrorMode
    # Request headers visible to functions, in lower case.
    headers: tuple[str, ...] = ()
    # Whether to reject arguments that only fit after a repair.
    strict_arguments: bool = False
    # Class of the Contexts that functions receive; None: `Context`.
    context_class: Any = None

    @cached_property
    def context_of(self) -> Callable[[Call, Runtime, Any, str, bytes | Raw], ContextMarker]:
        """Return the function that creates the Context for a call of a tool, a prompt or a resource."""
        return self.contexts.context_of

    @cached_property
    def session_states(self) -> SessionStateStore:
        """Return the store for state that functions keep between the calls of a session."""
        return session_state.SessionStateStore()
