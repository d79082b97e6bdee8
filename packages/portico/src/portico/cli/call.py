"""`portico call`, `portico read` and `portico prompt`"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from portico.cli.completion_cache import remember
from portico.cli.connect import run_with_client
from portico.cli.elicitation import can_ask
from portico.cli.list import known_prompt, known_tool
from portico.cli.output import BlockPrinter, Printer
from portico.cli.specs import parse
from portico.cli.tool_arguments import Given, Sources, for_prompt, for_tool, from_json, split
from portico.client.client import Client
from portico.client.results import CallToolResult
from portico.jsonschema.argument_issues import did_you_mean
from portico.jsonschema.explanation import listed, quoted
from portico.protocol.content import TextContent
from portico.protocol.errors import ConnectFailed, ResourceNotFound, UsageError
from portico.protocol.tools import WRAPPED, Tool

# How long a call may take at a terminal, where a person may have to answer questions, and can press Ctrl-C.
TERMINAL_TIMEOUT_SECONDS = 3600.0


def run(words: list[str]) -> int:
    options, sources = parse("call", words), Sources()
    # Files and standard input are read before a server is started.
    whole = {} if options.json_arguments is None else from_json(options.json_arguments, sources)
    given = [split(word, sources) for word in options.pairs]
    work = partial(_call, options=options, given=given, whole=whole)
    return run_with_client(options, work, [options.tool])


def run_read(words: list[str]) -> int:
    options = parse("read", words)
    return run_with_client(options, lambda client, printer: _read(client, printer, options))


def run_prompt(words: list[str]) -> int:
    options, sources = parse("prompt", words), Sources()
    given = [split(word, sources) for word in options.pairs]
    return run_with_client(options, partial(_prompt, options=options, given=given), [options.name])


def _unknown(client: Client, kind: str, name: str, names: list[str]) -> UsageError | ConnectFailed:
    if client.missing_servers:
        servers = ", ".join(client.missing_servers)
        return ConnectFailed(f"the {kind} {quoted(name)} is not available: {servers} cannot be reached")
    hint = did_you_mean(name, names) or (f"there is {listed(names)}" if names else "the server has none")
    return UsageError(f"there is no {kind} {quoted(name)}; {hint}")


# A tool


async def _call(
    client: Client, printer: Printer, options: argparse.Namespace, given: list[Given], whole: dict[str, Any]
) -> int:
    tools = await client.list_tools()
    remember(options.target, "tools", dict(map(known_tool, tools)))
    tool = _find(client, tools, options)
    arguments = for_tool(tool.input_schema, given, whole)
    # Before 2026-07-28 the time that a person takes to answer a question is part of the call's.
    timeout = options.timeout or (TERMINAL_TIMEOUT_SECONDS if can_ask() else None)
    result = await client.call_tool(
        options.tool, arguments, timeout=timeout, on_progress=_progress(printer), raise_on_error=False
    )
    printer.clear()
    blocks = BlockPrinter(printer, options.save, options.tool)
    if printer.form == "json":
        printer.json(_line(result))
        blocks.save(result.content)
    elif not result.is_error:
        _print_result(blocks, result, tool)
    if result.is_error:
        printer.aside(f"portico: {options.tool} failed: {result.text}")
    return 1 if result.is_error else 0


def _find(client: Client, tools: list[Tool], options: argparse.Namespace) -> Tool:
    """The tool of that name. A tool that is not listed, such as an alias, can be called with --json, unchecked."""
    for tool in tools:
        if tool.name == options.tool:
            return tool
    if options.json_arguments is not None and not options.pairs and not client.missing_servers:
        return Tool(name=options.tool, input_schema={})
    raise _unknown(client, "tool", options.tool, [tool.name for tool in tools])


def _progress(printer: Printer) -> Callable[[float, float | None, str | None], None] | None:
    """None without a terminal, so that the server is not asked for progress that is not shown."""
    if not printer.err.isatty():
        return None

    def show(done: float, total: float | None, message: str | None) -> None:
        far = f"{done / total:.0%}" if total else f"{done:g}"
        printer.status(f"{far}  {message or ''}")

    return show


def _line(result: CallToolResult) -> dict[str, Any]:
    """The result as it is on the wire."""
    line: dict[str, Any] = {"content": result.content}
    if result.structured is not None:
        line["structuredContent"] = result.structured
    line["isError"] = result.is_error
    return line if result.meta is None else {**line, "_meta": result.meta}


def _print_result(blocks: BlockPrinter, result: CallToolResult, tool: Tool) -> None:
    """Structured data once: servers repeat it as text, for clients that do not read structuredContent."""
    value, is_wrapped = result.structured, bool((tool.output_schema or {}).get(WRAPPED))
    if is_wrapped and isinstance(value, dict) and value.keys() == {"result"}:
        value = value["result"]
    is_printed = value is None
    for block in result.content:
        if isinstance(block, TextContent) and value is not None:
            if block.text == value:
                is_printed = True
            elif _is_json_of(block.text, value):
                continue
        blocks.block(block)
    if not is_printed:
        blocks.printer.pretty(value)


def _is_json_of(text: str, value: Any) -> bool:
    try:
        decoded = msgspec.json.decode(text)
    except (ValueError, RecursionError):
        return False
    return bool(decoded == value or decoded == {"result": value})


# A resource, a prompt


async def _read(client: Client, printer: Printer, options: argparse.Namespace) -> int:
    try:
        contents = await client.read_resource(options.uri)
    except ResourceNotFound:
        if not client.missing_servers:
            raise
        raise _unknown(client, "resource", options.uri, []) from None
    blocks = BlockPrinter(printer, options.save, "resource")
    for one in contents:
        if printer.form == "json":
            printer.json(one)
            continue
        if printer.form == "table" and len(contents) > 1:
            printer.line(f"── {one.uri} {one.mime_type or ''}")
        # A single text is written exactly, so that a file can be made of it.
        blocks.contents(one, exactly=len(contents) == 1)
    if printer.form == "json":
        blocks.save(list(contents))
    return 0


async def _prompt(client: Client, printer: Printer, options: argparse.Namespace, given: list[Given]) -> int:
    prompts = await client.list_prompts()
    remember(options.target, "prompts", dict(map(known_prompt, prompts)))
    prompt = next((one for one in prompts if one.name == options.name), None)
    if prompt is None:
        raise _unknown(client, "prompt", options.name, [one.name for one in prompts])
    required = {one.name: bool(one.required) for one in prompt.arguments or ()}
    result = await client.get_prompt(options.name, for_prompt(required, given))
    blocks = BlockPrinter(printer, options.save, options.name)
    for message in result.messages:
        if printer.form == "json":
            printer.json(message)
            blocks.save([message.content])
            continue
        printer.line(f"{message.role}:")
        blocks.block(message.content)
    return 0
