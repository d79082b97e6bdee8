"""What is allowed of which part of the service. What is not understood is denied."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Literal

from portico.extend import Completes, Component, Resource

log = logging.getLogger("portico")

Part = Literal["eventlog", "fs", "reg", "process"]
PARTS: tuple[Part, ...] = ("eventlog", "fs", "reg", "process")
# Which part of the service an offer belongs to, by how its name or URI begins.
_BEGINNINGS: dict[str, Part] = {
    "eventlog": "eventlog",
    "diagnose": "eventlog",
    "explain": "eventlog",
    "fs": "fs",
    "find": "fs",
    "reg": "reg",
    "process": "process",
    "system_info": "process",
}
ACCESS = ("disabled", "read-only", "read-write")

Privacy = Literal["off", "anonymize", "strict"]
PRIVACIES: tuple[Privacy, ...] = ("off", "anonymize", "strict")


def levels(given: Mapping[str, str]) -> dict[Part, str]:
    """For each part what is configured, or read-only."""
    for name in given.keys() - set(PARTS):
        log.error("levels has %r, and there are only %s", name, ", ".join(PARTS))
    return {part: _level(part, given.get(part, "read-only")) for part in PARTS}


def _level(part: Part, level: str) -> str:
    if level in ACCESS:
        return level
    log.error("levels[%r] is %r, and there are %s: it is disabled", part, level, ", ".join(ACCESS))
    return "disabled"


def part_of(offered: Component) -> Part | None:
    """The part that an offer belongs to; None for what is always there."""
    if isinstance(offered, Completes):
        named = offered.of
    else:
        named = offered.uri if isinstance(offered, Resource) else offered.name
    return next((part for start, part in _BEGINNINGS.items() if named.startswith(start)), None)


def privacy(given: str) -> Privacy:
    if given in PRIVACIES:
        return given
    log.error("privacy is %r, and there are %s: it is strict", given, ", ".join(PRIVACIES))
    return "strict"
