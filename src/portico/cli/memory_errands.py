"""What `portico memory` does for people at a shell."""

from __future__ import annotations

import argparse
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from portico.cli.data import store_url
from portico.cli.memory_hooks import NAME
from portico.cli.printer import Printer
from portico.services.memory.hooks import answers, transcript_picks
from portico.services.memory.hooks.transcript_picks import Picked
from portico.services.memory.service import results
from portico.services.memory.share import export_import, repository, sync
from portico.services.memory.share.repository import Where
from portico.services.memory.store import cleanup, moments, statistics, texts
from portico.services.memory.store.capture import Draft
from portico.services.memory.store.memories import Memories
from portico.services.memory.store.namespaces import suggested
from portico.services.memory.store.records import Record
from portico.services.memory.store.screening_policy import Guard
from portico.services.memory.store.texts import preview
from portico.store.database import PATIENCE, Database
from portico.wire.errors import UsageError

WHO = "shell"
HEADINGS = ("ID", "WHEN", "NAMESPACE", "TAGS", "CONTENT")
LONGEST_INPUT = 50_000_000


Errand = Callable[[Memories, argparse.Namespace, Printer], Awaitable[None]]


async def carry_out(arguments: argparse.Namespace) -> None:
    printer = Printer(arguments.output)
    where = repository.look()
    where = Where(arguments.project, where.branch, where.root) if arguments.project else where
    async with _opened(store_url(arguments.store, arguments.data, NAME), where) as memories:
        await _ERRANDS[arguments.errand](memories, arguments, printer)
    printer.flush()


@asynccontextmanager
async def _opened(url: str, where: Where, patience: float = PATIENCE) -> AsyncIterator[Memories]:
    async with Database(url, patience=patience) as database:
        memories = Memories(database, project=where.project, root=where.root)
        await memories.open()
        try:
            yield memories
        finally:
            await memories.close()


async def answer_hook(name: str, given: dict[str, Any], url: str, where: Where, patience: float) -> Any:
    """For a hook that writes, or whose database needs more than a glance."""
    async with _opened(url, where, patience) as memories:
        if name == "pre-compact":
            for picked in transcript_picks.pick(answers.said(given, "transcript_path")):
                await _keep(memories, picked, answers.said(given, "session_id"))
            return None
        if name == "stop":
            await cleanup.collect(memories, dry_run=False)
            return None
        now = moments.now()
        return await memories.read(lambda tx: answers.look(name, given, where, tx, now))


async def _keep(memories: Memories, picked: Picked, session: str) -> None:
    """As pending: nobody has said that it should be kept. Nor is anybody there to be told what it contains."""
    content, _ = Guard("redact", "redact").passed(picked.sentence)
    draft = Draft(
        content=content,
        namespace=suggested(content),
        tags=["picked-up"],
        source="pre-compact",
        author=picked.author,
        thread=session[:200] or None,
    )
    taken = await memories.capture(draft)
    if taken.is_new:
        await memories.update(taken.record.id, status="pending")


# Storing and changing


async def _capture(memories: Memories, arguments: argparse.Namespace, printer: Printer) -> None:
    said = texts.bounded(_text(arguments.words))
    labels = (arguments.source, arguments.author, arguments.thread)
    passed = _guard(arguments).look([said, *(one or "" for one in (*labels, *arguments.tag))])
    content, source, author, thread, *tags = passed.texts
    draft = Draft(
        content=content,
        namespace=arguments.namespace or suggested(content),
        tags=tags,
        domain=arguments.domain,
        source=source,
        author=author or None,
        thread=thread,
        ttl=arguments.ttl,
        branch=repository.branch(memories.root) if arguments.domain == "project" else None,
    )
    taken = await memories.capture(draft, who=WHO)
    answer = results.captured(taken, "memory", passed, texts.replaced(said))
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
    content, *tags = _guard(arguments).look([texts.bounded(_text(words)) if words else "", *arguments.tag]).texts
    after = await memories.update(
        id,
        content=content if words else None,
        tags=tags or None,
        namespace=arguments.namespace,
        ttl=arguments.ttl,
        who=WHO,
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
    counts = await memories.read(statistics.counts)
    printer.json(counts) if printer.form == "json" else printer.pretty(counts)


# Moving


async def _export(memories: Memories, arguments: argparse.Namespace, printer: Printer) -> None:
    """All of it, in one stream."""
    wanted, offset, more = memories.filter(arguments.filter).also("ns", arguments.namespace), 0, True
    while more:
        data, count, more = await export_import.export(memories, wanted, arguments.format, offset=offset)
        printer.out.write(data)
        offset += count


async def _import(memories: Memories, arguments: argparse.Namespace, printer: Printer) -> None:
    named = arguments.words[0] if arguments.words else "-"
    try:
        data = sys.stdin.read(LONGEST_INPUT) if named == "-" else _contents(named)
    except (OSError, UnicodeDecodeError) as failure:
        raise UsageError(f"{named} cannot be read: {getattr(failure, 'strerror', None) or 'it is not UTF-8'}") from None
    screen = _guard(arguments).passed
    brought = await export_import.bring(memories, data, arguments.format, screen=screen, who=WHO)
    if printer.form == "json":
        printer.json(brought)
    else:
        printer.line(f"{brought.added} added, {brought.updated} updated, {brought.unchanged} as they were")
        for problem in brought.problems:
            printer.aside(problem)


async def _sync(memories: Memories, arguments: argparse.Namespace, printer: Printer) -> None:
    screen = _guard(arguments).passed
    done = await sync.sync(memories, direction=arguments.direction, remote=arguments.remote, screen=screen, who=WHO)
    printer.json(done) if printer.form == "json" else printer.pretty(done)


# Words


def _guard(arguments: argparse.Namespace) -> Guard:
    return Guard(arguments.secrets, arguments.personal)


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
