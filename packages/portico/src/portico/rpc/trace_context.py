"""W3C Trace Context of requests, from `_meta` or from the HTTP headers."""

from __future__ import annotations

import re
from typing import Any

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from portico.protocol.jsonrpc import object_decoder
from portico.rpc.call import Call

TRACE_CONTEXT_KEYS = ("traceparent", "tracestate", "baggage")
_MAX_VALUE_CHARS = 8192
_PARENT = b"traceparent"
_IN_META = re.compile(rb'"traceparent"\s*:\s*"[0-9a-f]{2}-([0-9a-f]{32})-')
_IN_HEADER = re.compile(rb"[0-9a-f]{2}-([0-9a-f]{32})-")


def extract_trace_context(call: Call) -> dict[str, str]:
    """Return the trace context of a call, or an empty dict. `_meta` takes precedence over the headers."""
    # A substring check first: most calls have no trace context, and decoding the params would cost more.
    if _PARENT in bytes(call.params):
        meta = _meta(call)
        if isinstance(meta.get("traceparent"), str):
            return {name: meta[name] for name in TRACE_CONTEXT_KEYS if _is_short(meta.get(name))}
    if call.headers is not None and _PARENT in call.headers:
        headers = {name: call.headers.get(name.encode()) for name in TRACE_CONTEXT_KEYS}
        return {
            name: text.decode("latin-1")
            for name, text in headers.items()
            if text is not None and len(text) <= _MAX_VALUE_CHARS
        }
    return {}


def get_trace_id(call: Call) -> str:
    """Return the trace id of a call, or an empty string."""
    match = _IN_META.search(bytes(call.params))
    if match is None and call.headers:
        match = _IN_HEADER.match(call.headers.get(_PARENT, b""))
    return "" if match is None else match[1].decode()


def inject_trace_context(call: Call, context: dict[str, str]) -> Call:
    """Return the call with the trace context in its `_meta`."""
    members: dict[str, Any] = dict(object_decoder.decode(bytes(call.params) or b"{}"))
    meta = object_decoder.decode(members.get("_meta", b"{}"))
    remaining = {name: value for name, value in meta.items() if name not in TRACE_CONTEXT_KEYS}
    members["_meta"] = {**remaining, **context}
    return replace(call, params=Raw(msgspec.json.encode(members)), read=None)


def propagate_trace_context(call: Call) -> Call:
    """Move a trace context from the headers to `_meta`, for a call that is forwarded to another server.

    Headers only reach the next hop.
    """
    if call.headers is None or _PARENT not in call.headers or _PARENT in bytes(call.params):
        return call
    context = extract_trace_context(call)
    return inject_trace_context(call, context) if context else call


def _meta(call: Call) -> dict[str, Any]:
    try:
        meta = msgspec.json.decode(call.params).get("_meta")
    except (msgspec.DecodeError, RecursionError, AttributeError):
        return {}
    return meta if isinstance(meta, dict) else {}


def _is_short(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= _MAX_VALUE_CHARS
