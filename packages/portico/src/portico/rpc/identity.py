"""Stable identity of a principal, independent of its current permissions."""

from __future__ import annotations

from typing import Any


def principal_id(principal: Any) -> str | None:
    """Return the identity of a principal, or None without a principal.

    A middleware may set a principal of any type. Its `identity` is used, or else its `id`, or else its `repr`.
    """
    if principal is None:
        return None
    return str(getattr(principal, "identity", None) or getattr(principal, "id", None) or repr(principal))
