"""W3C's trace context, which says to which trace a request belongs: in `_meta`, or else in the headers of HTTP."""

from __future__ import annotations

import re
from typing import Any

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from portico.rpc.call import Call

MEMBERS = ("traceparent", "tracestate", "baggage")
_MOST = 8192
_PARENT = b"traceparent"
_IN_META = re.compile(rb'"traceparent"\s*:\s*"[0-9a-f]{2}-([0-9a-f]{32})-')
_IN_HEADER = re.compile(rb"[0-9a-f]{2}-([0-9a-f]{32})-")

_members = msgspec.json.Decoder(dict[str, Raw])


def trace_context(call: Call) -> dict[str, str]:
    """What a call says of its trace; empty if that is nothing. `_meta` is nearer to the call than the headers are."""
    if _PARENT in bytes(call.params):
        meta = _meta(call)
        if isinstance(meta.get("traceparent"), str):
            return {name: meta[name] for name in MEMBERS if _is_short(meta.get(name))}
    if call.headers is not None and _PARENT in call.headers:
        said = {name: call.headers.get(name.encode()) for name in MEMBERS}
        return {name: text.decode("latin-1") for name, text in said.items() if text is not None and len(text) <= _MOST}
    return {}


def trace_id(call: Call) -> str:
    """The trace of a call, or nothing."""
    found = _IN_META.search(bytes(call.params))
    if found is None and call.headers:
        found = _IN_HEADER.match(call.headers.get(_PARENT, b""))
    return "" if found is None else found[1].decode()


def with_trace(call: Call, said: dict[str, str]) -> Call:
    """The same call with this in its `_meta`."""
    members: dict[str, Any] = dict(_members.decode(bytes(call.params) or b"{}"))
    meta = _members.decode(members.get("_meta", b"{}"))
    kept = {name: one for name, one in meta.items() if name not in MEMBERS}
    members["_meta"] = {**kept, **said}
    return replace(call, params=Raw(msgspec.json.encode(members)), read=None)


def carried_on(call: Call) -> Call:
    """A call on its way to another server, which knows the headers of the next hop only: what they say of the trace is
    said in `_meta`."""
    if call.headers is None or _PARENT not in call.headers or _PARENT in bytes(call.params):
        return call
    said = trace_context(call)
    return with_trace(call, said) if said else call


def _meta(call: Call) -> dict[str, Any]:
    try:
        meta = msgspec.json.decode(call.params).get("_meta")
    except (msgspec.DecodeError, RecursionError, AttributeError):
        return {}
    return meta if isinstance(meta, dict) else {}


def _is_short(said: Any) -> bool:
    return isinstance(said, str) and len(said) <= _MOST
