"""Time: moments as milliseconds, spans as people write them, dates as ISO 8601 has them."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime

from portico.services.memory.errors import Invalid

SECOND = 1000
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_SPAN = re.compile(r"(\d{1,9})\s*([smhdw]?)")
LONGEST = 100 * 366 * 86_400 * SECOND


def now() -> int:
    return time.time_ns() // 1_000_000


def span(text: str) -> int | None:
    """`7d`, `24h`, `60m`, `3600s`, `2w`, or seconds, in milliseconds; None for 0, which is for ever."""
    found = _SPAN.fullmatch(text.strip().lower())
    if found is None:
        raise Invalid(f"{text[:40]!r} is no span of time. Write 7d, 24h, 60m, 3600s or 2w; 0 is for ever.")
    length = int(found[1]) * _UNITS[found[2] or "s"] * SECOND
    if length > LONGEST:
        raise Invalid(f"{text[:40]!r} is longer than a hundred years. 0 is for ever.")
    return length or None


def moment(text: str) -> int:
    """A date or a date with a time; without a zone it is UTC."""
    try:
        found = datetime.fromisoformat(text.strip())
    except ValueError:
        raise Invalid(f"{text[:40]!r} is no date. Write 2026-01-31 or 2026-01-31T12:00:00Z.") from None
    return int((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp() * SECOND)


def ago_or_moment(text: str, at: int) -> int:
    """For `since:` and `until:`: how long ago, or when."""
    if _SPAN.fullmatch(text.strip().lower()):
        return at - (span(text) or 0)
    return moment(text)


def written(at: int) -> str:
    """To the second, unless there is more to it."""
    found = datetime.fromtimestamp(at / SECOND, UTC)
    return found.isoformat(timespec="milliseconds" if at % SECOND else "seconds").replace("+00:00", "Z")
