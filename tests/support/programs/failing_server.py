"""A server that fails in every way visible on the wire, chosen by the prompt's name."""

from __future__ import annotations

from typing import Any

from portico import Server
from portico.protocol import errors
from portico.protocol.errors import ProtocolError
from portico.protocol.methods import METHODS
from portico.rpc.call import Call, Handler

EXAMPLES: dict[str, ProtocolError] = {
    "ParseError": errors.ParseError("not JSON"),
    "InvalidRequest": errors.InvalidRequest("not now"),
    "MethodNotFound": errors.MethodNotFound("no such method"),
    "InvalidParams": errors.InvalidParams("no such cursor", {"cursor": "x"}),
    "ComponentNotFound": errors.ComponentNotFound("tool", "ad", ["add"]),
    "ResourceNotFound": errors.ResourceNotFound("note://1"),
    "InternalError": errors.InternalError("Internal error (error id 1)", {"errorId": "1"}),
    "TooManyRequests": errors.TooManyRequests(3),
    "HeaderMismatch": errors.HeaderMismatch("Mcp-Name is not the name"),
    "MissingClientCapability": errors.MissingClientCapability({"sampling": {}}),
    "UnsupportedProtocolVersion": errors.UnsupportedProtocolVersion("1999-01-01", ["2026-07-28"]),
    "ProtocolError": ProtocolError("of its own", {"a": 1}, code=-31999),
}


def failing(handler: Handler) -> Handler:
    async def answer(call: Call) -> Any:
        if call.method == "prompts/get":
            raise EXAMPLES[METHODS[call.method].decode(call.params).name]
        return await handler(call)

    return answer


server = Server("failing", middleware=[failing])

if __name__ == "__main__":
    server.run()
