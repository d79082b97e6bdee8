"""Responses and live events of the console tools."""

from __future__ import annotations

from typing import Any

from portico.server.components.results import ToolResult
from portico.server.context.context import Context


def structured_response(data: Any) -> ToolResult:
    """Return a result with structured content only: the page does not read text."""
    return ToolResult(content=[], structured_content=data)


def emit_event(ctx: Context, topic: str, data: Any) -> None:
    """Send an event to the page before the result."""
    ctx.info(data, logger=topic)
