"""`portico items`: work items in the shell. Each action calls one of the service's tools."""

from __future__ import annotations

import argparse
import asyncio
import getpass
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from datetime import datetime
from typing import Any, NamedTuple

from portico.cli.data_dir import DEFAULT_STORE_NAME, store_url
from portico.cli.output import Printer
from portico.cli.specs import parser_for, require_utf8
from portico.cli.terminal_text import to_single_line
from portico.protocol.errors import ToolError, UsageError
from portico.store.data_directory import named_store
from portico_services.cli.service_session import (
    WHO,
    ServiceSession,
    opened,
    require_arguments,
    require_database,
    text_of,
)
from portico_services.workitems import Tasks
from portico_services.workitems.records import TOPIC

HEADINGS = ("ID", "P", "STATUS", "WORKER", "CREATED", "DESCRIPTION")
# Displayed characters at the end of an id, enough to identify a task.
SHOWN = 6
EXIT_NOTHING_TO_DO = 1
PAGE = 1000
# Actions that may create a database. For the others, a missing one is probably a typo.
CREATING = ("add",)
WAIT_SECONDS = 2.0
MAX_NODE_CHARS = 300
MAX_PROJECTS_NAMED = 10
MARKS = {"pending": "○", "in_progress": "◐", "completed": "●", "failed": "✗"}
STYLES = {"pending": "", "in_progress": "yellow", "completed": "green", "failed": "red"}
# Error messages refer to tools; in the shell they are replaced by commands.
COMMAND_BY_TOOL = {
    "update_task with status pending": "portico items reopen",
    "update_task": "portico items edit",
    "remove_blocker": "portico items unblock",
    "list_tasks": "portico items list --all",
    "next_task": "portico items next",
    "get_task": "portico items show",
    "children=": "--children ",
}

Item = dict[str, Any]


class ItemUpdate(NamedTuple):
    """An action that changes one task: its tool, fixed arguments, options to pass on, the argument for the words after
    the ID, and the message to print.
    """

    tool: str
    fixed: dict[str, str]
    options: tuple[str, ...]
    text_argument: str
    message: str


CHANGES = {
    "start": ItemUpdate(
        "update_task", {"status": "in_progress"}, ("worker", "lease_seconds"), "", "{id} is in progress, with {worker}"
    ),
    "done": ItemUpdate("complete_task", {}, ("worker",), "result", "{id} is completed"),
    "fail": ItemUpdate("update_task", {"status": "failed"}, ("worker",), "result", "{id} has failed"),
    "reopen": ItemUpdate("update_task", {"status": "pending"}, (), "", "{id} is pending"),
    "edit": ItemUpdate(
        "update_task",
        {},
        ("priority", "context", "due", "add_labels", "remove_labels"),
        "description",
        "{id} is at version {version}",
    ),
    "note": ItemUpdate("add_note", {}, ("worker",), "text", "{id} has {notes} notes"),
}


def run(words: list[str]) -> int:
    """Run the command and return its exit status."""
    parser = parser_for("items")
    arguments = parser.parse(words)
    require_utf8(parser, [*arguments.words, arguments.context or "", arguments.worker or ""])
    if arguments.action in ("next", "start"):
        arguments.worker = arguments.worker or _user()
    try:
        return asyncio.run(_run(arguments))
    except ToolError as refusal:
        text = str(refusal)
        for tool, action in COMMAND_BY_TOOL.items():
            text = text.replace(tool, action)
        raise ToolError(text) from None


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # the user of a container may have no name
        return WHO


async def _run(arguments: argparse.Namespace) -> int:
    url = store_url(arguments.store, arguments.data, DEFAULT_STORE_NAME)
    # A mistyped --store would otherwise create an empty database and report that there are no work items.
    if arguments.action not in CREATING and named_store(arguments.store):
        require_database(url)
    service = Tasks(url)
    async with opened(service, arguments) as shell:
        # Release expired leases first, so that lists are up to date.
        await (await service.store()).take_back()
        return await ItemsCommand(shell, service).run() or 0


class ItemsCommand:
    """One action of the command. Ids can be abbreviated, which the tools do not allow."""

    def __init__(self, shell: ServiceSession, service: Tasks) -> None:
        self.arguments, self.printer = shell.arguments, shell.printer
        self.call, self.show = shell.call, shell.show
        self._service = service
        # Note about other projects, if the list is empty.
        self._note: str | None = None

    async def run(self) -> int | None:
        change = CHANGES.get(self.arguments.action)
        return await (ACTIONS[self.arguments.action](self) if change is None else self.change(change))

    async def id(self, text: str) -> str:
        """Return the id that begins or ends with a text."""
        return await (await self._service.store()).resolve_id(text)

    async def ids(self, texts: list[str]) -> list[str]:
        return [await self.id(text) for text in texts]

    async def parent(self) -> str | None:
        """Return the id of --parent; "" means no parent."""
        return await self.id(self.arguments.parent) if self.arguments.parent else self.arguments.parent

    # Creating and changing.

    async def add(self) -> None:
        task = await self.call(
            "create_task",
            description=text_of(self.arguments.words),
            parent_id=await self.parent() or None,
            priority=self.arguments.priority,
            context=self.arguments.context,
            blocked_by=await self.ids(self.arguments.blocked_by) or None,
            labels=self.arguments.add_labels,
            due=self.arguments.due,
            project=self.arguments.project,
        )
        if self.arguments.format is None:
            # Print the bare id, for `ID=$(portico items add …)`.
            self.printer.print_line(task["id"])
        else:
            self.show(task, task["id"])

    async def change(self, change: ItemUpdate) -> None:
        first, *words = require_arguments(self.arguments.words, "an ID")
        if words and not change.text_argument:
            raise UsageError(f"expected one ID, got also {words[0]!r}")
        # The options carry their unit on the command line; the tools do not.
        options = {name.removesuffix("_seconds"): getattr(self.arguments, name) for name in change.options}
        arguments = {**change.fixed, **options}
        if words:
            arguments[change.text_argument] = text_of(words)
        if self.arguments.action == "edit":
            arguments |= {"parent_id": await self.parent(), "project": self.arguments.project}
        task = await self.call(change.tool, id=await self.id(first), **arguments)
        self.show(task, change.message.format_map(task))

    async def block(self) -> None:
        """Run `block` or `unblock`."""
        is_block = self.arguments.action == "block"
        id, *blockers = await self.ids(require_arguments(self.arguments.words, "an ID"))
        for blocker in require_arguments(blockers, "the ID of a blocker"):
            tool = "add_blocker" if is_block else "remove_blocker"
            changed = (await self.call(tool, task_id=id, blocked_by_id=blocker))["changed"]
            sentence = f"{id} waits for {blocker}" if is_block else f"{id} does not wait for {blocker}"
            self.show(await self.call("get_task", id=id), sentence + ("" if changed else ", as before"))

    async def delete(self) -> None:
        for id in await self.ids(require_arguments(self.arguments.words, "an ID")):
            deleted = await self.call(
                "delete_task", id=id, children=self.arguments.children, dry_run=self.arguments.dry_run
            )
            if self.printer.is_json:
                self.printer.print_json(deleted)
                continue
            for item in deleted["deleted"]:
                self.printer.print_line(f"{item} {'would be' if deleted['dry_run'] else 'is'} deleted")
            for item in deleted["unblocked"]:
                self.printer.print_error(
                    f"{item} {'would no longer be' if deleted['dry_run'] else 'is no longer'} blocked"
                )

    # Claiming and listing.

    async def next(self) -> int | None:
        following = await self._claim_next()
        if not following["found"] and self.arguments.wait:
            following = await self._wait_for_next()
        if not following["found"]:
            self.printer.print_error(following["note"])
            return EXIT_NOTHING_TO_DO
        self.printer.print_details(following["task"])
        return None

    async def _wait_for_next(self) -> Item:
        store = await self._service.store()
        async with store.database.subscribe(TOPIC) as changes:
            following = aiter(changes)
            while True:
                # Events of other processes may arrive late, and a lease expires without an event.
                with suppress(TimeoutError):
                    async with asyncio.timeout(WAIT_SECONDS):
                        await anext(following)
                await store.take_back()
                result = await self._claim_next()
                if result["found"]:
                    return result

    async def _claim_next(self) -> Item:
        return await self.call(
            "next_task",
            worker=self.arguments.worker,
            lease=self.arguments.lease_seconds,
            parent_id=await self.parent() or None,
            query=" ".join(self.arguments.words) or None,
            labels=self.arguments.add_labels,
            project=self.arguments.project,
        )

    async def show_each(self) -> None:
        for id in await self.ids(require_arguments(self.arguments.words, "an ID")):
            self.printer.print_details(await self.call("get_task", id=id))

    async def list_tasks(self) -> None:
        arguments = self.arguments
        is_open = not arguments.all and arguments.status is None
        items, more = await self._list_items(is_open)
        if not items:
            await self._require_project()
        if self._note and not items and not self.printer.is_json:
            self.printer.print_error(self._note.replace("Pass project", "Pass --project"))
        self.printer.print_rows(
            items, HEADINGS, _row, empty="There is nothing to do." if is_open else "No tasks match."
        )
        if more and not self.printer.is_json:
            self.printer.print_error(f"There are more than {arguments.limit}; --limit shows more of them.")

    async def _require_project(self) -> None:
        """Raise ToolError if --project names a project without work items while others have some: probably a typo."""
        name = self.arguments.project
        projects = await (await self._service.store()).for_project(name).elsewhere() if name else {}
        if projects:
            listed = ", ".join(list(projects)[:MAX_PROJECTS_NAMED]) + (
                ", …" if len(projects) > MAX_PROJECTS_NAMED else ""
            )
            raise ToolError(f"unknown project {name!r}; projects with work items: {listed}")

    async def _list_items(self, is_open: bool) -> tuple[list[Item], bool]:
        """Return the tasks and whether there are more. Open tasks have one of two statuses, so two lists are merged."""
        arguments, query = self.arguments, " ".join(self.arguments.words) or None
        parent = await self.parent()
        named = {"parent_id": parent, "query": query, "labels": arguments.add_labels, "project": arguments.project}
        named["worker"] = arguments.worker
        filters = {
            **named,
            "blocked": True if arguments.blocked else None,
            "overdue": True if arguments.overdue else None,
            "due_before": arguments.due,
        }
        if arguments.ready:
            items = [
                item
                async for item in self._pages(status="pending", blocked=False, **named)
                if not item.get("open_children")
            ]
            # Only the plain list follows the order in which `next` assigns items.
            is_alone = parent is None and query is None and not arguments.blocked
            items = sorted(items, key=lambda entry: (entry["priority"], entry["id"])) if is_alone else items
            return items[: arguments.limit], len(items) > arguments.limit
        statuses = ["pending", "in_progress"] if is_open else [arguments.status]
        pages = [await self.call("list_tasks", status=item, limit=arguments.limit, **filters) for item in statuses]
        items = [item for page in pages for item in page["tasks"]]
        self._note = pages[0].get("note")
        if arguments.overdue or arguments.due:
            items.sort(key=lambda entry: (entry["due_at"], entry["id"]))
        else:
            # Most urgent first, then newest, like each of the merged lists.
            items.sort(key=lambda entry: entry["id"], reverse=True)
            items.sort(key=lambda entry: entry["priority"])
        return items[: arguments.limit], len(items) > arguments.limit or any("nextCursor" in page for page in pages)

    async def _pages(self, **arguments: Any) -> AsyncIterator[Item]:
        # Pages instead of one large limit, which the tool would reject.
        cursor, more = None, True
        while more:
            page = await self.call("list_tasks", limit=PAGE, cursor=cursor, **arguments)
            for item in page["tasks"]:
                yield item
            cursor = page.get("nextCursor")
            more = cursor is not None

    async def tree(self) -> None:
        id = await self.id(self.arguments.words[0]) if self.arguments.words else None
        open_only = id is None and not self.arguments.all
        plan = await self.call("task_tree", id=id, open_only=open_only, project=self.arguments.project)
        if not plan["tasks"]:
            await self._require_project()
        if self.printer.is_json:
            for node in plan["tasks"]:
                self.printer.print_json(node)
            return
        _draw(plan["tasks"], self.printer)
        if not plan["tasks"]:
            self.printer.print_error("There is nothing to do." if open_only else "No tasks match.")
        if plan.get("cut"):
            self.printer.print_error(f"There are more than these {plan['count']}.")

    async def history(self) -> None:
        word = require_arguments(self.arguments.words, "an ID")[0]
        # A deleted task can only be identified by its complete id.
        id = word if word.startswith("task_") else await self.id(word)
        changes = (await self.call("task_history", id=id, limit=self.arguments.limit))["changes"]
        self.printer.print_rows(changes, ("V", "WHEN", "WHO", "CHANGE", "WHAT"), _change_row, empty="no changes")


ACTIONS: dict[str, Callable[[ItemsCommand], Awaitable[int | None]]] = {
    "add": ItemsCommand.add,
    "list": ItemsCommand.list_tasks,
    "show": ItemsCommand.show_each,
    "next": ItemsCommand.next,
    "block": ItemsCommand.block,
    "unblock": ItemsCommand.block,
    "tree": ItemsCommand.tree,
    "history": ItemsCommand.history,
    "delete": ItemsCommand.delete,
}


# Output.


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
    fields = [
        f"{field['name']}: {_value(field['before'])} → {_value(field['after'])}" for field in change.get("fields", ())
    ]
    return "; ".join([*fields, *([change["reason"]] if "reason" in change else [])])


def _value(value: object) -> str:
    return "–" if value is None or value == "" else str(value)


def _draw(nodes: list[Item], printer: Printer) -> None:
    """Print a tree, in color on a terminal if rich is installed."""
    rows = [(_branch(nodes, at), node, _words(node)) for at, node in enumerate(nodes)]
    if printer.format == "table" and printer.is_terminal and _draw_coloured(rows, printer):
        return
    for branch, node, words in rows:
        printer.write_raw(f"{branch}{MARKS[node['status']]} {node['id'][-SHOWN:]} {words}\n")


def _draw_coloured(rows: list[tuple[str, Item, str]], printer: Printer) -> bool:
    """Print the tree in color; return False if rich is not installed. Descriptions are Text, so markup in them has no
    effect.
    """
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
    """Return the lines that lead to a node: on each level, whether the parent has further children."""
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
    text = ", ".join(filter(None, notes))
    return to_single_line(f"{node['description']} ({text})" if text else node["description"], MAX_NODE_CHARS)
