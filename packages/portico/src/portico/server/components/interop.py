"""Conversion of content blocks, messages and results of other MCP libraries.

They are recognized by class names and members, so none of the libraries is imported.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from portico.protocol.client_features import CreateMessageResult, ElicitResult, InputRequiredResult, ListRootsResult
from portico.protocol.content import (
    AudioContent,
    BlobResourceContents,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
)
from portico.protocol.errors import InvalidParams
from portico.protocol.prompts import GetPromptResult, PromptMessage
from portico.protocol.resources import ReadResourceResult
from portico.protocol.tools import CallToolResult

# By their names in the official SDK and FastMCP.
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
    "TextResourceContents": TextResourceContents,
    "BlobResourceContents": BlobResourceContents,
}
_ALL = _BLOCKS | _OTHERS


# Both conditions are needed: an author may have an own class named TextContent that is not a pydantic
# model.
def is_foreign_type(kind: Any) -> bool:
    """Return whether a class is another library's version of one of these."""
    return isinstance(kind, type) and kind.__name__ in _ALL and hasattr(kind, "model_dump")


def is_foreign_block(value: Any) -> bool:
    return type(value).__name__ in _BLOCKS and hasattr(value, "model_dump")


def decode_input_responses(data: bytes) -> dict[str, Any]:
    """Decode a client's responses to the input requests of an InputRequiredResult. Raises InvalidParams.

    Responses carry no type, so each is recognized by its members.
    """
    responses = msgspec.json.decode(data)
    if not isinstance(responses, dict):
        raise InvalidParams("Invalid inputResponses: expected an object with one response for each key")
    try:
        return {key: msgspec.convert(response, _answer_type(response)) for key, response in responses.items()}
    except msgspec.ValidationError as failure:
        raise InvalidParams(f"Invalid inputResponses: {failure}") from None


def _answer_type(answer: Any) -> Any:
    if not isinstance(answer, dict):
        return Any
    # `action` is required in ElicitResult and `roots` in ListRootsResult; neither is a member of
    # CreateMessageResult.
    if "action" in answer:
        return ElicitResult
    return ListRootsResult if "roots" in answer else CreateMessageResult


def to_native(value: Any) -> Any:
    """Return the value as an instance of our own class, or unchanged if it is not from another library."""
    if not is_foreign_type(type(value)):
        return value
    # Through JSON names: the Python attribute names of the libraries differ (`mimeType`,
    # `mime_type`), their JSON is the protocol's.
    members = value.model_dump(mode="json", by_alias=True, exclude_none=True)
    return msgspec.convert(members, _ALL[type(value).__name__])
