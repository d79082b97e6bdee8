"""Logging goes to standard error, whatever the command."""

from __future__ import annotations

import logging
import os

from portico.wire.errors import UsageError

LEVELS = ("debug", "info", "warning", "error", "critical")


def set_log_level(otherwise: str) -> None:
    """As LOG_LEVEL in the environment says."""
    level = os.environ.get("LOG_LEVEL", otherwise)
    if level.lower() not in LEVELS:
        raise UsageError(f"LOG_LEVEL={level!r}: there are {', '.join(LEVELS)}")
    logging.basicConfig(level=level.upper(), format="%(levelname)s %(name)s: %(message)s")
