"""The verified identity of a caller, and the static tokens of a server: one for all its clients, one to operate it."""

from __future__ import annotations

from collections.abc import Set
from typing import Any

from msgspec import Struct

_SCHEME = b"bearer "


class Principal(Struct, frozen=True, omit_defaults=True):
    """An identity that was verified. Sessions, subscriptions, tasks and states belong to one."""

    id: str
    # With everything that they imply. None: everything is allowed.
    scopes: frozenset[str] | None = None
    groups: frozenset[str] = frozenset()
    # What else its token says of it.
    claims: dict[str, Any] = {}
    # The program that it uses.
    client_id: str | None = None
    # Who says so. An id means nothing without it: two issuers may give the same.
    issuer: str | None = None
    # Who acts for it, the one who asks here first (RFC 8693, section 4.1).
    actors: tuple[str, ...] = ()
    # Whether its server has several issuers, another of which may give the same id to another person.
    ambiguous: bool = False

    def lacks(self, needed: Set[str]) -> frozenset[str]:
        return frozenset() if self.scopes is None else frozenset(needed) - self.scopes

    @property
    def identity(self) -> str:
        """Who it is, whatever it may do: what belongs to it is found by this."""
        return self.id if self.issuer is None else f"{self.issuer} {self.id}"

    @property
    def name(self) -> str:
        """What it is called where people read it, and are to know who is meant: its id, or `ISSUER#ID` where the id
        alone may be another's."""
        return f"{self.issuer}#{self.id}" if self.ambiguous else self.id

    def __hash__(self) -> int:
        return hash((self.issuer, self.id))


OPERATOR = Principal("operator", frozenset({"operator"}))


class BearerTokens:
    """Static tokens, compared in constant time: that of the clients, and that of the operator of the server.

    Without the first, clients need none, and are no principal.
    """

    def __init__(self, token: str | None, operator: str | None = None) -> None:
        given = ((token, Principal("token")), (operator, OPERATOR))
        self._known = [(text.encode(), principal) for text, principal in given if text]
        self.required = bool(token)

    def verify(self, authorization: bytes | None) -> Principal | None:
        """The principal of an `Authorization` header; None when the token is wrong or missing."""
        if authorization is None or authorization[:7].lower() != _SCHEME:
            return None
        import hmac  # most servers start without tokens

        given = authorization[7:].strip()
        found = [principal for token, principal in self._known if hmac.compare_digest(given, token)]
        return found[0] if found else None
