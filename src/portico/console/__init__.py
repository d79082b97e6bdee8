"""A page for people: look at a server, try it, watch it. What the page asks is answered by a Server of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from portico._lazy import public_names

if TYPE_CHECKING:
    from portico.console.console import Console as Console
    from portico.console.gate import ConsoleAccess as ConsoleAccess
    from portico.console.site import ConsoleSite as ConsoleSite
    from portico.console.site import attach as attach

_HOMES = {
    "portico.console.site": ("ConsoleSite", "attach"),
    "portico.console.console": ("Console",),
    "portico.console.gate": ("ConsoleAccess",),
}

if not TYPE_CHECKING:
    __getattr__, __dir__ = public_names(__name__, _HOMES)
