"""How long a server may be busy with one thing before it looks after the next."""

from __future__ import annotations

import time
from functools import cache

import msgspec

MOST_PAUSE_SECONDS = 0.1
_TEXTS = b"[" + b'"a",' * 400_000 + b"1]"


@cache
def most_pause() -> float:
    """A tenth of a second; more on a machine that is slow, by how long it takes to read two megabytes."""
    readings = []
    for _ in range(5):
        before = time.thread_time()
        msgspec.json.decode(_TEXTS)
        readings.append(time.thread_time() - before)
    return max(MOST_PAUSE_SECONDS, 5 * min(readings))
