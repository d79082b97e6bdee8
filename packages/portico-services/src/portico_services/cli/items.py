"""`portico tasks`: work items at the shell. Each action is a call of one of the service's tools."""

from __future__ import annotations

import argparse
import asyncio
import getpass
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from datetime import datetime
from typing import Any, NamedTuple

from portico.cli.data_dir import NAME, store_url
from portico.cli.output import Printer
from portico.cli.specs import check_text, parser_for
from portico.cli.terminal_text import one_line
from portico.protocol.errors import ToolError, UsageError
from portico_services.cli.service_session import WHO, ServiceShell, opened, required, text_of
from portico_services.workitems import Tasks
from portico_services.workitems.records import TOPIC

HEADINGS = ("ID", "P", "STATUS", "WORKER", "CREATED", "DESCRIPTION")
# How much of the end of an id is shown, which is enough to name the task by.
SHOWN = 6
NOTHING_TO_DO = 1
PAGE = 1000
WAIT_SECONDS = 2.0
LONGEST_NODE = 300
MARKS = {"pending": "○", "in_progress": "◐", "completed": "●", "failed": "✗"}
STYLES = {"pending": "", "in_progress": "yellow", "completed": "green", "failed": "red"}
# The service names its tools where it says what to do; at the shell they are actions.
ACTIONS_FOR_TOOLS = {
    "update_task with status pending": "portico tasks reopen",
    "update_task": "portico tasks edit",
    "remove_blocker": "portico tasks unblock",
    "list_tasks": "portico tasks list --all",
    "next_task": "portico tasks next",
    "get_task": "portico tasks show",
    "children=": "--children ",
}

Item = dict[str, Any]


class TaskChange(NamedTuple):
    """An action that changes one task: the tool, its fixed arguments, the options that are passed on, the argument that
    the words behind the ID are, and what is printed."""

    tool: str
    fixed: dict[str, str]
    options: tuple[str, ...]
    words: str
    sentence: str


CHANGES = {
    "start": TaskChange(
        "update_task", {"status": "in_progress"}, ("worker", "lease"), "", "{id} is in progress, with {worker}"
    ),
    "done": TaskChange("complete_task", {}, ("worker",), "result", "{id} is completed"),
    "fail": TaskChange("update_task", {"status": "failed"}, ("worker",), "result", "{id} has failed"),
    "reopen": TaskChange("update_task", {"status": "pending"}, (), "", "{id} is pending"),
    "edit": TaskChange(
        "update_task",
        {},
        ("priority", "context", "due", "add_labels", "remove_labels"),
        "description",
        "{id} is at version {version}",
    ),
    "note": TaskChange("add_note", {}, ("worker",), "text", "{id} has {notes} notes"),
}


def run(words: list[str]) -> int:
    parser = parser_for("tasks")
    arguments = parser.read(words)
    check_text(parser, [*arguments.words, arguments.context or "", arguments.worker or ""])
    if arguments.action in ("next", "start"):
        arguments.worker = arguments.worker or _user()
    try:
        return asyncio.run(_run(arguments))
    except ToolError as refusal:
        text = str(refusal)
        for tool, action in ACTIONS_FOR_TOOLS.items():
            text = text.replace(tool, action)
        raise ToolError(text) from None


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # in a container the user may have no name
        return WHO


async def _run(arguments: argparse.Namespace) -> int:
    service = Tasks(store_url(arguments.store, arguments.data, NAME))
    async with opened(service, arguments) as shell:
        # Leases that have ended are taken back first, so that the lists are up to date.
        await (await service.store()).take_back()
        return await TaskShell(shell, service).act() or 0


class TaskShell:
    """One action. Ids may be abbreviated, which only the shell allows."""

    def __init__(self, shell: ServiceShell, service: Tasks) -> None:
        self.given, self.printer = shell.arguments, shell.printer
        self.call, self.show = shell.call, shell.show
        self._service = service
        # What an empty list says of other lists.
        self._note: str | None = None

    async def act(self) -> int | None:
        change = CHANGES.get(self.given.action)
        return await (ACTIONS[self.given.action](self) if change is None else self.change(change))

    async def id(self, text: str) -> str:
        """The id that begins or ends with this text."""
        return await (await self._service.store()).id(text)

    async def ids(self, texts: list[str]) -> list[str]:
        return [await self.id(text) for text in texts]

    async def parent(self) -> str | None:
        """The id of --parent; "" stands for no parent."""
        return await self.id(self.given.parent) if self.given.parent else self.given.parent

    # Making and changing

    async def add(self) -> None:
        task = await self.call(
            "create_task",
            description=text_of(self.given.words),
            parent_id=await self.parent() or None,
            priority=self.given.priority,
            context=self.given.context,
            blocked_by=await self.ids(self.given.blocked_by) or None,
            labels=self.given.add_labels,
            due=self.given.due,
            project=self.given.project,
        )
        if self.given.output is None:
            # For `ID=$(portico tasks add …)`.
            self.printer.line(task["id"])
        else:
            self.show(task, task["id"])

    async def change(self, change: TaskChange) -> None:
        first, *words = required(self.given.words, "an ID")
        if words and not change.words:
            raise UsageError(f"only one ID is accepted, and {words[0]!r} is more")
        given = {**change.fixed, **{name: getattr(self.given, name) for name in change.options}}
        if words:
            given[change.words] = text_of(words)
        if self.given.action == "edit":
            given |= {"parent_id": await self.parent(), "project": self.given.project}
        task = await self.call(change.tool, id=await self.id(first), **given)
        self.show(task, change.sentence.format_map(task))

    async def block(self) -> None:
        """Both `block` and `unblock`."""
        is_block = self.given.action == "block"
        id, *blockers = await self.ids(required(self.given.words, "an ID"))
        for blocker in required(blockers, "the ID of what it waits for"):
            tool = "add_blocker" if is_block else "remove_blocker"
            changed = (await self.call(tool, task_id=id, blocked_by_id=blocker))["changed"]
            sentence = f"{id} waits for {blocker}" if is_block else f"{id} does not wait for {blocker}"
            self.show(await self.call("get_task", id=id), sentence + ("" if changed else ", as before"))

    async def rm(self) -> None:
        for id in await self.ids(required(self.given.words, "an ID")):
            gone = await self.call("delete_task", id=id, children=self.given.children, dry_run=self.given.dry_run)
            if self.printer.form == "json":
                self.printer.json(gone)
                continue
            for one in gone["deleted"]:
                self.printer.line(f"{one} {'would be' if gone['dry_run'] else 'is'} deleted")
            for one in gone["unblocked"]:
                self.printer.aside(f"{one} {'would no longer be' if gone['dry_run'] else 'is no longer'} blocked")

    # Working and looking

    async def next(self) -> int | None:
        following = await self._next()
        if not following["found"] and self.given.wait:
            following = await self._wait_for_next()
        if not following["found"]:
            self.printer.aside(following["note"])
            return NOTHING_TO_DO
        self.printer.details(following["task"])
        return None

    async def _wait_for_next(self) -> Item:
        store = await self._service.store()
        async with store.database.subscribe(TOPIC) as changes:
            following = aiter(changes)
            while True:
                # What another process has changed may be heard late, and a lease ends without a word.
                with suppress(TimeoutError):
                    async with asyncio.timeout(WAIT_SECONDS):
                        await anext(following)
                await store.take_back()
                found = await self._next()
                if found["found"]:
                    return found

    async def _next(self) -> Item:
        return await self.call(
            "next_task",
            worker=self.given.worker,
            lease=self.given.lease,
            parent_id=await self.parent() or None,
            query=" ".join(self.given.words) or None,
            labels=self.given.add_labels,
            project=self.given.project,
        )

    async def show_each(self) -> None:
        for id in await self.ids(required(self.given.words, "an ID")):
            self.printer.details(await self.call("get_task", id=id))

    async def list_tasks(self) -> None:
        given = self.given
        is_open = not given.all and given.status is None
        items, more = await self._listed(is_open)
        if self._note and not items and self.printer.form != "json":
            self.printer.aside(self._note)
        self.printer.rows(
            items, HEADINGS, _row, empty="There is nothing to do." if is_open else "There is no such task."
        )
        if more and self.printer.form != "json":
            self.printer.aside(f"There are more than {given.limit}; --limit shows more of them.")

    async def _listed(self, is_open: bool) -> tuple[list[Item], bool]:
        """The tasks, and whether there are more. Open ones are those of two statuses."""
        given, query = self.given, " ".join(self.given.words) or None
        parent = await self.parent()
        named = {"parent_id": parent, "query": query, "labels": given.add_labels, "project": given.project}
        named["worker"] = given.worker
        wanted = {
            **named,
            "blocked": True if given.blocked else None,
            "overdue": True if given.overdue else None,
            "due_before": given.due,
        }
        if given.ready:
            items = [
                one
                async for one in self._pages(status="pending", blocked=False, **named)
                if not one.get("open_children")
            ]
            is_alone = parent is None and query is None and not given.blocked
            items = sorted(items, key=lambda one: (one["priority"], one["id"])) if is_alone else items
            return items[: given.limit], len(items) > given.limit
        statuses = ["pending", "in_progress"] if is_open else [given.status]
        pages = [await self.call("list_tasks", status=one, limit=given.limit, **wanted) for one in statuses]
        items = [one for page in pages for one in page["tasks"]]
        self._note = pages[0].get("note")
        if given.overdue or given.due:
            items.sort(key=lambda one: (one["due_at"], one["id"]))
        else:
            # The most urgent first, and of these the newest, as each of the lists is.
            items.sort(key=lambda one: one["id"], reverse=True)
            items.sort(key=lambda one: one["priority"])
        return items[: given.limit], len(items) > given.limit or any("nextCursor" in page for page in pages)

    async def _pages(self, **wanted: Any) -> AsyncIterator[Item]:
        cursor, more = None, True
        while more:
            page = await self.call("list_tasks", limit=PAGE, cursor=cursor, **wanted)
            for one in page["tasks"]:
                yield one
            cursor = page.get("nextCursor")
            more = cursor is not None

    async def tree(self) -> None:
        id = await self.id(self.given.words[0]) if self.given.words else None
        open_only = id is None and not self.given.all
        plan = await self.call("task_tree", id=id, open_only=open_only, project=self.given.project)
        if self.printer.form == "json":
            for node in plan["tasks"]:
                self.printer.json(node)
            return
        _draw(plan["tasks"], self.printer)
        if plan.get("cut"):
            self.printer.aside(f"There are more than these {plan['count']}.")

    async def history(self) -> None:
        word = required(self.given.words, "an ID")[0]
        # A deleted task can only be named by its whole id.
        id = word if word.startswith("task_") else await self.id(word)
        changes = (await self.call("task_history", id=id, limit=self.given.limit))["changes"]
        self.printer.rows(changes, ("V", "WHEN", "WHO", "CHANGE", "WHAT"), _change_row, empty="no changes")


ACTIONS: dict[str, Callable[[TaskShell], Awaitable[int | None]]] = {
    "add": TaskShell.add,
    "list": TaskShell.list_tasks,
    "show": TaskShell.show_each,
    "next": TaskShell.next,
    "block": TaskShell.block,
    "unblock": TaskShell.block,
    "tree": TaskShell.tree,
    "history": TaskShell.history,
    "rm": TaskShell.rm,
}


# What is printed


def _row(item: Item) -> tuple[str, ...]:
    status = item["status"]
    if status == "pending":
        status = "blocked" if item["blocked"] else "waiting" if item.get("open_children") else status
    created = datetime.fromisoformat(item["created_at"]).astimezone().strftime("%Y-%m-%d %H:%M")
    return item["id"][-SHOWN:], str(item["priority"]), status, item.get("worker", ""), created, item["description"]


def _change_row(change: Item) -> tuple[str, ...]:
    when = change["at"][:16].replace("T", " ")
    return str(change["version"]), when, change.get("who", ""), change["change"], _fields(change)


def _fields(change: Item) -> str:
    fields = [f"{one['name']}: {_value(one['before'])} → {_value(one['after'])}" for one in change.get("fields", ())]
    return "; ".join([*fields, *([change["reason"]] if "reason" in change else [])])


def _value(value: object) -> str:
    return "–" if value is None or value == "" else str(value)


def _draw(nodes: list[Item], printer: Printer) -> None:
    """A tree: coloured on a terminal by rich where that is installed, else plain."""
    rows = [(_branch(nodes, at), node, _words(node)) for at, node in enumerate(nodes)]
    if printer.form == "table" and printer.is_terminal and _draw_coloured(rows, printer):
        return
    for branch, node, words in rows:
        printer.raw(f"{branch}{MARKS[node['status']]} {node['id'][-SHOWN:]} {words}\n")


def _draw_coloured(rows: list[tuple[str, Item, str]], printer: Printer) -> bool:
    """Whether rich is installed. Descriptions are Text: nothing in them is markup."""
    try:
        from rich.console import Console
        from rich.text import Text
    except ImportError:
        return False
    console = Console(file=printer.out, highlight=False, markup=False, emoji=False, soft_wrap=True)
    for branch, node, words in rows:
        status = node["status"]
        style = "dim" if status == "completed" else "magenta" if node["blocked"] else ""
        mark, id = (f"{MARKS[status]} ", STYLES[status]), (f"{node['id'][-SHOWN:]} ", "cyan")
        console.print(Text.assemble((branch, "dim"), mark, id, (words, style)))
    return True


def _branch(nodes: list[Item], at: int) -> str:
    """The lines that lead to a node: on each level, whether another node follows below the same parent."""
    depth = nodes[at]["depth"]
    parts = []
    for level in range(1, depth + 1):
        later = next((node for node in nodes[at + 1 :] if node["depth"] <= level), None)
        goes_on = later is not None and later["depth"] == level
        parts.append(("├─ " if goes_on else "└─ ") if level == depth else ("│  " if goes_on else "   "))
    return "".join(parts)


def _words(node: Item) -> str:
    notes = [f"P{node['priority']}" if node["priority"] != 3 else "", node.get("worker", "")]
    if node["blocked"] and node["status"] in ("pending", "in_progress"):
        notes.append("blocked")
    shown = ", ".join(filter(None, notes))
    return one_line(f"{node['description']} ({shown})" if shown else node["description"], LONGEST_NODE)
