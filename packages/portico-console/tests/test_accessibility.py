"""Accessibility and appearance: both colour schemes, a narrow screen, the rules of axe."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import expect

from portico import SyncClient

VIEWS = ["tools/trip", "tools/cities", "resources/varied:%2F%2Freadme", "prompts/greet", "wire", "contracts"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_rule_of_axe_is_broken_in_either_scheme(visit: Callable[..., Any], varied: Any, scheme: str) -> None:
    seen = visit(varied, color_scheme=scheme)
    page = seen.page
    seen.go("tools", "cities")
    page.get_by_role("button", name="Run Ctrl ↵").click()
    expect(page.get_by_role("region", name="Run").first.get_by_role("table")).to_be_visible()
    broken = []
    for view in VIEWS:
        page.evaluate("view => { location.hash = `#/self/${view}` }", view)
        expect(page.locator("#main h1").first).to_be_visible()
        broken += [f"{view}: {violation}" for violation in seen.violations()]
    page.keyboard.press("Control+k")
    expect(page.get_by_role("combobox", name="Search or run a command")).to_be_visible()
    broken += [f"palette: {violation}" for violation in seen.violations()]
    page.keyboard.press("Escape")
    assert not broken, "\n".join(broken)
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert ground == {"light": "rgb(247, 246, 243)", "dark": "rgb(20, 21, 24)"}[scheme]


def test_switch_goes_before_the_system(visit: Callable[..., Any], varied: Any) -> None:
    page = visit(varied, color_scheme="light").page
    page.get_by_role("button", name="Theme: system").click()
    page.get_by_role("button", name="Theme: light").click()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 21, 24)"
    page.get_by_role("button", name="Dark").click()


def test_nothing_is_cut_off_on_a_screen_of_360_pixels(visit: Callable[..., Any], varied: Any) -> None:
    seen = visit(varied, viewport={"width": 360, "height": 640})
    page = seen.page
    for view in VIEWS:
        page.evaluate("view => { location.hash = `#/self/${view}` }", view)
        expect(page.locator("#main h1").first).to_be_visible()
        wide = page.evaluate("document.documentElement.scrollWidth")
        assert wide <= 360, (view, wide)
    page.get_by_role("button", name="Menu").click()
    page.get_by_role("link", name="Tools").click()
    page.get_by_role("option", name="trip").click()
    expect(page.get_by_role("heading", name="trip")).to_be_visible()
    page.get_by_role("button", name="← All tools").click()
    expect(page.get_by_role("listbox", name="Tools")).to_be_visible()
    assert not seen.wrong


def test_server_without_tools_shows_no_empty_table(
    visit: Callable[..., Any], serve: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = tmp_path_factory.mktemp("empty") / "empty.py"
    file.write_text('from portico import Server\n\nserver = Server("empty")\n')
    page = visit(serve("serve", str(file), "--transport", "http", "--port", "0")).page
    for view in ("tools", "contracts"):
        page.evaluate("view => { location.hash = `#/self/${view}` }", view)
        expect(page.get_by_text("This server has no tools.")).to_be_visible()
        expect(page.get_by_role("table")).to_have_count(0)
        expect(page.get_by_role("region", name="First steps")).to_have_count(0)


def test_heads_of_columns_are_aligned_like_their_cells(visit: Callable[..., Any], varied: Any) -> None:
    page = visit(varied).page
    misaligned = """() => [...document.querySelectorAll("table")].flatMap((table) => {
        const side = (cell) => getComputedStyle(cell).textAlign;
        const cells = [...(table.querySelector("tbody tr")?.cells ?? [])];
        return [...table.tHead.rows[0].cells].filter((head, at) => cells[at] && side(head) !== side(cells[at]))
            .map((head) => head.textContent)
    })"""
    # The metrics leave out calls of the console.
    with SyncClient(f"{varied.origin}/mcp") as client:
        client.call_tool("cities")
    for view in ("contracts", "overview"):
        page.evaluate("view => { location.hash = `#/self/${view}` }", view)
        expect(page.get_by_role("table").first).to_be_visible()
        assert page.evaluate(misaligned) == [], view
    # A time that was not measured is in a column of numbers all the same.
    assert page.evaluate("getComputedStyle(document.querySelector('thead th:last-child')).textAlign") == "right"
