"""Events, within a process and between processes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import postgres
from portico.store import bus, transaction
from portico.store.bus import Subscription
from portico.store.database import Database
from portico.store.transaction import Event
from portico.wire.errors import UsageError

PATIENCE = 60.0


async def next_of(events: Subscription) -> Event:
    async with asyncio.timeout(PATIENCE):
        return await anext(events)


async def tell(db: Database, topic: str, *payloads: str) -> None:
    await db.write(lambda tx: [tx.publish(topic, payload) for payload in payloads])


async def test_what_is_published_is_heard_after_the_commit(db: Database) -> None:
    async with db.subscribe("item") as events:

        def work(tx: Any) -> None:
            tx.publish("item", "1")
            tx.run("insert into item (name) values ('a')")
            tx.publish("item", "2")

        await db.write(work)
        assert [await next_of(events), await next_of(events)] == [Event("item", "1"), Event("item", "2")]
        assert await db.read(lambda tx: tx.one(int, "select count(*) from item")) == 1


async def test_what_fails_is_not_heard(db: Database) -> None:
    async with db.subscribe("item") as events:

        def fails(tx: Any) -> None:
            tx.publish("item", "no")
            raise ValueError

        with pytest.raises(ValueError):
            await db.write(fails)
        await tell(db, "item", "yes")
        assert await next_of(events) == Event("item", "yes")


async def test_a_subscriber_hears_its_topics_and_no_others(db: Database) -> None:
    async with db.subscribe("a", "b") as both, db.subscribe("c") as other:
        for topic in "abc":
            await tell(db, topic, topic)
        assert [await next_of(both), await next_of(both)] == [Event("a", "a"), Event("b", "b")]
        assert await next_of(other) == Event("c", "c")


async def test_equal_events_that_wait_are_one(db: Database) -> None:
    async with db.subscribe("item") as events:
        for payload in ("1", "1", "2", "1"):
            await tell(db, "item", payload)
        await tell(db, "item", "end")
        assert [(await next_of(events)).payload for _ in range(3)] == ["1", "2", "end"]


async def test_of_too_many_events_the_topics_are_left(db: Database) -> None:
    async with db.subscribe("a", "b") as events:
        await tell(db, "a", *map(str, range(bus.MOST_WAITING)))
        await tell(db, "b", "1")
        assert {await next_of(events), await next_of(events)} == {Event("a"), Event("b")}


async def test_only_who_writes_can_publish(db: Database) -> None:
    with pytest.raises(UsageError, match="Only a transaction that writes"):
        await db.read(lambda tx: tx.publish("item"))


@pytest.mark.parametrize(("topic", "payload"), [("", ""), ("t" * 101, ""), ("t", "\ud800"), ("\ud800", "")])
async def test_what_cannot_travel_is_refused_before_anything_is_written(db: Database, topic: str, payload: str) -> None:
    with pytest.raises(UsageError):
        await db.write(lambda tx: tx.publish(topic, payload))


async def test_a_long_payload_is_heard_without_it(db: Database) -> None:
    async with db.subscribe("item") as events:
        await tell(db, "item", "☃" * (transaction.LONGEST_PAYLOAD + 1))
        assert await next_of(events) == Event("item")


async def test_subscriptions_end_with_the_database(url: str) -> None:
    db = await Database(url).open()
    async with db.subscribe("item") as events:
        waiting = asyncio.ensure_future(anext(events, "ended"))
        await asyncio.sleep(0)
        await db.close()
        async with asyncio.timeout(PATIENCE):
            assert await waiting == "ended"


async def test_who_has_left_hears_nothing(db: Database) -> None:
    async with db.subscribe("item") as events:
        pass
    await tell(db, "item", "1")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await anext(events)


# Other processes


async def test_another_process_hears(shared_url: str, spawn: Callable[..., Any]) -> None:
    child = await spawn("listen", shared_url, "item", "other")
    assert await child.says() == "ready"
    async with Database(shared_url) as db:
        await tell(db, "item", "1", "it's ☃\0\n", "x" * transaction.LONGEST_PAYLOAD)
        assert [await child.says() for _ in range(3)] == [
            ["item", "1"],
            ["item", "it's ☃\0\n"],
            ["item", "x" * transaction.LONGEST_PAYLOAD],
        ]
        await tell(db, "nobody's", "1")
        await tell(db, "other", "")
        assert await child.says() == ["other", ""]


async def test_another_process_is_heard_even_if_it_ends_at_once(shared_url: str, spawn: Callable[..., Any]) -> None:
    async with Database(shared_url) as db, db.subscribe("item") as events:
        for payload in "ab":
            await spawn("publish", shared_url, "item", payload)
        assert {(await next_of(events)).payload for _ in range(2)} == {"a", "b"}


async def test_a_process_hears_itself_once(shared_url: str) -> None:
    async with Database(shared_url) as db, db.subscribe("item") as events:
        await tell(db, "item", "1")
        assert await next_of(events) == Event("item", "1")
        async with Database(shared_url) as other:
            await tell(other, "item", "2")
        assert await next_of(events) == Event("item", "2")


async def test_many_and_large_events_all_arrive(shared_url: str) -> None:
    """More than fit into one packet; a neighbour that is slow to read is tried again."""
    async with Database(shared_url) as db, Database(shared_url) as other, other.subscribe("item") as events:
        payloads = {f"{n}" + "\x01" * 900 for n in range(60)}
        await tell(db, "item", *payloads)
        assert {(await next_of(events)).payload for _ in range(60)} == payloads


async def test_what_a_killed_process_leaves_is_cleared_away(
    tmp_path: Path, sqlite_url: str, spawn: Callable[..., Any]
) -> None:
    folder = tmp_path / "store.db-bus"
    child = await spawn("listen", sqlite_url, "item")
    assert await child.says() == "ready"
    await child.kill()
    assert len(os.listdir(folder)) == 1
    async with Database(sqlite_url) as db, db.subscribe("item"):
        assert len(os.listdir(folder)) == 2
        await tell(db, "item", "1")
        assert len(os.listdir(folder)) == 1
    assert not folder.exists()


async def test_a_long_path_does_not_keep_neighbours_apart(tmp_path: Path, spawn: Callable[..., Any]) -> None:
    folder = tmp_path.joinpath(*["a-folder-with-a-long-name"] * 6)
    folder.mkdir(parents=True)
    child = await spawn("listen", folder / "store.db", "item")
    assert await child.says() == "ready"
    async with Database(folder / "store.db") as db:
        await tell(db, "item", "1")
        assert await child.says() == ["item", "1"]


async def test_without_sockets_a_process_works_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "store.db-bus").write_text("in the way")
    async with Database(tmp_path / "store.db") as db, db.subscribe("item") as events:
        await tell(db, "item", "1")
        assert await next_of(events) == Event("item", "1")
    assert "not heard at once" in caplog.text


async def test_packets_of_strangers_are_ignored(
    tmp_path: Path, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import socket

    # The address of a socket has no room for a long path.
    monkeypatch.chdir(tmp_path)
    async with Database(sqlite_url) as db, db.subscribe("item") as events:
        (ours,) = os.listdir("store.db-bus")
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as stranger:
            for packet in (b"", b"\xff", b"{}", b'["x", [["item", 7]]]', b'["x", [["item"]]'):
                stranger.sendto(packet, f"store.db-bus/{ours}")
        await tell(db, "item", "1")
        assert await next_of(events) == Event("item", "1")


async def test_a_listener_that_loses_its_connection_looks_again_and_goes_on(
    postgres_server: postgres.Server, postgres_url: str
) -> None:
    async with Database(postgres_url) as db, db.subscribe("item") as events:
        postgres_server.sql("select pg_terminate_backend(pid) from pg_stat_activity where query = 'listen portico'")
        assert await next_of(events) == Event("item")
        async with Database(postgres_url) as other:
            await tell(other, "item", "1")
            assert await next_of(events) == Event("item", "1")
