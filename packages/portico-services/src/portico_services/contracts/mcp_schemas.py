"""The messages of the contract under the module name that the standard gives them."""

from __future__ import annotations

from portico_services.contracts.api import MCPErrorDetail, MCPToolCall, MCPToolResult

__all__ = ["MCPErrorDetail", "MCPToolCall", "MCPToolResult"]
