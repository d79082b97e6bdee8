"""How long the memory takes to write and to ask, at many memories, by the functions that its tools call.

    python benchmarks/memory_speed.py [--memories 100000] [--large] [--store URL] [--questions 300] [--json]

Times are of this process, from the call to its return, on the loop that servers run on, each write on disk, with
screening and detection of duplicates and contradictions; bulk is `capture_all`, which detects only exact duplicates. An
import is of 5,000 in JSON lines, into those that are there; secrets are looked for. “In a scope” is one namespace of
one project, “over all” is every project. The cold start is `portico serve --services memory`, from its start to the
answer of a first recall, the best of five. `--large` is for a million.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import random
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import compiled  # noqa: F401
from memory_corpus import Corpus
from portico import Client
from portico.store.database import Database
from portico.transports.event_loop import new_event_loop
from portico_services import timestamps
from portico_services.memory import export_import
from portico_services.memory.store.capture import MemoryDraft, build_record
from portico_services.memory.store.memory_store import MemoryStore
from portico_services.memory.store.screening import ContentScreen
from portico_services.memory.sync import serialization

BATCH = 5000


async def measure(url: str, count: int, questions: int) -> dict[str, float]:
    corpus = Corpus()
    async with Database(url) as database:
        memories = MemoryStore(database)
        await memories.open()
        result, some = await _fill(memories, corpus, count)
        result |= await _captures(memories, list(corpus.drafts(questions)))
        result |= await _import(memories, list(corpus.drafts(BATCH)))
        requests = [(corpus.question(item.content), item) for item in random.Random(1).sample(some, questions)]
        for key, where in (
            ("scope", lambda item: f"project:{item.project} ns:{item.namespace}"),
            ("project", lambda item: f"project:{item.project}"),
            ("all", lambda item: "project:*"),
        ):
            calls = [
                lambda query=query, expected=memories.filter(where(item)): memories.recall(query, expected)
                for query, item in requests
            ]
            result |= await timed(key, calls, warm=30)
        await memories.close()
    return result | {"resident": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


async def _fill(memories: MemoryStore, corpus: Corpus, count: int) -> tuple[dict[str, float], list[MemoryDraft]]:
    """How many in a second, and microseconds that each took to work; and some of them, to be asked for."""
    item = worked = 0.0
    kept: list[MemoryDraft] = []
    for start in range(0, count, BATCH):
        drafts = list(corpus.drafts(min(BATCH, count - start)))
        kept += drafts[:: max(1, count // 4000)]
        began, busy = time.perf_counter(), time.process_time()
        await memories.capture_batch(drafts)
        item += time.perf_counter() - began
        worked += time.process_time() - busy
    return {"bulk": count / item, "bulk_cpu": worked / count * 1e6}, kept


async def _captures(memories: MemoryStore, drafts: list[MemoryDraft]) -> dict[str, float]:
    guard = ContentScreen("redact")

    async def capture(draft: MemoryDraft) -> None:
        guard.screen_text(draft.content)
        await memories.capture(draft)

    return await timed("capture", [lambda one=one: capture(one) for one in drafts], warm=30)


async def _import(memories: MemoryStore, drafts: list[MemoryDraft]) -> dict[str, float]:
    now = timestamps.now_ms()
    text = serialization.dump([build_record(draft, now) for draft in drafts], "jsonl")
    began, busy = time.perf_counter(), time.process_time()
    brought = await export_import.import_memories(memories, text, "jsonl", screen=ContentScreen("redact").screen_text)
    item, worked = time.perf_counter() - began, time.process_time() - busy
    return {"import": brought.added / item, "import_cpu": worked / brought.added * 1e6}


async def timed(key: str, calls: list[Callable[[], Awaitable[object]]], warm: int) -> dict[str, float]:
    """Milliseconds; `cpu` is what of it this process worked, which says more on a machine that others use."""
    item, worked = [], []
    for number, call in enumerate(calls):
        began, busy = time.perf_counter(), time.process_time()
        await call()
        if number >= warm:
            item.append((time.perf_counter() - began) * 1000)
            worked.append((time.process_time() - busy) * 1000)
    item.sort()
    return {
        f"{key}_p50": statistics.median(item),
        f"{key}_p99": item[int(0.99 * len(item))],
        f"{key}_cpu": statistics.median(worked),
    }


def serving(store: str, folder: str, *, validate: bool = True) -> Client:
    command = [sys.executable, "-m", "portico", "serve", "--services", "memory", "--store", store]
    return Client(command, env={**os.environ, "PORTICO_DATA": folder}, validate_results=validate)


async def start(store: str, folder: str, *, listed: bool = False) -> float:
    """Milliseconds to the answer of a first recall; `listed`: and to the list of all tools, which our client asks for
    unless it is told not to hold results against their schemas."""
    items = []
    for _ in range(5):
        began = time.perf_counter()
        async with serving(store, folder, validate=listed) as client:
            await client.call_tool("memory_recall", {"query": "the parser of the configuration"}, result_type=dict)
            items.append((time.perf_counter() - began) * 1000)
    return min(items)


async def resident(store: str, folder: str, calls: int) -> float:
    """Megabytes that a server has had at most, once it was asked and told so much. Only Linux tells."""
    corpus = Corpus(seed=8)
    async with serving(store, folder) as client:
        for draft in corpus.drafts(calls):
            query = {"query": corpus.question(draft.content), "filter": "project:*"}
            await client.call_tool("memory_recall", query)
            await client.call_tool("memory_capture", {"content": draft.content, "namespace": draft.namespace})
        return max(_held("self"), default=math.nan)


def _held(process: str) -> list[float]:
    """What each process below this one has had at most."""
    held = []
    for children in Path(f"/proc/{process}/task").glob("*/children"):
        for child in children.read_text().split():
            status = Path(f"/proc/{child}/status").read_text()
            held += [int(status.partition("VmHWM:")[2].split()[0]) / 1024, *_held(child)]
    return held


LINES = (
    ("capture_p50", "capture, p50", "ms"),
    ("capture_p99", "capture, p99", "ms"),
    ("capture_cpu", "capture, CPU time, p50", "ms"),
    ("bulk", "bulk", "per s"),
    ("bulk_cpu", "bulk, CPU time of each", "µs"),
    ("import", "import", "per s"),
    ("import_cpu", "import, CPU time of each", "µs"),
    ("scope_p50", "recall in a scope, p50", "ms"),
    ("scope_p99", "recall in a scope, p99", "ms"),
    ("scope_cpu", "recall in a scope, CPU time, p50", "ms"),
    ("project_p50", "recall in a project, p50", "ms"),
    ("project_p99", "recall in a project, p99", "ms"),
    ("all_p50", "recall over all, p50", "ms"),
    ("all_p99", "recall over all, p99", "ms"),
    ("all_cpu", "recall over all, CPU time, p50", "ms"),
    ("resident", "memory of this process and its corpus, at most", "MB"),
    ("server", "memory of a server, at most", "MB"),
    ("start_none", "cold start to the first recall, nothing stored", "ms"),
    ("start_many", "cold start to the first recall", "ms"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--memories", type=int, default=100_000)
    parser.add_argument("--large", action="store_true", help="a million")
    parser.add_argument("--questions", type=int, default=300)
    parser.add_argument("--store", help="store of the memories (default: a temporary file)")
    parser.add_argument("--json", action="store_true", help="for programs")
    options = parser.parse_args()
    count = 1_000_000 if options.large else options.memories
    with tempfile.TemporaryDirectory(prefix="portico-speed-") as folder:
        store = options.store or f"{folder}/memory.db"
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            result = runner.run(measure(store, count, options.questions))
        result["start_none"] = asyncio.run(start(f"{folder}/empty.db", folder))
        result["start_many"] = asyncio.run(start(store, folder))
        result["server"] = asyncio.run(resident(store, folder, options.questions))
    if options.json:
        print(json.dumps(result))
        return
    print(f"{count:,} memories")
    for key, text, unit in LINES:
        print(f"{text:48s} {result[key]:10,.2f} {unit}")


if __name__ == "__main__":
    main()
