"""Memory: what an assistant should still know tomorrow.

`Memory` is the service. It is imported when it is first used: the rest of this folder works without a server.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from portico.services.memory.service.service import Memory

__all__ = ["Memory"]


def __getattr__(name: str) -> Any:
    if name != "Memory":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module("portico.services.memory.service.service"), name)
    globals()[name] = value
    return value
