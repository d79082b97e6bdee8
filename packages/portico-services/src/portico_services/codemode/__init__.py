"""Code mode: sandboxed scripts that call a server's tools.

`CodeMode` is the service, `CodeModeServer` a server that lists little else. The exports are lazy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from portico._lazy import lazy_exports

if TYPE_CHECKING:
    from portico_services.codemode.server import CodeModeServer
    from portico_services.codemode.service import CodeMode

_HOMES = {
    "portico_services.codemode.server": ("CodeModeServer",),
    "portico_services.codemode.service": ("CodeMode",),
}

__all__ = ["CodeMode", "CodeModeServer"]

if not TYPE_CHECKING:  # mypy would accept any name if it saw `__getattr__`
    __getattr__, __dir__ = lazy_exports(__name__, _HOMES)
