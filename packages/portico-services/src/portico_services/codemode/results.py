"""Conversion of tool results for scripts: a value, or an error with the tool's own message."""

from __future__ import annotations

import logging
import os
import re
from typing import Any

import msgspec
from msgspec import Raw, Struct, field

from portico import PorticoError, ProtocolError, ToolError
from portico.errors import ComponentNotFound, InternalError, InvalidParams, MethodNotFound, MissingClientCapability
from portico.extend import ERROR_META_KEY, to_json
from portico.types import CallToolResult, InputRequiredResult
from portico_services.codemode.tool_catalog import ScriptTool
from portico_services.livepython.sandbox.framing import MAX_JSON_DEPTH, is_too_deep

log = logging.getLogger("portico")

# Size of one result.
MAX_VALUE_BYTES = 4 * 2**20
MAX_ERROR_CHARS = 8_000
# Digits of one number: the sandbox's Python parses no longer ones.
MAX_NUMBER_DIGITS = 70_000
_LONG_NUMBER = re.compile(rb"[0-9]{%d}" % (MAX_NUMBER_DIGITS + 1))


class _ToolResultJson(Struct):
    content: list[Any] = []
    structuredContent: Raw = Raw(b"")
    isError: bool = False
    meta: Any = field(default=None, name="_meta")


_result_decoder = msgspec.json.Decoder(_ToolResultJson)
_input_required_decoder = msgspec.json.Decoder(InputRequiredResult)
_members = msgspec.json.Decoder(dict[str, Raw])


def outcome_from_result(tool: ScriptTool, result: Any) -> str:
    """Return the outcome of a call as JSON: `{"value": …}` or `{"error": …}`."""
    if isinstance(result, CallToolResult) and type(result.structured_content) is Raw and result.is_error is False:
        # The content blocks duplicate the structured content, so they are ignored.
        structured = bytes(result.structured_content)
        if len(structured) <= MAX_VALUE_BYTES and not is_too_deep(structured):
            return f'{{"value":{_structured_value(tool, structured)}}}'
    encoded = to_json(result)
    if len(encoded) > MAX_VALUE_BYTES:
        return error_outcome(
            f"The result of {tool.name} must be at most {MAX_VALUE_BYTES:,} bytes, got {len(encoded):,}.", "TooLarge"
        )
    if len(encoded) > MAX_NUMBER_DIGITS and _LONG_NUMBER.search(encoded) is not None:
        return error_outcome(
            f"The result of {tool.name} contains a number of more than {MAX_NUMBER_DIGITS:,} digits.", "TooLarge"
        )
    if is_too_deep(encoded, around=1):
        return error_outcome(
            f"The result of {tool.name} is nested more than {MAX_JSON_DEPTH} levels deep.", "InvalidResult"
        )
    try:
        decoded = _result_decoder.decode(encoded)
        return _tool_error(decoded) if decoded.isError else f'{{"value":{_value(tool, decoded)}}}'
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as failure:
        # Upstream servers are not trusted to send valid results.
        return error_outcome(f"The result of {tool.name} is invalid: {failure}", "InvalidResult")


def input_requests_in(result: Any) -> InputRequiredResult | None:
    """Return the result as input requests, from a local server or from the raw JSON of an upstream, or None."""
    if isinstance(result, InputRequiredResult):
        return result
    if isinstance(result, Raw) and b'"input_required"' in bytes(result):
        try:
            return _input_required_decoder.decode(result)
        except msgspec.DecodeError:
            return None  # the word occurs elsewhere in the result
    return None


def _value(tool: ScriptTool, decoded: _ToolResultJson) -> str:
    structured = bytes(decoded.structuredContent)
    if structured:
        return _structured_value(tool, structured)
    if all(isinstance(item, dict) and item.get("type") == "text" for item in decoded.content):
        return _json("\n".join(str(item.get("text", "")) for item in decoded.content))
    return _json(decoded.content)


def _structured_value(tool: ScriptTool, structured: bytes) -> str:
    return (_unwrap_result(structured) if tool.wraps_result else structured).decode()


def _unwrap_result(structured: bytes) -> bytes:
    if not structured.startswith(b"{"):
        return structured
    # Raw values, so that only the outer object is decoded.
    members = _members.decode(structured)
    return bytes(members["result"]) if members.keys() == {"result"} else structured


def _tool_error(decoded: _ToolResultJson) -> str:
    text = "\n".join(str(item.get("text", "")) for item in decoded.content if isinstance(item, dict))
    error = decoded.meta.get(ERROR_META_KEY) if isinstance(decoded.meta, dict) else None
    details = dict(error) if isinstance(error, dict) else {}
    kind, retryable = details.pop("error_type", "ToolExecutionError"), details.pop("retryable", False)
    return error_outcome(text, str(kind), details or None, retryable=retryable is True)


def outcome_from_exception(tool: ScriptTool, failure: Exception) -> str:
    """Return the outcome of a call that raised an exception."""
    if isinstance(failure, ToolError):
        kind = failure.error_type or "ToolExecutionError"
        return error_outcome(str(failure), kind, failure.details or None, retryable=failure.retryable)
    if isinstance(failure, ComponentNotFound):
        return error_outcome(failure.message, "ResourceNotFound")
    if isinstance(failure, MethodNotFound):
        # The server no longer has tools, or the tool runs only as a task and tasks are not available here.
        return error_outcome(
            f"A script cannot call {tool.name}: {failure.message.removeprefix('Method not found: ')}", "Unsupported"
        )
    if isinstance(failure, MissingClientCapability):
        return error_outcome(
            f"{tool.name} needs input from the user, which this client does not support.", "PermissionError"
        )
    if isinstance(failure, ProtocolError) and not isinstance(failure, InternalError):
        kind = "ValidationError" if isinstance(failure, InvalidParams) else "ToolExecutionError"
        return error_outcome(failure.message, kind, failure.data)
    if isinstance(failure, PorticoError):
        return error_outcome(str(failure), "ToolExecutionError")
    # Details of unexpected exceptions go to the log only; the error id connects the two.
    error_id = os.urandom(4).hex()
    log.error("error %s in %s, called by a script", error_id, tool.name, exc_info=failure)
    return error_outcome(f"Internal error (error id {error_id})", "ToolExecutionError")


def error_outcome(text: str, kind: str, details: Any = None, *, retryable: bool = False) -> str:
    error: dict[str, Any] = {"text": text[:MAX_ERROR_CHARS], "kind": kind, "retryable": retryable}
    try:
        encoded = to_json(error if details is None else {**error, "details": details})
        if is_too_deep(encoded, around=1):
            raise ValueError("nested too deeply")
        return f'{{"error":{encoded.decode()}}}'
    except (PorticoError, TypeError, ValueError, RecursionError):
        # A handler can produce text that JSON cannot encode (lone surrogates). The script still needs an answer.
        plain = {
            name: value.encode(errors="replace").decode() for name, value in error.items() if isinstance(value, str)
        }
        return f'{{"error":{_json({**error, **plain})}}}'


def _json(value: Any) -> str:
    return to_json(value).decode()
