"""Calls by contract: one message in, one message out, and every failure with a type.

The models are pydantic's, which is an extra: `portico[pydantic]`. Each name is imported when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from portico._lazy import public_names

if TYPE_CHECKING:
    from portico.services.contracts.calling import call
    from portico.services.contracts.definitions import CONTRACT_VERSION, keeps
    from portico.services.contracts.models import ContractContext, MCPErrorDetail, MCPToolCall, MCPToolResult
    from portico.services.contracts.published import ERROR_TYPES
    from portico.services.contracts.service import Contracts, failed

_HOMES = {
    "portico.services.contracts.definitions": ("CONTRACT_VERSION", "keeps"),
    "portico.services.contracts.published": ("ERROR_TYPES",),
    "portico.services.contracts.models": ("ContractContext", "MCPErrorDetail", "MCPToolCall", "MCPToolResult"),
    "portico.services.contracts.service": ("Contracts", "failed"),
    "portico.services.contracts.calling": ("call",),
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
