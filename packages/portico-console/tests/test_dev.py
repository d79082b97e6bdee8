"""`portico dev` reloads a changed file and keeps connections open. Source: docs/how-to/use-the-console.md."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from portico import Client, Server, SyncClient, UsageError
from portico.cli.reloader import Reloader
from portico.extend import serve_http
from portico_console import Console

FILE = """\
from contextlib import asynccontextmanager
from beside import WORD
from portico import Server

@asynccontextmanager
async def life(server):
    print("begins", NUMBER)
    yield NUMBER
    print("ends", NUMBER)

NUMBER = {number}
server = Server("growing", version="{number}", lifespan=life)

@server.tool
def tool_{number}() -> str:
    return WORD + str(server.lifespan_state)
"""


@pytest.fixture
def file(tmp_path: Path) -> Iterator[Path]:
    before = set(sys.modules)
    (tmp_path / "beside.py").write_text("WORD = 'a'\n")
    path = tmp_path / "growing.py"
    path.write_text(FILE.format(number=1))
    yield path
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


def write(path: Path, text: str) -> None:
    """A moment later than before, whatever the clock of the file system is worth."""
    later = path.stat().st_mtime_ns + 10_000_000
    path.write_text(text)
    os.utime(path, ns=(later, later))


@asynccontextmanager
async def developed(file: Path) -> AsyncIterator[tuple[str, Reloader, Server]]:
    reloader = Reloader(str(file))
    server = reloader.load_initial()
    stop = asyncio.Event()
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(serve_http(server, port=0, on_ready=ready.set_result, stop=stop))
    following = asyncio.create_task(reloader.watch(server))
    try:
        yield await asyncio.wait_for(ready, 20), reloader, server
    finally:
        following.cancel()
        stop.set()
        await serving


@pytest.mark.parametrize("revision", ["2025-06-18", "2026-07-28"])
async def test_clients_keep_their_connection_and_are_informed(file: Path, revision: Any) -> None:
    async with developed(file) as (url, _, _), Client(url, protocol_version=revision) as client:
        assert (await client.call_tool("tool_1")).text == "a1"
        async with client.listen(tools=True) as changes:
            write(file, FILE.format(number=2))
            assert (await asyncio.wait_for(anext(aiter(changes)), 20)).kind == "tools"
        assert [tool.name for tool in await client.list_tools()] == ["tool_2"]
        assert (await client.call_tool("tool_2")).text == "a2"


async def test_mistake_leaves_the_last_good_version(file: Path) -> None:
    async with developed(file) as (url, reloader, server), Client(url) as client:
        result = asyncio.Event()
        reloader.listeners.append(result.set)
        write(file, "from portico import Server\nserver = Server(\n")
        await asyncio.wait_for(result.wait(), 20)
        assert reloader.state.state == "broken" and reloader.state.line == 2 and reloader.state.loads == 1
        assert "SyntaxError" in str(reloader.state.error) and str(file.parent) not in str(reloader.state.error)
        assert (await client.call_tool("tool_1")).text == "a1"
        # The page is shown it.
        console = Console(server, mode="dev", reloader=reloader)
        async with console.lifespan(), Client(console.server) as page:
            said = (await page.call_tool("dev_state")).structured
            assert said["state"] == "broken" and said["line"] == 2
            result.clear()
            write(file, FILE.format(number=3))
            await asyncio.wait_for(result.wait(), 20)
            assert reloader.state.state == "ok" and reloader.state.loads == 2
            items = (await page.call_tool("list_items", {"target": "self", "kind": "tools"})).structured["items"]
            assert [item["name"] for item in items] == ["tool_3"]


@pytest.mark.parametrize(
    "text, message",
    [
        ("x = 1\ndef f(:\n", "growing.py, line 2: SyntaxError: invalid syntax\n    def f(:"),
        (
            "import beside\nbeside.fail()\n",
            "growing.py cannot be loaded: RuntimeError: second\n  growing.py, line 2, in <module>\n    beside.fail()\n"
            '  beside.py, line 5, in fail\n    raise RuntimeError("second")',
        ),
        (
            "from portico import Server\nserver = Server('x')\n@server.tool\ndef f(a: Server) -> int: ...\n",
            "growing.py cannot be loaded: f.a: Server cannot be described as JSON Schema.",
        ),
        ("raise SystemExit(3)\n", "growing.py cannot be loaded: SystemExit: 3\n  growing.py, line 1, in <module>"),
    ],
)
def test_error_in_the_file_is_one_message_with_the_users_frames(
    file: Path, text: str, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    write(
        file.with_name("beside.py"),
        'def fail():\n    try:\n        1 / 0\n    except ArithmeticError:\n        raise RuntimeError("second")\n',
    )
    write(file, text)
    reloader = Reloader(str(file))
    reloader.load_initial()
    error = str(reloader.state.error)
    assert error.startswith(message)
    assert "Traceback" not in error and "During handling" not in error and "portico/" not in error
    # `portico dev` prints the error itself; a log record would repeat it.
    assert caplog.records == []


async def test_module_next_to_the_server_file_is_reloaded(file: Path) -> None:
    async with developed(file) as (url, reloader, _), Client(url) as client:
        result = asyncio.Event()
        reloader.listeners.append(result.set)
        write(file.with_name("beside.py"), "WORD = 'b'\n")
        await asyncio.wait_for(result.wait(), 20)
        assert (await client.call_tool("tool_1")).text == "b1"


async def test_version_before_is_left_and_the_new_one_entered(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with developed(file) as (_, reloader, server):
        result = asyncio.Event()
        reloader.listeners.append(result.set)
        write(file, FILE.format(number=2))
        await asyncio.wait_for(result.wait(), 20)
        assert server.version == "2" and server.lifespan_state == 2
    assert capsys.readouterr().out.split("\n")[:-1] == ["begins 1", "begins 2", "ends 1", "ends 2"]


async def test_file_that_is_broken_at_the_start_is_served_when_it_is_mended(file: Path) -> None:
    write(file, "nonsense(")
    async with developed(file) as (url, reloader, _), Client(url) as client:
        assert reloader.state.state == "broken" and await client.list_tools() == []
        result = asyncio.Event()
        reloader.listeners.append(result.set)
        write(file, FILE.format(number=4))
        await asyncio.wait_for(result.wait(), 20)
        assert (await client.call_tool("tool_4")).text == "a4"


def test_only_files_of_python_are_taken(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="expected path/to/file"):
        Reloader("module:object")
    with pytest.raises(UsageError, match="file not found"):
        Reloader(str(tmp_path / "absent.py"))


def test_dev_without_the_console_package_serves_and_names_it(file: Path, tmp_path: Path) -> None:
    words = ["dev", str(file), "--port", "0", "--data", str(tmp_path / "data")]
    code = f"import sys; sys.modules['portico_console'] = None\nfrom portico.cli.main import main; main({words!r})"
    child = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True)
    try:
        assert child.stderr is not None
        first, second = child.stderr.readline(), child.stderr.readline()
        assert "Console: not installed; install it with pip install " in second
        url = first.split()[-1]
        with SyncClient(url) as client:
            assert client.call_tool("tool_1").text == "a1"
    finally:
        child.terminate()
        child.communicate(timeout=20)


def test_dev_reports_errors_with_line_and_reloads(file: Path, tmp_path: Path) -> None:
    words = ["dev", str(file), "--port", "0", "--data", str(tmp_path / "data")]
    child = subprocess.Popen([sys.executable, "-m", "portico", *words], stderr=subprocess.PIPE, text=True)
    ending = threading.Timer(60, child.kill)  # ends the lines that are waited for
    ending.start()
    try:
        assert child.stderr is not None
        assert any("Serving" in line for line in child.stderr)
        write(file, "from portico import Server\nserver = Server(\n")
        assert any(f"{file.name}, line 2: SyntaxError" in line for line in child.stderr)
        write(file, FILE.format(number=3))
        assert any(f"{file.name} reloaded: 1 tool" in line for line in child.stderr)
    finally:
        ending.cancel()
        child.terminate()
        child.communicate(timeout=20)


@pytest.mark.parametrize("command", ["dev", "console", "serve"])
def test_commands_lead_to_a_link(file: Path, command: str, tmp_path: Path) -> None:
    """`portico console` prints it; a server whose output is a pipe names the command that does."""
    options = ["--transport", "http"] if command == "serve" else []
    data = ["--data", str(tmp_path / "da ta")]
    portico = [sys.executable, "-m", "portico"]
    child = subprocess.Popen(
        [*portico, command, str(file), "--port", "0", *data, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        assert child.stdout is not None
        link = ""
        for line in child.stdout:
            if match := re.search(r"`portico (console .*)`", line):
                words = shlex.split(match[1])
                link = subprocess.run([*portico, *words], capture_output=True, text=True, timeout=60).stdout
                break
            if "#token=" in line:
                assert command == "console"
                link = line
                break
        assert re.search(r"http://127\.0\.0\.1:\d+/#token=[\w.=-]+$", link.strip())
    finally:
        child.terminate()
        child.communicate(timeout=20)
    assert child.returncode == 0
