"""`portico gateway check` and `portico gateway status`."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shlex
import sys
import time
from typing import Any
from urllib.parse import urlsplit

from portico.auth.url_policy import is_loopback_name
from portico.cli import local_token, tool_search
from portico.cli.logging import configure_logging
from portico.cli.output import Printer, format_plain_table
from portico.cli.serve import OPERATOR_SERVICE
from portico.cli.specs import parser_for
from portico.cli.terminal_text import to_single_line
from portico.protocol.errors import ConnectError, UsageError
from portico.transports.event_loop import new_event_loop
from portico.transports.http_client.simple_request import http_request
from portico.transports.short_urls import with_scheme
from portico_gateway.gateway.gateway import Gateway
from portico_gateway.gateway.status import STATUS_PATH
from portico_gateway.plugin import load_gateway
from portico_gateway.policy.engine import PolicyEngine

DEFAULT_URL = "http://127.0.0.1:8080"
MAX_STATUS_BYTES = 16 * 1024 * 1024


def run(words: list[str]) -> int:
    arguments = parser_for("gateway").parse(words)
    configure_logging("error")
    return _check(arguments) if arguments.action == "check" else _status(arguments)


# Check


def _check(arguments: argparse.Namespace) -> int:
    if arguments.file is None:
        raise UsageError("FILE is required: a gateway.toml or an mcp.json")
    gateway = load_gateway(arguments.file, audited=False)
    # A check must not record new pins.
    gateway.pins.is_recording = False
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        rows, problems = runner.run(_check_upstreams(gateway, arguments.timeout))
    printer = Printer(arguments.format)
    if printer.is_json:
        headings = ("upstream", "protocol_version", "tools", "prompts", "resources", "state")
        upstreams = [dict(zip(headings, row, strict=True)) for row in rows]
        printer.print_json({"ok": not problems, "upstreams": upstreams, "problems": problems})
        printer.flush()
        return 1 if problems else 0
    sys.stdout.write(format_plain_table(("UPSTREAM", "VERSION", "TOOLS", "PROMPTS", "RESOURCES", "STATE"), rows))
    if gateway.views:
        table_rows = [
            (name, view.settings.path, *map(str, gateway.count_components(view)))
            for name, view in gateway.views.items()
        ]
        sys.stdout.write("\n" + format_plain_table(("VIEW", "PATH", "TOOLS", "PROMPTS", "RESOURCES"), table_rows))
    for problem in problems:
        print(to_single_line(problem), file=sys.stderr)
    return 1 if problems else 0


async def _check_upstreams(gateway: Gateway, seconds: float) -> tuple[list[tuple[str, ...]], list[str]]:
    """Return a table row for each upstream, and the list of problems."""
    async with gateway.lifespan():
        await gateway.wait_until_listed(seconds)
        report = gateway.status_report()
        idle = _idle_rules(gateway)
    states = report["upstreams"]
    problems = [f"{state['alias']}: {state['error'] or 'no response'}" for state in states if not _is_well(state)]
    blocked = [
        f"{item['upstream']}.{to_single_line(item['name'])} is blocked: {item['why']}" for item in report["held"]
    ]
    return [_row(state) for state in states], [*problems, *report["clashes"], *blocked, *idle]


def _idle_rules(gateway: Gateway) -> list[str]:
    """Return a message for each rule that matches no component."""
    guard = None if gateway.policy is None else gateway.policy.access_policy
    if not isinstance(guard, PolicyEngine):
        return []
    return [
        f"{name} matches no tool, prompt or resource"
        for name in guard.unused_rules([*gateway.iter_components(), *tool_search.POLICY_TOOLS])
    ]


def _is_well(state: dict[str, Any]) -> bool:
    return bool(state["up"] and state["listed"])


def _row(state: dict[str, Any]) -> tuple[str, ...]:
    numbers = [str(state[name]) if state["listed"] else "" for name in ("tools", "prompts", "resources")]
    return (state["alias"], state["revision"] or "", *numbers, "ok" if _is_well(state) else "unreachable")


# Status


def _status(arguments: argparse.Namespace) -> int:
    url = with_scheme((arguments.file or DEFAULT_URL).rstrip("/"))
    # `check` takes a file and `status` takes a URL; without this a file name is resolved as a host name.
    if "://" not in url and (url.endswith((".toml", ".json")) or os.path.isfile(url)):
        raise UsageError(
            f"expected the URL of a running gateway, such as {DEFAULT_URL}, got the file {url!r};"
            f" to check a file, run `portico gateway check {shlex.quote(url)}`"
        )
    parts = urlsplit(url if "://" in url else f"http://{url}")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"expected the URL of a running gateway, such as {DEFAULT_URL}, got {url!r}")
    address = f"{parts.scheme}://{parts.netloc}{STATUS_PATH}"
    token = arguments.token or _find_token(address, arguments.data)
    headers = [("Authorization", f"Bearer {token}")] if token else []
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        answer = runner.run(
            http_request(
                "GET", address, headers=headers, timeout=arguments.timeout, max_response_bytes=MAX_STATUS_BYTES
            )
        )
    if answer.status in (401, 403):
        raise UsageError(f"{address} requires an operator token: pass --token or set PORTICO_OPERATOR_TOKEN")
    try:
        report = json.loads(answer.body) if answer.status == 200 else None
    except ValueError:
        report = None
    if not isinstance(report, dict) or "upstreams" not in report:
        raise ConnectError(f"{address} is not a gateway: HTTP status {answer.status}")
    printer = Printer(arguments.format)
    if printer.is_json:
        printer.print_json(report)
        printer.flush()
    else:
        sys.stdout.write(_format_report(report))
    return 0 if _is_healthy(report) else 1


def _find_token(url: str, data: str | None) -> str | None:
    """Return the operator token from the environment, or the one that this user's `portico serve` stored."""
    token = os.environ.get("PORTICO_OPERATOR_TOKEN")
    # The stored token is sent to loopback addresses only.
    if token or not is_loopback_name(urlsplit(url).hostname or ""):
        return token
    stored = local_token.token_for_url(url, data, OPERATOR_SERVICE) or local_token.token_for_url(url, data)
    return stored or os.environ.get("PORTICO_TOKEN")


def _format_report(report: dict[str, Any]) -> str:
    rows = [_state_row(item) for item in report["upstreams"]]
    headings = ("UPSTREAM", "PROTOCOL", "TOOLS", "CONNS", "ACTIVE", "CALLS", "ERRORS", "PINS", "STATE")
    lines = [format_plain_table(headings, rows)]
    for item in report["upstreams"]:
        # The stderr of a working server, such as npm warnings, is shown in --format json only.
        details = (
            []
            if _is_upstream_healthy(item)
            else [_describe_outage(item), item["error"].partition("\n")[0], *item["stderr"]]
        )
        lines += [f"{item['alias']}: {to_single_line(line)}\n" for line in details if line]
    lines += _trouble_lines(report)
    lines += [f"clash: {to_single_line(clash)}\n" for clash in report["clashes"]]
    lines += [f"blocked: {item['upstream']}.{to_single_line(item['name'])}: {item['why']}\n" for item in report["held"]]
    lines += [f"changed: {to_single_line(name)}\n" for name in report["changed"]]
    lines += [f"view {name}: {item['path']}, {item['tools']} tools\n" for name, item in report["views"].items()]
    return "".join(lines)


def _trouble_lines(report: dict[str, Any]) -> list[str]:
    """Return lines about a configuration that is not applied and about failed background tasks."""
    lines = []
    configuration = report.get("configuration")
    if configuration is not None and configuration["not_applied_since"] is not None:
        since = _clock_time(configuration["not_applied_since"])
        lines.append(f"configuration: not applied since {since}: {to_single_line(configuration['problem'])}\n")
    for task in report.get("tasks", ()):
        if task["failed_at"] is not None:
            last = f"last at {_clock_time(task['failed_at'])}: {to_single_line(task['error'])}"
            lines.append(f"task {to_single_line(task['name'])}: {task['state']}, {task['restarts']} restarts, {last}\n")
    return lines


def _clock_time(seconds: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(seconds))


def _is_healthy(report: dict[str, Any]) -> bool:
    """Return whether the configuration is applied, and all upstreams and background tasks work."""
    configuration = report.get("configuration")
    applied = configuration is None or configuration["not_applied_since"] is None
    return (
        applied
        and all(map(_is_upstream_healthy, report["upstreams"]))
        and not any(task["backing_off"] for task in report.get("tasks", ()))
    )


def _is_upstream_healthy(item: dict[str, Any]) -> bool:
    """Return whether an upstream has no known problem."""
    return item["state"] in ("ok", "not tried")


def _state_row(item: dict[str, Any]) -> tuple[str, ...]:
    # The times of an outage are on a separate line, because the table is to fit into 80 columns.
    state = {"away": "unavailable", "not tried": "not tried yet"}.get(item["state"], item["state"])
    tools = f"{item['tools']} cached" if item["lists_from"] == "store" else str(item["tools"])
    numbers = (str(item[name]) for name in ("connections", "in_flight", "calls", "errors"))
    return item["alias"], item["revision"] or "", tools, *numbers, item["pinning"], state


def _describe_outage(item: dict[str, Any]) -> str:
    """Return since when an upstream is unavailable and when it is tried again, or "" if it was not tried."""
    if item["state"] != "away":
        return ""
    return f"unavailable since {_clock_time(item['since'])}, next attempt in {item['retry_after']:.0f} s"
