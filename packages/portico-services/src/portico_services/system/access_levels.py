"""Access levels of the service's parts. Unknown values deny access."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Literal

from portico import Resource, UsageError
from portico.extend import CompletionBinding, Component

log = logging.getLogger("portico")

SystemPart = Literal["logs", "files", "registry", "processes"]
SYSTEM_PARTS: tuple[SystemPart, ...] = ("logs", "files", "registry", "processes")
# Part of the service that a component belongs to, by the prefix of its name or URI.
_PART_BY_PREFIX: dict[str, SystemPart] = {
    "eventlog": "logs",
    "diagnose": "logs",
    "explain": "logs",
    "fs": "files",
    "find": "files",
    "reg": "registry",
    "process": "processes",
    "system_info": "processes",
}
# In ascending order of access.
ACCESS_LEVELS = ("disabled", "read-only", "read-write")

PrivacyMode = Literal["off", "anonymize", "strict"]
PRIVACY_MODES: tuple[PrivacyMode, ...] = ("off", "anonymize", "strict")


def resolve_levels(levels: Mapping[str, str]) -> dict[SystemPart, str]:
    """Return the configured level of each part; the default is read-only. Raises UsageError for an unknown part."""
    for name in levels.keys() - set(SYSTEM_PARTS):
        # Ignoring a misspelled part would leave it readable although the operator meant to disable it.
        close = get_close_matches(name, SYSTEM_PARTS, 1)
        hint = f"did you mean {close[0]!r}?" if close else f"expected one of {', '.join(SYSTEM_PARTS)}"
        raise UsageError(f"access_levels: unknown part {name!r} ({hint})")
    return {part: _resolve_level(part, levels.get(part, "read-only")) for part in SYSTEM_PARTS}


def _resolve_level(part: SystemPart, level: str) -> str:
    if level in ACCESS_LEVELS:
        return level
    # Fail closed, but serve the other parts.
    log.error("access_levels[%r] is %r (expected one of %s); disabled", part, level, ", ".join(ACCESS_LEVELS))
    return "disabled"


def part_of_component(component: Component) -> SystemPart | None:
    """Return the part that a component belongs to, or None if the component is always available."""
    if isinstance(component, CompletionBinding):
        name = component.target
    else:
        name = component.uri if isinstance(component, Resource) else component.name
    return next((part for prefix, part in _PART_BY_PREFIX.items() if name.startswith(prefix)), None)


def resolve_privacy(mode: str) -> PrivacyMode:
    """Return the configured privacy mode; an unknown one is treated as strict."""
    if mode in PRIVACY_MODES:
        return mode
    # The mode that reveals least: a typing error must not expose names.
    log.error("privacy is %r (expected one of %s); using strict", mode, ", ".join(PRIVACY_MODES))
    return "strict"
