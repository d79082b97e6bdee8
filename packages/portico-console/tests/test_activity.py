"""Activity pages: calls, timings, clients, upstreams, audit and access rules, where configured."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import expect

from support.paths import ROOT

OFFICE = f"""
[gateway]
name = "office"

[upstream.notes]
target = "{ROOT}/examples/notes.py"

[upstream.away]
command = ["sh", "-c", "echo it-has-gone >&2; exit 3"]

[audit]
arguments = "hashed"

[[limit]]
name = "plan"
calls_per_month = 1_000_000

[[rule]]
name = "the office reads"
principal = ["id:token", "local", "group:office"]
tool = "*"
"""


@pytest.fixture(scope="module")
def office(program: str, serve: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tmp_path_factory.mktemp("office") / "office.toml"
    path.write_text(OFFICE, encoding="utf-8")
    return serve("serve", str(path), "--transport", "http", "--port", "0")


@pytest.fixture
def seen(visit: Callable[..., Any], office: Any) -> Iterator[Any]:
    result = visit(office)
    yield result
    assert not result.wrong, result.wrong


def test_calls_and_times_are_counted_while_one_looks(tried: Any) -> None:
    page = tried.page
    page.get_by_role("link", name="Metrics").click()
    tried.console.portico("call", f"{tried.console.origin}/mcp", "add", "a=5", "b=7")
    row = page.get_by_role("row", name="add")
    expect(row).to_be_visible()
    expect(page.get_by_role("img", name="Requests per second")).to_be_visible()
    expect(page.get_by_role("img", name="Latency")).to_be_visible()


def test_server_without_an_audit_has_no_such_view(tried: Any) -> None:
    assert tried.page.get_by_role("link", name="Audit").count() == 0
    assert tried.page.get_by_role("link", name="Upstreams").count() == 0


def test_upstreams_show_their_state_and_recent_stderr(seen: Any) -> None:
    page = seen.page
    page.get_by_role("link", name="Upstreams").click()
    expect(page.get_by_role("article").filter(has_text="notes")).to_contain_text("tools")
    away = page.get_by_role("article").filter(has_text="away")
    away.get_by_text("Recent stderr").click()
    expect(away).to_contain_text("it-has-gone")


def test_audit_is_listed_and_whole(seen: Any) -> None:
    page = seen.page
    note = '{"note": {"title": "milk", "text": "Buy some."}}'
    seen.console.portico("call", f"{seen.console.origin}/mcp", "notes_write_note", "--arguments", note)
    page.get_by_role("link", name="Audit").click()
    expect(page.get_by_role("row", name="write_note").first).to_be_visible()
    principals = page.get_by_role("row").locator("td:nth-child(4)").all_inner_texts()
    assert principals and all(principal.strip() for principal in principals), principals
    page.get_by_role("button", name="Verify integrity").click()
    expect(page.get_by_text("intact", exact=True)).to_be_visible()
    page.get_by_role("row", name="write_note").first.click()
    expect(page.get_by_role("dialog").get_by_role("tree")).to_contain_text("principal")
    page.keyboard.press("Escape")


def test_usage_is_shown_by_tool_and_by_principal(seen: Any) -> None:
    page = seen.page
    note = '{"note": {"title": "milk", "text": "Buy some."}}'
    seen.console.portico("call", f"{seen.console.origin}/mcp", "notes_write_note", "--arguments", note)
    page.get_by_role("link", name="Usage").click()
    expect(page.get_by_role("row", name="notes.write_note")).to_be_visible()
    page.get_by_role("button", name="By upstream").click()
    expect(page.get_by_role("row", name="notes").first).to_be_visible()
    expect(page.get_by_role("row", name="notes.write_note")).to_have_count(0)
    page.get_by_role("button", name="By principal").click()
    expect(page.get_by_role("columnheader", name="Left this month")).to_be_visible()
    expect(page.get_by_role("cell", name="of 1,000,000 calls").first).to_contain_text("plan: 9")
    with page.expect_download() as download:
        page.get_by_role("button", name="Download CSV").click()
    assert download.value.path().read_text(encoding="utf-8").startswith("name,calls,errors,")


def test_access_decision_is_explained_and_previewed_as_the_principal(seen: Any) -> None:
    page = seen.page
    page.get_by_role("link", name="Access policy").click()
    page.get_by_label("Principal", exact=True).fill("sam")
    page.get_by_label("Groups (space-separated)").fill("visitors")
    page.get_by_label("Name", exact=True).fill("notes.find_notes")
    page.get_by_role("button", name="Explain").click()
    expect(page.get_by_text("deny", exact=True)).to_be_visible()
    page.get_by_role("button", name="View as principal").click()
    expect(page.locator("#banner")).to_contain_text("Viewing as sam")
    # No tool of an upstream; the gateway's own tool reads results that were shortened for the caller.
    expect(page.get_by_role("option")).to_have_count(1)
    expect(page.get_by_role("option")).to_contain_text("read_result")
    page.get_by_role("button", name="Stop impersonating").click()
    expect(page.get_by_role("option").first).to_be_visible()


START = """
import asyncio, sys
from portico import Client

async def main():
    async with Client(sys.argv[1]) as client:
        for arguments in ({"topic": "bees", "chapters": 2}, {"topic": "ants", "chapters": 1000}):
            await client.start_task("make_report", arguments)

asyncio.run(main())
"""


def test_tasks_show_their_progress_and_can_be_cancelled(visit: Callable[..., Any], serve: Callable[..., Any]) -> None:
    reports = serve("serve", str(ROOT / "examples" / "reports.py"), "--transport", "http", "--port", "0")
    result = visit(reports)
    page = result.page
    reports.python("-c", START, f"{reports.origin}/mcp")
    page.get_by_role("link", name="Tasks").click()
    expect(page.get_by_role("article").filter(has_text="completed")).to_contain_text("make_report")
    running = page.get_by_role("article").filter(has_text="running")
    expect(running).to_contain_text("More about ants")
    # Two calls of one tool differ by their arguments.
    expect(running).to_contain_text('{"topic":"ants","chapters":1000}')
    running.get_by_role("button", name="Open").click()
    expect(page.get_by_role("dialog").get_by_role("tree", name="Steps")).to_contain_text("chapter 1")
    page.keyboard.press("Escape")
    running.get_by_role("button", name="Cancel").click()
    expect(page.get_by_role("article").filter(has_text="cancelled")).to_be_visible()
    assert not result.wrong, result.wrong


def test_a_tool_that_supports_tasks_is_run_as_one_on_request(
    visit: Callable[..., Any], serve: Callable[..., Any]
) -> None:
    reports = serve("serve", str(ROOT / "examples" / "reports.py"), "--transport", "http", "--port", "0")
    one = visit(reports)
    page = one.page
    for topic, as_task in (("wasps", False), ("bats", True)):
        one.go("tools", "make_report")
        page.get_by_label("topic").fill(topic)
        page.get_by_label("as a task").set_checked(as_task)
        page.get_by_role("button", name="Run Ctrl ↵").click()
        expect(page.get_by_role("region", name="Run").first).to_contain_text(f"3. More about {topic}")
    expect(page.get_by_role("log", name="Log").first).to_contain_text("running as task")
    page.get_by_role("link", name="Tasks").click()
    expect(page.get_by_role("article").filter(has_text='"topic":"bats"')).to_contain_text("completed")
    expect(page.get_by_role("article").filter(has_text="wasps")).to_have_count(0)
    assert not one.wrong, one.wrong


def test_activity_views_have_no_axe_violations(seen: Any) -> None:
    broken = []
    for view in ("overview", "peers", "upstreams", "usage", "audit", "access", "saved"):
        seen.page.evaluate("view => { location.hash = `#/self/${view}` }", view)
        expect(seen.page.locator("#main h1").first).to_be_visible()
        expect(seen.page.locator("#main .card, #main .board, #main .empty, #main .graph").first).to_be_visible()
        broken += seen.violations()
    assert not broken, "\n".join(broken)
