"""The worker and planner of the examples, and their page."""

from __future__ import annotations

import asyncio
import importlib.util
import re
from typing import Any

from portico import Client
from portico_services.cli.specs import ITEM_ACTIONS
from portico_services.workitems import cycles, dependencies, edits, ids, listing, validation
from portico_services.workitems.service import TOOLS
from portico_services.workitems.states import TRANSITIONS
from support.paths import ROOT

PAGE = (ROOT / "docs" / "reference" / "work-items.md").read_text()


def load(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


async def test_workers_share_the_work() -> None:
    server, work = load("tasks_planner").server, load("tasks_worker").work
    async with server.lifespan(), Client(server) as client:
        made = [
            (await client.call_tool("create_task", {"description": f"number {n}"})).structured["id"] for n in range(20)
        ]
        async with asyncio.timeout(30):
            done = await asyncio.gather(*(work(server, name) for name in ("ann", "ben", "cleo")))
        assert sorted(id for item in done for id in item) == sorted(made)


def test_every_tool_and_action_is_on_the_page() -> None:
    for tool in TOOLS:
        assert f"`{tool.name}" in PAGE, tool.name
    for action in ITEM_ACTIONS:
        assert re.search(rf"`(portico items )?{action}\b", PAGE), action


def test_table_of_transitions_is_that_of_the_code() -> None:
    for before, after in TRANSITIONS.items():
        assert f"| {before} | {', '.join(after)} |" in PAGE


def test_documented_limits_match_the_code() -> None:
    for number in (
        validation.MAX_DESCRIPTION_CHARS,
        validation.MAX_TEXT_CHARS,
        dependencies.MAX_BLOCKERS,
        dependencies.MAX_DEPTH,
        listing.MAX_PAGE_ITEMS,
        edits.MAX_DELETED_ITEMS,
        cycles.MAX_VISITED_NODES,
    ):
        assert f" {number:,} " in PAGE, number
    assert f"{ids.ID_LENGTH} characters" in PAGE
