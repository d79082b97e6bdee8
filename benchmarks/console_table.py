"""Measure the console: its cost per call with and without an open page, and the loading time of the page.

Calls go over HTTP to a server in this process, client and page included, by turns: equal except for the measured part.
The page's updates are limited per second, so that watching costs constant CPU per second.
The page itself is loaded in Chromium from a server with 2,000 tools, as by a browser that was there before.
"""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from goals import Goal, limit
from portico import Client, Server
from portico.extend import serve_http
from portico_console import Console, ConsoleAccess, attach_console
from scenarios import Answers, Question, take_turns
from services_table import Grid, Size, Table, this_tree

ROOT = Path(__file__).resolve().parent.parent
SERVER = ROOT / "tests" / "support" / "programs" / "varied_server.py"

NAME = "console"
CALLS, LOADS = 4000, 15
CALL_QUESTIONS = (
    Question("without", "CPU of server and client for a tools/call, no console", "µs"),
    Question("unseen", "the same with a console that no page watches", "µs"),
    Question("watched", "the same with a page that watches", "µs"),
    Question("unseen_more", "overhead of the console without an open page", "%"),
    Question("watched_more", "overhead of an open page", "%"),
)
PAINT_QUESTIONS = (
    Question("paint", "first paint of the page", "ms"),
    Question("listed", "2,000 tools listed in it", "ms"),
)
TOPICS = ["wire", "metrics", "sessions", "targets"]
PAINTS = """async () => {
  await document.querySelector('[role=option]') || await new Promise(resolve => {
    const watching = new MutationObserver(() => {
      if (document.querySelector('[role=option]')) { watching.disconnect(); resolve(); }
    });
    watching.observe(document.body, {childList: true, subtree: true});
  });
  const listed = performance.now();
  const paints = performance.getEntriesByType('paint').map(one => [one.name, one.startTime]);
  return {...Object.fromEntries(paints), listed};
}"""


def adding() -> Server:
    server = Server("adding")

    @server.tool
    async def add(a: int, b: int) -> int:
        return a + b

    return server


async def spent(url: str, number: int) -> float:
    """Return CPU microseconds per call."""
    async with Client(url) as client:
        await client.call_tool("add", {"a": 0, "b": 1})
        began = time.process_time()
        for item in range(number):
            await client.call_tool("add", {"a": item, "b": 1})
        return (time.process_time() - began) / number * 1e6


async def calls(number: int) -> dict[str, float]:
    """Measure a server without a console, with one, and with an open page."""
    plain, looked_at = adding(), adding()
    console = Console(looked_at)
    site = attach_console(looked_at, ConsoleAccess(), b"benchmark", make=lambda: console)
    stop, serving, urls = asyncio.Event(), [], []
    for server in (plain, looked_at):
        ready: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        serving.append(asyncio.create_task(serve_http(server, port=0, on_ready=ready.set_result, stop=stop)))
        urls.append(await ready)
    assert site._exchange is not None
    async with console.lifespan(), Client(console.server, log_level="debug", timeout=None) as page:
        console.attach_exchange(site._exchange)
        without, unseen = await spent(urls[0], number), await spent(urls[1], number)
        watching = asyncio.create_task(page.call_tool("watch", {"topics": TOPICS}))
        await asyncio.sleep(0.3)
        watched = await spent(urls[1], number)
        watching.cancel()
        await asyncio.wait([watching])
    stop.set()
    await asyncio.gather(*serving)
    more = {"unseen_more": 100 * (unseen / without - 1), "watched_more": 100 * (watched / unseen - 1)}
    return {"without": without, "unseen": unseen, "watched": watched, **more}


def painted(loads: int) -> list[dict[str, float]]:
    sys.path.insert(0, str(ROOT / "tests"))
    from support import chromium  # needs the packages of the tests

    command = [sys.executable, "-m", "portico", "serve", str(SERVER), "--transport", "http", "--port", "0"]
    child = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert child.stderr is not None
        link = next(match[0] for line in child.stderr if (match := re.search(r"http://\S+/#token=\S+", line)))
        with chromium.running(chromium.executable()) as browser:
            return loaded(browser, link, loads)
    finally:
        child.terminate()
        child.wait(30)


def loaded(browser: Any, link: str, loads: int) -> list[dict[str, float]]:
    page = browser.new_context(viewport={"width": 1280, "height": 800}).new_page()
    page.goto(link)
    page.locator("[role=option]").first.wait_for()
    results = []
    for _ in range(loads):
        page.goto("about:blank")
        page.goto(link.split("#")[0])
        result = page.evaluate(PAINTS)
        results.append({"paint": result["first-paint"], "listed": result["listed"]})
    return results


def measure(size: Size) -> Table:
    answers, ours = Answers(), this_tree()
    number, loads = (CALLS // 20, 3) if size.quick else (CALLS, LOADS)
    take_turns(
        answers, size.rounds, [(ours, tuple(item.key for item in CALL_QUESTIONS), lambda: asyncio.run(calls(number)))]
    )
    paints = iter(painted(loads))
    take_turns(answers, loads, [(ours, tuple(item.key for item in PAINT_QUESTIONS), lambda: next(paints))])
    return Table("The console", [Grid((*CALL_QUESTIONS, *PAINT_QUESTIONS), [ours])], answers, goals(answers))


def goals(answers: Answers) -> list[Goal]:
    return [
        limit("a page that watches adds at most 5 %", answers.value("watched_more", "portico"), 5, "%"),
        limit("first paint under 300 ms", answers.value("paint", "portico"), 300, "ms"),
    ]
