"""Who a principal is, whatever it may do at the moment: what belongs to it is found by this."""

from __future__ import annotations

from typing import Any


def identity_of(principal: Any) -> str | None:
    """None without a principal. A middleware may put one of its own kind into a Call: then its `id`, or else what it
    looks like."""
    if principal is None:
        return None
    return str(getattr(principal, "identity", None) or getattr(principal, "id", None) or repr(principal))
