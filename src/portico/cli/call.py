"""`portico call`"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import msgspec

from portico.cli.arguments import Given, Sources, for_tool, from_json, split
from portico.cli.blocks import Show
from portico.cli.forms import call_form, parse
from portico.cli.listing import known_tool
from portico.cli.names import remember
from portico.cli.printer import Printer
from portico.cli.questions import can_ask
from portico.cli.running import run_errand
from portico.client.client import Client
from portico.client.results import CallToolResult
from portico.schema.explain import listed, quoted
from portico.schema.problems import did_you_mean
from portico.wire.content import TextContent
from portico.wire.errors import UsageError
from portico.wire.tools import WRAPPED, Tool

# How long a call may take, in seconds, while somebody sits at the terminal who can end it.
PATIENCE = 3600.0


def run(words: list[str]) -> int:
    options, sources = parse(call_form, words), Sources()
    # All that has to be read is read before a server is started for it.
    whole = {} if options.json_arguments is None else from_json(options.json_arguments, sources)
    given = [split(word, sources) for word in options.pairs]
    return run_errand(options, lambda client, printer: _call(client, printer, options, given, whole))


async def _call(
    client: Client, printer: Printer, options: argparse.Namespace, given: list[Given], whole: dict[str, Any]
) -> int:
    tools = await client.list_tools()
    remember(options.target, "tools", dict(map(known_tool, tools)))
    tool = _found(tools, options)
    arguments = for_tool(tool.input_schema, given, whole)
    # Before 2026-07-28 the time that somebody takes to answer a question is part of the call's.
    timeout = options.timeout or (PATIENCE if can_ask() else None)
    result = await client.call_tool(
        options.tool, arguments, timeout=timeout, on_progress=_progress(printer), raise_on_error=False
    )
    printer.clear()
    show = Show(printer, options.save, options.tool)
    if printer.form == "json":
        printer.json(_line(result))
        show.save(result.content)
    elif not result.is_error:
        _show(show, result, tool)
    if result.is_error:
        printer.aside(f"portico: {options.tool} failed: {result.text}")
    return 1 if result.is_error else 0


def _found(tools: list[Tool], options: argparse.Namespace) -> Tool:
    """A tool may answer to names that it does not list. Then nothing is known of its arguments but what --json says."""
    for tool in tools:
        if tool.name == options.tool:
            return tool
    if options.json_arguments is not None and not options.pairs:
        return Tool(name=options.tool, input_schema={})
    names = [tool.name for tool in tools]
    meant = did_you_mean(options.tool, names)
    there = f"there is {listed(names)}" if names else "the server has none"
    raise UsageError(f"there is no tool {quoted(options.tool)}; {meant or there}")


def _progress(printer: Printer) -> Callable[[float, float | None, str | None], None] | None:
    """Servers are only asked to tell how far they are if there is a terminal to show it on."""
    if not printer.err.isatty():
        return None

    def show(done: float, total: float | None, message: str | None) -> None:
        far = f"{done / total:.0%}" if total else f"{done:g}"
        printer.status(f"{far}  {message or ''}")

    return show


def _line(result: CallToolResult) -> dict[str, Any]:
    """What the server said, for programs."""
    line: dict[str, Any] = {"content": result.content}
    if result.structured is not None:
        line["structuredContent"] = result.structured
    line["isError"] = result.is_error
    return line if result.meta is None else {**line, "_meta": result.meta}


def _show(show: Show, result: CallToolResult, tool: Tool) -> None:
    """For people. A server says structured data a second time as text, for clients that know no better."""
    value, is_wrapped = result.structured, bool((tool.output_schema or {}).get(WRAPPED))
    if is_wrapped and isinstance(value, dict) and value.keys() == {"result"}:
        value = value["result"]
    is_said = value is None
    for block in result.content:
        if isinstance(block, TextContent) and value is not None:
            if block.text == value:
                is_said = True
            elif _says(block.text, value):
                continue
        show.block(block)
    if not is_said:
        show.printer.pretty(value)


def _says(text: str, value: Any) -> bool:
    try:
        said = msgspec.json.decode(text)
    except (ValueError, RecursionError):
        return False
    return bool(said == value or said == {"result": value})
