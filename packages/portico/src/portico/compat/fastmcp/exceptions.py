"""Exceptions of FastMCP."""

from __future__ import annotations

from portico.protocol.errors import InsufficientScope, PorticoError, ResourceNotFound, ToolError

FastMCPError = PorticoError
# FastMCP has one class for each kind of component.
ResourceError = PromptError = ToolError
NotFoundError = ResourceNotFound
InsufficientScopeError = InsufficientScope

__all__ = ["FastMCPError", "InsufficientScopeError", "NotFoundError", "PromptError", "ResourceError", "ToolError"]
