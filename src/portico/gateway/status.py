"""How a gateway is: a page for its operator, lines for probes, and metrics by upstream."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from portico.rpc.metrics import histogram, label
from portico.transport.http.pages import PageRoute
from portico.transport.http.response import JSON, Answer, Request
from portico.wire import jsonrpc

PATH = "/gateway/status"

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

    return PageRoute("GET", PATH, show, guarded=True)


def readiness(states: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """A line for each upstream, without what only its operator is to know."""
    return {state["alias"]: _trouble(state) for state in states}


def _trouble(state: Mapping[str, Any]) -> str:
    if state["up"]:
        return ""
    if state["since"] is None:
        return "not configured"
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
        lines += [f"{name}{{{label('upstream', one['alias'])}}} {float(one[member]):.15g}" for one in states]
    for name, value in counts.items():
        lines += [f"# TYPE {name} {'counter' if name.endswith('_total') else 'gauge'}", f"{name} {value}"]
    return lines
