"""Calls by contract: one message in, one message out, and every failure with a type.

The models are pydantic's, which is an extra: `portico[pydantic]`. Each name is imported when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from portico._lazy import public_names

if TYPE_CHECKING:
    from portico_services.contracts.client import call
    from portico_services.contracts.definitions import CONTRACT_VERSION, keeps
    from portico_services.contracts.models import ContractContext, MCPErrorDetail, MCPToolCall, MCPToolResult
    from portico_services.contracts.schemas import ERROR_TYPES
    from portico_services.contracts.service import Contracts, failed

_HOMES = {
    "portico_services.contracts.definitions": ("CONTRACT_VERSION", "keeps"),
    "portico_services.contracts.schemas": ("ERROR_TYPES",),
    "portico_services.contracts.models": ("ContractContext", "MCPErrorDetail", "MCPToolCall", "MCPToolResult"),
    "portico_services.contracts.service": ("Contracts", "failed"),
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
    "failed",
    "keeps",
]

if not TYPE_CHECKING:  # which would take any name for one that is there
    __getattr__, __dir__ = public_names(__name__, _HOMES)
