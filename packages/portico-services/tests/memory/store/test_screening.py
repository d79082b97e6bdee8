"""Screening of secrets and personal data before storage, by setting and by entry point."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from portico import Client, UsageError, screening
from portico_services import assembly, text as texts
from portico_services.memory.service import Memory
from portico_services.memory.store import screening as screening_policy
from portico_services.memory.store.screening import ContentScreen
from support.engines import sqlite_engine  # noqa: F401
from support.memories import CAPTURE, KEY, call_failing_tool, call_tool

Serving = Callable[..., Any]
MAIL = "ann.lee" + "@" + "lindholm-bakery.se"
PERSONAL = f"Write to {MAIL} about the invoice"


async def test_personal_data_is_stored_and_reported_by_default(serving: Serving) -> None:
    client = await serving()
    captured = await call_tool(client, "memory_capture", content=PERSONAL, namespace="context")
    assert captured["contains"] == ["email"] and not captured["redacted"]
    assert "email" in captured["notes"][0] and MAIL not in json.dumps(captured)
    assert MAIL in (await call_tool(client, "memory_get", memory_id=captured["id"]))["content"]
    assert (await call_tool(client, "memory_status"))["personal"] == "allow"


async def test_personal_data_is_blocked_or_redacted_by_setting(serving: Serving) -> None:
    _, error = await call_failing_tool(
        await serving(pii="block"), "memory_capture", content=PERSONAL, namespace="context"
    )
    assert (error["number"], error["found"]) == (-32605, ["email"])
    client = await serving(pii="redact", tool_prefix="other")
    captured = await call_tool(client, "other_capture", content=PERSONAL, namespace="context", author=MAIL)
    assert captured["redacted"]
    kept = await call_tool(client, "other_get", memory_id=captured["id"])
    assert MAIL not in json.dumps(await call_tool(client, "other_history", memory_id=captured["id"]))
    assert kept["content"] == "Write to [REDACTED:email] about the invoice"
    assert MAIL not in json.dumps(kept)


async def test_screening_action_can_be_set_per_kind(serving: Serving) -> None:
    client = await serving(pii="block", screening={"email": "allow"})
    assert (await call_tool(client, "memory_capture", content=PERSONAL, namespace="context"))["contains"] == ["email"]
    other = await serving(tool_prefix="other", screening={"aws_access_key": "redact"})
    assert (await call_tool(other, "other_capture", content=f"The key is {KEY}", namespace="config"))["redacted"]
    for wrong in ({"emial": "allow"}, {"email": "perhaps"}, "email"):
        with pytest.raises(UsageError):
            Memory(screening=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("field", ["source", "thread", "author", "branch", "path", "tags"])
async def test_secret_is_detected_in_every_field(serving: Serving, field: str) -> None:
    client = await serving()
    value = [KEY] if field == "tags" else f"see {KEY}"
    text, error = await call_failing_tool(client, "memory_capture", **CAPTURE, **{field: value})
    assert error["number"] == -32605 and KEY not in text
    id = (await call_tool(client, "memory_capture", **CAPTURE))["id"]
    for arguments in ({"tags": [KEY]}, {"content": "x", "reason": f"because of {KEY}"}):
        _, error = await call_failing_tool(client, "memory_update", memory_id=id, **arguments)
        assert error["number"] == -32605
    await call_failing_tool(client, "memory_delete", memory_id=id, reason=f"because of {KEY}")


async def test_user_domain_has_no_other_access_path(serving: Serving) -> None:
    client = await serving()
    line = {"content": "fine", "namespace": "config", "source": f"see {KEY}", "tags": ["x"]}
    for data in (line, {**line, "source": "x", "tags": [KEY]}, {**line, "source": "x", "author": KEY}):
        assert (await call_tool(client, "memory_import", data=json.dumps(data)))["refused"] == 1
    save = {"action": "save", "name": "x", "content": "fine", "description": f"the key {KEY}"}
    await call_failing_tool(client, "memory_prompts", **save)
    assert (await call_tool(client, "memory_status"))["total"] == 0


async def test_long_text_is_screened_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[threading.Thread] = []
    screen = screening.screen

    def noted(*given: Any, **more: Any) -> Any:
        threads.append(threading.current_thread())
        return screen(*given, **more)

    monkeypatch.setattr(screening, "screen", noted)
    long = "a line of prose without anything in it\n" * 2_000
    await ContentScreen().screen("short")
    await ContentScreen().screen(long)
    assert threads[0] is threading.main_thread() and threads[1] is not threading.main_thread()


async def test_too_long_content_is_rejected_before_screening(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    client = await serving()
    monkeypatch.setattr(screening, "screen", lambda *_, **__: pytest.fail("it was looked through"))
    for tool, more in (("memory_capture", {"namespace": "context"}), ("memory_update", {"memory_id": "abcd"})):
        text, error = await call_failing_tool(client, tool, content="x" * 3_000_000, **more)
        assert error["number"] == -32608 and "200,000" in text


async def test_event_loop_runs_while_a_long_text_is_screened(serving: Serving) -> None:
    client = await serving()
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    counting = asyncio.create_task(count())
    await call_tool(client, "memory_capture", content="word " * 39_000, namespace="context")
    counting.cancel()
    assert turns > 20


# Settings from a file


async def from_file(tmp_path: Path, text: str, *, read_only: bool = False) -> Any:
    path = tmp_path / "portico.toml"
    path.write_text(text)
    place = assembly.ServiceEnvironment(data=tmp_path, store=str(tmp_path / "kept.db"), read_only=read_only)
    return assembly.build_server(["memory"], assembly.read_settings(None, str(path)), place)


async def test_every_setting_can_be_made_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_model.py").write_text("async def answer(question, tokens):\n    return 'chosen'\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    server = await from_file(
        tmp_path,
        f"""
        [services.memory]
        store = "{tmp_path}/other.db"
        tools = "all"
        secrets = "redact"
        pii = "block"
        project = "somebody/something"
        project_dir = "{tmp_path}"
        model = "own_model:answer"
        [services.memory.screening]
        ip_address = "allow"
        """,
    )
    async with server.lifespan(), Client(server) as client:
        assert "memory_erase" in {tool.name for tool in await client.list_tools()}
        text = f"The key {KEY} is for 85.214.17.92"
        captured = await call_tool(client, "memory_capture", content=text, namespace="config")
        assert captured["redacted"] and captured["contains"] == ["ip_address"]
        await call_failing_tool(client, "memory_capture", content=PERSONAL, namespace="config")
        status = await call_tool(client, "memory_status")
        assert (status["project"], status["secrets"], status["personal"]) == ("somebody/something", "redact", "block")
        assert (await call_tool(client, "memory_enrich", memory_id=captured["id"]))["by"] == "provider"
    assert (tmp_path / "other.db").exists()


@pytest.mark.parametrize(
    "wrong",
    [
        'secrets = "maybe"',
        "pii = 1",
        'screening = "email"',
        'screening = {emial = "allow"}',
        'tools = "some"',
        'model = "nowhere:at_all"',
        'model = "os"',
        "colour = 3",
    ],
)
async def test_setting_without_effect_is_rejected_at_start(tmp_path: Path, wrong: str) -> None:
    with pytest.raises(UsageError, match="memory"):
        await from_file(tmp_path, f"[services.memory]\n{wrong}\n")


async def test_read_only_on_the_command_line_is_stronger_than_a_file(tmp_path: Path) -> None:
    server = await from_file(tmp_path, "[services.memory]\nread_only = false\n", read_only=True)
    async with server.lifespan(), Client(server) as client:
        assert "read-only" in (await call_failing_tool(client, "memory_capture", **CAPTURE))[0]


@pytest.mark.parametrize("personal", ["allow", "redact"])
@pytest.mark.parametrize(
    "text", ["", "plain", PERSONAL, f"{KEY} {MAIL}", f"password: {MAIL}", f"https://u:{KEY}@h/?m={MAIL}"]
)
def test_single_text_is_screened_like_a_batch(text: str, personal: screening_policy.ScreeningAction) -> None:
    """Also where what is allowed overlaps with what is not."""
    guard = ContentScreen("redact", personal)
    together = guard.scan(["plain", text])
    assert guard.screen_text(text) == (together.texts[1], together.redacted)


# Texts


def test_unstorable_characters_become_replacement_characters() -> None:
    assert texts.replace_unstorable("a\0b\ud800c\udfff") == "a\ufffdb\ufffdc\ufffd"
    assert texts.replace_unstorable("\ud83d\ude00 and é") == "😀 and é"
    assert texts.replace_unstorable("plain") == "plain"


async def test_that_something_could_not_be_stored_is_reported(serving: Serving) -> None:
    client = await serving()
    captured = await call_tool(client, "memory_capture", content="before\0after", namespace="context")
    assert "1 characters" in captured["notes"][0] and "U+FFFD" in captured["notes"][0]
    changed = await call_tool(client, "memory_update", memory_id=captured["id"], content="a\0\0b")
    assert changed["content"] == "a\ufffd\ufffdb" and "2 characters" in changed["notes"][0]
    assert "notes" not in await call_tool(client, "memory_update", memory_id=captured["id"], content="whole")
