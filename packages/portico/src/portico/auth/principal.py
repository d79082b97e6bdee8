"""Verified identity of a caller, and the static bearer tokens of a server."""

from __future__ import annotations

from collections.abc import Set
from typing import Any

from msgspec import Struct

_SCHEME = b"bearer "


class Principal(Struct, frozen=True, omit_defaults=True):
    """Verified identity. Sessions, subscriptions, tasks and states belong to a principal."""

    id: str
    # Including implied scopes. None: no restriction.
    scopes: frozenset[str] | None = None
    groups: frozenset[str] = frozenset()
    # The other claims of the token.
    claims: dict[str, Any] = {}
    # The OAuth client that the principal uses.
    client_id: str | None = None
    # Ids are unique per issuer only.
    issuer: str | None = None
    # Parties acting for the principal, the current one first (RFC 8693, section 4.1).
    actor_chain: tuple[str, ...] = ()
    # Whether the server has several issuers, so that the same id may denote another user.
    qualify_by_issuer: bool = False

    def missing_scopes(self, needed: Set[str]) -> frozenset[str]:
        """Return the needed scopes that the principal lacks; empty for a principal without restrictions."""
        return frozenset() if self.scopes is None else frozenset(needed) - self.scopes

    @property
    def identity(self) -> str:
        """Return the key under which the principal's data is stored, independent of scopes."""
        # A space separates them: it cannot occur in a URL, so no two pairs give the same key.
        return self.id if self.issuer is None else f"{self.issuer} {self.id}"

    @property
    def display_name(self) -> str:
        """Return the name to show to users: the id, or `ISSUER#ID` where the id alone is ambiguous."""
        return f"{self.issuer}#{self.id}" if self.qualify_by_issuer else self.id

    def __hash__(self) -> int:
        # `claims` is a dict, so the generated hash would fail. Equality still compares every field.
        return hash((self.issuer, self.id))


OPERATOR = Principal("operator", frozenset({"operator"}))


class StaticTokens:
    """Static bearer tokens, one for clients and one for the operator, compared in constant time.

    Without a client token, clients need none and have no principal.
    """

    def __init__(self, token: str | None, operator_token: str | None = None) -> None:
        pairs = ((token, Principal("token")), (operator_token, OPERATOR))
        self._tokens = [(text.encode(), principal) for text, principal in pairs if text]
        self.required = bool(token)

    def verify(self, authorization: bytes | None) -> Principal | None:
        """Return the principal of an `Authorization` header, or None if the token is wrong or missing."""
        if authorization is None or authorization[:7].lower() != _SCHEME:
            return None
        import hmac  # deferred: most servers start without tokens

        bearer_token = authorization[7:].strip()
        # Every token is compared, so that the time does not reveal which one matched.
        result = [principal for token, principal in self._tokens if hmac.compare_digest(bearer_token, token)]
        return result[0] if result else None
