"""How often something may be done: GCRA, the leaky bucket that is one number. Pure: the caller has the clock."""

from __future__ import annotations

import re
from typing import NamedTuple

from msgspec import Struct

from portico.protocol.errors import UsageError

_RATE = re.compile(r"(\d+(?:\.\d+)?)\s*/\s*(\d*(?:\.\d+)?)\s*([a-z]+)")
_UNITS = {
    **dict.fromkeys(("s", "sec", "second"), 1.0),
    **dict.fromkeys(("m", "min", "minute"), 60.0),
    **dict.fromkeys(("h", "hour"), 3600.0),
    **dict.fromkeys(("d", "day"), 86400.0),
}


class TakenPermit(NamedTuple):
    """What became of taking some: when the bucket will be empty then, and how long to wait if there was no room."""

    due: float
    wait: float


class Rate(Struct, frozen=True):
    """One every `interval` seconds, and so many at once."""

    interval: float
    burst: float

    def take(self, due: float, now: float, cost: float = 1.0) -> TakenPermit:
        """Take some out of a bucket that would be empty at `due`; 0 for one that was never used."""
        start = max(due, now)
        after = start + cost * self.interval
        wait = after - self.burst * self.interval - now
        # What rounding leaves over is no reason to wait.
        return TakenPermit(after, 0.0) if wait <= 1e-9 else TakenPermit(due, wait)

    def room(self, due: float, now: float) -> float:
        """How much could be taken now."""
        return max(0.0, self.burst - (max(due, now) - now) / self.interval)


def rate_of(where: str, text: str, burst: float | None) -> Rate:
    """The rate that a text such as "30/min", "5/s" or "100/10min" says. Raises UsageError."""
    found = _RATE.fullmatch(text.strip().lower())
    unit = _UNITS.get(found[3].removesuffix("s") or "s") if found is not None else None
    if found is None or unit is None:
        raise UsageError(f"{where}: rate is {text!r}, and has to be such as '30/min', '5/s' or '1000/day'")
    many, seconds = float(found[1]), float(found[2] or 1) * unit
    if not (0 < many < 1e9 and 0 < seconds < 1e9):
        raise UsageError(f"{where}: rate is {text!r}, which is no rate")
    most = max(1.0, many) if burst is None else float(burst)
    if not 1 <= most < 1e9:
        raise UsageError(f"{where}: burst is {burst}, and has to be 1 or more")
    return Rate(seconds / many, most)
