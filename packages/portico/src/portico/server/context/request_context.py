"""The Context of a request that no component of the server answers: of middleware and of custom methods."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET

from portico.protocol.jsonrpc import NOTHING
from portico.rpc.call import Call
from portico.server.context.context import Context, create_context
from portico.server.context.input_rounds import Rounds


def create_request_context(call: Call, server: Any) -> Context:
    """Return the Context of a request to a server."""

    def begin(task: Any) -> Rounds:
        return Rounds(call, server.seal, call.method, NOTHING, NOTHING, UNSET, task)

    return create_context(call, server.runtime, begin)
