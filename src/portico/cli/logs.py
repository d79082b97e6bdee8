"""Logging of the commands, to standard error."""

from __future__ import annotations

import logging
import os

from portico.wire.errors import UsageError

LEVELS = ("debug", "info", "warning", "error", "critical")
# What others call them.
_ALIASES = {"trace": "debug", "warn": "warning", "fatal": "critical"}


def set_log_level(default: str) -> None:
    """Log at LOG_LEVEL of the environment, or else at this level; an empty one is none."""
    said = os.environ.get("LOG_LEVEL", "").strip() or default
    level = _ALIASES.get(said.lower(), said.lower())
    if level not in LEVELS:
        raise UsageError(f"LOG_LEVEL is {said!r}, but must be one of {', '.join(LEVELS)}")
    logging.basicConfig(level=level.upper(), format="%(levelname)s %(name)s: %(message)s")
