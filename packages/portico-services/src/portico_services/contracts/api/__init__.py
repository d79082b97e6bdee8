"""Calls by contract: one request message, one result message, and a type for every failure.

The models need pydantic, which is an extra: `portico[pydantic]`. Each name is imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from portico._lazy import lazy_exports

if TYPE_CHECKING:
    from portico_services.contracts.client import call
    from portico_services.contracts.definitions import CONTRACT_VERSION, is_compatible
    from portico_services.contracts.models import ContractContext, MCPErrorDetail, MCPToolCall, MCPToolResult
    from portico_services.contracts.schemas import ERROR_TYPES
    from portico_services.contracts.service import Contracts, typed_error

_HOMES = {
    "portico_services.contracts.definitions": ("CONTRACT_VERSION", "is_compatible"),
    "portico_services.contracts.schemas": ("ERROR_TYPES",),
    "portico_services.contracts.models": ("ContractContext", "MCPErrorDetail", "MCPToolCall", "MCPToolResult"),
    "portico_services.contracts.service": ("Contracts", "typed_error"),
    "portico_services.contracts.client": ("call",),
}

__all__ = [
    "CONTRACT_VERSION",
    "ERROR_TYPES",
    "ContractContext",
    "Contracts",
    "MCPErrorDetail",
    "MCPToolCall",
    "MCPToolResult",
    "call",
    "is_compatible",
    "typed_error",
]

if not TYPE_CHECKING:  # Type checkers would otherwise accept any attribute of this module.
    __getattr__, __dir__ = lazy_exports(__name__, _HOMES)
