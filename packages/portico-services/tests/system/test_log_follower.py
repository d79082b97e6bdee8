"""Following logs: each new entry once and in order, across rotations; calls can wait for entries."""

from __future__ import annotations

import asyncio
import gzip
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from portico import Client, Server, ToolError
from portico_services.system import System, log_follower
from portico_services.system.cursors import EncryptedCursorCodec
from portico_services.system.logs import tail
from portico_services.system.logs.discovery import log_from_path
from portico_services.system.logs.entries import ERROR, LogQuery
from portico_services.system.logs.log_registry import LogRegistry
from portico_services.system.logs.text_log import TextLog, find_rotated_files
from portico_services.system.path_access import AllowedPaths
from support import system_forgery as forgery

TIMEOUT_SECONDS = 60.0


def line(n: int) -> str:
    return f"2026-01-01T{n // 3600:02}:{n // 60 % 60:02}:{n % 60:02}+00:00 host app: message {n}\n"


def add(path: Path, *numbers: int) -> None:
    with path.open("a") as file:
        file.writelines(map(line, numbers))


def logs_of(path: Path) -> LogRegistry:
    return LogRegistry(lambda: {"log": log_from_path("log", str(path))}, EncryptedCursorCodec(b"k" * 32))


class Follower:
    """What has been told of a log so far."""

    def __init__(self, path: Path, query: LogQuery = LogQuery()) -> None:  # it is frozen
        self._logs = logs_of(path)
        self._query = query
        self._cursor = self._logs.follow("log", query, limit=10).cursor
        self.problems: list[str] = []

    def told(self, limit: int = 10) -> list[str]:
        results: list[str] = []
        has_more = True
        while has_more:
            page = self._logs.follow("log", self._query, limit=limit, cursor=self._cursor)
            assert len(page.entries) <= limit
            results += [entry.message for entry in page.entries]
            self._cursor, has_more = page.cursor, page.has_more
            self.problems += page.problems
        return results


def messages(*numbers: int) -> list[str]:
    return [f"message {n}" for n in numbers]


def test_only_new_entries_are_reported_and_only_once(tmp_path: Path) -> None:
    add(tmp_path / "log", *range(50))
    follower = Follower(tmp_path / "log")
    assert follower.told() == []
    add(tmp_path / "log", 50, 51, 52)
    assert follower.told() == messages(50, 51, 52)
    assert follower.told() == []
    add(tmp_path / "log", *range(53, 100))
    assert follower.told(limit=7) == messages(*range(53, 100))


def test_line_is_reported_when_complete(tmp_path: Path) -> None:
    path = tmp_path / "log"
    add(path, 0)
    follower = Follower(path)
    with path.open("a") as file:
        file.write(line(1) + line(2)[:-5])
    assert follower.told() == messages(1)
    with path.open("a") as file:
        file.write(line(2)[-5:])
    assert follower.told() == messages(2)


def test_lines_that_come_late_to_an_entry_are_not_lost(tmp_path: Path) -> None:
    path = tmp_path / "log"
    add(path, 0)
    follower = Follower(path)
    add(path, 1)
    assert follower.told() == messages(1)
    with path.open("a") as file:
        file.write("  at one\n  at two\n" + line(2) + "  at three\n")
    assert follower.told() == ["at one\n  at two", "message 2\n  at three"]


def by_name(log: Path) -> None:
    log.rename(log.with_name("log.1"))
    log.touch()


def by_copy(log: Path) -> None:
    log.with_name("log.1").write_bytes(log.read_bytes())
    os.truncate(log, 0)


def and_packed(log: Path) -> None:
    log.with_name("log.1.gz").write_bytes(gzip.compress(log.read_bytes()))
    log.unlink()


@pytest.mark.parametrize("rotate", [by_name, by_copy, and_packed])
def test_nothing_is_lost_when_a_log_is_rotated(tmp_path: Path, rotate: Callable[[Path], None]) -> None:
    log = tmp_path / "log"
    add(log, *range(10))
    follower = Follower(log)
    add(log, 10, 11)
    rotate(log)
    add(log, 12, 13)
    assert follower.told() == messages(10, 11, 12, 13)
    assert follower.problems == []
    rotate(log)
    assert follower.told() == []
    add(log, 14)
    assert follower.told() == messages(14)


def test_truncated_log_is_read_from_the_start_and_reported(tmp_path: Path) -> None:
    log = tmp_path / "log"
    add(log, *range(10))
    follower = Follower(log)
    log.write_text(line(20))
    assert follower.told() == messages(20)
    assert "truncated or replaced" in follower.problems[0]
    # Also where it is longer than before by then.
    log.write_text("".join(map(line, range(30, 60))))
    assert follower.told(limit=100) == messages(*range(30, 60))


@pytest.mark.parametrize("lose", [Path.unlink, lambda log: log.write_bytes(bytes(300))], ids=["gone", "no text"])
def test_rotated_entries_are_not_repeated_when_the_log_is_lost(tmp_path: Path, lose: Callable[[Path], Any]) -> None:
    log = tmp_path / "log"
    add(log, 1, 2)
    by_name(log)
    add(log, 3)
    follower = Follower(log)
    lose(log)
    assert follower.told() == []
    log.write_text(line(4))
    assert follower.told() == messages(4)
    assert "truncated or replaced" in follower.problems[-1]


def test_missing_log_yet_can_be_followed(tmp_path: Path) -> None:
    follower = Follower(tmp_path / "log")
    assert follower.told() == []
    add(tmp_path / "log", 1, 2)
    assert follower.told() == messages(1, 2)
    add(tmp_path / "log", 3)
    assert follower.told() == messages(3)


def test_empty_log_can_be_followed_through_its_rotation(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.touch()
    follower = Follower(log)
    add(log, 1)
    by_name(log)
    add(log, 2)
    assert follower.told() == messages(1, 2)


def test_fast_growing_log_is_reported_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail, "MAX_READ_BYTES", 1000)
    log = tmp_path / "log"
    log.touch()
    follower = Follower(log)
    add(log, *range(200))
    with log.open("a") as file:
        file.write("x" * 5000 + "\n")  # longer than what is read at once
    add(log, 200)
    result = follower.told(limit=1000)
    assert [message for message in result if message.startswith("message")] == messages(*range(201))
    assert sum(message.count("x") for message in result) == 5000


def test_filters_apply_to_followed_entries(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.touch()
    follower = Follower(log, LogQuery(min_level=ERROR))
    add(log, *range(30))
    with log.open("a") as file:
        file.write("2026-01-01T00:00:00Z ERROR app: it broke\n")
    add(log, *range(30))
    assert follower.told(limit=3) == ["it broke"]


def test_follow_includes_new_files(tmp_path: Path) -> None:
    add(tmp_path / "a.log", 1, 2)
    follower = Follower(tmp_path)
    add(tmp_path / "a.log", 5)
    add(tmp_path / "b.log", 3, 7)
    assert follower.told() == messages(3, 5, 7)
    assert follower.told() == []


def test_journal_is_followed(tmp_path: Path) -> None:
    path = tmp_path / "system.journal"
    entries = [forgery.entry(f"message {n}") for n in range(6)]
    path.write_bytes(forgery.journal(entries[:3]))
    follower = Follower(path)
    assert follower.told() == []
    path.write_bytes(forgery.journal(entries))
    assert follower.told(limit=2) == messages(3, 4, 5)


def test_text_log_is_not_read_from_its_beginning_to_be_followed(tmp_path: Path) -> None:
    log = tmp_path / "log"
    add(log, *range(20_000))
    roots = AllowedPaths([tmp_path])
    text = TextLog("log", "", roots, partial(find_rotated_files, roots, str(log)))
    place = text.end_position()
    add(log, 20_000)
    result = text.read_since(place, 10, [])
    assert [entry.message for entry in result.entries] == messages(20_000)


# As a tool


@asynccontextmanager
async def serving(log: Path, **options: Any) -> AsyncIterator[Client]:
    server = Server("test", version="1")
    server.add(System(**({"logs": {"log": log}, "platform_logs": False, "log_poll_interval": 0.05} | options)))
    async with server.lifespan(), Client(server) as client:
        yield client


async def follow_log(client: Client, **arguments: Any) -> Any:
    call = client.call_tool("eventlog_follow", {"logName": "log", **arguments})
    return (await asyncio.wait_for(call, TIMEOUT_SECONDS)).structured


async def test_call_waits_for_the_next_entry(tmp_path: Path) -> None:
    add(tmp_path / "log", 1)
    async with serving(tmp_path / "log") as client:
        first = await follow_log(client, waitSeconds=0)
        assert (first["entries"], first["hasMore"]) == ([], False)
        waiting = asyncio.create_task(follow_log(client, cursor=first["nextCursor"], waitSeconds=60))
        await asyncio.sleep(0.2)
        assert not waiting.done()
        add(tmp_path / "log", 2, 3)
        notification = await waiting
        assert notification["entries"][0]["message"] == "message 2"
        assert notification["nextCursor"] != first["nextCursor"]


async def test_without_a_cursor_it_waits_from_now_on(tmp_path: Path) -> None:
    add(tmp_path / "log", 1)
    async with serving(tmp_path / "log") as client:
        waiting = asyncio.create_task(follow_log(client, waitSeconds=60))
        await asyncio.sleep(0.2)
        add(tmp_path / "log", 2)
        assert [entry["message"] for entry in (await waiting)["entries"]] == ["message 2"]


async def test_follow_returns_a_cursor_at_timeout(tmp_path: Path) -> None:
    add(tmp_path / "log", 1)
    async with serving(tmp_path / "log") as client:
        result = await follow_log(client, waitSeconds=0.2)
        assert result["entries"] == []
        assert result["nextCursor"]


async def test_followed_entries_are_anonymized(tmp_path: Path) -> None:
    add(tmp_path / "log", 1)
    async with serving(tmp_path / "log") as client:
        first = await follow_log(client, waitSeconds=0)
        with (tmp_path / "log").open("a") as file:
            file.write("2026-01-01T00:00:09Z pc7 sshd[1]: Failed password for bob from 10.0.0.7 port 22\n")
        [entry] = (await follow_log(client, cursor=first["nextCursor"]))["entries"]
        assert "bob" not in entry["message"]
        assert entry["computer"].startswith("host-")


async def test_waiting_calls_are_limited_and_can_be_cancelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_follower, "MAX_WAITING_CALLS", 1)
    add(tmp_path / "log", 1)
    async with serving(tmp_path / "log") as client:
        waiting = asyncio.create_task(follow_log(client, waitSeconds=60))
        await asyncio.sleep(0.2)
        refusal = ""
        for _ in range(1000):
            try:
                await follow_log(client, waitSeconds=0.01)
            except ToolError as error:
                refusal = str(error)
                break
        assert "waiting calls is reached" in refusal
        waiting.cancel()
        for _ in range(1000):
            try:
                assert (await follow_log(client, waitSeconds=0.01))["entries"] == []
                break
            except ToolError:
                await asyncio.sleep(0.01)
        else:
            pytest.fail("the call that was cancelled still waits")


async def test_subscriptions_listen_reports_a_growing_log(tmp_path: Path, connect: Callable[..., Any]) -> None:
    """resources/subscribe is tested with the service; at 2026-07-28 it is subscriptions/listen."""
    add(tmp_path / "log", 1)
    service = System(logs={"log": tmp_path / "log"}, platform_logs=False, log_poll_interval=3600)
    server = Server("test", version="1")
    server.add(service)
    async with server.lifespan():
        wire = connect(server)
        expected = {"notifications": {"resourceSubscriptions": ["eventlog://log"]}, "_meta": wire.envelope()}
        wire.send({"jsonrpc": "2.0", "id": "listen", "method": "subscriptions/listen", "params": expected})
        assert (await wire.receive())["method"] == "notifications/subscriptions/acknowledged"
        await service.poll_logs()
        add(tmp_path / "log", 2)
        await service.poll_logs()
        heard = await wire.receive()
        assert (heard["method"], heard["params"]["uri"]) == ("notifications/resources/updated", "eventlog://log")
