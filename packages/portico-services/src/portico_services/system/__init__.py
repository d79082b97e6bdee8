"""Access to the server's machine: event logs, files, registry, processes.

`System` is the service. It is imported on first use: the rest of this package does not depend on the protocol.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from portico._lazy import lazy_exports

if TYPE_CHECKING:
    from portico_services.system.service import System

__all__ = ["System"]

if not TYPE_CHECKING:  # Type checkers would otherwise accept any attribute of this module.
    __getattr__, __dir__ = lazy_exports(__name__, {"portico_services.system.service": ("System",)})
