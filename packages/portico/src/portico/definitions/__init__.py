"""Definitions of tools, prompts, resources and templates as servers list them: read them and compare them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from portico._lazy import public_names

if TYPE_CHECKING:
    from portico.definitions.comparison import LEVELS, DefinitionChange, Level, compare_tools, worst
    from portico.definitions.components import LISTS, Offer, OfferChange, OfferKind, offer_changes, offers_of
    from portico.definitions.tools import ListedTool, read_tool

__all__ = [
    "LEVELS",
    "LISTS",
    "DefinitionChange",
    "Level",
    "ListedTool",
    "Offer",
    "OfferChange",
    "OfferKind",
    "compare_tools",
    "offer_changes",
    "offers_of",
    "read_tool",
    "worst",
]

_HOMES: dict[str, tuple[str, ...]] = {
    "portico.definitions.comparison": ("LEVELS", "DefinitionChange", "Level", "compare_tools", "worst"),
    "portico.definitions.components": ("LISTS", "Offer", "OfferChange", "OfferKind", "offer_changes", "offers_of"),
    "portico.definitions.tools": ("ListedTool", "read_tool"),
}

if not TYPE_CHECKING:  # which would take any name for one that is there
    __getattr__, __dir__ = public_names(__name__, _HOMES)
