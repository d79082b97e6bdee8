"""`mcp.server.mcpserver.prompts.base`: the messages of prompts."""

from __future__ import annotations

from portico.server.components.prompts import AssistantMessage, Message, UserMessage

__all__ = ["AssistantMessage", "Message", "UserMessage"]
