"""What an older revision says differently. Pure, and driven by two tables.

Messages exist once, in the newest shape. On the way to a handshake revision the members it does not know are taken
off, and the kinds of content it does not know become text.
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
from portico.protocol.versions import V2025_03_26, V2025_06_18, V2025_11_25, V2026_07_28, Revision

if TYPE_CHECKING:
    from portico.jsonschema import dialects
else:
    dialects = LazyModule("portico.jsonschema.dialects")

S = TypeVar("S", bound=Struct)

# Member by member, the revision that brought it.
_DESCRIBED = {"title": V2025_06_18, "icons": V2025_11_25, "meta": V2025_06_18}
SINCE: dict[type[Struct], dict[str, Revision]] = {
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
    # Extensions with methods of their own came with 2026-07-28; a server that declares one must answer to it.
    meta.ServerCapabilities: {"completions": V2025_03_26, "extensions": V2026_07_28},
    content.Annotations: {"last_modified": V2025_06_18},
    content.TextContent: {"meta": V2025_06_18},
    content.ImageContent: {"meta": V2025_06_18},
    content.AudioContent: {"meta": V2025_06_18},
    content.EmbeddedResource: {"meta": V2025_06_18},
    content.ResourceLink: {"icons": V2025_11_25},
    content.TextContents: {"meta": V2025_06_18},
    content.BlobContents: {"meta": V2025_06_18},
    content.Contents: {"meta": V2025_06_18},
    notifications.ProgressParams: {"message": V2025_03_26},
    client_features.SamplingMessage: {"meta": V2025_11_25},
    client_features.CreateMessageParams: {"tools": V2025_11_25, "tool_choice": V2025_11_25},
    client_features.ElicitUrlParams: {"elicitation_id": V2025_11_25},
}

# The kinds of content that came later; before that, their gist as text.
KINDS: dict[type[Struct], Revision] = {
    content.AudioContent: V2025_03_26,
    content.ResourceLink: V2025_06_18,
}


def strip(said: S, revision: Revision) -> S:
    """The same without the members this revision does not know."""
    unknown = {
        name: None
        for name, since in SINCE.get(type(said), {}).items()
        if revision < since and getattr(said, name) is not None
    }
    return replace(said, **unknown) if unknown else said


def result(said: Any, revision: Revision) -> Any:
    """A result as this revision has it."""
    rule = _RESULTS.get(type(said))
    return rule(said, revision) if rule is not None and revision < V2026_07_28 else said


def modern(said: Any) -> Any:
    """A list without what only an older revision has: whether a tool can be a task, said tool by tool."""
    if isinstance(said, tools.ListToolsResult) and any(one.execution is not None for one in said.tools):
        return replace(said, tools=[replace(one, execution=None) for one in said.tools])
    return said


def notice(params: Any, revision: Revision) -> Any:
    """The params of a notification as this revision has them."""
    return strip(params, revision) if isinstance(params, Struct) else params


def task_status(said: tasks.TaskNotice) -> tasks.TaskStatusParams:
    """What the extension tells of a task, as 2025-11-25 says it; there a tool that says no has failed."""
    status = said.status
    if status == "completed" and _is_error(said.result):
        status = "failed"
    return tasks.TaskStatusParams(
        task_id=said.task_id,
        status=status,
        status_message=said.status_message,
        created_at=said.created_at,
        last_updated_at=said.last_updated_at,
        ttl=None if said.ttl_ms is UNSET else said.ttl_ms,
        poll_interval=said.poll_interval_ms,
    )


def task_progress(said: tasks.TaskNotice, token: meta.ProgressToken) -> notifications.ProgressParams | None:
    """How far a task is, as 2025-11-25 tells the client that asked for its progress; None if nothing is known of it."""
    far = said.meta.get(tasks.PROGRESS) if isinstance(said.meta, dict) else None
    if far is None:
        return None
    related = {tasks.RELATED: {"taskId": said.task_id}}
    return notifications.ProgressParams(progress_token=token, **far, meta=related)


class _Verdict(Struct, rename="camel"):
    is_error: bool = False


def _is_error(result: Any) -> bool:
    return isinstance(result, Raw) and msgspec.json.decode(result, type=_Verdict).is_error


def question(params: Any, revision: Revision) -> Any:
    """The params of a request to the client as this revision has them."""
    if isinstance(params, client_features.CreateMessageParams):
        messages = [one for message in params.messages for one in _spoken(message, revision)]
        return strip(replace(params, messages=messages), revision)
    if isinstance(params, client_features.ElicitFormParams) and revision < V2025_11_25:
        return replace(params, requested_schema=_plain_form(params.requested_schema))
    return notice(params, revision)


def _spoken(message: client_features.SamplingMessage, revision: Revision) -> list[client_features.SamplingMessage]:
    """Before 2025-11-25 a message has one block, so several become several messages."""
    blocks = message.content if isinstance(message.content, list) else [message.content]
    said = [block(part, revision) for part in blocks]
    if revision >= V2025_11_25:
        return [replace(message, content=said if isinstance(message.content, list) else said[0])]
    return [strip(replace(message, content=part), revision) for part in said]


def _plain_form(schema: dict[str, Any]) -> dict[str, Any]:
    """2025-06-18 has no `$schema`, and fields with fewer words."""
    fields = {name: _plain_field(field) for name, field in schema.get("properties", {}).items()}
    return {**{k: v for k, v in schema.items() if k != "$schema"}, "properties": fields}


def _plain_field(field: dict[str, Any]) -> dict[str, Any]:
    """Defaults are for yes/no fields only, and the titles of choices stand beside them."""
    found = {k: v for k, v in field.items() if k != "oneOf" and (k != "default" or field.get("type") == "boolean")}
    if choices := field.get("oneOf"):
        found["enum"] = [one["const"] for one in choices]
        found["enumNames"] = [one.get("title", one["const"]) for one in choices]
    return found


def block(said: Any, revision: Revision) -> Any:
    """One content block."""
    since = KINDS.get(type(said))
    if since is not None and revision < since:
        return content.TextContent(text=_gist(said))
    if type(said) is content.EmbeddedResource and isinstance(said.resource, Struct):
        said = replace(said, resource=strip(said.resource, revision))
    if isinstance(said, content.Block):
        if said.annotations is not None:
            said = replace(said, annotations=strip(said.annotations, revision))
        return strip(said, revision)
    return said


def _gist(said: Any) -> str:
    if isinstance(said, content.ResourceLink):
        return f"{said.title or said.name}: {said.uri}"
    return f"[{said.mime_type}, {len(said.data) * 3 // 4} bytes]"


def tool(said: tools.Tool, revision: Revision) -> tools.Tool:
    """A tool's definition. Until 2025-11-25 the output of a tool is an object, so anything else is put into one."""
    said = strip(said, revision)
    if said.execution is not None and revision != V2025_11_25:
        said = replace(said, execution=None)
    schema = said.output_schema
    if schema is not None and revision < V2026_07_28 and schema.get("type") != "object":
        said = replace(said, output_schema=wrapped_schema(schema))
    return said


def wrapped_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of `{"result": …}`."""
    # Loaded where tools are listed: a start does without it.
    as_property = dialects.as_property
    return {**as_property(schema, "result"), tools.WRAPPED: True}


def _call_tool(said: tools.CallToolResult, revision: Revision) -> tools.CallToolResult:
    structured = said.structured_content
    if structured is not UNSET and revision < V2025_06_18:
        said = replace(said, structured_content=UNSET)
    elif structured is not UNSET and not _is_object(structured):
        said = replace(said, structured_content={"result": structured})
    if revision < V2025_11_25:
        said = replace(said, content=[block(part, revision) for part in said.content])
    return said


def wrapped(structured: Raw) -> Raw:
    """What `wrapped_schema` describes."""
    return Raw(b'{"result":' + bytes(structured) + b"}")


def _is_object(structured: Any) -> bool:
    """Whether it is a JSON object on the wire. Our own tools hand it over already encoded."""
    if type(structured) is Raw:
        return bytes(memoryview(structured)[:1]) == b"{"
    return not isinstance(structured, list | tuple | set | str | int | float | bool | None)


def _contents(said: resources.ReadResourceResult, revision: Revision) -> resources.ReadResourceResult:
    contents = [strip(part, revision) if isinstance(part, Struct) else part for part in said.contents]
    return replace(said, contents=contents, ttl_ms=UNSET, cache_scope=UNSET)


def _messages(said: prompts.GetPromptResult, revision: Revision) -> prompts.GetPromptResult:
    messages = [prompts.PromptMessage(one.role, block(one.content, revision)) for one in said.messages]
    return replace(said, messages=messages)


def _initialize(said: lifecycle.InitializeResult, revision: Revision) -> lifecycle.InitializeResult:
    return replace(said, server_info=strip(said.server_info, revision), capabilities=strip(said.capabilities, revision))


def _list(name: str, one: Callable[[Any, Revision], Any]) -> Callable[[Any, Revision], Any]:
    """A list without cache hints, its entries translated one by one."""

    def rule(said: Any, revision: Revision) -> Any:
        entries = [one(entry, revision) for entry in getattr(said, name)]
        return replace(said, **{name: entries}, ttl_ms=UNSET, cache_scope=UNSET)

    return rule


def _described(said: Any, revision: Revision) -> Any:
    said = strip(said, revision)
    annotations = getattr(said, "annotations", None)
    return replace(said, annotations=strip(annotations, revision)) if annotations is not None else said


def _prompt(said: prompts.Prompt, revision: Revision) -> prompts.Prompt:
    said = strip(said, revision)
    if said.arguments is not None:
        said = replace(said, arguments=[strip(argument, revision) for argument in said.arguments])
    return said


_RESULTS: dict[type, Callable[[Any, Revision], Any]] = {
    tools.CallToolResult: _call_tool,
    tools.ListToolsResult: _list("tools", tool),
    resources.ListResourcesResult: _list("resources", _described),
    resources.ListResourceTemplatesResult: _list("resource_templates", _described),
    resources.ReadResourceResult: _contents,
    prompts.ListPromptsResult: _list("prompts", _prompt),
    prompts.GetPromptResult: _messages,
    lifecycle.InitializeResult: _initialize,
}
