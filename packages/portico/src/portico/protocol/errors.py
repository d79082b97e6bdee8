"""What can go wrong, drawn before it is written.

```
Error                        everything we raise on purpose
├── ProtocolError            has a place on the wire: code, message, data; one class per code
│   ├── ParseError                 -32700  the bytes are not JSON
│   ├── InvalidRequest             -32600  JSON, but not a message, or not at this moment
│   ├── MethodNotFound             -32601
│   ├── InvalidParams              -32602  also: unknown tool, unknown prompt, bad cursor
│   │   ├── Unknown                        a tool or prompt that is not there
│   │   └── ResourceNotFound       -32602, and -32002 before 2026-07-28
│   ├── InternalError              -32603
│   ├── TooManyRequests            -32005  and 429 over HTTP
│   ├── HeaderMismatch             -32020  2026-07-28
│   ├── MissingCapability          -32021  2026-07-28
│   └── UnsupportedVersion         -32022  2026-07-28
├── TransportError           the bytes did not make it
│   ├── ConnectFailed              a ConnectionError: nothing answered where the server should be; nothing was sent
│   ├── Closed                     a ConnectionError: the other side is gone
│   │   └── SessionLost            it is there, and does not know us any more
│   ├── TimedOut                   a TimeoutError: no answer in time
│   └── BadStatus                  an HTTP status where an answer should be
├── ToolError                a tool said no: an isError result, never a JSON-RPC error
│   ├── InsufficientScope          because the principal lacks scopes
│   ├── Refused                    because the client would not answer what the tool asked of it
│   └── NeedsTask                  because it runs only as a task, and the client's revision has none
└── UsageError               our API was misused; raised while building, never while answering
```

TimeoutError and ConnectionError are OSErrors: a block that may raise a TransportError and catches an OSError of its own
has to catch the TransportError first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from portico.protocol.versions import MODERN, Revision

# Before 2026-07-28 a resource that is not there had a code of its own.
RESOURCE_NOT_FOUND = -32002
# Of 2025-11-25 alone.
URL_ELICITATION_REQUIRED = -32042
# What 2026-07-28 has defined of the codes that are for it alone (basic, Error Codes).
_DEFINED = (-32020, -32021, -32022)


class Error(Exception):
    """Everything Portico raises on purpose."""


class ProtocolError(Error):
    """An error with a place on the wire. The class is the code."""

    code: int = -32603
    title: ClassVar[str] = "Internal error"
    # The HTTP status that it came with, where it came over HTTP.
    status: int = 0
    # After how many seconds the server wants to be asked again, where it says to wait.
    retry_after: float | None = None

    def __init__(self, message: str = "", data: Any = None, *, code: int | None = None) -> None:
        super().__init__(message or self.title)
        self.message = message or self.title
        self.data = data
        if code is not None:
            self.code = code

    def code_at(self, revision: Revision | None) -> int:
        """The code this error has on one revision's wire. 2026-07-28 has taken some, and given up others."""
        if revision is not None and revision < MODERN:
            return self.code
        if self.code == RESOURCE_NOT_FOUND:
            return -32602
        taken = -32099 <= self.code <= -32020 or self.code == URL_ELICITATION_REQUIRED
        return -32603 if taken and self.code not in _DEFINED else self.code

    @classmethod
    def fits(cls, code: int, message: str, data: Any) -> bool:
        """Whether an error that was received is of this class. Only subclasses that share their code say more."""
        return code == cls.code


class ParseError(ProtocolError):
    code = -32700
    title = "Parse error"


class InvalidRequest(ProtocolError):
    code = -32600
    title = "Invalid request"


class MethodNotFound(ProtocolError):
    code = -32601
    title = "Method not found"


class InvalidParams(ProtocolError):
    code = -32602
    title = "Invalid params"


class Unknown(InvalidParams):
    """A tool or a prompt that the server does not have, and the names that may have been meant."""

    def __init__(self, kind: str, name: str, suggestions: list[str]) -> None:
        data: dict[str, Any] = {"name": name[:128]}
        if suggestions:
            data["suggestions"] = suggestions
        super().__init__(f"Unknown {kind}: {name}", data)

    @classmethod
    def fits(cls, code: int, message: str, data: Any) -> bool:
        """The specification has no code for it; the words are those of its example (server/tools, Error Handling)."""
        return code == cls.code and message.startswith(("Unknown tool: ", "Unknown prompt: "))


class ResourceNotFound(InvalidParams):
    """2026-07-28 gave up the code of its own that earlier revisions have (server/resources, Error Handling)."""

    title = "Resource not found"

    def __init__(self, uri: str, details: Mapping[str, Any] | None = None) -> None:
        super().__init__(f"Resource not found: {uri}", {**(details or {}), "uri": uri})

    def code_at(self, revision: Revision | None) -> int:
        return InvalidParams.code if revision is None or revision >= MODERN else RESOURCE_NOT_FOUND

    @classmethod
    def fits(cls, code: int, message: str, data: Any) -> bool:
        """Clients should take the old code from newer servers too. `data.uri` alone could be about any resource."""
        if code == RESOURCE_NOT_FOUND:
            return True
        return code == cls.code and message.startswith(cls.title) and isinstance(data, dict) and "uri" in data


class InternalError(ProtocolError):
    code = -32603
    title = "Internal error"


class TooManyRequests(ProtocolError):
    """More is asked than is allowed; `retry_after` are the seconds to wait."""

    code = -32005
    title = "Too many requests"

    def __init__(self, retry_after: int) -> None:
        super().__init__(f"{self.title}: wait {retry_after} s", {"retryAfter": retry_after})
        self.retry_after = retry_after


class HeaderMismatch(ProtocolError):
    code = -32020
    title = "Header mismatch"


class MissingCapability(ProtocolError):
    """The answer needs something the client did not declare. Before 2026-07-28 there is no code for it."""

    code = -32021
    title = "Missing required client capability"

    def __init__(self, required: dict[str, Any]) -> None:
        names = ", ".join(sorted(required))
        super().__init__(f"{self.title}: {names}", {"requiredCapabilities": required})

    @property
    def extensions(self) -> frozenset[str]:
        """The extensions that the client would have to declare."""
        required = self.data.get("requiredCapabilities") if isinstance(self.data, dict) else None
        named = required.get("extensions") if isinstance(required, dict) else None
        return frozenset(named) if isinstance(named, dict) else frozenset()

    def code_at(self, revision: Revision | None) -> int:
        return type(self).code if revision is None or revision >= MODERN else InvalidRequest.code

    @classmethod
    def fits(cls, code: int, message: str, data: Any) -> bool:
        named = isinstance(data, dict) and isinstance(data.get("requiredCapabilities"), dict)
        return code == cls.code or (code == InvalidRequest.code and named)


class UnsupportedVersion(ProtocolError):
    code = -32022
    title = "Unsupported protocol version"

    def __init__(self, requested: str, supported: list[str]) -> None:
        super().__init__(f"{self.title}: {requested}", {"supported": supported, "requested": requested})


# The classes that share a code with another one come first: they look at more than the code.
_RECEIVED: tuple[type[ProtocolError], ...] = (
    MissingCapability,
    ResourceNotFound,
    Unknown,
    TooManyRequests,
    ParseError,
    InvalidRequest,
    MethodNotFound,
    InvalidParams,
    InternalError,
    HeaderMismatch,
    UnsupportedVersion,
)


def from_wire(code: int, message: str, data: Any = None, *, status: int = 0) -> ProtocolError:
    """The error that the other side sent, as the class it was raised with; a ProtocolError if no class has the code."""
    kind = next((kind for kind in _RECEIVED if kind.fits(code, message, data)), ProtocolError)
    failure = kind.__new__(kind, message)
    # The constructors of some take what their message is made of, and here the message is made already.
    ProtocolError.__init__(failure, message, data, code=code)
    failure.status = status
    return failure


class TransportError(Error):
    """The bytes did not make it."""


class ConnectFailed(TransportError, ConnectionError):
    """The connection to the server could not be established. Nothing was sent."""


class Closed(TransportError, ConnectionError):
    """The connection was closed by the other side."""


class SessionLost(Closed):
    """The other side is there, and does not know us any more. A new session can be had."""


class BadStatus(TransportError):
    """HTTP said no, and not in the protocol's words. `retry_after`: seconds, where it said when to ask again."""

    def __init__(self, message: str, status: int, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after


class TimedOut(TransportError, TimeoutError):
    """The other side did not answer in time."""


class ToolError(Error):
    """A tool says no. The text goes to the model as it is, so write it for the model.

    `kind` and `details` say the same to programs, and `retryable` whether the same call may work later. A class of its
    own may set `kind` and `retryable` for all its errors.
    """

    kind: str = ""
    retryable: bool = False

    def __init__(
        self,
        text: str = "",
        *,
        kind: str | None = None,
        details: Mapping[str, Any] | None = None,
        retryable: bool | None = None,
    ) -> None:
        super().__init__(text)
        self.details: dict[str, Any] = dict(details or {})
        if kind is not None:
            self.kind = kind
        if retryable is not None:
            self.retryable = retryable

    def described(self) -> dict[str, Any] | None:
        """What a result's `_meta` says of it under `portico/error`; None for an error that is only a text."""
        if not self.kind and not self.details:
            return None
        return {"error_type": self.kind or "ToolExecutionError", "retryable": self.retryable, **self.details}


class InsufficientScope(ToolError):
    """The principal lacks scopes. `scopes` are all that this operation needs, so that they can be had in one go.

    Over HTTP, where tokens come from an authorization server, it is a 403 that says so; elsewhere the model reads it.
    """

    kind = "PermissionError"

    def __init__(self, what: str, scopes: Iterable[str], missing: Iterable[str] | None = None) -> None:
        self.scopes = frozenset(scopes)
        lacking = ", ".join(sorted(self.scopes if missing is None else missing))
        super().__init__(f"{what} needs the scope {lacking}.")


class NeedsTask(ToolError):
    """A tool that runs only as a task was called by a client whose revision has none. Nothing was done."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name!r} takes longer than a call may, and this client cannot deal with tasks.")


class Refused(ToolError):
    """The client would not answer what a body asked of it. A body may catch this and do without."""


class UsageError(Error):
    """Portico's own API was misused. Raised while a server is built, never while it answers."""
