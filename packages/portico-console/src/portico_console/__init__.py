"""A page for people: look at a server, try it, watch it. What the page asks is answered by a Server of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from portico._lazy import public_names

if TYPE_CHECKING:
    from portico_console.console import Console as Console
    from portico_console.session_auth import ConsoleAccess as ConsoleAccess
    from portico_console.site import ConsoleSite as ConsoleSite
    from portico_console.site import attach as attach

_HOMES = {
    "portico_console.site": ("ConsoleSite", "attach"),
    "portico_console.console": ("Console",),
    "portico_console.session_auth": ("ConsoleAccess",),
}

if not TYPE_CHECKING:
    __getattr__, __dir__ = public_names(__name__, _HOMES)
