"""Memory: what an assistant should still know tomorrow.

`Memory` is the service. It is imported when it is first used: the rest of this folder works without a server.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from portico._lazy import public_names

if TYPE_CHECKING:
    from portico_services.memory.service import Memory

__all__ = ["Memory"]

if not TYPE_CHECKING:  # which would take any name for one that is there
    __getattr__, __dir__ = public_names(__name__, {"portico_services.memory.service": ("Memory",)})
