"""Options of a Server that have a type of their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Protocol

import msgspec

from portico.protocol.errors import Error
from portico.server.components.resources import ResourceSecurity as ResourceSecurity
from portico.server.components.validation import checked_hints

OnDuplicate = Literal["error", "warn", "replace", "ignore"]


class CacheHint(msgspec.Struct, frozen=True):
    """How long clients may cache the results of one method, and whether several users may share them."""

    ttl_ms: int = 0
    scope: Literal["public", "private"] = "private"

    def __post_init__(self) -> None:
        checked_hints(self.ttl_ms, self.scope)


def cache_hints_by_method(hints: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the members that cache hints add to results, by method."""
    return {method: checked_hints(hint.ttl_ms, hint.scope) for method, hint in hints.items()}


class InvalidRequestState(Error):
    """Raised by a codec for a state that it did not seal. The client does not learn the reason."""


class StateCodec(Protocol):
    """Encrypts or signs the state that clients carry from one round to the next."""

    def seal(self, payload: bytes) -> str: ...
    def unseal(self, token: str) -> bytes: ...
