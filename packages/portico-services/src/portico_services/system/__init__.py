"""The machine that a server runs on: event logs, files, registry, processes.

`System` is the service. It is imported when it is first used: the rest of this folder knows nothing of the protocol.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from portico._lazy import public_names

if TYPE_CHECKING:
    from portico_services.system.service import System

__all__ = ["System"]

if not TYPE_CHECKING:  # which would take any name for one that is there
    __getattr__, __dir__ = public_names(__name__, {"portico_services.system.service": ("System",)})
