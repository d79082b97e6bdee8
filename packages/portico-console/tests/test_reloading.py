"""Reload while the page is open: tools are listed again, connections stay open, errors appear in the page."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

ONE = """
from portico import Server

server = Server("growing")


@server.tool
async def first(value: int = 1) -> int:
    "The first."
    return value
"""
TWO = (
    ONE
    + """

@server.tool
async def second() -> str:
    "The second."
    return "it is there"
"""
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "growing.py"
    path.write_text(ONE, encoding="utf-8")
    return path


def test_change_is_listed_and_an_error_is_shown(
    browser: Any, serve: Callable[..., Any], visit: Callable[..., Any], file: Path
) -> None:
    console = serve("dev", str(file), "--port", "0")
    seen = visit(console)
    page = seen.page
    expect(page.get_by_role("option", name="first")).to_be_visible()
    expect(page.get_by_role("option", name="second")).to_have_count(0)
    began = page.evaluate("performance.timeOrigin")
    file.write_text(TWO, encoding="utf-8")
    page.get_by_role("option", name="second").click()
    page.get_by_role("button", name="Run Ctrl ↵").click()
    result = page.get_by_role("region", name="Run")
    expect(result).to_contain_text("it is there")
    file.write_text(TWO + "\ndef broken(:\n", encoding="utf-8")
    banner = page.locator("#banner")
    expect(banner).to_contain_text("Failed to load")
    expect(banner).to_contain_text("SyntaxError")
    result.get_by_role("button", name="Run again").click()  # the last good version goes on serving
    expect(page.get_by_role("region", name="Run")).to_have_count(2)
    expect(page.get_by_role("region", name="Run").first).to_contain_text("it is there")
    file.write_text(ONE, encoding="utf-8")
    expect(page.get_by_role("option", name="second")).to_have_count(0)
    expect(banner).to_be_hidden()
    assert page.evaluate("performance.timeOrigin") == began  # the page was never loaded again
    assert not seen.wrong, seen.wrong
