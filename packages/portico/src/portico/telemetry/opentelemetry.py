"""Spans and durations of what is answered and asked, by OpenTelemetry's conventions for MCP (semconv, gen-ai/mcp).

A call's own trace context is in its `_meta`, and that is what its span belongs to; without one it is the span that is
current where the call arrives (an ASGI server's), or else what the headers of HTTP say.
"""

from __future__ import annotations

import time
from hashlib import sha256
from typing import Any

from opentelemetry import context as contexts
from opentelemetry import metrics, propagate, trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanKind, StatusCode

from portico.protocol.errors import ProtocolError, ToolError
from portico.protocol.methods import LASTING, METHODS
from portico.rpc.call import Call
from portico.rpc.metrics import error_type
from portico.rpc.observers import OBSERVERS, Asked, Observer
from portico.rpc.trace_context import trace_context, with_trace
from portico.telemetry import otel_providers

LONGEST = 200
BOUNDARIES = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300]
_SESSION = b"mcp-session-id"

Attributes = dict[str, Any]


def start(service: str, *, set_up: bool) -> None:
    """Observe, if there are providers; `set_up`: make them as the environment says."""
    if any(isinstance(one, Telemetry) for one in OBSERVERS):
        return
    if set_up:
        otel_providers.set_up(service)
    if otel_providers.is_set_up():
        # Outermost: what others log of a call is then within its span.
        OBSERVERS.insert(0, Telemetry())


class Telemetry(Observer):
    def __init__(self) -> None:
        self._tracer = trace.get_tracer("portico")
        meter = metrics.get_meter("portico")
        self._served = _durations(meter, "mcp.server.operation.duration", "How long requests took to answer")
        self._asked = _durations(meter, "mcp.client.operation.duration", "How long answers took to come")
        self._sessions = _durations(meter, "mcp.server.session.duration", "How long sessions lasted")
        self._connections = _durations(meter, "mcp.client.session.duration", "How long clients were connected")

    # What is answered

    def enter(self, call: Call) -> None:
        # A subscription lasts as long as its client likes.
        if call.method in LASTING:
            return
        known, parent, links = _about(call), *_parent(call)
        own = {"jsonrpc.request.id": str(call.id)[:LONGEST], **_place(call), **_resource(call)}
        span = self._tracer.start_span(
            _name(known), context=parent, kind=SpanKind.SERVER, attributes={**known, **own}, links=links
        )
        call.reply.kept = span
        # Of this call alone, so there is nothing to put back.
        contexts.attach(trace.set_span_in_context(span, parent))

    def end(self, call: Call, result: Any, failure: BaseException | None, seconds: float) -> None:
        span: Span | None = call.reply.kept
        if span is None:
            return
        wrong = _wrong(call, result, failure)
        if wrong:
            _fail(span, wrong, failure)
            if call.reply.error_id:
                span.set_attribute("portico.error_id", call.reply.error_id)
        span.end()
        known = _about(call)
        if wrong.get("rpc.response.status_code") == "-32602":
            # Names that clients make up must not become series without end.
            known.pop("gen_ai.tool.name", None)
            known.pop("gen_ai.prompt.name", None)
        self._served.record(seconds, {**known, **_transport(call), **wrong}, trace.set_span_in_context(span))
        if call.method == "initialize" and not wrong:
            self._time_session(call)

    def _time_session(self, call: Call) -> None:
        session, began, about = call.reply.conversation, time.monotonic(), _transport(call)
        if session is not None:
            session.when_closed(lambda: self._sessions.record(time.monotonic() - began, about))

    # What is asked

    def close_session(self, server: str, revision: str, over_http: bool, seconds: float) -> None:
        self._connections.record(seconds, {"mcp.protocol.version": revision, **_network(over_http)})

    async def ask(self, call: Call, server: str, ask: Asked) -> Any:
        known, began, wrong = _about(call), time.perf_counter(), {}
        parent = contexts.get_current()
        if not trace.get_current_span().get_span_context().is_valid:
            parent = propagate.extract(trace_context(call), parent)
        own = {"portico.upstream": server[:LONGEST], **_resource(call)}
        with self._tracer.start_as_current_span(
            _name(known),
            context=parent,
            kind=SpanKind.CLIENT,
            attributes={**known, **own},
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            said: dict[str, str] = {}
            propagate.inject(said)
            try:
                result = await ask(with_trace(call, said) if said else call)
                wrong = _wrong(call, result, None)
                if wrong:
                    _fail(span, wrong, None)
                return result
            except BaseException as failure:
                wrong = _wrong(call, None, failure)
                _fail(span, wrong, failure)
                raise
            finally:
                self._asked.record(time.perf_counter() - began, {**known, **wrong})


def _durations(meter: Any, name: str, about: str) -> Any:
    return meter.create_histogram(name, "s", about, explicit_bucket_boundaries_advisory=BOUNDARIES)


def _about(call: Call) -> Attributes:
    """What a request is, in few words that come again and again."""
    method = call.method if call.method in METHODS else "_OTHER"
    known: Attributes = {"mcp.method.name": method}
    if call.revision is not None:
        known["mcp.protocol.version"] = call.revision[:LONGEST]
    if method == "tools/call":
        known["gen_ai.operation.name"] = "execute_tool"
    member = {"tools/call": "gen_ai.tool.name", "prompts/get": "gen_ai.prompt.name"}.get(method)
    name = _named(call) if member is not None else None
    if member is not None and name:
        known[member] = name[:LONGEST]
    return known


def _named(call: Call) -> str | None:
    """The tool, the prompt or the resource that a call is about."""
    row = METHODS[call.method]
    try:
        return row.name_in(call.typed())
    except ProtocolError:
        return None


def _resource(call: Call) -> Attributes:
    uri = _named(call) if call.method in ("resources/read", "resources/subscribe") else None
    return {"mcp.resource.uri": uri[:2048]} if uri else {}


def _transport(call: Call) -> Attributes:
    return _network(call.headers is not None)


def _network(over_http: bool) -> Attributes:
    if not over_http:
        return {"network.transport": "pipe"}
    return {"network.transport": "tcp", "network.protocol.name": "http"}


def _place(call: Call) -> Attributes:
    place = _transport(call)
    if call.address:
        place["client.address"] = call.address
    session = None if call.headers is None else call.headers.get(_SESSION)
    if session is not None:
        # Who has the id may have the session, so not the id itself.
        place["mcp.session.id"] = sha256(session).hexdigest()[:16]
    return place


def _name(known: Attributes) -> str:
    target = known.get("gen_ai.tool.name") or known.get("gen_ai.prompt.name")
    return f"{known['mcp.method.name']} {target}" if target else str(known["mcp.method.name"])


def _parent(call: Call) -> tuple[Context, list[Link]]:
    here, said = contexts.get_current(), trace_context(call)
    current = trace.get_current_span(here).get_span_context()
    if not said or (current.is_valid and b"traceparent" not in bytes(call.params)):
        return here, []
    return propagate.extract(said, here), [Link(current)] if current.is_valid else []


def _wrong(call: Call, result: Any, failure: BaseException | None) -> Attributes:
    """What went wrong; empty if nothing did."""
    kind = error_type(call, result, failure)
    if not kind:
        return {}
    if isinstance(failure, ProtocolError):
        return {"error.type": kind, "rpc.response.status_code": kind}
    return {"error.type": kind}


def _fail(span: Span, wrong: Attributes, failure: BaseException | None) -> None:
    span.set_attributes(wrong)
    if failure is None or isinstance(failure, ProtocolError | ToolError):
        span.set_status(StatusCode.ERROR)
    else:
        span.set_status(StatusCode.ERROR, type(failure).__name__)
        span.record_exception(failure)
