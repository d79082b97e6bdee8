"""`portico jobs`: the tasks in a store."""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any

import msgspec

from portico.cli.forms import parser_for
from portico.cli.printer import Printer
from portico.server.tasks import jobs
from portico.server.tasks.engine import MIGRATIONS
from portico.server.tasks.held import now
from portico.server.tasks.jobs import Job
from portico.store.database import Database
from portico.store.folder import data_directory
from portico.wire.errors import UsageError

# How often --watch draws at least; changes are drawn when they come.
WATCH_SECONDS = 1.0
HEADINGS = ("ID", "SERVER", "TOOL", "STATUS", "PROGRESS", "CREATED", "MESSAGE")
SHOWN = 10
FRAME = "\x1b[H\x1b[J"


def run(words: list[str]) -> int:
    arguments = parser_for("jobs").parse_args(words)
    return asyncio.run(_run(arguments))


async def _run(arguments: argparse.Namespace) -> int:
    action: Callable[[Database, argparse.Namespace, Printer], Awaitable[int]] = _ACTIONS[arguments.action]
    printer = Printer(arguments.output)
    async with Database(_store(arguments)) as database:
        await database.migrate("tasks", MIGRATIONS)
        status = await action(database, arguments, printer)
    printer.flush()
    return status


def _store(arguments: argparse.Namespace) -> str:
    """The store of --store or PORTICO_STORE, or the only one in the data directory."""
    named = arguments.store or os.environ.get("PORTICO_STORE")
    if named:
        return str(named)
    stores = sorted(data_directory(arguments.data).glob("*.db"))
    if len(stores) != 1:
        names = ", ".join(str(path) for path in stores) or "none"
        raise UsageError(f"--store is required; the data directory has {names}")
    return str(stores[0])


# Looking


async def _list(database: Database, arguments: argparse.Namespace, printer: Printer) -> int:
    if arguments.watch and printer.form == "table" and printer.is_terminal:
        return await _watch(database, arguments, printer)
    found = await _found(database, arguments)
    if printer.form == "json":
        for job in found:
            printer.json(_plain(job))
    elif found:
        printer.table(HEADINGS, [_row(job) for job in found])
    else:
        printer.aside("no tasks")
    return 0


async def _watch(database: Database, arguments: argparse.Namespace, printer: Printer) -> int:
    """Draws the table again whenever something changes, until it is interrupted."""
    async with database.subscribe(jobs.CREATED, jobs.CHANGED) as changes:
        following = aiter(changes)
        while True:
            found = await _found(database, arguments)
            printer.raw(FRAME)
            printer.table(HEADINGS, [_row(job) for job in found])
            printer.flush()
            try:
                async with asyncio.timeout(WATCH_SECONDS):
                    await anext(following)
            except TimeoutError:
                continue
            except StopAsyncIteration:
                return 0


async def _found(database: Database, arguments: argparse.Namespace) -> list[Job]:
    return await database.read(lambda tx: jobs.recent(tx, arguments.status, arguments.limit))


async def _show(database: Database, arguments: argparse.Namespace, printer: Printer) -> int:
    if len(arguments.ids) != 1:
        raise UsageError("exactly one ID is required")
    job = await database.read(lambda tx: jobs.find(tx, arguments.ids[0]))
    if job is None:
        raise UsageError(f"no task, or more than one, has an ID that begins with {arguments.ids[0]!r}")
    done = (await database.read(lambda tx: jobs.steps(tx, [job.id]))).get(job.id, {})
    plain = {**_plain(job), "steps": {name: msgspec.json.decode(value) for name, value in done.items()}}
    printer.json(plain) if printer.form == "json" else printer.pretty(plain)
    return 0


# Changing


async def _cancel(database: Database, arguments: argparse.Namespace, printer: Printer) -> int:
    return await _each(database, arguments, printer, jobs.cancel, "cancelled", "already ended")


async def _retry(database: Database, arguments: argparse.Namespace, printer: Printer) -> int:
    return await _each(database, arguments, printer, jobs.retry, "queued again", "not ended yet")


async def _each(
    database: Database, arguments: argparse.Namespace, printer: Printer, change: Any, done: str, otherwise: str
) -> int:
    if not arguments.ids:
        raise UsageError("an ID is required")
    status = 0
    for id in arguments.ids:
        job = await database.read(lambda tx, id=id: jobs.find(tx, id))  # type: ignore[misc]
        changed = None if job is None else await database.write(lambda tx, id=job.id: change(tx, id, now()))  # type: ignore[misc]
        if changed is None:
            status = 1
        if printer.form == "json":
            printer.json({"id": id, "changed": changed is not None})
        else:
            result = done if changed is not None else otherwise if job is not None else "not found"
            printer.line(f"{id}: {result}")
    return status


# What is shown


def _row(job: Job) -> tuple[str, ...]:
    return (
        # Enough to be found again.
        job.id[:SHOWN],
        job.server,
        job.tool,
        job.status,
        _bar(job),
        _moment(job.created_at),
        job.message or "",
    )


def _moment(milliseconds: int) -> str:
    moment = datetime.fromtimestamp(milliseconds / 1000)
    return moment.strftime("%H:%M:%S" if moment.date() == datetime.now().date() else "%Y-%m-%d")


def _bar(job: Job) -> str:
    if job.progress is None:
        return ""
    if not job.total:
        return f"{job.progress:g}"
    share = max(0.0, min(1.0, job.progress / job.total))
    filled = round(share * 10)
    return f"{'█' * filled}{'░' * (10 - filled)} {share:4.0%}"


def _plain(job: Job) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(job, builtin_types=(msgspec.Raw,))
    for name, value in fields.items():
        if isinstance(value, msgspec.Raw):
            fields[name] = msgspec.json.decode(value) if bytes(value) else None
    return fields


_ACTIONS = {"list": _list, "show": _show, "cancel": _cancel, "retry": _retry}
