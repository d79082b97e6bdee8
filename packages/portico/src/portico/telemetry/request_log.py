"""Request log: one line per request with time, method, target, outcome, duration, size and principal.

Names of tools and clients are truncated; arguments and results are never logged.
"""

from __future__ import annotations

import logging
import time
from typing import Any

from portico.protocol.errors import ProtocolError
from portico.protocol.jsonrpc import JsonRpcMessage
from portico.protocol.methods import METHODS
from portico.rpc.call import Call
from portico.rpc.metrics import error_type
from portico.rpc.observers import OBSERVERS, Observer
from portico.rpc.trace_context import get_trace_id
from portico.telemetry.log_formatters import RECORD_FIELDS_ATTRIBUTE, format_fields, format_timestamp

log = logging.getLogger("portico.requests")

MAX_FIELD_CHARS = 200


class RequestLog(Observer):
    """Logs each request to `portico.requests` at level `info`."""

    def on_request_end(self, call: Call, result: Any, failure: BaseException | None, seconds: float) -> None:
        row = METHODS.get(call.method)
        name = row.get_name(call.read[1]) if row is not None and call.read is not None else None
        members: dict[str, Any] = {"time": format_timestamp(time.time()), "method": call.method[:MAX_FIELD_CHARS]}
        if name:
            members["target"] = name[:MAX_FIELD_CHARS]
        members["outcome"] = error_type(call, result, failure) or "ok"
        members["ms"] = round(seconds * 1000, 3)
        members["bytes"] = call.reply.response_bytes
        client = call.client
        if client is None and call.method == "initialize" and call.read is not None:
            # Before the handshake is complete, the connection does not know its client yet.
            client = call.read[1].client_info
        if client is not None:
            members["client"] = f"{client.name}/{client.version}"[:MAX_FIELD_CHARS]
        if call.protocol_version is not None:
            members["revision"] = call.protocol_version[:MAX_FIELD_CHARS]
        principal_id = getattr(call.principal, "id", None)
        if principal_id:
            members["principal"] = str(principal_id)[:MAX_FIELD_CHARS]
        if call.address is not None:
            members["address"] = call.address
        if call.reply.error_id:
            members["error_id"] = call.reply.error_id
        trace = get_trace_id(call)
        if trace:
            members["trace_id"] = trace
        _write(members)

    def on_rejected_message(self, frame: JsonRpcMessage, failure: ProtocolError, address: str | None) -> None:
        method = str(frame.method)[:MAX_FIELD_CHARS]
        members = {"time": format_timestamp(time.time()), "method": method, "outcome": f"{failure.code}", "bytes": 0}
        _write(members | ({"address": address} if address else {}) | {"reason": failure.message[:MAX_FIELD_CHARS]})

    def on_rejected_http_request(self, address: str, line: str, status: int, size: int) -> None:
        members = {
            "time": format_timestamp(time.time()),
            "method": line[:MAX_FIELD_CHARS],
            "outcome": f"http {status}",
            "bytes": size,
        }
        _write(members | ({"address": address} if address else {}))


def _write(members: dict[str, Any]) -> None:
    if log.isEnabledFor(logging.INFO):
        # Skips the lookup of the caller's source line, which takes longer than everything else.
        record = logging.LogRecord(log.name, logging.INFO, __file__, 0, "%s", (_LazyLogText(members),), None)
        setattr(record, RECORD_FIELDS_ATTRIBUTE, members)
        log.handle(record)


class _LazyLogText:
    """Text of a line, formatted only on demand."""

    __slots__ = ("members",)

    def __init__(self, members: dict[str, Any]) -> None:
        self.members = members

    def __str__(self) -> str:
        return format_fields(self.members)


def enable_request_log() -> None:
    """Enable the request log for dispatchers created later. Repeated calls have no effect."""
    if not any(isinstance(observer, RequestLog) for observer in OBSERVERS):
        OBSERVERS.append(RequestLog())
