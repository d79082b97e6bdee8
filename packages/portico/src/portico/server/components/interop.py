"""Content blocks, messages and results of other MCP libraries, told by their names and members: none is imported."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from portico.protocol.client_features import CreateMessageResult, ElicitResult, InputRequiredResult, ListRootsResult
from portico.protocol.content import (
    AudioContent,
    BlobContents,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextContents,
)
from portico.protocol.errors import InvalidParams
from portico.protocol.prompts import GetPromptResult, PromptMessage
from portico.protocol.resources import ReadResourceResult
from portico.protocol.tools import CallToolResult

# By the names that the official SDK and FastMCP give them.
_BLOCKS: dict[str, type[Struct]] = {
    "TextContent": TextContent,
    "ImageContent": ImageContent,
    "AudioContent": AudioContent,
    "EmbeddedResource": EmbeddedResource,
    "ResourceLink": ResourceLink,
}
_OTHERS: dict[str, type[Struct]] = {
    "CallToolResult": CallToolResult,
    "InputRequiredResult": InputRequiredResult,
    "GetPromptResult": GetPromptResult,
    "PromptMessage": PromptMessage,
    "ReadResourceResult": ReadResourceResult,
    "TextResourceContents": TextContents,
    "BlobResourceContents": BlobContents,
}
_ALL = _BLOCKS | _OTHERS


def is_foreign(kind: Any) -> bool:
    """Whether a class is one of these, of another library."""
    return isinstance(kind, type) and kind.__name__ in _ALL and hasattr(kind, "model_dump")


def is_foreign_block(value: Any) -> bool:
    return type(value).__name__ in _BLOCKS and hasattr(value, "model_dump")


def responses(said: bytes) -> dict[str, Any]:
    """The answers of a client to the questions of an InputRequiredResult, each as what it is by its members."""
    given = msgspec.json.decode(said)
    if not isinstance(given, dict):
        raise InvalidParams("Invalid inputResponses: expected an object with one answer for each key")
    try:
        return {key: msgspec.convert(one, _answer_type(one)) for key, one in given.items()}
    except msgspec.ValidationError as failure:
        raise InvalidParams(f"Invalid inputResponses: {failure}") from None


def _answer_type(answer: Any) -> Any:
    if not isinstance(answer, dict):
        return Any
    if "action" in answer:
        return ElicitResult
    return ListRootsResult if "roots" in answer else CreateMessageResult


def ours(value: Any) -> Any:
    """The same as one of our own classes; what is none of these, as it is."""
    if not is_foreign(type(value)):
        return value
    said = value.model_dump(mode="json", by_alias=True, exclude_none=True)
    return msgspec.convert(said, _ALL[type(value).__name__])
