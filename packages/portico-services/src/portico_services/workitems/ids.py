"""Ids that sort in the order in which they were made: `task_1hf3k9d0qv7e2m5rx`.

Nine characters are the millisecond, eight are chance. A process that makes several within a millisecond counts
on from the last one, so they stay in order; between processes the clock alone decides. The letters are those of
Crockford's base 32, which sort as the numbers do and need no escaping anywhere.
"""

from __future__ import annotations

import re
import secrets
import threading
from collections.abc import Callable

from portico_services.timestamps import now

PREFIX = "task_"
LETTERS = "0123456789abcdefghjkmnpqrstvwxyz"
TIME, CHANCE = 9, 8
LENGTH = len(PREFIX) + TIME + CHANCE
_ID = re.compile(rf"{PREFIX}[{LETTERS}]{{{TIME + CHANCE}}}")
_ROOM = 32**CHANCE


class Ids:
    """Ids of one process. May be asked from any thread."""

    def __init__(self, clock: Callable[[], int] = now) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._last = (0, 0)

    def make(self) -> str:
        with self._lock:
            moment, number = self._clock(), secrets.randbelow(_ROOM // 2)
            if moment <= self._last[0]:
                # The same millisecond, or a clock that was set back.
                moment, number = self._last[0], self._last[1] + 1 + secrets.randbelow(1 << 20)
            if number >= _ROOM:
                moment, number = moment + 1, number - _ROOM
            self._last = (moment, number)
        return PREFIX + _written(moment, TIME) + _written(number, CHANCE)


def is_id(text: str) -> bool:
    return _ID.fullmatch(text) is not None


def _written(number: int, length: int) -> str:
    return "".join(LETTERS[number >> 5 * place & 31] for place in reversed(range(length)))
