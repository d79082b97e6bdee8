"""What results are made of: content blocks and resource contents."""

from __future__ import annotations

from binascii import a2b_base64
from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType, field

from portico.protocol.meta import Icon

Role = Literal["user", "assistant"]


class Annotations(Struct, omit_defaults=True, rename="camel", frozen=True):
    audience: list[Role] | None = None
    priority: float | None = None
    last_modified: str | None = None


class Block(Struct, omit_defaults=True, rename="camel", tag_field="type", kw_only=True):
    annotations: Annotations | None = None
    meta: dict[str, Any] | None = field(default=None, name="_meta")


class TextContent(Block, tag="text"):
    text: str


class ImageContent(Block, tag="image"):
    data: str
    mime_type: str


class AudioContent(Block, tag="audio"):
    data: str
    mime_type: str


class TextContents(Struct, omit_defaults=True, rename="camel", kw_only=True):
    """The text of a resource."""

    uri: str
    mime_type: str | None = None
    text: str
    meta: dict[str, Any] | None = field(default=None, name="_meta")

    @property
    def content(self) -> str:
        return self.text


class BlobContents(Struct, omit_defaults=True, rename="camel", kw_only=True):
    """The bytes of a resource, in base64."""

    uri: str
    mime_type: str | None = None
    blob: str
    meta: dict[str, Any] | None = field(default=None, name="_meta")

    @property
    def content(self) -> bytes:
        return a2b_base64(self.blob)


class Contents(Struct, omit_defaults=True, rename="camel", kw_only=True):
    """Either of the two as a client meets them."""

    uri: str
    mime_type: str | None = None
    text: str | UnsetType = UNSET
    blob: str | UnsetType = UNSET
    meta: dict[str, Any] | None = field(default=None, name="_meta")


class EmbeddedResource(Block, tag="resource"):
    resource: TextContents | BlobContents | Contents | Any


class ResourceLink(Block, tag="resource_link"):
    uri: str
    name: str
    title: str | None = None
    description: str | None = None
    mime_type: str | None = None
    size: int | None = None
    icons: list[Icon] | None = None


class ToolUseContent(Block, tag="tool_use"):
    id: str
    name: str
    input: dict[str, Any]


class ToolResultContent(Block, tag="tool_result"):
    tool_use_id: str
    content: list[Any]
    structured_content: Any = UNSET
    is_error: bool = False


ContentBlock = TextContent | ImageContent | AudioContent | EmbeddedResource | ResourceLink
SamplingBlock = TextContent | ImageContent | AudioContent | ToolUseContent | ToolResultContent
BLOCKS = (TextContent, ImageContent, AudioContent, EmbeddedResource, ResourceLink)


class Result(Struct, omit_defaults=True, rename="camel", tag_field="resultType", tag="complete", kw_only=True):
    """Every answer. `resultType` is a tag, because `omit_defaults` would drop a constant; the handshake revisions,
    which do not know it, have it taken off when they are answered."""

    meta: Any = field(default=UNSET, name="_meta")


_RESULT_TYPE = b'{"resultType":"complete"'


def strip_result_type(body: bytes) -> bytes:
    """An encoded result without its `resultType`, which the handshake revisions do not know."""
    return b"{" + body[len(_RESULT_TYPE) :].removeprefix(b",") if body.startswith(_RESULT_TYPE) else body


class EmptyResult(Result):
    pass


class CacheableResult(Result, kw_only=True):
    """2026-07-28, server/utilities/caching: both members are required on the results that have them."""

    ttl_ms: int | UnsetType = UNSET
    cache_scope: Literal["public", "private"] | UnsetType = UNSET
