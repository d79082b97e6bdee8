"""What tools are called by in a contract: `module_name.tool_name`, in lower case. What a server lists may look
otherwise, and stays.

Every server of the built-in services loads this, so it needs nothing else of contracts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

# The members of a listed tool's `_meta` that say its version and this name.
VERSION = "portico/version"
INVOCATION = "portico/invocation"
# The member that has the author's notes for the specification.
NOTES = "portico/spec"

INVOCATION_PATTERN = r"^[a-z0-9_]+(\.[a-z0-9_]+)+$"
LONGEST, LONGEST_SEGMENT = 256, 120

_INVOCATION = re.compile(r"[a-z0-9_]+(?:\.[a-z0-9_]+)+")


def is_invocation(name: str) -> bool:
    return len(name) <= LONGEST and _INVOCATION.fullmatch(name) is not None


def segment(text: str) -> str:
    """One part of an invocation name, out of anything."""
    return re.sub(r"[^a-z0-9_]+", "_", text.lower()[:LONGEST_SEGMENT]).strip("_")


def invocation(module: str, name: str) -> str:
    """What a tool is called by in a contract. A name that has dots already has its module in it."""
    if is_invocation(name):
        return name
    parts = [segment(part) for part in name.split(".")]
    joined = ".".join(parts)
    if len(parts) > 1 and all(parts) and len(joined) <= LONGEST:
        return joined
    return f"{segment(module) or 'server'}.{segment(name) or 'tool'}"


def numbered(wanted: str, taken: Iterable[str]) -> str:
    """The name, or with a number behind it if it is taken."""
    if wanted not in taken:
        return wanted
    # Numbers are given one after the other: the first that is free lies between one that is taken and one that is not.
    below, free = 1, 2
    while f"{wanted}_{free}" in taken:
        below, free = free, 2 * free
    while free - below > 1:
        middle = (below + free) // 2
        below, free = (middle, free) if f"{wanted}_{middle}" in taken else (below, middle)
    return f"{wanted}_{free}"
