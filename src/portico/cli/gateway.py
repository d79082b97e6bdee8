"""`portico gateway check`"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from portico.cli.forms import parser_for
from portico.cli.logs import set_log_level
from portico.cli.printer import plain_table
from portico.gateway.gateway import Gateway
from portico.transport.loops import new_loop


def run(words: list[str]) -> int:
    arguments = parser_for("gateway").parse_args(words)
    set_log_level("error")
    gateway = Gateway.load(arguments.file)
    with asyncio.Runner(loop_factory=new_loop) as runner:
        rows, problems = runner.run(_check(gateway, arguments.timeout))
    sys.stdout.write(plain_table(("UPSTREAM", "REVISION", "TOOLS", "PROMPTS", "RESOURCES", "STATE"), rows))
    if gateway.views:
        shown = [(name, view.settings.path, *map(str, gateway.counts(view))) for name, view in gateway.views.items()]
        sys.stdout.write("\n" + plain_table(("VIEW", "PATH", "TOOLS", "PROMPTS", "RESOURCES"), shown))
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


async def _check(gateway: Gateway, seconds: float) -> tuple[list[tuple[str, ...]], list[str]]:
    """A row for each upstream, and what is wrong."""
    async with gateway.lifespan():
        await gateway.settle(seconds)
        states = gateway.status()
        clashes = gateway.clashes
    problems = [
        f"{state['alias']}: {state['error'] or 'it has not answered'}" for state in states if not _is_well(state)
    ]
    return [_row(state) for state in states], [*problems, *clashes]


def _is_well(state: dict[str, Any]) -> bool:
    return bool(state["up"] and state["listed"])


def _row(state: dict[str, Any]) -> tuple[str, ...]:
    numbers = [str(state[name]) if state["listed"] else "" for name in ("tools", "prompts", "resources")]
    return (state["alias"], state["revision"] or "", *numbers, "ok" if _is_well(state) else "not reached")
