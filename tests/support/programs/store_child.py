"""A second process on the same database. It prints its actions as JSON lines."""

from __future__ import annotations

import asyncio
import itertools
import os
import resource
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from portico.store.database import Database
from portico.store.errors import StoreError
from portico.store.transaction import Transaction
from portico.transports.event_loop import new_event_loop


def say(value: Any) -> None:
    os.write(1, msgspec.json.encode(value) + b"\n")


async def pairs(url: str, first: str) -> None:
    """Write pairs for ever, several at a time, and say which are written. Ids go up from `first`."""
    ids = itertools.count(int(first))

    def write(id: int, tx: Transaction) -> None:
        tx.execute("insert into one (id, text) values (?, ?)", [id, "x" * (id % 3000)])
        tx.execute("insert into other (id) values (?)", [id])
        tx.publish("pair", str(id))

    async def writer() -> None:
        for id in ids:
            await db.write(partial(write, id))
            say(id)

    async with Database(url, timeout=60) as db, asyncio.TaskGroup() as group:
        for _ in range(8):
            group.create_task(writer())


async def count(url: str, times: str) -> None:
    """Increment a number a given number of times."""

    def more(tx: Transaction) -> None:
        n = tx.fetch_one(int, "select n from counter")
        tx.execute("update counter set n = ?", [n + 1])

    async with Database(url, timeout=60) as db:
        for _ in range(int(times)):
            await db.write(more)
    say("done")


async def migrate(url: str, folder: str) -> None:
    async with Database(url, timeout=60) as db:
        say("ready")
        sys.stdin.readline()
        say(await db.migrate("test", Path(folder)))


async def listen(url: str, *topics: str) -> None:
    async with Database(url, timeout=60) as db, db.subscribe(*topics) as events:
        say("ready")
        async for event in events:
            say(event)


async def publish(url: str, topic: str, payload: str) -> None:
    async with Database(url, timeout=60) as db:
        await db.write(lambda tx: tx.publish(topic, payload))


async def fill(url: str, room: str) -> None:
    """Write until a file may not grow any more, make room, and write again."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    written = 0

    async def write() -> None:
        await db.write(lambda tx: tx.execute("insert into one (id, text) values (?, ?)", [written, "x" * 3000]))

    async with Database(url, timeout=60) as db:
        _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(room), most))
        try:
            while True:
                await write()
                written += 1
        except StoreError as failure:
            say([type(failure).__name__, written])
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
        await write()
        say(await db.read(lambda tx: tx.fetch_one(int, "select count(*) from one")))


if __name__ == "__main__":
    what = {"pairs": pairs, "count": count, "migrate": migrate, "listen": listen, "publish": publish, "fill": fill}
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(what[sys.argv[1]](*sys.argv[2:]))
