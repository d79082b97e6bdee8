"""Transforms that were written for FastMCP: `list_tools(tools)`, `get_tool(name, call_next)`, and so on for the rest.

What they are given are entries of lists, as a client would be shown them. So they leave out, rename and describe
otherwise what the server has; what they would add is added to the server.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from msgspec.structs import replace

from portico.protocol.completion import PromptReference
from portico.protocol.errors import InvalidParams, ResourceNotFound
from portico.protocol.uri_template import Template
from portico.server.components.validation import TAGS, VERSION
from portico.server.middleware import CallNext, Middleware, MiddlewareContext, each_listed
from portico.server.transforms import builtin

ComponentType = Literal["tool", "prompt", "resource", "resource_template"]

# Of each kind: the method of its list, the member that holds the entries, and what they are known by.
_LISTS: dict[ComponentType, tuple[str, str, str]] = {
    "tool": ("tools/list", "tools", "name"),
    "prompt": ("prompts/list", "prompts", "name"),
    "resource": ("resources/list", "resources", "uri"),
    "resource_template": ("resources/templates/list", "resource_templates", "uri_template"),
}
_KINDS = {method: kind for kind, (method, _, _) in _LISTS.items()}
# What they call otherwise than the protocol does.
_NAMES = {"parameters": "input_schema"}


class TransformedComponent:
    """A tool, prompt, resource or template of the server. `within` is what the server knows it by."""

    def __init__(self, definition: Any, within: str) -> None:
        self.definition, self.within = definition, within

    def __getattr__(self, name: str) -> Any:
        return getattr(self.definition, _NAMES.get(name, name))

    @property
    def tags(self) -> set[str]:
        return set((self.definition.meta or {}).get(TAGS, ()))

    @property
    def version(self) -> str | None:
        found: str | None = (self.definition.meta or {}).get(VERSION)
        return found

    def model_copy(self, *, update: dict[str, Any] | None = None, deep: bool = False) -> TransformedComponent:
        """The same with some of it changed."""
        changed = {_NAMES.get(name, name): value for name, value in (update or {}).items()}
        if "tags" in changed:
            changed["meta"] = {**(self.definition.meta or {}), TAGS: sorted(changed.pop("tags"))}
        return TransformedComponent(replace(self.definition, **changed), self.within)


class Transform(builtin.Transform):
    """A Transform with FastMCP's functions.

    `list_tools(tools)` returns the tools that are shown, unchanged or with `tool.model_copy(update=…)`, and
    `get_tool(name, call_next)` the tool that a name means, or None; the same for prompts, resources and templates.
    """

    def put_on(self, server: Any) -> None:
        if any(getattr(type(self), name) is not getattr(Transform, name) for name in _FUNCTIONS):
            server.add_middleware(TransformMiddleware(self))

    async def list_tools(self, tools: Sequence[Any]) -> Sequence[Any]:
        return tools

    async def get_tool(self, name: str, call_next: Any, *, version: Any = None) -> Any:
        return await call_next(name, version=version)

    list_prompts = list_resources = list_resource_templates = list_tools
    get_prompt = get_resource = get_resource_template = get_tool


_FUNCTIONS = [name for name in vars(Transform) if name.startswith(("list_", "get_"))]


class TransformMiddleware(Middleware):
    """A Transform as a middleware, which is what it is here."""

    def __init__(self, transform: Any) -> None:
        self._transform = transform

    async def _list(self, context: MiddlewareContext, call_next: CallNext) -> Any:
        result = await call_next(context)
        kind = _KINDS[context.method]
        _, member, key = _LISTS[kind]
        entries = [TransformedComponent(one, getattr(one, key)) for one in getattr(result, member)]
        shown = await getattr(self._transform, f"list_{kind}s")(entries)
        # It may look at who asks.
        return replace(result, **{member: [self._known(one).definition for one in shown], "cache_scope": "private"})

    on_list_tools = on_list_prompts = on_list_resources = on_list_resource_templates = _list

    async def on_call_tool(self, context: MiddlewareContext, call_next: CallNext) -> Any:
        return await call_next(await self._named("tool", context, call_next))

    async def on_get_prompt(self, context: MiddlewareContext, call_next: CallNext) -> Any:
        return await call_next(await self._named("prompt", context, call_next))

    async def _named(self, kind: ComponentType, context: MiddlewareContext, call_next: CallNext) -> MiddlewareContext:
        name = context.message.name
        within = await self._within(kind, name, context, call_next)
        if within is None:
            raise InvalidParams(f"Unknown {kind}: {name}")
        return context.copy(message=replace(context.message, name=within))

    async def on_read_resource(self, context: MiddlewareContext, call_next: CallNext) -> Any:
        uri = context.message.uri
        within = await self._within("resource", uri, context, call_next)
        within = within or await self._within("resource_template", uri, context, call_next)
        if within is None:
            raise ResourceNotFound(uri)
        return await call_next(context.copy(message=replace(context.message, uri=within)))

    async def on_complete(self, context: MiddlewareContext, call_next: CallNext) -> Any:
        ref = context.message.ref
        if isinstance(ref, PromptReference):
            within = await self._within("prompt", ref.name, context, call_next)
            if within is None:
                raise InvalidParams(f"Nothing to complete: {ref.name}")
            context = context.copy(message=replace(context.message, ref=replace(ref, name=within)))
        return await call_next(context)

    async def _within(
        self, kind: ComponentType, key: str, context: MiddlewareContext, call_next: CallNext
    ) -> str | None:
        """What the server knows something by; None: the Transform says that there is no such thing."""

        async def find(inner: str, *, version: Any = None) -> TransformedComponent | None:
            return await _find(kind, str(inner), context, call_next)

        found = await getattr(self._transform, f"get_{kind}")(key, find)
        return None if found is None else self._known(found).within

    def _known(self, entry: Any) -> TransformedComponent:
        if not isinstance(entry, TransformedComponent):
            name = type(self._transform).__name__
            raise TypeError(f"{name} gave {entry!r}, which is nothing that it was given: add it with server.add")
        return entry


async def _find(
    kind: ComponentType, key: str, context: MiddlewareContext, call_next: CallNext
) -> TransformedComponent | None:
    """What the caller is shown under a name, or an address that fits a template; None if there is none."""
    method, member, field = _LISTS[kind]
    async for entry in each_listed(method, member, context, call_next):
        known = getattr(entry, field)
        if known == key or (kind == "resource_template" and Template(known).match(key) is not None):
            return TransformedComponent(entry, key)
    return None
