"""Calls a second and how long they take, from the counters that a server has anyway: nothing is added to a call."""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from portico.rpc.metrics import BUCKETS
from portico.transports.http_server.application import Exchange
from portico_console.live_updates import Topic

SAMPLE_SECONDS = 1.0
KEPT_SECONDS = 300

Series = dict[tuple[str, str, str], list[int]]
"""By method, tool and outcome: how many calls took how long, by BUCKETS."""

_BUCKET = re.compile(r'mcp_server_operation_duration_seconds_bucket\{(.*),le="([^"]+)"\} ([0-9.e+]+)')
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_ENDS = {**{str(bound): at for at, bound in enumerate(BUCKETS)}, "+Inf": len(BUCKETS)}


class ToolNumbers(Struct):
    """Of one tool, or of one method that is about none: in all, and in the last interval."""

    name: str
    method: str
    calls: int
    errors: int
    rate: float
    p50: float | None
    p95: float | None
    p99: float | None


class NumbersAt(Struct):
    at: float
    rate: float
    errors: float
    p50: float | None
    p95: float | None
    p99: float | None


class CallNumbers(Struct):
    at: float
    calls: int
    errors: int
    in_flight: int
    rate: float
    error_rate: float
    p50: float | None
    p95: float | None
    p99: float | None
    tools: list[ToolNumbers]


class Sampler(Topic):
    """Looks at the counters once a second while a page wants to know, and remembers the last minutes."""

    def __init__(self, exchange: Exchange) -> None:
        self.history: deque[NumbersAt] = deque(maxlen=KEPT_SECONDS)
        self._exchange = exchange
        self._before: tuple[float, Series] | None = None
        self._last: CallNumbers | None = None
        # What all processes have counted, where there are several; as of a moment ago.
        self._summed: str | None = None

    def look(self) -> CallNumbers:
        now = time.time()
        if self._last is not None and self._before is not None and now - self._before[0] < SAMPLE_SECONDS:
            return self._last
        series, in_flight = self._count()
        since, before = self._before if self._before is not None else (now - SAMPLE_SECONDS, series)
        self._last = numbers = _numbers(now, series, before, max(now - since, 1e-3), in_flight)
        self._before = now, series
        self.history.append(
            NumbersAt(now, numbers.rate, numbers.error_rate, numbers.p50, numbers.p95, numbers.p99)
        )  # fmt: skip
        return numbers

    def _count(self) -> tuple[Series, int]:
        exchange = self._exchange
        if exchange.elsewhere is None:
            return exchange.metrics.counts(), exchange.metrics.in_flight
        exchange.elsewhere.sum_metrics(exchange.numbers(), self._take)
        text = self._summed or exchange.numbers()
        found = re.search(r"^mcp_server_in_flight ([0-9.]+)", text, re.MULTILINE)
        return read_series(text), int(float(found[1])) if found is not None else 0

    def _take(self, text: str) -> None:
        self._summed = text

    # As a topic

    def begin(self) -> float:
        return 0.0

    def news(self, seen: float) -> tuple[Any, float]:
        numbers = self.look()
        return (None, seen) if numbers.at == seen else (numbers, numbers.at)


def read_series(text: str) -> Series:
    """The counters from the text that Prometheus reads, in which each bucket has those below it too."""
    series: Series = {}
    for labels, bound, value in _BUCKET.findall(text):
        said = dict(_LABEL.findall(labels))
        key = (said.get("mcp_method_name", ""), said.get("gen_ai_tool_name", ""), said.get("error_type", ""))
        counts = series.setdefault(key, [0] * (len(BUCKETS) + 1))
        counts[_ENDS.get(bound, len(BUCKETS))] = int(float(value))
    for counts in series.values():
        for at in range(len(counts) - 1, 0, -1):
            counts[at] -= counts[at - 1]
    return series


def _numbers(now: float, series: Series, before: Series, seconds: float, in_flight: int) -> CallNumbers:
    calls = {key: sum(counts) for key, counts in series.items()}
    # Of another process, or of one that began anew, there may be less than before.
    new = {key: [max(0, a - b) for a, b in _pairs(counts, before.get(key))] for key, counts in series.items()}
    wrong = sum(number for key, number in calls.items() if key[2])
    fresh_wrong = sum(sum(counts) for key, counts in new.items() if key[2])
    everything = _sum(new.values())
    return CallNumbers(
        at=now,
        calls=sum(calls.values()),
        errors=wrong,
        in_flight=in_flight,
        rate=sum(everything) / seconds,
        error_rate=fresh_wrong / seconds,
        p50=quantile(everything, 0.5),
        p95=quantile(everything, 0.95),
        p99=quantile(everything, 0.99),
        tools=_by_tool(calls, new, seconds),
    )


def _by_tool(calls: Mapping[Any, int], new: Series, seconds: float) -> list[ToolNumbers]:
    rows = []
    for method, tool in dict.fromkeys(key[:2] for key in calls):
        keys = [key for key in calls if key[:2] == (method, tool)]
        counts = _sum(new[key] for key in keys)
        errors = sum(calls[key] for key in keys if key[2])
        quantiles = [quantile(counts, part) for part in (0.5, 0.95, 0.99)]
        total = sum(calls[key] for key in keys)
        rows.append(ToolNumbers(tool or method, method, total, errors, sum(counts) / seconds, *quantiles))
    return sorted(rows, key=lambda row: -row.calls)


def _pairs(counts: list[int], before: list[int] | None) -> list[tuple[int, int]]:
    return list(zip(counts, before or [0] * len(counts), strict=True))


def _sum(many: Any) -> list[int]:
    total = [0] * (len(BUCKETS) + 1)
    for counts in many:
        total = [a + b for a, b in zip(total, counts, strict=True)]
    return total


def quantile(counts: Sequence[int], part: float) -> float | None:
    """So long takes this part of the calls at most, as far as buckets can tell; None of no calls."""
    wanted = sum(counts) * part
    if not wanted:
        return None
    below = 0
    for at, count in enumerate(counts):
        if count and below + count >= wanted:
            low = BUCKETS[at - 1] if at else 0.0
            high = BUCKETS[at] if at < len(BUCKETS) else BUCKETS[-1]
            return low + (high - low) * (wanted - below) / count
        below += count
    return BUCKETS[-1]
