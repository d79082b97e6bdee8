"""What an audit costs a call, and how long a million records take to verify.

    python benchmarks/audit.py [--records 1000000] [--calls 40000] [--store URL]

The cost is the processor time of the whole process, threads included, with an audit and without one; in the same run,
by turns, on one loop and without a network. The goals: at most 15 microseconds a call, a million records in 10 seconds.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Coroutine
from pathlib import Path
from statistics import median
from typing import Any

from portico import Server
from portico.access import settings
from portico.access.audit import tables, writer
from portico.access.audit.chain import ChainHead, link, new_name, origin
from portico.access.audit.keys import TrustedKeys, load_or_make
from portico.access.audit.places import verify_store
from portico.access.audit.tables import OwnPart
from portico.rpc.call import Reply
from portico.rpc.door import Door, Sender
from portico.store.database import Database
from portico.transport.loops import new_loop
from portico.wire import jsonrpc
from portico.wire.jsonrpc import Frame

ROUNDS = 5
META = (
    '{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{},'
    '"io.modelcontextprotocol/clientInfo":{"name":"benchmark","version":"1"}}'
)
PARAMS = f'{{"name":"add","arguments":{{"a":1,"b":2}},"_meta":{META}}}'
LINE = f'{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{PARAMS}}}'.encode()


class Waiting(Reply):
    def __init__(self) -> None:
        self.done: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()

    def finish(self, message: bytes | None) -> None:
        self.done.set_result(message)


async def calls(number: int, folder: Path | None) -> float:
    """Microseconds of processor time a call."""
    server = Server("benchmark")

    @server.tool
    async def add(a: int, b: int) -> int:
        """Add."""
        return a + b

    if folder is not None:
        settings.apply(server, settings.read({"audit": {"data": str(folder)}}))
    async with server.lifespan():
        door, sender = Door(server), Sender(None, {}, "192.0.2.1")
        began = time.process_time()
        for _ in range(number):
            frame, reply = jsonrpc.decode(LINE), Waiting()
            assert isinstance(frame, Frame)
            if door.enter(frame, reply, sender, modern=True) is None:
                await reply.done
        if server.protection is not None:
            await server.protection.witness.writer.written()  # type: ignore[union-attr]
        return (time.process_time() - began) / number * 1e6


async def fill(store: str, folder: Path, number: int) -> None:
    """A chain of records as a server writes them, with a checkpoint for every thousand."""
    key, name = load_or_make(folder), new_name()
    rest = (
        ',"at":1794815931131551,"method":"tools/call","owner":"benchmark","name":"add","principal":"user-17","client":'
        '"benchmark 1","address":"192.0.2.1","revision":"2026-07-28","decision":"allow","rule":"all","outcome":"ok",'
        '"request":"1","micros":12,"received":221,"sent":190,"digest":"' + "c9aa1f32" * 8 + '"}'
    )
    before = origin(name)
    async with Database(store) as database:
        await database.migrate(tables.HISTORY, tables.MIGRATIONS)
        for first in range(1, number + 1, writer.CHECKPOINT_RECORDS):
            rows, hashes = [], []
            for at in range(first, min(first + writer.CHECKPOINT_RECORDS, number + 1)):
                body = f'{{"number":{at}{rest}'
                before = link(before, body.encode())
                rows.append((name, at, 1794815931131551, body, before.hex()))
                hashes.append(before)
            ended = rows[-1][1] == number
            own = OwnPart(name, ChainHead(rows[-1][1], before.hex(), ended), hashes)

            def add(tx: Any, rows: Any = rows, own: Any = own, ended: bool = ended) -> None:
                tables.add_records(tx, rows, ended)
                tables.add_checkpoint(tx, key, 1794815931131551, own, 0)

            await database.write(add, isolation="read committed")


async def verified(store: str, folder: Path) -> float:
    """The seconds that it takes."""
    keys = TrustedKeys([load_or_make(folder).public])
    async with Database(store) as database:
        began = time.perf_counter()
        report = await database.read(lambda tx: verify_store(tx, keys))
        seconds = time.perf_counter() - began
    assert not report.found, report.found
    print(f"  {report.records:,} records, {report.checkpoints:,} checkpoints")
    return seconds


def run(work: Coroutine[Any, Any, Any]) -> Any:
    with asyncio.Runner(loop_factory=new_loop) as runner:
        return runner.run(work)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--calls", type=int, default=40_000)
    parser.add_argument("--store", help="a PostgreSQL to verify in; otherwise SQLite")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as named:
        folder = Path(named)
        pairs = [(run(calls(options.calls, None)), run(calls(options.calls, folder))) for _ in range(ROUNDS)]
        plain, audited = median(one for one, _ in pairs), median(one for _, one in pairs)
        print(f"{'a call without an audit':<32}{plain:8.1f} µs")
        print(f"{'a call with one':<32}{audited:8.1f} µs")
        print(f"{'the audit':<32}{median(b - a for a, b in pairs):8.1f} µs   goal: 15")
        store = options.store or str(folder / "million.db")
        run(fill(store, folder, options.records))
        seconds = run(verified(store, folder))
        print(f"{'verifying':<32}{seconds:8.1f} s    {seconds / options.records * 1e6:.1f} µs a record; goal: 10")


if __name__ == "__main__":
    main()
