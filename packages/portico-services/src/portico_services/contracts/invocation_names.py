"""Invocation names of tools in contracts: `module_name.tool_name`, in lower case.

The names that a server lists may differ and are not changed. Every server with built-in services loads this module, so
it imports nothing else of contracts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

# Members of a listed tool's `_meta` with its version and its invocation name.
VERSION_META_KEY = "portico/version"
INVOCATION_META_KEY = "portico/invocation"
# Member with the author's notes for the specification.
SPEC_META_KEY = "portico/spec"

INVOCATION_PATTERN = r"^[a-z0-9_]+(\.[a-z0-9_]+)+$"
MAX_INVOCATION_CHARS, MAX_SEGMENT_CHARS = 256, 120

_INVOCATION = re.compile(r"[a-z0-9_]+(?:\.[a-z0-9_]+)+")


def is_invocation_name(name: str) -> bool:
    return len(name) <= MAX_INVOCATION_CHARS and _INVOCATION.fullmatch(name) is not None


def to_segment(text: str) -> str:
    """Convert any text to one segment of an invocation name."""
    return re.sub(r"[^a-z0-9_]+", "_", text.lower()[:MAX_SEGMENT_CHARS]).strip("_")


def make_invocation_name(module: str, name: str) -> str:
    """Return the invocation name of a tool. A name with dots already includes its module."""
    if is_invocation_name(name):
        return name
    parts = [to_segment(part) for part in name.split(".")]
    joined = ".".join(parts)
    if len(parts) > 1 and all(parts) and len(joined) <= MAX_INVOCATION_CHARS:
        return joined
    return f"{to_segment(module) or 'server'}.{to_segment(name) or 'tool'}"


def deduplicate(name: str, used_names: Iterable[str]) -> str:
    """Return the name, with a numeric suffix if it is in use."""
    if name not in used_names:
        return name
    # Suffixes are assigned consecutively, so the first free one lies between a used and an unused number: double, then
    # bisect. A linear search would be quadratic for many equal names.
    below, free = 1, 2
    while f"{name}_{free}" in used_names:
        below, free = free, 2 * free
    while free - below > 1:
        middle = (below + free) // 2
        below, free = (middle, free) if f"{name}_{middle}" in used_names else (below, middle)
    return f"{name}_{free}"
