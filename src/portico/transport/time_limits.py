"""How long the calls of a connection may take. One timer watches over all: most end long before it goes off."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any


class TimeLimit:
    """`asyncio.timeout`, without a timer of its own: inside of it is cancelled when its time is over."""

    __slots__ = ("_all", "_before", "_over", "_task", "until")

    def __init__(self, all: TimeLimits, until: float | None) -> None:
        self._all = all
        # By the clock of the loop; None: never.
        self.until = until
        self._over = False

    def __enter__(self) -> TimeLimit:
        task = asyncio.current_task()
        assert task is not None
        self._task: asyncio.Task[Any] = task
        self._before = task.cancelling()
        self._all.add(self)
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
            self._all.add(self)

    def expire(self) -> None:
        self._over = True
        self._task.cancel()


class TimeLimits:
    """The limits of calls that are under way."""

    def __init__(self) -> None:
        self.limits: set[TimeLimit] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._next = 0.0

    def limit(self, seconds: float | None) -> TimeLimit:
        return TimeLimit(self, None if seconds is None else asyncio.get_running_loop().time() + seconds)

    def add(self, limit: TimeLimit) -> None:
        self.limits.add(limit)
        if limit.until is not None and (self._timer is None or limit.until < self._next):
            self._set(limit.until)

    def _set(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._next = when
        self._timer = asyncio.get_running_loop().call_at(when, self._look)

    def _look(self) -> None:
        """End those whose time is over, and look again when the next one's is."""
        self._timer = None
        # A timer may go off a little early.
        now = max(asyncio.get_running_loop().time(), self._next)
        timed = [limit for limit in self.limits if limit.until is not None and not limit.expired()]
        for limit in timed:
            if limit.until <= now:  # type: ignore[operator]
                limit.expire()
        left = [limit.until for limit in timed if not limit.expired()]
        if left:
            self._set(min(left))  # type: ignore[type-var, arg-type]

    def close(self) -> None:
        """Nothing is under way any more that it would have to look at; a call that still is ends otherwise."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
