"""The message log of the page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from playwright.sync_api import expect


def test_messages_are_grouped_by_round_trip_filtered_and_exported(tried: Any) -> None:
    page = tried.page
    tried.go("tools", "add")
    page.get_by_label("a", exact=True).fill("1")
    page.get_by_label("b", exact=True).fill("2")
    page.get_by_role("button", name="Run Ctrl ↵").click()
    page.get_by_role("region", name="Run").first.get_by_role("button", name="Messages").click()
    trip = page.locator("details.trip", has_text="tools/call add").first
    expect(trip).to_have_attribute("open", "")  # the one that was come from
    expect(trip.locator(".message")).to_have_count(2)
    expect(trip.locator(".message").nth(0)).to_contain_text("sent")
    expect(trip.locator(".message").nth(1)).to_contain_text("received")
    page.get_by_label("Filter messages").fill("tools/list")
    expect(page.locator("details.trip", has_text="tools/call")).to_have_count(0)
    expect(page.locator("details.trip", has_text="tools/list").first).to_be_visible()
    page.get_by_label("Filter messages").fill("")
    with page.expect_download() as download:
        page.get_by_label("Export messages as").select_option("JSON lines")
    lines = Path(download.value.path()).read_text(encoding="utf-8").splitlines()
    assert any(json.loads(line).get("name") == "add" for line in lines)


def test_messages_of_another_client_appear_live(tried: Any) -> None:
    page = tried.page
    tried.go("tools")
    # Only what is said while somebody looks is recorded, so the page has to be looking.
    with page.expect_response(lambda response: '"wire"' in (response.request.post_data or "")):
        tried.go("wire")
    page.get_by_label("Connection").select_option("Clients")
    expect(page.locator("details.trip")).to_have_count(0)
    assert "12" in tried.console.portico("call", f"{tried.console.origin}/mcp", "add", "a=5", "b=7")
    trip = page.locator("details.trip", has_text="tools/call add")
    expect(trip).to_be_visible()
    trip.locator("summary").first.click()
    trip.get_by_text("headers").first.click()
    expect(trip).to_contain_text("mcp-name: add")
