"""`portico record` and `portico replay`, on every protocol version and transport."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from portico import Client, ProtocolError, UsageError
from portico.protocol.versions import FIRST_MODERN_VERSION, SUPPORTED_PROTOCOL_VERSIONS, V2025_06_18
from portico.testing.recording.file import Recorder
from portico.testing.recording.replay import ReplayHandler
from support.forks import ForkServer

PORTICO = [sys.executable, "-m", "portico"]
SHOP = '''
from portico import Context, Server

server = Server("shop", version="3.1")
sold = []


@server.tool
async def sell(what: str, ctx: Context) -> str:
    """Sell something, if they are sure."""
    answer = await ctx.elicit(f"Sell {what}?", bool)
    await ctx.report_progress(1, 2, "asked")
    if answer.action == "accept" and answer.data:
        await ctx.step("sell", lambda: sold.append(what))
    return f"{len(sold)} sold"


@server.tool
async def count(ctx: Context) -> int:
    """How many were sold."""
    await ctx.report_progress(1, 1, "counted")
    return len(sold)


@server.tool
def login(password: str) -> str:
    """Log in."""
    return f"your token is ghp_{'a1B2c3D4e5F6' * 3}"


@server.resource("shop://hours", mime_type="text/plain")
def hours() -> str:
    return "nine to five"
'''
ELICITING = [revision for revision in SUPPORTED_PROTOCOL_VERSIONS if revision >= V2025_06_18]


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("shop") / "shop.py"
    path.write_text(SHOP)
    return path


async def use(target: Any, revision: str) -> list[Any]:
    """What a client does that is recorded, and does again."""
    steps: list[Any] = []
    asks = {"elicitation_handler": lambda question: {"value": True}} if revision in ELICITING else {}
    async with Client(target, protocol_version=revision, **asks) as client:
        assert client.server_info.name == "shop"
        seen = [sorted(tool.name for tool in await client.list_tools())]
        # The same asked twice is answered differently.
        for _ in range(2):
            if asks:
                seen.append(
                    (
                        await client.call_tool(
                            "sell", {"what": "tea"}, progress_handler=lambda *step: steps.append(step)
                        )
                    ).text
                )
            seen.append((await client.call_tool("count", progress_handler=lambda *step: steps.append(step))).data)
        seen.append((await client.read_resource("shop://hours"))[0].text)
        try:
            await client.call_tool("nothing")
        except ProtocolError as refusal:
            seen.append((refusal.code, refusal.message))
    return [*seen, list(steps)]


@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_recorded_responses_are_replayed(revision: str, shop: Path, tmp_path: Path) -> None:
    tape = tmp_path / "tape.jsonl"
    then = await use([*PORTICO, "record", str(shop), "-o", str(tape)], revision)
    assert tape.stat().st_mode & 0o777 == 0o600
    # In this process: the same Handler as the command serves.
    replay = ReplayHandler.load(tape)
    assert await use(replay, revision) == then
    assert not replay.unmatched_requests
    assert not replay.unused_requests


@pytest.mark.parametrize(
    ("recorded", "played"), [(V2025_06_18, FIRST_MODERN_VERSION), (FIRST_MODERN_VERSION, V2025_06_18)]
)
async def test_recording_is_played_to_a_client_of_another_revision(
    recorded: str, played: str, shop: Path, tmp_path: Path
) -> None:
    tape = tmp_path / "tape.jsonl"
    then = await use([*PORTICO, "record", "-o", str(tape), "--", *PORTICO, "serve", str(shop)], recorded)
    assert await use(ReplayHandler.load(tape), played) == then


async def test_server_over_http_is_recorded_and_played_over_http(
    fork_server: ForkServer, shop: Path, tmp_path: Path
) -> None:
    tape = tmp_path / "tape.jsonl"
    with served(fork_server, "serve", str(shop)) as url:
        then = await use([*PORTICO, "record", url, "-o", str(tape)], FIRST_MODERN_VERSION)
    with served(fork_server, "replay", str(tape)) as url:
        assert await use(url, FIRST_MODERN_VERSION) == then
    with served(fork_server, "replay", str(tape)) as url:
        assert await use(url, V2025_06_18) == then


async def test_clients_over_http_are_recorded_too(fork_server: ForkServer, shop: Path, tmp_path: Path) -> None:
    tape = tmp_path / "tape.jsonl"
    with served(fork_server, "record", str(shop), "-o", str(tape)) as url:
        then = await use(url, FIRST_MODERN_VERSION)
        older = await use(url, V2025_06_18)
    with served(fork_server, "replay", str(tape)) as url:
        assert await use(url, FIRST_MODERN_VERSION) == then
        assert await use(url, V2025_06_18) == older


@contextmanager
def served(fork_server: ForkServer, *words: str) -> Iterator[str]:
    child = fork_server.start(*words, "--port", "0")
    try:
        yield child.stderr.readline().removeprefix("Serving on ").strip()
    finally:
        child.terminate()
        child.communicate()


@pytest.fixture(scope="module")
def tape(shop: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A login, with a password and a token."""
    path = tmp_path_factory.mktemp("tape") / "tape.jsonl"
    call = [*PORTICO, "call", "login", "password=hunter2-Xk29fLq8", "--"]
    subprocess.run([*call, *PORTICO, "record", str(shop), "-o", str(path)], check=True, capture_output=True, timeout=30)
    return path


def test_secrets_are_not_written_and_still_answered(tape: Path, portico: Callable[..., Any]) -> None:
    text = tape.read_text()
    assert "hunter2" not in text
    assert "ghp_a1B2" not in text
    assert "[REDACTED:" in text
    again = portico("call", "login", "password=hunter2-Xk29fLq8", "--", *PORTICO, "replay", tape)
    assert again.returncode == 0, again.stderr
    assert "your token is [REDACTED:" in again.stdout


def test_log_line_has_a_message_and_its_direction(tape: Path) -> None:
    heading, *lines = map(json.loads, tape.read_text().splitlines())
    assert heading == {"portico_recording": 1}
    assert {line["from"] for line in lines} == {"client", "server"}
    assert lines[0]["message"]["method"] == "server/discover"
    assert [line["at"] for line in lines] == sorted(line["at"] for line in lines)


def test_unrecorded_requests_return_an_error_and_exit_status_1(tape: Path, portico: Callable[..., Any]) -> None:
    result = portico("call", "login", "password=another", "--", *PORTICO, "replay", tape)
    assert result.returncode == 1
    assert "Not recorded: tools/call" in result.stderr
    meta = {
        "io.modelcontextprotocol/protocolVersion": FIRST_MODERN_VERSION,
        "io.modelcontextprotocol/clientCapabilities": {},
        "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "0"},
    }
    request = {"jsonrpc": "2.0", "id": 1, "method": "prompts/list", "params": {"_meta": meta}}
    played = portico("replay", tape, stdin=json.dumps(request) + "\n")
    assert played.returncode == 1
    assert json.loads(played.stdout)["error"]["message"] == (
        "Not recorded: prompts/list {}; no prompts/list request was recorded"
    )
    assert played.stderr == "portico: not recorded: prompts/list {}\n"


async def test_another_answer_to_a_question_was_not_recorded(shop: Path, tmp_path: Path) -> None:
    tape = tmp_path / "tape.jsonl"
    await use([*PORTICO, "record", str(shop), "-o", str(tape)], FIRST_MODERN_VERSION)
    for revision in ELICITING:
        replay = ReplayHandler.load(tape)
        async with Client(replay, protocol_version=revision, elicitation_handler=lambda question: None) as client:
            with pytest.raises(ProtocolError, match="Not recorded"):
                await client.call_tool("sell", {"what": "tea"})
        assert replay.unmatched_requests


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "is not a recording"),
        ('{"portico_recording":2}\n', "unsupported recording format 2"),
        ('{"portico_recording":1}\n{"from":"me"}\n', "line 2: invalid message"),
        ('{"portico_recording":1}\n', "contains no response to initialize"),
    ],
)
def test_invalid_recordings_raise_usage_error(text: str, complaint: str, tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text(text)
    with pytest.raises(UsageError, match=complaint):
        ReplayHandler.load(tmp_path / "x.jsonl")


def test_missing_target_and_a_file_that_cannot_be_written(
    portico: Callable[..., Any], shop: Path, tmp_path: Path
) -> None:
    failed = portico("record", "-o", tmp_path / "t.jsonl", "--", tmp_path / "nothing")
    assert (failed.returncode, failed.stderr.count("\n")) == (3, 1)
    refused = portico("record", shop, "-o", tmp_path / "no" / "t.jsonl")
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)


@pytest.mark.skipif(os.name != "posix", reason="file modes")
def test_an_existing_file_becomes_private_before_a_message_is_written(tmp_path: Path) -> None:
    path = tmp_path / "recording.jsonl"
    path.touch(mode=0o644)
    path.chmod(0o644)
    Recorder(str(path)).close()
    assert path.stat().st_mode & 0o777 == 0o600 and path.stat().st_size
    # A device keeps its mode.
    before = os.stat(os.devnull).st_mode
    Recorder(os.devnull).close()
    assert os.stat(os.devnull).st_mode == before
