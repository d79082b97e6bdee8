"""Code mode: scripts that call a server's tools, run in live Python's jail.

`Code` is the service, `CodeFace` a server that shows little else. Each is imported when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from portico._lazy import public_names

if TYPE_CHECKING:
    from portico_services.codemode.server import CodeFace
    from portico_services.codemode.service import Code

_HOMES = {
    "portico_services.codemode.server": ("CodeFace",),
    "portico_services.codemode.service": ("Code",),
}

__all__ = ["Code", "CodeFace"]

if not TYPE_CHECKING:  # which would take any name for one that is there
    __getattr__, __dir__ = public_names(__name__, _HOMES)
