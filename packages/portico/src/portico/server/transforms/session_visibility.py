"""What one conversation is shown besides, and not shown: `ctx.enable_components`, `ctx.disable_components`.

Other servers have nothing of this: the middleware is put on with the first such call.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from types import CoroutineType
from typing import Any

from msgspec import Struct

from portico.protocol.errors import InvalidParams, ResourceNotFound, ToolError
from portico.rpc.call import Call
from portico.server.components.prompts import Prompt
from portico.server.components.resources import Resource
from portico.server.components.tools import Tool
from portico.server.components.validation import TAGS
from portico.server.middleware import CallNext, Middleware, MiddlewareContext
from portico.server.policy.interfaces import Kind
from portico.server.registry.service import Answer

_STATE = "portico/visibility"
_MOST_RULES = 1_000


class VisibilityRule(Struct):
    """What it is about, and whether that is there; the last rule that fits decides."""

    enabled: bool
    names: list[str] = []
    tags: list[str] = []
    match_all: bool = False

    def fits(self, component: Any) -> bool:
        own = (component.definition.meta or {}).get(TAGS, ())
        named = component.name in self.names or getattr(component, "uri", "") in self.names
        return self.match_all or named or not set(self.tags).isdisjoint(own)


class ConversationVisibility(Middleware):
    """The rules of each conversation, applied. Where a guard decides who sees what, nothing is shown besides."""

    def __init__(self, server: Any) -> None:
        self._server = server

    def add(self, call: Call, rule: VisibilityRule | None) -> None:
        """Another rule for the conversation of a call; None: forget all of them."""
        states = self._server.runtime.states
        kept = states.get(call, _STATE) or []
        if rule is not None and len(kept) >= _MOST_RULES:
            raise ToolError("Too many components were shown and hidden already.")
        said = [] if rule is None else [*kept, {name: getattr(rule, name) for name in rule.__struct_fields__}]
        states.set(call, _STATE, said)

    def _rules(self, call: Call) -> list[VisibilityRule]:
        try:
            kept = self._server.runtime.states.get(call, _STATE)
        except ToolError:
            return []  # it belongs to no conversation
        return [VisibilityRule(**one) for one in kept or ()]

    def _decided(self, call: Call, component: Any) -> bool | None:
        """What the rules say of a component; None if nothing."""
        said = [rule.enabled for rule in self._rules(call) if rule.fits(component)]
        return said[-1] if said else None

    def _hidden(self, call: Call, component: Any) -> bool:
        return component is not None and self._decided(call, component) is False

    def _shown(self, call: Call, kind: type) -> list[Any]:
        protection = self._server.protection
        if protection is not None and protection.guard is not None:
            return []
        away = [one for one in self._server.disabled if isinstance(one, kind)]
        return [one for one in away if self._decided(call, one)]

    def _found(self, call: Call, kind: type, name: str) -> Any:
        named = (one for one in self._shown(call, kind) if name in (one.name, getattr(one, "uri", "")))
        return next(named, None)

    async def on_list_tools(self, context: MiddlewareContext, call_next: CallNext) -> Any:
        result = await call_next(context)
        result.tools = self._listed(context, result.tools, self._server.tools, Tool, "name")
        return result

    async def on_list_prompts(self, context: MiddlewareContext, call_next: CallNext) -> Any:
        result = await call_next(context)
        result.prompts = self._listed(context, result.prompts, self._server.prompts, Prompt, "name")
        return result

    async def on_list_resource_templates(self, context: MiddlewareContext, call_next: CallNext) -> Any:
        result = await call_next(context)
        known = self._server.templates
        result.resource_templates = [
            one for one in result.resource_templates if not self._hidden(context.call, known.get(one.uri_template))
        ]
        return result

    async def on_complete(self, context: MiddlewareContext, call_next: CallNext) -> Any:
        if self._hidden(context.call, context.component):
            raise InvalidParams("Nothing to complete")
        return await call_next(context)

    async def on_list_resources(self, context: MiddlewareContext, call_next: CallNext) -> Any:
        result = await call_next(context)
        result.resources = self._listed(context, result.resources, self._server.resources, Resource, "uri")
        return result

    def _listed(self, context: MiddlewareContext, entries: list[Any], known: Any, kind: type, key: str) -> list[Any]:
        kept = [one for one in entries if not self._hidden(context.call, known.get(getattr(one, key)))]
        if getattr(context.message, "cursor", None) is not None:
            return kept
        besides = [one for one in self._shown(context.call, kind) if getattr(one, "template", None) is None]
        return [*kept, *(one.definition for one in besides)]

    async def on_call_tool(self, context: MiddlewareContext, call_next: CallNext) -> Any:
        name, call = context.message.name, context.call
        if self._hidden(call, self._server.registry.tool(name)):
            raise InvalidParams(f"Unknown tool: {name}")
        found = self._found(call, Tool, name) if self._server.registry.tool(name) is None else None
        if found is None:
            return await call_next(context)
        return await self._counted(call, "tool", found, partial(_start, found, self._server.runtime))

    async def on_get_prompt(self, context: MiddlewareContext, call_next: CallNext) -> Any:
        name, call = context.message.name, context.call
        known = self._server.prompts.get(name)
        if self._hidden(call, known):
            raise InvalidParams(f"Unknown prompt: {name}")
        found = self._found(call, Prompt, name) if known is None else None
        if found is None:
            return await call_next(context)
        return await self._counted(
            call, "prompt", found, lambda call: found.get(call, call.typed(), self._server.runtime)
        )

    async def on_read_resource(self, context: MiddlewareContext, call_next: CallNext) -> Any:
        uri, call = context.message.uri, context.call
        known, _ = self._server.registry.resource(uri)
        if self._hidden(call, known):
            raise ResourceNotFound(uri)
        found = self._found(call, Resource, uri) if known is None else None
        if found is None or found.template is not None:
            return await call_next(context)
        return await self._counted(
            call, "resource", found, lambda call: found.read(call, call.typed(), self._server.runtime, {})
        )

    async def _counted(self, call: Call, kind: Kind, component: Any, answer: Answer) -> Any:
        """Limits and records are about what is shown besides as about everything else."""
        protection = self._server.protection
        if protection is None:
            result = answer(call)
        else:
            result = protection.pass_to(call, kind, self._server.owned(component), answer)
        return await result if type(result) is CoroutineType else result


def _start(tool: Tool, runtime: Any, call: Call) -> Any:
    return tool.start(call, call.typed(), runtime)


def set_visibility(
    call: Call, server: Any, enabled: bool | None, names: Collection[str], tags: Collection[str], match_all: bool
) -> None:
    """For the conversation of a call; `enabled` None: as the server has it again."""
    if server.visibility is None:
        server.visibility = ConversationVisibility(server)
        server.add_middleware(server.visibility)
    rule = None if enabled is None else VisibilityRule(enabled, sorted(names), sorted(tags), match_all)
    server.visibility.add(call, rule)
