"""`portico memory`: memories for people at a shell, and for the hooks of assistants.

A hook is waited for each time somebody says something, so what only the other errands need is not loaded for it.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from importlib import import_module
from typing import Any

import msgspec

from portico.cli.data import store_url
from portico.cli.forms import is_text
from portico.cli.memory_forms import HOOKS, memory_form
from portico.cli.printer import Printer
from portico.services.memory import hooks, places
from portico.services.memory.memories import Memories
from portico.store.database import Database
from portico.wire.errors import Error, UsageError

# The same file that `portico serve` keeps its services' things in.
NAME = "portico"
LONGEST_INPUT = 50_000_000


def run(words: list[str]) -> int:
    arguments = memory_form().parse_args(words)
    for word in arguments.words:
        if not is_text(word):
            raise UsageError(f"{word!r} is not text in UTF-8")
    if arguments.errand == "hook":
        return _hook(arguments)
    return asyncio.run(_run(arguments, import_module("portico.cli.memory_errands").run))


async def _run(arguments: argparse.Namespace, errand: Any) -> int:
    printer = Printer(arguments.output)
    async with Database(store_url(arguments.store, arguments.data, NAME)) as database:
        where = places.look()
        memories = Memories(database, project=arguments.project or where.project, root=where.root)
        await memories.open()
        await errand(memories, arguments, printer)
    printer.flush()
    return 0


def _hook(arguments: argparse.Namespace) -> int:
    """Whatever goes wrong, the assistant goes on: it is said on standard error, and that is all."""
    name = arguments.words[0] if arguments.words else ""
    if name not in HOOKS:
        raise UsageError(f"which hook? There is {', '.join(HOOKS)}")
    try:
        given = msgspec.json.decode(sys.stdin.buffer.read(LONGEST_INPUT) or b"{}", type=dict[str, Any])
        asyncio.run(_run(arguments, lambda memories, _, printer: _answer(name, given, memories, printer)))
    except (Error, msgspec.DecodeError, OSError) as failure:
        print(f"portico: {failure}", file=sys.stderr)
    return 0


async def _answer(name: str, given: dict[str, Any], memories: Memories, printer: Printer) -> None:
    answer = await hooks.answer(name, given, memories, _redacted)
    if answer is not None:
        printer.json(answer)


def _redacted(text: str) -> tuple[str, list[str]]:
    passed: tuple[str, list[str]] = import_module("portico.services.memory.guarding").Guard("redact").passed(text)
    return passed
