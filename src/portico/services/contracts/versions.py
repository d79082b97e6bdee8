"""Versions, X.Y.Z: of the contract itself, and of each tool. What a change demands of them."""

from __future__ import annotations

import re
from typing import Literal

from msgspec import Struct

# Of the messages, the error format and the rules for specifications. No revision of the protocol: those are dates.
CONTRACT_VERSION = "1.0.0"

Level = Literal["none", "patch", "minor", "breaking"]
LEVELS: tuple[Level, ...] = ("none", "patch", "minor", "breaking")

_VERSION = re.compile(r"(0|[1-9]\d{0,8})\.(0|[1-9]\d{0,8})\.(0|[1-9]\d{0,8})(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?")
_LOOSE = re.compile(r"v?(\d{1,9})(?:\.(\d{1,9}))?(?:\.(\d{1,9}))?")


class Version(Struct, frozen=True, order=True):
    """Only the three numbers: what stands behind `-` or `+` does not change what is promised."""

    major: int
    minor: int
    patch: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}"


def parse(text: str) -> Version | None:
    """None: this is no semantic version."""
    found = _VERSION.fullmatch(text)
    return None if found is None else Version(int(found[1]), int(found[2]), int(found[3]))


def guess(text: str) -> Version:
    """A version from what servers write in its place: `v1.2`, `2024.1`, or nothing of the kind."""
    found = _LOOSE.match(text)
    return Version(0, 0, 0) if found is None else Version(*(int(part or 0) for part in found.groups()))


def worst(levels: list[Level]) -> Level:
    return max(levels, key=LEVELS.index, default="none")


def demanded(old: Version, level: Level) -> Version:
    """The least version that may carry a change of this level."""
    if level == "breaking":
        return Version(old.major + 1, 0, 0)
    if level == "minor":
        return Version(old.major, old.minor + 1, 0)
    return Version(old.major, old.minor, old.patch + 1) if level == "patch" else old


def keeps(wanted: str, offered: str) -> bool:
    """Whether what was written for one version works with another: the same major, and not older."""
    ours, theirs = parse(wanted), parse(offered)
    return ours is not None and theirs is not None and ours.major == theirs.major and theirs >= ours
