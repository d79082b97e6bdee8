"""Fair scheduling of calls under load: callers take turns, and each has a share.

However many calls one caller makes, another caller waits for at most one call of each. Queues are bounded; calls beyond
the limit are rejected with the seconds after which to retry.
"""

from __future__ import annotations

import time
from asyncio import CancelledError, Future, get_running_loop, timeout
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Set
from contextlib import asynccontextmanager
from types import CoroutineType
from typing import Any, Generic, TypeVar

from portico.protocol.errors import ToolError
from portico.rpc.call import Call
from portico.rpc.identity import client_network, principal_id

# Limits of queued calls, per caller and in total.
MAX_QUEUED_CALLS_PER_CALLER = 1000
MAX_QUEUED_CALLS = 10_000
# Concurrent calls before shares are counted, and before calls are queued.
FAIRNESS_THRESHOLD = 500
MAX_RUNNING_CALLS = 1000
# Weight of the last call in the moving average of durations.
_EWMA_ALPHA = 0.1

T = TypeVar("T")

Caller = tuple[str, str]
"Whom a call counts for: the principal or the client network, and the client's name within it."

ANONYMOUS_CALLER: Caller = ("", "")


def get_caller_key(call: Call) -> Caller:
    """Return the caller of a call. The client's self-declared name only divides the share of its principal."""
    return _owner(call) or client_network(call.address or ""), call.client.name if call.client is not None else ""


def _owner(call: Call) -> str:
    return principal_id(call.principal) or ""


class TurnQueue(Generic[T]):
    """Queue of waiting items. The next item belongs to the owner and client that have waited longest."""

    def __init__(self, limit: int | None = None, most_in_all: int | None = None) -> None:
        """Create a queue. Without limits, `MAX_QUEUED_CALLS_PER_CALLER` and `MAX_QUEUED_CALLS` apply."""
        self._limit, self._most_in_all = limit, most_in_all
        self._owners: OrderedDict[str, OrderedDict[str, deque[T]]] = OrderedDict()
        self._waiting_by_caller: dict[str, int] = {}
        self._seconds = 0.0
        self.size = 0

    def add(self, caller: Caller, item: T) -> None:
        owner, client = caller
        self._owners.setdefault(owner, OrderedDict()).setdefault(client, deque()).append(item)
        self._waiting_by_caller[owner] = self._waiting_by_caller.get(owner, 0) + 1
        self.size += 1

    def next_owner(self, may: Callable[[str], bool]) -> str | None:
        """Return the owner whose turn it is among those for whom `may` is true, or None."""
        return next((owner for owner in self._owners if may(owner)), None)

    def pop(self, owner: str | None = None) -> T:
        """Remove and return the next item, or the next item of `owner`."""
        if owner is not None:
            self._owners.move_to_end(owner, last=False)
        owner, clients = self._owners.popitem(last=False)
        client, line = clients.popitem(last=False)
        entry = line.popleft()
        # An owner or client with more items goes to the end of its queue (round robin).
        if line:
            clients[client] = line
        if clients:
            self._owners[owner] = clients
        self._on_removed(owner)
        return entry

    def take_if(self, may: Callable[[str], bool]) -> T | None:
        """Remove and return the next item of an owner for whom `may` is true, or return None."""
        owner = self.next_owner(may)
        return None if owner is None else self.pop(owner)

    @property
    def owners(self) -> Set[str]:
        """Return the owners with waiting items."""
        return self._owners.keys()

    def waiting(self, owner: str) -> int:
        """Return the number of waiting items of an owner."""
        return self._waiting_by_caller.get(owner, 0)

    def discard(self, caller: Caller, item: T) -> bool:
        """Remove an item. Return whether it was waiting."""
        owner, client = caller
        clients = self._owners.get(owner, OrderedDict())
        line = clients.get(client)
        if line is None or item not in line:
            return False
        line.remove(item)
        if not line:
            del clients[client]
        if not clients:
            del self._owners[owner]
        self._on_removed(owner)
        return True

    def _on_removed(self, owner: str) -> None:
        self.size -= 1
        self._waiting_by_caller[owner] -= 1
        if not self._waiting_by_caller[owner]:
            del self._waiting_by_caller[owner]

    def record_duration(self, seconds: float) -> None:
        """Record the duration of a completed item."""
        self._seconds += _EWMA_ALPHA * (seconds - self._seconds)

    def check_capacity(self, caller: Caller, concurrency: int) -> None:
        """Raise `ToolError` if the queue is full. `concurrency` items run at the same time."""
        waiting = self._waiting_by_caller.get(caller[0], 0)
        limit = MAX_QUEUED_CALLS_PER_CALLER if self._limit is None else self._limit
        most_in_all = MAX_QUEUED_CALLS if self._most_in_all is None else self._most_in_all
        if waiting < limit and self.size < most_in_all:
            return
        # Little's law: the queue of the caller, served at the current average duration by `concurrency` slots.
        seconds = max(1, round(waiting * self._seconds / concurrency))
        raise ToolError(
            f"Too many calls are waiting. Try again in {seconds} s.",
            error_type="ApiLimitExceeded",
            details={"retry_after": seconds},
            retryable=True,
        )


class FairScheduler:
    """Limits the concurrent calls on the event loop.

    Calls mostly wait, so many may run concurrently. Above the limit, callers with more than an equal share are queued,
    and calls of other callers start immediately.
    """

    def __init__(self) -> None:
        self._running = 0
        # Keyed by principal and network: clients that share a token are distinguished by their network.
        self._held: dict[tuple[str, str | None], int] = {}
        self._turns: TurnQueue[tuple[Future[None], tuple[str, str | None]]] = TurnQueue()

    async def run(self, start: Callable[[Call], Any], call: Call) -> Any:
        """Run a call when it is its caller's turn, and return its result. Raises `ToolError` if too many calls wait."""
        key = (_owner(call), None if call.address is None else client_network(call.address))
        await self._acquire(call, key)
        started_at = time.monotonic()
        try:
            result = start(call)
            return await result if type(result) is CoroutineType else result
        finally:
            self._turns.record_duration(time.monotonic() - started_at)
            self._release(key)

    async def _acquire(self, call: Call, key: tuple[str, str | None]) -> None:
        # `_held` is not empty here: `_running` is the sum of its values, and it is at the limit.
        if self._running < MAX_RUNNING_CALLS or self._held.get(key, 0) < max(1, MAX_RUNNING_CALLS // len(self._held)):
            self._count(key)
            return
        caller = get_caller_key(call)
        self._turns.check_capacity(caller, MAX_RUNNING_CALLS)
        turn: Future[None] = get_running_loop().create_future()
        self._turns.add(caller, (turn, key))
        try:
            await turn
        except CancelledError:
            if not self._turns.discard(caller, (turn, key)) and turn.done() and not turn.cancelled():
                # The slot was assigned at the same moment; pass it on.
                self._release(key)
            raise

    def _count(self, key: tuple[str, str | None]) -> None:
        self._running += 1
        self._held[key] = self._held.get(key, 0) + 1

    def _release(self, key: tuple[str, str | None]) -> None:
        self._running -= 1
        self._held[key] -= 1
        if not self._held[key]:
            del self._held[key]
        while self._turns.size and self._running < MAX_RUNNING_CALLS:
            turn, next_key = self._turns.pop()
            # The future of a cancelled call is done; its slot goes to the next call.
            if not turn.done():
                self._count(next_key)
                turn.set_result(None)


class FairPlaces:
    """Fixed number of slots, such as processes, with a limit per caller.

    Unlike in `FairScheduler`, both limits are exact. A call without a free slot waits for its turn for a limited time.
    """

    def __init__(self, total: int, per_caller: int, *, waiting: int, waiting_total: int, seconds: float) -> None:
        """Create the slots. Up to `waiting` calls of one caller and `waiting_total` of all wait for up to `seconds`."""
        self._total, self._per_caller, self._seconds = total, per_caller, seconds
        self._running = 0
        self._held: dict[str, int] = {}
        self._turns: TurnQueue[Future[None]] = TurnQueue(waiting, waiting_total)

    @asynccontextmanager
    async def hold(self, call: Call) -> AsyncIterator[None]:
        """Hold a slot for a call. Raises `ToolError` if too many calls wait, or if no slot became free in time."""
        caller = get_caller_key(call)
        await self._enter(caller)
        started_at = time.monotonic()
        try:
            yield
        finally:
            self._turns.record_duration(time.monotonic() - started_at)
            self._free_place(caller[0])

    def _may_begin(self, owner: str) -> bool:
        return self._running < self._total and self._held.get(owner, 0) < self._per_caller

    async def _enter(self, caller: Caller) -> None:
        owner = caller[0]
        # This does not overtake waiting calls: `_leave` assigns every slot that one of them may use.
        if self._may_begin(owner):
            self._count(owner)
            return
        self._turns.check_capacity(caller, self._per_caller)
        turn: Future[None] = get_running_loop().create_future()
        self._turns.add(caller, turn)
        try:
            async with timeout(self._seconds):
                await turn
        except (CancelledError, TimeoutError) as end:
            if not self._turns.discard(caller, turn) and turn.done() and not turn.cancelled():
                # The slot was assigned at the same moment; pass it on.
                self._free_place(owner)
            if isinstance(end, CancelledError):
                raise
            raise ToolError(
                f"No slot became free within {self._seconds:g} s: at most {self._per_caller} calls of one "
                f"caller, and {self._total} in total, run at the same time. Try again later.",
                error_type="ApiLimitExceeded",
                details={"retry_after": max(1, round(self._seconds))},
                retryable=True,
            ) from None

    def _count(self, owner: str) -> None:
        self._running += 1
        self._held[owner] = self._held.get(owner, 0) + 1

    def _free_place(self, owner: str) -> None:
        self._running -= 1
        self._held[owner] -= 1
        if not self._held[owner]:
            del self._held[owner]
        while (following := self._turns.next_owner(self._may_begin)) is not None:
            turn = self._turns.pop(following)
            if not turn.done():
                self._count(following)
                turn.set_result(None)
