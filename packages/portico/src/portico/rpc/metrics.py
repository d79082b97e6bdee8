"""Request counts and durations of a server, in the Prometheus text format.

The names follow OpenTelemetry's semantic conventions for MCP. Metrics are only collected where they can be read.
"""

from __future__ import annotations

import re
from asyncio import CancelledError
from bisect import bisect_left
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import perf_counter
from typing import Any

from msgspec import Raw, Struct, field, json

from portico.protocol.errors import ProtocolError, ToolError
from portico.protocol.methods import LONG_LIVED_METHODS, METHODS
from portico.protocol.tools import CallToolResult
from portico.protocol.versions import ProtocolVersion
from portico.rpc.call import Call
from portico.rpc.fair_queue import FairScheduler

# OpenTelemetry's default buckets, extended downwards: most calls take less than its first bucket.
DURATION_BUCKETS_SECONDS = (
    0.0001,
    0.001,
    0.01,
    0.02,
    0.05,
    0.1,
    0.2,
    0.5,
    1.0,
    2.0,
    5.0,
    10.0,
    30.0,
    60.0,
    120.0,
    300.0,
)
MAX_SERIES = 2000

_DURATION = "mcp_server_operation_duration_seconds"
_TOOL = r'gen_ai_tool_name="((?:[^"\\]|\\.)*)"'


class _Series:
    """Histogram of one combination of method, tool and outcome."""

    def __init__(self) -> None:
        self.counts = [0] * (len(DURATION_BUCKETS_SECONDS) + 1)
        self.total = 0.0


class Metrics:
    """Counts and durations of all requests. Shared by the dispatchers of one server."""

    def __init__(self) -> None:
        self.in_flight = 0
        # Fair scheduling of calls under load.
        self.scheduler = FairScheduler()
        self._series: dict[tuple[str, str, str], _Series] = {}

    def begin(self, call: Call) -> float:
        """Record the start of a request. Return the time for `end`."""
        if call.method not in LONG_LIVED_METHODS:
            self.in_flight += 1
        return perf_counter()

    def end(self, call: Call, result: Any, failure: BaseException | None, started_at: float) -> float:
        """Record the end of a request. Return its duration in seconds."""
        # A subscription lasts until its client ends it, so its duration is not a measure of work.
        seconds = perf_counter() - started_at
        method = call.method
        if method in LONG_LIVED_METHODS:
            return seconds
        self.in_flight -= 1
        if failure is not None:
            outcome = _outcome(failure, call.protocol_version)
        else:
            outcome = "tool_error" if isinstance(result, CallToolResult) and result.is_error is True else ""
        # Tool names are recorded only for existing tools: clients could otherwise create series without limit.
        is_tool_call = method == "tools/call" and call.read is not None and outcome != "-32602"
        tool = call.read[1].name if is_tool_call else ""  # type: ignore[index]
        series = self._series.get((method, tool, outcome)) or self._new_series(method, tool, outcome)
        series.counts[bisect_left(DURATION_BUCKETS_SECONDS, seconds)] += 1
        series.total += seconds
        return seconds

    def _new_series(self, method: str, tool: str, outcome: str) -> _Series:
        """Create a series. Unknown methods, and series beyond the limit, are counted as "other"."""
        if method not in METHODS or len(self._series) >= MAX_SERIES:
            method, tool = "other", ""
        return self._series.setdefault((method, tool, outcome), _Series())

    def bucket_counts(self) -> dict[tuple[str, str, str], list[int]]:
        """Return the bucket counts by method, tool and outcome."""
        return {key: list(series.counts) for key, series in self._series.items()}

    def render_prometheus(self, gauges: dict[str, float]) -> str:
        """Return all metrics in the Prometheus text format."""
        lines = [f"# TYPE {_DURATION} histogram"]
        for (method, tool, outcome), series in sorted(self._series.items()):
            labels = _labels(mcp_method_name=method, gen_ai_tool_name=tool, error_type=outcome)
            lines += format_histogram(_DURATION, labels, series.counts, series.total)
        for name, value in {"mcp_server_in_flight": self.in_flight, **gauges}.items():
            kind = "counter" if name.endswith("_total") else "gauge"
            lines += [f"# TYPE {name} {kind}", f"{name} {value:.15g}"]
        return "\n".join(lines) + "\n"


def format_histogram(name: str, labels: str, counts: list[int], total: float) -> list[str]:
    """Return the lines of a histogram with `DURATION_BUCKETS_SECONDS`."""
    lines, below = [], 0
    for bound, count in zip((*DURATION_BUCKETS_SECONDS, "+Inf"), counts, strict=True):
        below += count
        lines.append(f'{name}_bucket{{{labels},le="{bound}"}} {below}')
    return [*lines, f"{name}_sum{{{labels}}} {total:.9g}", f"{name}_count{{{labels}}} {below}"]


def quantile(counts: Sequence[int], q: float) -> float | None:
    """Return the duration within which this share of calls finished, interpolated in its bucket; None without calls."""
    rank = sum(counts) * q
    if not rank:
        return None
    below = 0
    for at, count in enumerate(counts):
        if count and below + count >= rank:
            low = DURATION_BUCKETS_SECONDS[at - 1] if at else 0.0
            high = DURATION_BUCKETS_SECONDS[at] if at < len(DURATION_BUCKETS_SECONDS) else DURATION_BUCKETS_SECONDS[-1]
            return low + (high - low) * (rank - below) / count
        below += count
    return DURATION_BUCKETS_SECONDS[-1]


def filter_hidden_tools(text: str, hidden: Callable[[str], bool]) -> str:
    """Return the metrics without the series of hidden tools."""
    hidden_by_name: dict[str, bool] = {}

    def is_shown(line: str) -> bool:
        match = re.search(_TOOL, line)
        if match is None:
            return True
        name = match[1].replace("\\n", "\n").replace('\\"', '"').replace("\\\\", "\\")
        if name not in hidden_by_name:
            hidden_by_name[name] = hidden(name)
        return not hidden_by_name[name]

    return "".join(line for line in text.splitlines(keepends=True) if is_shown(line))


def format_label(name: str, value: str) -> str:
    return f'{name}="{_escape_label(value)}"'


class _ErrorFlagResult(Struct):
    is_error: bool = field(default=False, name="isError")


def error_type(call: Call, result: Any, failure: BaseException | None) -> str:
    """Return the kind of failure of a request: `tool_error`, a JSON-RPC code, an exception name, or an empty string."""
    if failure is not None:
        return "cancelled" if isinstance(failure, CancelledError) else _outcome(failure, call.protocol_version)
    if type(result) is Raw and call.method == "tools/call":
        # The result of an upstream server, passed through undecoded.
        with suppress(ValueError, RecursionError):
            return "tool_error" if _refused.decode(result).is_error else ""
    # Profiles return a subclass, which may leave `is_error` unset.
    return "tool_error" if isinstance(result, CallToolResult) and result.is_error is True else ""


_refused = json.Decoder(_ErrorFlagResult)


def _outcome(failure: BaseException, revision: ProtocolVersion | None) -> str:
    if isinstance(failure, ToolError):
        return "tool_error"
    return str(failure.code_for(revision)) if isinstance(failure, ProtocolError) else type(failure).__name__


def _labels(**labels: str) -> str:
    return ",".join(
        f'{name}="{_escape_label(value)}"' for name, value in labels.items() if value or name == "mcp_method_name"
    )


def _escape_label(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
