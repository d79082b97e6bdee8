"""`portico memory hook NAME`: reads what an assistant says on standard input, and prints what it should know.

Whatever goes wrong, the assistant goes on: it is said on standard error, and the exit status is 0. Assistants take 2
for a veto, so even a mistake on the command line is not 2 here.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from portico._lazy import load_module
from portico.cli.data import store_url
from portico.cli.memory_forms import HOOKS, memory_form
from portico.services.memory.hooks import answers
from portico.services.memory.hooks.sqlite_peek import Unfit, glance
from portico.services.memory.share import repository
from portico.services.memory.share.repository import Where
from portico.services.memory.store import moments
from portico.store.transaction import Transaction

# The same file that `portico serve` keeps its services' things in.
NAME = "portico"
LONGEST_INPUT = 50_000_000
# For a lock, or for a server; and for everything: after that the assistant has waited long enough.
PATIENCE = 1.0
SECONDS = 10.0

_EXPIRED = "select count(*) from memory where expires_at <= :now and status <> 'deleted'"


def run(words: list[str]) -> int:
    try:
        arguments = memory_form().parse_args(words)
    except SystemExit as end:
        return 1 if end.code else 0
    name = arguments.words[0] if arguments.words else ""
    if name not in HOOKS:
        print(f"portico: which hook? There is {', '.join(HOOKS)}", file=sys.stderr)
        return 1
    with _no_longer_than(SECONDS):
        try:
            answer = _answer(name, _given(), arguments)
            if answer is not None:
                sys.stdout.write(msgspec.json.encode(answer).decode() + "\n")
                sys.stdout.flush()
        except Exception as failure:  # whatever it is, the assistant is not to suffer from it
            print(f"portico: {' '.join(str(failure).split())[:300] or type(failure).__name__}", file=sys.stderr)
    return 0


@contextmanager
def _no_longer_than(seconds: float) -> Iterator[None]:
    """Standard input may never end, and a disk may hang. What was being written is written wholly or not at all."""
    late = threading.Timer(seconds, os._exit, [0])
    late.daemon = True
    late.start()
    try:
        yield
    finally:
        late.cancel()


def _given() -> dict[str, Any]:
    if sys.stdin is None or sys.stdin.isatty():
        return {}
    said = sys.stdin.buffer.read(LONGEST_INPUT)
    given: dict[str, Any] = msgspec.json.decode(said or b"{}", type=dict[str, Any])
    return given


def _answer(name: str, given: dict[str, Any], arguments: argparse.Namespace) -> dict[str, Any] | None:
    where = _where(given, arguments)
    url = store_url(arguments.store, arguments.data, NAME)
    now = moments.now()
    if name == "pre-compact":
        picked = load_module("portico.services.memory.hooks.transcript_picks").pick(
            answers.said(given, "transcript_path")
        )
        return _properly(name, given, url, where) if picked else None

    def look(tx: Transaction) -> Any:
        if name == "stop":
            return tx.one(int, _EXPIRED, {"now": now})
        return answers.look(name, given, where, tx, now)

    try:
        found: dict[str, Any] | int | None = glance(url, look, patience=PATIENCE)
    except Unfit:
        return _properly(name, given, url, where)
    if isinstance(found, int):
        return _properly(name, given, url, where) if found else None
    return found


def _where(given: dict[str, Any], arguments: argparse.Namespace) -> Where:
    """Where the assistant works, which it says, and which is nearly always where we were started."""
    folder = answers.said(given, "cwd")
    where = repository.look(folder if folder and os.path.isdir(folder) else None)
    return Where(arguments.project, where.branch, where.root) if arguments.project else where


def _properly(name: str, given: dict[str, Any], url: str, where: Where) -> dict[str, Any] | None:
    """With everything there is: for what writes, for PostgreSQL, and for tables that are of yesterday."""
    answering = load_module("portico.cli.memory_errands").answer_hook(name, given, url, where, PATIENCE)
    import asyncio  # most hooks do without a loop

    answer: dict[str, Any] | None = asyncio.run(answering)
    return answer
