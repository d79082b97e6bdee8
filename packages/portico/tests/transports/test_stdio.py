"""The stdio transport in the client: a child process, its pipes and its end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from portico.protocol.meta import CLIENT_CAPABILITIES_META_KEY, PROTOCOL_VERSION_META_KEY
from portico.transports.stdio import MAX_MESSAGE_BYTES, LineDecoder

SERVER = """
import asyncio, ctypes, os, sys, time
from portico import Context, Server

server = Server("child", version="1.0.0")

@server.tool
async def echo(text: str) -> str:
    return text

@server.tool
async def slow(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return "done"

@server.tool
def blocked(seconds: float) -> str:
    time.sleep(seconds)
    return "done"

@server.tool
def noisy() -> str:
    print("printed by Python")
    ctypes.CDLL(None).puts(b"printed by C")
    os.write(1, b"written to 1\\n")
    ctypes.CDLL(None).fflush(None)
    return sys.stdin.read() or "stdin is empty"

@server.tool
async def chatty(count: int, ctx: Context) -> str:
    for number in range(count):
        ctx.info("x" * 1000)
    return "said"

if __name__ == "__main__":
    if "--asyncio" in sys.argv:
        sys.modules["uvloop"] = None
    server.run(**({"max_message_size": 10_000} if "--short" in sys.argv else {}))
"""

HELLO = [
    {
        "jsonrpc": "2.0",
        "id": 0,
        "method": "initialize",
        "params": {
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "test", "version": "1"},
        },
    },
    {"jsonrpc": "2.0", "method": "notifications/initialized"},
]


def call(id: int, tool: str, **arguments: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {"name": tool, "arguments": arguments}}


PING = {"jsonrpc": "2.0", "id": 99, "method": "ping"}

Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "child.py"
    path.write_text(textwrap.dedent(SERVER))
    return path


@pytest.fixture
def start(script: Path) -> Iterator[Start]:
    children: list[subprocess.Popen[bytes]] = []

    def begin(*flags: str, hello: bool = True) -> subprocess.Popen[bytes]:
        child = subprocess.Popen(
            [sys.executable, str(script), *flags],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        children.append(child)
        if hello:
            send(child, *HELLO)
            assert receive(child)["id"] == 0
        return child

    yield begin
    for child in children:
        child.kill()
        child.communicate(timeout=10)


def send(child: subprocess.Popen[bytes], *messages: Any) -> None:
    assert child.stdin is not None
    for message in messages:
        child.stdin.write(message if isinstance(message, bytes) else json.dumps(message).encode() + b"\n")
    child.stdin.flush()


def receive(child: subprocess.Popen[bytes]) -> dict[str, Any]:
    assert child.stdout is not None
    line = child.stdout.readline()
    assert line.endswith(b"\n"), child.stderr.read() if child.stderr else ""
    return json.loads(line)  # type: ignore[no-any-return]


LOOPS = pytest.mark.parametrize("flags", [(), ("--asyncio",)], ids=["uvloop", "asyncio"])


@LOOPS
def test_call_is_answered(start: Start, flags: tuple[str, ...]) -> None:
    child = start(*flags)
    send(child, call(1, "echo", text="hi"))
    assert receive(child)["result"]["content"] == [{"type": "text", "text": "hi"}]


@LOOPS
def test_end_of_input_ends_the_process_with_status_zero_and_nothing_more_on_stdout(
    start: Start, flags: tuple[str, ...]
) -> None:
    child = start(*flags)
    out, err = child.communicate(timeout=10)
    assert (child.returncode, out, err) == (0, b"", b"")


def test_prints_of_python_and_of_c_land_on_stderr(start: Start) -> None:
    child = start()
    send(child, call(1, "noisy"))
    assert receive(child)["result"]["content"][0]["text"] == "stdin is empty"
    out, err = child.communicate(timeout=10)
    assert out == b""
    assert b"printed by Python" in err
    assert b"printed by C" in err
    assert b"written to 1" in err


@LOOPS
def test_oversized_line_is_rejected_skipped_and_the_next_one_served(start: Start, flags: tuple[str, ...]) -> None:
    child = start("--short", *flags)
    send(child, b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"x":"' + b"y" * 1_000_000 + b'"}}\n', PING)
    refusal, pong = receive(child), receive(child)
    assert refusal["error"]["code"] == -32600
    assert "id" not in refusal
    assert "10000 bytes" in refusal["error"]["message"]
    assert pong == {"jsonrpc": "2.0", "id": 99, "result": {}}


def test_message_of_four_megabytes_is_served(start: Start) -> None:
    child = start()
    text = "x" * (MAX_MESSAGE_BYTES - 200)
    send(child, call(1, "echo", text=text))
    assert receive(child)["result"]["content"][0]["text"] == text


def test_crlf_and_blank_lines_are_no_messages(start: Start) -> None:
    child = start()
    send(child, b"\r\n\n  \n" + json.dumps(PING).encode() + b"\r\n")
    assert receive(child)["id"] == 99


@LOOPS
def test_last_line_without_a_newline_is_served(start: Start, flags: tuple[str, ...]) -> None:
    child = start(*flags)
    send(child, json.dumps(PING).encode())
    out, _ = child.communicate(timeout=10)
    assert json.loads(out)["id"] == 99
    assert child.returncode == 0


def test_half_a_line_at_the_end_is_a_parse_error_and_no_crash(start: Start) -> None:
    child = start()
    send(child, b'{"jsonrpc":"2.0","id":1,"meth')
    out, err = child.communicate(timeout=10)
    assert json.loads(out)["error"]["code"] == -32700
    assert (child.returncode, err) == (0, b"")


def test_calls_in_flight_at_the_end_of_input_are_given_a_moment(start: Start) -> None:
    child = start()
    send(child, call(1, "slow", seconds=0.3))
    out, _ = child.communicate(timeout=10)
    assert json.loads(out)["result"]["content"][0]["text"] == "done"
    assert child.returncode == 0


@LOOPS
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_ends_the_process_with_status_zero(start: Start, flags: tuple[str, ...], number: int) -> None:
    child = start(*flags)
    child.send_signal(number)
    assert child.wait(timeout=10) == 0


def start_one_that_is_asked_to_end_while_it_is_busy(start: Start, tool: str) -> subprocess.Popen[bytes]:
    """It has seen the signal: its stream has ended. Two that come before it looks are one."""
    child = start(hello=False)
    meta = {PROTOCOL_VERSION_META_KEY: "2026-07-28", CLIENT_CAPABILITIES_META_KEY: {}}
    listen = {"notifications": {"toolsListChanged": True}, "_meta": meta}
    busy = {"name": tool, "arguments": {"seconds": 60}, "_meta": meta}
    send(
        child,
        {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": busy},
        {"jsonrpc": "2.0", "id": 2, "method": "subscriptions/listen", "params": listen},
    )
    assert receive(child)["method"] == "notifications/subscriptions/acknowledged"
    child.send_signal(signal.SIGTERM)
    assert receive(child)["id"] == 2
    return child


def test_second_signal_does_not_wait_for_the_calls_in_flight(start: Start) -> None:
    child = start_one_that_is_asked_to_end_while_it_is_busy(start, "slow")
    child.send_signal(signal.SIGTERM)
    assert child.wait(timeout=4) == 0


def test_body_that_blocks_a_thread_does_not_hold_the_process(start: Start) -> None:
    child = start_one_that_is_asked_to_end_while_it_is_busy(start, "blocked")
    child.send_signal(signal.SIGTERM)
    assert child.wait(timeout=15) == 0


@LOOPS
def test_closed_stdout_ends_the_process_quietly(start: Start, flags: tuple[str, ...]) -> None:
    child = start(*flags)
    assert child.stdout is not None
    child.stdout.close()
    with suppress(BrokenPipeError):
        # On some loops the server notices before we say anything.
        send(child, PING)
    assert child.wait(timeout=10) == 0
    assert child.stderr is not None
    assert child.stderr.read() == b""


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="a dead parent is noticed through a pidfd, which Linux has")
def test_dead_parent_ends_the_process_although_its_input_stays_open(script: Path) -> None:
    reading, writing = os.pipe()
    middle = (
        "import os, subprocess, sys, time\n"
        f"child = subprocess.Popen([sys.executable, {str(script)!r}], stdin={reading}, stdout=subprocess.DEVNULL)\n"
        "print(child.pid, flush=True)\n"
        "sys.stdin.read()\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", middle], stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=[reading]
    )
    try:
        assert parent.stdout is not None
        grandchild = int(parent.stdout.readline())
        os.write(writing, json.dumps(HELLO[0]).encode() + b"\n")
        watched = os.pidfd_open(grandchild)
        _until_it_reads(grandchild)
        parent.kill()
        parent.wait(timeout=10)
        assert _ended(watched, 10)
        os.close(watched)
    finally:
        parent.kill()
        parent.communicate(timeout=10)
        os.close(reading)
        os.close(writing)


def _until_it_reads(pid: int) -> None:
    """Until the server has a pidfd of its own: only then does it know its parent."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        if any("pidfd" in _link(entry) for entry in Path(f"/proc/{pid}/fd").iterdir()):
            return
        time.sleep(0.01)
    raise AssertionError("the server never watched its parent")


def _link(entry: Path) -> str:
    """What a descriptor of another process is; it may have closed it while we looked."""
    try:
        return os.readlink(entry)
    except FileNotFoundError:
        return ""


def _ended(pidfd: int, seconds: float) -> bool:
    import select

    return bool(select.select([pidfd], [], [], seconds)[0])


@LOOPS
def test_client_that_does_not_read_is_not_read_from_and_memory_stays_bounded(
    start: Start, flags: tuple[str, ...]
) -> None:
    child = start(*flags)
    assert child.stdin is not None
    os.set_blocking(child.stdin.fileno(), False)
    request = json.dumps(call(1, "chatty", count=50)).encode() + b"\n"
    written = 0
    for _ in range(200_000):
        try:
            written += os.write(child.stdin.fileno(), request * 50)
        except BlockingIOError:
            break
    else:
        raise AssertionError("the server reads without end although nobody reads its answers")
    status = Path(f"/proc/{child.pid}/status")
    if status.exists():
        resident = next(int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith("VmRSS"))
        assert resident < 300_000


def test_input_from_a_file_is_served_to_its_end(script: Path, tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text("".join(json.dumps(item) + "\n" for item in [*HELLO, PING, call(1, "echo", text="x")]))
    target = tmp_path / "out.jsonl"
    with source.open("rb") as stdin, target.open("wb") as stdout:
        done = subprocess.run([sys.executable, str(script)], stdin=stdin, stdout=stdout, timeout=20, check=False)
    assert done.returncode == 0
    assert [json.loads(line)["id"] for line in target.read_text().splitlines()] == [0, 99, 1]


@pytest.mark.requirement("stdio.lines")
def test_lines_are_the_same_however_the_bytes_arrive() -> None:
    data = b"one\ntwo\n\nthree" + b"!" * 30 + b"\nfour\n"
    whole = LineDecoder(max_line_bytes=20)
    expected = whole.feed(data)
    assert expected == [b"one", b"two", None, b"four"]
    for size in range(1, len(data)):
        split = LineDecoder(max_line_bytes=20)
        results = [line for start in range(0, len(data), size) for line in split.feed(data[start : start + size])]
        assert results == expected
