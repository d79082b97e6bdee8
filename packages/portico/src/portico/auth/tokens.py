"""Tokens, and what a token endpoint answers."""

from __future__ import annotations

import math
import re
from typing import Any, Literal

from msgspec import Struct

from portico.auth.errors import AuthorizationFailed, GrantDenied, quoted
from portico.auth.flow import Fetched
from portico.auth.url_policy import covers

# Visible ASCII: whatever else a server calls a token would end or split the header it goes into.
_FIT = re.compile(r"[\x21-\x7e]+")

# A token that is about to expire has expired by the time it arrives.
_TRAVEL_SECONDS = 10.0


class Token(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A token, for one resource, from one issuer. It is shown to no other."""

    access_token: str
    issuer: str
    resource: str
    type: Literal["Bearer", "DPoP"] = "Bearer"
    expires_at: float | None = None
    refresh_token: str | None = None
    # What was granted; what was asked for, when the issuer does not say.
    scope: str = ""
    # What was asked for: asking for more later means asking for this too.
    asked: tuple[str, ...] = ()
    # The private key that a DPoP token is bound to, as a JWK.
    key: str | None = None
    # The URL of the server that it was obtained for; empty in tokens that were stored without it.
    server: str = ""

    def is_for(self, url: str) -> bool:
        """Whether the token may be shown to the server at a URL: its resource covers that, and if it was stored with
        the server's URL, that is the same."""
        return covers(self.resource, url) and self.server in ("", url)

    def expired(self, now: float) -> bool:
        return self.expires_at is not None and now >= self.expires_at - _TRAVEL_SECONDS

    def __repr__(self) -> str:
        return f"Token({self.type}, issuer={self.issuer!r}, resource={self.resource!r}, scope={self.scope!r})"


class Issued(Struct, frozen=True):
    """What a token endpoint gave out."""

    token: str
    type: str
    lifetime: float | None
    refresh_token: str | None
    scope: str | None
    kind: str | None
    id_token: str | None = None

    def __repr__(self) -> str:
        return f"Issued({self.type}, scope={self.scope!r})"


def read_issued(answer: Fetched, asked: str) -> Issued:
    """The answer of a token endpoint. `asked` says, for people, what was asked of whom."""
    found = answer.document()
    if answer.status != 200 or found is None or "error" in found:
        raise refusal(answer, asked)
    return Issued(
        _fit(found.get("access_token"), "access token", asked),
        str(found.get("token_type") or ""),
        _lifetime(found.get("expires_in")),
        _fit(found["refresh_token"], "refresh token", asked) if found.get("refresh_token") else None,
        found["scope"] if isinstance(found.get("scope"), str) else None,
        str(found["issued_token_type"]) if "issued_token_type" in found else None,
        found["id_token"] if isinstance(found.get("id_token"), str) else None,
    )


def refusal(answer: Fetched, asked: str) -> AuthorizationFailed:
    """What a refusal means: one of OAuth's errors, or a server that is not well."""
    found = answer.document() or {}
    error, description = found.get("error"), found.get("error_description")
    if isinstance(error, str) and error:
        return GrantDenied(asked, error, description if isinstance(description, str) else None)
    if answer.status >= 500 or answer.status in (408, 429):
        return AuthorizationFailed(f"{asked}: the server could not (HTTP {answer.status}). Try again later.")
    return GrantDenied(f"{asked} (HTTP {answer.status})", "")


def _fit(value: Any, name: str, asked: str) -> str:
    if not isinstance(value, str) or not _FIT.fullmatch(value):
        raise AuthorizationFailed(f"{asked}: the answer has no {name} that fits into a header.")
    return value


def _lifetime(value: Any) -> float | None:
    """The lifetime in seconds, also from text, which some servers send; None when it makes no sense."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        seconds = float(value)
    except (ValueError, OverflowError):
        return None
    return seconds if math.isfinite(seconds) and seconds > 0 else None


def token_type(issued: Issued, asked: str, *, dpop: bool) -> Literal["Bearer", "DPoP"]:
    """The type, if it is the one we can use. A Bearer token for a DPoP proof is a protection that went missing."""
    kind = issued.type.lower()
    if kind == ("dpop" if dpop else "bearer"):
        return "DPoP" if dpop else "Bearer"
    wanted = "DPoP" if dpop else "Bearer"
    raise AuthorizationFailed(f"{asked}: the token is of type {quoted(issued.type)}, and only {wanted} is of use here.")
