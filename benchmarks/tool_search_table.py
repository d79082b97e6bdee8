"""The tool search table: quality, latency, and the tokens of a list in each mode.

    LIVE_MCP_BENCH=PATH python benchmarks/run.py --table find

The quality needs the data of LiveMCPBench (tool_search.py says which); without it those rows are left out. Tokens are
those of o200k where `rs-bpe` is installed, and a quarter of the bytes otherwise: for JSON of this kind that is within
5 % of it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from msgspec.structs import replace

import code_mode
import tool_search
from goals import Goal, limit
from portico import Client, Server, Tool
from portico.extend import Handler
from portico.search import ToolSearchServer
from portico.search.tool_index import ToolDocument, ToolIndex
from portico_services import assembly
from portico_services.codemode import CodeModeServer
from scenarios import Answers, Question, take_turns
from services_table import Grid, Size, Table, this_tree

NAME = "find"
COUNTS = (20, 100, 500)

QUALITY = (
    Question("bm25_question", "LiveMCPBench, odd tasks, plain BM25: tools at 10 from the question", "", True),
    Question("question", "the same by find_tools", "", True),
    Question("bm25_steps", "plain BM25: tools at 5 over the steps", "", True),
    Question("steps", "the same by find_tools", "", True),
    Question("at_once", "the same by find_tools with all steps in one call", "", True),
)
SPEED = (
    Question("query_500", "CPU of a query among 500 tools", "ms"),
    Question("query_10000", "among 10,000", "ms"),
    Question("index_10000", "making the index of 10,000", "s"),
)
TOKENS = tuple(
    Question(f"{face}_{count}", f"tokens of the list of {count} tools, {path}", "tokens")
    for count in COUNTS
    for face, path in (("all", "/mcp"), ("search", "/mcp/search"), ("code", "/mcp/code"))
)


def tokens() -> Callable[[str], int]:
    try:
        from rs_bpe.bpe import openai
    except ImportError:
        return lambda text: len(text.encode()) // 4
    encoder = openai.o200k_base()
    return lambda text: len(encoder.encode(text))


def own_tools() -> list[Tool]:
    """Return the tools of the built-in services, which are as large as those of other servers."""
    place = assembly.ServiceEnvironment(data=Path(os.devnull), store=":memory:")
    server = assembly.build_server(list(assembly.SERVICE_CLASSES), assembly.read_settings(None, None), place)
    return list(server.tools)


def server_of(count: int, tools: list[Tool]) -> Server:
    server = Server("many")

    async def nothing() -> str:
        return ""

    for number in range(count):
        like = tools[number % len(tools)]
        made = Tool(nothing, name=f"{like.name}_{number}")
        made.definition = replace(like.definition, name=made.name)
        server.add(made)
    return server


async def listed(handler: Handler, count: Callable[[str], int]) -> int:
    """Return the tokens of the tool list that a client receives."""
    import msgspec

    async with Client(handler) as client:
        return count(msgspec.json.encode(await client.list_tools()).decode())


def speeds(size: Size) -> dict[str, float]:
    import time

    tools = [
        ToolDocument(item.name, item.definition.title or "", item.definition.description or "", "", "", item.owner)
        for item in own_tools()
    ]
    queries = [item.description for item in tools[: 10 if size.quick else len(tools)]]
    small = ToolIndex(tool_search.grown(tools, 500))
    began = time.process_time()
    large = ToolIndex(tool_search.grown(tools, 10_000))
    made = time.process_time() - began
    return {
        "query_500": tool_search.milliseconds(small, queries),
        "query_10000": tool_search.milliseconds(large, queries),
        "index_10000": made,
    }


def list_costs() -> dict[str, float]:
    tools, count = own_tools(), tokens()
    results: dict[str, float] = {}
    for number in COUNTS:
        server = server_of(number, tools)
        results[f"all_{number}"] = asyncio.run(listed(server, count))
        results[f"search_{number}"] = asyncio.run(listed(ToolSearchServer(server), count))
        results[f"code_{number}"] = asyncio.run(listed(CodeModeServer(server), count))
    return results


def quality(path: Path) -> dict[str, float]:
    bench = tool_search.load(path)
    tasks = bench.half(1)
    plain = tool_search.recall(tasks, bench.tools, tool_search.plain(bench.tools))
    ours = tool_search.recall(tasks, bench.tools, tool_search.ours(bench.tools))
    return {
        "bm25_question": plain[0],
        "bm25_steps": plain[1],
        "question": ours[0],
        "steps": ours[1],
        "at_once": ours[2],
    }


def measure(size: Size) -> Table:
    answers, ours, notes = Answers(), this_tree(), []
    questions: list[Question] = [*SPEED, *TOKENS]
    take_turns(answers, size.rounds, [(ours, tuple(item.key for item in SPEED), lambda: speeds(size))])
    take_turns(answers, 1, [(ours, tuple(item.key for item in TOKENS), list_costs)])
    questions += code_mode.QUESTIONS
    take_turns(
        answers,
        size.rounds,
        [(ours, tuple(item.key for item in code_mode.QUESTIONS), lambda: code_mode.measure(size.quick))],
    )
    data = os.environ.get("LIVE_MCP_BENCH")
    if data:
        questions = [*QUALITY, *questions]
        take_turns(answers, 1, [(ours, tuple(item.key for item in QUALITY), lambda: quality(Path(data)))])
    else:
        notes.append("without LIVE_MCP_BENCH, a checkout of that repository, nothing is said of the quality")
    return Table("Finding tools", [Grid(questions, [ours])], answers, goals(answers), notes, LEGEND)


LEGEND = (
    "Tasks with an odd index: nothing was tuned on them. A list is all that tools/list gives, with output schemas.",
)


def goals(answers: Answers) -> list[Goal]:
    def ours(question: str) -> Any:
        return answers.value(question, "portico")

    return [
        limit("a query among 500 tools: at most 1 ms", ours("query_500"), 1, "ms"),
        limit("a query among 10,000 tools: at most 5 ms", ours("query_10000"), 5, "ms"),
        limit(
            "the list of /mcp/code with 500 tools: at most 5 % of all", share(ours("code_500"), ours("all_500")), 5, "%"
        ),
        *code_mode.goals(answers),
        *(least(text, ours(key), bound) for text, key, bound in QUALITY_GOALS if ours(key) is not None),
    ]


QUALITY_GOALS = (
    ("tools found at 10 from the question: at least 0.55", "question", 0.55),
    ("tools found at 5 over the steps: at least 0.80", "steps", 0.80),
)


def least(text: str, found: float, bound: float) -> Goal:
    return Goal(text, f"{found:.3f}", "met" if found >= bound else "missed")


def share(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else 100 * part / whole
