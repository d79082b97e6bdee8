"""How long the memory takes to write and to ask, at many memories, by the functions that its tools call.

    python benchmarks/memory_speed.py [--memories 100000] [--large] [--store URL] [--questions 300]

Times are of this process, from the call to its return, each write on the disk, secrets looked for and duplicates and
contradictions compared; bulk is `capture_all`, which looks for exact duplicates alone. “In a scope” is one namespace of
one project, “over all” is every project. The cold start is `portico serve --services memory`, from its start to the
answer of a first recall. `--large` is for a million. Goals are beside the numbers.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from memory_corpus import Corpus
from portico import Client
from portico.services.memory.capturing import Draft
from portico.services.memory.guarding import Guard
from portico.services.memory.memories import Memories
from portico.store.database import Database

BATCH = 5000


async def measure(url: str, count: int, questions: int) -> None:
    corpus = Corpus()
    async with Database(url) as database:
        memories = Memories(database)
        await memories.open()
        some = await _fill(memories, corpus, count)
        await _captures(memories, list(corpus.drafts(questions)))
        asked = [
            (corpus.question(one.content), one) for one in random.Random(1).sample(some, min(questions, len(some)))
        ]
        goals = ("7 / 40", "") if count <= 100_000 else ("15 / –", "")
        for name, goal, filter in (
            ("recall in a scope", "1 / 5", lambda one: f"project:{one.project} ns:{one.namespace}"),
            ("recall in a project", "", lambda one: f"project:{one.project}"),
            ("recall over all", goals[0], lambda one: "project:*"),
        ):
            calls = [
                lambda query=query, wanted=memories.filter(filter(one)): memories.recall(query, wanted)
                for query, one in asked
            ]
            await shown(name, goal, calls, warm=min(30, len(calls)))
        await memories.close()
    print(f"{'resident':22s} {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:8.0f} MB at most   goal 60")


async def _fill(memories: Memories, corpus: Corpus, count: int) -> list[Draft]:
    """In bulk; some of them, to be asked for."""
    taken, kept = 0.0, []
    for start in range(0, count, BATCH):
        drafts = list(corpus.drafts(min(BATCH, count - start)))
        kept += drafts[:: max(1, count // 2000)]
        began = time.perf_counter()
        await memories.capture_all(drafts)
        taken += time.perf_counter() - began
    print(f"{'bulk':22s} {count / taken:8,.0f} memories a second   goal 9,000")
    return kept


async def _captures(memories: Memories, drafts: list[Draft]) -> None:
    guard = Guard("redact")

    async def capture(draft: Draft) -> None:
        guard.passed(draft.content)
        await memories.capture(draft)

    await shown("capture", "1 / 3", [lambda one=one: capture(one) for one in drafts], warm=min(10, len(drafts)))


async def shown(name: str, goal: str, calls: list[Callable[[], Awaitable[object]]], warm: int) -> None:
    for call in calls[:warm]:
        await call()
    taken = []
    for call in calls[warm:] or calls:
        began = time.perf_counter()
        await call()
        taken.append((time.perf_counter() - began) * 1000)
    taken.sort()
    tail = taken[int(0.99 * len(taken))]
    print(f"{name:22s} {statistics.median(taken):8.2f} ms p50 {tail:8.2f} ms p99   goal {goal or '–'}", flush=True)


async def start(name: str, store: str, folder: str) -> None:
    """From nothing to the answer of a first recall, the best of five."""
    command = [sys.executable, "-m", "portico", "serve", "--services", "memory", "--store", store]
    taken = []
    for _ in range(5):
        began = time.perf_counter()
        async with Client(command, env={**os.environ, "PORTICO_DATA": folder}) as client:
            await client.call_tool("memory_recall", {"query": "the parser of the configuration"})
            taken.append((time.perf_counter() - began) * 1000)
    print(f"{name:22s} {min(taken):8.0f} ms to the first recall", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--memories", type=int, default=100_000)
    parser.add_argument("--large", action="store_true", help="a million")
    parser.add_argument("--questions", type=int, default=300)
    parser.add_argument("--store", help="where to keep them; a file of its own, if nothing is said")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="portico-speed-") as folder:
        store = options.store or f"{folder}/memory.db"
        asyncio.run(measure(store, 1_000_000 if options.large else options.memories, options.questions))
        if not options.store:
            size = sum(path.stat().st_size for path in Path(folder).iterdir() if path.is_file())
            print(f"{'on disk':22s} {size / 1e6:8.0f} MB")
        asyncio.run(start("cold start, none", f"{folder}/empty.db", folder))
        asyncio.run(start("cold start, with them", store, folder))


if __name__ == "__main__":
    main()
