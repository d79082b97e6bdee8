"""Result of a run for the client, limited in size; the full output is available as a resource."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Struct

from portico import ToolResult
from portico.types import ResourceLink
from portico_services.codemode.journal import RunStore, store_output
from portico_services.codemode.script_run import RunOutcome

MAX_FAILURE_CHARS = 16_000


class RunResult(Struct, omit_defaults=True):
    """Result of a script."""

    calls: Annotated[int, "Number of tool calls"]
    value: Annotated[Any, "Value of the script, if it can be represented in JSON"] = None
    output: Annotated[str, "Printed output"] = ""
    rest: Annotated[str, "URI of the full output, if it was truncated"] = ""
    resumed: Annotated[bool, "Whether the run resumed an interrupted one: its completed calls were not repeated"] = (
        False
    )
    unknown: Annotated[list[str], "Tools whose calls were interrupted, with unknown outcome"] = []


class _ScriptEnd(Struct):
    """Final message of the sandboxed script. It is untrusted: only its structure is validated."""

    value: str | None = None
    text: str | None = None
    type: str | None = None
    failure: str | None = None
    error: Any = None


class PresentedResult(Struct):
    """A run's result before it is limited in size."""

    result: RunResult
    # As JSON text, if the value is serializable.
    value: str | None = None
    text: str | None = None
    failure: str | None = None
    dropped: int = 0
    kind: str = ""
    details: dict[str, Any] = {}


def decode_end(end: RunOutcome, calls: int, unknown: list[str], *, resumed: bool) -> PresentedResult:
    result = RunResult(calls, output=end.output, resumed=resumed, unknown=unknown)
    if end.ended is not None:
        return PresentedResult(result, failure=end.ended, dropped=end.dropped, kind="RunEnded")
    try:
        message = msgspec.json.decode(end.result, type=_ScriptEnd)
        value = None if message.value is None else msgspec.json.decode(message.value)
    except (msgspec.DecodeError, RecursionError):
        return PresentedResult(result, failure="The script ended with an invalid message.", kind="RunEnded")
    result.value = value
    failure = None if message.failure is None else message.failure[:MAX_FAILURE_CHARS]
    error = message.error if isinstance(message.error, dict) else {}
    kind = str(error.get("kind") or "ScriptError")[:100] if failure is not None else ""
    return PresentedResult(result, message.value, message.text, failure, end.dropped, kind, _details(error))


def _details(error: dict[str, Any]) -> dict[str, Any]:
    """Return the structured details of the error that ended a script."""
    return {name: error[name] for name in ("tool", "details") if error.get(name) is not None}


async def limit_output(presented: PresentedResult, max_bytes: int, store: RunStore, owner: str) -> ToolResult:
    """Return the tool result, replacing output beyond `max_bytes` with a link to a resource."""
    result = presented.result
    blocks: list[Any] = list(_result_text(presented))
    size = sum(len(block.encode()) for block in blocks)
    if size > max_bytes or presented.dropped:
        full_text = "\n".join(blocks)
        id = await store_output(store, owner, "text/plain", full_text)
        result.rest = f"run://output/{id}"
        # The full text is in the resource; repeating a part of it in the structured content would double the tokens.
        result.value, result.output = None, ""
        cut = full_text.encode()[:max_bytes].decode(errors="ignore")
        note = f"\n[… {size - len(cut.encode()):,} more bytes: read {result.rest}]"
        link = ResourceLink(uri=result.rest, name="output", mime_type="text/plain", size=len(full_text.encode()))
        blocks = [cut + note, link]
    return ToolResult(content=blocks or ["(no value)"], structured=result, is_error=presented.failure is not None)


def _result_text(presented: PresentedResult) -> list[str]:
    results: list[str] = []
    result = presented.result
    if result.resumed:
        results.append("[Resumed an interrupted run; its completed calls were not repeated.]")
    if result.unknown:
        results.append(f"[Outcome unknown: {', '.join(result.unknown)}.]")
    if result.output:
        results.append(result.output)
    if presented.dropped:
        results.append(f"[… {presented.dropped:,} more bytes were printed]")
    if presented.failure is not None:
        results.append(f"Error: {presented.failure}")
    elif presented.value is not None and presented.value != "null":
        results.append(presented.value)
    elif presented.text is not None:
        results.append(presented.text)
    return results
