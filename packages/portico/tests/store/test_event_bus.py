"""Events within a process and between processes."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest

from portico.protocol.errors import UsageError
from portico.store import event_bus, transaction
from portico.store.database import Database
from portico.store.event_bus import Subscription
from portico.store.keys import SigningKeys
from portico.store.transaction import Event
from support import postgres

TIMEOUT_SECONDS = 60.0


async def next_of(events: Subscription) -> Event:
    async with asyncio.timeout(TIMEOUT_SECONDS):
        return await anext(events)


async def tell(db: Database, topic: str, *payloads: str) -> None:
    await db.write(lambda tx: [tx.publish(topic, payload) for payload in payloads])


async def test_events_are_delivered_after_commit(db: Database) -> None:
    async with db.subscribe("item") as events:

        def work(tx: Any) -> None:
            tx.publish("item", "1")
            tx.execute("insert into item (name) values ('a')")
            tx.publish("item", "2")

        await db.write(work)
        assert [await next_of(events), await next_of(events)] == [Event("item", "1"), Event("item", "2")]
        assert await db.read(lambda tx: tx.fetch_one(int, "select count(*) from item")) == 1


async def test_events_of_a_failed_transaction_are_not_delivered(db: Database) -> None:
    async with db.subscribe("item") as events:

        def fails(tx: Any) -> None:
            tx.publish("item", "no")
            raise ValueError

        with pytest.raises(ValueError):
            await db.write(fails)
        await tell(db, "item", "yes")
        assert await next_of(events) == Event("item", "yes")


async def test_subscriber_receives_only_its_topics(db: Database) -> None:
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


async def test_event_overflow_preserves_topics(db: Database) -> None:
    async with db.subscribe("a", "b") as events:
        await tell(db, "a", *map(str, range(event_bus.MAX_PENDING_EVENTS)))
        await tell(db, "b", "1")
        assert {await next_of(events), await next_of(events)} == {Event("a"), Event("b")}


async def test_publishing_requires_a_writer(db: Database) -> None:
    with pytest.raises(UsageError, match="only a transaction that writes"):
        await db.read(lambda tx: tx.publish("item"))


@pytest.mark.parametrize(("topic", "payload"), [("", ""), ("t" * 101, ""), ("t", "\ud800"), ("\ud800", "")])
async def test_invalid_topics_and_payloads_raise_usage_error(db: Database, topic: str, payload: str) -> None:
    with pytest.raises(UsageError):
        await db.write(lambda tx: tx.publish(topic, payload))


async def test_long_payload_is_omitted_from_the_event(db: Database) -> None:
    async with db.subscribe("item") as events:
        await tell(db, "item", "☃" * (transaction.MAX_PAYLOAD_CHARS + 1))
        assert await next_of(events) == Event("item")


async def test_subscriptions_end_with_the_database(url: str) -> None:
    db = await Database(url).open()
    async with db.subscribe("item") as events:
        waiting = asyncio.ensure_future(anext(events, "ended"))
        await asyncio.sleep(0)
        await db.close()
        async with asyncio.timeout(TIMEOUT_SECONDS):
            assert await waiting == "ended"


async def test_ended_subscription_receives_no_events(db: Database) -> None:
    async with db.subscribe("item") as events:
        pass
    await tell(db, "item", "1")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await anext(events)


# Other processes


async def test_other_process_receives_events(shared_url: str, spawn: Callable[..., Any]) -> None:
    child = await spawn("listen", shared_url, "item", "other")
    assert await child.says() == "ready"
    async with Database(shared_url) as db:
        await tell(db, "item", "1", "it's ☃\0\n", "x" * transaction.MAX_PAYLOAD_CHARS)
        assert [await child.says() for _ in range(3)] == [
            ["item", "1"],
            ["item", "it's ☃\0\n"],
            ["item", "x" * transaction.MAX_PAYLOAD_CHARS],
        ]
        await tell(db, "nobody's", "1")
        await tell(db, "other", "")
        assert await child.says() == ["other", ""]


async def test_event_of_an_exiting_process_is_received(shared_url: str, spawn: Callable[..., Any]) -> None:
    async with Database(shared_url) as db, db.subscribe("item") as events:
        for payload in "ab":
            await spawn("publish", shared_url, "item", payload)
        assert {(await next_of(events)).payload for _ in range(2)} == {"a", "b"}


async def test_process_hears_itself_once(shared_url: str) -> None:
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


async def test_socket_of_a_killed_process_is_removed(
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


async def test_long_path_does_not_keep_neighbours_apart(tmp_path: Path, spawn: Callable[..., Any]) -> None:
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
    assert "not received immediately" in caplog.text


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


async def test_listener_reconnects_and_polls(postgres_server: postgres.Server, postgres_url: str) -> None:
    async with Database(postgres_url) as db, db.subscribe("item") as events:
        postgres_server.sql("select pg_terminate_backend(pid) from pg_stat_activity where query = 'listen portico'")
        assert await next_of(events) == Event("item")
        async with Database(postgres_url) as other:
            await tell(other, "item", "1")
            assert await next_of(events) == Event("item", "1")


# What others write who are none of us


@pytest.fixture
def notify(postgres_url: str) -> Callable[[str], None]:
    """`notify(payload)` is a NOTIFY by a role that has no rights but to connect."""

    def send(payload: str) -> None:
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            connection.execute(
                "do $$ begin create role stranger; exception when duplicate_object then null; end $$; set role stranger"
            )
            connection.execute("select pg_notify('portico', %s)", [payload])

    return send


def packet(*events: Event, number: int = 1) -> bytes:
    return msgspec.json.encode(event_bus.EventPacket("stranger", list(events), number, time.time()))


async def test_packet_of_a_role_without_the_key_is_not_received(
    postgres_url: str, notify: Callable[[str], None]
) -> None:
    async with Database(postgres_url) as ours, Database(postgres_url) as theirs, ours.subscribe("item") as events:
        forged = packet(Event("item", "forged"))
        wrong = SigningKeys([os.urandom(32)]).sign(b"bus packets", forged).hex()
        for payload in (forged.decode(), f"{wrong}.{forged.decode()}", "0" * 64 + "." + forged.decode()):
            await asyncio.to_thread(notify, payload)
        for garbage in ("", ".", "[" * 7000, "0" * 64 + "." + "[" * 7000, "\u2028" * 2000, "[1,[[[[[[1]]]]]]]"):
            await asyncio.to_thread(notify, garbage)
        await tell(theirs, "item", "honest")
        assert await next_of(events) == Event("item", "honest")


async def test_copy_of_a_packet_is_not_received_again(postgres_url: str, notify: Callable[[str], None]) -> None:
    copied: list[str] = []

    def listen(ready: threading.Event) -> None:
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            connection.execute("listen portico")
            ready.set()
            copied.extend(one.payload for one in connection.notifies(timeout=TIMEOUT_SECONDS, stop_after=1))

    async with Database(postgres_url) as ours, Database(postgres_url) as theirs, ours.subscribe("item") as events:
        ready = threading.Event()
        listening = asyncio.ensure_future(asyncio.to_thread(listen, ready))
        await asyncio.to_thread(ready.wait, TIMEOUT_SECONDS)
        await tell(theirs, "item", "once")
        await listening
        assert await next_of(events) == Event("item", "once")
        await asyncio.to_thread(notify, copied[0])
        await asyncio.to_thread(notify, copied[0].replace("once", "more"))
        await tell(theirs, "item", "end")
        # A copy is a hint at most: it has no payload.
        results = [await next_of(events)]
        while results[-1].payload != "end":
            results.append(await next_of(events))
        assert {one.payload for one in results} <= {"", "end"}


def test_old_packet_and_one_of_a_lower_number_are_hints_without_payloads() -> None:
    keys = SigningKeys([os.urandom(32)])
    ours, theirs = event_bus.PacketSignatures(keys), event_bus.PacketSignatures(keys)

    def opened(number: int, age: float = 0.0) -> list[Event]:
        made = event_bus.EventPacket("sender", [Event("item", "payload")], number, time.time() - age)
        result = theirs.open(ours.sign(msgspec.json.encode(made)))
        assert result is not None
        return result.events

    assert opened(2) == [Event("item", "payload")]
    assert opened(2) == opened(1) == [Event("item")]
    assert opened(3, age=event_bus.MAX_PACKET_AGE_SECONDS + 60) == [Event("item")]
    assert opened(3) == [Event("item", "payload")]


async def test_packet_from_before_the_receiver_listened_is_a_hint_without_a_payload(
    postgres_url: str, notify: Callable[[str], None]
) -> None:
    # A new process knows no numbers, so a copy of a packet that others received would be new to it.
    keys = SigningKeys([os.environ["PORTICO_ENCRYPTION_KEYS"].encode()])
    packets = [packet(Event("item", "old")).decode()]
    async with Database(postgres_url) as ours, ours.subscribe("item") as events:
        packets.append(packet(Event("item", "new"), number=2).decode())
        for data in packets:
            await asyncio.to_thread(notify, f"{keys.sign(b'bus packets', data.encode()).hex()}.{data}")
        assert [await next_of(events), await next_of(events)] == [Event("item"), Event("item", "new")]


def test_packets_from_before_a_gap_are_hints_without_payloads() -> None:
    keys = SigningKeys([os.urandom(32)])
    ours, theirs = event_bus.PacketSignatures(keys), event_bus.PacketSignatures(keys)
    missed = ours.sign(packet(Event("item", "missed")))
    theirs.reset()
    result = theirs.open(missed), theirs.open(ours.sign(packet(Event("item", "later"), number=2)))
    assert [item and item.events for item in result] == [[Event("item")], [Event("item", "later")]]


async def test_unsigned_packet_has_only_topics(
    postgres_url: str, notify: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PORTICO_ENCRYPTION_KEYS")
    async with Database(postgres_url) as ours, ours.subscribe("item") as events:
        await asyncio.to_thread(notify, packet(Event("item", "forged")).decode())
        assert await next_of(events) == Event("item")
        # What the process itself has done it knows.
        await tell(ours, "item", "own")
        assert await next_of(events) == Event("item", "own")


async def test_folder_that_others_can_write_to_is_not_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "store.db-bus").mkdir()
    (tmp_path / "store.db-bus").chmod(0o777)
    async with Database(tmp_path / "store.db") as ours, ours.subscribe("item") as events:
        assert "and have mode 700" in caplog.text
        assert not list((tmp_path / "store.db-bus").iterdir())
        await tell(ours, "item", "own")
        assert await next_of(events) == Event("item", "own")
