"""`portico memory hook NAME`: reads an assistant's event from standard input, and prints what it should know.

An assistant waits for a hook each time its user says something, so a hook has a tenth of a second with everything:
what only the other actions need is not loaded for it, a loop included. Failures are reported on standard error with
exit status 0, so that the assistant goes on. Assistants take 2 for a veto, so a mistake on the line is 1 here.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from portico._lazy import LazyModule
from portico.cli.data_dir import NAME, store_url
from portico.cli.specs import parser_for
from portico.cli.terminal_text import one_line
from portico.store.transaction import Transaction
from portico_services import git_project, timestamps
from portico_services.cli.specs import HOOKS
from portico_services.git_project import Where
from portico_services.memory.extras.hooks import responses
from portico_services.memory.extras.hooks.sqlite_reader import CannotPeek, peek

if TYPE_CHECKING:
    from portico_services.memory.extras.hooks import store_responses, transcript
else:
    store_responses = LazyModule("portico_services.memory.extras.hooks.store_responses")
    transcript = LazyModule("portico_services.memory.extras.hooks.transcript")

LONGEST_INPUT = 50_000_000
# For a lock of the database, and for the whole hook.
LOCK_SECONDS = 1.0
HOOK_SECONDS = 10.0

_EXPIRED = "select count(*) from memory where expires_at <= :now and status <> 'deleted'"


def run(words: list[str]) -> int:
    try:
        arguments = parser_for("memory").read(words)
    except SystemExit as end:
        return 1 if end.code else 0
    name = arguments.words[0] if arguments.words else ""
    if name not in HOOKS:
        print(f"portico: unknown hook {name!r}; hooks are {', '.join(HOOKS)}", file=sys.stderr)
        return 1
    with _no_longer_than(HOOK_SECONDS):
        try:
            answer = _answer(name, _event(), arguments)
            if answer is not None:
                sys.stdout.write(msgspec.json.encode(answer).decode() + "\n")
                sys.stdout.flush()
        except Exception as failure:  # whatever it is, the assistant is not to suffer from it
            print(f"portico: {one_line(str(failure), 300) or type(failure).__name__}", file=sys.stderr)
    return 0


@contextmanager
def _no_longer_than(seconds: float) -> Iterator[None]:
    """Ends the process after this time: standard input may never end, and a disk may hang. A write in progress is
    committed wholly or not at all."""
    late = threading.Timer(seconds, os._exit, [0])
    late.daemon = True
    late.start()
    try:
        yield
    finally:
        late.cancel()


def _event() -> dict[str, Any]:
    if sys.stdin is None or sys.stdin.isatty():
        return {}
    given: dict[str, Any] = msgspec.json.decode(sys.stdin.buffer.read(LONGEST_INPUT) or b"{}", type=dict[str, Any])
    return given


def _answer(name: str, given: dict[str, Any], arguments: argparse.Namespace) -> dict[str, Any] | None:
    where = _where(given, arguments)
    url = store_url(arguments.store, arguments.data, NAME)
    now = timestamps.now()
    if name == "pre-compact":
        picked = transcript.pick(responses.said(given, "transcript_path"))
        return _by_service(name, given, url, where) if picked else None

    def look(tx: Transaction) -> Any:
        if name == "stop":
            return tx.one(int, _EXPIRED, {"now": now})
        return responses.look(name, given, where, tx, now)

    try:
        answer: dict[str, Any] | int | None = peek(url, look, patience=LOCK_SECONDS)
    except CannotPeek:
        return _by_service(name, given, url, where)
    if isinstance(answer, int):
        return _by_service(name, given, url, where) if answer else None
    return answer


def _where(given: dict[str, Any], arguments: argparse.Namespace) -> Where:
    """The folder that the assistant works in, which it usually starts us in, and the project there."""
    folder = responses.said(given, "cwd")
    where = git_project.look(folder if folder and os.path.isdir(folder) else None)
    return Where(arguments.project, where.branch, where.root) if arguments.project else where


def _by_service(name: str, given: dict[str, Any], url: str, where: Where) -> dict[str, Any] | None:
    """For hooks that write, for PostgreSQL, and for tables of an older version."""
    return store_responses.answer(name, given, url, where, patience=LOCK_SECONDS)
