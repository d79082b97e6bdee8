"""What happened, counted: a Handler around a Handler, and its numbers as Prometheus text.

The names are those of OpenTelemetry's conventions for MCP. It is there only where somebody can read it.
"""

from __future__ import annotations

import time
from typing import Any

import msgspec
from msgspec import Struct

from portico.rpc.call import Call, Handler
from portico.wire.errors import ProtocolError, ToolError
from portico.wire.methods import LASTING, METHODS

# Seconds. Ours are mostly far below the first of OpenTelemetry's own, so there are some more.
BUCKETS = (0.0001, 0.001, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
MOST_SERIES = 2000

_DURATION = "mcp_server_operation_duration_seconds"


class _Series(Struct):
    """One line of a histogram: a method, a tool, an outcome."""

    counts: list[int]
    total: float = 0.0
    number: int = 0


class _Named(Struct, gc=False):
    name: str = ""


_named = msgspec.json.Decoder(_Named)


class Metrics:
    """Counts and durations of everything a handler answers."""

    def __init__(self, handler: Handler) -> None:
        self.handler = handler
        self.instant = getattr(handler, "instant", False)
        self.in_flight = 0
        self._series: dict[tuple[str, str, str], _Series] = {}

    async def __call__(self, call: Call) -> Any:
        if call.method in LASTING:
            # It lasts as long as its client likes, so its duration says nothing.
            return await self.handler(call)
        began = time.perf_counter()
        self.in_flight += 1
        outcome = ""
        try:
            result = await self.handler(call)
            if getattr(result, "is_error", False):
                outcome = "tool_error"
            return result
        except ToolError:
            outcome = "tool_error"
            raise
        except ProtocolError as failure:
            outcome = str(failure.code_at(call.revision))
            raise
        except BaseException as failure:
            outcome = type(failure).__name__
            raise
        finally:
            self.in_flight -= 1
            self._observe(call, outcome, time.perf_counter() - began)

    def _observe(self, call: Call, outcome: str, seconds: float) -> None:
        # Names that clients make up must not become series without end.
        method = call.method if call.method in METHODS else "other"
        tool = self._tool(call) if method == "tools/call" and outcome != "-32602" else ""
        series = self._series.get((method, tool, outcome))
        if series is None:
            if len(self._series) >= MOST_SERIES:
                method, tool = "other", ""
            series = self._series.setdefault((method, tool, outcome), _Series([0] * (len(BUCKETS) + 1)))
        at = 0
        while at < len(BUCKETS) and seconds > BUCKETS[at]:
            at += 1
        series.counts[at] += 1
        series.total += seconds
        series.number += 1

    @staticmethod
    def _tool(call: Call) -> str:
        try:
            return call.name or _named.decode(call.params).name
        except msgspec.DecodeError:
            return ""

    def text(self, gauges: dict[str, float]) -> str:
        """Everything, in the text format of Prometheus."""
        lines = [f"# TYPE {_DURATION} histogram"]
        for (method, tool, outcome), series in sorted(self._series.items()):
            labels = _labels(mcp_method_name=method, gen_ai_tool_name=tool, error_type=outcome)
            below = 0
            for bound, count in zip((*BUCKETS, "+Inf"), series.counts, strict=True):
                below += count
                lines.append(f'{_DURATION}_bucket{{{labels},le="{bound}"}} {below}')
            lines.append(f"{_DURATION}_sum{{{labels}}} {series.total:.9g}")
            lines.append(f"{_DURATION}_count{{{labels}}} {series.number}")
        for name, value in {"mcp_server_in_flight": self.in_flight, **gauges}.items():
            kind = "counter" if name.endswith("_total") else "gauge"
            lines += [f"# TYPE {name} {kind}", f"{name} {value:.15g}"]
        return "\n".join(lines) + "\n"


def _labels(**labels: str) -> str:
    return ",".join(
        f'{name}="{_escaped(value)}"' for name, value in labels.items() if value or name == "mcp_method_name"
    )


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
