"""The contract's messages under the module name that the standard prescribes."""

from __future__ import annotations

from portico_services.contracts.api import MCPErrorDetail, MCPToolCall, MCPToolResult

__all__ = ["MCPErrorDetail", "MCPToolCall", "MCPToolResult"]
