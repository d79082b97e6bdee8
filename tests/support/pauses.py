"""How long a server may be busy with one thing before it looks after the next."""

from __future__ import annotations

import time

import msgspec

MOST_PAUSE_SECONDS = 0.1
_TEXTS = b"[" + b'"a",' * 400_000 + b"1]"


def is_short(pause: float, times: int = 1) -> bool:
    """Whether it is below a tenth of a second, or so many times that; more where the machine is slow at the moment."""
    return pause < times * MOST_PAUSE_SECONDS or pause < times * 12 * _reading_seconds()


def _reading_seconds() -> float:
    """How long the machine takes to read two megabytes. It may be slower than a moment ago, and others may use it too:
    a pause is by the clock, and so is this."""
    before = time.perf_counter()
    for _ in range(5):
        msgspec.json.decode(_TEXTS)
    return (time.perf_counter() - before) / 5
