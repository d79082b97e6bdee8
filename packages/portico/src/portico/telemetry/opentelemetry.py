"""Spans and durations of incoming and outgoing requests.

They follow OpenTelemetry's conventions for MCP (semconv, gen-ai/mcp). The parent of a span is the trace context in the
request's `_meta`; without one, the current span (of an ASGI server), or else the HTTP headers.
"""

from __future__ import annotations

import time
from hashlib import sha256
from typing import Any

from opentelemetry import context as contexts, metrics, propagate, trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanKind, StatusCode

from portico.protocol.errors import ProtocolError, ToolError
from portico.protocol.methods import LONG_LIVED_METHODS, METHODS
from portico.rpc.call import Call
from portico.rpc.metrics import error_type
from portico.rpc.observers import OBSERVERS, Observer, SendCall
from portico.rpc.trace_context import extract_trace_context, inject_trace_context
from portico.telemetry import otel_providers

# Clients choose these values; collectors reject or truncate long ones anyway.
MAX_ATTRIBUTE_CHARS = 200
# The boundaries that the convention recommends for all four histograms.
DURATION_BUCKETS_SECONDS = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300]
_SESSION = b"mcp-session-id"

Attributes = dict[str, Any]


def start(service: str, *, configure: bool) -> None:
    """Start observing if there are providers. `configure`: create them from the environment."""
    if any(isinstance(observer, OpenTelemetryObserver) for observer in OBSERVERS):
        return
    if configure:
        otel_providers.configure_providers(service)
    if otel_providers.is_configured():
        # Outermost, so that other observers log within the span.
        OBSERVERS.insert(0, OpenTelemetryObserver())


class OpenTelemetryObserver(Observer):
    """Observer that records spans and metrics."""

    def __init__(self) -> None:
        self._tracer = trace.get_tracer("portico")
        meter = metrics.get_meter("portico")
        self._served = _create_histogram(meter, "mcp.server.operation.duration", "Duration of incoming requests")
        self._requested = _create_histogram(meter, "mcp.client.operation.duration", "Duration of outgoing requests")
        self._sessions = _create_histogram(meter, "mcp.server.session.duration", "Duration of sessions")
        self._connections = _create_histogram(meter, "mcp.client.session.duration", "Duration of client connections")

    # Incoming requests

    def on_request_start(self, call: Call) -> None:
        # A subscription has no meaningful duration.
        if call.method in LONG_LIVED_METHODS:
            return
        attributes, parent, links = _request_attributes(call), *_parent(call)
        own = {"jsonrpc.request.id": str(call.id)[:MAX_ATTRIBUTE_CHARS], **_client_address(call), **_resource(call)}
        span = self._tracer.start_span(
            _name(attributes), context=parent, kind=SpanKind.SERVER, attributes={**attributes, **own}, links=links
        )
        call.reply.observer_state = span
        # Each call has its own context, so nothing has to be detached.
        contexts.attach(trace.set_span_in_context(span, parent))

    def on_request_end(self, call: Call, result: Any, failure: BaseException | None, seconds: float) -> None:
        span: Span | None = call.reply.observer_state
        if span is None:
            return
        error = _error_type(call, result, failure)
        if error:
            _record_error(span, error, failure)
            if call.reply.error_id:
                span.set_attribute("portico.error_id", call.reply.error_id)
        span.end()
        attributes = _request_attributes(call)
        if error.get("rpc.response.status_code") == "-32602":
            # Names invented by clients must not create unbounded metric series.
            attributes.pop("gen_ai.tool.name", None)
            attributes.pop("gen_ai.prompt.name", None)
        self._served.record(seconds, {**attributes, **_transport(call), **error}, trace.set_span_in_context(span))
        if call.method == "initialize" and not error:
            self._record_session(call)

    def _record_session(self, call: Call) -> None:
        session, started_at, about = call.reply.connection, time.monotonic(), _transport(call)
        if session is not None:
            session.add_close_callback(lambda: self._sessions.record(time.monotonic() - started_at, about))

    # Outgoing requests

    def on_session_closed(self, server: str, revision: str, over_http: bool, seconds: float) -> None:
        self._connections.record(seconds, {"mcp.protocol.version": revision, **_network(over_http)})

    async def wrap_outgoing(self, call: Call, server: str, send: SendCall) -> Any:
        attributes, start, error = _request_attributes(call), time.perf_counter(), {}
        parent = contexts.get_current()
        # A proxy without a span continues the trace of the request that it forwards.
        if not trace.get_current_span().get_span_context().is_valid:
            parent = propagate.extract(extract_trace_context(call), parent)
        own = {"portico.upstream": server[:MAX_ATTRIBUTE_CHARS], **_resource(call)}
        with self._tracer.start_as_current_span(
            _name(attributes),
            context=parent,
            kind=SpanKind.CLIENT,
            attributes={**attributes, **own},
            # Recorded below, because an error of the protocol is not an exception of this program.
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            carrier: dict[str, str] = {}
            propagate.inject(carrier)
            try:
                result = await send(inject_trace_context(call, carrier) if carrier else call)
                error = _error_type(call, result, None)
                if error:
                    _record_error(span, error, None)
                return result
            except BaseException as failure:
                error = _error_type(call, None, failure)
                _record_error(span, error, failure)
                raise
            finally:
                self._requested.record(time.perf_counter() - start, {**attributes, **error})


def _create_histogram(meter: Any, name: str, description: str) -> Any:
    return meter.create_histogram(name, "s", description, explicit_bucket_boundaries_advisory=DURATION_BUCKETS_SECONDS)


def _request_attributes(call: Call) -> Attributes:
    """Return the attributes of a request with low cardinality."""
    # A client can invent any number of method names, each of which would become a metric series.
    method = call.method if call.method in METHODS else "_OTHER"
    attributes: Attributes = {"mcp.method.name": method}
    if call.protocol_version is not None:
        attributes["mcp.protocol.version"] = call.protocol_version[:MAX_ATTRIBUTE_CHARS]
    if method == "tools/call":
        attributes["gen_ai.operation.name"] = "execute_tool"
    member = {"tools/call": "gen_ai.tool.name", "prompts/get": "gen_ai.prompt.name"}.get(method)
    name = _target_name(call) if member is not None else None
    if member is not None and name:
        attributes[member] = name[:MAX_ATTRIBUTE_CHARS]
    return attributes


def _target_name(call: Call) -> str | None:
    """Return the tool, prompt or resource that a call names, or None."""
    row = METHODS[call.method]
    try:
        return row.get_name(call.decode_params())
    except ProtocolError:
        return None


def _resource(call: Call) -> Attributes:
    uri = _target_name(call) if call.method in ("resources/read", "resources/subscribe") else None
    return {"mcp.resource.uri": uri[:2048]} if uri else {}


def _transport(call: Call) -> Attributes:
    return _network(call.headers is not None)


def _network(over_http: bool) -> Attributes:
    if not over_http:
        return {"network.transport": "pipe"}
    return {"network.transport": "tcp", "network.protocol.name": "http"}


def _client_address(call: Call) -> Attributes:
    attributes = _transport(call)
    if call.address:
        attributes["client.address"] = call.address
    session = None if call.headers is None else call.headers.get(_SESSION)
    if session is not None:
        # A session id is a credential, so only its hash is exported.
        attributes["mcp.session.id"] = sha256(session).hexdigest()[:16]
    return attributes


def _name(attributes: Attributes) -> str:
    target = attributes.get("gen_ai.tool.name") or attributes.get("gen_ai.prompt.name")
    return f"{attributes['mcp.method.name']} {target}" if target else str(attributes["mcp.method.name"])


def _parent(call: Call) -> tuple[Context, list[Link]]:
    current_context, remote_context = contexts.get_current(), extract_trace_context(call)
    current_span = trace.get_current_span(current_context).get_span_context()
    if not remote_context or (current_span.is_valid and b"traceparent" not in bytes(call.params)):
        return current_context, []
    return propagate.extract(remote_context, current_context), [Link(current_span)] if current_span.is_valid else []


def _error_type(call: Call, result: Any, failure: BaseException | None) -> Attributes:
    """Return the error attributes; empty on success."""
    kind = error_type(call, result, failure)
    if not kind:
        return {}
    if isinstance(failure, ProtocolError):
        return {"error.type": kind, "rpc.response.status_code": kind}
    return {"error.type": kind}


def _record_error(span: Span, error: Attributes, failure: BaseException | None) -> None:
    span.set_attributes(error)
    if failure is None or isinstance(failure, ProtocolError | ToolError):
        span.set_status(StatusCode.ERROR)
    else:
        span.set_status(StatusCode.ERROR, type(failure).__name__)
        span.record_exception(failure)
