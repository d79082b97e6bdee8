"""The exceptions that Portico raises: for programs that catch them, on the client's side and on the server's.

Each is a subclass of `portico.Error`. `TimedOut` is also a `TimeoutError`; `ConnectFailed` and `Closed` are also
`ConnectionError`s. A name is imported when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from portico._lazy import public_names

if TYPE_CHECKING:
    from portico.auth.errors import (
        AuthorizationFailed,
        CredentialsMismatch,
        DiscoveryFailed,
        GrantDenied,
        IssuerMismatch,
        RedirectRejected,
        RegistrationFailed,
        ResourceMismatch,
        ScopeRejected,
        TokenRejected,
        UnsafeAddress,
    )
    from portico.client.input_handlers import UnfitAnswer
    from portico.client.results import (
        BrokenPromise,
    )
    from portico.client.skills import (
        SkillMismatch,
    )
    from portico.protocol.errors import (
        BadStatus,
        Closed,
        ConnectFailed,
        Error,
        HeaderMismatch,
        InsufficientScope,
        InternalError,
        InvalidParams,
        InvalidRequest,
        MethodNotFound,
        MissingCapability,
        NeedsTask,
        ParseError,
        ProtocolError,
        Refused,
        ResourceNotFound,
        SessionLost,
        TimedOut,
        ToolError,
        TooManyRequests,
        TransportError,
        Unknown,
        UnsupportedVersion,
        UsageError,
    )
    from portico.store.errors import (
        StoreError,
    )

_HOMES = {
    "portico.auth.errors": (
        "AuthorizationFailed",
        "CredentialsMismatch",
        "DiscoveryFailed",
        "GrantDenied",
        "IssuerMismatch",
        "RedirectRejected",
        "RegistrationFailed",
        "ResourceMismatch",
        "ScopeRejected",
        "TokenRejected",
        "UnsafeAddress",
    ),
    "portico.client.input_handlers": ("UnfitAnswer",),
    "portico.client.results": ("BrokenPromise",),
    "portico.client.skills": ("SkillMismatch",),
    "portico.store.errors": ("StoreError",),
    "portico.protocol.errors": (
        "BadStatus",
        "Closed",
        "ConnectFailed",
        "Error",
        "HeaderMismatch",
        "InsufficientScope",
        "InternalError",
        "InvalidParams",
        "InvalidRequest",
        "MethodNotFound",
        "MissingCapability",
        "NeedsTask",
        "ParseError",
        "ProtocolError",
        "Refused",
        "ResourceNotFound",
        "SessionLost",
        "TimedOut",
        "TooManyRequests",
        "ToolError",
        "TransportError",
        "Unknown",
        "UnsupportedVersion",
        "UsageError",
    ),
}

__all__ = [
    "AuthorizationFailed",
    "BadStatus",
    "BrokenPromise",
    "Closed",
    "ConnectFailed",
    "CredentialsMismatch",
    "DiscoveryFailed",
    "Error",
    "GrantDenied",
    "HeaderMismatch",
    "InsufficientScope",
    "InternalError",
    "InvalidParams",
    "InvalidRequest",
    "IssuerMismatch",
    "MethodNotFound",
    "MissingCapability",
    "NeedsTask",
    "ParseError",
    "ProtocolError",
    "RedirectRejected",
    "Refused",
    "RegistrationFailed",
    "ResourceMismatch",
    "ResourceNotFound",
    "ScopeRejected",
    "SessionLost",
    "SkillMismatch",
    "StoreError",
    "TimedOut",
    "TokenRejected",
    "TooManyRequests",
    "ToolError",
    "TransportError",
    "UnfitAnswer",
    "Unknown",
    "UnsafeAddress",
    "UnsupportedVersion",
    "UsageError",
]

if not TYPE_CHECKING:  # a type checker would accept any name of a module with __getattr__
    __getattr__, __dir__ = public_names(__name__, _HOMES)
