"""Data from a server stays text: sixty strings in every place where the page shows server data.

Nothing of it may run, ask another host, leave the page, or break it (tests/support/programs/hostile_server.py has the strings).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from playwright.sync_api import expect

from support.http_threads import running
from support.paths import PROGRAMS
from support.programs.hostile_server import STRINGS

SERVER = str(PROGRAMS / "hostile_server.py")


@pytest.fixture(scope="module")
def hostile(program: str, serve: Callable[..., Any]) -> Any:
    return serve("console", "--port", "0", "--", sys.executable, SERVER)


@pytest.fixture
def shown(visit: Callable[..., Any], hostile: Any) -> Iterator[Any]:
    seen = visit(hostile)
    url = seen.page.url.split("#")[0]
    yield seen
    page = seen.page
    assert page.url.split("#")[0] == url
    assert page.evaluate("window.pwned === undefined && Object.prototype.polluted === undefined")
    # Whatever was made of it, there are no elements that a page of ours does not have.
    strange = "script:not([src^='/console/']), iframe, object, embed, base, style, form[action], meta[http-equiv], [onload], [onerror], [onfocus]"
    assert page.locator(strange).count() == 0
    leading = page.evaluate(
        "[...document.querySelectorAll('a[href]')].filter(a => !a.getAttribute('href').startsWith('#') && !(/^https?:$/.test(a.protocol) && a.rel === 'noopener noreferrer')).map(a => a.outerHTML)"
    )
    assert not leading
    assert not seen.wrong, seen.wrong


def run(page: Any) -> Any:
    page.get_by_role("button", name="Run Ctrl ↵").click()
    return page.get_by_role("region", name="Run").first


def test_names_titles_and_descriptions(shown: Any) -> None:
    page = shown.page
    shown.go("tools")
    expect(page.get_by_role("option").first).to_be_visible()
    for name in ("t0", "t2", "t54", "t55"):
        shown.go("tools", name)
        expect(page.locator("#main h1")).to_be_visible()
        page.get_by_role("button", name="Definition", exact=True).click()
        expect(page.get_by_role("dialog").get_by_role("tree")).to_be_visible()
        page.keyboard.press("Escape")
    page.keyboard.press("Control+k")
    page.keyboard.type("t")
    expect(page.get_by_role("dialog").get_by_role("option").first).to_be_visible()
    page.keyboard.press("Escape")


def test_schemas(shown: Any) -> None:
    page = shown.page
    shown.go("tools", "form")
    expect(page.get_by_role("button", name="Run Ctrl ↵")).to_be_visible()
    page.locator(".detail select").last.select_option(index=3)
    page.locator(".detail .add").last.click()  # the schema itself, once more
    page.get_by_role("button", name="JSON").click()
    page.get_by_role("button", name="Form").click()
    page.get_by_role("button", name="Run Ctrl ↵").click()
    expect(
        page.get_by_role("region", name="Run").or_(page.get_by_role("button", name="Send anyway")).first
    ).to_be_visible()


def test_tool_with_an_invalid_schema_can_be_called(shown: Any) -> None:
    page = shown.page
    shown.go("tools", "crooked")
    page.get_by_role("button", name="JSON").click()
    page.get_by_label("Arguments as JSON").fill('{"c": 1, "d": [1], "e": "x"}')
    result = run(page)
    expect(result.get_by_text("done")).to_be_visible()


def test_results_log_lines_and_progress(shown: Any) -> None:
    page = shown.page
    shown.go("tools", "result")
    result = run(page)
    expect(result.get_by_text("done")).to_be_visible()
    for way in ("All content", "Content", "Table", "Tree", "Raw"):
        button = result.get_by_role("button", name=way, exact=True)
        if button.count():
            button.click()
            expect(button).to_have_attribute("aria-pressed", "true")
    expect(result.get_by_role("log")).to_contain_text("<script>")
    assert result.locator("img[src^='data:image/svg']").count() == 0


def test_rejections_errors_and_questions(shown: Any) -> None:
    page = shown.page
    for name in ("refusal", "error"):
        shown.go("tools", name)
        expect(run(page).get_by_text("failed", exact=True)).to_be_visible()
    shown.go("tools", "ask")
    result = run(page)
    question = page.get_by_role("region", name="Elicitation request")
    expect(question).to_contain_text("<script>")
    question.get_by_role("button", name="Submit").click()
    expect(result.get_by_text("done")).to_be_visible()


def test_resources_templates_prompts_and_completions(shown: Any) -> None:
    page = shown.page
    shown.go("resources", "evil://0")
    page.get_by_role("button", name="Read", exact=True).click()
    expect(page.get_by_role("region", name="Run").get_by_text("done")).to_be_visible()
    shown.go("prompts", "p0")
    page.locator(".detail input").first.press_sequentially("a")
    expect(page.locator("datalist option").first).to_be_attached()
    page.get_by_role("button", name="Get prompt").click()
    expect(page.get_by_role("region", name="Run").get_by_text("done")).to_be_visible()


def test_messages_on_the_wire(shown: Any) -> None:
    page = shown.page
    shown.go("wire")
    trips = page.locator("details.trip > summary")
    expect(trips.first).to_be_visible()
    for at in range(min(6, trips.count())):
        trips.nth(at).click()


class Deceiver(BaseHTTPRequestHandler):
    """Refuses with a challenge, and describes itself in the same sixty strings."""

    def do_GET(self) -> None:
        words = {text: text for text in STRINGS}
        lists = dict.fromkeys(
            ("authorization_servers", "scopes_supported", "code_challenge_methods_supported"), STRINGS
        )
        self._say(200, json.dumps({**words, **lists, "issuer": STRINGS[0], "resource": STRINGS[2]}))

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self._say(401, STRINGS[0])

    def _say(self, status: int, text: str) -> None:
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("www-authenticate", f'Bearer resource_metadata="{STRINGS[25]}", error="{STRINGS[3]}"')
        self.send_header("content-length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None:
        pass


def test_documents_of_a_login(shown: Any) -> None:
    page = shown.page
    with HTTPServer(("127.0.0.1", 0), Deceiver) as server, running(server):
        page.get_by_role("link", name="OAuth debugger").click()
        page.get_by_label("Server URL").fill(f"http://127.0.0.1:{server.server_port}/mcp")
        page.get_by_role("button", name="Run discovery").click()
        expect(page.locator(".steps > li").first).to_be_visible()
        expect(page.get_by_text("Discovery failed")).to_be_visible()


def test_hostile_memories_work_items_and_contracts_are_shown_as_text(shown: Any) -> None:
    page = shown.page
    shown.go("memory")
    expect(page.locator(".memory").first).to_be_visible()
    page.locator(".memory .text").first.click()
    page.get_by_role("dialog").get_by_role("button", name="History").click()
    expect(page.get_by_role("dialog").locator(".timeline")).to_be_visible()
    page.keyboard.press("Escape")
    for way in ("Timeline", "Graph"):
        page.get_by_role("button", name=way).click()
    shown.go("work")
    page.locator("button.item").first.click()
    expect(page.get_by_role("dialog")).to_contain_text("<script>")
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Tree").click()
    expect(page.get_by_role("list", name="Work items")).to_be_visible()
    shown.go("contracts")
    page.get_by_role("button", name="Lint all tools").click()
    expect(page.get_by_role("table").nth(1)).to_be_visible()
