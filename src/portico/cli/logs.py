"""Logging of the commands, to standard error."""

from __future__ import annotations

import logging
import os

from portico.wire.errors import UsageError

LEVELS = ("debug", "info", "warning", "error", "critical")


def set_log_level(default: str) -> None:
    """Log at LOG_LEVEL of the environment, or else at this level."""
    level = os.environ.get("LOG_LEVEL", default)
    if level.lower() not in LEVELS:
        raise UsageError(f"LOG_LEVEL is {level!r}, but must be one of {', '.join(LEVELS)}")
    logging.basicConfig(level=level.upper(), format="%(levelname)s %(name)s: %(message)s")
