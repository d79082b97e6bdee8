"""Timestamps of the services: milliseconds since 1970, formatted as ISO 8601 in UTC."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

MS_PER_SECOND = 1000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MIN_OFFSET, _MAX_OFFSET = datetime(1, 1, 1, tzinfo=UTC) - _EPOCH, datetime(9999, 12, 31, tzinfo=UTC) - _EPOCH


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def format_iso(at: int) -> str:
    """Return `2026-01-31T12:00:00Z`, with milliseconds only if they are not zero."""
    return _iso(at, "milliseconds" if at % MS_PER_SECOND else "seconds")


def format_iso_millis(at: int) -> str:
    """Return `2026-01-31T12:00:00.000Z`, always with milliseconds."""
    return _iso(at, "milliseconds")


def _iso(at: int, timespec: str) -> str:
    return datetime.fromtimestamp(at / MS_PER_SECOND, UTC).isoformat(timespec=timespec).replace("+00:00", "Z")


def parse_iso(text: str) -> int:
    """Parse a date or date-time; without a time zone it is UTC. Raises ValueError."""
    result = datetime.fromisoformat(text.strip())
    at = (result if result.tzinfo else result.replace(tzinfo=UTC)) - _EPOCH
    if not _MIN_OFFSET <= at <= _MAX_OFFSET:
        raise ValueError(f"the year must be between 1 and 9999, got {text[:40]!r}")
    return at // timedelta(milliseconds=1)


def is_date_only(text: str) -> bool:
    """Return whether a date has no time of day."""
    return len(text.strip()) <= len("2026-01-31") and "T" not in text.upper()
