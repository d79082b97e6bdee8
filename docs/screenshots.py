"""The screenshots of the console in docs/images: a server is started, filled with a little, and looked at.

python docs/screenshots.py            all of them; Chromium has to be installed
python docs/screenshots.py tools      those whose name has that in it
"""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, sync_playwright

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "docs" / "images"
SIZE = {"width": 1100, "height": 690}
LARGEST = 150_000
sys.path.insert(0, str(ROOT / "tests"))

from support import chromium  # noqa: E402

MEMORIES = [
    ("decisions", "The audit tables live in PostgreSQL, so that all workers write one chain.", ["audit", "database"]),
    ("decisions", "Deploys happen on Fridays before noon, never on Mondays.", ["deploy"]),
    ("learnings", "The nightly import fails when the disk is fuller than 90 %.", ["import", "database"]),
    ("config", "The staging gateway answers on port 8443 and wants a client certificate.", ["deploy", "gateway"]),
    ("patterns", "A refusal is one sentence: what was wrong, and what is accepted.", ["errors"]),
    ("learnings", "Recall in one scope stays below three milliseconds with 100,000 memories.", ["database", "memory"]),
]
ITEMS = [
    ("Write the release notes", ["docs"], "pending"),
    ("Measure the gateway with two workers", ["speed"], "in_progress"),
    ("Rotate the signing key of the audit", ["security"], "pending"),
    ("Move the import to the new machine", ["ops"], "in_progress"),
    ("Ask the designers about the icons", ["page"], "completed"),
    ("Remove the old login page", ["page", "security"], "completed"),
]


async def fill(url: str, token: str) -> None:
    """A little of everything, by the tools."""
    from portico import Client

    async with Client(url, auth=token) as client:
        for namespace, content, tags in MEMORIES:
            message = {"namespace": namespace, "content": content, "tags": tags, "thread": "release"}
            await client.call_tool("memory_capture", message)
        ids = []
        for text, labels, status in ITEMS:
            made = await client.call_tool("create_task", {"description": text, "labels": labels})
            ids.append(made.structured["id"])
            for step in {"pending": [], "in_progress": ["in_progress"], "completed": ["in_progress", "completed"]}[
                status
            ]:
                await client.call_tool("update_task", {"id": ids[-1], "status": step, "worker": "anna"})
        await client.call_tool("add_blocker", {"task_id": ids[0], "blocked_by_id": ids[1]})


async def load(url: str, token: str, seconds: float) -> None:
    """Calls that come and go, so that the plots have something to show."""
    from portico import Client

    async with Client(url, auth=token) as client:
        loop = asyncio.get_running_loop()
        began = loop.time()
        while (now := loop.time() - began) < seconds:
            for _ in range(3 + int(12 * abs((now % 8) - 4))):
                await client.call_tool("memory_recall", {"query": "database", "limit": 5})
            await client.call_tool("list_tasks", {})
            await client.call_tool("get_task", {"id": "no-such"}, raise_on_error=False)
            await asyncio.sleep(0.15)


def tools(page: Page) -> None:
    page.get_by_role("link", name="Tools").click()
    page.get_by_role("searchbox").fill("")
    page.get_by_role("button", name="Search or run a command").click()
    page.keyboard.type("tools_search")
    page.keyboard.press("Enter")
    page.get_by_label("query").fill("remember what was decided")
    page.get_by_label("limit").fill("5")
    page.keyboard.press("Control+Enter")
    page.get_by_role("region", name="Run").get_by_text("done").wait_for()
    page.locator(".note").first.wait_for(state="detached")


def memory(page: Page) -> None:
    page.get_by_role("link", name="Memory").click()
    page.get_by_label("Search memories").fill("database")
    page.get_by_text("strong: database").first.wait_for()


def board(page: Page) -> None:
    page.get_by_role("link", name="Work items").click()
    page.get_by_role("button", name="Write the release notes").wait_for()


def wire(page: Page) -> None:
    memory(page)
    page.get_by_role("link", name="Traffic").click()
    page.locator("details.trip", has_text="tools/call memory_recall").first.locator("summary").first.click()


def plots(page: Page) -> None:
    page.get_by_role("link", name="Metrics").click()
    page.get_by_text("memory_recall").first.wait_for()
    page.wait_for_timeout(1500)


def app(page: Page) -> None:
    page.get_by_role("option", name="roll Roll some dice.").click()
    page.get_by_role("button", name="Run Ctrl ↵").click()
    card = page.get_by_role("region", name="Run")
    # Asked by browsers that cannot restrict the connections of an app.
    load_app = page.get_by_role("button", name="Load app")
    roll_again = card.frame_locator("iframe").frame_locator("iframe").get_by_role("button", name="Roll again")
    page.locator(".app").wait_for()
    page.wait_for_timeout(1000)
    if load_app.is_visible():
        load_app.click()
    roll_again.click()
    card.get_by_role("button", name="Allow").wait_for()
    page.locator(".note").first.wait_for(state="detached")
    page.locator(".detail").evaluate("one => one.scrollTo(0, one.scrollHeight)")


SHOTS = {"tools": tools, "memory": memory, "board": board, "messages": wire, "calls": plots, "app": app}
# What each is a picture of: our services, unless it is a file.
FILES = {"app": "examples/app.py"}


def main() -> None:
    IMAGES.mkdir(exist_ok=True)
    expected = [name for name in SHOTS if not sys.argv[1:] or any(part in name for part in sys.argv[1:])]
    if served := [name for name in expected if name not in FILES]:
        with running("--services", "memory,tasks,contracts") as (link, token):
            url = link.split("#")[0] + "mcp"
            asyncio.run(fill(url, token))
            shoot(link, url, token, served)
    for name in set(expected) & set(FILES):
        with running(FILES[name]) as (link, token):
            shoot(link, "", token, [name])


@contextmanager
def running(*words: str) -> Iterator[tuple[str, str]]:
    """A server; its link and its token."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "PORTICO_DATA": folder}
        command = [sys.executable, "-m", "portico", "serve", *words, "--transport", "http", "--port", "0"]
        child = subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True)
        try:
            yield read_links(child, environment)
        finally:
            child.terminate()
            child.wait(30)


def read_links(child: subprocess.Popen[str], environment: dict[str, str]) -> tuple[str, str]:
    assert child.stderr is not None
    token = ""
    for line in child.stderr:
        if match := re.search(r"PORTICO_TOKEN=\$\(cat (\S+)\)", line):
            token = Path(match[1]).read_text(encoding="utf-8").strip()
        if match := re.search(r"run `portico (console http://\S+)`", line):
            command = [sys.executable, "-m", "portico", *match[1].split()]
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
            return done.stdout.strip(), token
    raise SystemExit("the server did not start")


def shoot(link: str, url: str, token: str, wanted: list[str]) -> None:
    state: Any = None
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium.executable(), args=chromium.FLAGS)
        for scheme in ("light", "dark"):
            context = browser.new_context(viewport=SIZE, color_scheme=scheme, storage_state=state)
            page = context.new_page()
            page.goto(link if state is None else link.split("#")[0])
            page.locator("nav").wait_for()
            state = context.storage_state()
            for name in wanted if scheme == "light" else [item for item in wanted if item in ("tools", "calls")]:
                if name == "calls":
                    asyncio_run_aside(load(url, token, 24), page)
                SHOTS[name](page)
                page.wait_for_timeout(400)
                target = IMAGES / f"console-{name}{'-dark' if scheme == 'dark' else ''}.png"
                page.screenshot(path=target)
                shrink(target)
                print(target.relative_to(ROOT), target.stat().st_size)
        browser.close()


def asyncio_run_aside(work: Any, page: Page) -> None:
    """Playwright has a loop of its own in this thread; the load has one in another, while the page looks on."""
    import threading

    page.get_by_role("link", name="Metrics").click()
    thread = threading.Thread(target=asyncio.run, args=(work,))
    thread.start()
    while thread.is_alive():
        page.wait_for_timeout(500)


def shrink(path: Path) -> None:
    if path.stat().st_size > LARGEST:
        raise SystemExit(f"{path} has {path.stat().st_size} bytes, and may have {LARGEST}")


if __name__ == "__main__":
    main()
