"""MCP Apps (2026-01-26) in the console's frame: one built with the extension's App class, and hostile ones.

The package is npm's (tests/apps pins it), and so are the schemas that our messages are held against.
"""

from __future__ import annotations

import json
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from support import chromium, ext_apps, node
from support.paths import PROGRAMS, ROOT

APPS = str(PROGRAMS / "apps_server.py")
# What a browser writes into its console when a policy does its work.
POLICY = ("Content Security Policy", "sandbox", "Blocked", "Failed to load", "Unsafe attempt", "Permissions policy")


# What the App has heard of us: of what kind it is, and what is wrong with it by the schemas of the extension.
HELD = """frames_.filter((one) => one.method || one.result?.hostInfo).map((one) => {
  const words = (one.method ?? "").split("/").at(-1).split("-").map((word) => word.charAt(0).toUpperCase() + word.slice(1)).join("");
  const [kind, name] = words ? [words, `McpUi${words}NotificationSchema`] : ["InitializeResult", "McpUiInitializeResultSchema"];
  return [kind, ext[name].safeParse(one.method ? { method: one.method, params: one.params } : one.result).error?.message ?? ""];
})"""


@pytest.fixture(scope="module")
def served(program: str, serve: Callable[..., Any]) -> Any:
    try:
        ext_apps.files()
    except node.NotInstalled as why:
        pytest.skip(str(why))
    return serve("serve", APPS, "--transport", "http", "--port", "0")


@pytest.fixture
def seen(visit: Callable[..., Any], served: Any) -> Iterator[Any]:
    result = visit(served)
    yield result
    page = result.page
    assert page.url.startswith(served.origin)
    assert page.evaluate("window.pwned === undefined")
    wrong = [item for item in result.wrong if not any(word in item for word in POLICY)]
    result.wrong.clear()
    assert not wrong


def run(shown: Any, name: str) -> Any:
    card = start(shown, name)
    _show_app(card)
    return card


def start(shown: Any, name: str) -> Any:
    shown.go("tools", name)
    shown.page.get_by_role("button", name="Run Ctrl ↵").click()
    return shown.page.get_by_role("region", name="Run").first


def _show_app(card: Any) -> bool:
    """Confirm that the app may be shown, where the console asks. Return whether the browser contains apps by itself.

    Chromium 156.0.8078 enforces Connection-Allowlist for requests, but the first packets of a peer connection leave, so
    the console asks there.
    """
    question = card.get_by_role("button", name="Load app")
    result = card.frame_locator("iframe").locator("iframe")
    end = time.monotonic() + 10
    while time.monotonic() < end:
        if question.count():
            question.click()
            return False
        if result.count():
            return True
        card.page.wait_for_timeout(20)
    return True


def app_of(card: Any) -> Any:
    return card.frame_locator("iframe").frame_locator("iframe")


def said(app: Any, kind: str) -> Any:
    """The last of what it has said of a kind."""
    expect(app.locator("#out")).to_contain_text(f"{kind}\t")
    lines = [splitline.partition("\t") for splitline in app.locator("#out").text_content().splitlines()]
    return json.loads([rest for name, _, rest in lines if name == kind][-1])


def allow(card: Any, label: str = "Allow") -> None:
    card.get_by_role("group", name="App permission request").get_by_role("button", name=label).click()


def test_app_receives_its_input_result_and_host_context_changes(seen: Any) -> None:
    card = run(seen, "real")
    app = app_of(card)
    host = said(app, "host")
    assert (host["version"]["name"], host["theme"], host["mode"]) == ("portico-console", "light", "inline")
    assert {"openLinks", "serverTools", "serverResources", "logging", "message", "updateModelContext"} <= {
        *host["able"]
    }
    assert said(app, "input") == {"word": "blue"}
    result = said(app, "result")
    assert (result["structuredContent"], result["_meta"]["apps/for-the-app"]) == ({"word": "blue"}, 1)
    # The frame is as high as what is in it, up to a bound.
    frame = card.locator("iframe")
    before = frame.bounding_box()["height"]
    app.get_by_role("button", name="grow").click()
    expect(frame).not_to_have_css("height", f"{before:g}px")
    assert frame.bounding_box()["height"] > before
    app.get_by_role("button", name="tower").click()
    expect(frame).to_have_css("height", "800px")
    page = seen.page
    page.emulate_media(color_scheme="dark")
    assert said(app, "context") == {"theme": "dark"}
    page.emulate_media(color_scheme="light")
    page.set_viewport_size({"width": 1000, "height": 800})
    expect(app.locator("#out")).to_contain_text("containerDimensions")
    app.get_by_role("button", name="whole").click()
    assert said(app, "whole") == {"mode": "fullscreen"}
    assert said(app, "context")["displayMode"] == "fullscreen"
    card.get_by_role("button", name="Exit full screen").click()
    expect(frame).to_have_css("height", "800px")
    page.set_viewport_size({"width": 1280, "height": 800})
    heard = page.frames[-1].evaluate(HELD)
    assert not [item for item in heard if item[1]]
    kinds = [kind for kind, _ in heard]
    assert kinds[:3] == ["InitializeResult", "ToolInput", "ToolResult"] and "HostContextChanged" in kinds[3:]


def test_app_calls_tools_that_are_for_apps_once_it_is_allowed(seen: Any) -> None:
    card = run(seen, "real")
    app = app_of(card)
    said(app, "result")
    app.get_by_role("button", name="add").click()
    question = card.get_by_role("group", name="App permission request")
    expect(question).to_contain_text("add")
    expect(question).to_contain_text('{"a":40,"b":2}')
    allow(card)
    assert said(app, "add")["structuredContent"] == {"result": 42}
    app.get_by_role("button", name="add").click()  # not asked twice
    expect(app.locator("#out")).to_have_text(re.compile("add\\t.*add\\t", re.DOTALL))
    app.get_by_role("button", name="model").click()
    assert said(app, "model failed")[0] == -32602
    app.get_by_role("button", name="fail").click()
    allow(card)
    assert said(app, "fail")["isError"] is True
    app.get_by_role("button", name="read").click()
    question.get_by_role("button", name="Deny").click()
    assert said(app, "read failed")[0] == -32000
    app.get_by_role("button", name="message").click()
    app.get_by_role("button", name="tell").click()
    assert (said(app, "message"), said(app, "tell")) == ({}, {})
    expect(card.get_by_role("log", name="App log")).to_contain_text("Hello, model")
    expect(card.get_by_role("log", name="App log")).to_contain_text("It is blue")
    app.get_by_role("button", name="copy").click()
    assert said(app, "copy") == "copied"
    assert seen.page.evaluate("navigator.clipboard.readText()") == "copied by an app"


def test_app_link_is_opened_only_after_user_approval(seen: Any) -> None:
    card = run(seen, "real")
    app = app_of(card)
    said(app, "result")
    app.get_by_role("button", name="script").click()
    assert said(app, "script failed")[0] == -32602
    app.get_by_role("button", name="link").click()
    expect(card.get_by_role("group", name="App permission request")).to_contain_text("https://example.org/there?a=1")
    seen.context.route("https://example.org/**", lambda route: route.fulfill(body="there"))
    with seen.context.expect_page() as opened:
        allow(card, "Open link")
    assert opened.value.evaluate("window.opener") is None
    opened.value.close()
    assert said(app, "link") == {}
    seen.wrong[:] = [item for item in seen.wrong if "another page" not in item]


def test_app_receives_the_cancellation_and_is_torn_down_before_it_closes(seen: Any) -> None:
    card = run(seen, "slow")
    app = app_of(card)
    assert said(app, "input") == {}
    card.get_by_role("button", name="Cancel").click()
    assert said(app, "cancelled") == {"reason": "cancelled"}
    seen.go("tools", "add")
    expect(seen.page.get_by_role("heading", name="add")).to_be_visible()
    seen.go("tools", "slow")
    expect(card.get_by_role("log", name="App log")).to_contain_text("good bye")
    assert card.locator("iframe").count() == 0
    card.get_by_role("button", name="Reload app").click()
    _show_app(card)
    assert said(app, "cancelled") == {"reason": "cancelled"}
    card.get_by_role("button", name="Close").click()
    expect(card.get_by_text("App closed.")).to_be_visible()


def test_hostile_app_gets_no_access(seen: Any) -> None:
    page = seen.page
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    card = run(seen, "probes")
    app = app_of(card)
    expect(app.locator("#out")).to_contain_text("answers", timeout=15_000)
    data = json.loads(app.locator("#out").inner_text())
    answers = data.pop("answers")
    assert {name: value for name, value in data.items() if not value.startswith("no: ")} == {"alert": ""}
    assert answers == {
        "1": [-32602],
        "2": [-32602],
        "3": [-32602],
        "4": [-32601],
        "5": [-32602],
        "6": [-32601],
        "7": [-32602],
        "8": [],
        "9": [{}],
    }
    expect(card.get_by_role("log", name="App log")).to_contain_text("<script>")
    frame = card.locator("iframe")
    assert frame.get_attribute("sandbox") == "allow-scripts allow-forms"
    assert frame.get_attribute("allow") is None
    # It cannot even leave its own frame, where somebody else could hear what it knows.
    for way in ("location = 'https://example.org/'", "document.forms[0].submit()"):
        within = next(one for one in page.frames if one.url == "about:srcdoc")
        within.evaluate(way)
        expect(app.get_by_text("This content is blocked").first).to_be_attached()
        card.get_by_role("button", name="Close").click()
        card.get_by_role("button", name="Reload app").click()
        _show_app(card)
        expect(app.locator("#out")).to_contain_text("answers")
    assert not [one for one in requests if "example.org" in one or ":9/" in one or "login" in one]
    assert not page.get_by_role("group", name="App permission request").count()


@pytest.mark.parametrize("name", ["many", "past", "long", "wide", "round"])
def test_app_that_floods_the_host_is_stopped(seen: Any, name: str) -> None:
    card = run(seen, f"flood_{name}")
    expect(card.get_by_text("App stopped")).to_be_visible()
    assert card.locator("iframe").count() == 0


def test_app_that_never_rests_does_not_stop_the_page(seen: Any) -> None:
    card = run(seen, "restless")
    expect(card.get_by_role("log", name="App log")).to_contain_text("no rest")
    seen.page.wait_for_timeout(200)  # by then it does nothing else
    card.get_by_role("button", name="Close").click()
    expect(card.get_by_text("App closed.")).to_be_visible()


def test_app_with_allowed_hosts_is_shown(seen: Any) -> None:
    card = start(seen, "weather")
    question = card.get_by_role("group", name="App permission request")
    expect(question).to_contain_text("https://api.example.com")
    assert card.locator("iframe").count() == 0
    allow(card, "Load app")
    _show_app(card)
    expect(app_of(card).get_by_text("Weather")).to_be_visible()


@pytest.mark.parametrize(
    "name, why",
    [
        ("many_hosts", "it requests too many hosts"),
        ("nowhere", "Failed to load the app"),
        ("wrong_type", "expected text/html;profile=mcp-app"),
    ],
)
def test_app_page_that_fails_to_load_shows_the_reason(seen: Any, name: str, why: str) -> None:
    expect(start(seen, name).get_by_text(why)).to_be_visible()


def test_app_behind_a_gateway_calls_its_server_tools_by_unprefixed_names(
    program: str, serve: Callable[..., Any], visit: Callable[..., Any], tmp_path: Path
) -> None:
    example = ROOT / "examples" / "app.py"
    command = json.dumps([sys.executable, str(example)])
    (tmp_path / "gateway.toml").write_text(
        "".join(f"[upstream.{frame}]\ncommand = {command}\n" for frame in ("dice", "other"))
    )
    result = visit(serve("serve", str(tmp_path / "gateway.toml"), "--transport", "http", "--port", "0"))
    card = run(result, "dice_roll")
    app = app_of(card)
    expect(app.locator("#dice")).not_to_have_text("…")
    app.get_by_role("button", name="Roll again").click()
    expect(card.get_by_role("group", name="App permission request")).to_contain_text("dice_roll_again")
    allow(card)
    expect(card.get_by_role("log", name="App log")).to_contain_text("calls dice_roll_again")
    within = next(frame for frame in result.page.frames if frame.url == "about:srcdoc")
    refused = within.evaluate("""new Promise((done) => {
      addEventListener("message", ({ data }) => data.id === "other" && done(data.error.code));
      parent.postMessage({ jsonrpc: "2.0", id: "other", method: "tools/call", params: { name: "other_roll_again", arguments: {} } }, "*");
    })""")
    assert refused == -32602
    assert not result.wrong


# Other hosts

# Loads a page into the frame of apps, and gives what that page posts.
SHOW = """([csp, html]) => new Promise((done) => {
  const frame = document.createElement("iframe");
  frame.src = `/console/frame?${new URLSearchParams({ csp: JSON.stringify(csp) })}`;
  frame.setAttribute("sandbox", "allow-scripts allow-forms");
  addEventListener("message", ({ source, data }) => {
    if (source !== frame.contentWindow) return;
    if (data.method === "ui/notifications/sandbox-proxy-ready") frame.contentWindow.postMessage({ jsonrpc: "2.0", method: "ui/notifications/sandbox-resource-ready", params: { html } }, "*");
    else { frame.remove(); done(data.params); }
  });
  document.body.append(frame);
})"""
REACHING = """<body><script>
  const found = {};
  const look = async (name, act) => { try { found[name] = String(await act()); } catch (why) { found[name] = why.name; } };
  const picture = (url) => new Promise((done, not) => { const one = new Image(); one.onload = () => done("shown"); one.onerror = () => not(new TypeError()); one.src = url; });
  (async () => {
    await look("fetch", () => fetch("HOST/text").then((one) => one.text()));
    await look("redirected", () => fetch("HOST/redirect").then((one) => one.text()));
    await look("picture", () => picture("HOST/picture"));
    await look("data", () => picture("data:image/svg+xml,<svg xmlns='http://www.w3.org/2000/svg'/>"));
    await look("webrtc", () => { new RTCPeerConnection({ iceServers: [{ urls: "stun:127.0.0.1:9" }] }); return "made"; });
    parent.postMessage({ jsonrpc: "2.0", method: "x", params: found }, "*");
  })();
</script>"""


class Host(BaseHTTPRequestHandler):
    """A host that an app may want to reach; remembers what was asked."""

    def do_GET(self) -> None:
        self.server.asked.append(self.path)  # type: ignore[attr-defined]
        body = b"<svg xmlns='http://www.w3.org/2000/svg'/>" if self.path == "/picture" else b"hello"
        self.send_response(302 if self.path == "/redirect" else 200)
        self.send_header("location", "/text")
        self.send_header("access-control-allow-origin", "*")
        self.send_header("content-type", "image/svg+xml" if self.path == "/picture" else "text/plain")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def host() -> Iterator[Any]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Host)
    server.asked = []  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.shutdown()
    thread.join(20)
    server.server_close()


@pytest.fixture
def contained(seen: Any) -> bool:
    """Whether the browser contains apps by itself, so that the console does not ask."""
    card = start(seen, "probes")
    contained = _show_app(card)
    card.get_by_role("button", name="Close").click()
    expect(card.get_by_text("App closed.")).to_be_visible()
    return contained


def test_app_reaches_only_allowed_hosts(seen: Any, host: Any, contained: bool) -> None:
    origin = f"http://127.0.0.1:{host.server_address[1]}"
    html = REACHING.replace("HOST", origin)
    if not contained:
        # Chromium 156.0.8078 crashes the page when an app under an allowlist opens a peer connection.
        html = re.sub(r'.*look\("webrtc".*\n', "", html)
    refused = seen.page.evaluate(SHOW, [{"connectDomains": ["https://other.example"]}, html])
    assert refused.pop("data") == "shown"
    assert refused.pop("webrtc", "NotAllowedError") == "NotAllowedError"
    assert set(refused.values()) <= {"TypeError", "NotAllowedError"}
    assert host.asked == []
    allowed = seen.page.evaluate(SHOW, [{"connectDomains": [origin], "resourceDomains": [origin]}, html])
    assert allowed.pop("webrtc", "NotAllowedError") == "NotAllowedError"
    assert allowed == {"fetch": "hello", "redirected": "hello", "picture": "shown", "data": "shown"}
    seen.wrong = [item for item in seen.wrong if not item.startswith(f"a request to {origin}")]


NESTED = """<body><script>
  const code = "parent.postMessage((() => { try { new RTCPeerConnection(); return 'made' } catch (why) { return why.name } })(), '*')";
  addEventListener("message", ({ data }) => typeof data === "string" && parent.postMessage({ jsonrpc: "2.0", method: "x", params: { data } }, "*"));
  const frame = document.createElement("iframe");
  frame.srcdoc = `<script>${code}<\\/script>`;
  document.body.append(frame);
</script>"""


def test_frames_within_an_app_have_no_webrtc_either(seen: Any, contained: bool) -> None:
    if not contained:
        pytest.skip("this Chromium lets apps open peer connections; the console asks before it shows an app")
    assert seen.page.evaluate(SHOW, [{}, NESTED]) == {"data": "NotAllowedError"}


@pytest.mark.parametrize("way", ["location = URL_", "document.forms[0].action = URL_; document.forms[0].submit()"])
def test_blocked_navigation_opens_no_connection(seen: Any, way: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        card = run(seen, "probes")
        expect(app_of(card).locator("#out")).to_contain_text("answers", timeout=15_000)
        within = next(frame for frame in seen.page.frames if frame.url == "about:srcdoc")
        within.evaluate(way.replace("URL_", f"'http://127.0.0.1:{listener.getsockname()[1]}/'"))
        # Chromium opens connections before it judges; by the time that the page of the error is there it has judged.
        expect(app_of(card).get_by_text("This content is blocked").first).to_be_attached()
        listener.setblocking(False)
        with pytest.raises(BlockingIOError):
            listener.accept()


def test_browser_without_containment_confirms_before_showing_an_app(program: str, served: Any) -> None:
    """In a thread, because Playwright has one loop for each."""

    def look() -> tuple[int, bool]:
        with chromium.running(program, [*chromium.PLAIN_FLAGS, "--disable-features=ConnectionAllowlists"]) as browser:
            page = browser.new_page()
            page.goto(served.fresh_link())
            page.locator("nav").wait_for(state="attached")
            page.evaluate("location.hash = '#/self/tools/probes'")
            page.get_by_role("button", name="Run Ctrl ↵").click()
            card = page.get_by_role("region", name="Run").first
            question = card.get_by_role("group", name="App permission request")
            expect(question).to_contain_text("cannot keep an app from contacting other hosts")
            before = len([frame for frame in page.frames if frame.url == "about:srcdoc"])
            allow(card, "Load app")
            expect(app_of(card).locator("#out")).to_contain_text("answers", timeout=15_000)
            return before, question.count() == 0

    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(look).result(120) == (0, True)
