"""Translation of messages to older protocol versions, driven by two tables.

Messages are built in the newest form. For a handshake version, unknown members are removed and unknown content types
become text.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from msgspec import UNSET, Raw, Struct
from msgspec.structs import replace

from portico._lazy import LazyModule
from portico.protocol import (
    client_features,
    content,
    lifecycle,
    meta,
    notifications,
    prompts,
    resources,
    tasks,
    tools,
)
from portico.protocol.versions import V2025_03_26, V2025_06_18, V2025_11_25, V2026_07_28, ProtocolVersion

if TYPE_CHECKING:
    from portico.jsonschema import dialects
else:
    dialects = LazyModule("portico.jsonschema.dialects")

S = TypeVar("S", bound=Struct)

# The protocol version that introduced each member.
_DESCRIBED = {"title": V2025_06_18, "icons": V2025_11_25, "meta": V2025_06_18}
FIELD_VERSIONS: dict[type[Struct], dict[str, ProtocolVersion]] = {
    tools.Tool: _DESCRIBED | {"annotations": V2025_03_26, "output_schema": V2025_06_18},
    resources.Resource: _DESCRIBED,
    resources.ResourceTemplate: _DESCRIBED,
    prompts.Prompt: _DESCRIBED,
    prompts.PromptArgument: {"title": V2025_06_18},
    meta.Implementation: {
        "title": V2025_06_18,
        "icons": V2025_11_25,
        "description": V2025_11_25,
        "website_url": V2025_11_25,
    },
    # Extensions with methods came with 2026-07-28; a server that declares one must support it.
    meta.ServerCapabilities: {"completions": V2025_03_26, "extensions": V2026_07_28},
    content.Annotations: {"last_modified": V2025_06_18},
    content.TextContent: {"meta": V2025_06_18},
    content.ImageContent: {"meta": V2025_06_18},
    content.AudioContent: {"meta": V2025_06_18},
    content.EmbeddedResource: {"meta": V2025_06_18},
    content.ResourceLink: {"icons": V2025_11_25},
    content.TextResourceContents: {"meta": V2025_06_18},
    content.BlobResourceContents: {"meta": V2025_06_18},
    content.ResourceContents: {"meta": V2025_06_18},
    notifications.ProgressParams: {"message": V2025_03_26},
    client_features.SamplingMessage: {"meta": V2025_11_25},
    client_features.CreateMessageParams: {"tools": V2025_11_25, "tool_choice": V2025_11_25},
    client_features.ElicitUrlParams: {"elicitation_id": V2025_11_25},
}

# Content types introduced later; older versions get a text description.
CONTENT_TYPE_VERSIONS: dict[type[Struct], ProtocolVersion] = {
    content.AudioContent: V2025_03_26,
    content.ResourceLink: V2025_06_18,
}


def strip_unknown_fields(value: S, protocol_version: ProtocolVersion) -> S:
    """Remove the members that a protocol version does not define."""
    unknown = {
        name: None
        for name, since in FIELD_VERSIONS.get(type(value), {}).items()
        if protocol_version < since and getattr(value, name) is not None
    }
    return replace(value, **unknown) if unknown else value


def translate_result(result: Any, protocol_version: ProtocolVersion) -> Any:
    """Translate a result to a protocol version."""
    rule = _RESULTS.get(type(result))
    return rule(result, protocol_version) if rule is not None and protocol_version < V2026_07_28 else result


def modernize_list(result: Any) -> Any:
    """Remove `execution` from tools, which only 2025-11-25 defines."""
    if isinstance(result, tools.ListToolsResult) and any(tool.execution is not None for tool in result.tools):
        return replace(result, tools=[replace(tool, execution=None) for tool in result.tools])
    return result


def translate_notification(params: Any, protocol_version: ProtocolVersion) -> Any:
    """Translate the params of a notification to a protocol version."""
    return strip_unknown_fields(params, protocol_version) if isinstance(params, Struct) else params


def to_task_status(params: tasks.TaskNotificationParams) -> tasks.TaskStatusParams:
    """Convert a task notification of the extension to 2025-11-25, where a tool error means a failed task."""
    status = params.status
    # 2025-11-25, tasks: a tool result with isError moves the task to `failed`; in the extension it is
    # `completed`.
    if status == "completed" and _is_error(params.result):
        status = "failed"
    return tasks.TaskStatusParams(
        task_id=params.task_id,
        status=status,
        status_message=params.status_message,
        created_at=params.created_at,
        last_updated_at=params.last_updated_at,
        ttl=None if params.ttl_ms is UNSET else params.ttl_ms,
        poll_interval=params.poll_interval_ms,
    )


def to_task_progress(
    params: tasks.TaskNotificationParams, token: meta.ProgressToken
) -> notifications.ProgressParams | None:
    """Return the progress of a task as a notification of 2025-11-25, or None if it is unknown."""
    far = params.meta.get(tasks.TASK_PROGRESS_EXTENSION) if isinstance(params.meta, dict) else None
    if far is None:
        return None
    related = {tasks.RELATED_TASK_META_KEY: {"taskId": params.task_id}}
    return notifications.ProgressParams(progress_token=token, **far, meta=related)


class _ErrorFlag(Struct, rename="camel"):
    is_error: bool = False


def _is_error(result: Any) -> bool:
    return isinstance(result, Raw) and msgspec.json.decode(result, type=_ErrorFlag).is_error


def translate_client_request(params: Any, protocol_version: ProtocolVersion) -> Any:
    """Translate the params of a server-to-client request to a protocol version."""
    if isinstance(params, client_features.CreateMessageParams):
        messages = [item for message in params.messages for item in _split_message(message, protocol_version)]
        return strip_unknown_fields(replace(params, messages=messages), protocol_version)
    if isinstance(params, client_features.ElicitFormParams) and protocol_version < V2025_11_25:
        return replace(params, requested_schema=_plain_form(params.requested_schema))
    return translate_notification(params, protocol_version)


def _split_message(
    message: client_features.SamplingMessage, revision: ProtocolVersion
) -> list[client_features.SamplingMessage]:
    """Translate a message. Before 2025-11-25 a message has one block, so several blocks become several messages."""
    # Since 2025-11-25, `content` is one block or a list (parallel tool calls in sampling, SEP-1577).
    blocks = message.content if isinstance(message.content, list) else [message.content]
    translated = [translate_content_block(part, revision) for part in blocks]
    if revision >= V2025_11_25:
        return [replace(message, content=translated if isinstance(message.content, list) else translated[0])]
    return [strip_unknown_fields(replace(message, content=part), revision) for part in translated]


def _plain_form(schema: dict[str, Any]) -> dict[str, Any]:
    """Convert a form to 2025-06-18: no `$schema`, and fewer keywords per field."""
    fields = {name: _plain_field(field) for name, field in schema.get("properties", {}).items()}
    return {**{k: v for k, v in schema.items() if k != "$schema"}, "properties": fields}


def _plain_field(field: dict[str, Any]) -> dict[str, Any]:
    """Convert a field to 2025-06-18: defaults for booleans only, and titles of choices in `enumNames`."""
    # 2025-06-18 (client/elicitation) defines `default` for booleans only, and strict clients reject other
    # keywords.
    result = {k: v for k, v in field.items() if k != "oneOf" and (k != "default" or field.get("type") == "boolean")}
    if choices := field.get("oneOf"):
        result["enum"] = [choice["const"] for choice in choices]
        result["enumNames"] = [choice.get("title", choice["const"]) for choice in choices]
    return result


def translate_content_block(block: Any, protocol_version: ProtocolVersion) -> Any:
    """Translate one content block to a protocol version."""
    since = CONTENT_TYPE_VERSIONS.get(type(block))
    if since is not None and protocol_version < since:
        return content.TextContent(text=_describe_content(block))
    if type(block) is content.EmbeddedResource and isinstance(block.resource, Struct):
        block = replace(block, resource=strip_unknown_fields(block.resource, protocol_version))
    if isinstance(block, content.ContentBase):
        if block.annotations is not None:
            block = replace(block, annotations=strip_unknown_fields(block.annotations, protocol_version))
        return strip_unknown_fields(block, protocol_version)
    return block


def _describe_content(block: Any) -> str:
    if isinstance(block, content.ResourceLink):
        return f"{block.title or block.name}: {block.uri}"
    # The data is base64: four characters for three bytes.
    return f"[{block.mime_type}, {len(block.data) * 3 // 4} bytes]"


def translate_tool(tool: tools.Tool, protocol_version: ProtocolVersion) -> tools.Tool:
    """Translate a tool. Until 2025-11-25 the output must be an object, so other schemas are wrapped."""
    tool = strip_unknown_fields(tool, protocol_version)
    # `execution.taskSupport` exists in 2025-11-25 only; the tasks extension of 2026-07-28 declares it
    # elsewhere.
    if tool.execution is not None and protocol_version != V2025_11_25:
        tool = replace(tool, execution=None)
    schema = tool.output_schema
    if schema is not None and protocol_version < V2026_07_28 and schema.get("type") != "object":
        tool = replace(tool, output_schema=wrap_output_schema(schema))
    return tool


def wrap_output_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of `{"result": …}` for the schema of a value."""
    if schema.keys() <= _SIMPLE_KEYWORDS:
        # Most tools return text or a number; this avoids loading `dialects` at startup.
        outer = {"type": "object", "properties": {"result": schema}, "required": ["result"]}
    else:
        outer = dialects.wrap_as_property(schema, "result")
    return {**outer, tools.WRAP_RESULT_KEY: True}


# A schema with only these keywords has no references and no definitions.
_SIMPLE_KEYWORDS = frozenset({"type", "title", "description", "format"})


def _call_tool(result: tools.CallToolResult, revision: ProtocolVersion) -> tools.CallToolResult:
    structured = result.structured_content
    # Structured content was introduced with 2025-06-18. Text content has the same value, so nothing is lost.
    if structured is not UNSET and revision < V2025_06_18:
        result = replace(result, structured_content=UNSET)
    elif structured is not UNSET and not _is_object(structured):
        result = replace(result, structured_content={"result": structured})
    if revision < V2025_11_25:
        result = replace(result, content=[translate_content_block(part, revision) for part in result.content])
    return result


def _is_object(structured: Any) -> bool:
    """Return whether the value is a JSON object. Our own tools pass it encoded."""
    if type(structured) is Raw:
        return bytes(memoryview(structured)[:1]) == b"{"
    return not isinstance(structured, list | tuple | set | str | int | float | bool | None)


def _contents(result: resources.ReadResourceResult, revision: ProtocolVersion) -> resources.ReadResourceResult:
    contents = [strip_unknown_fields(part, revision) if isinstance(part, Struct) else part for part in result.contents]
    # Cache hints belong to 2026-07-28; older clients validate results strictly.
    return replace(result, contents=contents, ttl_ms=UNSET, cache_scope=UNSET)


def _messages(result: prompts.GetPromptResult, revision: ProtocolVersion) -> prompts.GetPromptResult:
    messages = [
        prompts.PromptMessage(message.role, translate_content_block(message.content, revision))
        for message in result.messages
    ]
    return replace(result, messages=messages)


def _initialize(result: lifecycle.InitializeResult, revision: ProtocolVersion) -> lifecycle.InitializeResult:
    return replace(
        result,
        server_info=strip_unknown_fields(result.server_info, revision),
        capabilities=strip_unknown_fields(result.capabilities, revision),
    )


def _translate_list(name: str, item: Callable[[Any, ProtocolVersion], Any]) -> Callable[[Any, ProtocolVersion], Any]:
    """Return a rule that translates the entries of a list and removes its cache hints."""

    def rule(result: Any, revision: ProtocolVersion) -> Any:
        entries = [item(entry, revision) for entry in getattr(result, name)]
        return replace(result, **{name: entries}, ttl_ms=UNSET, cache_scope=UNSET)

    return rule


def _translate_entry(entry: Any, revision: ProtocolVersion) -> Any:
    entry = strip_unknown_fields(entry, revision)
    annotations = getattr(entry, "annotations", None)
    return replace(entry, annotations=strip_unknown_fields(annotations, revision)) if annotations is not None else entry


def _prompt(prompt: prompts.Prompt, revision: ProtocolVersion) -> prompts.Prompt:
    prompt = strip_unknown_fields(prompt, revision)
    if prompt.arguments is not None:
        prompt = replace(prompt, arguments=[strip_unknown_fields(argument, revision) for argument in prompt.arguments])
    return prompt


_RESULTS: dict[type, Callable[[Any, ProtocolVersion], Any]] = {
    tools.CallToolResult: _call_tool,
    tools.ListToolsResult: _translate_list("tools", translate_tool),
    resources.ListResourcesResult: _translate_list("resources", _translate_entry),
    resources.ListResourceTemplatesResult: _translate_list("resource_templates", _translate_entry),
    resources.ReadResourceResult: _contents,
    prompts.ListPromptsResult: _translate_list("prompts", _prompt),
    prompts.GetPromptResult: _messages,
    lifecycle.InitializeResult: _initialize,
}
