"""`portico memory hook NAME`: read an assistant's event from standard input and print relevant memories.

An assistant waits for a hook at every prompt, so a hook has a tenth of a second in total: modules that only other
actions need are not imported, including asyncio. Failures are reported on standard error with exit status 0, so that
the assistant continues. Assistants treat status 2 as a veto, so a usage error is 1 here.
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

from portico.cli.data_dir import DEFAULT_STORE_NAME, store_url
from portico.cli.specs import parser_for
from portico.cli.terminal_text import to_single_line
from portico.store.transaction import Transaction
from portico_services import git_project, timestamps
from portico_services.cli.specs import HOOKS
from portico_services.git_project import ProjectInfo
from portico_services.memory.extras.hooks import responses
from portico_services.memory.extras.hooks.sqlite_reader import DirectReadUnavailable, read_sqlite

MAX_INPUT_BYTES = 50_000_000
# Timeouts of a database lock and of the whole hook.
# The assistant waits for a hook, so a busy database is given up soon; the next event tries again.
LOCK_TIMEOUT_SECONDS = 1.0
HOOK_TIMEOUT_SECONDS = 10.0

_EXPIRED = "select count(*) from memory where expires_at <= :now and status <> 'deleted'"


def run(words: list[str]) -> int:
    """Run a hook and return its exit status."""
    try:
        arguments = parser_for("memory").parse(words)
    except SystemExit as end:
        # Exit status 2 would block the assistant’s action, so a usage error is reported with 1.
        return 1 if end.code else 0
    name = arguments.words[0] if arguments.words else ""
    if name not in HOOKS:
        print(f"portico: unknown hook {name!r}; hooks are {', '.join(HOOKS)}", file=sys.stderr)
        return 1
    with _no_longer_than(HOOK_TIMEOUT_SECONDS):
        try:
            answer = _run_hook(name, _read_event(), arguments)
            if answer is not None:
                sys.stdout.write(msgspec.json.encode(answer).decode() + "\n")
                sys.stdout.flush()
        except Exception as failure:  # a failure must never affect the assistant
            print(f"portico: {to_single_line(str(failure), 300) or type(failure).__name__}", file=sys.stderr)
    return 0


@contextmanager
def _no_longer_than(seconds: float) -> Iterator[None]:
    """Exit the process after this time: standard input may never end, and a disk may hang. A transaction in progress is
    committed completely or not at all.
    """
    late = threading.Timer(seconds, os._exit, [0])
    late.daemon = True
    late.start()
    try:
        yield
    finally:
        late.cancel()


def _read_event() -> dict[str, Any]:
    """Read the event from standard input; empty on a terminal."""
    if sys.stdin is None or sys.stdin.isatty():
        return {}
    event: dict[str, Any] = msgspec.json.decode(sys.stdin.buffer.read(MAX_INPUT_BYTES) or b"{}", type=dict[str, Any])
    return event


def _run_hook(name: str, event: dict[str, Any], arguments: argparse.Namespace) -> dict[str, Any] | None:
    """Return the output of a hook, or None for no output."""
    where = _find_project(event, arguments)
    url = store_url(arguments.store, arguments.data, DEFAULT_STORE_NAME)
    now = timestamps.now_ms()
    if name == "pre-compact":
        # Without anything to store, the service and its dependencies are not imported.
        from portico_services.memory.extras.hooks import transcript

        picked = transcript.extract_decisions(responses.string_field(event, "transcript_path"))
        return _by_service(name, event, url, where) if picked else None

    def fetch(tx: Transaction) -> Any:
        if name == "stop":
            return tx.fetch_one(int, _EXPIRED, {"now": now})
        return responses.respond(name, event, where, tx, now)

    # The fast path reads the SQLite file directly. It opens the store only if there is something to write.
    try:
        answer: dict[str, Any] | int | None = read_sqlite(url, fetch, busy_timeout=LOCK_TIMEOUT_SECONDS)
    except DirectReadUnavailable:
        return _by_service(name, event, url, where)
    # The number of expired memories. Collecting them needs the service, so it is opened only if there are any.
    if isinstance(answer, int):
        return _by_service(name, event, url, where) if answer else None
    return answer


def _find_project(event: dict[str, Any], arguments: argparse.Namespace) -> ProjectInfo:
    """Return the project of the assistant's working directory, which is usually also ours."""
    # The hook may run in another directory than the session it reports on.
    folder = responses.string_field(event, "cwd")
    where = git_project.detect_project(folder if folder and os.path.isdir(folder) else None)
    return ProjectInfo(arguments.project, where.branch, where.root) if arguments.project else where


def _by_service(name: str, event: dict[str, Any], url: str, where: ProjectInfo) -> dict[str, Any] | None:
    """Open the store, for hooks that write, for PostgreSQL, and for an outdated schema."""
    from portico_services.memory.extras.hooks import store_responses

    return store_responses.respond_from_store(name, event, url, where, busy_timeout=LOCK_TIMEOUT_SECONDS)
