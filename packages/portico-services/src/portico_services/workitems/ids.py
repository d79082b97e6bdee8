"""Ids that sort in order of creation: `task_1hf3k9d0qv7e2m5rx`.

Nine characters encode the millisecond, eight are random. A process that creates several ids within a millisecond
increments the last one, so they stay in order; between processes only the clock decides. The alphabet is Crockford's
base 32, which sorts like the numbers and needs no escaping.
"""

from __future__ import annotations

import re
import secrets
import threading
from collections.abc import Callable

from portico_services.timestamps import now_ms

ID_PREFIX = "task_"
# Without i, l, o and u, which are easily confused or form words.
ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
TIME_CHARS, RANDOM_CHARS = 9, 8
ID_LENGTH = len(ID_PREFIX) + TIME_CHARS + RANDOM_CHARS
_ID = re.compile(rf"{ID_PREFIX}[{ALPHABET}]{{{TIME_CHARS + RANDOM_CHARS}}}")
# Number of random values of one millisecond.
_ROOM = 32**RANDOM_CHARS


class IdGenerator:
    """Id generator of one process. Thread-safe."""

    def __init__(self, clock: Callable[[], int] = now_ms) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._last = (0, 0)

    def next_id(self) -> str:
        """Return a new id that is greater than all previous ones of this process."""
        with self._lock:
            # Only the lower half: increments within the same millisecond then rarely overflow into the next one.
            # Random, so that ids of other processes are neither guessed nor repeated.
            moment, number = self._clock(), secrets.randbelow(_ROOM // 2)
            if moment <= self._last[0]:
                # The same millisecond, or a clock that was set back.
                moment, number = self._last[0], self._last[1] + 1 + secrets.randbelow(1 << 20)
            # Borrow from the next millisecond, because ids must never decrease within a process.
            if number >= _ROOM:
                moment, number = moment + 1, number - _ROOM
            self._last = (moment, number)
        return ID_PREFIX + _encode(moment, TIME_CHARS) + _encode(number, RANDOM_CHARS)


def is_id(text: str) -> bool:
    """Return whether a text is a complete id."""
    return _ID.fullmatch(text) is not None


def _encode(number: int, length: int) -> str:
    return "".join(ALPHABET[number >> 5 * position & 31] for position in reversed(range(length)))
