"""Transforms written for FastMCP: `list_tools(tools)`, `get_tool(name, call_next)`, and the same for other components.

They receive list entries as a client sees them, so they can hide, rename and redescribe components. Components to add
are added to the server instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from msgspec.structs import replace

from portico.protocol.completion import PromptReference
from portico.protocol.errors import InvalidParams, ResourceNotFound
from portico.protocol.uri_template import UriTemplate
from portico.server.components.validation import META_TAGS, META_VERSION
from portico.server.middleware import CallNext, Middleware, MiddlewareContext, iter_listed
from portico.server.transforms import builtin

ComponentType = Literal["tool", "prompt", "resource", "resource_template"]

# For each kind: its list method, the member that holds the entries, and the member that identifies an entry.
_LISTS: dict[ComponentType, tuple[str, str, str]] = {
    "tool": ("tools/list", "tools", "name"),
    "prompt": ("prompts/list", "prompts", "name"),
    "resource": ("resources/list", "resources", "uri"),
    "resource_template": ("resources/templates/list", "resource_templates", "uri_template"),
}
_KINDS = {method: kind for kind, (method, _, _) in _LISTS.items()}
# Attributes whose FastMCP name differs from the protocol.
_NAMES = {"parameters": "input_schema"}


class TransformedComponent:
    """A tool, prompt, resource or template of the server. `within` is its name in the server."""

    def __init__(self, definition: Any, within: str) -> None:
        self.definition, self.within = definition, within

    # Transforms written for FastMCP read attributes of its components, which are mostly those of
    # the definition.
    def __getattr__(self, name: str) -> Any:
        return getattr(self.definition, _NAMES.get(name, name))

    @property
    def tags(self) -> set[str]:
        return set((self.definition.meta or {}).get(META_TAGS, ()))

    @property
    def version(self) -> str | None:
        result: str | None = (self.definition.meta or {}).get(META_VERSION)
        return result

    def model_copy(self, *, update: dict[str, Any] | None = None, deep: bool = False) -> TransformedComponent:
        """Return a copy with some attributes changed."""
        changed = {_NAMES.get(name, name): value for name, value in (update or {}).items()}
        if "tags" in changed:
            changed["meta"] = {**(self.definition.meta or {}), META_TAGS: sorted(changed.pop("tags"))}
        return TransformedComponent(replace(self.definition, **changed), self.within)


class Transform(builtin.Transform):
    """A Transform with FastMCP's functions.

    `list_tools(tools)` returns the visible tools, unchanged or as `tool.model_copy(update=…)`. `get_tool(name,
    call_next)` returns the tool for a name, or None. The same applies to prompts, resources and templates.
    """

    def attach(self, server: Any) -> None:
        # Without an overridden function the middleware would only cost time, and keep lists from
        # being cached.
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
    """Middleware that applies a Transform."""

    def __init__(self, transform: Any) -> None:
        self._transform = transform

    async def _list(self, context: MiddlewareContext, call_next: CallNext) -> Any:
        result = await call_next(context)
        kind = _KINDS[context.method]
        _, member, key = _LISTS[kind]
        entries = [TransformedComponent(item, getattr(item, key)) for item in getattr(result, member)]
        transformed = await getattr(self._transform, f"list_{kind}s")(entries)
        # The result may depend on the caller, so shared caches must not store it.
        return replace(
            result,
            **{member: [self._require_component(item).definition for item in transformed], "cache_scope": "private"},
        )

    on_list_tools = on_list_prompts = on_list_resources = on_list_resource_templates = _list

    async def on_call_tool(self, context: MiddlewareContext, call_next: CallNext) -> Any:
        return await call_next(await self._resolve_name("tool", context, call_next))

    async def on_get_prompt(self, context: MiddlewareContext, call_next: CallNext) -> Any:
        return await call_next(await self._resolve_name("prompt", context, call_next))

    async def _resolve_name(
        self, kind: ComponentType, context: MiddlewareContext, call_next: CallNext
    ) -> MiddlewareContext:
        name = context.message.name
        within = await self._to_inner_name(kind, name, context, call_next)
        if within is None:
            raise InvalidParams(f"Unknown {kind}: {name}")
        return context.copy(message=replace(context.message, name=within))

    async def on_read_resource(self, context: MiddlewareContext, call_next: CallNext) -> Any:
        uri = context.message.uri
        within = await self._to_inner_name("resource", uri, context, call_next)
        # A URI may be listed itself or match a template; a Transform can rename either.
        within = within or await self._to_inner_name("resource_template", uri, context, call_next)
        if within is None:
            raise ResourceNotFound(uri)
        return await call_next(context.copy(message=replace(context.message, uri=within)))

    async def on_complete(self, context: MiddlewareContext, call_next: CallNext) -> Any:
        ref = context.message.ref
        if isinstance(ref, PromptReference):
            within = await self._to_inner_name("prompt", ref.name, context, call_next)
            if within is None:
                raise InvalidParams(f"Nothing to complete: {ref.name}")
            context = context.copy(message=replace(context.message, ref=replace(ref, name=within)))
        return await call_next(context)

    async def _to_inner_name(
        self, kind: ComponentType, key: str, context: MiddlewareContext, call_next: CallNext
    ) -> str | None:
        """Return the name in the server, or None if the Transform hides the component."""

        async def find(inner: str, *, version: Any = None) -> TransformedComponent | None:
            return await _find(kind, str(inner), context, call_next)

        result = await getattr(self._transform, f"get_{kind}")(key, find)
        return None if result is None else self._require_component(result).within

    def _require_component(self, entry: Any) -> TransformedComponent:
        # Security: an entry that the transform made up has no counterpart that rules could have
        # been checked for.
        if not isinstance(entry, TransformedComponent):
            name = type(self._transform).__name__
            raise TypeError(
                f"{name} returned {entry!r}, which is not one of its inputs: add components with server.add"
            )
        return entry


async def _find(
    kind: ComponentType, key: str, context: MiddlewareContext, call_next: CallNext
) -> TransformedComponent | None:
    """Return the visible component with this name, or the template that matches this URI, or None."""
    method, member, field = _LISTS[kind]
    async for entry in iter_listed(method, member, context, call_next):
        entry_name = getattr(entry, field)
        if entry_name == key or (kind == "resource_template" and UriTemplate(entry_name).match(key) is not None):
            return TransformedComponent(entry, key)
    return None
