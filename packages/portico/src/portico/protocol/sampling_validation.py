"""The balance of a conversation with tools: each use of a tool is answered, all of them, in the next message."""

from __future__ import annotations

from collections.abc import Sequence

from portico.protocol.client_features import SamplingMessage
from portico.protocol.content import SamplingBlock, ToolResultContent, ToolUseContent
from portico.protocol.errors import InvalidParams


def check_balance(messages: Sequence[SamplingMessage]) -> None:
    """Raises InvalidParams for a conversation that no model could go on with (client/sampling, Message Content
    Constraints): a message with the results of tools has nothing else, and answers what the message before it used."""
    owed: list[str] = []
    for message in messages:
        results = _results(message)
        if sorted(results) != sorted(owed):
            wrong = "missing in request" if set(owed) - set(results) else "without its tool use"
            raise InvalidParams(f"Tool result {wrong}")
        owed = _uses(message)
    if owed:
        raise InvalidParams("Tool result missing in request")


def has_tools(messages: Sequence[SamplingMessage]) -> bool:
    """Whether tools are used, or answer, anywhere in a conversation."""
    return any(isinstance(block, ToolUseContent | ToolResultContent) for one in messages for block in blocks_of(one))


def blocks_of(message: SamplingMessage) -> list[SamplingBlock]:
    return message.content if isinstance(message.content, list) else [message.content]


def _results(message: SamplingMessage) -> list[str]:
    """The tool uses that a message answers."""
    blocks = blocks_of(message)
    results = [block.tool_use_id for block in blocks if isinstance(block, ToolResultContent)]
    if results and message.role != "user":
        raise InvalidParams("Tool results come from the user, not from the assistant")
    if results and len(results) != len(blocks):
        raise InvalidParams("Tool results mixed with other content")
    return results


def _uses(message: SamplingMessage) -> list[str]:
    """The tool uses that the next message has to answer."""
    uses = [block.id for block in blocks_of(message) if isinstance(block, ToolUseContent)]
    if uses and message.role != "assistant":
        raise InvalidParams("Tools are used by the assistant, not by the user")
    if len(set(uses)) != len(uses):
        raise InvalidParams("Two tool uses have the same id")
    return uses
