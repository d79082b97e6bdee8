"""Time as services keep it: moments are milliseconds since 1970, written as ISO 8601 in UTC."""

from __future__ import annotations

import time
from datetime import UTC, datetime

SECOND_MS = 1000


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
