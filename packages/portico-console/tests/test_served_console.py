"""The console of `portico serve`: several processes, login from other machines, a new link."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from support.console_server import Page
from support.worker_processes import Session

PORTICO = [sys.executable, "-m", "portico"]
FILE = """\
import os
from portico import Context, Server
server = Server("asking")

@server.tool
async def greet(ctx: Context) -> str:
    answer = await ctx.elicit("Your name?", str)
    return f"hello {answer.data}"

@server.tool
def process() -> int:
    return os.getpid()
"""

Serve = Callable[..., str]


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "asking.py"
    path.write_text(FILE)
    return str(path)


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Runs a command; gives the link that it prints."""
    children = []

    def begin(*words: str) -> str:
        command = [*PORTICO, *words, "--data", str(tmp_path / "data")]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        children.append(child)
        assert child.stdout is not None
        output = next(
            output for line in child.stdout if (output := re.search(r"http://\S+#token=\S+|`portico .*`", line))
        )
        if output[0].startswith("http"):
            return output[0]
        # A pipe is not a terminal: the line names the command that prints a link.
        command = [*PORTICO, *shlex.split(output[0].strip("`"))[1:]]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.strip()

    yield begin
    for child in children:
        child.terminate()
        child.communicate(timeout=30)


async def signed_in(link: str) -> Page:
    url, _, token = link.partition("#token=")
    page = Page(url, None)  # type: ignore[arg-type]
    assert (await page.sign_in(token)).status == 200
    return page


async def ask(page: Page, tool: str, **arguments: Any) -> Any:
    """Each time by another connection, which another process may have."""
    answer = await page.call(tool, arguments, accept="application/json")
    return json.loads(answer.body)["result"]["structuredContent"]


@pytest.mark.skipif(sys.platform == "win32", reason="there are no workers on Windows")
async def test_with_several_workers_there_is_one_console(
    serve: Serve, file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PORTICO_TOKEN", "a-token-of-all")
    page = await signed_in(serve("serve", file, "--port", "0", "--workers", "2"))
    parts = await ask(page, "about")
    assert "workers" in parts["parts"]
    running = asyncio.create_task(ask(page, "call_tool", target="self", name="greet"))
    questions: list[Any] = []
    for _ in range(500):
        questions = (await ask(page, "list_questions"))["questions"]
        if questions:
            break
        await asyncio.sleep(0.01)
    # Whichever worker has accepted these connections.
    for _ in range(5):
        assert (await ask(page, "list_questions"))["questions"] == questions
    await ask(page, "answer", question=questions[0]["id"], action="accept", content={"value": "Ann"})
    assert (await running)["result"]["content"][0]["text"] == "hello Ann"
    workers = (await ask(page, "workers"))["workers"]
    assert len(workers) == 2 and all(item["state"] == "serving" for item in workers)
    # Their messages are those of one of them, and that is said.
    assert (await ask(page, "wire"))["one_worker"] is True
    # Clients of both workers are seen.
    begun = set()
    for _ in range(8):
        session = Session(urlsplit(page.origin).port or 0)
        session.fields["authorization"] = "Bearer a-token-of-all"
        begun.add((await session.begin()).fields["mcp_session_id"][:8])
    for _ in range(500):
        seen = await ask(page, "sessions")
        if seen["total"] == 8:
            break
        await asyncio.sleep(0.05)
    assert {item["id"] for item in seen["sessions"]} == begun
    assert {item["client"]["name"] for item in seen["sessions"]} == {"a test"}
    assert (await page.request("POST", "/console/logout", {}, page.proof)).status == 204
    assert {(await page.call("about")).status for _ in range(5)} == {401}
    # A token is remembered where it will be looked for.
    for _ in range(3):
        assert (await page.sign_in("a-token-of-all")).status == 200
        assert {(await page.call("about")).status for _ in range(3)} == {200}


async def test_console_command_prints_a_new_link_to_the_operator(serve: Serve, file: str, tmp_path: Path) -> None:
    # The port is known only when it is open; so it is kept by the name that it has then.
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    link = serve("serve", file, "--port", str(port))
    await signed_in(link)
    command = [*PORTICO, "console", f"http://127.0.0.1:{port}", "--data", str(tmp_path / "data")]
    output = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=60)
    assert output.returncode == 0, output.stderr
    await signed_in(output.stdout.strip())
    other = [*PORTICO, "console", f"http://127.0.0.1:{port}", "--data", str(tmp_path / "others")]
    output = await asyncio.to_thread(subprocess.run, other, capture_output=True, text=True, timeout=60)
    assert output.returncode == 2 and "serves nothing" in output.stderr


async def test_console_for_any_server(serve: Serve, file: str) -> None:
    page = await signed_in(serve("console", file))
    for _ in range(500):
        [target] = (await ask(page, "list_targets"))["targets"]
        if target["state"] == "open":
            break
        await asyncio.sleep(0.01)
    assert target["server"]["name"] == "asking" and target["id"] == "t1"
    # The door for the page is no server for clients.
    assert (await page.request("POST", "/mcp", {}, page.proof)).status == 401


@pytest.mark.parametrize(
    "words, why",
    [
        (["serve", "{file}", "--port", "0", "--console", "sometimes"], "off, local or scope:NAME"),
        (["console", "absent.py"], "file absent.py not found"),
        (["dev", "absent.py"], "file not found: absent.py"),
        (["dev", "some:thing"], "expected path/to/file.py"),
    ],
    ids=str,
)
def test_mistakes_are_reported_in_a_sentence(words: list[str], why: str, file: str) -> None:
    command = [*PORTICO, *(word.format(file=file) for word in words)]
    output = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert output.returncode == 2 and why in output.stderr and "Traceback" not in output.stderr
