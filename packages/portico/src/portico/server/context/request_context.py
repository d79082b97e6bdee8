"""The Context of requests that no component answers: for middleware and custom methods."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET

from portico.protocol.jsonrpc import EMPTY_RAW
from portico.rpc.call import Call
from portico.server.context.context import Context, create_context
from portico.server.context.input_rounds import InputRounds


def create_request_context(call: Call, server: Any) -> Context:
    """Return the Context of a request to a server."""

    # Without state or responses: middleware is not run again from the start, so its input requests
    # work only where the client can be asked directly.
    def begin(task: Any) -> InputRounds:
        return InputRounds(call, server.state_sealer, call.method, EMPTY_RAW, EMPTY_RAW, UNSET, task)

    return create_context(call, server.runtime, begin)
