"""Measure tool search on LiveMCPBench: 70 servers with 527 tools, 94 tasks.

    python benchmarks/tool_search.py PATH              # of a checkout of github.com/icip-cas/LiveMCPBench
    python benchmarks/tool_search.py PATH --held-out   # the tasks that nothing was tuned on, too
    python benchmarks/tool_search.py PATH --parts      # what single parts of the ranking are worth, on the others

Each task has a description, annotated steps, and the tools used. `question` is the share of
those tools among the first ten that are found with the words of the task as one query; `steps` is the share that is
among the first five of at least one step, each searched for by itself; `at once` is the same where all steps are the
queries of one call, to which `find_tools` gives five others for each. Weights were chosen on the tasks with an even
index alone, so those with an odd one are the judges. The data is theirs and is not part of this repository.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

from portico.jsonschema import list_fields
from portico.search import tool_index as ranking
from portico.search.tool_index import ToolDocument, ToolIndex

Search = Callable[[str, int], list[int]]

# Parts of the ranking, to measure without them.
PARTS: dict[str, dict[str, Any]] = {"no order": {"_SERVER_MATCH_BOOST": 0.4, "_LIST_POSITION_BOOST": 0.0}}


class Task(NamedTuple):
    question: str
    steps: list[str]
    tools: list[str]


class Bench(NamedTuple):
    tools: list[ToolDocument]
    # By index in the file; those without annotated tools are left out.
    tasks: dict[int, Task]

    def half(self, rest: int) -> list[Task]:
        return [task for at, task in self.tasks.items() if at % 2 == rest]


def load(path: Path) -> Bench:
    servers = json.loads((path / "tools/LiveMCPTool/tools.json").read_text())
    tools = [_words(server, item) for server in servers for part in server["tools"].values() for item in part["tools"]]
    data = json.loads((path / "annotated_data/all_annotations.json").read_text())
    known_names = {item.name for item in tools}
    tasks = {}
    for at, task in enumerate(data):
        notes = task["Annotator Metadata"]
        named = [item for item in _items(notes["Tools"]) if item in known_names]
        if named:
            tasks[at] = Task(task["Question"], _items(notes["Steps"]), named)
    return Bench(tools, tasks)


def _words(server: dict, tool: dict) -> ToolDocument:
    """Return the words of a tool as in a gateway: the server's alias is its name."""
    parts = list_fields(tool["inputSchema"])
    return ToolDocument(
        name=tool["name"],
        title=((tool.get("annotations") or {}).get("title")) or "",
        description=tool.get("description") or "",
        parameters=" ".join(part.name for part in parts),
        parameter_descriptions=" ".join(str(part.schema.get("description", "")) for part in parts),
        server=next(iter(server["tools"])),
    )


def _items(text: str) -> list[str]:
    """Return the lines of a numbered list."""
    result = (re.sub(r"^\s*\d+\s*[.)]\s*", "", line).strip() for line in text.splitlines())
    return list(dict.fromkeys(item for item in result if item))


def recall(tasks: Sequence[Task], tools: Sequence[ToolDocument], search: Search) -> tuple[float, float, float]:
    """Return means over the tasks: R@10 of the question, R@5 of the steps, R@5 of the steps in one call."""
    questions, steps, calls = [], [], []
    for task in tasks:
        result = set(task.tools)
        first = {tools[at].name for at in search(task.question, 10)}
        any_step = {tools[at].name for step in task.steps for at in search(step, 5)}
        one_call = {tools[at].name for found in together(search, task.steps, 5) for at in found}
        questions.append(len(result & first) / len(result))
        steps.append(len(result & any_step) / len(result))
        calls.append(len(result & one_call) / len(result))
    return sum(questions) / len(tasks), sum(steps) / len(tasks), sum(calls) / len(tasks)


class Ours:
    """Search as find_tools does: one query, or all steps of a task together."""

    def __init__(self, tools: Sequence[ToolDocument]) -> None:
        self.index = ToolIndex(tools)

    def __call__(self, query: str, most: int) -> list[int]:
        return [at for at, _ in self.index.search(query, most)]


ours = Ours


def together(search: Search, queries: Sequence[str], most: int) -> list[list[int]]:
    if isinstance(search, Ours):
        return search.index.search_many(queries, most)
    return [search(query, most) for query in queries]


def plain(tools: Sequence[ToolDocument], k1: float = 1.5, b: float = 0.75) -> Search:
    """Return textbook BM25 over all texts of a tool."""
    bags = [
        Counter(
            re.findall(r"[a-z0-9]+", " ".join((t.name, t.description, t.parameters, t.parameter_descriptions)).lower())
        )
        for t in tools
    ]
    usual = sum(bag.total() for bag in bags) / len(bags)
    with_it = Counter(word for bag in bags for word in bag)

    def search(query: str, most: int) -> list[int]:
        scores = [0.0] * len(bags)
        for word in re.findall(r"[a-z0-9]+", query.lower()):
            rarity = math.log(1 + (len(bags) - with_it[word] + 0.5) / (with_it[word] + 0.5))
            for at, bag in enumerate(bags):
                if times := bag[word]:
                    scores[at] += rarity * times * (k1 + 1) / (times + k1 * (1 - b + b * bag.total() / usual))
        return sorted(range(len(bags)), key=lambda at: -scores[at])[:most]

    return search


def milliseconds(index: ToolIndex, queries: Sequence[str]) -> float:
    """Return the CPU time of one query, the best of five rounds."""
    rounds = []
    for _ in range(5):
        began = time.process_time()
        for query in queries:
            index.search(query, 10)
        rounds.append((time.process_time() - began) / len(queries) * 1000)
    return min(rounds)


def grown(tools: Sequence[ToolDocument], count: int) -> list[ToolDocument]:
    """Return additional tools of the same kind, with words of two others each."""
    chance = random.Random(7)
    results = list(tools)
    while len(results) < count:
        item, two = chance.choice(tools), chance.choice(tools)
        results.append(
            ToolDocument(
                f"{item.name}_{len(results)}",
                two.title,
                f"{two.description} {item.description[:80]}",
                item.parameters,
                item.parameter_descriptions,
                two.server,
            )
        )
    return results[:count]


def rows(path: Path, *, held_out: bool = False) -> list[tuple[str, ...]]:
    """Return for each search method: tasks, R@10 of the question, R@5 of the steps, and of the steps in one call."""
    bench = load(path)
    halves = {"even (tuned on)": bench.half(0)} | ({"odd (held out)": bench.half(1)} if held_out else {})
    results = []
    for name, search in (("plain BM25", plain(bench.tools)), ("find_tools", ours(bench.tools))):
        for which, tasks in halves.items():
            shares = recall(tasks, bench.tools, search)
            results.append((name, f"{which}: {len(tasks)}", *(f"{share:.3f}" for share in shares)))
    return results


def parts(path: Path) -> list[tuple[str, ...]]:
    """Return the same for the development tasks, with parts of the ranking disabled."""
    bench = load(path)
    results = []
    for name, instead in PARTS.items():
        with patch.multiple(ranking, **instead):
            shares = recall(bench.half(0), bench.tools, ours(bench.tools))
        results.append((name, "even (tuned on)", *(f"{share:.3f}" for share in shares)))
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("path", type=Path, help="a checkout of LiveMCPBench")
    parser.add_argument("--held-out", action="store_true", help="the odd tasks too")
    parser.add_argument("--parts", action="store_true", help="without parts of the ranking, too")
    arguments = parser.parse_args()
    print(f"{'':12} {'tasks':22} {'question R@10':>14} {'steps R@5':>10} {'at once':>10}")
    result = rows(arguments.path, held_out=arguments.held_out) + (parts(arguments.path) if arguments.parts else [])
    for name, which, question, steps, once in result:
        print(f"{name:12} {which:22} {question:>14} {steps:>10} {once:>10}")
    bench = load(arguments.path)
    queries = [task.question for task in bench.half(0)] + [step for task in bench.half(0) for step in task.steps]
    for count in (len(bench.tools), 10_000):
        began = time.process_time()
        index = ToolIndex(grown(bench.tools, count))
        made = time.process_time() - began
        print(f"{count:,} tools: {milliseconds(index, queries):.2f} ms a query, the index made in {made:.2f} s")


if __name__ == "__main__":
    main()
