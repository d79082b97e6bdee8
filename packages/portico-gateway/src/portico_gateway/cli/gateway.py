"""`portico gateway check` and `portico gateway status`"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from typing import Any
from urllib.parse import urlsplit

from portico.auth.url_policy import names_loopback
from portico.cli import local_token, tool_search
from portico.cli.logging import set_log_level
from portico.cli.output import plain_table
from portico.cli.serve import OPERATOR
from portico.cli.specs import parser_for
from portico.cli.terminal_text import one_line
from portico.protocol.errors import ConnectFailed, UsageError
from portico.transports.event_loop import new_loop
from portico.transports.http_client.simple_request import http_exchange
from portico_gateway.gateway.gateway import Gateway
from portico_gateway.gateway.status import PATH
from portico_gateway.policy.engine import AccessRules

HERE = "http://127.0.0.1:8080"
LONGEST_STATUS = 16 * 1024 * 1024


def run(words: list[str]) -> int:
    arguments = parser_for("gateway").read(words)
    set_log_level("error")
    return _check(arguments) if arguments.action == "check" else _status(arguments)


# Check


def _check(arguments: argparse.Namespace) -> int:
    if arguments.file is None:
        raise UsageError("a FILE is required: a gateway.toml or an mcp.json")
    gateway = Gateway.load(arguments.file, audited=False)
    # Who only looks pins nothing.
    gateway.pins.recording = False
    with asyncio.Runner(loop_factory=new_loop) as runner:
        rows, problems = runner.run(_checked(gateway, arguments.timeout))
    sys.stdout.write(plain_table(("UPSTREAM", "REVISION", "TOOLS", "PROMPTS", "RESOURCES", "STATE"), rows))
    if gateway.views:
        shown = [(name, view.settings.path, *map(str, gateway.counts(view))) for name, view in gateway.views.items()]
        sys.stdout.write("\n" + plain_table(("VIEW", "PATH", "TOOLS", "PROMPTS", "RESOURCES"), shown))
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


async def _checked(gateway: Gateway, seconds: float) -> tuple[list[tuple[str, ...]], list[str]]:
    """A row for each upstream, and what is wrong."""
    async with gateway.lifespan():
        await gateway.settle(seconds)
        report = gateway.report()
        idle = _idle_rules(gateway)
    states = report["upstreams"]
    problems = [
        f"{state['alias']}: {state['error'] or 'it has not answered'}" for state in states if not _is_well(state)
    ]
    held = [f"{one['upstream']}.{one_line(one['name'])} is held back: {one['why']}" for one in report["held"]]
    return [_row(state) for state in states], [*problems, *report["clashes"], *held, *idle]


def _idle_rules(gateway: Gateway) -> list[str]:
    guard = None if gateway.protection is None else gateway.protection.guard
    if not isinstance(guard, AccessRules):
        return []
    return [f"{name} means nothing that is there" for name in guard.idle([*gateway.everything(), *tool_search.TOOLS])]


def _is_well(state: dict[str, Any]) -> bool:
    return bool(state["up"] and state["listed"])


def _row(state: dict[str, Any]) -> tuple[str, ...]:
    numbers = [str(state[name]) if state["listed"] else "" for name in ("tools", "prompts", "resources")]
    return (state["alias"], state["revision"] or "", *numbers, "ok" if _is_well(state) else "not reached")


# Status


def _status(arguments: argparse.Namespace) -> int:
    url = (arguments.file or HERE).rstrip("/")
    place = urlsplit(url if "://" in url else f"http://{url}")
    if place.scheme not in ("http", "https") or not place.hostname:
        raise UsageError(f"{url!r} is no address of a gateway")
    address = f"{place.scheme}://{place.netloc}{PATH}"
    token = arguments.token or _find_token(address, arguments.data)
    headers = [("Authorization", f"Bearer {token}")] if token else []
    with asyncio.Runner(loop_factory=new_loop) as runner:
        answer = runner.run(
            http_exchange("GET", address, headers=headers, seconds=arguments.timeout, longest=LONGEST_STATUS)
        )
    if answer.status in (401, 403):
        raise UsageError(f"{address} is for the operator: --token, or PORTICO_OPERATOR_TOKEN")
    try:
        report = json.loads(answer.body) if answer.status == 200 else None
    except ValueError:
        report = None
    if not isinstance(report, dict) or "upstreams" not in report:
        raise ConnectFailed(f"{address} is no gateway: it answered with status {answer.status}")
    sys.stdout.write(json.dumps(report, indent=2) + "\n" if arguments.json else _shown(report))
    return 0 if _is_healthy(report) else 1


def _find_token(url: str, data: str | None) -> str | None:
    """Return the operator's token from the environment, or else the one that this user's `portico serve` stored."""
    token = os.environ.get("PORTICO_OPERATOR_TOKEN")
    if token or not names_loopback(urlsplit(url).hostname or ""):
        return token
    stored = local_token.for_url(url, data, OPERATOR) or local_token.for_url(url, data)
    return stored or os.environ.get("PORTICO_TOKEN")


def _shown(report: dict[str, Any]) -> str:
    rows = [_state_row(one) for one in report["upstreams"]]
    headings = ("UPSTREAM", "REVISION", "TOOLS", "LISTS FROM", "LANES", "IN FLIGHT", "CALLS", "ERRORS", "PINS", "STATE")
    lines = [plain_table(headings, rows)]
    for one in report["upstreams"]:
        # The stderr of a server that works, such as npm's warnings, is in --json.
        said = [] if _works(one) else [one["error"].partition("\n")[0], *one["stderr"]]
        lines += [f"{one['alias']}: {one_line(line)}\n" for line in said if line]
    lines += _trouble_lines(report)
    lines += [f"clash: {one_line(clash)}\n" for clash in report["clashes"]]
    lines += [f"held back: {one['upstream']}.{one_line(one['name'])}: {one['why']}\n" for one in report["held"]]
    lines += [f"changed: {one_line(name)}\n" for name in report["changed"]]
    lines += [f"view {name}: {one['path']}, {one['tools']} tools\n" for name, one in report["views"].items()]
    return "".join(lines)


def _trouble_lines(report: dict[str, Any]) -> list[str]:
    """Return lines about a configuration that is not in effect, and about background tasks that have failed."""
    lines = []
    configuration = report.get("configuration")
    if configuration is not None and configuration["not_applied_since"] is not None:
        since = _clock_time(configuration["not_applied_since"])
        lines.append(f"configuration: not applied since {since}: {one_line(configuration['problem'])}\n")
    for task in report.get("tasks", ()):
        if task["failed_at"] is not None:
            last = f"last at {_clock_time(task['failed_at'])}: {one_line(task['error'])}"
            lines.append(f"task {one_line(task['name'])}: {task['state']}, {task['restarts']} restarts, {last}\n")
    return lines


def _clock_time(seconds: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(seconds))


def _is_healthy(report: dict[str, Any]) -> bool:
    configuration = report.get("configuration")
    applied = configuration is None or configuration["not_applied_since"] is None
    return (
        applied
        and all(map(_works, report["upstreams"]))
        and not any(task["backing_off"] for task in report.get("tasks", ()))
    )


def _works(one: dict[str, Any]) -> bool:
    """Return whether nothing is known to be wrong with an upstream."""
    return one["state"] in ("ok", "not tried")


def _state_row(one: dict[str, Any]) -> tuple[str, ...]:
    state = "not tried yet" if one["state"] == "not tried" else one["state"]
    if one["state"] == "away":
        since = _clock_time(one["since"])
        state = f"away since {since}, next try in {one['retry_after']:.0f} s"
    numbers = (str(one[name]) for name in ("connections", "in_flight", "calls", "errors"))
    return (
        one["alias"],
        one["revision"] or "",
        str(one["tools"]),
        one["lists_from"] or "",
        *numbers,
        one["pins"],
        state,
    )
