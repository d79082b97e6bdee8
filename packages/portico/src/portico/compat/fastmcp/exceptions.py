"""Exceptions of FastMCP."""

from __future__ import annotations

from portico.protocol.errors import Error, InsufficientScope, ResourceNotFound, ToolError

FastMCPError = Error
# FastMCP has a class for each kind of component that fails.
ResourceError = PromptError = ToolError
NotFoundError = ResourceNotFound
InsufficientScopeError = InsufficientScope

__all__ = ["FastMCPError", "InsufficientScopeError", "NotFoundError", "PromptError", "ResourceError", "ToolError"]
