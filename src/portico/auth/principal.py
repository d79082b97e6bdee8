"""The verified identity of a caller."""

from __future__ import annotations

from collections.abc import Set

from msgspec import Struct


class Principal(Struct, frozen=True):
    """An identity that was verified. Sessions, subscriptions and states belong to one."""

    id: str
    # None: everything is allowed.
    scopes: frozenset[str] | None = None

    def lacks(self, needed: Set[str]) -> frozenset[str]:
        return frozenset() if self.scopes is None else frozenset(needed) - self.scopes
