"""tools/list and tools/call."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET, Raw, Struct, UnsetType, field

from portico.protocol.content import CacheableResult, ContentBlock, Result
from portico.protocol.jsonrpc import EMPTY_RAW
from portico.protocol.meta import BoundedName, Icon, RequestParams

# Marks a schema whose object only wraps a value; FastMCP's client recognizes it, too.
WRAP_RESULT_KEY = "x-fastmcp-wrap-result"

# Key in the `_meta` of a failed result with a machine-readable error.
ERROR_META_KEY = "portico/error"

# Key in the `_meta` of a result with its status, if it is neither a plain success nor a failure: `{"status":
# "partial_success", "explanation": "…"}`.
RESULT = "portico/result"


class ToolAnnotations(Struct, omit_defaults=True, rename="camel", frozen=True):
    """Hints about a tool. A client must not rely on them unless it trusts the server."""

    title: str | None = None
    read_only_hint: bool | None = None
    destructive_hint: bool | None = None
    idempotent_hint: bool | None = None
    open_world_hint: bool | None = None


class Tool(Struct, omit_defaults=True, rename="camel", kw_only=True):
    name: str
    title: str | None = None
    description: str | None = None
    # Schemas are plain JSON and are passed on unchanged: typed models would drop unknown keywords.
    input_schema: dict[str, Any]
    output_schema: dict[str, Any] | None = None
    annotations: ToolAnnotations | None = None
    icons: list[Icon] | None = None
    execution: dict[str, Any] | None = None
    meta: dict[str, Any] | None = field(default=None, name="_meta")


class ListParams(RequestParams, gc=False):
    """Parameters of every list method. An empty cursor is a valid cursor (2026-07-28, server/utilities/pagination)."""

    cursor: str | None = None


class ListToolsResult(CacheableResult, kw_only=True):
    tools: list[Tool]
    next_cursor: str | UnsetType | None = UNSET


class CallToolParams(RequestParams, rename="camel", gc=False):
    name: BoundedName
    arguments: Raw = EMPTY_RAW
    input_responses: Raw = EMPTY_RAW
    request_state: str | UnsetType = UNSET
    # 2025-11-25: requests a task. The later extension uses the name differently and ignores it.
    task: Raw = EMPTY_RAW


class CallToolResult(Result, kw_only=True):
    """Result of a tool. `isError` and `content` have no default, so that they are always encoded."""

    content: list[Any]
    structured_content: Any = UNSET
    is_error: bool


class ReceivedToolResult(Result, kw_only=True):
    """Result of a tool as received by a client: older servers omit `isError`."""

    content: list[ContentBlock]
    structured_content: Any = UNSET
    is_error: bool = False


class ToolChoice(Struct, omit_defaults=True):
    mode: Literal["auto", "required", "none"] | None = None
