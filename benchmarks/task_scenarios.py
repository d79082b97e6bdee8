"""The task table: Portico on both stores against FastMCP, which uses memory without Redis."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from client_scenarios import TIMEOUT, ClientSize
from driver import DriverError
from peers import NotInstalled, Peer, environment, tree_environment
from scenarios import Answers, Question, take_turns
from table import aligned, cell, failures, heading, peer_line, piped

PROGRAMS = Path(__file__).resolve().parent / "task_programs"
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

TASK_QUESTIONS = (
    Question("task_rate", "tasks, from the call to the result, 32 in flight", "per s", more_is_better=True),
    Question("task_pickup", "from the call to the body's first line, worker idle, median", "ms"),
)
DRIVER = "psycopg[binary]>=3.2"
KEYS = tuple(question.key for question in TASK_QUESTIONS)
LEGEND = (
    "Client and server are one process and the body does next to nothing, so it is the engine and its store that are"
    " measured. Portico's tasks are on the disk when the call returns (SQLite: synchronous=FULL; PostgreSQL 15 started"
    " for this run, fsync on); FastMCP's are in memory and end with the process."
)


def task_peers(peers: list[Peer]) -> list[Peer]:
    """Return the columns: Portico twice, once per store."""
    results = []
    for peer in peers:
        if peer.key == "portico":
            results.append(replace(peer, key="portico-SQLite", title="Portico, SQLite"))
            with_driver = replace(peer, key="portico-PostgreSQL", title="Portico, PostgreSQL")
            results.append(_installed(with_driver, partial(tree_environment, "here-postgres", DRIVER)))
        elif peer.key == "fastmcp":
            extension = f"fastmcp-tasks=={peer.version}"
            in_memory = replace(peer, title="FastMCP, memory")
            results.append(_installed(in_memory, partial(environment, "fastmcp", peer.version, extension)))
    return results


def _installed(peer: Peer, make: Callable[[], Path]) -> Peer:
    if peer.reason:
        return peer
    try:
        return replace(peer, python=str(make()))
    except NotInstalled as why:
        return replace(peer, reason=str(why))


def ask_tasks(answers: Answers, peers: list[Peer], size: ClientSize) -> None:
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        programs: list[tuple[Peer, list[str]]] = []
        for peer in peers:
            try:
                programs.append((peer, _program(peer, folder, stack)))
            except NotInstalled as why:
                for key in KEYS:
                    answers.fail(key, peer, why)
        turns = [(peer, KEYS, lambda peer=peer, words=words: _ask(peer, words)) for peer, words in programs]
        take_turns(answers, size.rounds, turns)


def _program(peer: Peer, folder: str, stack: ExitStack) -> list[str]:
    if peer.key == "fastmcp":
        return [peer.python, str(PROGRAMS / "fast_tasks.py")]
    store = f"sqlite:///{folder}/tasks.db" if peer.key == "portico-SQLite" else _postgres(stack)
    return [peer.python, str(PROGRAMS / "portico_tasks.py"), store]


def _postgres(stack: ExitStack) -> str:
    # Of the tests: they know how to start one.
    from support import debian, postgres

    try:
        url: str = stack.enter_context(postgres.server()).create_database()
    except debian.NotInstalled as why:
        raise NotInstalled(str(why)) from None
    return url


def _ask(peer: Peer, words: list[str]) -> dict[str, float]:
    done = subprocess.run(
        words, capture_output=True, text=True, timeout=TIMEOUT, check=False, env={**os.environ, **peer.env}
    )
    if done.returncode != 0:
        raise DriverError(f"it ended with {done.returncode}: {done.stderr.strip()[-300:]}")
    data: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return data


def report(facts: dict[str, Any], answers: Answers, peers: list[Peer], size: ClientSize, markdown: bool) -> str:
    draw = piped if markdown else aligned
    bullet = "- " if markdown else ""
    head = ["question", "unit", *(peer.title for peer in peers)]
    body = [
        [task_question.text, task_question.unit, *(cell(answers, task_question, peer) for peer in peers)]
        for task_question in TASK_QUESTIONS
    ]
    rounds = "one round" if size.rounds == 1 else f"{size.rounds} rounds"
    blocks = [
        heading("tasks", facts, bullet),
        [f"{bullet}{peer_line(peer)}" for peer in peers],
        draw([head, *body]),
        [f"{bullet}{line}" for line in failures(answers, peers)],
        [f"{LEGEND} A cell is the median of {rounds}."],
    ]
    return "\n\n".join("\n".join(lines) for lines in blocks if lines)
