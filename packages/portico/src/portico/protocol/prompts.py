"""prompts/list and prompts/get."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, Raw, Struct, UnsetType, field

from portico.protocol.content import CacheableResult, ContentBlock, Result, Role
from portico.protocol.jsonrpc import EMPTY_RAW
from portico.protocol.meta import BoundedName, Icon, RequestParams


class PromptArgument(Struct, omit_defaults=True, kw_only=True):
    name: str
    title: str | None = None
    description: str | None = None
    required: bool | None = None


class Prompt(Struct, omit_defaults=True, kw_only=True):
    name: str
    title: str | None = None
    description: str | None = None
    arguments: list[PromptArgument] | None = None
    icons: list[Icon] | None = None
    meta: dict[str, Any] | None = field(default=None, name="_meta")


class PromptMessage(Struct):
    role: Role
    content: ContentBlock


class ListPromptsResult(CacheableResult, kw_only=True):
    prompts: list[Prompt]
    next_cursor: str | UnsetType | None = UNSET


class GetPromptParams(RequestParams, rename="camel", gc=False):
    name: BoundedName
    arguments: dict[str, str] | None = None
    input_responses: Raw = EMPTY_RAW
    request_state: str | UnsetType = UNSET


class GetPromptResult(Result, kw_only=True):
    description: str | None = None
    messages: list[PromptMessage]
