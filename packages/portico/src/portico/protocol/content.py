"""Content blocks and resource contents."""

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


class ContentBase(Struct, omit_defaults=True, rename="camel", tag_field="type", kw_only=True):
    annotations: Annotations | None = None
    meta: dict[str, Any] | None = field(default=None, name="_meta")


class TextContent(ContentBase, tag="text"):
    text: str


class ImageContent(ContentBase, tag="image"):
    data: str
    mime_type: str


class AudioContent(ContentBase, tag="audio"):
    data: str
    mime_type: str


class TextResourceContents(Struct, omit_defaults=True, rename="camel", kw_only=True):
    """Text of a resource."""

    uri: str
    mime_type: str | None = None
    text: str
    meta: dict[str, Any] | None = field(default=None, name="_meta")

    @property
    def data(self) -> str:
        return self.text


class BlobResourceContents(Struct, omit_defaults=True, rename="camel", kw_only=True):
    """Binary content of a resource, in base64."""

    uri: str
    mime_type: str | None = None
    blob: str
    meta: dict[str, Any] | None = field(default=None, name="_meta")

    @property
    def data(self) -> bytes:
        return a2b_base64(self.blob)


class ResourceContents(Struct, omit_defaults=True, rename="camel", kw_only=True):
    """Text or binary contents, as received by a client."""

    uri: str
    mime_type: str | None = None
    text: str | UnsetType = UNSET
    blob: str | UnsetType = UNSET
    meta: dict[str, Any] | None = field(default=None, name="_meta")


class EmbeddedResource(ContentBase, tag="resource"):
    resource: TextResourceContents | BlobResourceContents | ResourceContents | Any


class ResourceLink(ContentBase, tag="resource_link"):
    uri: str
    name: str
    title: str | None = None
    description: str | None = None
    mime_type: str | None = None
    size: int | None = None
    icons: list[Icon] | None = None


class ToolUseContent(ContentBase, tag="tool_use"):
    id: str
    name: str
    input: dict[str, Any]


class ToolResultContent(ContentBase, tag="tool_result"):
    tool_use_id: str
    content: list[Any]
    structured_content: Any = UNSET
    is_error: bool = False


ContentBlock = TextContent | ImageContent | AudioContent | EmbeddedResource | ResourceLink
SamplingContentBlock = TextContent | ImageContent | AudioContent | ToolUseContent | ToolResultContent
CONTENT_BLOCK_TYPES = (TextContent, ImageContent, AudioContent, EmbeddedResource, ResourceLink)


class Result(Struct, omit_defaults=True, rename="camel", tag_field="resultType", tag="complete", kw_only=True):
    """Base class of results. `resultType` is a tag, because `omit_defaults` would drop a constant; it is removed in
    responses of the handshake versions, which do not define it.
    """

    meta: Any = field(default=UNSET, name="_meta")


_RESULT_TYPE = b'{"resultType":"complete"'


def strip_result_type(body: bytes) -> bytes:
    """Remove `resultType` from an encoded result, for the handshake versions."""
    return b"{" + body[len(_RESULT_TYPE) :].removeprefix(b",") if body.startswith(_RESULT_TYPE) else body


class EmptyResult(Result):
    pass


class CacheableResult(Result, kw_only=True):
    """Result with cache hints. Both members are required where they apply (2026-07-28, server/utilities/caching)."""

    ttl_ms: int | UnsetType = UNSET
    cache_scope: Literal["public", "private"] | UnsetType = UNSET
