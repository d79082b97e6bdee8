"""What can go wrong on the way to a token, drawn before it is written.

```
AuthorizationFailed          no token, or none that the server takes
├── UnsafeAddress            a URL that a server named, and that we do not visit
├── DiscoveryFailed          there is no usable metadata about where tokens come from
│   ├── ResourceMismatch           the metadata is about another server
│   └── IssuerMismatch             the metadata is another issuer's
├── RegistrationFailed       there is no client id to be had
│   └── CredentialsMismatch        there is one, and it belongs to another issuer
├── RedirectRejected         what came back from the browser is not the answer to what we asked
├── GrantDenied              the authorization server said no; `error` is its code
└── TokenRejected            the MCP server refuses the token that it sent us to get
    └── ScopeRejected              and says each time that the scopes do not suffice
```

The texts are for people: what was asked, what was said, what to do about it.
"""

from __future__ import annotations

from portico.protocol.errors import Error

_LONGEST_QUOTE = 300

_ADVICE = {
    "access_denied": "Access was declined, at the browser or by policy. Start again to be asked again.",
    "invalid_client": "Check the client id and its secret or key; if they were registered automatically, start again.",
    "invalid_grant": "What was presented is expired, revoked or used up. Start again to log in anew.",
    "invalid_scope": "One of the scopes is not to be had there.",
    "invalid_target": "The authorization server does not know this MCP server. Their operator has to connect them.",
    "unauthorized_client": "This client may not use this grant. The operator of the authorization server can allow it.",
    "unsupported_grant_type": "The authorization server does not do this. Configure another way to log in.",
    "temporarily_unavailable": "Try again later.",
    "invalid_dpop_proof": "If everything else is right, compare this machine's clock with the world's.",
}


def quoted(text: object) -> str:
    """Text of another party, fit to stand in ours: one line, printable, bounded."""
    words = "".join(char if char.isprintable() else " " for char in str(text)[: _LONGEST_QUOTE + 1])
    return f"“{words[:_LONGEST_QUOTE]}…”" if len(words) > _LONGEST_QUOTE else f"“{words}”"


class AuthorizationFailed(Error):
    """There is no token, or none that the server takes."""


class UnsafeAddress(AuthorizationFailed):
    """A URL that a server named, and that we do not visit."""


class DiscoveryFailed(AuthorizationFailed):
    """There is no usable metadata about where tokens for this server come from."""


class ResourceMismatch(DiscoveryFailed):
    def __init__(self, server: str, metadata: str, resource: str) -> None:
        super().__init__(
            f"The metadata at {quoted(metadata)} is about the resource {quoted(resource)}, and we are talking to "
            f"{quoted(server)}. A token for one is not for the other, so none was asked for. If the address is right, "
            "tell the operator of the server that its protected resource metadata names another one."
        )
        self.resource = resource


class IssuerMismatch(DiscoveryFailed):
    def __init__(self, expected: str, metadata: str, found: str) -> None:
        super().__init__(
            f"The authorization server metadata at {quoted(metadata)} says that its issuer is {quoted(found)}; it has "
            f"to be {quoted(expected)}, to the letter. The document was not used. The server's operator has to make "
            "`authorization_servers` and `issuer` the same string."
        )
        self.expected = expected
        self.found = found


class RegistrationFailed(AuthorizationFailed):
    """There is no client id to be had."""


class CredentialsMismatch(RegistrationFailed):
    def __init__(self, client: str, theirs: str, issuer: str) -> None:
        super().__init__(
            f"The client {quoted(client)} is registered with {quoted(theirs)}, and the server now sends us to "
            f"{quoted(issuer)}. Credentials are shown to their own issuer only. If the move is genuine, register "
            "with the new issuer and configure what it gives you."
        )


class RedirectRejected(AuthorizationFailed):
    """What came back from the browser is not the answer to what we asked."""


class GrantDenied(AuthorizationFailed):
    """The authorization server said no; `error` is the code it gave, empty when it gave none."""

    def __init__(self, asked: str, error: str, description: str | None = None) -> None:
        said = quoted(error) if error else "something that is not an OAuth error"
        words = f"{asked}: the answer was {said}"
        if description:
            words += f", {quoted(description)}"
        super().__init__(f"{words}. {_ADVICE.get(error, '')}".rstrip())
        self.error = error
        self.description = description


class TokenRejected(AuthorizationFailed):
    """The MCP server refuses the token that it sent us to get."""


class ScopeRejected(TokenRejected):
    """It says, time after time, that the scopes do not suffice."""
