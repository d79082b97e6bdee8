"""`portico call`, `portico read` and `portico prompt`."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from portico.cli.completion_cache import store_names
from portico.cli.connect import run_with_client
from portico.cli.elicitation import is_interactive
from portico.cli.list import prompt_completions, tool_completions
from portico.cli.output import ContentPrinter, Printer
from portico.cli.specs import parse_target_command
from portico.cli.tool_arguments import (
    ArgumentInput,
    InputSources,
    build_prompt_arguments,
    build_tool_arguments,
    parse_json_arguments,
    parse_pairs,
)
from portico.client.client import Client
from portico.client.results import CallToolResult
from portico.jsonschema.argument_issues import did_you_mean
from portico.jsonschema.explanation import format_values, quote
from portico.protocol.content import TextContent
from portico.protocol.errors import ConnectError, ResourceNotFound, UsageError
from portico.protocol.tools import WRAP_RESULT_KEY, Tool

# Time limit of a call at a terminal, where a user may have to answer elicitations and can press Ctrl-C.
INTERACTIVE_TIMEOUT_SECONDS = 3600.0


def run(argv: list[str]) -> int:
    """Run `portico call`."""
    options, sources = parse_target_command("call", argv), InputSources()
    # Files and standard input are read before a server is started, so that a bad argument starts none.
    json_arguments = {} if options.json_arguments is None else parse_json_arguments(options.json_arguments, sources)
    argument_inputs = parse_pairs(options.pairs, sources, accepts_json=True)
    action = partial(_call, options=options, inputs=argument_inputs, json_arguments=json_arguments)
    return run_with_client(options, action, [options.tool])


def run_read(argv: list[str]) -> int:
    """Run `portico read`."""
    options = parse_target_command("read", argv)
    return run_with_client(options, lambda client, printer: _read(client, printer, options))


def run_prompt(argv: list[str]) -> int:
    """Run `portico prompt`."""
    options, sources = parse_target_command("prompt", argv), InputSources()
    argument_inputs = parse_pairs(options.pairs, sources)
    return run_with_client(options, partial(_prompt, options=options, inputs=argument_inputs), [options.name])


def _unknown_name_error(client: Client, kind: str, name: str, names: list[str]) -> UsageError | ConnectError:
    # The name may belong to the server that is down. "Unknown" would send the user looking for a typo.
    if client.missing_servers:
        servers = ", ".join(client.missing_servers)
        return ConnectError(f"the {kind} {quote(name)} is not available: {servers} cannot be reached")
    hint = did_you_mean(name, names) or (f"available: {format_values(names)}" if names else "the server has none")
    return UsageError(f"unknown {kind} {quote(name)}; {hint}")


# Tools


async def _call(
    client: Client,
    printer: Printer,
    options: argparse.Namespace,
    inputs: list[ArgumentInput],
    json_arguments: dict[str, Any],
) -> int:
    tools = await client.list_tools()
    store_names(options.target, "tools", dict(map(tool_completions, tools)))
    tool = _find(client, tools, options)
    arguments = build_tool_arguments(tool.input_schema, inputs, json_arguments)
    # Before 2026-07-28 the time that a user needs to answer an elicitation counts towards the call's timeout.
    timeout = options.timeout or (INTERACTIVE_TIMEOUT_SECONDS if is_interactive() else None)
    result = await client.call_tool(
        options.tool, arguments, timeout=timeout, progress_handler=_progress(printer), raise_on_error=False
    )
    printer.clear_status()
    blocks = ContentPrinter(printer, options.save_dir, options.tool)
    if printer.is_json:
        printer.print_json(_line(result))
        # In JSON output binary data stays base64; --save-dir writes the decoded files in addition.
        blocks.save_binary(result.content)
    elif not result.is_error:
        _print_result(blocks, result, tool)
    if result.is_error:
        printer.print_error(f"portico: {options.tool} failed: {result.text}")
    return 1 if result.is_error else 0


def _find(client: Client, tools: list[Tool], options: argparse.Namespace) -> Tool:
    """Return the tool with this name.

    A tool that is not listed, such as an alias, can be called with --arguments, without validation.
    """
    for tool in tools:
        if tool.name == options.tool:
            return tool
    # Pairs need the schema to become numbers or booleans, whereas JSON arguments already have their types.
    if options.json_arguments is not None and not options.pairs and not client.missing_servers:
        return Tool(name=options.tool, input_schema={})
    raise _unknown_name_error(client, "tool", options.tool, [tool.name for tool in tools])


def _progress(printer: Printer) -> Callable[[float, float | None, str | None], None] | None:
    """Return a progress handler, or None without a terminal, so that the server does not send unused progress."""
    if not printer.err.isatty():
        return None

    def show(done: float, total: float | None, message: str | None) -> None:
        progress = f"{done / total:.0%}" if total else f"{done:g}"
        printer.show_status(f"{progress}  {message or ''}")

    return show


def _line(result: CallToolResult) -> dict[str, Any]:
    """Return the result in wire format."""
    line: dict[str, Any] = {"content": result.content}
    if result.structured is not None:
        line["structuredContent"] = result.structured
    line["isError"] = result.is_error
    return line if result.meta is None else {**line, "_meta": result.meta}


def _print_result(blocks: ContentPrinter, result: CallToolResult, tool: Tool) -> None:
    """Print the result, and structured data only once: servers repeat it as text for older clients."""
    value, is_wrapped = result.structured, bool((tool.output_schema or {}).get(WRAP_RESULT_KEY))
    if is_wrapped and isinstance(value, dict) and value.keys() == {"result"}:
        # FastMCP and Portico wrap a result that is not an object, because structuredContent must be one.
        value = value["result"]
    is_printed = value is None
    for block in result.content:
        if isinstance(block, TextContent) and value is not None:
            if block.text == value:
                is_printed = True
            elif _is_json_of(block.text, value):
                continue
        blocks.print_block(block)
    if not is_printed:
        blocks.printer.print_pretty_json(value)


def _is_json_of(text: str, value: Any) -> bool:
    try:
        decoded = msgspec.json.decode(text)
    except (ValueError, RecursionError):
        return False
    return bool(decoded == value or decoded == {"result": value})


# Resources and prompts


async def _read(client: Client, printer: Printer, options: argparse.Namespace) -> int:
    try:
        contents = await client.read_resource(options.uri)
    except ResourceNotFound:
        if not client.missing_servers:
            raise
        raise _unknown_name_error(client, "resource", options.uri, []) from None
    blocks = ContentPrinter(printer, options.save_dir, "resource")
    if printer.is_json:
        printer.json_list(contents)
        blocks.save_binary(list(contents))
        return 0
    for content in contents:
        if len(contents) > 1:
            printer.print_line(f"── {content.uri} {content.mime_type or ''}")
        # A single text is written unchanged, so that the output can be redirected to a file.
        blocks.print_contents(content, exactly=len(contents) == 1)
    return 0


async def _prompt(client: Client, printer: Printer, options: argparse.Namespace, inputs: list[ArgumentInput]) -> int:
    prompts = await client.list_prompts()
    store_names(options.target, "prompts", dict(map(prompt_completions, prompts)))
    prompt = next((item for item in prompts if item.name == options.name), None)
    if prompt is None:
        raise _unknown_name_error(client, "prompt", options.name, [item.name for item in prompts])
    required = {item.name: bool(item.required) for item in prompt.arguments or ()}
    result = await client.get_prompt(options.name, build_prompt_arguments(required, inputs))
    blocks = ContentPrinter(printer, options.save_dir, options.name)
    if printer.is_json:
        printer.json_list(result.messages)
        blocks.save_binary([message.content for message in result.messages])
        return 0
    for message in result.messages:
        printer.print_line(f"{message.role}:")
        blocks.print_block(message.content)
    return 0
