"""Long-term memory for assistants, with full-text and optional vector search.

`Memory` is the service. It is imported on first use: the rest of this package works without a server.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from portico._lazy import lazy_exports

if TYPE_CHECKING:
    from portico_services.memory.service import Memory

__all__ = ["Memory"]

if not TYPE_CHECKING:  # a type checker would accept any name through __getattr__
    __getattr__, __dir__ = lazy_exports(__name__, {"portico_services.memory.service": ("Memory",)})
