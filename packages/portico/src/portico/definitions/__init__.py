"""Definitions of tools, prompts, resources and templates as servers list them.

Read them, compare them, make hidden characters in them visible, and pin them in lock files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from portico._lazy import public_names

if TYPE_CHECKING:
    from portico.definitions.comparison import LEVELS, DefinitionChange, Level, compare_tools, worst
    from portico.definitions.components import LISTS, Offer, OfferChange, OfferKind, offer_changes, offers_of
    from portico.definitions.invisible_chars import hides, spells_hidden, visible, visible_json
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
    "DefinitionChange",
    "Level",
    "ListedTool",
    "LockFileError",
    "LockKind",
    "Offer",
    "OfferChange",
    "OfferKind",
    "compare_tools",
    "format_lock",
    "hides",
    "lock_kind",
    "offer_changes",
    "offers_of",
    "parse_lock",
    "read_lock",
    "read_tool",
    "spells_hidden",
    "visible",
    "visible_json",
    "worst",
    "write_lock",
]

_HOMES: dict[str, tuple[str, ...]] = {
    "portico.definitions.comparison": ("LEVELS", "DefinitionChange", "Level", "compare_tools", "worst"),
    "portico.definitions.components": ("LISTS", "Offer", "OfferChange", "OfferKind", "offer_changes", "offers_of"),
    "portico.definitions.invisible_chars": ("hides", "spells_hidden", "visible", "visible_json"),
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

if not TYPE_CHECKING:  # which would take any name for one that is there
    __getattr__, __dir__ = public_names(__name__, _HOMES)
