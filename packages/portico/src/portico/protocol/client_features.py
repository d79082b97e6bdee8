"""Server-to-client requests (elicitation, sampling, roots) and the `input_required` result."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, field

from portico.protocol.content import Role, SamplingContentBlock
from portico.protocol.tools import Tool, ToolChoice


class ElicitFormParams(Struct, omit_defaults=True, rename="camel", kw_only=True):
    message: str
    requested_schema: dict[str, Any]
    meta: dict[str, Any] | None = field(default=None, name="_meta")


class ElicitUrlParams(Struct, rename="camel", tag_field="mode", tag="url", omit_defaults=True, kw_only=True):
    message: str
    url: str
    elicitation_id: str | None = None
    meta: dict[str, Any] | None = field(default=None, name="_meta")


class ElicitParams(Struct, omit_defaults=True, rename="camel", kw_only=True):
    """Elicitation parameters of either mode, as received by a client. The default mode is a form."""

    message: str
    mode: str = "form"
    requested_schema: dict[str, Any] = field(default_factory=dict)
    url: str | None = None
    elicitation_id: str | None = None
    meta: dict[str, Any] | None = field(default=None, name="_meta")


class ElicitResult(Struct, omit_defaults=True):
    action: Literal["accept", "decline", "cancel"]
    content: dict[str, Any] | None = None


# Since 2025-11-25 a message may have several blocks; older versions have exactly one. See `translation`.
class SamplingMessage(Struct, omit_defaults=True):
    role: Role
    content: SamplingContentBlock | list[SamplingContentBlock]
    meta: dict[str, Any] | None = field(default=None, name="_meta")


Priority = Annotated[float, Meta(ge=0, le=1)]


class ModelHint(Struct, omit_defaults=True):
    name: str | None = None


class ModelPreferences(Struct, omit_defaults=True, rename="camel"):
    hints: list[ModelHint] | None = None
    cost_priority: Priority | None = None
    speed_priority: Priority | None = None
    intelligence_priority: Priority | None = None


class CreateMessageParams(Struct, omit_defaults=True, rename="camel", kw_only=True):
    messages: list[SamplingMessage]
    max_tokens: int
    model_preferences: ModelPreferences | None = None
    system_prompt: str | None = None
    include_context: str | None = None
    temperature: float | None = None
    stop_sequences: list[str] | None = None
    metadata: dict[str, Any] | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    meta: dict[str, Any] | None = field(default=None, name="_meta")


class CreateMessageResult(Struct, omit_defaults=True, rename="camel", kw_only=True):
    role: Role
    content: SamplingContentBlock | list[SamplingContentBlock]
    model: str
    stop_reason: str | None = None
    meta: dict[str, Any] | None = field(default=None, name="_meta")


class Root(Struct, omit_defaults=True):
    uri: str
    name: str | None = None
    meta: dict[str, Any] | None = field(default=None, name="_meta")


class ListRootsResult(Struct):
    roots: list[Root]


# The key in `inputRequests` replaces the id, so that responses can be matched in the next round.
class InputRequest(Struct, omit_defaults=True):
    """One request inside a result, without an id (2026-07-28, basic/patterns, multi round-trip requests)."""

    method: str
    params: Any = None


class InputRequiredResult(
    Struct, omit_defaults=True, rename="camel", tag_field="resultType", tag="input_required", kw_only=True
):
    input_requests: dict[str, InputRequest] | UnsetType = UNSET
    request_state: str | UnsetType = UNSET
    meta: Any = field(default=UNSET, name="_meta")
