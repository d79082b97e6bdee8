"""`portico pins`: list, compare and approve pinned tool definitions."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Iterator
from typing import Any

import msgspec

from portico.cli.logging import configure_logging
from portico.cli.output import Printer
from portico.cli.specs import parser_for
from portico.cli.terminal_text import to_single_line
from portico.definitions import compare_tools, components_from_list, diff_components, read_tool
from portico.protocol.errors import UsageError
from portico.transports.event_loop import new_event_loop
from portico_gateway.gateway.gateway import Gateway
from portico_gateway.gateway.tool_pinning import ToolPin
from portico_gateway.plugin import load_gateway

MAX_QUOTE_CHARS = 2000
# Exit status if an upstream could not be reached.
EXIT_UNREACHABLE = 3


def run(words: list[str]) -> int:
    arguments = parser_for("pins").parse(words)
    configure_logging("critical")
    gateway = load_gateway(arguments.file, audited=False)
    if not gateway.pins.is_used:
        raise UsageError(
            f'{arguments.file} has no pins; enable them with pinning = "warn" or "enforce" in [gateway] or in an '
            "upstream"
        )
    _leave_out(gateway, arguments.upstream)
    # Only an approval writes pins.
    gateway.pins.is_recording = False
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        pinned, missing = runner.run(_pins(gateway, arguments.timeout))
    # An unreachable upstream does not prevent the approval of others.
    for item in missing:
        problem = to_single_line(item["error"] or "no response")
        print(f"portico: {item['alias']} is unreachable: {problem}", file=sys.stderr)
    pins = [pin for pin in pinned if _is_meant(pin, arguments)]
    if arguments.tool and not pins and not missing:
        raise UsageError(f"no pinned tool or prompt named {', '.join(arguments.tool)}")
    status = (
        _list(pins, arguments.format)
        if arguments.action == "list"
        else _print_pins(gateway, pins, arguments, bool(missing))
    )
    return EXIT_UNREACHABLE if missing else status


def _leave_out(gateway: Gateway, selected: list[str]) -> None:
    """Remove the upstreams that are not selected, so that they are not started.

    Raises UsageError for an unknown alias.
    """
    aliases = [item["alias"] for item in gateway.status()]
    for alias in selected:
        if alias not in aliases:
            raise UsageError(f"unknown upstream {alias!r} (expected one of {', '.join(aliases) or 'none'})")
    for alias in aliases:
        if selected and alias not in selected:
            gateway.remove_upstream(alias)


def _print_pins(gateway: Gateway, pins: list[ToolPin], arguments: argparse.Namespace, partly: bool) -> int:
    changed = [pin for pin in pins if pin.status != "as pinned"]
    for pin in changed:
        sys.stdout.write("".join(f"{line}\n" for line in difference(pin)))
    if not changed:
        print("all other definitions match the approved ones" if partly else "all definitions match the approved ones")
        return 0
    return _approve(gateway, changed, arguments) if arguments.action == "approve" else 1


async def _pins(gateway: Gateway, seconds: float) -> tuple[list[ToolPin], list[dict[str, Any]]]:
    """Return the pins, and the status of upstreams that could not be listed."""
    async with gateway.lifespan():
        await gateway.wait_until_listed(seconds)
        return gateway.list_pins(), [
            item for item in gateway.status() if not item["listed"] and item["pinning"] != "off"
        ]


def _is_meant(pin: ToolPin, arguments: argparse.Namespace) -> bool:
    return not arguments.tool or pin.name in arguments.tool or f"{pin.alias}.{pin.name}" in arguments.tool


def _list(pins: list[ToolPin], form: str | None) -> int:
    keys = ("upstream", "kind", "name", "state")
    items = [(pin.alias, pin.kind.removesuffix("s"), pin.name, pin.status) for pin in pins]
    printer = Printer(form)
    if printer.is_json:
        printer.json_list(dict(zip(keys, item, strict=True)) for item in items)
    else:
        printer.print_table([key.upper() for key in keys], items)
    printer.flush()
    return 1 if any(pin.status in ("changed", "new") for pin in pins) else 0


def _approve(gateway: Gateway, changed: list[ToolPin], arguments: argparse.Namespace) -> int:
    if not arguments.yes and not _confirm(len(changed)):
        print("nothing was approved", file=sys.stderr)
        return 1
    for pin in changed:
        gateway.pins.approve(pin)
    gateway.pins.save()
    print(f"{gateway.pins.path}: {len(changed)} approved")
    return 0


def _confirm(count: int) -> bool:
    if not sys.stdin.isatty():
        raise UsageError("no terminal for the confirmation: pass --yes to approve the changes shown")
    answer = input(f"Approve {'this' if count == 1 else f'these {count}'}? [y/N] ")
    return answer.strip().lower() in ("y", "yes")


# Differences

# Members whose changes are explained one by one.
_IN_CONTRACT = ("name", "inputSchema", "outputSchema", "annotations", "execution", "arguments")


def difference(pin: ToolPin) -> Iterator[str]:
    """Yield the lines that describe a changed definition: the explanation of each change, and old and new texts."""
    yield f"{to_single_line(f'{pin.alias}.{pin.name}')}: {pin.status}"
    if pin.was is not None and pin.now is not None:
        yield from (f"  {line}" for line in _explanation(pin.kind, pin.was, pin.now))
    for member in dict.fromkeys(("title", "description", *(pin.was or {}), *(pin.now or {}))):
        before, now = ((definition or {}).get(member) for definition in (pin.was, pin.now))
        if before != now and member not in _IN_CONTRACT:
            name = to_single_line(member)
            yield from (
                f"  {name} {word} {_quote_value(definition)}"
                for word, definition in (("was", before), ("is ", now))
                if definition
            )


def _explanation(kind: str, before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Return one line for each change of a definition: its level, location and meaning."""
    changes: list[tuple[str, str, str]] = []
    if kind == "tools":
        for tool in compare_tools(read_tool(before), read_tool(now)):
            location = "" if tool.place == "tool" else tool.place
            changes.append(("words" if tool.is_words else tool.level, _join_path(location, tool.path), tool.reason))
    else:
        for prompt in diff_components(components_from_list("prompt", [before]), components_from_list("prompt", [now])):
            level = "words" if prompt.is_words else prompt.level
            changes.append((level, _join_path(prompt.offer.kind, prompt.path), prompt.message))
    if not changes:
        changes.append(("patch", "", "the definition changed in a way that does not affect callers"))
    return [f"{level}: {f'{where}: ' if where else ''}{to_single_line(reason)}" for level, where, reason in changes]


def _join_path(*parts: str) -> str:
    return ".".join(part for part in parts if part)


def _quote_value(text: object) -> str:
    quoted = text if isinstance(text, str) else msgspec.json.encode(text, order="sorted").decode()
    return repr(to_single_line(quoted, MAX_QUOTE_CHARS))
