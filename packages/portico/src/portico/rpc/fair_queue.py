"""Who goes first where more is asked than can be done at once: callers take turns, and each has a share.

However much one caller asks for, another waits for one call of each. What waits is bounded, and beyond that refused
with the seconds after which to try again.
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
from portico.rpc.identity import identity_of
from portico.rpc.networks import network_of

# How many calls of one caller may wait for a turn, and of all.
MOST_WAITING = 1000
MOST_WAITING_IN_ALL = 10_000
# How many calls may go on at once before shares are counted, and before one has to wait.
UNCOUNTED = 500
MOST_RUNNING = 1000
# How much the last call counts in how long they take.
_NEWEST = 0.1

T = TypeVar("T")

Caller = tuple[str, str]
"""Who a call is for: the principal, or the network it came from; and which of their clients."""

NO_CALLER: Caller = ("", "")


def caller_of(call: Call) -> Caller:
    """A client's own word about itself divides only the share of its principal."""
    return _owner(call) or network_of(call.address or ""), call.client.name if call.client is not None else ""


def _owner(call: Call) -> str:
    return identity_of(call.principal) or ""


class Turns(Generic[T]):
    """What waits. The next one is of the owner who has waited longest for a turn, and there of such a client."""

    def __init__(self, most: int | None = None, most_in_all: int | None = None) -> None:
        """Without numbers, as many wait as MOST_WAITING and MOST_WAITING_IN_ALL say."""
        self._most, self._most_in_all = most, most_in_all
        self._owners: OrderedDict[str, OrderedDict[str, deque[T]]] = OrderedDict()
        self._waiting: dict[str, int] = {}
        self._seconds = 0.0
        self.total = 0

    def add(self, caller: Caller, one: T) -> None:
        owner, client = caller
        self._owners.setdefault(owner, OrderedDict()).setdefault(client, deque()).append(one)
        self._waiting[owner] = self._waiting.get(owner, 0) + 1
        self.total += 1

    def next_owner(self, may: Callable[[str], bool]) -> str | None:
        """Return whose turn it is among the owners that `may` have one now, or None."""
        return next((owner for owner in self._owners if may(owner)), None)

    def take(self, owner: str | None = None) -> T:
        """Take the next one; with an owner, the next one of this owner."""
        if owner is not None:
            self._owners.move_to_end(owner, last=False)
        owner, clients = self._owners.popitem(last=False)
        client, line = clients.popitem(last=False)
        one = line.popleft()
        if line:
            clients[client] = line
        if clients:
            self._owners[owner] = clients
        self._left(owner)
        return one

    def take_if(self, may: Callable[[str], bool]) -> T | None:
        """Take the next one of an owner for whom `may` is true, or return None."""
        owner = self.next_owner(may)
        return None if owner is None else self.take(owner)

    @property
    def owners(self) -> Set[str]:
        """The owners that wait."""
        return self._owners.keys()

    def waiting(self, owner: str) -> int:
        """Return how many of an owner wait."""
        return self._waiting.get(owner, 0)

    def drop(self, caller: Caller, one: T) -> bool:
        """It waits no longer. Whether it did."""
        owner, client = caller
        clients = self._owners.get(owner, OrderedDict())
        line = clients.get(client)
        if line is None or one not in line:
            return False
        line.remove(one)
        if not line:
            del clients[client]
        if not clients:
            del self._owners[owner]
        self._left(owner)
        return True

    def _left(self, owner: str) -> None:
        self.total -= 1
        self._waiting[owner] -= 1
        if not self._waiting[owner]:
            del self._waiting[owner]

    def took(self, seconds: float) -> None:
        """One that had its turn is done, after so long."""
        self._seconds += _NEWEST * (seconds - self._seconds)

    def check_room(self, caller: Caller, at_once: int) -> None:
        """Raises ToolError where no more may wait; `at_once` of them have their turn together."""
        waiting = self._waiting.get(caller[0], 0)
        most = MOST_WAITING if self._most is None else self._most
        most_in_all = MOST_WAITING_IN_ALL if self._most_in_all is None else self._most_in_all
        if waiting < most and self.total < most_in_all:
            return
        seconds = max(1, round(waiting * self._seconds / at_once))
        raise ToolError(
            f"Too many calls are waiting. Try again in {seconds} s.",
            kind="ApiLimitExceeded",
            details={"retry_after": seconds},
            retryable=True,
        )


class FairShares:
    """Bodies on the loop. They only wait, mostly, so many may go on at once, and what is counted is how many a caller
    has. Where there are very many, those wait who have more than an equal share; others begin at once."""

    def __init__(self) -> None:
        self._running = 0
        # By principal and network: the clients of a shared token are told apart by where they are.
        self._held: dict[tuple[str, str | None], int] = {}
        self._turns: Turns[tuple[Future[None], tuple[str, str | None]]] = Turns()

    async def run(self, start: Callable[[Call], Any], call: Call) -> Any:
        """What a call comes to that begins when it is its caller's turn. Raises ToolError where too many wait."""
        key = (_owner(call), None if call.address is None else network_of(call.address))
        await self._enter(call, key)
        began = time.monotonic()
        try:
            result = start(call)
            return await result if type(result) is CoroutineType else result
        finally:
            self._turns.took(time.monotonic() - began)
            self._leave(key)

    async def _enter(self, call: Call, key: tuple[str, str | None]) -> None:
        if self._running < MOST_RUNNING or self._held.get(key, 0) < max(1, MOST_RUNNING // len(self._held)):
            self._count(key)
            return
        caller = caller_of(call)
        self._turns.check_room(caller, MOST_RUNNING)
        turn: Future[None] = get_running_loop().create_future()
        self._turns.add(caller, (turn, key))
        try:
            await turn
        except CancelledError:
            if not self._turns.drop(caller, (turn, key)) and turn.done() and not turn.cancelled():
                # The turn came in the same moment; it goes to the next one.
                self._leave(key)
            raise

    def _count(self, key: tuple[str, str | None]) -> None:
        self._running += 1
        self._held[key] = self._held.get(key, 0) + 1

    def _leave(self, key: tuple[str, str | None]) -> None:
        self._running -= 1
        self._held[key] -= 1
        if not self._held[key]:
            del self._held[key]
        while self._turns.total and self._running < MOST_RUNNING:
            turn, next_key = self._turns.take()
            if not turn.done():
                self._count(next_key)
                turn.set_result(None)


class FairPlaces:
    """A fixed number of places, such as processes, of which one caller has no more than its share.

    Unlike `FairShares` both numbers are exact. A call that finds no place waits for its turn, and for a bounded time.
    """

    def __init__(self, total: int, per_caller: int, *, waiting: int, waiting_total: int, seconds: float) -> None:
        """`waiting` calls of one caller, and `waiting_total` of all, wait for up to `seconds`."""
        self._total, self._per_caller, self._seconds = total, per_caller, seconds
        self._running = 0
        self._held: dict[str, int] = {}
        self._turns: Turns[Future[None]] = Turns(waiting, waiting_total)

    @asynccontextmanager
    async def hold(self, call: Call) -> AsyncIterator[None]:
        """Hold a place for a call. Raises ToolError where too many wait, or none was free in time."""
        caller = caller_of(call)
        await self._enter(caller)
        began = time.monotonic()
        try:
            yield
        finally:
            self._turns.took(time.monotonic() - began)
            self._leave(caller[0])

    def _may_begin(self, owner: str) -> bool:
        return self._running < self._total and self._held.get(owner, 0) < self._per_caller

    async def _enter(self, caller: Caller) -> None:
        owner = caller[0]
        # Waiting calls do not lose their turn by this: `_leave` gives out every place that one of them may have.
        if self._may_begin(owner):
            self._count(owner)
            return
        self._turns.check_room(caller, self._per_caller)
        turn: Future[None] = get_running_loop().create_future()
        self._turns.add(caller, turn)
        try:
            async with timeout(self._seconds):
                await turn
        except (CancelledError, TimeoutError) as end:
            if not self._turns.drop(caller, turn) and turn.done() and not turn.cancelled():
                # The turn came in the same moment; it goes to the next one.
                self._leave(owner)
            if isinstance(end, CancelledError):
                raise
            raise ToolError(
                f"No place became free within {self._seconds:g} s: up to {self._per_caller} calls of one caller, and "
                f"{self._total} of all, run at the same time. Try again later.",
                kind="ApiLimitExceeded",
                details={"retry_after": max(1, round(self._seconds))},
                retryable=True,
            ) from None

    def _count(self, owner: str) -> None:
        self._running += 1
        self._held[owner] = self._held.get(owner, 0) + 1

    def _leave(self, owner: str) -> None:
        self._running -= 1
        self._held[owner] -= 1
        if not self._held[owner]:
            del self._held[owner]
        while (following := self._turns.next_owner(self._may_begin)) is not None:
            turn = self._turns.take(following)
            if not turn.done():
                self._count(following)
                turn.set_result(None)
