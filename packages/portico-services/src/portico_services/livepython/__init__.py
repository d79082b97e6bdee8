"""Live Python: sandboxed Python sessions that keep their state between calls and can be inspected.

`LivePython` is the service; `attach` and `AttachedPython` serve the objects of a running application. The exports are
lazy: this module is also imported inside the sandbox, where only the standard library is available.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from portico._lazy import lazy_exports

if TYPE_CHECKING:
    from portico_services.livepython.attachment import AttachedPython, attach
    from portico_services.livepython.service import LivePython

_HOMES = {
    "portico_services.livepython.attachment": ("AttachedPython", "attach"),
    "portico_services.livepython.service": ("LivePython",),
}

__all__ = ["AttachedPython", "LivePython", "attach"]

if not TYPE_CHECKING:  # mypy would accept any name if it saw `__getattr__`
    __getattr__, __dir__ = lazy_exports(__name__, _HOMES)
