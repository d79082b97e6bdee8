"""Whether an upstream is there: calls to one that is not fail at once, and say who, why, and when it is tried again."""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable

from portico.wire.errors import Error, ToolError

MOST_IN_A_ROW = 5
# Of so many in the last while, half failed.
LEAST_LOOKED_AT, LOOK_SECONDS = 20, 30.0
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 5.0, 60.0
# Whatever it asks for itself.
LONGEST_WISH_SECONDS = 3600.0
# Before the last lines of a child process, in a failure.
SAID_LAST = "; it said last:\n"


def brief(failure: str) -> str:
    """What clients are told of a failure: not what a child process wrote to its stderr, which is for the log."""
    return failure.partition(SAID_LAST)[0]


class Breaker:
    """Counts failures of the transport and deadlines; never an answer, whatever it says."""

    def __init__(self, mask: Callable[[str], str] = str) -> None:
        self._mask = mask
        self.failure = ""
        self.since: float | None = None
        self._until = 0.0
        self._pause = FIRST_PAUSE_SECONDS
        self._in_a_row = 0
        self._recent: deque[tuple[float, bool]] = deque(maxlen=200)

    @property
    def is_open(self) -> bool:
        """Whether calls are refused for now."""
        return self.since is not None and time.monotonic() < self._until

    @property
    def retry_after(self) -> float:
        return max(0.0, self._until - time.monotonic()) if self.since is not None else 0.0

    def check(self, alias: str) -> None:
        """Raises ToolError while the upstream is not to be asked."""
        if self.is_open:
            raise self.refusal(alias)

    def refusal(self, alias: str) -> ToolError:
        seconds = max(1, round(self.retry_after))
        since = time.strftime("%H:%M:%S", time.localtime(self.since))
        return ToolError(
            f"{alias} does not answer since {since}: {brief(self.failure)}. It is tried again in {seconds} s.",
            kind="ToolExecutionError",
            details={"upstream": alias, "retry_after": seconds},
            retryable=True,
        )

    def succeeded(self) -> None:
        self._in_a_row = 0
        self._pause = FIRST_PAUSE_SECONDS
        self.since, self.failure = None, ""
        self._recent.append((time.monotonic(), True))

    def failed(self, failure: Error, *, at_once: bool = False) -> None:
        """`at_once`: it could not even be reached, so there is nothing to wait and see. One that says when it wants to
        be asked again is asked then."""
        now = time.monotonic()
        wish: float | None = getattr(failure, "retry_after", None)
        self.failure = self._mask(str(failure))
        self._in_a_row += 1
        self._recent.append((now, False))
        recent = [good for moment, good in self._recent if now - moment < LOOK_SECONDS]
        often = len(recent) >= LEAST_LOOKED_AT and recent.count(False) * 2 >= len(recent)
        if wish is not None:
            self._pause_until(now + min(wish, LONGEST_WISH_SECONDS))
        elif at_once or often or self._in_a_row >= MOST_IN_A_ROW or self.since is not None:
            self._pause_until(now + min(self._pause * random.uniform(0.8, 1.2), LONGEST_PAUSE_SECONDS))
            self._pause = min(2 * self._pause, LONGEST_PAUSE_SECONDS)

    def _pause_until(self, moment: float) -> None:
        if self.since is None:
            self.since = time.time()
        self._until = moment
