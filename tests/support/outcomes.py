"""Checks of the errors of the system service."""

from __future__ import annotations

from collections.abc import Callable

from portico_services.system.errors import SystemToolError


def has_outcome(*outcomes: str) -> Callable[[SystemToolError], bool]:
    """Return a `check` for `pytest.raises`: whether an error has one of these outcomes in the audit log."""
    return lambda error: error.outcome in outcomes
