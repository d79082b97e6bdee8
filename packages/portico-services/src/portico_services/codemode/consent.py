"""The agreement of a person to what a script is about to change: asked for once, with a list of what that is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Literal, Protocol

import msgspec

from portico import Context, ProtocolError, ToolError
from portico_services.codemode.journal import Journal, digest_of
from portico_services.codemode.tool_catalog import ScriptTool, ToolTable

# How writes are treated: a person is asked, the rules of the server are enough, or there are none.
Writes = Literal["ask", "allow", "refuse"]

MOST_SHOWN = 20
LONGEST_LINE = 160
LONGEST_VALUE = 40

Question = Callable[[], AbstractAsyncContextManager[None]]


class WantedCall(Protocol):
    """A call that the script wants made."""

    n: int
    arguments: msgspec.Raw


class Consent:
    """What the person has said about one run."""

    def __init__(self, ctx: Context, journal: Journal, code: str, writes: Writes, most_calls: int) -> None:
        self._ctx, self._journal, self._code = ctx, journal, code
        self._writes, self._most_calls = writes, most_calls
        self._refused: dict[str, ToolError] = {}
        self._lock = asyncio.Lock()

    async def agree(
        self, table: ToolTable, calls: Sequence[tuple[WantedCall, ScriptTool]], question: Question
    ) -> dict[int, ToolError]:
        """Which of these calls are refused, by their number. `question` stands around one to a person."""
        if self._writes == "allow":
            return {}
        if self._writes == "refuse":
            return {one.n: _no_writes(tool) for one, tool in calls}
        async with self._lock:
            new = [(one, tool) for one, tool in calls if not self._is_known(tool)]
            if new:
                named = [tool for tool in table.named_in(self._code) if not tool.reads and not self._is_known(tool)]
                # As they are: a tool that is another when the run goes on is asked about again.
                covered = dict.fromkeys(tool.digest for tool in (*(tool for _, tool in new), *named))
                async with question():
                    refusal = await self._ask(self._listed(new, named), f"writes-{digest_of(*covered)[:16]}")
                if refusal is None:
                    self._journal.approve(list(covered))
                else:
                    self._refused |= dict.fromkeys(covered, refusal)
        return {one.n: self._refused[tool.digest] for one, tool in calls if tool.digest in self._refused}

    def _is_known(self, tool: ScriptTool) -> bool:
        return tool.digest in self._journal.approved or tool.digest in self._refused

    async def _ask(self, text: str, key: str) -> ToolError | None:
        """None: the person agrees. By its key a script that is run again finds the answer."""
        # A person may take longer than a client waits.
        await self._ctx.detach()
        try:
            said = await self._ctx.elicit(text, None, key=key)
        except ProtocolError:
            return ToolError(
                "The script is about to change something. A person has to agree to that, and this client has no way "
                "to ask one.",
                kind="PermissionError",
            )
        if said.action == "accept":
            return None
        return ToolError("The person did not agree to what the script is about to change.", kind="PermissionError")

    def _listed(self, new: Sequence[tuple[WantedCall, ScriptTool]], named: Sequence[ScriptTool]) -> str:
        lines = [f"- {_call(one, tool)}" for one, tool in new[:MOST_SHOWN]]
        if len(new) > MOST_SHOWN:
            lines.append(f"- and {len(new) - MOST_SHOWN} more")
        others = sorted({tool.path for tool in named} - {tool.path for _, tool in new})
        later = f"\nIt may also use: {', '.join(others[:MOST_SHOWN])}." if others else ""
        return (
            f"A script is about to change something:\n{chr(10).join(lines)}{later}\n"
            f"If you agree, it goes on with these tools without asking again, for at most {self._most_calls} calls."
        )


def _no_writes(tool: ScriptTool) -> ToolError:
    return ToolError(
        f"{tool.name} may change something, and scripts here only read: call it by itself.", kind="PermissionError"
    )


def _call(one: WantedCall, tool: ScriptTool) -> str:
    """One call on one line, with nothing in it that a reader could be misled by."""
    arguments: Any = msgspec.json.decode(one.arguments)
    given = arguments.items() if isinstance(arguments, dict) else ()
    said = ", ".join(f"{_plain(name)}={_shown(value)}" for name, value in given)
    risk = " (may destroy something)" if tool.hints.destructive_hint is True else ""
    return f"{_plain(tool.path)}({_cut(said, LONGEST_LINE)}){risk}"


def _shown(value: Any) -> str:
    return _cut(_plain(msgspec.json.encode(value).decode()), LONGEST_VALUE)


def _plain(text: str) -> str:
    return "".join(one if one.isprintable() else " " for one in text)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
