"""Event log tools: guessed values are marked, totals are correct, missing data is reported."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from portico import Client, Server
from portico_services.system import System


@asynccontextmanager
async def serving(logs: dict[str, Path], **options: Any) -> AsyncIterator[Client]:
    server = Server("test", version="1")
    server.add(System(**({"logs": logs, "platform_logs": False, "privacy": "off"} | options)))
    async with server.lifespan(), Client(server) as client:
        yield client


async def ask(client: Client, tool: str, **arguments: Any) -> Any:
    return (await client.call_tool(tool, arguments)).structured


async def test_inferred_entry_fields_are_marked_as_guessed(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(
        "2026-01-01T00:00:00Z ERROR shop: all is said\n"
        "2026-01-01 00:00:01 ERROR shop: no zone\n"
        "2026-01-01T00:00:02Z it failed\n"
        "nothing is said\n"
    )
    async with serving({"shop": tmp_path / "log"}) as client:
        entries = (await ask(client, "eventlog_query", logName="shop"))["entries"]
        errors = (await ask(client, "eventlog_query", logName="shop", minLevel="ERROR"))["entries"]
    guesses = [(entry["message"], entry.get("timeGuessed"), entry.get("levelGuessed")) for entry in entries]
    assert guesses == [
        ("nothing is said", "time", True),
        ("it failed", None, True),
        ("no zone", "zone", None),
        ("all is said", None, None),
    ]
    # A line without a time is of the time of the line before it.
    assert entries[0]["timestamp"] == entries[1]["timestamp"] == "2026-01-01T00:00:02Z"
    assert set(entries[3]) == {"id", "logName", "level", "source", "eventId", "message", "timestamp", "computer"}
    assert [entry["message"] for entry in errors] == ["it failed", "no zone", "all is said"]


async def test_missing_log_file_is_reported_as_a_problem(tmp_path: Path) -> None:
    async with serving({"shop": tmp_path / "shop.log"}) as client:
        page = await ask(client, "eventlog_query", logName="shop")
        assert page["entries"] == []
        assert page["problems"] == ["File 'shop.log' does not exist, so the log has no entries."]
        [listed] = (await ask(client, "eventlog_list_logs"))["logs"]
        assert "File 'shop.log' does not exist" in listed["description"]
        assert (await ask(client, "eventlog_stats", logName="shop"))["problems"]


async def test_list_of_logs_has_their_numbers_of_entries(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("one\n  of two lines\ntwo\n")
    async with serving({"shop": tmp_path / "log"}) as client:
        [listed] = (await ask(client, "eventlog_list_logs"))["logs"]
        assert (listed["entries"], listed["size"]) == (2, 23)


async def test_ends_of_lines_are_shown_as_such_however_they_are_written(tmp_path: Path) -> None:
    message = {"time": "2026-01-01T00:00:00Z", "msg": "one\r\ntwo\rthree", "data": ["a\r\nb"]}
    (tmp_path / "log").write_text(json.dumps(message) + "\r\n")
    (tmp_path / "notes.txt").write_bytes(b"one\r\ntwo\r\n")
    async with serving({"shop": tmp_path / "log"}, allowed_paths=[tmp_path], file_index=False) as client:
        [entry] = (await ask(client, "eventlog_query", logName="shop", messageContains="one\ntwo"))["entries"]
        assert entry["message"] == "one\ntwo\\x0dthree"
        whole = await client.read_resource(f"eventlog://shop/{entry['id']}")
        assert json.loads(whole[0].text)["fields"]["data"] == ["a\nb"]
        part = await ask(client, "fs_read", path=str(tmp_path / "notes.txt"))
        assert part["content"] == "one\ntwo\n"
