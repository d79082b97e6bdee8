"""Logging of the commands, to standard error."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from portico._lazy import LazyModule
from portico.protocol.errors import UsageError

if TYPE_CHECKING:
    from portico.telemetry import log_formatters, request_log
else:
    log_formatters = LazyModule("portico.telemetry.log_formatters")
    request_log = LazyModule("portico.telemetry.request_log")

LEVELS = ("debug", "info", "warning", "error", "critical")
# What other programs call them. LOG_LEVEL is often set for all the programs of a machine.
_OTHER_NAMES = {
    "debug": "trace verbose silly finest finer fine all spam dbg",
    "info": "notice http information informational inf success log default config",
    "warning": "warn wrn",
    "error": "err severe",
    "critical": "fatal crit alert emerg emergency panic dpanic off none silent quiet",
}
_ALIASES = {name: level for level, names in _OTHER_NAMES.items() for name in names.split()}


def set_log_level(default: str, *, level: str | None = None, form: str | None = None, requests: bool = False) -> None:
    """Log at `level`, or else at LOG_LEVEL of the environment, or else at the default; an empty one is none.

    There is a line for each request where `form` or the level asks for that, or with `requests`, if no level is said.
    """
    said = _said(level)
    chosen = _known(level.strip(), "--log-level") if level and level.strip() else _found(said)
    if chosen is None:
        chosen = default
    logging.basicConfig(level=chosen.upper())
    for handler in logging.getLogger().handlers:
        handler.setFormatter(log_formatters.formatter(form or "text"))
    if said and _found(said) is None:
        logging.getLogger("portico").warning(
            "LOG_LEVEL is %r, which is not a level; using %s (expected one of %s)", said, chosen, ", ".join(LEVELS)
        )
        said = ""
    wanted = chosen in ("debug", "info") if said else requests
    if wanted or form is not None:
        request_log.log.setLevel(logging.INFO)
        request_log.log_requests()


def is_level_said(level: str | None) -> bool:
    """Whether the line or the environment has chosen a level."""
    return bool(_said(level))


def _said(level: str | None) -> str:
    return (level or "").strip() or os.environ.get("LOG_LEVEL", "").strip()


def _found(name: str) -> str | None:
    """Return the level of a name, or None if it is not the name of one."""
    level = _ALIASES.get(name.lower(), name.lower())
    return level if level in LEVELS else None


def _known(said: str, where: str) -> str:
    level = _found(said)
    if level is None:
        raise UsageError(f"{where} is {said!r}, but must be one of {', '.join(LEVELS)}")
    return level
