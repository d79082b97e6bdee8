"""How a gateway is: a page for its operator, lines for probes, and metrics by upstream."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

from portico.protocol import jsonrpc
from portico.rpc.metrics import histogram, label
from portico.transports.http_server.custom_routes import PageRoute
from portico.transports.http_server.messages import JSON, Answer, Request

PATH = "/gateway/status"

UpstreamState = Literal["ok", "away", "not configured", "not tried"]
"""What one process, or all workers together, know of an upstream. "not tried": nothing was sent to it yet."""

# Of the states that workers report of one upstream, the first of these is that of all.
_WORST_FIRST: tuple[UpstreamState, ...] = ("not configured", "away", "ok", "not tried")
_SUMMED = ("refused_callers", "connections", "in_flight", "calls", "errors")
_LARGEST = ("retry_after", "tools", "prompts", "resources", "listed")

_DURATION = "mcp_client_operation_duration_seconds"
# By the member of an upstream's status that says it.
_GAUGES = {
    "portico_upstream_up": "up",
    "portico_upstream_retry_after_seconds": "retry_after",
    "portico_upstream_connections": "connections",
    "portico_upstream_in_flight": "in_flight",
    "portico_upstream_tools": "tools",
}


def page(look: Callable[[], Mapping[str, Any]]) -> PageRoute:
    """The page that says everything. It is for the operator alone: who shows a token that may do that."""

    async def show(request: Request) -> Answer:
        principal = request.principal
        if principal is None or principal.lacks({"operator"}):
            wrong = {"error": "this page needs the operator's token"}
            return Answer(403, JSON, jsonrpc.encode(wrong))
        return Answer(200, (*JSON, (b"cache-control", b"no-store")), jsonrpc.encode(look()))

    return PageRoute("GET", PATH, show, guarded=True, merge=_merge_bodies)


def _merge_bodies(bodies: Sequence[bytes]) -> bytes:
    return jsonrpc.encode(merge_reports([json.loads(body) for body in bodies]))


def merge_reports(reports: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the reports of several workers as one; the first is that of the worker that answers."""
    own = reports[0]
    return {
        **own,
        "workers": len(reports),
        "upstreams": [
            _merge_upstream([one for report in reports for one in report["upstreams"] if one["alias"] == alias])
            for alias in _unique(one["alias"] for report in reports for one in report["upstreams"])
        ],
        **{name: _unique(one for report in reports for one in report[name]) for name in ("clashes", "held", "changed")},
        "parked": sum(report["parked"] for report in reports),
        "configuration": next(
            (one for report in reports if (one := report["configuration"]) and one["not_applied_since"] is not None),
            own["configuration"],
        ),
        "tasks": [*own["tasks"], *(one for report in reports[1:] for one in report["tasks"] if one["failed_at"])],
    }


def _merge_upstream(states: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the state of an upstream over all workers: the worst of those that have tried it, and what they counted
    together."""
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
    found: list[Any] = []
    for value in values:
        if value not in found:
            found.append(value)
    return found


def readiness(states: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return a line for each upstream, without details that are for its operator alone."""
    return {state["alias"]: _trouble(state) for state in states}


def _trouble(state: Mapping[str, Any]) -> str:
    if state["state"] == "ok":
        return ""
    if state["state"] != "away":
        return str(state["state"] if state["state"] == "not configured" else "not tried yet")
    since = time.strftime("%H:%M:%S", time.localtime(state["since"]))
    return f"does not answer since {since}, next try in {max(1, round(state['retry_after']))} s"


def measures(states: Sequence[Mapping[str, Any]], tallies: Mapping[str, Any], counts: Mapping[str, int]) -> list[str]:
    """In the text format of Prometheus."""
    lines = [f"# TYPE {_DURATION} histogram"]
    for alias, tally in tallies.items():
        lines += histogram(_DURATION, label("upstream", alias), tally.counts, tally.seconds)
    lines.append("# TYPE portico_upstream_errors_total counter")
    lines += [
        f"portico_upstream_errors_total{{{label('upstream', alias)}}} {one.errors}" for alias, one in tallies.items()
    ]
    for name, member in _GAUGES.items():
        lines.append(f"# TYPE {name} gauge")
        # Of an upstream that was not tried it is not known whether it is up: the workers that know decide.
        shown = [one for one in states if member != "up" or one["state"] != "not tried"]
        lines += [f"{name}{{{label('upstream', one['alias'])}}} {float(one[member]):.15g}" for one in shown]
    for name, value in counts.items():
        lines += [f"# TYPE {name} {'counter' if name.endswith('_total') else 'gauge'}", f"{name} {value}"]
    return lines
