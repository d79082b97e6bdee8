"""A call cancelled while it waits for the database changes nothing, in every service."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from portico import Client, Server, Service
from portico.store import sqlite
from portico_services.memory import Memory
from portico_services.workitems import Tasks

TIMEOUT_SECONDS = 60.0
WRITES = [
    (Tasks, "create_task", {"description": "Never to be"}, "work_item"),
    (Tasks, "create_tasks", {"tasks": [{"description": "Never to be"}]}, "work_item"),
    (Memory, "memory_capture", {"content": "Never to be known", "namespace": "decisions"}, "memory"),
]


@pytest.mark.parametrize(("service", "tool", "arguments", "table"), WRITES)
async def test_call_that_is_cancelled_while_it_waits_stores_nothing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    service: type[Service],
    tool: str,
    arguments: dict[str, Any],
    table: str,
) -> None:
    path, waits, patiently = tmp_path / "store.db", threading.Event(), sqlite.execute_with_retry

    def begin(connection: Any, sql: str, patience: float) -> Any:
        if sql == "begin immediate":
            waits.set()
        return patiently(connection, sql, patience)

    server = Server("waiting", version="1")
    server.add(service(str(path)))  # type: ignore[call-arg]
    async with server.lifespan(), Client(server) as client, asyncio.timeout(TIMEOUT_SECONDS):
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("begin immediate")
            monkeypatch.setattr(sqlite, "execute_with_retry", begin)
            call = asyncio.ensure_future(client.call_tool(tool, arguments))
            await asyncio.to_thread(waits.wait, TIMEOUT_SECONDS)
            call.cancel()
            await asyncio.wait([call])
            other.execute("rollback")
    with closing(sqlite3.connect(path)) as other:
        assert other.execute(f"select count(*) from {table}").fetchone() == (0,)
