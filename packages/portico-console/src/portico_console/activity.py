"""Console tools for calls, sessions and workers."""

from __future__ import annotations

import os
import re
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict

from portico.rpc.metrics import DURATION_BUCKETS_SECONDS, quantile
from portico.server.components.results import ToolResult
from portico.server.registry.service import Service, tool
from portico.transports.http_server.application import HttpApplication
from portico.transports.http_server.session import HttpSession
from portico.transports.http_server.session_snapshot import SessionSnapshot
from portico_console.live_updates import UpdateTopic
from portico_console.tool_responses import structured_response

SAMPLE_SECONDS = 1.0
KEPT_SECONDS = 300

Series = dict[tuple[str, str, str], list[int]]
"""By method, tool and outcome: how many calls took how long, by BUCKETS."""

_BUCKET = re.compile(r'mcp_server_operation_duration_seconds_bucket\{(.*),le="([^"]+)"\} ([0-9.e+]+)')
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_ENDS = {**{str(bound): at for at, bound in enumerate(DURATION_BUCKETS_SECONDS)}, "+Inf": len(DURATION_BUCKETS_SECONDS)}


class ToolMetrics(Struct):
    """Metrics of one tool, or of a method without a tool: in total and in the last interval."""

    name: str
    method: str
    calls: int
    errors: int
    rate: float
    p50: float | None
    p95: float | None
    p99: float | None


class MetricsSample(Struct):
    at: float
    rate: float
    errors: float
    p50: float | None
    p95: float | None
    p99: float | None


class CallMetrics(Struct):
    at: float
    calls: int
    errors: int
    in_flight: int
    rate: float
    error_rate: float
    p50: float | None
    p95: float | None
    p99: float | None
    tools: list[ToolMetrics]


class MetricsSampler(UpdateTopic):
    """Samples the counters once a second while a page is subscribed, and retains the last minutes."""

    def __init__(self, exchange: HttpApplication) -> None:
        self.history: deque[MetricsSample] = deque(maxlen=KEPT_SECONDS)
        self._exchange = exchange
        self._previous: tuple[float, Series] | None = None
        self._last_metrics: CallMetrics | None = None
        # The metrics of all processes of a server with several workers, as of the last poll.
        self._summed: str | None = None

    def sample(self) -> CallMetrics:
        """Return the current metrics; at most one sample is taken per interval."""
        now = time.time()
        if self._last_metrics is not None and self._previous is not None and now - self._previous[0] < SAMPLE_SECONDS:
            return self._last_metrics
        series, in_flight = self._count()
        since, before = self._previous if self._previous is not None else (now - SAMPLE_SECONDS, series)
        self._last_metrics = numbers = _numbers(now, series, before, max(now - since, 1e-3), in_flight)
        self._previous = now, series
        self.history.append(
            MetricsSample(now, numbers.rate, numbers.error_rate, numbers.p50, numbers.p95, numbers.p99)
        )  # fmt: skip
        return numbers

    def _count(self) -> tuple[Series, int]:
        exchange = self._exchange
        if exchange.cluster is None:
            return exchange.metrics.bucket_counts(), exchange.metrics.in_flight
        exchange.cluster.aggregate_metrics(exchange.render_metrics(), self._ingest)
        text = self._summed or exchange.render_metrics()
        match = re.search(r"^mcp_server_in_flight ([0-9.]+)", text, re.MULTILINE)
        return parse_prometheus(text), int(float(match[1])) if match is not None else 0

    def _ingest(self, text: str) -> None:
        self._summed = text

    # UpdateTopic

    def subscribe(self) -> float:
        return 0.0

    def poll(self, seen: float) -> tuple[Any, float]:
        numbers = self.sample()
        return (None, seen) if numbers.at == seen else (numbers, numbers.at)


def parse_prometheus(text: str) -> Series:
    """Parse the counters from Prometheus text, in which each bucket includes the smaller ones."""
    series: Series = {}
    for labels, bound, value in _BUCKET.findall(text):
        label_values = dict(_LABEL.findall(labels))
        key = (
            label_values.get("mcp_method_name", ""),
            label_values.get("gen_ai_tool_name", ""),
            label_values.get("error_type", ""),
        )
        counts = series.setdefault(key, [0] * (len(DURATION_BUCKETS_SECONDS) + 1))
        counts[_ENDS.get(bound, len(DURATION_BUCKETS_SECONDS))] = int(float(value))
    for counts in series.values():
        for at in range(len(counts) - 1, 0, -1):
            counts[at] -= counts[at - 1]
    return series


def _numbers(now: float, series: Series, before: Series, seconds: float, in_flight: int) -> CallMetrics:
    calls = {key: sum(counts) for key, counts in series.items()}
    # Counters of another or a restarted process may be lower than before.
    new = {key: [max(0, a - b) for a, b in _pairs(counts, before.get(key))] for key, counts in series.items()}
    wrong = sum(number for key, number in calls.items() if key[2])
    fresh_wrong = sum(sum(counts) for key, counts in new.items() if key[2])
    everything = _sum(new.values())
    # Lists and discovery are answered from memory, and would hide how long tools take.
    tool_calls = _sum(counts for key, counts in new.items() if key[0] == "tools/call")
    return CallMetrics(
        at=now,
        calls=sum(calls.values()),
        errors=wrong,
        in_flight=in_flight,
        rate=sum(everything) / seconds,
        error_rate=fresh_wrong / seconds,
        p50=quantile(tool_calls, 0.5),
        p95=quantile(tool_calls, 0.95),
        p99=quantile(tool_calls, 0.99),
        tools=_compute_tool_metrics(calls, new, seconds),
    )


def _compute_tool_metrics(calls: Mapping[Any, int], new: Series, seconds: float) -> list[ToolMetrics]:
    rows = []
    for method, name in dict.fromkeys(key[:2] for key in calls):
        keys = [key for key in calls if key[:2] == (method, name)]
        counts = _sum(new[key] for key in keys)
        errors = sum(calls[key] for key in keys if key[2])
        quantiles = [quantile(counts, part) for part in (0.5, 0.95, 0.99)]
        total = sum(calls[key] for key in keys)
        rows.append(ToolMetrics(name or method, method, total, errors, sum(counts) / seconds, *quantiles))
    return sorted(rows, key=lambda row: -row.calls)


def _pairs(counts: list[int], before: list[int] | None) -> list[tuple[int, int]]:
    return list(zip(counts, before or [0] * len(counts), strict=True))


def _sum(many: Any) -> list[int]:
    total = [0] * (len(DURATION_BUCKETS_SECONDS) + 1)
    for counts in many:
        total = [a + b for a, b in zip(total, counts, strict=True)]
    return total


MAX_LISTED_SESSIONS = 500
# Only a prefix is shown: anyone with a complete session id can use the session.
SESSION_ID_CHARS = 8
READ_ONLY = {"readOnlyHint": True}


class ActivityService(Service):
    """Tools for the activity of an HTTP server."""

    name = "happening"

    def __init__(self, exchange: HttpApplication) -> None:
        super().__init__()
        self._exchange = exchange
        self.sampler = MetricsSampler(exchange)

    @tool(annotations=READ_ONLY)
    async def metrics(self) -> ToolResult:
        """Return call rate, latency quantiles and error rate, now and in the last minutes."""
        numbers = self.sampler.sample()
        return structured_response({**asdict(numbers), "history": list(self.sampler.history)})

    @tool(annotations=READ_ONLY)
    async def sessions(self) -> ToolResult:
        """List the sessions of clients with an initialize handshake."""
        return structured_response(self.snapshot_sessions())

    def snapshot_sessions(self) -> dict[str, Any]:
        """Return the sessions of this worker and of the others, up to a limit."""
        results: list[dict[str, Any]] = []
        total = 0
        for path, endpoint in self._exchange.endpoints.items():
            total += len(endpoint)
            results += [
                _describe_local_session(path, session)
                for session in endpoint.sessions.values()[: MAX_LISTED_SESSIONS - len(results)]
            ]
        if self._exchange.cluster is not None:
            others = self._exchange.cluster.remote_sessions()
            total += others.total
            results += [
                _describe_remote_session(*session) for session in others.sample[: MAX_LISTED_SESSIONS - len(results)]
            ]
        return {"sessions": results, "total": total}

    @tool(annotations=READ_ONLY)
    async def workers(self) -> ToolResult:
        """List the worker processes of this server."""
        own = {
            "id": "this one",
            "pid": os.getpid(),
            "state": "draining" if self._exchange.draining else "serving",
            "sessions": sum(map(len, self._exchange.endpoints.values())),
            "in_flight": self._exchange.metrics.in_flight,
            "calls": sum(sum(counts) for counts in self._exchange.metrics.bucket_counts().values()),
        }
        others = [] if self._exchange.cluster is None else await self._exchange.cluster.describe_workers()
        return structured_response({"workers": [own, *others]})


def _describe_local_session(path: str, item: HttpSession) -> dict[str, Any]:
    facts, principal = item.session.export_state, item.principal
    return {
        "id": item.id[:SESSION_ID_CHARS],
        "revision": item.channel.protocol_version,
        "client": None if facts is None else facts.client,
        "principal": getattr(principal, "id", None),
        "address": item.address,
        "endpoint": path,
        # Rounded to 5 seconds, so that the page is notified only of real changes.
        "idle": int(time.monotonic() - item.last_used) // 5 * 5,
        "listens": item.has_get_stream,
    }


def _describe_remote_session(id: str, path: str, memo: SessionSnapshot, used_at: float) -> dict[str, Any]:
    """Describe a session of another process from its stored snapshot."""
    return {
        "id": id[:SESSION_ID_CHARS],
        "revision": memo.facts.protocol_version,
        "client": memo.facts.client,
        "principal": getattr(memo.principal, "id", None),
        "address": memo.address,
        "endpoint": path,
        "idle": int(time.time() - used_at) // 5 * 5,
        "listens": memo.listened,
    }
