"""The `_meta` that a connection adds to forwarded requests."""

from __future__ import annotations

import json

import pytest
from msgspec import Raw

from portico.protocol.meta import NO_CAPABILITIES, Implementation
from portico.protocol.versions import FIRST_MODERN_VERSION
from portico.rpc.call import Call
from portico.transports.handshake import ClientIdentity
from portico.transports.upstream import RequestMetaEncoder, strip_connection_meta


@pytest.mark.parametrize("name", ["_meta", "_m\\u0065ta"])
def test_meta_written_with_escapes_is_replaced_and_not_repeated(name: str) -> None:
    """Otherwise a caller chooses the progress token and client that an upstream sees, where the first one counts."""
    params = Raw(b'{"name":"a","%b":{"progressToken":"of another caller","own":1}}' % name.encode())
    call = strip_connection_meta(Call(method="tools/call", id=1, params=params, protocol_version=FIRST_MODERN_VERSION))
    assert json.loads(bytes(call.params)) == {"name": "a", "_meta": {"own": 1}}
    identity = ClientIdentity(Implementation("gateway", "1"), NO_CAPABILITIES)
    members = json.loads(
        bytes(RequestMetaEncoder(identity, FIRST_MODERN_VERSION).add_to_params(Call(method="x", params=params), 7)),
        object_pairs_hook=list,
    )
    assert [name for name, _ in members] == ["name", "_meta"]
