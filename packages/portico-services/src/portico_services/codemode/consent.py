"""User consent to the writes of a script, requested once with a list of the calls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Literal, Protocol

import msgspec

from portico import Context, ProtocolError, ToolError
from portico.text import truncate
from portico_services.codemode.journal import RunJournal, digest
from portico_services.codemode.tool_catalog import ScriptTool, ToolCatalog

# Policy for writes: ask the user, rely on the server's own rules, or reject them.
WritePolicy = Literal["ask", "allow", "deny"]

# Limits of the question's text: users do not read longer ones, and arguments come from an untrusted script.
MAX_LISTED_CALLS = 20
MAX_LINE_CHARS = 160
MAX_VALUE_CHARS = 40

ElicitationScope = Callable[[], AbstractAsyncContextManager[None]]


class PendingCall(Protocol):
    """A call that the script requests."""

    n: int
    arguments: msgspec.Raw


class WriteConsent:
    """The user's decisions about one run."""

    def __init__(self, ctx: Context, journal: RunJournal, code: str, writes: WritePolicy, max_calls: int) -> None:
        self._ctx, self._journal, self._code = ctx, journal, code
        self._writes, self._max_calls = writes, max_calls
        self._refused: dict[str, ToolError] = {}
        self._lock = asyncio.Lock()

    async def require(
        self, table: ToolCatalog, calls: Sequence[tuple[PendingCall, ScriptTool]], question: ElicitationScope
    ) -> dict[int, ToolError]:
        """Return the rejected calls with their errors, by call number. `question` is entered around an elicitation."""
        if self._writes == "allow":
            return {}
        if self._writes == "deny":
            return {call.n: _write_denied(tool) for call, tool in calls}
        # One elicitation at a time: a concurrent call may be covered by the answer to this one.
        async with self._lock:
            new = [(call, tool) for call, tool in calls if not self._is_approved(tool)]
            if new:
                named = [
                    tool
                    for tool in table.tools_used_in(self._code)
                    if not tool.is_read_only and not self._is_approved(tool)
                ]
                # By digest: a tool that has changed when the run continues needs consent again.
                covered = dict.fromkeys(tool.digest for tool in (*(tool for _, tool in new), *named))
                async with question():
                    refusal = await self._elicit(self._describe_calls(new, named), f"writes-{digest(*covered)[:16]}")
                if refusal is None:
                    self._journal.approve(list(covered))
                else:
                    self._refused |= dict.fromkeys(covered, refusal)
        return {call.n: self._refused[tool.digest] for call, tool in calls if tool.digest in self._refused}

    def _is_approved(self, tool: ScriptTool) -> bool:
        # A refusal is remembered for the run as well, so that a script cannot wear the user down by retrying.
        return tool.digest in self._journal.approved or tool.digest in self._refused

    async def _elicit(self, text: str, key: str) -> ToolError | None:
        """Ask the user and return None on consent, else the error. A script that is run again finds the answer by
        `key`.
        """
        # The user may take longer than the client's request timeout.
        await self._ctx.continue_as_task()
        try:
            answer = await self._ctx.elicit(text, None, key=key)
        except ProtocolError:
            return ToolError(
                "This script calls tools that may change data, which needs the user's consent, and this client "
                "does not support elicitation.",
                error_type="PermissionError",
            )
        if answer.action == "accept":
            return None
        return ToolError(
            "The user declined the calls of this script that may change data.", error_type="PermissionError"
        )

    def _describe_calls(self, new: Sequence[tuple[PendingCall, ScriptTool]], named: Sequence[ScriptTool]) -> str:
        lines = [f"- {_format_call(call, tool)}" for call, tool in new[:MAX_LISTED_CALLS]]
        if len(new) > MAX_LISTED_CALLS:
            lines.append(f"- and {len(new) - MAX_LISTED_CALLS} more")
        others = sorted({tool.path for tool in named} - {tool.path for _, tool in new})
        later = f"\nIt may also use: {', '.join(others[:MAX_LISTED_CALLS])}." if others else ""
        return (
            f"A script is about to call tools that may change data:\n{chr(10).join(lines)}{later}\n"
            f"If you agree, it may use these tools without asking again, for at most {self._max_calls} calls."
        )


def _write_denied(tool: ScriptTool) -> ToolError:
    return ToolError(
        f"{tool.name} may change data, and scripts on this server may only read: call the tool directly.",
        error_type="PermissionError",
    )


def _format_call(call: PendingCall, tool: ScriptTool) -> str:
    """Format a call on one line, without control characters that could mislead the reader."""
    arguments: Any = msgspec.json.decode(call.arguments)
    values = arguments.items() if isinstance(arguments, dict) else ()
    formatted = ", ".join(f"{_replace_unprintable(name)}={_format_value(value)}" for name, value in values)
    risk = " (destructive)" if tool.hints.destructive_hint is True else ""
    return f"{_replace_unprintable(tool.path)}({truncate(formatted, MAX_LINE_CHARS)}){risk}"


def _format_value(value: Any) -> str:
    return truncate(_replace_unprintable(msgspec.json.encode(value).decode()), MAX_VALUE_CHARS)


def _replace_unprintable(text: str) -> str:
    return "".join(item if item.isprintable() else " " for item in text)
