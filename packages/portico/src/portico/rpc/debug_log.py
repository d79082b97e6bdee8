"""What an operator sees at `LOG_LEVEL=debug`. Off, it is not there at all: no call passes through it.

Six kinds of lines: incoming message, handler invocation, tool discovery, execution result, validation error and
performance. What clients and bodies say is cut, and stays on its line.
"""

from __future__ import annotations

import logging
from typing import Any

import msgspec

from portico.protocol import jsonrpc
from portico.protocol.errors import InvalidParams, InvalidRequest, ParseError, ProtocolError, ToolError
from portico.protocol.jsonrpc import Frame
from portico.protocol.methods import METHODS
from portico.protocol.tools import ERROR
from portico.rpc.call import Call
from portico.rpc.metrics import Metrics

log = logging.getLogger("portico.trace")

LONGEST = 500
MOST_NAMED = 50

_INVALID = (InvalidParams, InvalidRequest, ParseError)
# What a tool's refusal of its arguments is called, in results and in errors.
_INVALID_KINDS = frozenset({"ValidationError", "InvalidParams"})
# The lists of what there is, by method: where they stand in the result, and what names their members.
_LISTS = {
    "tools/list": ("tools", "name"),
    "prompts/list": ("prompts", "name"),
    "resources/list": ("resources", "uri"),
    "resources/templates/list": ("resourceTemplates", "uriTemplate"),
}


class Trace:
    """Takes the place of the metrics that a door tells of each request, and passes on to them what it is told."""

    def __init__(self, metrics: Metrics | None) -> None:
        self._metrics = metrics or Metrics()
        self.shares = self._metrics.shares

    @property
    def in_flight(self) -> int:
        return self._metrics.in_flight

    def begin(self, call: Call) -> float:
        log.debug("incoming message: %s id=%r params=%s", _line(call.method), call.id, _short(bytes(call.params)))
        log.debug("handler invocation: %s at %s", _asked(call), call.revision or "no revision yet")
        return self._metrics.begin(call)

    def end(self, call: Call, result: Any, failure: BaseException | None, began: float) -> float:
        seconds = self._metrics.end(call, result, failure, began)
        if failure is not None:
            _tell_failure(call, failure)
        elif result is not None:
            _tell_result(call, msgspec.json.decode(jsonrpc.encode(result)))
        log.debug("performance: %s took %.3f ms", _asked(call), seconds * 1000)
        return seconds

    def notified(self, call: Call) -> None:
        log.debug("incoming message: %s, a notification, params=%s", _line(call.method), _short(bytes(call.params)))

    def refused(self, frame: Frame, failure: ProtocolError) -> None:
        """A request that never became a call."""
        log.debug("incoming message: %s id=%r params=%s", _line(frame.method), frame.id, _short(bytes(frame.params)))
        log.debug("validation error: %s: %s", _line(frame.method), _line(failure.message))


def _tell_failure(call: Call, failure: BaseException) -> None:
    if isinstance(failure, _INVALID) or (isinstance(failure, ToolError) and failure.kind in _INVALID_KINDS):
        log.debug("validation error: %s: %s", _asked(call), _line(failure))
    elif isinstance(failure, ProtocolError):
        code = failure.code_at(call.revision)
        log.debug("execution result: %s failed with %d: %s", _asked(call), code, _line(failure))
    elif isinstance(failure, ToolError):
        kind = failure.kind or type(failure).__name__
        log.debug("execution result: %s refused, %s: %s", _asked(call), kind, _line(failure))
    else:
        log.debug("execution result: %s raised %s", _asked(call), type(failure).__name__)


def _tell_result(call: Call, result: Any) -> None:
    listed = _LISTS.get(call.method)
    if listed is not None and isinstance(result, dict) and isinstance(result.get(listed[0]), list):
        names = [str(one.get(listed[1])) for one in result[listed[0]] if isinstance(one, dict)]
        more = ", …" if len(names) > MOST_NAMED else ""
        kind = "tool discovery" if call.method == "tools/list" else "execution result"
        said = _line(", ".join(names[:MOST_NAMED]), 4 * LONGEST)
        log.debug("%s: %s gave %d: %s%s", kind, call.method, len(names), said, more)
    elif call.method == "tools/call" and isinstance(result, dict) and result.get("isError"):
        error = (result.get("_meta") or {}).get(ERROR) or result.get("error") or {}
        kind = str(error.get("error_type") or error.get("code") or "ToolExecutionError")
        said = _short(msgspec.json.encode(result.get("content")))
        if kind in _INVALID_KINDS:
            log.debug("validation error: %s: %s", _asked(call), said)
        else:
            log.debug("execution result: %s refused, %s: %s", _asked(call), _line(kind), said)
    else:
        log.debug("execution result: %s gave %s", _asked(call), _short(msgspec.json.encode(result)))


def _asked(call: Call) -> str:
    """The method, and of what: the tool, the prompt, the resource."""
    row = METHODS.get(call.method)
    name = row.name_in(call.read[1]) if row is not None and call.read is not None else None
    return _line(call.method if name is None else f"{call.method} {name}")


def _short(said: bytes) -> str:
    text = _line(said[:LONGEST].decode(errors="replace"))
    return text if len(said) <= LONGEST else f"{text}… ({len(said)} bytes)"


def _line(said: object, longest: int = LONGEST) -> str:
    """On one line, and nothing that a terminal would obey."""
    text = str(said)[:longest]
    return text if text.isprintable() else "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)
