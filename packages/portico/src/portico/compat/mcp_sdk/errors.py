"""Errors of the official SDK."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from portico.protocol.errors import ProtocolError, ResourceNotFound

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603

ResourceNotFoundError = ResourceNotFound


class ErrorData(Struct):
    """The code, message and data of a McpError."""

    code: int
    message: str
    data: Any = None


class McpError(ProtocolError):
    """A JSON-RPC error constructed from code, message and data, or from an ErrorData."""

    def __init__(self, code: Any, message: str = "", data: Any = None) -> None:
        if not isinstance(code, int):
            code, message, data = code.code, code.message, code.data
        super().__init__(message, data, code=code)


MCPError = McpError
