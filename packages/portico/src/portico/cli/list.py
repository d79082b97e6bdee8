"""`portico list`: list a server's tools, resources, resource templates or prompts."""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator, Callable
from typing import Any, NamedTuple

from portico.cli.completion_cache import store_names
from portico.cli.connect import run_with_client
from portico.cli.output import Printer
from portico.cli.specs import parse_target_command
from portico.cli.specs.client import ALL_KINDS
from portico.client.client import Client
from portico.jsonschema.reader import SchemaReader
from portico.protocol.errors import MethodNotFound, UsageError
from portico.protocol.prompts import Prompt
from portico.protocol.resources import Resource, ResourceTemplate
from portico.protocol.tools import Tool

# A table is held in memory as a whole; longer lists are for programs, which use JSON.
MAX_ROWS = 10_000
MAX_CHOICE_CHARS = 100


class ListKind(NamedTuple):
    """How one kind of component is listed and shown."""

    capability: str
    iterate: Callable[[Client], AsyncIterator[Any]]
    headings: tuple[str, ...]
    row: Callable[[Any], tuple[str, ...]]
    # Its name and arguments, for shell completion.
    completion_entry: Callable[[Any], tuple[str, dict[str, list[str]]]]


def run(argv: list[str]) -> int:
    """Run `portico list`."""
    # KIND is optional and precedes TARGET, which argparse cannot express: it would take the target for the kind.
    if not set(KINDS).intersection(argv[: argv.index("--")] if "--" in argv else argv):
        argv = [ALL_KINDS, *argv]
    words = [word for word in argv[1:3] if not word.startswith("-")]
    # Two words before any option: the first is a kind that does not exist.
    if argv[:1] == [ALL_KINDS] and len(words) == 2 and words[0].isalpha():
        # Only needed here.
        from difflib import get_close_matches

        suggestions = get_close_matches(words[0], KINDS, n=1)
        hint = f"did you mean {suggestions[0]!r}?" if suggestions else f"expected one of {', '.join(KINDS)}"
        raise UsageError(f"unknown kind {words[0]!r}; {hint}")
    arguments = parse_target_command("list", argv)
    return run_with_client(arguments, lambda client, printer: _list(client, printer, arguments))


async def _list(client: Client, printer: Printer, arguments: argparse.Namespace) -> int:
    kinds = tuple(KINDS) if arguments.kind == ALL_KINDS else (arguments.kind,)
    lists = {name: await _list_kind(client, printer, arguments, name) for name in kinds}
    if printer.format == "table":
        for name, items in lists.items():
            _print_items(printer, name, KINDS[name], items)
    elif printer.format == "json" and len(lists) == 1:
        printer.json_list(lists[arguments.kind])
    elif printer.format == "json":
        printer.print_json(lists)
    return 0


async def _list_kind(client: Client, printer: Printer, arguments: argparse.Namespace, name: str) -> list[Any]:
    """Return the items of a kind; in `jsonl` format, print each item as it arrives instead."""
    kind = KINDS[name]
    items: list[Any] = []
    names: dict[str, dict[str, list[str]]] = {}
    async for item in _iterate_items(client, kind):
        # Completion needs names only; a listing without end must not fill the memory.
        if len(names) < MAX_ROWS:
            names.__setitem__(*kind.completion_entry(item))
        if printer.format == "jsonl":
            printer.print_json(item)
        elif printer.format == "json" or len(items) < MAX_ROWS:
            items.append(item)
        else:
            printer.print_error(f"portico: only the first {MAX_ROWS} entries are shown; use --format jsonl to list all")
            break
    store_names(arguments.target, name, names)
    return items


async def _iterate_items(client: Client, kind: ListKind) -> AsyncIterator[Any]:
    """Iterate over the items. A server without the capability may not implement the method; then there are none."""
    try:
        async for item in kind.iterate(client):
            yield item
    # A server that declares the capability and rejects the method has a defect, which the user should see.
    except MethodNotFound:
        if getattr(client.server_capabilities, kind.capability) is not None:
            raise


def _print_items(printer: Printer, name: str, kind: ListKind, items: list[Any]) -> None:
    if not items:
        printer.print_error(f"no {name}")
        return
    rows = [kind.row(item) for item in items]
    # Omit empty columns.
    filled = [at for at in range(len(kind.headings)) if any(row[at] for row in rows)]
    printer.print_table([kind.headings[at] for at in filled], [[row[at] for at in filled] for row in rows])


# Table rows


def _tool_row(tool: Tool) -> tuple[str, ...]:
    reader = SchemaReader(tool.input_schema)
    required = reader.required_names(tool.input_schema)
    words = [
        name if name in required else f"[{name}]"
        for name in sorted(reader.property_names(tool.input_schema), key=required.__contains__, reverse=True)
    ]
    return tool.name, " ".join(words), _first_paragraph(tool.description or tool.title)


def _prompt_row(prompt: Prompt) -> tuple[str, ...]:
    words = [argument.name if argument.required else f"[{argument.name}]" for argument in prompt.arguments or ()]
    return prompt.name, " ".join(words), _first_paragraph(prompt.description or prompt.title)


def _resource_row(resource: Resource) -> tuple[str, ...]:
    size = "" if resource.size is None else str(resource.size)
    return (
        resource.uri,
        resource.title or resource.name,
        resource.mime_type or "",
        size,
        _first_paragraph(resource.description),
    )


def _template_row(template: ResourceTemplate) -> tuple[str, ...]:
    return (
        template.uri_template,
        template.title or template.name,
        template.mime_type or "",
        _first_paragraph(template.description),
    )


def _first_paragraph(text: str | None) -> str:
    """Return the first paragraph."""
    return (text or "").strip().partition("\n\n")[0]


# Shell completion


def tool_completions(tool: Tool) -> tuple[str, dict[str, list[str]]]:
    reader = SchemaReader(tool.input_schema)
    return tool.name, {
        name: _values(reader, tool.input_schema, name) for name in reader.property_names(tool.input_schema)
    }


def _values(reader: SchemaReader, schema: dict[str, Any], name: str) -> list[str]:
    member = reader.member_schema(schema, name)
    choices = [
        value for value in reader.enum_values(member) if isinstance(value, str) and len(value) <= MAX_CHOICE_CHARS
    ]
    is_boolean = not choices and reader.accepts_type(member, "boolean") and not reader.accepts_type(member, "string")
    return ["true", "false"] if is_boolean else choices


def prompt_completions(prompt: Prompt) -> tuple[str, dict[str, list[str]]]:
    return prompt.name, {argument.name: [] for argument in prompt.arguments or ()}


KINDS = {
    "tools": ListKind("tools", Client.iter_tools, ("NAME", "ARGUMENTS", "DESCRIPTION"), _tool_row, tool_completions),
    "resources": ListKind(
        "resources",
        Client.iter_resources,
        ("URI", "NAME", "TYPE", "BYTES", "DESCRIPTION"),
        _resource_row,
        lambda resource: (resource.uri, {}),
    ),
    "templates": ListKind(
        "resources",
        Client.iter_resource_templates,
        ("URI", "NAME", "TYPE", "DESCRIPTION"),
        _template_row,
        lambda template: (template.uri_template, {}),
    ),
    "prompts": ListKind(
        "prompts", Client.iter_prompts, ("NAME", "ARGUMENTS", "DESCRIPTION"), _prompt_row, prompt_completions
    ),
}
