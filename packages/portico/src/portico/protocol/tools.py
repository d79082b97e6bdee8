"""tools/list and tools/call."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET, Raw, Struct, UnsetType, field

from portico.protocol.content import CacheableResult, ContentBlock, Result
from portico.protocol.jsonrpc import NOTHING
from portico.protocol.meta import Icon, Name, Params

# How a schema says that its object is only the wrapping of a value; FastMCP's client knows it too.
WRAPPED = "x-fastmcp-wrap-result"

# Where the `_meta` of a failed result says to programs what its text says to the model.
ERROR = "portico/error"

# Where the `_meta` of a result says what its status is, if it is neither a plain success nor a failure, and why:
# `{"status": "partial_success", "explanation": "…"}`.
RESULT = "portico/result"


class ToolAnnotations(Struct, omit_defaults=True, rename="camel", frozen=True):
    """Hints about a tool. They are hints: a client must not trust them from a server it does not trust."""

    title: str | None = None
    read_only_hint: bool | None = None
    destructive_hint: bool | None = None
    idempotent_hint: bool | None = None
    open_world_hint: bool | None = None


class Tool(Struct, omit_defaults=True, rename="camel", kw_only=True):
    name: str
    title: str | None = None
    description: str | None = None
    # Schemas are plain JSON and are passed on as they are: typed models would drop keywords they do not know.
    input_schema: dict[str, Any]
    output_schema: dict[str, Any] | None = None
    annotations: ToolAnnotations | None = None
    icons: list[Icon] | None = None
    execution: dict[str, Any] | None = None
    meta: dict[str, Any] | None = field(default=None, name="_meta")


class ListParams(Params, gc=False):
    """What every list takes. An empty cursor is a cursor (2026-07-28, server/utilities/pagination)."""

    cursor: str | None = None


class ListToolsResult(CacheableResult, kw_only=True):
    tools: list[Tool]
    next_cursor: str | UnsetType | None = UNSET


class CallToolParams(Params, rename="camel", gc=False):
    name: Name
    arguments: Raw = NOTHING
    input_responses: Raw = NOTHING
    request_state: str | UnsetType = UNSET
    # 2025-11-25: a wish for a task. The extension that came after it has the name for something else, and ignores it.
    task: Raw = NOTHING


class CallToolResult(Result, kw_only=True):
    """`isError` and `content` have no default here so that they are always said."""

    content: list[Any]
    structured_content: Any = UNSET
    is_error: bool


class ReceivedToolResult(Result, kw_only=True):
    """The same as a client meets it: older servers leave `isError` out."""

    content: list[ContentBlock]
    structured_content: Any = UNSET
    is_error: bool = False


class ToolChoice(Struct, omit_defaults=True):
    mode: Literal["auto", "required", "none"] | None = None
