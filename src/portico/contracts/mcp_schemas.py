"""The messages of the contract under the module name that the standard gives them."""

from __future__ import annotations

from portico.contracts import MCPErrorDetail, MCPToolCall, MCPToolResult

__all__ = ["MCPErrorDetail", "MCPToolCall", "MCPToolResult"]
