"""Deadlines for the calls of a connection, with one shared timer. Most calls end long before it fires."""

from __future__ import annotations

import asyncio
from asyncio import current_task, get_running_loop
from contextvars import ContextVar
from types import TracebackType
from typing import Any

_NEVER = float("inf")
# Minimum time for one step of closing a connection.
MIN_CLOSING_SECONDS = 0.1

# Time by which connections must be closed, on the event loop's clock. Set by commands with a time limit.
closing_deadline: ContextVar[float | None] = ContextVar("closing_deadline", default=None)


def closing_seconds(usual: float) -> float:
    """Return the time for one step of closing a connection: `usual`, or less if the closing deadline is near."""
    deadline = closing_deadline.get()
    if deadline is None:
        return usual
    return min(usual, max(deadline - get_running_loop().time(), MIN_CLOSING_SECONDS))


class Deadline:
    """Like `asyncio.timeout`, but without a separate timer: cancels the task inside it when its time is up."""

    __slots__ = ("_cancel_count", "_expired", "_scheduler", "_task", "expires_at")

    def __init__(self, scheduler: DeadlineScheduler, seconds: float | None) -> None:
        self._scheduler = scheduler
        # On the event loop's clock; None for no deadline.
        self.expires_at = None if seconds is None else get_running_loop().time() + seconds
        self._expired = False

    def __enter__(self) -> Deadline:
        task = current_task()
        assert task is not None
        self._task: asyncio.Task[Any] = task
        self._cancel_count = task.cancelling()
        all = self._scheduler
        all.deadlines.add(self)
        if self.expires_at is not None and self.expires_at < all.next_check:
            all.schedule_check(self.expires_at)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, failure: BaseException | None, where: TracebackType | None
    ) -> None:
        self._scheduler.deadlines.discard(self)
        # The caller may have cancelled the task as well; then it stays cancelled.
        if self._expired and self._task.uncancel() <= self._cancel_count and kind is asyncio.CancelledError:
            raise TimeoutError from failure

    def when(self) -> float | None:
        return self.expires_at

    def expired(self) -> bool:
        return self._expired

    def reschedule(self, when: float | None) -> None:
        if not self._expired:
            self.expires_at = when
            if when is not None and when < self._scheduler.next_check:
                self._scheduler.schedule_check(when)

    def expire(self) -> None:
        self._expired = True
        self._task.cancel()


class DeadlineScheduler:
    """Deadlines of the active calls."""

    def __init__(self) -> None:
        self.deadlines: set[Deadline] = set()
        # When deadlines are checked next.
        self.next_check = _NEVER
        self._timer: asyncio.TimerHandle | None = None

    def start(self, seconds: float | None) -> Deadline:
        return Deadline(self, seconds)

    def schedule_check(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self.next_check = when
        self._timer = get_running_loop().call_at(when, self._check)

    def _check(self) -> None:
        """Expire the deadlines whose time is up, and schedule the next check."""
        # A timer may fire slightly early.
        now = max(get_running_loop().time(), self.next_check)
        self._timer, self.next_check = None, _NEVER
        timed = [limit for limit in self.deadlines if limit.expires_at is not None and not limit.expired()]
        for limit in timed:
            if limit.expires_at <= now:  # type: ignore[operator]
                limit.expire()
        left = [limit.expires_at for limit in timed if not limit.expired()]
        if left:
            self.schedule_check(min(left))  # type: ignore[type-var, arg-type]

    def close(self) -> None:
        """Cancel the timer. Calls that are still active end by other means."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self.next_check = None, _NEVER
