"""Large results are paginated, and long searches report progress."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from portico import Client, Server
from portico_services.system import System, machine_access
from portico_services.system.machine import Machine

ENTRIES = 9000


@pytest.fixture
def server(tmp_path: Path) -> Server:
    lines = (
        f"2026-01-01T{n // 3600:02}:{n // 60 % 60:02}:{n % 60:02}Z pc7 app[1]: entry {n}\n" for n in range(ENTRIES)
    )
    (tmp_path / "app.log").write_text("".join(lines))
    server = Server("machine")
    server.add(System(logs={"app": tmp_path / "app.log"}, platform_logs=False, privacy="off"))
    return server


async def test_page_of_a_log_is_bounded_and_the_rest_follows(server: Server) -> None:
    messages: list[str] = []
    more: dict[str, Any] = {}
    async with Client(server) as client:
        for _ in range(10):
            result = await client.call_tool("eventlog_query", {"logName": "app", "limit": 10_000, **more})
            page = result.structured
            assert len(json.dumps(page)) < 2.5 * 2**20
            messages += [entry["message"] for entry in page["entries"]]
            assert page["nextOffset"] == (len(messages) if page["hasMore"] else None)
            if not page["hasMore"]:
                break
            more = {"cursor": page["nextCursor"]}
    assert more, "it was all on one page"
    assert messages == [f"entry {n}" for n in reversed(range(ENTRIES))]


async def test_processes_come_in_pages(server: Server) -> None:
    async with Client(server) as client:
        first = (await client.call_tool("process_list", {"limit": 1})).structured
        assert (first["count"], first["hasMore"]) == (1, first["totalCount"] > 1)
        if not first["hasMore"]:
            pytest.skip("there is one process on this machine")
        second = (await client.call_tool("process_list", {"limit": 1, "cursor": first["nextCursor"]})).structured
        assert second["processes"][0]["pid"] != first["processes"][0]["pid"]


@pytest.mark.parametrize("revision", ["2024-11-05", "2026-07-28"])
@pytest.mark.parametrize(
    ("tool", "arguments", "slow"),
    [
        ("eventlog_query", {"logName": "app"}, "query"),
        ("eventlog_stats", {"logName": "app"}, "log_stats"),
        ("fs_search", {}, "search"),
    ],
)
async def test_progress_is_reported_while_a_slow_tool_runs(
    server: Server, monkeypatch: pytest.MonkeyPatch, revision: Any, tool: str, arguments: dict[str, Any], slow: str
) -> None:
    monkeypatch.setattr(machine_access, "PROGRESS_INTERVAL_SECONDS", 0.01)
    enough = threading.Event()
    usual = getattr(Machine, slow)

    def waits(*given: Any, **named: Any) -> Any:
        assert enough.wait(30)
        return usual(*given, **named)

    monkeypatch.setattr(Machine, slow, waits)
    notifications: list[float] = []
    messages: list[str | None] = []

    def heard(progress: float, total: float | None, message: str | None) -> None:
        notifications.append(progress)
        messages.append(message)
        if len(notifications) == 3:
            enough.set()

    async with asyncio.timeout(60), Client(server, protocol_version=revision) as client:
        await client.call_tool(tool, arguments, progress_handler=heard, raise_on_error=False)
    assert len(notifications) >= 3 and notifications == sorted(notifications)
    # 2024-11-05 has no words for it.
    assert all(message is None or message.startswith("Running for ") for message in messages)
