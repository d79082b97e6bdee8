"""Measure the audit log: cost per call, and verification of a million records.

The cost is the processor time of the whole process, threads included, with an audit and without one; in the same run,
by turns, on one loop and without a network.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from goals import Goal, limit
from portico import Server
from portico.audit.checkpoints import ChainProgress
from portico.audit.hash_chain import ChainHead, chain_hash, genesis_hash, new_chain_id
from portico.audit.signing_keys import TrustedKeys, load_or_create_key
from portico.protocol import jsonrpc
from portico.protocol.jsonrpc import JsonRpcMessage
from portico.rpc.call import Reply
from portico.rpc.dispatcher import Dispatcher, PeerInfo
from portico.server.policy import settings as access_settings
from portico.store.database import Database
from portico.transports.event_loop import new_event_loop
from portico_gateway.audit import store as tables, writer
from portico_gateway.audit.store import verify_store
from scenarios import Answers, Question, take_turns
from services_table import Grid, Size, Table, this_tree

NAME = "audit"
CALLS, RECORDS = 40_000, 1_000_000
CALL_QUESTIONS = (
    Question("plain", "CPU of the process for a tools/call without an audit", "µs"),
    Question("audited", "the same with an audit in SQLite", "µs"),
    Question("cost", "cost of the audit", "µs"),
)
VERIFY_QUESTIONS = (
    Question("verify", f"verifying {RECORDS:,} records in SQLite", "s"),
    Question("verify_cpu", "CPU for that", "s"),
)
LEGEND = ("CPU is of the whole process, its threads included. The audit is written to the disk, in groups.",)
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
    """Return microseconds of CPU per call."""
    server = Server("benchmark")

    @server.tool
    async def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    if folder is not None:
        access_settings.apply(server, access_settings.read({"audit": {"data_dir": str(folder)}}))
    async with server.lifespan():
        door, sender = Dispatcher(server), PeerInfo(None, {}, "192.0.2.1")
        began = time.process_time()
        for _ in range(number):
            frame, reply = jsonrpc.decode_message(LINE), Waiting()
            assert isinstance(frame, JsonRpcMessage)
            if door.dispatch(frame, reply, sender, modern=True) is None:
                await reply.done
        if server.policy is not None:
            await server.policy.audit_hook.writer.written()  # type: ignore[union-attr]
        return (time.process_time() - began) / number * 1e6


async def fill(store: str, folder: Path, number: int) -> None:
    """Write a chain of records as a server does, with a checkpoint per thousand."""
    key, name = load_or_create_key(folder), new_chain_id()
    rest = (
        ',"at":1794815931131551,"method":"tools/call","owner":"benchmark","name":"add","principal":"user-17","client":'
        '"benchmark 1","address":"192.0.2.1","revision":"2026-07-28","decision":"allow","rule":"all","outcome":"ok",'
        '"request":"1","micros":12,"received":221,"sent":190,"digest":"' + "c9aa1f32" * 8 + '"}'
    )
    before = genesis_hash(name)
    async with Database(store) as database:
        await database.migrate(tables.MIGRATION_HISTORY, tables.MIGRATIONS)
        for first in range(1, number + 1, writer.RECORDS_PER_CHECKPOINT):
            rows, hashes = [], []
            for at in range(first, min(first + writer.RECORDS_PER_CHECKPOINT, number + 1)):
                body = f'{{"number":{at}{rest}'
                before = chain_hash(before, body.encode())
                rows.append((name, at, 1794815931131551, body, before.hex()))
                hashes.append(before)
            ended = rows[-1][1] == number
            own = ChainProgress(name, ChainHead(rows[-1][1], before.hex(), ended), hashes)

            def add(tx: Any, rows: Any = rows, own: Any = own, ended: bool = ended) -> None:
                tables.insert_records(tx, rows, ended)
                tables.insert_checkpoint(tx, key, 1794815931131551, own, 0)

            await database.write(add, isolation="read committed")


async def verified(store: str, folder: Path) -> tuple[float, float]:
    """Return the elapsed and the CPU seconds of a verification."""
    keys = TrustedKeys([load_or_create_key(folder).public])
    async with Database(store) as database:
        began, used = time.perf_counter(), time.process_time()
        report = await database.read(lambda tx: verify_store(tx, keys))
        seconds = time.perf_counter() - began, time.process_time() - used
    assert not report.findings, report.findings
    return seconds


def run(work: Coroutine[Any, Any, Any]) -> Any:
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(work)


def measure(size: Size) -> Table:
    answers, ours = Answers(), this_tree()
    number, records = (CALLS // 20, RECORDS // 100) if size.quick else (CALLS, RECORDS)
    with tempfile.TemporaryDirectory() as named:
        folder = Path(named)

        def called() -> dict[str, float]:
            plain, audited = run(calls(number, None)), run(calls(number, folder))
            return {"plain": plain, "audited": audited, "cost": audited - plain}

        def verifying() -> dict[str, float]:
            seconds, processor = run(verified(str(folder / "million.db"), folder))
            return {"verify": seconds * RECORDS / records, "verify_cpu": processor * RECORDS / records}

        take_turns(answers, size.rounds, [(ours, tuple(item.key for item in CALL_QUESTIONS), called)])
        run(fill(str(folder / "million.db"), folder, records))
        take_turns(answers, size.rounds, [(ours, tuple(item.key for item in VERIFY_QUESTIONS), verifying)])
    return Table(
        "The audit", [Grid((*CALL_QUESTIONS, *VERIFY_QUESTIONS), [ours])], answers, goals(answers), legend=LEGEND
    )


def goals(answers: Answers) -> list[Goal]:
    return [
        limit("an audit costs a call at most 15 µs", answers.value("cost", "portico"), 15, "µs"),
        limit("a million records are verified in 10 s", answers.value("verify", "portico"), 10, "s"),
    ]
