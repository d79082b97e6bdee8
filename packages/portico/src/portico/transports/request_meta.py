"""The `_meta` that every request of 2026-07-28 carries: who asks, in which revision, and what it can do."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from portico.protocol import jsonrpc
from portico.protocol import meta as metas
from portico.protocol.meta import NO_CAPABILITIES, ClientCapabilities, ProgressToken
from portico.protocol.versions import MODERN, Revision
from portico.rpc.call import Call
from portico.transports.handshake import ClientIdentity

_MOST_METAS = 256
_LONGEST_ENVELOPE = 4096

_members = msgspec.json.Decoder(dict[str, Raw])
_ENVELOPE = frozenset(
    {metas.PROTOCOL_VERSION, metas.CLIENT_CAPABILITIES, metas.CLIENT_INFO, metas.LOG_LEVEL, "progressToken"}
)


class RequestEnvelope:
    """What the requests of one connection say of their sender. It is encoded once."""

    def __init__(self, identity: ClientIdentity, revision: Revision) -> None:
        self._identity = identity
        self._revision = revision
        self._modern = revision >= MODERN
        self._own = jsonrpc.encode(identity.meta(revision)) if self._modern else b"{}"
        self._others: dict[int, tuple[ClientCapabilities, str | None, bytes]] = {}

    def of(self, call: Call) -> bytes:
        """The `_meta` of a Call. One that comes from another client says what that one can do, the same each time."""
        able, level = call.capabilities, call.log_level
        if not self._modern or (able is NO_CAPABILITIES and level is None):
            return self._own
        level = level or self._identity.log_level
        kept = self._others.get(id(able))
        if kept is not None and kept[0] is able and kept[1] == level:
            return kept[2]
        own = self._identity.capabilities if able is NO_CAPABILITIES else able
        identity = ClientIdentity(self._identity.info, own, level)  # type: ignore[arg-type]
        meta = jsonrpc.encode(identity.meta(self._revision))
        if len(self._others) >= _MOST_METAS:
            self._others.clear()
        self._others[id(able)] = able, level, meta
        return meta

    def put(self, call: Call, token: ProgressToken | None) -> Raw:
        """The params with the `_meta` that this revision wants; what the Call has in its own comes last."""
        if not self._modern and token is None:
            return call.params
        params, meta = bytes(call.params) or b"{}", self.of(call)
        if token is not None:
            meta = meta[:-1] + (b"," if len(meta) > 2 else b"") + b'"progressToken":%b}' % jsonrpc.encode(token)
        if b'"_meta"' in params:
            members: dict[str, Any] = dict(_members.decode(params))
            members["_meta"] = {**_members.decode(meta), **_members.decode(members.get("_meta", b"{}"))}
            return Raw(jsonrpc.encode(members))
        return Raw(params[:-1] + (b"," if len(params) > 2 else b"") + b'"_meta":' + meta + b"}")


# What clients say of themselves in every request, and nothing else. Bounded, and never with a token.
_envelopes: set[bytes] = set()


def is_envelope(meta: bytes, *, remember: bool) -> bool:
    """Whether a `_meta` says only what each connection says for itself."""
    if meta in _envelopes:
        return True
    if not meta or not _members.decode(meta).keys() <= _ENVELOPE:
        return False
    if remember and len(meta) <= _LONGEST_ENVELOPE:
        if len(_envelopes) >= _MOST_METAS:
            _envelopes.clear()
        _envelopes.add(meta)
    return True


def without_envelope(call: Call) -> Call:
    """A Call of another connection without what its `_meta` says of that one: revision, client, progress token."""
    if b'"_meta"' not in bytes(call.params):
        return call
    members: dict[str, Any] = dict(_members.decode(call.params))
    meta = _members.decode(members.pop("_meta", b"{}"))
    own = {name: one for name, one in meta.items() if name not in _ENVELOPE}
    return replace(call, params=Raw(jsonrpc.encode({**members, "_meta": own} if own else members)))
