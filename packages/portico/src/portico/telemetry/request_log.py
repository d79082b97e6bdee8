"""One line for each request: when, what, of which tool, how it ended, how long it took, how many bytes came back, whose
it was. The names of tools and clients are cut; arguments and results are never there."""

from __future__ import annotations

import logging
import time
from typing import Any

from portico.protocol.errors import ProtocolError
from portico.protocol.methods import METHODS
from portico.rpc.call import Call
from portico.rpc.metrics import error_type
from portico.rpc.observers import OBSERVERS, Observer
from portico.rpc.trace_context import trace_id
from portico.telemetry.log_formatters import MEMBERS, as_text, moment

log = logging.getLogger("portico.requests")

LONGEST = 200


class RequestLog(Observer):
    """Tells the logger `portico.requests` of each request, at the level `info`."""

    def end(self, call: Call, result: Any, failure: BaseException | None, seconds: float) -> None:
        row = METHODS.get(call.method)
        name = row.name_in(call.read[1]) if row is not None and call.read is not None else None
        members: dict[str, Any] = {"time": moment(time.time()), "method": call.method[:LONGEST]}
        if name:
            members["target"] = name[:LONGEST]
        members["outcome"] = error_type(call, result, failure) or "ok"
        members["ms"] = round(seconds * 1000, 3)
        members["bytes"] = call.reply.size
        client = call.client
        if client is None and call.method == "initialize" and call.read is not None:
            client = call.read[1].client_info
        if client is not None:
            members["client"] = f"{client.name}/{client.version}"[:LONGEST]
        if call.revision is not None:
            members["revision"] = call.revision[:LONGEST]
        who = getattr(call.principal, "id", None)
        if who:
            members["principal"] = str(who)[:LONGEST]
        if call.address is not None:
            members["address"] = call.address
        if call.reply.error_id:
            members["error_id"] = call.reply.error_id
        trace = trace_id(call)
        if trace:
            members["trace_id"] = trace
        _write(members)

    def refuse(self, method: str, failure: ProtocolError, address: str | None) -> None:
        members = {"time": moment(time.time()), "method": method[:LONGEST], "outcome": f"{failure.code}", "bytes": 0}
        _write(members | ({"address": address} if address else {}) | {"reason": failure.message[:LONGEST]})

    def turn_away(self, address: str, line: str, status: int, size: int) -> None:
        members = {"time": moment(time.time()), "method": line[:LONGEST], "outcome": f"http {status}", "bytes": size}
        _write(members | ({"address": address} if address else {}))


def _write(members: dict[str, Any]) -> None:
    if log.isEnabledFor(logging.INFO):
        # Without looking for the line of code that it comes from, which takes longer than the rest.
        record = logging.LogRecord(log.name, logging.INFO, __file__, 0, "%s", (_LogText(members),), None)
        setattr(record, MEMBERS, members)
        log.handle(record)


class _LogText:
    """The text of a line, made only for a formatter that asks for it."""

    __slots__ = ("members",)

    def __init__(self, members: dict[str, Any]) -> None:
        self.members = members

    def __str__(self) -> str:
        return as_text(self.members)


def log_requests() -> None:
    """From now on: doors that are made after this. Calling it twice changes nothing."""
    if not any(isinstance(one, RequestLog) for one in OBSERVERS):
        OBSERVERS.append(RequestLog())
