"""The memory's table: beside other memory servers at a size they can do, and ours alone at 100,000 and a million."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from driver import DriverError
from goals import Goal, limit, same
from live_table import newer_python
from memory_million import LINES as MILLION_LINES
from memory_speed import LINES
from peers import NotInstalled, Peer, environment, node_and_npm, npm_install, place
from scenarios import Answers, Question, take_turns
from services_table import Grid, Size, Table, this_tree

NAME = "memory"
HERE = Path(__file__).resolve().parent
TIMEOUT = 1800
FEW, FEW_QUICK = 300, 50
MANY, MANY_QUICK = 100_000, 5_000
SERVER_MEMORY, BASIC_MEMORY = "2026.8.31", "0.23.2"

BESIDE = (
    Question("capture", "capture, one at a time, {few} of them, p50", "ms"),
    Question("recall", "recall among {few}, p50", "ms"),
    Question("start", "start to the first recall, nothing stored", "ms"),
    Question("resident", "resident memory with {few}", "MB"),
)
ALONE = tuple(
    Question(f"many_{key}", text, unit, more_is_better=key in ("bulk", "import")) for key, text, unit in LINES
)
MILLION = tuple(Question(f"million_{key}", f"at a million: {text}", unit) for key, text, unit in MILLION_LINES)
LEGEND = (
    "Beside others: each is a server on stdio, asked by the same client for the same texts. Portico and basic-memory"
    " find by words; server-memory searches for the whole query as a substring and rewrites one file for each "
    "change. At {many}: the functions that the tools call, in one process, each write on disk, with screening and "
    "detection of duplicates and contradictions. In bulk only exact duplicates are. In a scope: one namespace"
    " of one project."
)


def measure(size: Size) -> Table:
    few, many = (FEW_QUICK, MANY_QUICK) if size.quick else (FEW, MANY)
    answers, columns = Answers(), memory_columns()
    keys = tuple(question.key for question in BESIDE)
    able = [peer for peer in columns if not peer.reason]
    take_turns(answers, min(size.rounds, 3), [(peer, keys, lambda peer=peer: _asked(peer, few)) for peer in able])
    ours = columns[0]
    take_turns(answers, 1, [(ours, tuple(question.key for question in ALONE), lambda: _alone(many))])
    if not size.quick:
        take_turns(answers, 1, [(ours, tuple(question.key for question in MILLION), _million)])
    beside = [replace(question, text=question.text.format(few=f"{few:,}")) for question in BESIDE]
    legend = [LEGEND.format(many=f"{many:,}")]
    grids = [Grid(beside, columns), Grid(ALONE, [ours]), *([] if size.quick else [Grid(MILLION, [ours])])]
    goals = judge(answers, many) + ([] if size.quick else _judge_million(answers))
    return Table("memory", grids, answers, goals, legend=legend)


def judge(answers: Answers, many: int) -> list[Goal]:
    def ours(key: str) -> float | None:
        return answers.value(f"many_{key}", "portico")

    def each(key: str) -> float | None:
        return None if (per_second := ours(key)) is None else 1e6 / per_second

    return [
        limit("capture, p50: below 1 ms", ours("capture_p50"), 1, "ms"),
        limit("capture, p99: below 3 ms", ours("capture_p99"), 3, "ms"),
        limit("bulk: 9,000 a second, so below 111 µs each", each("bulk"), 111, "µs"),
        limit("import: 5,000 a second, so below 200 µs each", each("import"), 200, "µs"),
        limit("recall in a scope, p50: below 1 ms", ours("scope_p50"), 1, "ms"),
        limit("recall in a scope, p99: below 5 ms", ours("scope_p99"), 5, "ms"),
        limit(f"recall over all {many:,}, p50: below 7 ms", ours("all_p50"), 7, "ms"),
        limit(f"recall over all {many:,}, p99: below 40 ms", ours("all_p99"), 40, "ms"),
        limit("resident memory of a server: below 60 MB", ours("server"), 60, "MB"),
        same(f"cold start with {many:,}: as with none (within 10 %)", ours("start_none"), ours("start_many")),
    ]


def _judge_million(answers: Answers) -> list[Goal]:
    def ours(key: str) -> float | None:
        return answers.value(f"million_{key}", "portico")

    return [
        limit("at a million: recall over all, p99: below 50 ms", ours("recall"), 50, "ms"),
        limit("at a million: the slowest filter, p99: below 50 ms", ours("filtered"), 50, "ms"),
        limit("at a million: the slowest overview, page or capture, p99: below 50 ms", ours("others"), 50, "ms"),
        limit("at a million: cold start: below 150 ms", ours("start"), 150, "ms"),
        limit("at a million: memory of a server: below 200 MB", ours("server"), 200, "MB"),
    ]


def memory_columns() -> list[Peer]:
    """Ours is the first of them."""
    serve = (sys.executable, "-m", "portico", "serve", "--services", "memory")
    return [this_tree(program=serve), _server_memory(), _basic_memory()]


def _server_memory() -> Peer:
    package = "@modelcontextprotocol/server-memory"
    peer = Peer("server-memory", "server-memory", package, version=SERVER_MEMORY)
    home = place("server-memory", SERVER_MEMORY)
    program = home / "node_modules" / package / "dist" / "index.js"
    try:
        node, _ = node_and_npm()
        if not program.exists():
            npm_install(home, f"{package}@{SERVER_MEMORY}")
    except NotInstalled as why:
        return replace(peer, reason=str(why))
    return replace(peer, program=(node, str(program)))


def _basic_memory() -> Peer:
    peer = Peer("basic-memory", "basic-memory", "basic-memory", version=BASIC_MEMORY)
    try:
        python = environment("basic-memory", BASIC_MEMORY, base=newer_python())
    except NotInstalled as why:
        return replace(peer, reason=str(why))
    return replace(peer, python=str(python), program=(str(python.parent / "basic-memory"), "mcp"))


def _asked(peer: Peer, few: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="portico-memory-") as folder:
        return _told([str(HERE / "memory_programs" / "ask.py"), peer.key, str(few), folder, *peer.program])


def _alone(many: int) -> dict[str, float]:
    result = _told([str(HERE / "memory_speed.py"), "--memories", str(many), "--json"])
    return {f"many_{key}": value for key, value in result.items()}


def _million() -> dict[str, float]:
    result = _told([str(HERE / "memory_million.py"), "--json"])
    return {f"million_{key}": value for key, value in result.items()}


def _told(words: list[str]) -> dict[str, float]:
    command = [sys.executable, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    if done.returncode != 0:
        raise DriverError(f"it ended with {done.returncode}: {done.stderr.strip()[-300:]}")
    data: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return data
