"""What the claims of a token mean: whether it is for us and for now, and who it stands for.

The same claims come in a JWT (RFC 9068) and from introspection (RFC 7662). Providers differ in where they put scopes
and groups: what is named here is where to look, in this order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from portico.auth.principal import Principal
from portico.auth.verifiers.base import TokenInvalid, Verified

LONGEST_TEXT = 1024
# Of a token for other audiences, in the log.
MAX_AUDIENCES = 3
MAX_AUDIENCE_CHARS = 200
MOST_ACTORS = 10
MOST_SCOPES = 1000
# Claims of OpenID Connect, RFC 7662 and Entra that describe a user.
_USER_CLAIMS = frozenset(
    {"username", "preferred_username", "email", "upn", "unique_name", "name", "given_name", "family_name"}
    | {"nickname", "phone_number", "sid", "nonce", "auth_time", "act", "may_act"}
)
# The latest moment that a datetime can say.
_LAST = 253402300799


class ClaimNames(Struct, frozen=True):
    """Where in the claims to look."""

    id: str = "sub"
    # `scope` is RFC 8693's, `scp` is what Entra and Okta say.
    scopes: tuple[str, ...] = ("scope", "scp")
    groups: tuple[str, ...] = ("groups",)


def check_time(claims: Mapping[str, Any], now: float, leeway: float, *, must_end: bool) -> float | None:
    """When the token ends. Raises TokenInvalid for one that has ended, or has not begun."""
    ends, begins = _moment(claims, "exp"), _moment(claims, "nbf")
    if ends is None and must_end:
        raise TokenInvalid("it has no exp")
    if ends is not None and now >= ends + leeway:
        raise TokenInvalid("it has expired")
    if begins is not None and now < begins - leeway:
        raise TokenInvalid("it is not valid yet (nbf)")
    return None if ends is None else ends + leeway


def check_audience(claims: Mapping[str, Any], audiences: frozenset[str], *, required: bool = True) -> None:
    """Whether the token is for us: one for another server is not taken (2026-07-28, authorization, Token Handling)."""
    said = claims.get("aud")
    if said is None and not required:
        return
    named = [said] if isinstance(said, str) else said if isinstance(said, list) else []
    if not audiences.intersection(one for one in named if isinstance(one, str)):
        if not named:
            raise TokenInvalid("it has no aud")
        received = [str(one)[:MAX_AUDIENCE_CHARS] for one in named[:MAX_AUDIENCES]]
        raise TokenInvalid(
            f"it is for another audience: expected {_listed(sorted(audiences))}, got {_listed(received)}"
        )


def _listed(audiences: Sequence[str]) -> str:
    return " or ".join(map(repr, audiences)) or "none"


def verified(claims: Mapping[str, Any], issuer: str | None, names: ClaimNames, ends: float | None) -> Verified:
    """Return the principal that the claims describe. Raises TokenInvalid."""
    client = _text(claims, "client_id", "azp", "cid")
    id = _principal_id(claims, names.id, client)
    confirmation = claims.get("cnf")
    key = confirmation.get("jkt") if isinstance(confirmation, Mapping) else None
    if confirmation is not None and not isinstance(key, str):
        # Bound to something that we do not look at, such as a certificate: then it is more than a bearer token.
        raise TokenInvalid("it is bound to a key in a way that is not checked here (cnf)")
    principal = Principal(
        id=id,
        scopes=frozenset(_words(claims, names.scopes)),
        groups=frozenset(_words(claims, names.groups)),
        claims=dict(claims),
        client_id=client,
        issuer=issuer,
        actors=tuple(_actors(claims.get("act"))),
    )
    return Verified(principal, ends, key)


def _principal_id(claims: Mapping[str, Any], name: str, client: str | None) -> str:
    """Return the id that a token has in the configured claim. All tokens without it would be one principal, so they are
    refused; the exception is a client's own token, which may have no subject."""
    id = claims.get(name)
    if id is None and name not in claims and name == "sub" and client is not None and _is_own_token(claims):
        id = client
    if not isinstance(id, str) or not id:
        raise TokenInvalid(f"expected the principal's id as text in the claim {name!r} (claims.id), got {_kind(id)}")
    if id != id.strip() or not id.isprintable():
        raise TokenInvalid(f"the claim {name!r} has blanks around it or characters that cannot be seen")
    if len(id) > LONGEST_TEXT:
        raise TokenInvalid(f"its {name} is too long")
    if is_unverified_email(claims, name):
        raise TokenInvalid("the principal's id is an e-mail address that its issuer has not verified (email_verified)")
    return id


def _kind(value: Any) -> str:
    return "none" if value is None else "an empty text" if value == "" else f"a value of type {type(value).__name__}"


def _is_own_token(claims: Mapping[str, Any]) -> bool:
    """Whether a token without a subject is a client's own (RFC 6749, 4.4). Auth0 and Entra say so; an introspection
    endpoint need not name a subject (RFC 7662, 2.2), and then no other claim may name a user. A JWT of RFC 9068 always
    has a subject."""
    if claims.get("gty") == "client-credentials" or claims.get("idtyp") == "app":
        return True
    return claims.get("active") is True and _USER_CLAIMS.isdisjoint(claims)


def is_unverified_email(claims: Mapping[str, Any], name: str) -> bool:
    """Whether a claim is an e-mail address of which the issuer says that its user has not proved it. Many issuers say
    nothing; Entra says it of the domain, in `xms_edov`."""
    flags = [claims[flag] for flag in ("email_verified", "xms_edov") if flag in claims]
    return name == "email" and any(flag not in (True, "true", "True", "1", 1) for flag in flags)


def _moment(claims: Mapping[str, Any], name: str) -> float | None:
    said = claims.get(name)
    if said is None:
        return None
    if isinstance(said, bool) or not isinstance(said, int | float) or not 0 <= said <= _LAST:
        raise TokenInvalid(f"its {name} is no time")
    return float(said)


def _text(claims: Mapping[str, Any], *names: str) -> str | None:
    for name in names:
        said = claims.get(name)
        if isinstance(said, str) and said:
            if len(said) > LONGEST_TEXT:
                raise TokenInvalid(f"its {name} is too long")
            return said
    return None


def _words(claims: Mapping[str, Any], names: Iterable[str]) -> Iterable[str]:
    """The words of the first of these claims that is there: a text with blanks between them, or a list."""
    for name in names:
        said = claims.get(name)
        if said is not None:
            words = said.split() if isinstance(said, str) else said if isinstance(said, list) else []
            return [word for word in words if isinstance(word, str) and len(word) <= LONGEST_TEXT][:MOST_SCOPES]
    return []


def _actors(said: Any) -> Iterable[str]:
    """RFC 8693, section 4.1: the one who acts now, and within it those who have acted before."""
    for _ in range(MOST_ACTORS):
        if not isinstance(said, Mapping):
            return
        yield _text(said, "sub", "client_id") or "?"
        said = said.get("act")
    raise TokenInvalid("too many have acted for each other (act)")
