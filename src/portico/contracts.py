"""Calls by contract: one message in, one message out, and every failure with a type.

The models are pydantic's, which is an extra: `portico[pydantic]`. Each name is imported when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from portico.services.contracts.calling import call
    from portico.services.contracts.models import ContractContext, MCPErrorDetail, MCPToolCall, MCPToolResult
    from portico.services.contracts.published import ERROR_TYPES
    from portico.services.contracts.service import Contracts, failed
    from portico.services.contracts.versions import CONTRACT_VERSION, keeps

_FOLDER = "portico.services.contracts"
_HOMES = {
    "CONTRACT_VERSION": "versions",
    "ERROR_TYPES": "published",
    "ContractContext": "models",
    "Contracts": "service",
    "MCPErrorDetail": "models",
    "MCPToolCall": "models",
    "MCPToolResult": "models",
    "call": "calling",
    "failed": "service",
    "keeps": "versions",
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


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'portico.contracts' has no attribute {name!r}")
    value = getattr(import_module(f"{_FOLDER}.{home}"), name)
    globals()[name] = value
    return value
