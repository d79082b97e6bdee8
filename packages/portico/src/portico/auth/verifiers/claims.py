"""Validation of token claims and their conversion into a Principal.

The same claims come in JWTs (RFC 9068) and introspection responses (RFC 7662). Providers put scopes and groups into
different claims; `ClaimNames` lists where to look, in order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from portico.auth.principal import Principal
from portico.auth.verifiers.base import InvalidToken, VerifiedToken

# Ids and scopes are stored with sessions and audit records and compared on every request.
MAX_CLAIM_CHARS = 1024
# Limits for logging the audiences of a rejected token.
MAX_AUDIENCES = 3
MAX_AUDIENCE_CHARS = 200
# Longer chains are refused rather than truncated, because a policy may refer to any of the actors.
MAX_ACTORS = 10
MAX_SCOPES = 1000
# Claims of OpenID Connect, RFC 7662 and Entra that describe a user.
_USER_CLAIMS = frozenset(
    {"username", "preferred_username", "email", "upn", "unique_name", "name", "given_name", "family_name"}
    | {"nickname", "phone_number", "sid", "nonce", "auth_time", "act", "may_act"}
)
# The latest time that datetime can represent.
_MAX_TIMESTAMP = 253402300799


class ClaimNames(Struct, frozen=True):
    """Names of the claims that hold the id, scopes and groups."""

    subject: str = "sub"
    # `scope` is defined by RFC 8693, `scp` is used by Entra and Okta.
    scopes: tuple[str, ...] = ("scope", "scp")
    groups: tuple[str, ...] = ("groups",)


def validate_time(claims: Mapping[str, Any], now: float, leeway: float, *, require_expiry: bool) -> float | None:
    """Return the expiry of the token, including leeway. Raises InvalidToken if it has expired or is not valid yet."""
    expires_at, not_before = _timestamp(claims, "exp"), _timestamp(claims, "nbf")
    if expires_at is None and require_expiry:
        raise InvalidToken("the token has no exp claim")
    if expires_at is not None and now >= expires_at + leeway:
        raise InvalidToken("the token has expired")
    if not_before is not None and now < not_before - leeway:
        raise InvalidToken("the token is not valid yet (nbf)")
    return None if expires_at is None else expires_at + leeway


def validate_audience(claims: Mapping[str, Any], audiences: frozenset[str], *, required: bool = True) -> None:
    """Raise InvalidToken if the token is for another audience (2026-07-28, authorization, Token Handling)."""
    claim = claims.get("aud")
    if claim is None and not required:
        return
    named = [claim] if isinstance(claim, str) else claim if isinstance(claim, list) else []
    if not audiences.intersection(item for item in named if isinstance(item, str)):
        if not named:
            raise InvalidToken("the token has no aud claim")
        received = [str(item)[:MAX_AUDIENCE_CHARS] for item in named[:MAX_AUDIENCES]]
        expected = _join_audiences(sorted(audiences))
        raise InvalidToken(f"the token is for another audience: expected {expected}, got {_join_audiences(received)}")


def _join_audiences(audiences: Sequence[str]) -> str:
    return " or ".join(map(repr, audiences)) or "none"


def to_verified_token(
    claims: Mapping[str, Any], issuer: str | None, names: ClaimNames, expires_at: float | None
) -> VerifiedToken:
    """Return the principal that the claims describe. Raises InvalidToken."""
    client = _text(claims, "client_id", "azp", "cid")
    id = _principal_id(claims, names.subject, client)
    confirmation = claims.get("cnf")
    thumbprint = confirmation.get("jkt") if isinstance(confirmation, Mapping) else None
    if confirmation is not None and not isinstance(thumbprint, str):
        # Bound to something else, such as a certificate: accepting it as a bearer token would drop that protection.
        raise InvalidToken("the token is bound to a key by an unsupported confirmation method (cnf)")
    principal = Principal(
        id=id,
        scopes=frozenset(_words(claims, names.scopes)),
        groups=frozenset(_words(claims, names.groups)),
        claims=dict(claims),
        client_id=client,
        issuer=issuer,
        actor_chain=tuple(_actors(claims.get("act"))),
    )
    return VerifiedToken(principal, expires_at, thumbprint)


def _principal_id(claims: Mapping[str, Any], name: str, client: str | None) -> str:
    """Return the principal's id from the configured claim.

    Tokens without it are refused, because all of them would be the same principal. The exception is a client's own
    token, which may have no subject.
    """
    id = claims.get(name)
    if id is None and name not in claims and name == "sub" and client is not None and _is_own_token(claims):
        id = client
    if not isinstance(id, str) or not id:
        raise InvalidToken(
            f"expected the principal's id as text in the claim {name!r} (claims.subject), got {_kind(id)}"
        )
    # Two ids that look equal in a log or a rule must not name two principals.
    if id != id.strip() or not id.isprintable():
        raise InvalidToken(f"the claim {name!r} has surrounding whitespace or unprintable characters")
    if len(id) > MAX_CLAIM_CHARS:
        raise InvalidToken(f"the claim {name!r} exceeds the maximum length")
    if is_unverified_email(claims, name):
        raise InvalidToken("the principal's id is an e-mail address that its issuer has not verified (email_verified)")
    return id


def _kind(value: Any) -> str:
    return "none" if value is None else "an empty text" if value == "" else f"a value of type {type(value).__name__}"


def _is_own_token(claims: Mapping[str, Any]) -> bool:
    """Return whether a token without a subject belongs to a client itself (RFC 6749, 4.4).

    Auth0 and Entra mark such tokens. An introspection response need not name a subject (RFC 7662, 2.2); then no other
    claim may name a user. A JWT of RFC 9068 always has a subject.
    """
    if claims.get("gty") == "client-credentials" or claims.get("idtyp") == "app":
        return True
    return claims.get("active") is True and _USER_CLAIMS.isdisjoint(claims)


def is_unverified_email(claims: Mapping[str, Any], name: str) -> bool:
    """Return whether a claim is an e-mail address that the issuer reports as unverified.

    Many issuers report nothing; Entra reports it for the domain, in `xms_edov`.
    """
    flags = [claims[flag] for flag in ("email_verified", "xms_edov") if flag in claims]
    return name == "email" and any(flag not in (True, "true", "True", "1", 1) for flag in flags)


def _timestamp(claims: Mapping[str, Any], name: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    # bool is an int in Python, and `exp: true` would otherwise mean the first second of 1970.
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _MAX_TIMESTAMP:
        raise InvalidToken(f"the claim {name} must be a timestamp")
    return float(value)


def _text(claims: Mapping[str, Any], *names: str) -> str | None:
    for name in names:
        value = claims.get(name)
        if isinstance(value, str) and value:
            if len(value) > MAX_CLAIM_CHARS:
                raise InvalidToken(f"the claim {name!r} exceeds the maximum length")
            return value
    return None


def _words(claims: Mapping[str, Any], names: Iterable[str]) -> Iterable[str]:
    """Return the values of the first claim that is present: space-separated text or a list."""
    for name in names:
        value = claims.get(name)
        if value is not None:
            words = value.split() if isinstance(value, str) else value if isinstance(value, list) else []
            return [word for word in words if isinstance(word, str) and len(word) <= MAX_CLAIM_CHARS][:MAX_SCOPES]
    return []


def _actors(actor: Any) -> Iterable[str]:
    """Yield the current actor and then the previous ones (RFC 8693, section 4.1)."""
    for _ in range(MAX_ACTORS):
        if not isinstance(actor, Mapping):
            return
        yield _text(actor, "sub", "client_id") or "?"
        actor = actor.get("act")
    raise InvalidToken("too many nested actors (act)")
