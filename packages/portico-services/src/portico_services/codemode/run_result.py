"""What a run came to, as the client is told: not more than it wants, and the rest where it can be read."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Struct

from portico import ToolResult
from portico.extend import ResourceLink
from portico_services.codemode.journal import RunStore, keep_output
from portico_services.codemode.script_run import RunEnd

LONGEST_FAILURE = 16_000


class RunResult(Struct, omit_defaults=True):
    """What a script came to."""

    calls: Annotated[int, "How many tools were called"]
    value: Annotated[Any, "The value of the script, if it is JSON"] = None
    output: Annotated[str, "What was printed"] = ""
    rest: Annotated[str, "Where all of it can be read, if it was too long"] = ""
    resumed: Annotated[
        bool, "Whether it went on with a run that was cut off: what that had done was not done again"
    ] = False
    unknown: Annotated[
        list[str], "Tools that were called when the server was stopped: whether they did anything is not known"
    ] = []


class _ScriptEnd(Struct):
    """What the jail says. It is not believed: only its form is looked at."""

    value: str | None = None
    text: str | None = None
    type: str | None = None
    failure: str | None = None
    error: Any = None


class ShownEnd(Struct):
    """What there is to tell."""

    result: RunResult
    # In JSON, if the value is that.
    value: str | None = None
    text: str | None = None
    failure: str | None = None
    dropped: int = 0
    kind: str = ""
    details: dict[str, Any] = {}


def read(end: RunEnd, calls: int, unknown: list[str], *, resumed: bool) -> ShownEnd:
    result = RunResult(calls, output=end.output, resumed=resumed, unknown=unknown)
    if end.ended is not None:
        return ShownEnd(result, failure=end.ended, dropped=end.dropped, kind="RunEnded")
    try:
        said = msgspec.json.decode(end.result, type=_ScriptEnd)
        value = None if said.value is None else msgspec.json.decode(said.value)
    except (msgspec.DecodeError, RecursionError):
        return ShownEnd(result, failure="It said something that no script of ours says.", kind="RunEnded")
    result.value = value
    failure = None if said.failure is None else said.failure[:LONGEST_FAILURE]
    known = said.error if isinstance(said.error, dict) else {}
    kind = str(known.get("kind") or "ScriptError")[:100] if failure is not None else ""
    return ShownEnd(result, said.value, said.text, failure, end.dropped, kind, _details(known))


def _details(error: dict[str, Any]) -> dict[str, Any]:
    """What a program is told of the refusal that ended a script."""
    return {name: error[name] for name in ("tool", "details") if error.get(name) is not None}


async def bounded(shown: ShownEnd, most: int, store: RunStore, owner: str) -> ToolResult:
    """The result, and a link to what of it was too long."""
    result = shown.result
    blocks: list[Any] = list(_words(shown))
    size = sum(len(one.encode()) for one in blocks)
    if size > most or shown.dropped:
        whole = "\n".join(blocks)
        id = await keep_output(store, owner, "text/plain", whole)
        result.rest = f"run://output/{id}"
        result.value, result.output = None, ""
        cut = whole.encode()[:most].decode(errors="ignore")
        note = f"\n[… {size - len(cut.encode()):,} more bytes: read {result.rest}]"
        link = ResourceLink(uri=result.rest, name="output", mime_type="text/plain", size=len(whole.encode()))
        blocks = [cut + note, link]
    return ToolResult(content=blocks or ["(no value)"], structured=result, is_error=shown.failure is not None)


def _words(shown: ShownEnd) -> list[str]:
    found: list[str] = []
    result = shown.result
    if result.resumed:
        found.append("[It went on with a run that was cut off; what that had done was not done again.]")
    if result.unknown:
        found.append(f"[It is not known whether these were done: {', '.join(result.unknown)}.]")
    if result.output:
        found.append(result.output)
    if shown.dropped:
        found.append(f"[… {shown.dropped:,} more bytes were printed]")
    if shown.failure is not None:
        found.append(f"Error: {shown.failure}")
    elif shown.value is not None and shown.value != "null":
        found.append(shown.value)
    elif shown.text is not None:
        found.append(shown.text)
    return found
