"""One memory server over stdio, queried by Portico's client: prints the measurements as JSON.

python ask.py KIND MEMORIES FOLDER COMMAND…
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from memory_corpus import Corpus
from portico import Client

QUESTIONS = 100
Call = tuple[str, dict[str, Any]]


def capture(kind: str, number: int, text: str) -> Call:
    if kind == "portico":
        return "memory_capture", {"content": text, "namespace": "context"}
    if kind == "server-memory":
        entity = {"name": f"note {number}", "entityType": "note", "observations": [text]}
        return "create_entities", {"entities": [entity]}
    return "write_note", {"title": f"note {number}", "content": text, "directory": "notes"}


def recall(kind: str, question: str) -> Call:
    if kind == "portico":
        return "memory_recall", {"query": question}
    return ("search_nodes" if kind == "server-memory" else "search_notes"), {"query": question}


def resident() -> float:
    """MB of all processes that we have started."""
    pages, waiting = 0, [os.getpid()]
    while waiting:
        for path in Path(f"/proc/{waiting.pop()}/task").glob("*/children"):
            for child in map(int, path.read_text().split()):
                waiting.append(child)
                pages += int(Path(f"/proc/{child}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


async def timed(client: Client, calls: list[Call]) -> float:
    items = []
    for name, arguments in calls:
        began = time.perf_counter()
        await client.call_tool(name, arguments)
        items.append((time.perf_counter() - began) * 1000)
    return statistics.median(items)


async def main(kind: str, count: int, folder: str, command: list[str]) -> None:
    corpus = Corpus()
    texts = [corpus.text() for _ in range(count)]
    questions = [corpus.question(text) for text in texts[:: max(1, count // QUESTIONS)]]
    places = {"PORTICO_DATA": folder, "MEMORY_FILE_PATH": f"{folder}/memory.jsonl", "HOME": folder}
    began = time.perf_counter()
    async with Client(command, env={**os.environ, **places}) as client:
        await client.call_tool(*recall(kind, "the first question"))
        results = {"start": (time.perf_counter() - began) * 1000}
        results["capture"] = await timed(client, [capture(kind, number, text) for number, text in enumerate(texts)])
        results["recall"] = await timed(client, [recall(kind, question) for question in questions])
        results["resident"] = resident()
    print(json.dumps(results))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4:]))
