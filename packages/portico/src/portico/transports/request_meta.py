"""The `_meta` that every request of 2026-07-28 carries: client info, protocol version and capabilities."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from portico.caching import LruCache
from portico.protocol import jsonrpc, meta as metas
from portico.protocol.meta import NO_CAPABILITIES, ClientCapabilities, ProgressToken
from portico.protocol.versions import FIRST_MODERN_VERSION, ProtocolVersion
from portico.rpc.call import Call
from portico.transports.handshake import ClientIdentity

_MAX_CACHED_METAS = 256
_MAX_CACHED_META_BYTES = 4096

_members = msgspec.json.Decoder(dict[str, Raw])
_CONNECTION_META_KEYS = frozenset(
    {
        metas.PROTOCOL_VERSION_META_KEY,
        metas.CLIENT_CAPABILITIES_META_KEY,
        metas.CLIENT_INFO_META_KEY,
        metas.LOG_LEVEL_META_KEY,
        "progressToken",
    }
)


class RequestMetaEncoder:
    """Encoder of the `_meta` of one connection's requests. Encodes the constant part once."""

    def __init__(self, identity: ClientIdentity, protocol_version: ProtocolVersion) -> None:
        self._identity = identity
        self._revision = protocol_version
        self._modern = protocol_version >= FIRST_MODERN_VERSION
        self._own = jsonrpc.encode(identity.build_meta(protocol_version)) if self._modern else b"{}"
        self._others: LruCache[int, tuple[ClientCapabilities, str | None, bytes]] = LruCache(_MAX_CACHED_METAS)

    def encode_for(self, call: Call) -> bytes:
        """Return the `_meta` of a Call. A forwarded Call declares the capabilities of its original client; these are
        cached.
        """
        able, level = call.capabilities, call.log_level
        if not self._modern or (able is NO_CAPABILITIES and level is None):
            return self._own
        level = level or self._identity.log_level
        cached = self._others.peek(id(able))
        if cached is not None and cached[0] is able and cached[1] == level:
            return cached[2]
        own = self._identity.capabilities if able is NO_CAPABILITIES else able
        identity = ClientIdentity(self._identity.info, own, level)  # type: ignore[arg-type]
        meta = jsonrpc.encode(identity.build_meta(self._revision))
        self._others[id(able)] = able, level, meta
        return meta

    def add_to_params(self, call: Call, progress_token: ProgressToken | None) -> Raw:
        """Return the params with the `_meta` of this protocol version. Members of the Call's own `_meta` take
        precedence.
        """
        if not self._modern and progress_token is None:
            return call.params
        params, meta = bytes(call.params) or b"{}", self.encode_for(call)
        if progress_token is not None:
            meta = (
                meta[:-1] + (b"," if len(meta) > 2 else b"") + b'"progressToken":%b}' % jsonrpc.encode(progress_token)
            )
        # JSON allows escapes in keys. `find` is cheaper than `in`, which tries to convert bytes to an integer first.
        if params.find(b'"_meta"') >= 0 or params.find(b"\\u") >= 0:
            members: dict[str, Any] = dict(_members.decode(params))
            members["_meta"] = {**_members.decode(meta), **_members.decode(members.get("_meta", b"{}"))}
            return Raw(jsonrpc.encode(members))
        return Raw(params[:-1] + (b"," if len(params) > 2 else b"") + b'"_meta":' + meta + b"}")


# `_meta` values that only contain connection data. Bounded, and never with a progress token.
_connection_metas: LruCache[bytes, None] = LruCache(_MAX_CACHED_METAS)


def is_connection_meta(meta: bytes, *, cache: bool) -> bool:
    """Return whether a `_meta` contains only data that each connection sets itself."""
    if meta in _connection_metas:
        return True
    if not meta or not _members.decode(meta).keys() <= _CONNECTION_META_KEYS:
        return False
    if cache and len(meta) <= _MAX_CACHED_META_BYTES:
        _connection_metas[meta] = None
    return True


def strip_connection_meta(call: Call) -> Call:
    """Return a forwarded Call without the `_meta` of its original connection: version, client, progress token."""
    params = bytes(call.params)
    if params.find(b'"_meta"') < 0 and params.find(b"\\u") < 0:
        return call
    members: dict[str, Any] = dict(_members.decode(call.params))
    meta = _members.decode(members.pop("_meta", b"{}"))
    own = {name: value for name, value in meta.items() if name not in _CONNECTION_META_KEYS}
    return replace(call, params=Raw(jsonrpc.encode({**members, "_meta": own} if own else members)))
