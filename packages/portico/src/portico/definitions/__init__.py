"""Definitions of tools, prompts, resources and templates as servers list them.

Read them, compare them, make hidden characters in them visible, and pin them in lock files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from portico._lazy import lazy_exports

if TYPE_CHECKING:
    from portico.definitions.comparison import LEVELS, DefinitionChange, Level, compare_tools, highest_level
    from portico.definitions.components import (
        LISTS,
        ComponentChange,
        ComponentKind,
        PinnedComponent,
        components_from_list,
        diff_components,
    )
    from portico.definitions.invisible_chars import has_escaped_invisible, has_invisible, visible, visible_json
    from portico.definitions.lock_file import (
        LOCK_VERSION,
        LockFileError,
        LockKind,
        format_lock,
        lock_kind,
        parse_lock,
        read_lock,
        write_lock,
    )
    from portico.definitions.tools import ListedTool, read_tool

__all__ = [
    "LEVELS",
    "LISTS",
    "LOCK_VERSION",
    "ComponentChange",
    "ComponentKind",
    "DefinitionChange",
    "Level",
    "ListedTool",
    "LockFileError",
    "LockKind",
    "PinnedComponent",
    "compare_tools",
    "components_from_list",
    "diff_components",
    "format_lock",
    "has_escaped_invisible",
    "has_invisible",
    "highest_level",
    "lock_kind",
    "parse_lock",
    "read_lock",
    "read_tool",
    "visible",
    "visible_json",
    "write_lock",
]

_HOMES: dict[str, tuple[str, ...]] = {
    "portico.definitions.comparison": ("LEVELS", "DefinitionChange", "Level", "compare_tools", "highest_level"),
    "portico.definitions.components": (
        "LISTS",
        "PinnedComponent",
        "ComponentChange",
        "ComponentKind",
        "diff_components",
        "components_from_list",
    ),
    "portico.definitions.invisible_chars": ("has_invisible", "has_escaped_invisible", "visible", "visible_json"),
    "portico.definitions.lock_file": (
        "LOCK_VERSION",
        "LockFileError",
        "LockKind",
        "format_lock",
        "lock_kind",
        "parse_lock",
        "read_lock",
        "write_lock",
    ),
    "portico.definitions.tools": ("ListedTool", "read_tool"),
}

if not TYPE_CHECKING:  # a type checker would accept any name of a module with __getattr__
    __getattr__, __dir__ = lazy_exports(__name__, _HOMES)
