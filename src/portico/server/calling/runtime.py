"""What a body needs of its server to be run: the Runtime, and in it worker threads for bodies that block.

There are few threads, they are started when they are needed, and they do not delay the end of the process. Where more
calls wait than there are threads, callers take turns.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from contextvars import Context, copy_context
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct

from portico.rpc.call import Call, Handler
from portico.server.asking.request_state import Seal
from portico.server.asking.spent import SpentStates
from portico.wire.errors import ToolError

if TYPE_CHECKING:
    from queue import SimpleQueue

# Bodies that block mostly wait, so how many may do so has little to do with the number of cores.
MOST_THREADS = 40
# How many calls of one caller may wait for a thread, and of all.
MOST_WAITING = 1000
MOST_WAITING_IN_ALL = 10_000
# How much the last call counts in how long they take.
_NEWEST = 0.1

ArgumentErrors = Literal["auto", "result", "protocol"]


Caller = tuple[str, str]
"""Who a call is for: the principal, or the address it came from; and which of their clients."""

NO_CALLER: Caller = ("", "")


def caller_of(call: Call) -> Caller:
    """A client's own word about itself divides only the share of its principal."""
    principal = call.principal
    owner = call.address or "" if principal is None else str(getattr(principal, "id", None) or repr(principal))
    return owner, call.client.name if call.client is not None else ""


class _ThreadCall(Struct):
    fn: Callable[..., Any]
    args: Sequence[Any]
    context: Context
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]


class _Turns:
    """Calls that wait. The next one is of the owner who has waited longest for a turn, and there of such a client:
    however much one caller asks for, another waits for one call of each."""

    def __init__(self) -> None:
        self._owners: OrderedDict[str, OrderedDict[str, deque[_ThreadCall]]] = OrderedDict()
        self._waiting: dict[str, int] = {}
        self.total = 0

    def add(self, caller: Caller, call: _ThreadCall) -> None:
        owner, client = caller
        self._owners.setdefault(owner, OrderedDict()).setdefault(client, deque()).append(call)
        self._waiting[owner] = self._waiting.get(owner, 0) + 1
        self.total += 1

    def take(self) -> _ThreadCall:
        owner, clients = self._owners.popitem(last=False)
        client, calls = clients.popitem(last=False)
        call = calls.popleft()
        if calls:
            clients[client] = calls
        if clients:
            self._owners[owner] = clients
        self.total -= 1
        self._waiting[owner] -= 1
        if not self._waiting[owner]:
            del self._waiting[owner]
        return call

    def of(self, caller: Caller) -> int:
        """How many of this owner's calls wait."""
        return self._waiting.get(caller[0], 0)


class Threads:
    """The standard pool makes a second future for each call and waits for its threads at exit; this does neither."""

    def __init__(self, most: int = MOST_THREADS) -> None:
        self.most = most
        self._turns = _Turns()
        # As many as there are calls in `_turns`: what threads wait for.
        self._tickets: SimpleQueue[None] | None = None
        self._seconds = 0.0
        self._lock = threading.Lock()
        self._started = 0
        self._idle = 0

    async def run(self, fn: Callable[..., Any], args: Sequence[Any], caller: Caller = NO_CALLER) -> Any:
        """What the function returns, called in a thread. Raises ToolError where too many calls wait already."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        # Before there is a thread that could look for it.
        queue = self._queue
        with self._lock:
            self._make_room(caller)
            self._turns.add(caller, _ThreadCall(fn, args, copy_context(), loop, future))
        queue.put(None)
        return await future

    @property
    def _queue(self) -> SimpleQueue[None]:
        """Made with the first call: many servers have no body that blocks."""
        if self._tickets is None:
            from queue import SimpleQueue

            self._tickets = SimpleQueue()
        return self._tickets

    def _make_room(self, caller: Caller) -> None:
        if self._idle > 0:
            self._idle -= 1
        elif self._started < self.most:
            self._started += 1
            threading.Thread(target=self._work, name=f"portico-{self._started}", daemon=True).start()
        elif self._turns.of(caller) >= MOST_WAITING or self._turns.total >= MOST_WAITING_IN_ALL:
            seconds = max(1, round(self._turns.of(caller) * self._seconds / self.most))
            raise ToolError(
                f"Too many calls are waiting. Try again in {seconds} s.",
                kind="ApiLimitExceeded",
                details={"retry_after": seconds},
                retryable=True,
            )

    def _work(self) -> None:
        while True:
            self._queue.get()
            with self._lock:
                call = self._turns.take()
            began = time.monotonic()
            self._do(call)
            del call
            with self._lock:
                self._seconds += _NEWEST * (time.monotonic() - began - self._seconds)
                # A thread is idle only if no more is queued than the threads can take.
                if not self._turns.total:
                    self._idle += 1

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


class Runtime(Struct, frozen=True, eq=False):
    """What a server lends to the bodies that it runs."""

    # The server's: what a body logs says it.
    name: str
    # The server itself: it answers the calls that a body makes from the inside.
    handler: Handler
    threads: Threads
    # Closes the state of a call that asks the client something.
    seal: Seal
    # Which of those states were used.
    spent: SpentStates
    # How wrong arguments are told: by a result, by an error of the protocol, or as the revision has it.
    argument_errors: ArgumentErrors
