"""How the tools of the console answer, and what is live in an answer that takes long."""

from __future__ import annotations

from typing import Any

from portico.server.components.results import ToolResult
from portico.server.context.context import Context


def shown(data: Any) -> ToolResult:
    """For a program alone: nothing is said twice."""
    return ToolResult(content=[], structured_content=data)


def say(ctx: Context, topic: str, data: Any) -> None:
    """A word to the page, before the answer."""
    ctx.info(data, logger=topic)
