"""Logging of the commands, to standard error."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from portico._lazy import LazyModule
from portico.wire.errors import UsageError

if TYPE_CHECKING:
    from portico.telemetry import logging_formats, request_log
else:
    logging_formats = LazyModule("portico.telemetry.logging_formats")
    request_log = LazyModule("portico.telemetry.request_log")

LEVELS = ("debug", "info", "warning", "error", "critical")
# What others call them.
_ALIASES = {"trace": "debug", "warn": "warning", "fatal": "critical"}


def set_log_level(default: str, *, level: str | None = None, form: str | None = None, requests: bool = False) -> None:
    """Log at `level`, or else at LOG_LEVEL of the environment, or else at the default; an empty one is none.

    There is a line for each request where `form` or the level asks for that, or with `requests`, if no level is said.
    """
    said = _said(level)
    chosen = _known(said or default, "--log-level" if (level or "").strip() else "LOG_LEVEL")
    logging.basicConfig(level=chosen.upper())
    for handler in logging.getLogger().handlers:
        handler.setFormatter(logging_formats.formatter(form or "text"))
    wanted = chosen in ("debug", "info") if said else requests
    if wanted or form is not None:
        request_log.log.setLevel(logging.INFO)
        request_log.log_requests()


def is_level_said(level: str | None) -> bool:
    """Whether the line or the environment has chosen a level."""
    return bool(_said(level))


def _said(level: str | None) -> str:
    return (level or "").strip() or os.environ.get("LOG_LEVEL", "").strip()


def _known(said: str, where: str) -> str:
    level = _ALIASES.get(said.lower(), said.lower())
    if level not in LEVELS:
        raise UsageError(f"{where} is {said!r}, but must be one of {', '.join(LEVELS)}")
    return level
