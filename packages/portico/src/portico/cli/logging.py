"""Logging of the commands, to standard error."""

from __future__ import annotations

import logging
import os

from portico.protocol.errors import UsageError

LEVELS = ("debug", "info", "warning", "error", "critical")
# Level names of other programs: LOG_LEVEL is often set for all programs of a machine.
_OTHER_NAMES = {
    "debug": "trace verbose silly finest finer fine all spam dbg",
    "info": "notice http information informational inf success log default config",
    "warning": "warn wrn",
    "error": "err severe",
    "critical": "fatal crit alert emerg emergency panic dpanic off none silent quiet",
}
_ALIASES = {name: level for level, names in _OTHER_NAMES.items() for name in names.split()}


def configure_logging(
    default: str, *, level: str | None = None, format: str | None = None, requests: bool = False
) -> None:
    """Configure the level from `level`, PORTICO_LOG_LEVEL, LOG_LEVEL or the default, the first that is not empty.

    Each request is logged if `format` is set, if the configured level includes info, or with `requests` if no level is
    configured.
    """
    environment_level = _configured_level(level)
    chosen = _require_level(level.strip(), "--log-level") if level and level.strip() else _find_level(environment_level)
    if chosen is None:
        chosen = default
    logging.basicConfig(level=chosen.upper())
    from portico.telemetry.log_formatters import create_formatter

    for handler in logging.getLogger().handlers:
        handler.setFormatter(create_formatter(format or "text"))
    if environment_level and _find_level(environment_level) is None:
        # Only a warning: LOG_LEVEL may be meant for another program, and must not stop this one.
        logging.getLogger("portico").warning(
            "the log level must be one of %s, got %r; using %s", ", ".join(LEVELS), environment_level, chosen
        )
        environment_level = ""
    log_requests = chosen in ("debug", "info") if environment_level else requests
    if log_requests or format is not None:
        from portico.telemetry import request_log

        request_log.log.setLevel(logging.INFO)
        request_log.enable_request_log()


def is_level_set(level: str | None) -> bool:
    """Return whether the command line or the environment selects a level."""
    return bool(_configured_level(level))


def _configured_level(level: str | None) -> str:
    return (
        (level or "").strip()
        or os.environ.get("PORTICO_LOG_LEVEL", "").strip()
        or os.environ.get("LOG_LEVEL", "").strip()
    )


def _find_level(name: str) -> str | None:
    """Return the level for a name or alias, or None if it is unknown."""
    level = _ALIASES.get(name.lower(), name.lower())
    return level if level in LEVELS else None


def _require_level(name: str, source: str) -> str:
    level = _find_level(name)
    if level is None:
        raise UsageError(f"{source} must be one of {', '.join(LEVELS)}, got {name!r}")
    return level
