"""How long the calls of a connection may take. One timer watches over all: most end long before it goes off."""

from __future__ import annotations

import asyncio
from asyncio import current_task, get_running_loop
from contextvars import ContextVar
from types import TracebackType
from typing import Any

_NEVER = float("inf")
# The least that a step of closing a connection gets.
MIN_CLOSING_SECONDS = 0.1

# When connections have to be closed, by the clock of the loop. A command with a time limit sets it.
closing_deadline: ContextVar[float | None] = ContextVar("closing_deadline", default=None)


def closing_seconds(usual: float) -> float:
    """Return how long a step of closing a connection may take: the usual time, or less if a deadline is near."""
    deadline = closing_deadline.get()
    if deadline is None:
        return usual
    return min(usual, max(deadline - get_running_loop().time(), MIN_CLOSING_SECONDS))


class TimeLimit:
    """`asyncio.timeout`, without a timer of its own: inside of it is cancelled when its time is over."""

    __slots__ = ("_all", "_before", "_over", "_task", "until")

    def __init__(self, all: TimeLimits, seconds: float | None) -> None:
        self._all = all
        # By the clock of the loop; None: never.
        self.until = None if seconds is None else get_running_loop().time() + seconds
        self._over = False

    def __enter__(self) -> TimeLimit:
        task = current_task()
        assert task is not None
        self._task: asyncio.Task[Any] = task
        self._before = task.cancelling()
        all = self._all
        all.limits.add(self)
        if self.until is not None and self.until < all.next:
            all.look_at(self.until)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, failure: BaseException | None, where: TracebackType | None
    ) -> None:
        self._all.limits.discard(self)
        # The caller may have cancelled the task as well, and then it stays cancelled.
        if self._over and self._task.uncancel() <= self._before and kind is asyncio.CancelledError:
            raise TimeoutError from failure

    def when(self) -> float | None:
        return self.until

    def expired(self) -> bool:
        return self._over

    def reschedule(self, when: float | None) -> None:
        if not self._over:
            self.until = when
            if when is not None and when < self._all.next:
                self._all.look_at(when)

    def expire(self) -> None:
        self._over = True
        self._task.cancel()


class TimeLimits:
    """The limits of calls that are under way."""

    def __init__(self) -> None:
        self.limits: set[TimeLimit] = set()
        # When they are looked at.
        self.next = _NEVER
        self._timer: asyncio.TimerHandle | None = None

    def limit(self, seconds: float | None) -> TimeLimit:
        return TimeLimit(self, seconds)

    def look_at(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self.next = when
        self._timer = get_running_loop().call_at(when, self._look)

    def _look(self) -> None:
        """End those whose time is over, and look again when the next one's is."""
        # A timer may go off a little early.
        now = max(get_running_loop().time(), self.next)
        self._timer, self.next = None, _NEVER
        timed = [limit for limit in self.limits if limit.until is not None and not limit.expired()]
        for limit in timed:
            if limit.until <= now:  # type: ignore[operator]
                limit.expire()
        left = [limit.until for limit in timed if not limit.expired()]
        if left:
            self.look_at(min(left))  # type: ignore[type-var, arg-type]

    def close(self) -> None:
        """Nothing is under way any more that it would have to look at; a call that still is ends otherwise."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self.next = None, _NEVER
