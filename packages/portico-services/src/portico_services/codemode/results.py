"""What a tool said, as a script learns of it: a value, or an error in the tool's own words."""

from __future__ import annotations

import logging
import os
import re
from typing import Any

import msgspec
from msgspec import Raw, Struct, field

from portico import Error, ProtocolError, ToolError
from portico.extend import (
    ERROR,
    CallToolResult,
    InputRequiredResult,
    InternalError,
    InvalidParams,
    MethodNotFound,
    MissingCapability,
    Unknown,
    to_json,
)
from portico_services.codemode.tool_catalog import ScriptTool
from portico_services.livepython.sandbox.framing import DEEPEST_JSON, is_too_deep

log = logging.getLogger("portico")

# Of one result.
LONGEST_VALUE = 4 * 2**20
LONGEST_WORDS = 8_000
# Of one number, in digits: the jail's Python reads no longer ones.
LONGEST_NUMBER = 70_000
_LONG_NUMBER = re.compile(rb"[0-9]{%d}" % (LONGEST_NUMBER + 1))


class _SaidResult(Struct):
    content: list[Any] = []
    structuredContent: Raw = Raw(b"")
    isError: bool = False
    meta: Any = field(default=None, name="_meta")


_said = msgspec.json.Decoder(_SaidResult)
_asking = msgspec.json.Decoder(InputRequiredResult)
_members = msgspec.json.Decoder(dict[str, Raw])


def outcome_of(tool: ScriptTool, result: Any) -> str:
    """The outcome of a call as JSON: `{"value": …}` or `{"error": …}`."""
    if isinstance(result, CallToolResult) and type(result.structured_content) is Raw and result.is_error is False:
        # What stands beside it says the same.
        structured = bytes(result.structured_content)
        if len(structured) <= LONGEST_VALUE and not is_too_deep(structured):
            return f'{{"value":{_structured(tool, structured)}}}'
    encoded = to_json(result)
    if len(encoded) > LONGEST_VALUE:
        return error(f"The result of {tool.name} has {len(encoded):,} bytes: more than a script can take.", "TooLarge")
    if len(encoded) > LONGEST_NUMBER and _LONG_NUMBER.search(encoded) is not None:
        return error(f"The result of {tool.name} has a number of more than {LONGEST_NUMBER:,} digits.", "TooLarge")
    if is_too_deep(encoded, around=1):
        return error(f"The result of {tool.name} is nested more than {DEEPEST_JSON} deep.", "InvalidResult")
    try:
        said = _said.decode(encoded)
        return _refused(said) if said.isError else f'{{"value":{_value(tool, said)}}}'
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as failure:
        # An upstream can say anything.
        return error(f"The result of {tool.name} cannot be read: {failure}", "InvalidResult")


def questions_in(result: Any) -> InputRequiredResult | None:
    """A result that asks something, from a server of ours or as an upstream has written it."""
    if isinstance(result, InputRequiredResult):
        return result
    if isinstance(result, Raw) and b'"input_required"' in bytes(result):
        try:
            return _asking.decode(result)
        except msgspec.DecodeError:
            return None  # the word stands somewhere else in it
    return None


def _value(tool: ScriptTool, said: _SaidResult) -> str:
    structured = bytes(said.structuredContent)
    if structured:
        return _structured(tool, structured)
    if all(isinstance(one, dict) and one.get("type") == "text" for one in said.content):
        return _json("\n".join(str(one.get("text", "")) for one in said.content))
    return _json(said.content)


def _structured(tool: ScriptTool, structured: bytes) -> str:
    return (_unwrapped(structured) if tool.wraps else structured).decode()


def _unwrapped(structured: bytes) -> bytes:
    if not structured.startswith(b"{"):
        return structured
    members = _members.decode(structured)
    return bytes(members["result"]) if members.keys() == {"result"} else structured


def _refused(said: _SaidResult) -> str:
    text = "\n".join(str(one.get("text", "")) for one in said.content if isinstance(one, dict))
    known = said.meta.get(ERROR) if isinstance(said.meta, dict) else None
    details = dict(known) if isinstance(known, dict) else {}
    kind, retryable = details.pop("error_type", "ToolExecutionError"), details.pop("retryable", False)
    return error(text, str(kind), details or None, retryable=retryable is True)


def outcome_of_failure(tool: ScriptTool, failure: Exception) -> str:
    """What a script learns of a call that has no result."""
    if isinstance(failure, ToolError):
        kind = failure.kind or "ToolExecutionError"
        return error(str(failure), kind, failure.details or None, retryable=failure.retryable)
    if isinstance(failure, Unknown):
        return error(failure.message, "ResourceNotFound")
    if isinstance(failure, MethodNotFound):
        # Its server has no tools any more; or it runs only as a task, and there are none here.
        return error(
            f"A script cannot call {tool.name}: {failure.message.removeprefix('Method not found: ')}", "Unsupported"
        )
    if isinstance(failure, MissingCapability):
        return error(f"{tool.name} has to ask something that this client has no way to answer.", "PermissionError")
    if isinstance(failure, ProtocolError) and not isinstance(failure, InternalError):
        kind = "ValidationError" if isinstance(failure, InvalidParams) else "ToolExecutionError"
        return error(failure.message, kind, failure.data)
    if isinstance(failure, Error):
        return error(str(failure), "ToolExecutionError")
    error_id = os.urandom(4).hex()
    log.error("error %s in %s, called by a script", error_id, tool.name, exc_info=failure)
    return error(f"Internal error (error id {error_id})", "ToolExecutionError")


def error(text: str, kind: str, details: Any = None, *, retryable: bool = False) -> str:
    said: dict[str, Any] = {"text": text[:LONGEST_WORDS], "kind": kind, "retryable": retryable}
    try:
        encoded = to_json(said if details is None else {**said, "details": details})
        if is_too_deep(encoded, around=1):
            raise ValueError("nested too deeply")
        return f'{{"error":{encoded.decode()}}}'
    except (Error, TypeError, ValueError, RecursionError):
        # A body can say what JSON cannot. The script waits for an answer all the same.
        plain = {name: one.encode(errors="replace").decode() for name, one in said.items() if isinstance(one, str)}
        return f'{{"error":{_json({**said, **plain})}}}'


def _json(value: Any) -> str:
    return to_json(value).decode()
