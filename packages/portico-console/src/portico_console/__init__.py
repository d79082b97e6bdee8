"""Browser console: inspect, call and monitor a server. A dedicated Server provides the page's API."""

from __future__ import annotations

from typing import TYPE_CHECKING

from portico._lazy import lazy_exports

if TYPE_CHECKING:
    from portico_console.console import Console as Console
    from portico_console.session_auth import ConsoleAccess as ConsoleAccess
    from portico_console.site import ConsoleSite as ConsoleSite, attach_console as attach_console

_HOMES = {
    "portico_console.site": ("ConsoleSite", "attach_console"),
    "portico_console.console": ("Console",),
    "portico_console.session_auth": ("ConsoleAccess",),
}

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_exports(__name__, _HOMES)
