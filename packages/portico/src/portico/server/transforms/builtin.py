"""What a server offers in another shape, as a whole: `server.add_transform(…)`."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from portico.protocol.completion import PromptReference
from portico.protocol.content import BlobContents, TextContent
from portico.protocol.errors import InvalidParams, UsageError
from portico.protocol.tools import Tool as Definition
from portico.server.components.tools import Tool
from portico.server.components.validation import VERSION, described_meta
from portico.server.context.context import Context
from portico.server.middleware import CallNext, Middleware, MiddlewareContext, each_listed
from portico.server.registry.registry import version_order
from portico.server.registry.service import Completes, Component
from portico.server.transforms.arguments import ArgumentShape

log = logging.getLogger("portico")


class Transform:
    """What `server.add_transform` takes: which of a server's components are there, and in which shape.

    A subclass says it with `keeps`, or puts a middleware on the server with `put_on`.
    """

    def put_on(self, server: Any) -> None:
        """Called once, with the server that it is for."""

    def keeps(self, component: Component) -> bool:
        """Whether a component of the server is there at all, now or when it is added later."""
        return True


class ToolTransformConfig(Struct, kw_only=True):
    """One tool in another shape; what is not said stays."""

    name: str | None = None
    title: str | None = None
    description: str | None = None
    tags: set[str] | None = None
    meta: dict[str, Any] | None = None
    enabled: bool = True
    arguments: Mapping[str, Any] = {}


class ToolTransform(Transform, Middleware):
    """Tools by their names, each in another shape: also those of servers that are mounted.

    `ToolTransform({"search": ToolTransformConfig(name="find", arguments={"q": ArgTransform(name="query")})})`
    """

    def __init__(self, transforms: Mapping[str, ToolTransformConfig | Mapping[str, Any]]) -> None:
        self._changes = {name: _config(change) for name, change in transforms.items()}
        self._outward = {change.name: name for name, change in self._changes.items() if change.name}
        if len(self._outward) < sum(1 for change in self._changes.values() if change.name):
            raise UsageError("two tools cannot be given the same name")
        self._shapes: dict[str, ArgumentShape] = {}

    def put_on(self, server: Any) -> None:
        server.add_middleware(self)

    async def on_list_tools(self, context: MiddlewareContext, call_next: CallNext) -> Any:
        result = await call_next(context)
        shaped = [self._shaped(one) for one in result.tools if self._is_there(one.name)]
        result.tools = [one for one in shaped if one is not None]
        return result

    def _is_there(self, name: str) -> bool:
        change = self._changes.get(name)
        return name not in self._outward if change is None else change.enabled

    def _shaped(self, tool: Definition) -> Definition | None:
        change = self._changes.get(tool.name)
        if change is None:
            return tool
        shape = self._take_shape(tool, change)
        if shape is None:
            return None
        meta = {**(tool.meta or {}), **(change.meta or {})}
        if change.tags is not None:
            meta |= described_meta({"tags": change.tags})
        return msgspec.structs.replace(
            tool,
            name=change.name or tool.name,
            title=change.title or tool.title,
            description=change.description or tool.description,
            input_schema=shape.schema,
            meta=meta or None,
        )

    def _take_shape(self, tool: Definition, change: ToolTransformConfig) -> ArgumentShape | None:
        """None for a tool that has other arguments than its change is about: without it, it is not to be had."""
        try:
            shape = ArgumentShape(tool.name, tool.input_schema, change.arguments)
        except UsageError as mistake:
            log.error("a tool is left out that cannot be given its other shape: %s", mistake)
            self._shapes.pop(tool.name, None)
            return None
        self._shapes[tool.name] = shape
        return shape

    async def on_call_tool(self, context: MiddlewareContext, call_next: CallNext) -> Any:
        said = context.message
        name = self._outward.get(said.name)
        if name is None:
            change = self._changes.get(said.name)
            if change is not None and (change.name or not change.enabled):
                raise InvalidParams(f"Unknown tool: {said.name}")
            name = said.name
        change = self._changes.get(name)
        if change is None:
            return await call_next(context)
        if not change.enabled:
            raise InvalidParams(f"Unknown tool: {said.name}")
        shape = await self._shape(name, change, context, call_next)
        if change.arguments and shape is None:
            # What is hidden or fixed must not be had by who is not shown the tool.
            raise InvalidParams(f"Unknown tool: {said.name}")
        arguments = said.arguments if shape is None else shape.encoded(said.arguments)
        message = msgspec.structs.replace(said, name=name, arguments=arguments)
        return await call_next(context.copy(message=message))

    async def _shape(
        self, name: str, change: ToolTransformConfig, context: MiddlewareContext, call_next: CallNext
    ) -> ArgumentShape | None:
        """The shape of a tool's arguments; a client may call without having listed."""
        if change.arguments and name not in self._shapes:
            async for tool in each_listed("tools/list", "tools", context, call_next):
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
        raise UsageError(f"a tool cannot be given another {unknown[0]!r}")
    known = {name: value for name, value in members.items() if name != "annotations"}
    return ToolTransformConfig(**{name: value for name, value in known.items() if value is not None})


class VersionFilter(Transform):
    """Only components whose version is in a range, and those that have none."""

    def __init__(
        self, *, version_gte: str | None = None, version_lt: str | None = None, include_unversioned: bool = True
    ) -> None:
        if version_gte is None and version_lt is None:
            raise UsageError("a VersionFilter needs version_gte or version_lt")
        self._from, self._below, self._unversioned = version_gte, version_lt, include_unversioned

    def keeps(self, component: Component) -> bool:
        if isinstance(component, Completes):
            return True
        version = (component.definition.meta or {}).get(VERSION)
        if version is None:
            return self._unversioned
        order = version_order(version)
        low = self._from is None or order >= version_order(self._from)
        return low and (self._below is None or order < version_order(self._below))


_READS = {"readOnlyHint": True}


class ResourcesAsTools(Transform):
    """Resources for clients that know only tools: `list_resources` and `read_resource`."""

    def __init__(self, server: Any) -> None:
        self._server = server

    def put_on(self, server: Any) -> None:
        async def list_resources(ctx: Context) -> str:
            """List all available resources and resource templates. A resource has a 'uri'; a template has a
            'uri_template' with placeholders like {name}."""
            found = [
                {"uri": one.uri, "name": one.name, "description": one.description, "mime_type": one.mime_type}
                for one in await ctx.list_resources()
            ]
            templates = [
                {"uri_template": one.uri_template, "name": one.name, "description": one.description}
                for one in await ctx.list_resource_templates()
            ]
            return _json([*found, *templates])

        async def read_resource(uri: str, ctx: Context) -> str:
            """Read a resource by its URI. For a template, fill in its placeholders. What is no text comes in base64.

            Args:
                uri: The URI of the resource to read
            """
            contents = await ctx.read_resource(uri)
            if len(contents) == 1:
                return _text(contents[0])
            return _json([{"content": _text(one), "mime_type": one.mime_type} for one in contents])

        server.add(Tool(list_resources, annotations=_READS))
        server.add(Tool(read_resource, annotations=_READS))


class PromptsAsTools(Transform):
    """Prompts for clients that know only tools: `list_prompts` and `get_prompt`."""

    def __init__(self, server: Any) -> None:
        self._server = server

    def put_on(self, server: Any) -> None:
        async def list_prompts(ctx: Context) -> str:
            """List all available prompts, with their descriptions and arguments."""
            return _json(
                [
                    {
                        "name": one.name,
                        "description": one.description,
                        "arguments": [
                            {"name": each.name, "description": each.description, "required": each.required}
                            for each in one.arguments or ()
                        ],
                    }
                    for one in await ctx.list_prompts()
                ]
            )

        async def get_prompt(name: str, ctx: Context, arguments: dict[str, Any] | None = None) -> str:
            """Get a prompt by name, filled in: its messages.

            Args:
                name: The name of the prompt to get
                arguments: Optional arguments for the prompt
            """
            result = await ctx.get_prompt(name, arguments)
            messages = [
                {
                    "role": one.role,
                    "content": one.content.text
                    if isinstance(one.content, TextContent)
                    else msgspec.to_builtins(one.content),
                }
                for one in result.messages
            ]
            return _json({"messages": messages})

        server.add(Tool(list_prompts, annotations=_READS))
        server.add(Tool(get_prompt, annotations=_READS))


def _json(value: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


def _text(contents: Any) -> str:
    if isinstance(contents, BlobContents) or not isinstance(getattr(contents, "text", None), str):
        return str(contents.blob)
    return str(contents.text)


class Namespace(Transform, Middleware):
    """A prefix before the names of tools and prompts: `Namespace("api")` makes `add` an `api_add`."""

    def __init__(self, prefix: str) -> None:
        self._prefix = f"{prefix}_"

    def put_on(self, server: Any) -> None:
        server.add_middleware(self)

    async def on_list_tools(self, context: MiddlewareContext, call_next: CallNext) -> Any:
        result = await call_next(context)
        result.tools = self._named(result.tools)
        return result

    async def on_list_prompts(self, context: MiddlewareContext, call_next: CallNext) -> Any:
        result = await call_next(context)
        result.prompts = self._named(result.prompts)
        return result

    async def on_call_tool(self, context: MiddlewareContext, call_next: CallNext) -> Any:
        return await call_next(self._bare(context, "tool"))

    async def on_get_prompt(self, context: MiddlewareContext, call_next: CallNext) -> Any:
        return await call_next(self._bare(context, "prompt"))

    async def on_complete(self, context: MiddlewareContext, call_next: CallNext) -> Any:
        ref = context.message.ref
        if isinstance(ref, PromptReference):
            if not ref.name.startswith(self._prefix):
                raise InvalidParams(f"Nothing to complete: {ref.name}")
            bare = msgspec.structs.replace(ref, name=ref.name.removeprefix(self._prefix))
            context = context.copy(message=msgspec.structs.replace(context.message, ref=bare))
        return await call_next(context)

    def _named(self, entries: Sequence[Any]) -> list[Any]:
        return [msgspec.structs.replace(one, name=self._prefix + one.name) for one in entries]

    def _bare(self, context: MiddlewareContext, kind: str) -> MiddlewareContext:
        name = context.message.name
        if not name.startswith(self._prefix):
            raise InvalidParams(f"Unknown {kind}: {name}")
        bare = name.removeprefix(self._prefix)
        return context.copy(message=msgspec.structs.replace(context.message, name=bare))
