"""Status of a gateway: an operator endpoint, readiness lines and metrics per upstream."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

from portico.protocol import jsonrpc
from portico.rpc.metrics import format_histogram, format_label
from portico.transports.http_server.custom_routes import CustomRoute
from portico.transports.http_server.messages import JSON_HEADERS, HttpRequest, HttpResponse

STATUS_PATH = "/gateway/status"

UpstreamState = Literal["ok", "away", "not configured", "not tried"]
'State of an upstream in one process or over all workers. "not tried" means that no request was sent yet.'

# If workers report different states, the first of these applies.
# A problem in one worker must be visible in the merged report; "not tried" is the least informative state.
_WORST_FIRST: tuple[UpstreamState, ...] = ("not configured", "away", "ok", "not tried")
_SUMMED = ("refused_callers", "connections", "in_flight", "calls", "errors")
_LARGEST = ("retry_after", "tools", "prompts", "resources", "listed")

_DURATION = "mcp_client_operation_duration_seconds"
# Gauge → member of an upstream's status.
_GAUGES = {
    "portico_upstream_up": "up",
    "portico_upstream_retry_after_seconds": "retry_after",
    "portico_upstream_connections": "connections",
    "portico_upstream_requests_in_flight": "in_flight",
    "portico_upstream_tools": "tools",
}


def status_route(get_report: Callable[[], Mapping[str, Any]]) -> CustomRoute:
    """Return the route of the status report. It requires a token with the `operator` scope."""

    async def show(request: HttpRequest) -> HttpResponse:
        principal = request.principal
        # The report contains addresses, errors and stderr lines of upstreams, so an ordinary token is not enough.
        if principal is None or principal.missing_scopes({"operator"}):
            wrong = {"error": "this endpoint requires the operator token"}
            return HttpResponse(403, JSON_HEADERS, jsonrpc.encode(wrong))
        return HttpResponse(200, (*JSON_HEADERS, (b"cache-control", b"no-store")), jsonrpc.encode(get_report()))

    return CustomRoute("GET", STATUS_PATH, show, guarded=True, merge=_merge_bodies)


def _merge_bodies(bodies: Sequence[bytes]) -> bytes:
    return jsonrpc.encode(merge_reports([json.loads(body) for body in bodies]))


def merge_reports(reports: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Merge the reports of several workers; the first is that of the worker that answers."""
    own = reports[0]
    return {
        **own,
        "workers": len(reports),
        "upstreams": [
            _merge_upstream([item for report in reports for item in report["upstreams"] if item["alias"] == alias])
            for alias in _unique(item["alias"] for report in reports for item in report["upstreams"])
        ],
        **{
            name: _unique(item for report in reports for item in report[name])
            for name in ("clashes", "held", "changed")
        },
        "parked": sum(report["parked"] for report in reports),
        "configuration": next(
            (item for report in reports if (item := report["configuration"]) and item["not_applied_since"] is not None),
            own["configuration"],
        ),
        "tasks": [*own["tasks"], *(item for report in reports[1:] for item in report["tasks"] if item["failed_at"])],
    }


def _merge_upstream(states: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the state of an upstream over all workers: the worst state, with counters added up."""
    worst = min(states, key=lambda state: _WORST_FIRST.index(state["state"]))
    since = [state["since"] for state in states if state["since"] is not None]
    return {
        **worst,
        **{name: sum(state[name] for state in states) for name in _SUMMED},
        **{name: max(state[name] for state in states) for name in _LARGEST},
        "since": min(since, default=None),
        "error": worst["error"] or next((state["error"] for state in states if state["error"]), ""),
        **{name: next((state[name] for state in states if state[name]), None) for name in ("revision", "lists_from")},
    }


def _unique(values: Iterable[Any]) -> list[Any]:
    results: list[Any] = []
    for value in values:
        if value not in results:
            results.append(value)
    return results


def readiness(states: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return a line for each upstream, without details that only the operator may see."""
    return {state["alias"]: _describe_problem(state) for state in states}


def _describe_problem(state: Mapping[str, Any]) -> str:
    if state["state"] == "ok":
        return ""
    if state["state"] != "away":
        return str(state["state"] if state["state"] == "not configured" else "not tried yet")
    since = time.strftime("%H:%M:%S", time.localtime(state["since"]))
    return f"unavailable since {since}, next attempt in {max(1, round(state['retry_after']))} s"


def render_metrics(
    states: Sequence[Mapping[str, Any]], call_stats: Mapping[str, Any], counts: Mapping[str, int]
) -> list[str]:
    """Return the metrics in the Prometheus text format."""
    lines = [f"# TYPE {_DURATION} histogram"]
    for alias, tally in call_stats.items():
        lines += format_histogram(_DURATION, format_label("upstream", alias), tally.counts, tally.seconds)
    lines.append("# TYPE portico_upstream_errors_total counter")
    lines += [
        f"portico_upstream_errors_total{{{format_label('upstream', alias)}}} {state.errors}"
        for alias, state in call_stats.items()
    ]
    for name, member in _GAUGES.items():
        lines.append(f"# TYPE {name} gauge")
        # A gauge of 0 for an upstream that was never called would raise alarms after each restart.
        # The state of an untried upstream is unknown; workers that have tried it report the metric.
        reported = [state for state in states if member != "up" or state["state"] != "not tried"]
        lines += [
            f"{name}{{{format_label('upstream', state['alias'])}}} {float(state[member]):.15g}" for state in reported
        ]
    for name, value in counts.items():
        lines += [f"# TYPE {name} {'counter' if name.endswith('_total') else 'gauge'}", f"{name} {value}"]
    return lines
