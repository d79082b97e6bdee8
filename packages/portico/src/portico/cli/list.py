"""`portico list`"""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator, Callable
from typing import Any, NamedTuple

from portico.cli.completion_cache import remember
from portico.cli.connect import run_with_client
from portico.cli.output import Printer
from portico.cli.specs import parse
from portico.cli.specs.client import EVERYTHING
from portico.client.client import Client
from portico.jsonschema.reader import Reader
from portico.protocol.errors import MethodNotFound
from portico.protocol.prompts import Prompt
from portico.protocol.resources import Resource, ResourceTemplate
from portico.protocol.tools import Tool

# A table is held in memory whole, and is not read further by people.
MOST_ROWS = 10_000
LONGEST_CHOICE = 100


class ListKind(NamedTuple):
    capability: str
    each: Callable[[Client], AsyncIterator[Any]]
    headings: tuple[str, ...]
    row: Callable[[Any], tuple[str, ...]]
    # Its name and arguments, for completion.
    known: Callable[[Any], tuple[str, dict[str, list[str]]]]


def run(words: list[str]) -> int:
    if not set(KINDS).intersection(words[: words.index("--")] if "--" in words else words):
        words = [EVERYTHING, *words]
    arguments = parse("list", words)
    return run_with_client(arguments, lambda client, printer: _list(client, printer, arguments))


async def _list(client: Client, printer: Printer, arguments: argparse.Namespace) -> int:
    for name in KINDS if arguments.kind == EVERYTHING else (arguments.kind,):
        await _list_kind(client, printer, arguments, name)
    return 0


async def _list_kind(client: Client, printer: Printer, arguments: argparse.Namespace, name: str) -> None:
    kind = KINDS[name]
    items: list[Any] = []
    names: dict[str, dict[str, list[str]]] = {}
    async for one in _each(client, kind):
        if len(names) < MOST_ROWS:
            names.__setitem__(*kind.known(one))
        if printer.form == "json":
            printer.json(one)
        elif len(items) < MOST_ROWS:
            items.append(one)
        else:
            printer.aside(f"portico: there are more; these are the first {MOST_ROWS}. --json gives all.")
            break
    if printer.form != "json":
        _show(printer, name, kind, items)
    remember(arguments.target, name, names)


async def _each(client: Client, kind: ListKind) -> AsyncIterator[Any]:
    """The items. A server without the capability may not know the method; then it has none."""
    try:
        async for one in kind.each(client):
            yield one
    except MethodNotFound:
        if getattr(client.server_capabilities, kind.capability) is not None:
            raise


def _show(printer: Printer, name: str, kind: ListKind, items: list[Any]) -> None:
    if not items:
        printer.aside(f"no {name}")
        return
    rows = [kind.row(one) for one in items]
    # Empty columns are left out.
    filled = [at for at in range(len(kind.headings)) if any(row[at] for row in rows)]
    printer.table([kind.headings[at] for at in filled], [[row[at] for at in filled] for row in rows])


# What is shown of each


def _tool_row(tool: Tool) -> tuple[str, ...]:
    reader = Reader(tool.input_schema)
    required = reader.required(tool.input_schema)
    words = [
        name if name in required else f"[{name}]"
        for name in sorted(reader.names(tool.input_schema), key=required.__contains__, reverse=True)
    ]
    return tool.name, " ".join(words), _first(tool.description or tool.title)


def _prompt_row(prompt: Prompt) -> tuple[str, ...]:
    words = [one.name if one.required else f"[{one.name}]" for one in prompt.arguments or ()]
    return prompt.name, " ".join(words), _first(prompt.description or prompt.title)


def _resource_row(resource: Resource) -> tuple[str, ...]:
    size = "" if resource.size is None else str(resource.size)
    return resource.uri, resource.title or resource.name, resource.mime_type or "", size, _first(resource.description)


def _template_row(template: ResourceTemplate) -> tuple[str, ...]:
    return (
        template.uri_template,
        template.title or template.name,
        template.mime_type or "",
        _first(template.description),
    )


def _first(text: str | None) -> str:
    """The first paragraph."""
    return (text or "").strip().partition("\n\n")[0]


# What is stored for completion


def known_tool(tool: Tool) -> tuple[str, dict[str, list[str]]]:
    reader = Reader(tool.input_schema)
    return tool.name, {name: _values(reader, tool.input_schema, name) for name in reader.names(tool.input_schema)}


def _values(reader: Reader, schema: dict[str, Any], name: str) -> list[str]:
    member = reader.member(schema, name)
    choices = [value for value in reader.choices(member) if isinstance(value, str) and len(value) <= LONGEST_CHOICE]
    is_boolean = not choices and reader.takes(member, "boolean") and not reader.takes(member, "string")
    return ["true", "false"] if is_boolean else choices


def known_prompt(prompt: Prompt) -> tuple[str, dict[str, list[str]]]:
    return prompt.name, {one.name: [] for one in prompt.arguments or ()}


KINDS = {
    "tools": ListKind("tools", Client.iter_tools, ("NAME", "ARGUMENTS", "DESCRIPTION"), _tool_row, known_tool),
    "resources": ListKind(
        "resources",
        Client.iter_resources,
        ("URI", "NAME", "TYPE", "BYTES", "DESCRIPTION"),
        _resource_row,
        lambda one: (one.uri, {}),
    ),
    "templates": ListKind(
        "resources",
        Client.iter_resource_templates,
        ("URI", "NAME", "TYPE", "DESCRIPTION"),
        _template_row,
        lambda one: (one.uri_template, {}),
    ),
    "prompts": ListKind(
        "prompts", Client.iter_prompts, ("NAME", "ARGUMENTS", "DESCRIPTION"), _prompt_row, known_prompt
    ),
}
