"""`portico inspect`: what a server is, what it offers, and what that costs a model to read."""

from __future__ import annotations

import argparse
import asyncio
from typing import Any

import msgspec

from portico.cli.connect import client_for, run_with_client
from portico.cli.output import Printer
from portico.cli.specs import parse
from portico.cli.terminal_text import one_line, plural
from portico.client.client import Client
from portico.plugins import require_plugin
from portico.protocol.errors import Error, MethodNotFound, UsageError
from portico.protocol.versions import REVISIONS

# Of text such as schemas; tokenizers differ by a tenth or so.
CHARACTERS_PER_TOKEN = 4
HEAVIEST = 10
# Without --verbose.
FINDINGS_SHOWN = 5
# For one more handshake.
REVISION_SECONDS = 10.0


def run(words: list[str]) -> int:
    arguments = parse("inspect", words)
    return run_with_client(arguments, lambda client, printer: _inspect(client, printer, arguments))


async def _inspect(client: Client, printer: Printer, arguments: argparse.Namespace) -> int:
    found = await _about(client)
    found["revisions"] = await _revisions(client, printer, arguments)
    if printer.form == "json":
        printer.json(found)
        return 0
    printer.table(["", ""], [[name, one_line(str(text), 200)] for name, text in _rows(found)])
    if found["weight"]["heaviest"]:
        rows = [[one["name"], f"{one['tokens']:,}"] for one in found["weight"]["heaviest"]]
        printer.table(["heaviest tools", "tokens"], rows)
    findings = found["findings"] if arguments.verbose else found["findings"][:FINDINGS_SHOWN]
    for finding in findings:
        printer.aside(one_line(f"{finding['severity']}: {finding['tool']}: {finding['message']}"))
    if len(findings) < len(found["findings"]):
        printer.aside(f"… and {len(found['findings']) - len(findings)} more: --verbose shows all of them")
    if "unlinted" in found:
        printer.aside(f"note: the tools were not checked: {one_line(found['unlinted'])}")
    return 0


async def _revisions(client: Client, printer: Printer, arguments: argparse.Namespace) -> list[str]:
    """All that the server speaks: it is asked again with each of the others. None that `--revision` leaves out."""
    if arguments.revision is not None:
        return [client.revision]
    others = [one for one in REVISIONS if one != client.revision]
    spoken = await asyncio.gather(*(_speaks(one, printer, arguments) for one in others))
    return sorted([client.revision, *(one for one, good in zip(others, spoken, strict=True) if good)])


async def _speaks(revision: str, printer: Printer, arguments: argparse.Namespace) -> bool:
    asking = argparse.Namespace(**{**vars(arguments), "revision": revision, "trace": False})
    try:
        client = client_for(arguments.target, asking, printer)
        # A gateway speaks the same revisions whichever of its servers are there.
        client.awaited = ()
        async with asyncio.timeout(REVISION_SECONDS), client:
            return client.revision == revision
    except (Error, TimeoutError):
        return False


async def _about(client: Client) -> dict[str, Any]:
    info = client.server_info
    lists = {name: await _listed(getattr(client, f"list_{name}")) for name in _LISTS}
    tools = [msgspec.to_builtins(tool) for tool in lists["tools"]]
    weights = {tool["name"]: len(msgspec.json.encode(tool)) // CHARACTERS_PER_TOKEN for tool in tools}
    heaviest = sorted(weights, key=lambda name: -weights[name])[:HEAVIEST]
    return {
        "name": info.name if info else None,
        "version": info.version if info else None,
        "title": info.title if info else None,
        "revision": client.revision,
        "instructions": client.instructions,
        "capabilities": msgspec.to_builtins(client.server_capabilities),
        "counts": {name: len(listed) for name, listed in lists.items()},
        "weight": {
            "tokens": sum(weights.values()),
            "heaviest": [{"name": name, "tokens": weights[name]} for name in heaviest],
        },
        **_linted(tools, client),
    }


def _linted(tools: list[dict[str, Any]], client: Client) -> dict[str, Any]:
    """Return the findings about the tools, or why there are none where a package is not installed."""
    info = client.server_info
    try:
        services = require_plugin("services", "checking tools")
        about = (info.name, info.version) if info else ("", "")
        return {"findings": services.lint_tools(tools, *about, client.revision)}
    except UsageError as missing:
        return {"findings": [], "unlinted": str(missing)}


_LISTS = ("tools", "resources", "resource_templates", "prompts")


async def _listed(ask: Any) -> list[Any]:
    try:
        return list(await ask())
    except MethodNotFound:
        return []


def _rows(found: dict[str, Any]) -> list[tuple[str, Any]]:
    counts = ", ".join(
        f"{count:,} {plural(name.replace('_', ' ').removesuffix('s'), count)}"
        for name, count in found["counts"].items()
    )
    weight = f"about {found['weight']['tokens']:,} tokens in the list of tools"
    capable = ", ".join(sorted(name for name, said in found["capabilities"].items() if said is not None))
    rows = [
        ("name", f"{found['name'] or '(it does not say)'} {found['version'] or ''}"),
        ("revisions", ", ".join(f"{one} (agreed)" if one == found["revision"] else one for one in found["revisions"])),
        ("instructions", found["instructions"] or "none"),
        ("capabilities", capable),
        ("offers", counts),
        ("weight", weight),
        ("findings", "not checked" if "unlinted" in found else len(found["findings"]) or "none"),
    ]
    return rows
