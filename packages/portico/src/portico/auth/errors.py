"""Errors of the OAuth client.

```
AuthorizationError           no token, or none that the server accepts
├── UnsafeUrl                a URL from another party that must not be visited
├── DiscoveryError           no usable metadata about the authorization server
│   ├── ResourceMismatch           the metadata describes another resource
│   └── IssuerMismatch             the metadata names another issuer
├── RegistrationError        no client id, or one that belongs to another issuer
├── InvalidRedirect          the redirect does not answer this login
├── GrantDenied              the authorization server refused; `error` is its code
└── TokenRejected            the MCP server refuses the token that was issued for it
    └── ScopeRejected              repeatedly, with insufficient_scope
```

Messages are for users: what was requested, what the server answered, what to do.
"""

from __future__ import annotations

from portico.protocol.errors import PorticoError
from portico.text import one_line

_MAX_QUOTE_CHARS = 300

_ADVICE = {
    "access_denied": "Access was denied, in the browser or by policy. Start again to be asked again.",
    "invalid_client": "Check the client id and its secret or key; if they were registered automatically, start again.",
    "invalid_grant": "The grant is expired, revoked or already used. Log in again.",
    "invalid_scope": "One of the scopes is not available there.",
    "invalid_target": "The authorization server does not know this MCP server. Their operator has to connect them.",
    "unauthorized_client": "This client may not use this grant. The operator of the authorization server can allow it.",
    "unsupported_grant_type": "The authorization server does not support this grant type. Configure another one.",
    "temporarily_unavailable": "Try again later.",
    "invalid_dpop_proof": "If everything else is right, check the clock of this machine.",
}


def quote_untrusted(text: object) -> str:
    """Return untrusted text quoted on one line, printable and truncated."""
    return f"“{one_line(str(text), _MAX_QUOTE_CHARS)}”"


class AuthorizationError(PorticoError):
    """No token is available, or the server accepts none."""


class UnsafeUrl(AuthorizationError):
    """A URL named by another party that must not be visited."""


class DiscoveryError(AuthorizationError):
    """No usable metadata about the authorization server of this resource."""


class ResourceMismatch(DiscoveryError):
    """The protected resource metadata describes another resource."""

    def __init__(self, server: str, metadata: str, resource: str) -> None:
        super().__init__(
            f"The metadata at {quote_untrusted(metadata)} describes the resource {quote_untrusted(resource)}, "
            f"but the server is {quote_untrusted(server)}. No token was requested, because a token for one is "
            "not valid for the other. If the URL is right, ask the operator of the server to correct its "
            "protected resource metadata."
        )
        self.resource = resource


class IssuerMismatch(DiscoveryError):
    """The authorization server metadata names another issuer."""

    def __init__(self, expected: str, metadata: str, received: str) -> None:
        super().__init__(
            f"The authorization server metadata at {quote_untrusted(metadata)} names the issuer "
            f"{quote_untrusted(received)}, expected exactly {quote_untrusted(expected)}. The document was not "
            "used. The operator has to make `authorization_servers` and `issuer` the same string."
        )
        self.expected = expected
        self.found = received


class RegistrationError(AuthorizationError):
    """No client id is available."""


def credentials_mismatch(client: str, expected: str, issuer: str) -> RegistrationError:
    """Return the error for credentials of a client that belong to another issuer."""
    return RegistrationError(
        f"The client {quote_untrusted(client)} is registered with {quote_untrusted(expected)}, but the "
        f"server now names {quote_untrusted(issuer)}. Credentials are sent only to their issuer. If the "
        "change is genuine, register with the new issuer and configure the new credentials."
    )


class InvalidRedirect(AuthorizationError):
    """The redirect from the browser does not answer this login."""


class GrantDenied(AuthorizationError):
    """The authorization server refused the grant; `error` is its code, or empty if it sent none."""

    def __init__(self, request: str, error: str, description: str | None = None) -> None:
        error_text = quote_untrusted(error) if error else "a response that is not an OAuth error"
        words = f"{request}: the response was {error_text}"
        if description:
            words += f", {quote_untrusted(description)}"
        super().__init__(f"{words}. {_ADVICE.get(error, '')}".rstrip())
        self.error = error
        self.description = description


class TokenRejected(AuthorizationError):
    """The MCP server refuses the token that was issued for it."""


class ScopeRejected(TokenRejected):
    """The MCP server repeatedly reports insufficient scopes."""
