"""`portico pins`: what has changed behind a gateway since it was approved, and the approval of it."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Iterator
from typing import Any

import msgspec

from portico.cli.logging import set_log_level
from portico.cli.output import plain_table
from portico.cli.specs import parser_for
from portico.cli.terminal_text import one_line
from portico.definitions import compare_tools, offer_changes, offers_of, read_tool
from portico.protocol.errors import UsageError
from portico.transports.event_loop import new_loop
from portico_gateway.gateway.gateway import Gateway
from portico_gateway.gateway.tool_pinning import ToolPin

LONGEST_QUOTE = 2000
# The exit status.
NOT_REACHED = 3


def run(words: list[str]) -> int:
    arguments = parser_for("pins").read(words)
    set_log_level("critical")
    gateway = Gateway.load(arguments.file, audited=False)
    if not gateway.pins.used:
        raise UsageError(f'{arguments.file} has no pins; pins = "warn" or "hold" in [gateway] or in an upstream begins')
    _leave_out(gateway, arguments.upstream)
    # Who only looks pins nothing.
    gateway.pins.recording = False
    with asyncio.Runner(loop_factory=new_loop) as runner:
        found, missing = runner.run(_pins(gateway, arguments.timeout))
    # One that is away keeps no other from being approved.
    for one in missing:
        print(f"portico: {one['alias']} cannot be looked at: {one['error'] or 'no answer'}", file=sys.stderr)
    pins = [pin for pin in found if _is_meant(pin, arguments)]
    if arguments.tool and not pins and not missing:
        raise UsageError(f"there is no tool or prompt {', '.join(arguments.tool)} that has a pin")
    status = _list(pins) if arguments.action == "list" else _show(gateway, pins, arguments, bool(missing))
    return NOT_REACHED if missing else status


def _leave_out(gateway: Gateway, meant: list[str]) -> None:
    """Others than those that are meant need not be started."""
    there = [one["alias"] for one in gateway.status()]
    for alias in meant:
        if alias not in there:
            raise UsageError(f"there is no upstream {alias!r}; there is {', '.join(there) or 'none'}")
    for alias in there:
        if meant and alias not in meant:
            gateway.remove(alias)


def _show(gateway: Gateway, pins: list[ToolPin], arguments: argparse.Namespace, partly: bool) -> int:
    changed = [pin for pin in pins if pin.state != "as pinned"]
    for pin in changed:
        sys.stdout.write("".join(f"{line}\n" for line in difference(pin)))
    if not changed:
        print("everything else is as it was approved" if partly else "everything is as it was approved")
        return 0
    return _approve(gateway, changed, arguments) if arguments.action == "approve" else 1


async def _pins(gateway: Gateway, seconds: float) -> tuple[list[ToolPin], list[dict[str, Any]]]:
    """What is pinned or there, and how those upstreams are that cannot be asked."""
    async with gateway.lifespan():
        await gateway.settle(seconds)
        return gateway.pinned(), [one for one in gateway.status() if not one["listed"] and one["pins"] != "off"]


def _is_meant(pin: ToolPin, arguments: argparse.Namespace) -> bool:
    return not arguments.tool or pin.name in arguments.tool or f"{pin.alias}.{pin.name}" in arguments.tool


def _list(pins: list[ToolPin]) -> int:
    rows = [(pin.alias, pin.kind.removesuffix("s"), one_line(pin.name), pin.state) for pin in pins]
    sys.stdout.write(plain_table(("UPSTREAM", "KIND", "NAME", "STATE"), rows))
    return 1 if any(pin.state in ("changed", "new") for pin in pins) else 0


def _approve(gateway: Gateway, changed: list[ToolPin], arguments: argparse.Namespace) -> int:
    if not arguments.yes and not _agrees(len(changed)):
        print("nothing was approved", file=sys.stderr)
        return 1
    for pin in changed:
        gateway.pins.approve(pin)
    gateway.pins.write()
    print(f"{gateway.pins.path}: {len(changed)} approved")
    return 0


def _agrees(count: int) -> bool:
    if not sys.stdin.isatty():
        raise UsageError("there is no terminal to ask at: with --yes what was shown is approved")
    said = input(f"Approve {'this' if count == 1 else f'these {count}'}? [y/N] ")
    return said.strip().lower() in ("y", "yes")


# What has changed

# The members whose changes are explained one by one.
_IN_CONTRACT = ("name", "inputSchema", "outputSchema", "annotations", "execution", "arguments")


def difference(pin: ToolPin) -> Iterator[str]:
    """The lines that show it: what it means, and the words as they were and are."""
    yield f"{one_line(f'{pin.alias}.{pin.name}')}: {pin.state}"
    if pin.was is not None and pin.now is not None:
        yield from (f"  {line}" for line in _explanation(pin.kind, pin.was, pin.now))
    for member in dict.fromkeys(("title", "description", *(pin.was or {}), *(pin.now or {}))):
        was, now = ((said or {}).get(member) for said in (pin.was, pin.now))
        if was != now and member not in _IN_CONTRACT:
            name = one_line(member)
            yield from (f"  {name} {word} {_quoted(said)}" for word, said in (("was", was), ("is ", now)) if said)


def _explanation(kind: str, was: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Return one line for each change of a definition: its level, its place, and what it means."""
    changes: list[tuple[str, str, str]] = []
    if kind == "tools":
        for tool in compare_tools(read_tool(was), read_tool(now)):
            place = "" if tool.place == "tool" else tool.place
            changes.append(("words" if tool.is_words else tool.level, _joined(place, tool.path), tool.reason))
    else:
        for prompt in offer_changes(offers_of("prompt", [was]), offers_of("prompt", [now])):
            level = "words" if prompt.is_words else prompt.level
            changes.append((level, _joined(prompt.offer.kind, prompt.path), prompt.said))
    if not changes:
        changes.append(("patch", "", "its definition is written otherwise"))
    return [f"{level}: {f'{where}: ' if where else ''}{one_line(reason)}" for level, where, reason in changes]


def _joined(*parts: str) -> str:
    return ".".join(part for part in parts if part)


def _quoted(text: object) -> str:
    said = text if isinstance(text, str) else msgspec.json.encode(text, order="sorted").decode()
    return repr(one_line(said, LONGEST_QUOTE))
