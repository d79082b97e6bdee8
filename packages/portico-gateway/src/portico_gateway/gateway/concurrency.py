"""Fair shares of what an upstream has little of: calls at once, and connections.

Callers wait in turn, for a bounded time and in bounded number. A quarter of the places stays free for other callers,
whatever one caller asks for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

from portico.rpc.call import Call
from portico.rpc.fair_queue import Caller, Turns, caller_of

# The gateway itself and the client of this process or terminal, of which there is one.
LOCAL = ""
# The owner of a place that was taken while most were free.
UNCOUNTED = "\0"
# The longest time that a call waits in a queue.
MAX_WAIT_SECONDS = 30.0


def reserve(places: int) -> int:
    """Return how many places one caller cannot take."""
    return max(1, places // 4) if places > 1 else 0


class QueueFull(Exception):
    """No more calls of this caller may wait."""


class FairQueue:
    """Calls that wait for one of `places`. At most `most` wait, and at most three quarters of them are one caller's."""

    def __init__(self, places: int, most: int, seconds: float) -> None:
        self._places = places
        self._most = most
        self._seconds = min(seconds, MAX_WAIT_SECONDS)
        self.turns: Turns[tuple[str, asyncio.Future[None]]] = Turns()

    def __len__(self) -> int:
        return self.turns.total

    def limit(self, owner: str, holders: Collection[str]) -> int:
        """Return how many places a caller may have: an equal share while other callers wait."""
        if owner == LOCAL:
            return self._places
        waiting = self.turns.owners
        if not waiting or waiting == {owner}:
            return self._places - reserve(self._places)
        return max(1, self._places // len({owner, *holders, *waiting}))

    async def wait(self, caller: Caller, passed_on: Callable[[], None]) -> None:
        """Wait for a turn. Raises QueueFull, or TimeoutError. `passed_on` is called if the turn came too late."""
        most_of_one = self._most if caller[0] == LOCAL else self._most - reserve(self._most)
        if len(self) >= self._most or self.turns.waiting(caller[0]) >= most_of_one:
            raise QueueFull
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.turns.add(caller, (caller[0], turn))
        try:
            async with asyncio.timeout(self._seconds):
                await turn
        except BaseException:
            if not self.turns.drop(caller, (caller[0], turn)) and turn.done() and not turn.cancelled():
                passed_on()
            raise

    def has_turn(self, may: Callable[[str], bool]) -> bool:
        """Return whether a caller waits for whom `may` is true. The others wait for calls of their own to end."""
        return any(may(owner) for owner in self.turns.owners)

    def wake(self, may: Callable[[str], bool]) -> str | None:
        """Give the next turn to a caller for whom `may` is true. Returns that caller, or None."""
        while (waiting := self.turns.take_if(may)) is not None:
            owner, turn = waiting
            if not turn.done():
                turn.set_result(None)
                return owner
        return None


class CallPlaces:
    """The calls at once to one upstream. While most places are free this costs a subtraction: the first quarter of them
    is not counted by caller."""

    def __init__(self, most: int, queue: int, seconds: float) -> None:
        self.free = self._most = most
        self._queue = FairQueue(most, queue, seconds)
        self._turns = self._queue.turns
        self._uncounted = most // 4
        # What a caller may always have while no call waits.
        self._alone = most - reserve(most) - self._uncounted
        self._held: dict[str, int] = {}

    @property
    def busy(self) -> bool:
        return self.free < self._most

    def take(self, call: Call) -> str | None:
        """Take a place if there is one for this caller. Returns its owner for `give`, or None."""
        if self.free > self._most - self._uncounted:
            self.free -= 1
            return UNCOUNTED
        owner = caller_of(call)[0]
        if not self._turns.total and self.free and self._held.get(owner, 0) < self._alone:
            self._hold(owner)
            return owner
        if not self._may(owner) or self._queue.has_turn(self._may):
            return None
        self._hold(owner)
        return owner

    async def wait(self, call: Call) -> str:
        """Take a place in turn. Raises QueueFull, or TimeoutError."""
        caller = caller_of(call)
        try:
            await self._queue.wait(caller, lambda: self.give(caller[0]))
        finally:
            # Shares are larger where fewer callers wait.
            self._wake()
        return caller[0]

    def give(self, owner: str) -> None:
        """Free a place: the next in turn takes it."""
        self.free += 1
        if owner is not UNCOUNTED:
            left = self._held[owner] - 1
            if left:
                self._held[owner] = left
            else:
                del self._held[owner]
        if self._turns.total:
            self._wake()

    def _wake(self) -> None:
        """Give free places to those who wait: each is held before its call goes on, so that no other call takes it."""
        while len(self._queue) and (woken := self._queue.wake(self._may)) is not None:
            self._hold(woken)

    def _hold(self, owner: str) -> None:
        self.free -= 1
        self._held[owner] = self._held.get(owner, 0) + 1

    def _may(self, owner: str) -> bool:
        limit = self._queue.limit(owner, self._held)
        return self.free > 0 and self._held.get(owner, 0) < max(1, limit - self._uncounted)
