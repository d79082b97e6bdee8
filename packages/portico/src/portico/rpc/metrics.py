"""Counts and durations of what a server answers, as Prometheus text.

The names are those of OpenTelemetry's conventions for MCP. They are counted only where they can be read.
"""

from __future__ import annotations

import re
from asyncio import CancelledError
from bisect import bisect_left
from collections.abc import Callable
from contextlib import suppress
from time import perf_counter
from typing import Any

from msgspec import Raw, Struct, field, json

from portico.protocol.errors import ProtocolError, ToolError
from portico.protocol.methods import LASTING, METHODS
from portico.protocol.tools import CallToolResult
from portico.protocol.versions import Revision
from portico.rpc.call import Call
from portico.rpc.fair_queue import FairShares

# Seconds. Ours are mostly far below the first of OpenTelemetry's own, so there are some more.
BUCKETS = (0.0001, 0.001, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
MOST_SERIES = 2000

_DURATION = "mcp_server_operation_duration_seconds"
_TOOL = r'gen_ai_tool_name="((?:[^"\\]|\\.)*)"'


class _Series:
    """One line of a histogram: a method, a tool, an outcome."""

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS) + 1)
        self.total = 0.0


class Metrics:
    """Counts and durations of everything that is answered. The doors of one server share it."""

    def __init__(self) -> None:
        self.in_flight = 0
        # Whose calls go on, where very many are in flight.
        self.shares = FairShares()
        self._series: dict[tuple[str, str, str], _Series] = {}

    def begin(self, call: Call) -> float:
        """A request begins. Returns the moment, for `end`."""
        if call.method not in LASTING:
            self.in_flight += 1
        return perf_counter()

    def end(self, call: Call, result: Any, failure: BaseException | None, began: float) -> float:
        """It was answered. Returns the seconds that it took."""
        # A subscription lasts as long as its client likes: it is not work, and its duration says nothing.
        seconds = perf_counter() - began
        method = call.method
        if method in LASTING:
            return seconds
        self.in_flight -= 1
        if failure is not None:
            outcome = _outcome(failure, call.revision)
        else:
            outcome = "tool_error" if isinstance(result, CallToolResult) and result.is_error is True else ""
        told = method == "tools/call" and call.read is not None and outcome != "-32602"
        tool = call.read[1].name if told else ""  # type: ignore[index]
        series = self._series.get((method, tool, outcome)) or self._new_series(method, tool, outcome)
        series.counts[bisect_left(BUCKETS, seconds)] += 1
        series.total += seconds
        return seconds

    def _new_series(self, method: str, tool: str, outcome: str) -> _Series:
        """Names that clients make up do not become series without end."""
        if method not in METHODS or len(self._series) >= MOST_SERIES:
            method, tool = "other", ""
        return self._series.setdefault((method, tool, outcome), _Series())

    def counts(self) -> dict[tuple[str, str, str], list[int]]:
        """By method, tool and outcome: how many took how long, by BUCKETS."""
        return {key: list(series.counts) for key, series in self._series.items()}

    def text(self, gauges: dict[str, float]) -> str:
        """Everything, in the text format of Prometheus."""
        lines = [f"# TYPE {_DURATION} histogram"]
        for (method, tool, outcome), series in sorted(self._series.items()):
            labels = _labels(mcp_method_name=method, gen_ai_tool_name=tool, error_type=outcome)
            lines += histogram(_DURATION, labels, series.counts, series.total)
        for name, value in {"mcp_server_in_flight": self.in_flight, **gauges}.items():
            kind = "counter" if name.endswith("_total") else "gauge"
            lines += [f"# TYPE {name} {kind}", f"{name} {value:.15g}"]
        return "\n".join(lines) + "\n"


def histogram(name: str, labels: str, counts: list[int], total: float) -> list[str]:
    """The lines of durations that were counted by BUCKETS, and what they come to."""
    lines, below = [], 0
    for bound, count in zip((*BUCKETS, "+Inf"), counts, strict=True):
        below += count
        lines.append(f'{name}_bucket{{{labels},le="{bound}"}} {below}')
    return [*lines, f"{name}_sum{{{labels}}} {total:.9g}", f"{name}_count{{{labels}}} {below}"]


def without_tools(text: str, hidden: Callable[[str], bool]) -> str:
    """The same text for a reader who is not to learn of some tools."""
    known: dict[str, bool] = {}

    def is_shown(line: str) -> bool:
        found = re.search(_TOOL, line)
        if found is None:
            return True
        name = found[1].replace("\\n", "\n").replace('\\"', '"').replace("\\\\", "\\")
        if name not in known:
            known[name] = hidden(name)
        return not known[name]

    return "".join(line for line in text.splitlines(keepends=True) if is_shown(line))


def label(name: str, value: str) -> str:
    return f'{name}="{_escaped(value)}"'


class _Judged(Struct):
    is_error: bool = field(default=False, name="isError")


def error_type(call: Call, result: Any, failure: BaseException | None) -> str:
    """How a request failed, in a word: `tool_error`, a code of JSON-RPC, the name of an exception; or nothing."""
    if failure is not None:
        return "cancelled" if isinstance(failure, CancelledError) else _outcome(failure, call.revision)
    if type(result) is Raw and call.method == "tools/call":
        # What another server has said, and is passed on as it is.
        with suppress(ValueError, RecursionError):
            return "tool_error" if _refused.decode(result).is_error else ""
    # A profile answers with a subclass, which may leave `is_error` unset.
    return "tool_error" if isinstance(result, CallToolResult) and result.is_error is True else ""


_refused = json.Decoder(_Judged)


def _outcome(failure: BaseException, revision: Revision | None) -> str:
    if isinstance(failure, ToolError):
        return "tool_error"
    return str(failure.code_at(revision)) if isinstance(failure, ProtocolError) else type(failure).__name__


def _labels(**labels: str) -> str:
    return ",".join(
        f'{name}="{_escaped(value)}"' for name, value in labels.items() if value or name == "mcp_method_name"
    )


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
