"""`portico jobs`: the tasks in a store."""

from __future__ import annotations

import argparse
import asyncio
import os
import re
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any

import msgspec

from portico.cli.output import Printer
from portico.cli.specs import parser_for
from portico.protocol.errors import UsageError
from portico.server.tasks import jobs
from portico.server.tasks.engine import MIGRATIONS
from portico.server.tasks.jobs import Job, now
from portico.server.tasks.worker_ids import shorten
from portico.store.data_directory import data_directory
from portico.store.database import Database, parse
from portico.store.keys import MEMORY

# How often --watch draws at least; changes are drawn when they come.
WATCH_SECONDS = 1.0
HEADINGS = ("ID", "SERVER", "TOOL", "STATUS", "PROGRESS", "CREATED", "MESSAGE")
SHOWN = 10
MAX_IDS_NAMED = 5
# Stored in milliseconds, shown as ISO 8601 with the local offset.
_TIMES = ("created_at", "updated_at", "run_at", "expires_at", "lease")
FRAME = "\x1b[H\x1b[J"


def run(words: list[str]) -> int:
    return asyncio.run(_run(parser_for("jobs").read(words)))


async def _run(arguments: argparse.Namespace) -> int:
    async with Database(_store(arguments)) as database:
        await database.migrate("tasks", MIGRATIONS)
        command = JobsCommand(database, arguments)
        status = await ACTIONS[arguments.action](command)
    command.printer.flush()
    return status


def _store(arguments: argparse.Namespace) -> str:
    """The store of --store or PORTICO_STORE, or the only one in the data directory."""
    named = arguments.store or os.environ.get("PORTICO_STORE")
    if named:
        return _existing(str(named))
    stores = sorted(data_directory(arguments.data).glob("*.db"))
    if len(stores) != 1:
        names = ", ".join(str(path) for path in stores) or "none"
        raise UsageError(f"--store is required; the data directory has {names}")
    return str(stores[0])


class JobsCommand:
    """One action; each gives its exit status."""

    def __init__(self, database: Database, arguments: argparse.Namespace) -> None:
        self.database, self.arguments = database, arguments
        self.printer = Printer(arguments.output)

    async def list_jobs(self) -> int:
        if self.arguments.watch and self.printer.form == "table" and self.printer.is_terminal:
            return await self._watch()
        recent = await self._recent()
        items = [_plain(job) for job in recent] if self.printer.form == "json" else recent
        self.printer.rows(items, HEADINGS, _row, empty="no tasks")
        return 0

    async def _watch(self) -> int:
        """Draws the table again whenever something changes, until it is interrupted."""
        async with self.database.subscribe(jobs.CREATED, jobs.CHANGED) as changes:
            following = aiter(changes)
            while True:
                self.printer.raw(FRAME)
                self.printer.table(HEADINGS, [_row(job) for job in await self._recent()])
                self.printer.flush()
                try:
                    async with asyncio.timeout(WATCH_SECONDS):
                        await anext(following)
                except TimeoutError:
                    continue
                except StopAsyncIteration:
                    return 0

    async def _recent(self) -> list[Job]:
        return await self.database.read(lambda tx: jobs.recent(tx, self.arguments.status, self.arguments.limit))

    async def _find(self, id: str) -> Job:
        """Return the job whose ID begins like this. Raises UsageError if there is none, or more than one."""
        found = await self.database.read(lambda tx: jobs.matching(tx, id, MAX_IDS_NAMED + 1))
        if not found:
            raise UsageError(f"no task has an ID that begins with {id!r}; `portico jobs list` shows the IDs")
        if len(found) > 1:
            some = ", ".join(job.id for job in found[:MAX_IDS_NAMED])
            more = ", …" if len(found) > MAX_IDS_NAMED else ""
            raise UsageError(f"several tasks have an ID that begins with {id!r} ({some}{more}); give more of the ID")
        return found[0]

    async def show(self) -> int:
        if len(self.arguments.ids) != 1:
            raise UsageError("exactly one ID is required")
        job = await self._find(self.arguments.ids[0])
        steps = (await self.database.read(lambda tx: jobs.steps(tx, [job.id]))).get(job.id, {})
        done = {name: msgspec.json.decode(steps[name]) for name in sorted(steps, key=_natural)}
        plain = {**_plain(job), "steps": done}
        if self.printer.form != "json" and job.worker is not None:
            plain["worker"] = shorten(job.worker)
        self.printer.details(plain)
        return 0

    async def cancel(self) -> int:
        return await self._each(jobs.cancel, "cancelled", "already ended")

    async def retry(self) -> int:
        return await self._each(jobs.retry, "queued again", "not ended yet")

    async def _each(self, change: Any, done: str, refused: str) -> int:
        if not self.arguments.ids:
            raise UsageError("an ID is required")
        all_changed = True
        for id in self.arguments.ids:
            try:
                job = await self._find(id)
            except UsageError as mistake:
                changed, outcome = False, str(mistake)
            else:
                changed = await self.database.write(lambda tx, job=job: change(tx, job.id, now())) is not None  # type: ignore[misc]
                outcome = done if changed else refused
            all_changed = all_changed and changed
            self.printer.show({"id": id, "changed": changed}, f"{id}: {outcome}")
        return 0 if all_changed else 1


ACTIONS: dict[str, Callable[[JobsCommand], Awaitable[int]]] = {
    "list": JobsCommand.list_jobs,
    "show": JobsCommand.show,
    "cancel": JobsCommand.cancel,
    "retry": JobsCommand.retry,
}


# What is shown


def _row(job: Job) -> tuple[str, ...]:
    return (
        # Enough to be found again.
        job.id[:SHOWN],
        job.server,
        job.tool,
        job.outcome_status,
        _bar(job),
        _moment(job.created_at),
        job.message or "",
    )


def _moment(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000).isoformat(" ", "seconds")


def _natural(name: str) -> list[tuple[int, str]]:
    """Return a sort key by which `chapter 2` comes before `chapter 10`."""
    # Numbers stand at odd places. Compared by length first they need not be converted, however long they are.
    parts = [part.lstrip("0") if at % 2 else part for at, part in enumerate(re.split(r"([0-9]+)", name))]
    return [(len(part) if at % 2 else 0, part) for at, part in enumerate(parts)]


def _bar(job: Job) -> str:
    if job.progress is None:
        return ""
    if not job.total:
        return f"{job.progress:g}"
    share = 1.0 if job.outcome_status == "completed" else max(0.0, min(1.0, job.progress / job.total))
    filled = round(share * 10)
    return f"{'█' * filled}{'░' * (10 - filled)} {share:4.0%}"


def _plain(job: Job) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(job, builtin_types=(msgspec.Raw,))
    for name, value in fields.items():
        if isinstance(value, msgspec.Raw):
            fields[name] = msgspec.json.decode(value) if bytes(value) else None
        elif name in _TIMES and value is not None:
            fields[name] = datetime.fromtimestamp(value / 1000).astimezone().isoformat(timespec="milliseconds")
    # In `refused` it is still said that a tool reported the error.
    return {**fields, "status": job.outcome_status}


def _existing(url: str) -> str:
    """A store that is there: looking at one does not make it."""
    kind, address = parse(os.path.expanduser(url))
    if kind == "sqlite" and address != MEMORY and not os.path.exists(address):
        raise UsageError(f"there is no store {url}")
    return os.path.expanduser(url)
