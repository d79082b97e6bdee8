"""Work items for planning. They are unrelated to MCP tasks, which are long-running calls.

`Tasks` is the service. It is imported on first use: the rest of this package works without a server.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from portico._lazy import lazy_exports

if TYPE_CHECKING:
    from portico_services.workitems.service import Tasks

__all__ = ["Tasks"]

if not TYPE_CHECKING:  # a type checker would accept any name through __getattr__
    __getattr__, __dir__ = lazy_exports(__name__, {"portico_services.workitems.service": ("Tasks",)})
