"""`portico tasks`: list, show, cancel or retry the tasks in a store."""

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
from portico.server.tasks.jobs import Job, now_ms
from portico.server.tasks.worker_ids import shorten
from portico.store.data_directory import named_store, resolve_data_directory
from portico.store.database import Database, parse_database_url
from portico.store.keys import MEMORY

# The longest time between two updates of --watch; changes are drawn immediately.
WATCH_SECONDS = 1.0
HEADINGS = ("ID", "SERVER", "TOOL", "STATUS", "PROGRESS", "CREATED", "MESSAGE")
SHORT_ID_CHARS = 10
MAX_IDS_NAMED = 5
# Stored in milliseconds, shown as ISO 8601 with the local offset.
_TIMES = ("created_at", "updated_at", "run_at", "expires_at", "lease")
CLEAR_SCREEN = "\x1b[H\x1b[J"


def run(argv: list[str]) -> int:
    """Run `portico tasks`."""
    return asyncio.run(_run(parser_for("tasks").parse(argv)))


async def _run(arguments: argparse.Namespace) -> int:
    if arguments.action == "list" and arguments.ids:
        raise UsageError(f"list takes no ID, got {arguments.ids[0]!r}; use `portico tasks show {arguments.ids[0]}`")
    async with Database(_store(arguments)) as database:
        await database.migrate("tasks", MIGRATIONS)
        command = TasksCommand(database, arguments)
        status = await ACTIONS[arguments.action](command)
    command.printer.flush()
    return status


def _store(arguments: argparse.Namespace) -> str:
    """Return the store of --store or PORTICO_STORE, or the only one in the data directory."""
    named = named_store(arguments.store)
    if named:
        return _existing(named)
    stores = sorted(resolve_data_directory(arguments.data).glob("*.db"))
    # Choosing one would be a guess, and `cancel` would change the wrong store.
    if len(stores) != 1:
        names = ", ".join(str(path) for path in stores) or "none"
        raise UsageError(f"--store is required: the data directory contains {names}")
    return str(stores[0])


class TasksCommand:
    """The actions of `portico tasks`; each returns an exit status."""

    def __init__(self, database: Database, arguments: argparse.Namespace) -> None:
        self.database, self.arguments = database, arguments
        self.printer = Printer(arguments.format)

    async def list_tasks(self) -> int:
        # Terminal codes would corrupt JSON and redirected output, so those get one listing.
        if self.arguments.watch and self.printer.format == "table" and self.printer.is_terminal:
            return await self._watch()
        recent = await self._recent_tasks()
        items = [_to_json_object(job) for job in recent] if self.printer.is_json else recent
        self.printer.print_rows(items, HEADINGS, _row, empty="no tasks")
        return 0

    async def _watch(self) -> int:
        """Redraw the table whenever something changes, until interrupted."""
        async with self.database.subscribe(jobs.JOB_CREATED, jobs.JOB_CHANGED) as changes:
            following = aiter(changes)
            while True:
                self.printer.write_raw(CLEAR_SCREEN)
                self.printer.print_table(HEADINGS, [_row(job) for job in await self._recent_tasks()])
                self.printer.flush()
                try:
                    async with asyncio.timeout(WATCH_SECONDS):
                        await anext(following)
                except TimeoutError:
                    continue
                except StopAsyncIteration:
                    return 0

    async def _recent_tasks(self) -> list[Job]:
        return await self.database.read(lambda tx: jobs.list_recent(tx, self.arguments.status, self.arguments.limit))

    async def _find(self, id: str) -> Job:
        """Return the job whose ID begins with `id`. Raises UsageError unless exactly one does."""
        result = await self.database.read(lambda tx: jobs.matching(tx, id, MAX_IDS_NAMED + 1))
        if not result:
            raise UsageError(f"no task ID begins with {id!r}; run `portico tasks list` to see the IDs")
        if len(result) > 1:
            some = ", ".join(job.id for job in result[:MAX_IDS_NAMED])
            more = ", …" if len(result) > MAX_IDS_NAMED else ""
            raise UsageError(f"several task IDs begin with {id!r} ({some}{more}); use more characters")
        return result[0]

    async def show(self) -> int:
        if len(self.arguments.ids) != 1:
            raise UsageError("expected exactly one ID")
        job = await self._find(self.arguments.ids[0])
        steps = (await self.database.read(lambda tx: jobs.finished_steps(tx, [job.id]))).get(job.id, {})
        done = {name: msgspec.json.decode(steps[name]) for name in sorted(steps, key=_natural_sort_key)}
        plain = {**_to_json_object(job), "steps": done}
        if not self.printer.is_json and job.worker is not None:
            plain["worker"] = shorten(job.worker)
        self.printer.print_details(plain)
        return 0

    async def cancel(self) -> int:
        return await self._change_each(jobs.cancel, "cancelled", "already ended")

    async def retry(self) -> int:
        return await self._change_each(jobs.retry, "queued again", "not ended yet")

    async def _change_each(self, change: Any, done: str, refused: str) -> int:
        if not self.arguments.ids:
            raise UsageError("expected at least one ID")
        all_changed = True
        for id in self.arguments.ids:
            try:
                job = await self._find(id)
            except UsageError as mistake:
                # One wrong ID must not prevent the others from being cancelled; the exit status reports it.
                changed, outcome = False, str(mistake)
            else:
                changed = await self.database.write(lambda tx, job=job: change(tx, job.id, now_ms())) is not None  # type: ignore[misc]
                outcome = done if changed else refused
            all_changed = all_changed and changed
            self.printer.print_value({"id": id, "changed": changed, "outcome": outcome}, f"{id}: {outcome}")
        return 0 if all_changed else 1


ACTIONS: dict[str, Callable[[TasksCommand], Awaitable[int]]] = {
    "list": TasksCommand.list_tasks,
    "show": TasksCommand.show,
    "cancel": TasksCommand.cancel,
    "retry": TasksCommand.retry,
}


# Formatting


def _row(job: Job) -> tuple[str, ...]:
    return (
        # Long enough to identify the task.
        job.id[:SHORT_ID_CHARS],
        job.server,
        job.tool,
        job.outcome_status,
        _progress_bar(job),
        datetime.fromtimestamp(job.created_at / 1000).isoformat(" ", "seconds"),
        job.message or "",
    )


def _natural_sort_key(name: str) -> list[tuple[int, str]]:
    """Return a natural sort key: `chapter 2` comes before `chapter 10`."""
    # Numbers are at odd positions. Comparing their lengths first avoids converting arbitrarily long ones.
    parts = [part.lstrip("0") if at % 2 else part for at, part in enumerate(re.split(r"([0-9]+)", name))]
    return [(len(part) if at % 2 else 0, part) for at, part in enumerate(parts)]


def _progress_bar(job: Job) -> str:
    if job.progress is None:
        return ""
    if not job.total:
        return f"{job.progress:g}"
    share = 1.0 if job.outcome_status == "completed" else max(0.0, min(1.0, job.progress / job.total))
    filled = round(share * 10)
    return f"{'█' * filled}{'░' * (10 - filled)} {share:4.0%}"


def _to_json_object(job: Job) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(job, builtin_types=(msgspec.Raw,))
    for name, value in fields.items():
        if isinstance(value, msgspec.Raw):
            fields[name] = msgspec.json.decode(value) if bytes(value) else None
        elif name in _TIMES and value is not None:
            fields[name] = datetime.fromtimestamp(value / 1000).astimezone().isoformat(timespec="milliseconds")
    # `refused` still records that a tool reported the error.
    return {**fields, "status": job.outcome_status}


def _existing(url: str) -> str:
    """Return the URL of an existing store: showing tasks must not create one."""
    kind, address = parse_database_url(url)
    if kind == "sqlite" and address != MEMORY and not os.path.exists(address):
        raise UsageError(f"store {url} not found")
    return url
