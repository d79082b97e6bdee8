"""Debug log of requests, enabled by `PORTICO_LOG_LEVEL=debug`. While disabled, it is not part of the call path.

It writes six kinds of lines: incoming message, handler invocation, tool discovery, execution result, validation error
and performance. Text from clients and handlers is truncated and escaped to a single line.
"""

from __future__ import annotations

import logging
from typing import Any

import msgspec

from portico.protocol import jsonrpc
from portico.protocol.errors import InvalidParams, InvalidRequest, ParseError, ProtocolError, ToolError
from portico.protocol.jsonrpc import JsonRpcMessage
from portico.protocol.methods import LIST_MEMBERS, METHODS
from portico.protocol.tools import ERROR_META_KEY
from portico.rpc.call import Call
from portico.rpc.observers import Observer
from portico.text import escape_unprintable

log = logging.getLogger("portico.trace")

# Enough to recognize a call. Arguments may contain whole files.
MAX_LOGGED_CHARS = 500
MAX_LOGGED_NAMES = 50

_INVALID = (InvalidParams, InvalidRequest, ParseError)
# Error types of tools that reject their arguments, in results and in exceptions.
_INVALID_KINDS = frozenset({"ValidationError", "InvalidParams"})


class DebugLog(Observer):
    """Logs every message with its result and duration."""

    def on_request_start(self, call: Call) -> None:
        log.debug(
            "incoming message: %s id=%r params=%s", _to_single_line(call.method), call.id, _truncate(bytes(call.params))
        )
        log.debug("handler invocation: %s at %s", _describe_call(call), call.protocol_version or "no protocol version")

    def on_request_end(self, call: Call, result: Any, failure: BaseException | None, seconds: float) -> None:
        if failure is not None:
            _log_failure(call, failure)
        elif result is not None:
            _log_result(call, msgspec.json.decode(jsonrpc.encode(result)))
        log.debug("performance: %s took %.3f ms", _describe_call(call), seconds * 1000)

    def notify(self, call: Call) -> None:
        log.debug(
            "incoming message: %s, a notification, params=%s",
            _to_single_line(call.method),
            _truncate(bytes(call.params)),
        )

    def on_rejected_message(self, frame: JsonRpcMessage, failure: ProtocolError, address: str | None) -> None:
        log.debug(
            "incoming message: %s id=%r params=%s",
            _to_single_line(frame.method),
            frame.id,
            _truncate(bytes(frame.params)),
        )
        log.debug("validation error: %s: %s", _to_single_line(frame.method), _to_single_line(failure.message))


def _log_failure(call: Call, failure: BaseException) -> None:
    if isinstance(failure, _INVALID) or (isinstance(failure, ToolError) and failure.error_type in _INVALID_KINDS):
        log.debug("validation error: %s: %s", _describe_call(call), _to_single_line(failure))
    elif isinstance(failure, ProtocolError):
        code = failure.code_for(call.protocol_version)
        log.debug("execution result: %s failed with %d: %s", _describe_call(call), code, _to_single_line(failure))
    elif isinstance(failure, ToolError):
        kind = failure.error_type or type(failure).__name__
        log.debug("execution result: %s failed, %s: %s", _describe_call(call), kind, _to_single_line(failure))
    else:
        log.debug("execution result: %s raised %s", _describe_call(call), type(failure).__name__)


def _log_result(call: Call, result: Any) -> None:
    listed = LIST_MEMBERS.get(call.method)
    if listed is not None and isinstance(result, dict) and isinstance(result.get(listed[0]), list):
        names = [str(item.get(listed[1])) for item in result[listed[0]] if isinstance(item, dict)]
        more = ", …" if len(names) > MAX_LOGGED_NAMES else ""
        kind = "tool discovery" if call.method == "tools/list" else "execution result"
        text = _to_single_line(", ".join(names[:MAX_LOGGED_NAMES]), 4 * MAX_LOGGED_CHARS)
        log.debug("%s: %s returned %d: %s%s", kind, call.method, len(names), text, more)
    elif call.method == "tools/call" and isinstance(result, dict) and result.get("isError"):
        error = (result.get("_meta") or {}).get(ERROR_META_KEY) or result.get("error") or {}
        kind = str(error.get("error_type") or error.get("code") or "ToolExecutionError")
        text = _truncate(msgspec.json.encode(result.get("content")))
        if kind in _INVALID_KINDS:
            log.debug("validation error: %s: %s", _describe_call(call), text)
        else:
            log.debug("execution result: %s failed, %s: %s", _describe_call(call), _to_single_line(kind), text)
    else:
        log.debug("execution result: %s returned %s", _describe_call(call), _truncate(msgspec.json.encode(result)))


def _describe_call(call: Call) -> str:
    """Return the method and the tool, prompt or resource that the call names."""
    row = METHODS.get(call.method)
    name = row.get_name(call.read[1]) if row is not None and call.read is not None else None
    return _to_single_line(call.method if name is None else f"{call.method} {name}")


def _truncate(data: bytes) -> str:
    text = _to_single_line(data[:MAX_LOGGED_CHARS].decode(errors="replace"))
    return text if len(data) <= MAX_LOGGED_CHARS else f"{text}… ({len(data)} bytes)"


def _to_single_line(value: object, max_chars: int = MAX_LOGGED_CHARS) -> str:
    """Return the text on one line, without characters that a terminal interprets."""
    # Escape sequences in arguments of a client must not control the terminal of the operator who reads the log.
    return escape_unprintable(str(value)[:max_chars])
