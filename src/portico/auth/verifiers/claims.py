"""What the claims of a token mean: whether it is for us and for now, and who it stands for.

The same claims come in a JWT (RFC 9068) and from introspection (RFC 7662). Providers differ in where they put scopes
and groups: what is named here is where to look, in this order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct

from portico.auth.principal import Principal
from portico.auth.verifiers.credentials import TokenInvalid, Verified

LONGEST_TEXT = 1024
MOST_ACTORS = 10
MOST_SCOPES = 1000
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
        raise TokenInvalid("it is for another audience" if named else "it has no aud")


def verified(claims: Mapping[str, Any], issuer: str | None, names: ClaimNames, ends: float | None) -> Verified:
    """Who the claims speak of."""
    client = _text(claims, "client_id", "azp", "cid")
    # A client that acts for itself may have no subject (RFC 9068, section 2.2, wants one; introspection need not).
    id = _text(claims, names.id) or client
    if id is None:
        raise TokenInvalid(f"it has no {names.id}")
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
