"""Measure how long a server may block its event loop."""

from __future__ import annotations

import time

import msgspec

MOST_PAUSE_SECONDS = 0.1
_TEXTS = b"[" + b'"a",' * 400_000 + b"1]"


def is_short(pause: float, times: int = 1) -> bool:
    """Return whether a pause is below `times` tenths of a second, or more if the machine is slow at the moment."""
    return pause < times * MOST_PAUSE_SECONDS or pause < times * 12 * _reading_seconds()


def _reading_seconds() -> float:
    """Return how long parsing two megabytes takes now, in wall-clock time: pauses include the load too."""
    before = time.perf_counter()
    for _ in range(5):
        msgspec.json.decode(_TEXTS)
    return (time.perf_counter() - before) / 5
