"""Time as services keep it: moments are milliseconds since 1970, written as ISO 8601 in UTC."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

SECOND_MS = 1000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST, _LAST = datetime(1, 1, 1, tzinfo=UTC) - _EPOCH, datetime(9999, 12, 31, tzinfo=UTC) - _EPOCH


def now() -> int:
    return time.time_ns() // 1_000_000


def written(at: int) -> str:
    """`2026-01-31T12:00:00Z`, with milliseconds only where there are some."""
    return _iso(at, "milliseconds" if at % SECOND_MS else "seconds")


def written_exactly(at: int) -> str:
    """`2026-01-31T12:00:00.000Z`, always with milliseconds."""
    return _iso(at, "milliseconds")


def _iso(at: int, timespec: str) -> str:
    return datetime.fromtimestamp(at / SECOND_MS, UTC).isoformat(timespec=timespec).replace("+00:00", "Z")


def parsed(text: str) -> int:
    """The moment that a date, or a date with a time, stands for; without a zone it is UTC. Raises ValueError."""
    found = datetime.fromisoformat(text.strip())
    at = (found if found.tzinfo else found.replace(tzinfo=UTC)) - _EPOCH
    if not _FIRST <= at <= _LAST:
        raise ValueError(f"{text[:40]!r} is not between the years 1 and 9999")
    return at // timedelta(milliseconds=1)


def is_day(text: str) -> bool:
    """Whether a date has no time."""
    return len(text.strip()) <= len("2026-01-31") and "T" not in text.upper()
