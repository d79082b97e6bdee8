"""Validation of tool use in sampling: every tool use must be answered in the next message."""

from __future__ import annotations

from collections.abc import Sequence

from portico.protocol.client_features import SamplingMessage
from portico.protocol.content import SamplingContentBlock, ToolResultContent, ToolUseContent
from portico.protocol.errors import InvalidParams


def validate_tool_messages(messages: Sequence[SamplingMessage]) -> None:
    """Raise InvalidParams for an inconsistent conversation (client/sampling, Message Content Constraints).

    A message with tool results contains nothing else and answers all tool uses of the previous message.
    """
    owed: list[str] = []
    for message in messages:
        results = _tool_result_ids(message)
        if sorted(results) != sorted(owed):
            wrong = "missing in request" if set(owed) - set(results) else "without its tool use"
            raise InvalidParams(f"Tool result {wrong}")
        owed = _uses(message)
    if owed:
        raise InvalidParams("Tool result missing in request")


def uses_tools(messages: Sequence[SamplingMessage]) -> bool:
    """Return whether a conversation contains tool uses or tool results."""
    return any(
        isinstance(block, ToolUseContent | ToolResultContent)
        for message in messages
        for block in content_blocks(message)
    )


def content_blocks(message: SamplingMessage) -> list[SamplingContentBlock]:
    """Return the content of a message as a list."""
    return message.content if isinstance(message.content, list) else [message.content]


def _tool_result_ids(message: SamplingMessage) -> list[str]:
    """Return the ids of the tool uses that a message answers."""
    blocks = content_blocks(message)
    results = [block.tool_use_id for block in blocks if isinstance(block, ToolResultContent)]
    if results and message.role != "user":
        raise InvalidParams("Tool results come from the user, not from the assistant")
    if results and len(results) != len(blocks):
        raise InvalidParams("Tool results mixed with other content")
    return results


def _uses(message: SamplingMessage) -> list[str]:
    """Return the ids of the tool uses that the next message must answer."""
    uses = [block.id for block in content_blocks(message) if isinstance(block, ToolUseContent)]
    if uses and message.role != "assistant":
        raise InvalidParams("Tools are used by the assistant, not by the user")
    if len(set(uses)) != len(uses):
        raise InvalidParams("Two tool uses have the same id")
    return uses
