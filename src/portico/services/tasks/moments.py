"""Time: moments as milliseconds, and as ISO 8601 writes them."""

from __future__ import annotations

import time
from datetime import UTC, datetime

SECOND = 1000


def now() -> int:
    return time.time_ns() // 1_000_000


def written(at: int) -> str:
    found = datetime.fromtimestamp(at / SECOND, UTC)
    return found.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def perhaps(at: int | None) -> str | None:
    return None if at is None else written(at)
