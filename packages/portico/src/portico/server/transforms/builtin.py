"""Built-in transforms for `server.add_transform(…)`."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from portico.protocol.completion import PromptReference
from portico.protocol.content import BlobResourceContents, TextContent
from portico.protocol.errors import InvalidParams, UsageError
from portico.protocol.tools import Tool as Definition
from portico.server.components.tools import Tool
from portico.server.components.validation import META_VERSION, build_meta
from portico.server.context.context import Context
from portico.server.middleware import CallNext, Middleware, MiddlewareContext, iter_listed
from portico.server.registry.registry import version_sort_key
from portico.server.registry.service import CompletionBinding, Component
from portico.server.transforms.arguments import ArgumentMapping

log = logging.getLogger("portico")


class Transform:
    """Base class of transforms: which components of a server exist, and in which form.

    A subclass overrides `includes` to filter components, or `attach` to add middleware to the server.
    """

    def attach(self, server: Any) -> None:
        """Attach the transform to a server. Called once."""

    def includes(self, component: Component) -> bool:
        """Return whether a component of the server is included, now or when it is added later."""
        return True


class ToolTransformConfig(Struct, kw_only=True):
    """Changes to one tool; unset members stay as they are."""

    name: str | None = None
    title: str | None = None
    description: str | None = None
    tags: set[str] | None = None
    meta: dict[str, Any] | None = None
    enabled: bool = True
    arguments: Mapping[str, Any] = {}


class ToolTransform(Transform, Middleware):
    """Changes tools by name, including tools of mounted servers.

    `ToolTransform({"search": ToolTransformConfig(name="find", arguments={"q": ArgTransform(name="query")})})`
    """

    def __init__(self, transforms: Mapping[str, ToolTransformConfig | Mapping[str, Any]]) -> None:
        self._changes = {name: _config(change) for name, change in transforms.items()}
        self._outward = {change.name: name for name, change in self._changes.items() if change.name}
        if len(self._outward) < sum(1 for change in self._changes.values() if change.name):
            raise UsageError("ToolTransform: two tools must not have the same new name")
        self._shapes: dict[str, ArgumentMapping] = {}

    def attach(self, server: Any) -> None:
        server.add_middleware(self)

    async def on_list_tools(self, context: MiddlewareContext, call_next: CallNext) -> Any:
        result = await call_next(context)
        shaped = [self._transform(tool) for tool in result.tools if self._is_there(tool.name)]
        result.tools = [tool for tool in shaped if tool is not None]
        return result

    def _is_there(self, name: str) -> bool:
        change = self._changes.get(name)
        # A tool that has the new name of another one by itself is hidden: calls under that name
        # reach the renamed tool.
        return name not in self._outward if change is None else change.enabled

    def _transform(self, tool: Definition) -> Definition | None:
        change = self._changes.get(tool.name)
        if change is None:
            return tool
        shape = self._take_shape(tool, change)
        if shape is None:
            return None
        meta = {**(tool.meta or {}), **(change.meta or {})}
        if change.tags is not None:
            meta |= build_meta({"tags": change.tags})
        return msgspec.structs.replace(
            tool,
            name=change.name or tool.name,
            title=change.title or tool.title,
            description=change.description or tool.description,
            input_schema=shape.schema,
            meta=meta or None,
        )

    def _take_shape(self, tool: Definition, change: ToolTransformConfig) -> ArgumentMapping | None:
        """Return the argument mapping of a tool, or None if its arguments do not match the changes.

        Such a tool is left out: without the changes, hidden arguments would be exposed.
        """
        try:
            shape = ArgumentMapping(tool.name, tool.input_schema, change.arguments)
        except UsageError as mistake:
            log.error("skipping a tool that cannot be transformed: %s", mistake)
            self._shapes.pop(tool.name, None)
            return None
        self._shapes[tool.name] = shape
        return shape

    async def on_call_tool(self, context: MiddlewareContext, call_next: CallNext) -> Any:
        params = context.message
        name = self._outward.get(params.name)
        if name is None:
            change = self._changes.get(params.name)
            if change is not None and (change.name or not change.enabled):
                raise InvalidParams(f"Unknown tool: {params.name}")
            name = params.name
        change = self._changes.get(name)
        if change is None:
            return await call_next(context)
        if not change.enabled:
            raise InvalidParams(f"Unknown tool: {params.name}")
        shape = await self._shape(name, change, context, call_next)
        if change.arguments and shape is None:
            # Security: hidden and fixed arguments must not be reachable by calling a tool that is not listed.
            raise InvalidParams(f"Unknown tool: {params.name}")
        arguments = params.arguments if shape is None else shape.to_original_json(params.arguments)
        message = msgspec.structs.replace(params, name=name, arguments=arguments)
        return await call_next(context.copy(message=message))

    async def _shape(
        self, name: str, change: ToolTransformConfig, context: MiddlewareContext, call_next: CallNext
    ) -> ArgumentMapping | None:
        """Return the argument mapping of a tool, listing the tools if the client calls without having listed them."""
        if change.arguments and name not in self._shapes:
            # 2026-07-28 requests are independent: a client may call a tool from an earlier listing,
            # perhaps in another process.
            async for tool in iter_listed("tools/list", "tools", context, call_next):
                if tool.name == name:
                    self._take_shape(tool, change)
                    break
        return self._shapes.get(name)


def _config(change: Any) -> ToolTransformConfig:
    if isinstance(change, ToolTransformConfig):
        return change
    members = change if isinstance(change, Mapping) else vars(change)
    unknown = sorted(set(members) - set(ToolTransformConfig.__struct_fields__) - {"annotations"})
    if unknown:
        raise UsageError(f"unknown member {unknown[0]!r} in a tool transform")
    options = {name: value for name, value in members.items() if name != "annotations"}
    return ToolTransformConfig(**{name: value for name, value in options.items() if value is not None})


class VersionFilter(Transform):
    """Includes only components whose version is in a range, and unversioned ones by default."""

    def __init__(
        self, *, version_gte: str | None = None, version_lt: str | None = None, include_unversioned: bool = True
    ) -> None:
        if version_gte is None and version_lt is None:
            raise UsageError("VersionFilter requires version_gte or version_lt")
        self._from, self._below, self._unversioned = version_gte, version_lt, include_unversioned

    def includes(self, component: Component) -> bool:
        if isinstance(component, CompletionBinding):
            return True
        # From the definition, because components of FastMCP have no `version` attribute of ours.
        version = (component.definition.meta or {}).get(META_VERSION)
        if version is None:
            return self._unversioned
        order = version_sort_key(version)
        low = self._from is None or order >= version_sort_key(self._from)
        return low and (self._below is None or order < version_sort_key(self._below))


_READS = {"readOnlyHint": True}


class ResourcesAsTools(Transform):
    """Exposes resources to clients that only support tools, as `list_resources` and `read_resource`."""

    def __init__(self, server: Any) -> None:
        self._server = server

    def attach(self, server: Any) -> None:
        async def list_resources(ctx: Context) -> str:
            """List all available resources and resource templates. A resource has a 'uri'; a template has a
            'uri_template' with placeholders like {name}.
            """
            resources = [
                {"uri": item.uri, "name": item.name, "description": item.description, "mime_type": item.mime_type}
                for item in await ctx.list_resources()
            ]
            templates = [
                {"uri_template": item.uri_template, "name": item.name, "description": item.description}
                for item in await ctx.list_resource_templates()
            ]
            return _json([*resources, *templates])

        async def read_resource(uri: str, ctx: Context) -> str:
            """Read a resource by its URI and return its text; binary content is returned as base64. Fill in a
            template's placeholders.

            Args:
                uri: The URI of the resource to read
            """
            contents = await ctx.read_resource(uri)
            if len(contents) == 1:
                return _text(contents[0])
            return _json([{"content": _text(content), "mime_type": content.mime_type} for content in contents])

        server.add(Tool(list_resources, annotations=_READS))
        server.add(Tool(read_resource, annotations=_READS))


class PromptsAsTools(Transform):
    """Exposes prompts to clients that only support tools, as `list_prompts` and `get_prompt`."""

    def __init__(self, server: Any) -> None:
        self._server = server

    def attach(self, server: Any) -> None:
        async def list_prompts(ctx: Context) -> str:
            """List all available prompts, with their descriptions and arguments."""
            return _json(
                [
                    {
                        "name": prompt.name,
                        "description": prompt.description,
                        "arguments": [
                            {
                                "name": parameter.name,
                                "description": parameter.description,
                                "required": parameter.required,
                            }
                            for parameter in prompt.arguments or ()
                        ],
                    }
                    for prompt in await ctx.list_prompts()
                ]
            )

        async def get_prompt(name: str, ctx: Context, arguments: dict[str, Any] | None = None) -> str:
            """Get a prompt by name, rendered with the given arguments, and return its messages.

            Args:
                name: The name of the prompt to get
                arguments: Optional arguments for the prompt
            """
            result = await ctx.get_prompt(name, arguments)
            messages = [
                {
                    "role": message.role,
                    "content": message.content.text
                    if isinstance(message.content, TextContent)
                    else msgspec.to_builtins(message.content),
                }
                for message in result.messages
            ]
            return _json({"messages": messages})

        server.add(Tool(list_prompts, annotations=_READS))
        server.add(Tool(get_prompt, annotations=_READS))


def _json(value: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


def _text(contents: Any) -> str:
    # Contents of a mounted remote server may be a plain object with `text` or `blob`.
    if isinstance(contents, BlobResourceContents) or not isinstance(getattr(contents, "text", None), str):
        return str(contents.blob)
    return str(contents.text)


class Namespace(Transform, Middleware):
    """Adds a prefix to the names of tools and prompts: `Namespace("api")` turns `add` into `api_add`."""

    def __init__(self, prefix: str) -> None:
        self._prefix = f"{prefix}_"

    def attach(self, server: Any) -> None:
        server.add_middleware(self)

    async def on_list_tools(self, context: MiddlewareContext, call_next: CallNext) -> Any:
        result = await call_next(context)
        result.tools = self._add_prefix(result.tools)
        return result

    async def on_list_prompts(self, context: MiddlewareContext, call_next: CallNext) -> Any:
        result = await call_next(context)
        result.prompts = self._add_prefix(result.prompts)
        return result

    async def on_call_tool(self, context: MiddlewareContext, call_next: CallNext) -> Any:
        return await call_next(self._strip_namespace(context, "tool"))

    async def on_get_prompt(self, context: MiddlewareContext, call_next: CallNext) -> Any:
        return await call_next(self._strip_namespace(context, "prompt"))

    async def on_complete(self, context: MiddlewareContext, call_next: CallNext) -> Any:
        ref = context.message.ref
        if isinstance(ref, PromptReference):
            if not ref.name.startswith(self._prefix):
                raise InvalidParams(f"Nothing to complete: {ref.name}")
            bare = msgspec.structs.replace(ref, name=ref.name.removeprefix(self._prefix))
            context = context.copy(message=msgspec.structs.replace(context.message, ref=bare))
        return await call_next(context)

    def _add_prefix(self, entries: Sequence[Any]) -> list[Any]:
        return [msgspec.structs.replace(entry, name=self._prefix + entry.name) for entry in entries]

    def _strip_namespace(self, context: MiddlewareContext, kind: str) -> MiddlewareContext:
        name = context.message.name
        if not name.startswith(self._prefix):
            raise InvalidParams(f"Unknown {kind}: {name}")
        bare = name.removeprefix(self._prefix)
        return context.copy(message=msgspec.structs.replace(context.message, name=bare))
