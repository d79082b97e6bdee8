"""`portico inspect`: show a server's info, capabilities and token cost."""

from __future__ import annotations

import argparse
import asyncio
from typing import Any

import msgspec

from portico.cli.connect import create_client, run_with_client
from portico.cli.output import Printer
from portico.cli.specs import parse_target_command
from portico.cli.terminal_text import plural, to_single_line
from portico.client.client import Client
from portico.plugins import require_plugin
from portico.protocol.errors import MethodNotFound, PorticoError, UsageError
from portico.protocol.meta import Implementation
from portico.protocol.versions import SUPPORTED_PROTOCOL_VERSIONS
from portico.tokens import tokens_from_bytes

MAX_LARGEST_TOOLS = 10
# Findings shown without --verbose.
FINDINGS_SHOWN = 5
# For one additional handshake.
VERSION_PROBE_TIMEOUT_SECONDS = 10.0


def run(argv: list[str]) -> int:
    """Run `portico inspect`."""
    arguments = parse_target_command("inspect", argv)
    return run_with_client(arguments, lambda client, printer: _inspect(client, printer, arguments))


async def _inspect(client: Client, printer: Printer, arguments: argparse.Namespace) -> int:
    summary = await _summarize(client)
    summary["protocol_versions"] = await _supported_versions(client, printer, arguments)
    if printer.is_json:
        printer.print_json(summary)
        return 0
    printer.print_table(["", ""], [[name, to_single_line(str(text), 200)] for name, text in _rows(summary)])
    if summary["token_cost"]["largest_tools"]:
        rows = [[item["name"], f"{item['tokens']:,}"] for item in summary["token_cost"]["largest_tools"]]
        printer.print_table(["largest tools", "tokens"], rows)
    findings = summary["findings"] if arguments.verbose else summary["findings"][:FINDINGS_SHOWN]
    for finding in findings:
        printer.print_error(to_single_line(f"{finding['severity']}: {finding['tool']}: {finding['message']}"))
    if len(findings) < len(summary["findings"]):
        printer.print_error(f"… and {len(summary['findings']) - len(findings)} more; use --verbose to show all")
    if "lint_error" in summary:
        printer.print_error(f"note: the tools were not checked: {to_single_line(summary['lint_error'])}")
    return 0


async def _supported_versions(client: Client, printer: Printer, arguments: argparse.Namespace) -> list[str]:
    """Return every protocol version that the server supports, or only the one of `--protocol-version`."""
    if arguments.protocol_version is not None:
        return [client.protocol_version]
    # A server does not announce all versions in a handshake, so each one is tried.
    others = [item for item in SUPPORTED_PROTOCOL_VERSIONS if item != client.protocol_version]
    supported = await asyncio.gather(*(_supports_version(item, printer, arguments) for item in others))
    return sorted(
        [client.protocol_version, *(item for item, is_supported in zip(others, supported, strict=True) if is_supported)]
    )


async def _supports_version(version: str, printer: Printer, arguments: argparse.Namespace) -> bool:
    options = argparse.Namespace(**{**vars(arguments), "protocol_version": version, "trace": False})
    try:
        client = create_client(arguments.target, options, printer)
        # A gateway supports the same protocol versions whichever of its upstreams are connected.
        client.awaited = ()
        async with asyncio.timeout(VERSION_PROBE_TIMEOUT_SECONDS), client:
            return client.protocol_version == version
    except (PorticoError, TimeoutError):
        return False


async def _summarize(client: Client) -> dict[str, Any]:
    info = client.server_info
    lists = {name: await list_or_empty(getattr(client, f"list_{name}")) for name in _LISTS}
    tools = [msgspec.to_builtins(tool) for tool in lists["tools"]]
    tokens_by_tool = {tool["name"]: tokens_from_bytes(len(msgspec.json.encode(tool))) for tool in tools}
    largest = sorted(tokens_by_tool, key=lambda name: -tokens_by_tool[name])[:MAX_LARGEST_TOOLS]
    return {
        "name": info.name if info else None,
        "version": info.version if info else None,
        "title": info.title if info else None,
        "protocol_version": client.protocol_version,
        "instructions": client.instructions,
        "capabilities": msgspec.to_builtins(client.server_capabilities),
        "counts": {name: len(listed) for name, listed in lists.items()},
        "token_cost": {
            "tokens": sum(tokens_by_tool.values()),
            "largest_tools": [{"name": name, "tokens": tokens_by_tool[name]} for name in largest],
        },
        **_lint(tools, client),
    }


def _lint(tools: list[dict[str, Any]], client: Client) -> dict[str, Any]:
    """Return the lint findings about the tools, or why the tools could not be checked."""
    info = client.server_info
    try:
        services = require_plugin("services", "checking tools")
        about = (info.name, info.version) if info else ("", "")
        return {"findings": services.lint_tools(tools, *about, client.protocol_version)}
    except UsageError as missing:
        return {"findings": [], "lint_error": str(missing)}


_LISTS = ("tools", "resources", "resource_templates", "prompts")


async def list_or_empty(list_items: Any) -> list[Any]:
    """Return a list, or an empty one if the server does not have it."""
    try:
        return list(await list_items())
    except MethodNotFound:
        return []


def _rows(summary: dict[str, Any]) -> list[tuple[str, Any]]:
    counts = ", ".join(
        f"{count:,} {plural(name.replace('_', ' ').removesuffix('s'), count)}"
        for name, count in summary["counts"].items()
    )
    cost = f"about {summary['token_cost']['tokens']:,} tokens in the tool list"
    capable = ", ".join(sorted(name for name, capability in summary["capabilities"].items() if capability is not None))
    rows = [
        ("name", Implementation(summary["name"] or "(not reported)", summary["version"] or "").label),
        (
            "protocol versions",
            ", ".join(
                f"{item} (negotiated)" if item == summary["protocol_version"] else item
                for item in summary["protocol_versions"]
            ),
        ),
        ("instructions", summary["instructions"] or "none"),
        ("capabilities", capable),
        ("offers", counts),
        ("token cost", cost),
        ("findings", "not checked" if "lint_error" in summary else len(summary["findings"]) or "none"),
    ]
    return rows
