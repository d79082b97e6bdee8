"""Tokens and token endpoint responses."""

from __future__ import annotations

import math
import re
from typing import Any, Literal

from msgspec import Struct

from portico.auth.errors import AuthorizationError, GrantDenied, quote_untrusted
from portico.auth.flow import FetchResponse
from portico.auth.url_policy import resource_covers

# Visible ASCII: other characters could end or split the header that carries the token.
_HEADER_SAFE = re.compile(r"[\x21-\x7e]+")

# Treat a token as expired early, so that it does not expire in transit.
_CLOCK_SKEW_SECONDS = 10.0


class Token(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Access token of one issuer for one resource; never sent to another server."""

    access_token: str
    issuer: str
    resource: str
    type: Literal["Bearer", "DPoP"] = "Bearer"
    expires_at: float | None = None
    refresh_token: str | None = None
    # Granted scopes, or the requested ones if the issuer does not report them.
    scope: str = ""
    # Requested scopes; a step-up requests them again.
    requested_scopes: tuple[str, ...] = ()
    # The private key that a DPoP token is bound to, as a JWK.
    dpop_key: str | None = None
    # URL of the MCP server that the token was obtained for; empty in tokens stored without it.
    server: str = ""

    def is_for(self, url: str) -> bool:
        """Return whether the token may be sent to a URL.

        Its resource must cover the URL, and the stored server URL, if there is one, must be equal.
        """
        return resource_covers(self.resource, url) and self.server in ("", url)

    def is_expired(self, now: float) -> bool:
        """Return whether the token has expired or is about to."""
        return self.expires_at is not None and now >= self.expires_at - _CLOCK_SKEW_SECONDS

    def __repr__(self) -> str:
        # The token itself must not appear in logs.
        return f"Token({self.type}, issuer={self.issuer!r}, resource={self.resource!r}, scope={self.scope!r})"


class TokenEndpointResponse(Struct, frozen=True):
    """Successful response of a token endpoint."""

    token: str
    type: str
    expires_in: float | None
    refresh_token: str | None
    scope: str | None
    issued_token_type: str | None
    id_token: str | None = None

    def __repr__(self) -> str:
        return f"TokenEndpointResponse({self.type}, scope={self.scope!r})"


def parse_token_response(response: FetchResponse, description: str) -> TokenEndpointResponse:
    """Parse a token endpoint response. `description` says in error messages what was requested.

    Raises `GrantDenied` for an OAuth error and `AuthorizationError` for an unusable response.
    """
    result = response.json_object()
    if response.status != 200 or result is None or "error" in result:
        raise to_error(response, description)
    return TokenEndpointResponse(
        _header_value(result.get("access_token"), "access token", description),
        str(result.get("token_type") or ""),
        _parse_lifetime(result.get("expires_in")),
        _header_value(result["refresh_token"], "refresh token", description) if result.get("refresh_token") else None,
        result["scope"] if isinstance(result.get("scope"), str) else None,
        str(result["issued_token_type"]) if "issued_token_type" in result else None,
        result["id_token"] if isinstance(result.get("id_token"), str) else None,
    )


def to_error(response: FetchResponse, request: str) -> AuthorizationError:
    """Convert an error response: GrantDenied for an OAuth error, AuthorizationError for a server failure."""
    result = response.json_object() or {}
    error, description = result.get("error"), result.get("error_description")
    if isinstance(error, str) and error:
        return GrantDenied(request, error, description if isinstance(description, str) else None)
    # Not a refusal: the grant and its refresh token stay valid, so callers must not discard them.
    if response.status >= 500 or response.status in (408, 429):
        return AuthorizationError(f"{request}: the server failed (HTTP {response.status}). Try again later.")
    return GrantDenied(f"{request} (HTTP {response.status})", "")


def _header_value(value: Any, name: str, request: str) -> str:
    if not isinstance(value, str) or not _HEADER_SAFE.fullmatch(value):
        raise AuthorizationError(f"{request}: the response has no {name} that can be sent in a header.")
    return value


def _parse_lifetime(value: Any) -> float | None:
    """Return the lifetime in seconds, also from text, which some servers send; None if it is invalid."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        seconds = float(value)
    except (ValueError, OverflowError):
        return None
    # An invalid lifetime means an unknown one; the server answers 401 when the token has expired.
    return seconds if math.isfinite(seconds) and seconds > 0 else None


def validate_token_type(issued: TokenEndpointResponse, description: str, *, dpop: bool) -> Literal["Bearer", "DPoP"]:
    """Return the token type. A Bearer token in response to a DPoP proof is refused: the binding would be lost."""
    token_type = issued.type.lower()
    if token_type == ("dpop" if dpop else "bearer"):
        return "DPoP" if dpop else "Bearer"
    expected = "DPoP" if dpop else "Bearer"
    raise AuthorizationError(
        f"{description}: the token has the type {quote_untrusted(issued.type)}, expected {expected}."
    )
