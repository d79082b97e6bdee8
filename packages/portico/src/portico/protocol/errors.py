"""Exceptions.

```
PorticoError                 base class of all exceptions that Portico raises deliberately
├── ProtocolError            a JSON-RPC error: code, message, data; one class per code
│   ├── ParseError                 -32700  the bytes are not JSON
│   ├── InvalidRequest             -32600  JSON, but not a valid message, or not allowed now
│   ├── MethodNotFound             -32601
│   ├── InvalidParams              -32602  also: unknown tool, unknown prompt, invalid cursor
│   │   ├── ComponentNotFound              an unknown tool or prompt
│   │   └── ResourceNotFound       -32602, and -32002 before 2026-07-28
│   ├── InternalError              -32603
│   ├── TooManyRequests            -32005  429 over HTTP
│   ├── HeaderMismatch             -32020  2026-07-28
│   ├── MissingClientCapability    -32021  2026-07-28
│   └── UnsupportedProtocolVersion -32022  2026-07-28
├── TransportError           a message could not be delivered
│   ├── ConnectError               a ConnectionError: no connection to the server; nothing was sent
│   ├── ConnectionClosed           a ConnectionError: the other side closed the connection
│   │   └── SessionExpired         the server no longer knows the session
│   ├── RequestTimeout             a TimeoutError: no response in time
│   └── HttpStatusError            an HTTP error status instead of a response
├── ToolError                a tool failed: an isError result, never a JSON-RPC error
│   ├── InsufficientScope          the principal lacks scopes
│   ├── ClientRequestFailed        the client did not answer a request of the tool
│   └── TaskRequired               the tool runs only as a task, and the client's version has none
└── UsageError               Portico's API was misused; raised while building, never while handling requests
```

TimeoutError and ConnectionError are OSErrors: code that may raise a TransportError and catches OSError must catch the
TransportError first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from portico.protocol.versions import FIRST_MODERN_VERSION, ProtocolVersion

# Before 2026-07-28 missing resources have a separate code.
RESOURCE_NOT_FOUND = -32002
# 2025-11-25 only.
URL_ELICITATION_REQUIRED = -32042
# Codes of the reserved range that 2026-07-28 defines (basic, Error Codes).
_MODERN_ERROR_CODES = (-32020, -32021, -32022)


class PorticoError(Exception):
    """Base class of all exceptions that Portico raises deliberately."""


class ProtocolError(PorticoError):
    """A JSON-RPC error. The class determines the code."""

    code: int = -32603
    default_message: ClassVar[str] = "Internal error"
    # HTTP status of the response, if it came over HTTP.
    http_status: int = 0
    # Seconds after which the server asks to retry, if it does.
    retry_after: float | None = None

    def __init__(self, message: str = "", data: Any = None, *, code: int | None = None) -> None:
        super().__init__(message or self.default_message)
        self.message = message or self.default_message
        self.data = data
        if code is not None:
            self.code = code

    def code_for(self, protocol_version: ProtocolVersion | None) -> int:
        """Return the code of this error in a protocol version. 2026-07-28 reserved some codes and dropped others."""
        if protocol_version is not None and protocol_version < FIRST_MODERN_VERSION:
            return self.code
        if self.code == RESOURCE_NOT_FOUND:
            return -32602
        # 2026-07-28 (basic) reserves this range for the specification: an error of our own with such a code
        # would be misread by a client, so it is sent as an internal error.
        is_reserved = -32099 <= self.code <= -32020 or self.code == URL_ELICITATION_REQUIRED
        return -32603 if is_reserved and self.code not in _MODERN_ERROR_CODES else self.code

    @classmethod
    def matches(cls, code: int, message: str, data: Any) -> bool:
        """Return whether a received error belongs to this class. Only subclasses that share a code check more."""
        return code == cls.code


class ParseError(ProtocolError):
    code = -32700
    default_message = "Parse error"


class InvalidRequest(ProtocolError):
    code = -32600
    default_message = "Invalid request"


# Names from a request that are sent back must not be arbitrarily long.
_MAX_ECHOED_CHARS = 128


class MethodNotFound(ProtocolError):
    code = -32601
    default_message = "Method not found"

    @classmethod
    def of(cls, method: str) -> MethodNotFound:
        """Return the error for a method that does not exist."""
        return cls(f"Method not found: {method[:_MAX_ECHOED_CHARS]}")


class InvalidParams(ProtocolError):
    code = -32602
    default_message = "Invalid params"


class ComponentNotFound(InvalidParams):
    """An unknown tool or prompt, with similar names."""

    def __init__(self, kind: str, name: str, suggestions: list[str]) -> None:
        name = name[:_MAX_ECHOED_CHARS]
        data: dict[str, Any] = {"name": name}
        if suggestions:
            data["suggestions"] = suggestions
        super().__init__(f"Unknown {kind}: {name}", data)

    @classmethod
    def matches(cls, code: int, message: str, data: Any) -> bool:
        """Match by message: the specification has no code, only an example text (server/tools, Error Handling)."""
        return code == cls.code and message.startswith(("Unknown tool: ", "Unknown prompt: "))


class ResourceNotFound(InvalidParams):
    """A missing resource. 2026-07-28 dropped its separate code (server/resources, Error Handling)."""

    default_message = "Resource not found"

    def __init__(self, uri: str, details: Mapping[str, Any] | None = None) -> None:
        super().__init__(f"Resource not found: {uri}", {**(details or {}), "uri": uri})

    def code_for(self, protocol_version: ProtocolVersion | None) -> int:
        return (
            InvalidParams.code
            if protocol_version is None or protocol_version >= FIRST_MODERN_VERSION
            else RESOURCE_NOT_FOUND
        )

    @classmethod
    def matches(cls, code: int, message: str, data: Any) -> bool:
        """Match the old code, which clients should accept from newer servers too. `data.uri` alone is ambiguous."""
        if code == RESOURCE_NOT_FOUND:
            return True
        return code == cls.code and message.startswith(cls.default_message) and isinstance(data, dict) and "uri" in data


class InternalError(ProtocolError):
    code = -32603
    default_message = "Internal error"


class TooManyRequests(ProtocolError):
    """A rate limit was exceeded; `retry_after` is the number of seconds to wait."""

    code = -32005
    default_message = "Too many requests"

    def __init__(self, retry_after: int) -> None:
        super().__init__(f"{self.default_message}: wait {retry_after} s", {"retryAfter": retry_after})
        self.retry_after = retry_after


class HeaderMismatch(ProtocolError):
    code = -32020
    default_message = "Header mismatch"


class MissingClientCapability(ProtocolError):
    """The response needs a capability that the client did not declare. Before 2026-07-28 there is no code for it."""

    code = -32021
    default_message = "Missing required client capability"

    def __init__(self, required: dict[str, Any]) -> None:
        names = ", ".join(sorted(required))
        super().__init__(f"{self.default_message}: {names}", {"requiredCapabilities": required})

    @property
    def required_extensions(self) -> frozenset[str]:
        """Return the extensions that the client would have to declare."""
        required = self.data.get("requiredCapabilities") if isinstance(self.data, dict) else None
        named = required.get("extensions") if isinstance(required, dict) else None
        return frozenset(named) if isinstance(named, dict) else frozenset()

    def code_for(self, protocol_version: ProtocolVersion | None) -> int:
        return (
            type(self).code
            if protocol_version is None or protocol_version >= FIRST_MODERN_VERSION
            else InvalidRequest.code
        )

    @classmethod
    def matches(cls, code: int, message: str, data: Any) -> bool:
        named = isinstance(data, dict) and isinstance(data.get("requiredCapabilities"), dict)
        # Before 2026-07-28 servers have no code for it, and ours send InvalidRequest with the same data.
        return code == cls.code or (code == InvalidRequest.code and named)


class UnsupportedProtocolVersion(ProtocolError):
    code = -32022
    default_message = "Unsupported protocol version"

    def __init__(self, requested: str, supported: list[str]) -> None:
        super().__init__(f"{self.default_message}: {requested}", {"supported": supported, "requested": requested})


# Classes that share a code come first: they check more than the code.
_RECEIVED_ERROR_TYPES: tuple[type[ProtocolError], ...] = (
    MissingClientCapability,
    ResourceNotFound,
    ComponentNotFound,
    TooManyRequests,
    ParseError,
    InvalidRequest,
    MethodNotFound,
    InvalidParams,
    InternalError,
    HeaderMismatch,
    UnsupportedProtocolVersion,
)


def error_from_response(code: int, message: str, data: Any = None, *, http_status: int = 0) -> ProtocolError:
    """Return a received error as the matching class, or as ProtocolError if no class has the code."""
    # The first match wins, so the order of the table matters.
    kind = next((kind for kind in _RECEIVED_ERROR_TYPES if kind.matches(code, message, data)), ProtocolError)
    failure = kind.__new__(kind, message)
    # Some constructors build the message from parts; here the message is complete.
    ProtocolError.__init__(failure, message, data, code=code)
    failure.http_status = http_status
    return failure


class TransportError(PorticoError):
    """A message could not be delivered."""


class ConnectError(TransportError, ConnectionError):
    """The connection to the server could not be established. Nothing was sent."""


class ConnectionClosed(TransportError, ConnectionError):
    """The connection was closed by the other side."""


class SessionExpired(ConnectionClosed):
    """The server no longer knows the session. The client can open a new one."""


class HttpStatusError(TransportError):
    """An HTTP error status without a JSON-RPC error. `retry_after`: seconds, if the server sent them."""

    def __init__(self, message: str, status: int, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.http_status = status
        self.retry_after = retry_after


class RequestTimeout(TransportError, TimeoutError):
    """The other side did not respond in time."""


class ToolError(PorticoError):
    """A tool failed. The model reads the message unchanged, so write it for the model.

    `error_type` and `details` describe the error for programs; `retryable` says whether the same call may succeed
    later. Subclasses may set `error_type` and `retryable` as class attributes.
    """

    error_type: str = ""
    retryable: bool = False

    def __init__(
        self,
        message: str = "",
        *,
        error_type: str | None = None,
        details: Mapping[str, Any] | None = None,
        retryable: bool | None = None,
    ) -> None:
        super().__init__(message)
        self.details: dict[str, Any] = dict(details or {})
        if error_type is not None:
            self.error_type = error_type
        if retryable is not None:
            self.retryable = retryable

    def to_meta(self) -> dict[str, Any] | None:
        """Return the value of `portico/error` in the result's `_meta`, or None for a plain message."""
        if not self.error_type and not self.details:
            return None
        return {"error_type": self.error_type or "ToolExecutionError", "retryable": self.retryable, **self.details}


class InsufficientScope(ToolError):
    """The principal lacks scopes. `scopes` are all that the operation needs, so that a client can request them
    together.

    Over HTTP with an authorization server it becomes a 403 response with a challenge; otherwise the model reads it.
    """

    error_type = "PermissionError"

    def __init__(self, operation: str, scopes: Iterable[str], missing: Iterable[str] | None = None) -> None:
        self.scopes = frozenset(scopes)
        lacking = ", ".join(sorted(self.scopes if missing is None else missing))
        super().__init__(f"{operation} needs the scope {lacking}.")


class TaskRequired(ToolError):
    """A tool that runs only as a task was called by a client whose protocol version has no tasks. Nothing ran."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name!r} runs only as a task, and this client does not support tasks.")


class ClientRequestFailed(ToolError):
    """The client did not answer a request of a handler. The handler may catch this and continue."""


class UsageError(PorticoError):
    """Portico's API was misused. Raised while a server is built, never while it handles requests."""
