"""What `portico memory` does for people at a shell."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec

from portico.cli.printer import Printer
from portico.services.memory import counting, moments, moving, places, results, syncing
from portico.services.memory.capturing import Draft
from portico.services.memory.guarding import Guard
from portico.services.memory.memories import Memories
from portico.services.memory.namespaces import suggested
from portico.services.memory.records import Record
from portico.services.memory.texts import preview
from portico.wire.errors import UsageError

WHO = "shell"
HEADINGS = ("ID", "WHEN", "NAMESPACE", "TAGS", "CONTENT")
LONGEST_INPUT = 50_000_000


Errand = Callable[[Memories, argparse.Namespace, Printer], Awaitable[None]]


async def run(memories: Memories, arguments: argparse.Namespace, printer: Printer) -> None:
    await _ERRANDS[arguments.errand](memories, arguments, printer)


# Storing and changing


async def _capture(memories: Memories, arguments: argparse.Namespace, printer: Printer) -> None:
    content, names = Guard(arguments.secrets).passed(_text(arguments.words))
    draft = Draft(
        content=content,
        namespace=arguments.namespace or suggested(content),
        tags=arguments.tag,
        domain=arguments.domain,
        source=arguments.source,
        author=arguments.author,
        thread=arguments.thread,
        ttl=arguments.ttl,
        branch=places.look().branch if arguments.domain == "project" else None,
    )
    taken = await memories.capture(draft, who=WHO)
    answer = results.captured(taken, "memory", redacted=bool(names), notes=Guard.note(names))
    if printer.form == "json":
        printer.json(answer)
        return
    printer.line(f"{answer.id} in {answer.namespace}" if answer.stored else f"known already as {answer.id}")
    for note in answer.notes:
        printer.aside(note)
    for one in answer.conflicts:
        printer.aside(f"{one.id} says otherwise ({one.why}): {one.content}")


async def _edit(memories: Memories, arguments: argparse.Namespace, printer: Printer) -> None:
    if not arguments.words:
        raise UsageError("an ID is expected")
    id, *words = arguments.words
    content = Guard(arguments.secrets).passed(_text(words))[0] if words else None
    after = await memories.update(
        id, content=content, tags=arguments.tag or None, namespace=arguments.namespace, ttl=arguments.ttl, who=WHO
    )
    _one(after, printer, f"{after.id} is at version {after.version}")


async def _delete(memories: Memories, arguments: argparse.Namespace, printer: Printer) -> None:
    if not arguments.words:
        raise UsageError("an ID is expected")
    for id in arguments.words:
        gone = await memories.delete(id, hard=arguments.hard, who=WHO)
        _one(gone, printer, f"{gone.id} is deleted" + (" for good" if arguments.hard else ""))


# Looking


async def _recall(memories: Memories, arguments: argparse.Namespace, printer: Printer) -> None:
    if not arguments.words:
        raise UsageError("words to look for are expected")
    await _found(memories, _text(arguments.words), arguments, printer, 10)


async def _list(memories: Memories, arguments: argparse.Namespace, printer: Printer) -> None:
    await _found(memories, " ".join(arguments.words), arguments, printer, 50)


async def _found(memories: Memories, query: str, arguments: argparse.Namespace, printer: Printer, usual: int) -> None:
    wanted = memories.filter(arguments.filter).also("ns", arguments.namespace)
    for tag in arguments.tag:
        wanted = wanted.also("tag", tag)
    page = await memories.recall(query, wanted, limit=arguments.limit or usual)
    if printer.form == "json":
        for hit in page.hits:
            printer.json(results.found(hit.record, "memory", "everything", hit.score))
    elif page.hits:
        printer.table(HEADINGS, [_row(hit.record) for hit in page.hits])
    else:
        printer.aside("nothing was found")


async def _show(memories: Memories, arguments: argparse.Namespace, printer: Printer) -> None:
    if len(arguments.words) != 1:
        raise UsageError("one ID is expected")
    record, events = await memories.history(arguments.words[0])
    shown = {**msgspec.to_builtins(results.whole(record, "memory")), "history": results.past(record, events).changes}
    printer.json(shown) if printer.form == "json" else printer.pretty(shown)


async def _stats(memories: Memories, arguments: argparse.Namespace, printer: Printer) -> None:
    counts = await memories.read(counting.counts)
    printer.json(counts) if printer.form == "json" else printer.pretty(counts)


# Moving


async def _export(memories: Memories, arguments: argparse.Namespace, printer: Printer) -> None:
    """All of it, in one stream."""
    wanted, offset, more = memories.filter(arguments.filter).also("ns", arguments.namespace), 0, True
    while more:
        data, count, more = await moving.export(memories, wanted, arguments.format, offset=offset)
        printer.out.write(data)
        offset += count


async def _import(memories: Memories, arguments: argparse.Namespace, printer: Printer) -> None:
    named = arguments.words[0] if arguments.words else "-"
    try:
        data = sys.stdin.read(LONGEST_INPUT) if named == "-" else _contents(named)
    except (OSError, UnicodeDecodeError) as failure:
        raise UsageError(f"{named} cannot be read: {getattr(failure, 'strerror', None) or 'it is not UTF-8'}") from None
    screen = Guard(arguments.secrets).passed
    brought = await moving.bring(memories, data, arguments.format, screen=screen, who=WHO)
    if printer.form == "json":
        printer.json(brought)
    else:
        printer.line(f"{brought.added} added, {brought.updated} updated, {brought.unchanged} as they were")
        for problem in brought.problems:
            printer.aside(problem)


async def _sync(memories: Memories, arguments: argparse.Namespace, printer: Printer) -> None:
    screen = Guard(arguments.secrets).passed
    done = await syncing.sync(memories, direction=arguments.direction, remote=arguments.remote, screen=screen, who=WHO)
    printer.json(done) if printer.form == "json" else printer.pretty(done)


# Words


def _text(words: list[str]) -> str:
    if words == ["-"]:
        return sys.stdin.read(LONGEST_INPUT)
    if not words:
        raise UsageError("a text is expected")
    return " ".join(words)


def _contents(path: str) -> str:
    with Path(path).expanduser().open(encoding="utf-8") as file:
        return file.read(LONGEST_INPUT)


def _row(record: Record) -> tuple[str, ...]:
    return (
        record.id[:12],
        moments.written(record.at)[:16].replace("T", " "),
        record.namespace,
        ", ".join(record.tags),
        preview(record.content, 300),
    )


def _one(record: Record, printer: Printer, words: str) -> None:
    printer.json(results.whole(record, "memory")) if printer.form == "json" else printer.line(words)


_ERRANDS: dict[str, Errand] = {
    "capture": _capture,
    "recall": _recall,
    "list": _list,
    "show": _show,
    "edit": _edit,
    "delete": _delete,
    "sync": _sync,
    "export": _export,
    "import": _import,
    "stats": _stats,
}
