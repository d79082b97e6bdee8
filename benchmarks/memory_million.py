"""Measure the memory service with a million memories: recalls with every filter, overviews, pages, history.

    python benchmarks/memory_million.py [--memories 1000000] [--store URL] [--filled] [--json]

The store is filled by the functions that every capture ends in, in large transactions; `--filled` asks one that is
there. Each time is of this process, from the call to its return, the worst of a hundred beside the middle one; `cpu` is
what of it the process worked, which says more on a machine that others use. The last lines are of a separate server.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sqlite3
import statistics as averages
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial

from msgspec.structs import replace

from memory_corpus import Corpus
from memory_speed import resident, start
from portico.store.database import Database
from portico.store.sqlite_transaction import SqliteTransaction
from portico.store.transaction import Transaction
from portico.transports.event_loop import new_event_loop
from portico_services import timestamps
from portico_services.memory import export_import
from portico_services.memory.extras import graph
from portico_services.memory.store import capture, mutations, statistics
from portico_services.memory.store.capture import MemoryDraft
from portico_services.memory.store.memory_store import MemoryStore
from portico_services.memory.store.records import MemoryRecord

LOT = 20_000
QUESTIONS = 20
FILTERS = (
    "", "tag:rare", "tag:common", "tag:tag-5", "tag:none", 'author:"Zoe Rare"', "author:Ann", "author:none",
    "path:rare/", "path:src/", "path:none/", "branch:rare", "branch:branch-3", "source:ticket-77", "thread:t10",
    "entity:ann", "ns:decisions tag:rare", "tag:common author:Ann", "-tag:common", "since:1h", "until:2020-01-01",
    "status:archived", "project:project-3 ns:decisions",
)  # fmt: skip

Call = Callable[[], Awaitable[object]]


def memories_of(count: int) -> Iterator[list[MemoryRecord]]:
    """Lots of them: a few with rare words, half with common ones, some deleted or archived, a second apart."""
    corpus, dice, now = Corpus(), random.Random(3), timestamps.now_ms()
    for first in range(0, count, LOT):
        drafts = enumerate(corpus.drafts(min(LOT, count - first)), first)
        yield [_record(draft, number, count, dice, now) for number, draft in drafts]


def _record(draft: MemoryDraft, number: int, count: int, dice: random.Random, now: int) -> MemoryRecord:
    rare = number % (count // 8) == 5
    tags = {f"tag-{int(2000 * dice.random() ** 3)}" for _ in range(dice.randrange(3))}
    tags |= {"rare"} if rare else {"common"} if dice.random() < 0.5 else set()
    made = replace(
        draft,
        tags=sorted(tags),
        author="Zoe Rare" if rare else draft.author,
        path="rare/place.py" if rare else f"src/m{number % 97}.py" if dice.random() < 0.3 else None,
        branch="rare" if rare else f"branch-{number % 50}" if dice.random() < 0.1 else None,
        source=f"ticket-{dice.randrange(count // 20)}" if dice.random() < 0.2 else None,
    )
    record = capture.build_record(made, now - (count - number) * 1000)
    status = dice.choices(("active", "archived", "deleted"), (95, 2, 3))[0]
    return replace(record, status=status, deleted_at=now if status == "deleted" else None)


async def fill(url: str, count: int) -> None:
    async with Database(url) as database:
        memories = MemoryStore(database)
        await memories.open()
        await memories.close()
        if database.engine == "postgresql":
            for lot in memories_of(count):
                await database.write(partial(_insert, lot))
            # As after any large import.
            await memories.note_bulk_load(count)
    if database.engine == "sqlite":
        _fill_file(url.removeprefix("sqlite://"), count)


def _insert(lot: list[MemoryRecord], tx: Transaction) -> None:
    mutations.insert(tx, lot)


def _fill_file(path: str, count: int) -> None:
    """With a large cache, and without waiting for the disk."""
    connection = sqlite3.connect(path, isolation_level=None)
    for pragma in ("synchronous = off", "cache_size = -1500000", "foreign_keys = on"):
        connection.execute(f"pragma {pragma}")
    for lot in memories_of(count):
        connection.execute("begin immediate")
        mutations.insert(SqliteTransaction(connection, path, is_write=True), lot)
        connection.execute("commit")
    connection.close()


async def measure(url: str) -> dict[str, float]:
    corpus, result = Corpus(seed=9), {}
    requests = [corpus.question(draft.content) for draft in corpus.drafts(QUESTIONS)]
    async with Database(url) as database:
        memories = MemoryStore(database)
        await memories.open()
        for text in FILTERS:
            wanted = memories.filter(text if "project:" in text else f"project:* {text}")
            calls: list[Call] = [partial(memories.recall, query, wanted) for query in requests]
            result |= await timed(f"recall {text or 'all'}", calls)
            result |= await timed(f"list {text or 'all'}", [partial(memories.recall, "", wanted)] * 5)
        for name, calls in _others(memories, requests).items():
            result |= await timed(name, calls)
        await memories.close()
    return result


def _others(memories: MemoryStore, asked: list[str]) -> dict[str, list[Call]]:
    everywhere, now = memories.filter("project:*"), timestamps.now_ms()
    read: dict[str, Callable[[Transaction], object]] = {
        "status": statistics.collect_counts,
        "namespaces": statistics.count_by_namespace,
        "topics": partial(statistics.list_topics, limit=100),
        "graph": partial(graph.list_entities, kind=None, limit=50),
        "graph around one": partial(graph.neighbours, name="ann", depth=1, limit=50),
        "graph path": partial(graph.shortest_path, start="ann", end="zoe rare"),
    }
    calls: dict[str, list[Call]] = {name: [partial(memories.read, fn)] * QUESTIONS for name, fn in read.items()}
    calls["as_of"] = [partial(memories.recall, query, everywhere, as_of=now - 400_000_000) for query in asked]
    behind = (now - 999_000_000, "0")
    calls["export, a page near the end"] = [
        partial(export_import.export_memories, memories, everywhere, "jsonl", limit=100, after=behind)
    ] * QUESTIONS
    calls["capture"] = [
        partial(memories.capture, replace(draft, project="new"))
        for draft in Corpus(seed=timestamps.now_ms()).drafts(100)
    ]
    return calls


async def timed(name: str, calls: list[Call]) -> dict[str, float]:
    """Milliseconds; the first call of each kind is not counted, it fills the cache."""
    item, worked = [], []
    for call in calls:
        began, busy = time.perf_counter(), time.process_time()
        await call()
        item.append((time.perf_counter() - began) * 1000)
        worked.append((time.process_time() - busy) * 1000)
    return {
        f"{name}, p50": averages.median(item[1:]),
        f"{name}, p99": sorted(item[1:])[int(0.99 * (len(item) - 1))],
        f"{name}, p99 cpu": sorted(worked[1:])[int(0.99 * (len(worked) - 1))],
    }


LINES = (
    ("recall", "recall over all, p99", "ms"),
    ("filtered", "recall or list, the slowest of 23 filters, p99", "ms"),
    ("others", "the slowest overview, page or capture, p99", "ms"),
    ("start", "cold start to the first recall", "ms"),
    ("server", "memory of a server, at most", "MB"),
)


def summary(found: dict[str, float]) -> dict[str, float]:
    """What LINES ask for."""
    worst = {name: value for name, value in found.items() if name.endswith(", p99")}
    filtered = {name: value for name, value in worst.items() if name.startswith(("recall ", "list "))}
    return {
        "recall": found["recall all, p99"],
        "filtered": max(filtered.values()),
        "others": max(value for name, value in worst.items() if name not in filtered),
        "start": found["start to the first recall"],
        "server": found["memory of a server, at most, MB"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--memories", type=int, default=1_000_000)
    parser.add_argument("--store", help="store of the memories (default: a temporary file)")
    parser.add_argument("--filled", action="store_true", help="the store has them already")
    parser.add_argument("--json", action="store_true", help="for programs")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="portico-million-") as folder:
        store = options.store or f"{folder}/memory.db"
        if not options.filled:
            asyncio.run(fill(store, options.memories))
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            result = runner.run(measure(store))
        result["start to the first recall"] = asyncio.run(start(store, folder))
        result["start to the first recall and the list of tools"] = asyncio.run(start(store, folder, listed=True))
        result["memory of a server, at most, MB"] = asyncio.run(resident(store, folder, 100))
    if options.json:
        print(json.dumps(summary(result)))
        return
    for name, value in result.items():
        print(f"{name:60s} {value:10,.2f}")


if __name__ == "__main__":
    main()
