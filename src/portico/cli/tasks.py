"""`portico tasks`: work items for people at a shell."""

from __future__ import annotations

import argparse
import asyncio
import getpass
import sys
from collections.abc import Awaitable, Callable
from datetime import datetime

from portico.cli.data import store_url
from portico.cli.forms import is_text
from portico.cli.printer import Printer
from portico.cli.tasks_forms import tasks_form
from portico.cli.tasks_tree import draw
from portico.services.tasks import results
from portico.services.tasks.changing import PRIORITY, Changes, Draft
from portico.services.tasks.errors import Trouble
from portico.services.tasks.items import WorkItems
from portico.services.tasks.listing import Wanted
from portico.services.tasks.records import Item
from portico.store.database import Database
from portico.wire.errors import ToolError, UsageError

# The same file that `portico serve` keeps its services' things in.
NAME = "portico"
WHO = "shell"
HEADINGS = ("ID", "P", "STATUS", "WORKER", "CREATED", "DESCRIPTION")
# The end of an id, which is enough to name it by.
SHOWN = 6
LONGEST_INPUT = 1_000_000
NOTHING = 1
ERRANDS_FOR = {
    "update_task with status pending": "portico tasks reopen",
    "update_task": "portico tasks edit",
    "remove_blocker": "portico tasks unblock",
    "list_tasks": "portico tasks list --all",
    "next_task": "portico tasks next",
    "get_task": "portico tasks show",
    "children=": "--children ",
}

Errand = Callable[[WorkItems, argparse.Namespace, Printer], Awaitable[int | None]]


def run(words: list[str]) -> int:
    arguments = tasks_form().parse_intermixed_args(words)
    for word in (*arguments.words, arguments.context or "", arguments.worker or ""):
        if not is_text(word):
            raise UsageError(f"{word!r} is not text in UTF-8")
    return asyncio.run(_run(arguments))


async def _run(arguments: argparse.Namespace) -> int:
    printer = Printer(arguments.output)
    async with Database(store_url(arguments.store, arguments.data, NAME)) as database:
        items = WorkItems(database)
        await items.open()
        # So that what is shown is what there is.
        await items.take_back()
        try:
            status = await _ERRANDS[arguments.errand](items, arguments, printer)
        except Trouble as trouble:
            raise ToolError(_at_the_shell(str(trouble))) from None
    printer.flush()
    return status or 0


# Making and changing


async def _add(items: WorkItems, arguments: argparse.Namespace, printer: Printer) -> None:
    draft = Draft(
        description=_text(arguments.words),
        parent_id=None if arguments.parent is None else await items.id(arguments.parent),
        priority=arguments.priority or PRIORITY,
        context=arguments.context or "",
        blocked_by=[await items.id(one) for one in arguments.blocked_by],
    )
    made = await items.create(draft, who=WHO)
    await _changed(items, made, printer, made.id)


async def _edit(items: WorkItems, arguments: argparse.Namespace, printer: Printer) -> None:
    id, *words = await _named(items, arguments)
    parent = arguments.parent
    changes = Changes(
        description=_text(words) if words else None,
        priority=arguments.priority,
        context=arguments.context,
        parent_id=await items.id(parent) if parent else parent,
    )
    after = await items.update(id, changes, who=WHO)
    await _changed(items, after, printer, f"{after.id} is at version {after.version}")


async def _start(items: WorkItems, arguments: argparse.Namespace, printer: Printer) -> None:
    (id,) = await _named(items, arguments, alone=True)
    changes = Changes(status="in_progress")
    after = await items.update(id, changes, worker=_worker(arguments), lease=arguments.lease, who=WHO)
    await _changed(items, after, printer, f"{after.id} is in progress, with {after.worker}")


async def _done(items: WorkItems, arguments: argparse.Namespace, printer: Printer) -> None:
    id, *words = await _named(items, arguments)
    after = await items.complete(id, _text(words) if words else None, worker=arguments.worker, who=WHO)
    await _changed(items, after, printer, f"{after.id} is completed")


async def _fail(items: WorkItems, arguments: argparse.Namespace, printer: Printer) -> None:
    id, *words = await _named(items, arguments)
    changes = Changes(status="failed", result=_text(words) if words else None)
    after = await items.update(id, changes, worker=arguments.worker, who=WHO)
    await _changed(items, after, printer, f"{after.id} has failed")


async def _reopen(items: WorkItems, arguments: argparse.Namespace, printer: Printer) -> None:
    (id,) = await _named(items, arguments, alone=True)
    after = await items.update(id, Changes(status="pending"), who=WHO)
    await _changed(items, after, printer, f"{after.id} is pending")


async def _block(items: WorkItems, arguments: argparse.Namespace, printer: Printer) -> None:
    id, *others = await _named(items, arguments)
    for one in others or _missing("the ID of what it waits for"):
        blocker = await items.id(one)
        after, changed = await items.block(id, blocker, who=WHO)
        await _changed(items, after, printer, f"{id} waits for {blocker}" + ("" if changed else ", as before"))


async def _unblock(items: WorkItems, arguments: argparse.Namespace, printer: Printer) -> None:
    id, *others = await _named(items, arguments)
    for one in others or _missing("the ID of what it waits for"):
        blocker = await items.id(one)
        after, changed = await items.unblock(id, blocker, who=WHO)
        said = f"{id} does not wait for {blocker}" + (" any more" if changed else "; it did not before")
        await _changed(items, after, printer, said)


async def _rm(items: WorkItems, arguments: argparse.Namespace, printer: Printer) -> None:
    for word in arguments.words or _missing("an ID"):
        id = await items.id(word)
        gone = await items.delete(id, children=arguments.children or "refuse", dry_run=arguments.dry_run, who=WHO)
        said = results.deleted(gone)
        if printer.form == "json":
            printer.json(said)
            continue
        for one in said.deleted:
            printer.line(f"{one} {'would be' if said.dry_run else 'is'} deleted")
        for one in said.unblocked:
            printer.aside(f"{one} {'would wait' if said.dry_run else 'waits'} for nothing any more")


# Working


async def _next(items: WorkItems, arguments: argparse.Namespace, printer: Printer) -> int:
    taken = await items.next(_worker(arguments), lease=arguments.lease, who=WHO)
    if taken is None:
        printer.aside(results.nothing(await items.counts()).note or "")
        return NOTHING
    await _shown(items, taken, printer)
    return 0


# Looking


async def _list(items: WorkItems, arguments: argparse.Namespace, printer: Printer) -> None:
    wanted = Wanted(
        status=arguments.status,
        parent_id=None if arguments.parent is None else await items.id(arguments.parent),
        query=" ".join(arguments.words),
        blocked=True if arguments.blocked else None,
        ready=arguments.ready,
        open=not arguments.all and arguments.status is None,
    )
    if arguments.ready and wanted == Wanted(query="", ready=True, open=True):
        found, more = await items.ready(arguments.limit), False
    else:
        page = await items.page(wanted, limit=arguments.limit)
        found, more = page.items, page.cursor is not None
    if printer.form == "json":
        for one in found:
            printer.json(results.line(one))
    elif found:
        printer.table(HEADINGS, [_row(one) for one in found])
        if more:
            printer.aside(f"There are more than {arguments.limit}; --limit shows more of them.")
    else:
        printer.aside("There is nothing to do." if wanted.open else "There is no such task.")


async def _show(items: WorkItems, arguments: argparse.Namespace, printer: Printer) -> None:
    for word in arguments.words or _missing("an ID"):
        await _shown(items, await items.get(await items.id(word)), printer)


async def _tree(items: WorkItems, arguments: argparse.Namespace, printer: Printer) -> None:
    root = await items.id(arguments.words[0]) if arguments.words else None
    found = await items.tree(root, open_only=root is None and not arguments.all)
    plan = results.plan(found)
    if printer.form == "json":
        for one in plan.tasks:
            printer.json(one)
    else:
        draw(plan, printer, SHOWN)
        if plan.cut:
            printer.aside(f"There are more than these {plan.count}.")


async def _history(items: WorkItems, arguments: argparse.Namespace, printer: Printer) -> None:
    word = (arguments.words or _missing("an ID"))[0]
    # Also of what is gone, and can then only be named whole.
    id = word if word.startswith("task_") else await items.id(word)
    past = results.history(id, await items.history(id, arguments.limit), arguments.limit)
    if printer.form == "json":
        for change in past.changes:
            printer.json(change)
        return
    rows = [
        (str(one.version), one.at[:16].replace("T", " "), one.who or "", one.change, _fields(one))
        for one in past.changes
    ]
    printer.table(("V", "WHEN", "WHO", "CHANGE", "WHAT"), rows)


# Words


def _at_the_shell(text: str) -> str:
    """What is said to models names tools; here there are errands."""
    for tool, errand in ERRANDS_FOR.items():
        text = text.replace(tool, errand)
    return text


async def _named(items: WorkItems, arguments: argparse.Namespace, *, alone: bool = False) -> list[str]:
    """The words, of which the first is an ID."""
    first, *rest = arguments.words or _missing("an ID")
    if alone and rest:
        raise UsageError(f"one ID is expected, and {rest[0]!r} is more")
    return [await items.id(first), *rest]


def _missing(what: str) -> list[str]:
    raise UsageError(f"{what} is expected")


def _text(words: list[str]) -> str:
    if words == ["-"]:
        return sys.stdin.read(LONGEST_INPUT)
    if not words:
        raise UsageError("a text is expected")
    return " ".join(words)


def _worker(arguments: argparse.Namespace) -> str:
    if arguments.worker:
        return str(arguments.worker)
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container may have no name for whoever runs in it
        return WHO


async def _changed(items: WorkItems, item: Item, printer: Printer, words: str) -> None:
    if printer.form == "json":
        await _shown(items, item, printer)
    else:
        printer.line(words)


async def _shown(items: WorkItems, item: Item, printer: Printer) -> None:
    task = results.task(item, (await items.blockers([item.id]))[item.id])
    printer.json(task) if printer.form == "json" else printer.pretty(task)


def _row(item: Item) -> tuple[str, ...]:
    waits = "blocked" if item.blocked and item.is_open else "waiting" if item.children_open else item.status
    shown = item.status if item.status != "pending" else waits
    created = datetime.fromtimestamp(item.created_at / 1000).strftime("%Y-%m-%d %H:%M")
    return item.id[-SHOWN:], str(item.priority), shown, item.worker or "", created, item.description


def _fields(change: results.Change) -> str:
    said = [f"{one.name}: {_value(one.before)} → {_value(one.after)}" for one in change.fields]
    return "; ".join([*said, *filter(None, [change.reason])])


def _value(value: object) -> str:
    return "–" if value is None or value == "" else str(value)


_ERRANDS: dict[str, Errand] = {
    "add": _add,
    "list": _list,
    "show": _show,
    "next": _next,
    "start": _start,
    "done": _done,
    "fail": _fail,
    "reopen": _reopen,
    "edit": _edit,
    "block": _block,
    "unblock": _unblock,
    "tree": _tree,
    "history": _history,
    "rm": _rm,
}
