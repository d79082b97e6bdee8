"""Memories, work items and contracts in the page: browsing and editing."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect


@pytest.fixture
def kept(visit: Callable[..., Any], services: Any) -> Iterator[Any]:
    seen = visit(services)
    yield seen
    assert not seen.wrong, seen.wrong


def test_memory_is_captured_found_changed_and_deleted(kept: Any) -> None:
    page = kept.page
    page.get_by_role("link", name="Memory", exact=True).click()
    for text, tags in (("The audit tables live in PostgreSQL", "db, audit"), ("Deploys happen on Fridays", "deploy")):
        page.get_by_role("button", name="New memory").click()
        page.get_by_label("Content").fill(text)
        page.get_by_label("Tags (comma-separated)").fill(tags)
        page.get_by_role("button", name="Save memory").click()
        expect(page.locator(".memory", has_text=text)).to_be_visible()
    expect(page.get_by_text("2 memories")).to_be_visible()
    page.get_by_label("Search memories").fill("audit tables")
    expect(page.locator(".memory")).to_have_count(1)
    expect(page.locator(".memory")).to_contain_text("strong: audit, tables")
    # The text itself opens a memory.
    expect(page.locator(".memory").get_by_role("button", name="Open")).to_have_count(0)
    page.get_by_label("Search memories").fill("")
    page.get_by_role("button", name="Graph").click()
    page.get_by_role("button", name="The audit tables live in PostgreSQL").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Content").fill("The audit tables live in SQLite")
    dialog.get_by_role("button", name="Save changes").click()
    page.get_by_role("button", name="Timeline").click()
    page.locator(".memory", has_text="SQLite").get_by_role("button", name="The audit tables live in SQLite").click()
    dialog.get_by_role("button", name="History").click()
    expect(dialog).to_contain_text("previous: The audit tables live in PostgreSQL")
    dialog.get_by_role("button", name="Delete").click()
    page.get_by_role("dialog", name="Delete this memory").get_by_role("button", name="Delete").click()
    expect(page.locator(".memory", has_text="SQLite")).to_have_count(0)


SERVICES = [
    "Postgres",
    "nginx",
    "Redis",
    "Grafana",
    "Kafka",
    "Vault",
    "Consul",
    "Loki",
    "Tempo",
    "Mimir",
    "MinIO",
    "Gitea",
    "Harbor",
    "Jenkins",
]
CAPTURE = """
import asyncio, os, sys
from portico import Client

async def main():
    async with Client(sys.argv[1], auth=os.environ.get("PORTICO_TOKEN")) as client:
        for text in sys.argv[2:]:
            arguments = {"content": text, "namespace": "config", "tags": ["ports", "services"], "on_duplicate": "keep"}
            await client.call_tool("memory_capture", arguments)

asyncio.run(main())
"""


def test_labels_of_the_graph_do_not_overlap(kept: Any) -> None:
    page = kept.page
    texts = [f"{name} listens on port {port}" for port, name in enumerate(SERVICES, 8080)]
    kept.console.python("-c", CAPTURE, f"{kept.console.origin}/mcp", *texts)
    page.get_by_role("link", name="Tools", exact=True).click()
    page.get_by_role("link", name="Memory", exact=True).click()
    for text in texts:
        expect(page.locator(".memory", has_text=text)).to_be_visible()
    for width in (1280, 360):
        page.set_viewport_size({"width": width, "height": 800})
        page.get_by_role("button", name="Timeline").click()
        page.get_by_role("button", name="Graph").click()
        expect(page.locator(".graph text", has_text="#services")).to_be_visible()
        visible = "all => all.filter(one => getComputedStyle(one).visibility === 'visible').map(one => one.getBoundingClientRect().toJSON())"
        boxes = page.locator(".graph text").evaluate_all(visible)
        assert len(boxes) >= 5 and min(box["height"] for box in boxes) >= 11
        for index, a in enumerate(boxes):
            for b in boxes[index + 1 :]:
                apart = (
                    a["right"] <= b["left"]
                    or b["right"] <= a["left"]
                    or a["bottom"] <= b["top"]
                    or b["bottom"] <= a["top"]
                )
                assert apart, (width, a, b)
        circles = page.locator(".graph circle").evaluate_all(
            "all => all.map(one => one.getBoundingClientRect().toJSON())"
        )
        for label in boxes:
            for circle in circles:
                x, y = (circle["left"] + circle["right"]) / 2, (circle["top"] + circle["bottom"]) / 2
                assert not (label["left"] < x < label["right"] and label["top"] < y < label["bottom"]), (width, label)
    for text in texts:
        expect(page.get_by_role("button", name=text)).to_be_attached()
    # The page is shared with the following tests.
    page.set_viewport_size({"width": 1280, "height": 800})


def test_work_items_move_over_the_board_by_hand_and_by_key(kept: Any) -> None:
    page = kept.page
    page.get_by_role("link", name="Work items").click()
    for text in ("Write the page", "Draw the board"):
        page.get_by_role("button", name="New item").click()
        page.get_by_label("Description").fill(text)
        page.get_by_role("button", name="Create item").click()
        expect(page.get_by_role("button", name=text)).to_be_visible()
    expect(page.get_by_role("button", name="Write the page")).to_contain_text("P3")
    page.get_by_role("link", name="Traffic").click()
    exchanges = page.locator("details.trip")
    expect(exchanges.filter(has_text="tools/list").first).to_be_visible()
    expect(exchanges.filter(has_text="create_task")).to_have_count(0)
    # Also after the page was loaded again.
    page.reload()
    expect(exchanges.filter(has_text="tools/list").first).to_be_visible()
    expect(exchanges.filter(has_text="create_task")).to_have_count(0)
    page.get_by_label("requests of views").check()
    expect(exchanges.filter(has_text="create_task").first).to_be_visible()
    page.get_by_role("link", name="Work items").click()
    page.get_by_role("button", name="Write the page").drag_to(page.get_by_role("region", name="In progress"))
    expect(page.get_by_role("region", name="In progress")).to_contain_text("Write the page")
    page.get_by_role("button", name="Draw the board").focus()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("region", name="In progress")).to_contain_text("Draw the board")
    expect(page.get_by_role("button", name="Draw the board")).to_be_focused()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("region", name="Done")).to_contain_text("Draw the board")
    page.get_by_role("button", name="Tree").click()
    expect(page.get_by_role("list", name="Work items")).to_contain_text("Write the page")


def test_contracts_are_measured_linted_and_compared(kept: Any, tmp_path: Path) -> None:
    page = kept.page
    page.get_by_role("link", name="Contracts").click()
    expect(page.get_by_text("tokens for all tool definitions")).to_be_visible()
    page.get_by_role("button", name="Lint all tools").click()
    expect(page.get_by_text("tools checked")).to_be_visible()
    lock = tmp_path / "contracts.lock"
    kept.console.portico("contracts", "lock", f"{kept.console.origin}/mcp", "--lock-file", str(lock))
    page.get_by_label("Lock file").set_input_files(lock)
    expect(page.get_by_text("none", exact=True).first).to_be_visible()
    lock.write_text(
        lock.read_text(encoding="utf-8").replace('"expected_version"', '"expected_edition"'), encoding="utf-8"
    )
    page.get_by_label("Lock file").set_input_files(lock)
    expect(page.get_by_text("the lock file was edited by hand")).to_be_visible()
    before = {"type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"]}
    earlier = tmp_path / "earlier.json"
    earlier.write_text(json.dumps([{"name": "memory_get", "description": "One memory.", "inputSchema": before}]))
    page.get_by_label("Lock file").set_input_files(earlier)
    expect(page.get_by_text("breaking", exact=True).first).to_be_visible()


def test_memory_work_and_contract_views_have_no_axe_violations(kept: Any) -> None:
    broken = []
    for view in ("memory", "memory/graph", "work", "contracts"):
        kept.page.evaluate("view => { location.hash = `#/self/${view}` }", view)
        expect(kept.page.locator("#main h1").first).to_be_visible()
        expect(kept.page.locator("#main .card, #main .board, #main .empty, #main .graph").first).to_be_visible()
        broken += kept.violations()
    assert not broken, "\n".join(broken)


def test_labels_of_the_dialog_are_above_their_fields(kept: Any) -> None:
    page = kept.page
    page.get_by_role("link", name="Memory", exact=True).click()
    page.get_by_role("button", name="New memory").click()
    for name in ("Content", "Namespace", "Tags (comma-separated)"):
        label = page.get_by_role("dialog").get_by_text(name, exact=True).bounding_box()
        field = page.get_by_role("dialog").get_by_label(name).bounding_box()
        assert label and field and label["y"] + label["height"] <= field["y"] and label["x"] == field["x"]
    # The page is shared with the following tests.
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)


def test_column_heads_are_aligned_with_their_cells(kept: Any) -> None:
    page = kept.page
    page.get_by_role("link", name="Contracts").click()
    page.get_by_role("columnheader").first.wait_for()
    aligned = "cells => cells.map(cell => getComputedStyle(cell).textAlign)"
    assert page.locator("thead th").evaluate_all(aligned) == page.locator("tbody tr:first-child td").evaluate_all(
        aligned
    )
