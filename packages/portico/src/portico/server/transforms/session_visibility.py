"""Visibility of components per session: `ctx.enable_components`, `ctx.disable_components`.

The middleware is added with the first such call, so other servers have no overhead.
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
from portico.server.components.validation import META_TAGS
from portico.server.middleware import CallNext, Middleware, MiddlewareContext
from portico.server.policy.interfaces import Kind
from portico.server.registry.service import MethodHandler

_STATE = "portico/visibility"
# Rules are evaluated for every listed component of every request in the session.
_MAX_RULES = 1_000


class VisibilityRule(Struct):
    """Rule that shows or hides matching components; the last matching rule decides."""

    enabled: bool
    names: list[str] = []
    tags: list[str] = []
    match_all: bool = False

    def matches(self, component: Any) -> bool:
        """Return whether the rule applies to a component."""
        own = (component.definition.meta or {}).get(META_TAGS, ())
        named = component.name in self.names or getattr(component, "uri", "") in self.names
        return self.match_all or named or not set(self.tags).isdisjoint(own)


class SessionVisibility(Middleware):
    """Middleware that applies the visibility rules of each session.

    If an access policy decides what callers see, disabled components are never shown.
    """

    def __init__(self, server: Any) -> None:
        self._server = server

    def add(self, call: Call, rule: VisibilityRule | None) -> None:
        """Add a rule to the session of a call; None removes all rules."""
        states = self._server.runtime.session_states
        stored_state = states.get(call, _STATE) or []
        if rule is not None and len(stored_state) >= _MAX_RULES:
            raise ToolError("Too many visibility rules in this session: reset them first.")
        # As plain values: session state is stored as JSON.
        rules = [] if rule is None else [*stored_state, {name: getattr(rule, name) for name in rule.__struct_fields__}]
        states.set(call, _STATE, rules)

    def _rules(self, call: Call) -> list[VisibilityRule]:
        try:
            stored_state = self._server.runtime.session_states.get(call, _STATE)
        except ToolError:
            return []  # the call belongs to no session
        return [VisibilityRule(**item) for item in stored_state or ()]

    def _match_rules(self, call: Call, component: Any) -> bool | None:
        """Return whether the rules show a component; None if no rule matches."""
        verdicts = [rule.enabled for rule in self._rules(call) if rule.matches(component)]
        return verdicts[-1] if verdicts else None

    def _is_hidden(self, call: Call, component: Any) -> bool:
        return component is not None and self._match_rules(call, component) is False

    def _find_enabled(self, call: Call, kind: type) -> list[Any]:
        protection = self._server.policy
        # A function of one tool must not be able to show a component that the policy withholds from
        # the caller.
        if protection is not None and protection.access_policy is not None:
            return []
        away = [item for item in self._server.disabled if isinstance(item, kind)]
        return [item for item in away if self._match_rules(call, item)]

    def _find_component(self, call: Call, kind: type, name: str) -> Any:
        named = (item for item in self._find_enabled(call, kind) if name in (item.name, getattr(item, "uri", "")))
        return next(named, None)

    async def on_list_tools(self, context: MiddlewareContext, call_next: CallNext) -> Any:
        result = await call_next(context)
        result.tools = self._apply_to_entries(context, result.tools, self._server.tools, Tool, "name")
        return result

    async def on_list_prompts(self, context: MiddlewareContext, call_next: CallNext) -> Any:
        result = await call_next(context)
        result.prompts = self._apply_to_entries(context, result.prompts, self._server.prompts, Prompt, "name")
        return result

    async def on_list_resource_templates(self, context: MiddlewareContext, call_next: CallNext) -> Any:
        result = await call_next(context)
        templates = self._server.templates
        result.resource_templates = [
            resource_template
            for resource_template in result.resource_templates
            if not self._is_hidden(context.call, templates.get(resource_template.uri_template))
        ]
        return result

    async def on_complete(self, context: MiddlewareContext, call_next: CallNext) -> Any:
        if self._is_hidden(context.call, context.component):
            raise InvalidParams("Nothing to complete")
        return await call_next(context)

    async def on_list_resources(self, context: MiddlewareContext, call_next: CallNext) -> Any:
        result = await call_next(context)
        result.resources = self._apply_to_entries(context, result.resources, self._server.resources, Resource, "uri")
        return result

    def _apply_to_entries(
        self, context: MiddlewareContext, entries: list[Any], components: Any, kind: type, key: str
    ) -> list[Any]:
        remaining = [item for item in entries if not self._is_hidden(context.call, components.get(getattr(item, key)))]
        # Additional entries go on the first page only.
        if getattr(context.message, "cursor", None) is not None:
            return remaining
        enabled = [item for item in self._find_enabled(context.call, kind) if getattr(item, "template", None) is None]
        return [*remaining, *(item.definition for item in enabled)]

    async def on_call_tool(self, context: MiddlewareContext, call_next: CallNext) -> Any:
        name, call = context.message.name, context.call
        if self._is_hidden(call, self._server.registry.tool(name)):
            raise InvalidParams(f"Unknown tool: {name}")
        result = self._find_component(call, Tool, name) if self._server.registry.tool(name) is None else None
        if result is None:
            return await call_next(context)
        return await self._call_with_policy(call, "tool", result, partial(_start, result, self._server.runtime))

    async def on_get_prompt(self, context: MiddlewareContext, call_next: CallNext) -> Any:
        name, call = context.message.name, context.call
        prompt = self._server.prompts.get(name)
        if self._is_hidden(call, prompt):
            raise InvalidParams(f"Unknown prompt: {name}")
        result = self._find_component(call, Prompt, name) if prompt is None else None
        if result is None:
            return await call_next(context)
        return await self._call_with_policy(
            call, "prompt", result, lambda call: result.get(call, call.decode_params(), self._server.runtime)
        )

    async def on_read_resource(self, context: MiddlewareContext, call_next: CallNext) -> Any:
        uri, call = context.message.uri, context.call
        resource, _ = self._server.registry.resource(uri)
        if self._is_hidden(call, resource):
            raise ResourceNotFound(uri)
        result = self._find_component(call, Resource, uri) if resource is None else None
        if result is None or result.template is not None:
            return await call_next(context)
        return await self._call_with_policy(
            call, "resource", result, lambda call: result.read(call, call.decode_params(), self._server.runtime, {})
        )

    async def _call_with_policy(self, call: Call, kind: Kind, component: Any, answer: MethodHandler) -> Any:
        """Call a component under rate limits and audit, which apply to components that a session enabled too."""
        protection = self._server.policy
        if protection is None:
            result = answer(call)
        else:
            result = protection.handle_as(
                call, kind, self._server.ownership.component_qualified_name(component), answer
            )
        return await result if type(result) is CoroutineType else result


def _start(tool: Tool, runtime: Any, call: Call) -> Any:
    return tool.start(call, call.decode_params(), runtime)


def set_visibility(
    call: Call, server: Any, enabled: bool | None, names: Collection[str], tags: Collection[str], match_all: bool
) -> None:
    """Show or hide components for the session of a call. `enabled` None resets the session to the server's defaults."""
    if server.session_visibility is None:
        server.session_visibility = SessionVisibility(server)
        server.add_middleware(server.session_visibility)
    rule = None if enabled is None else VisibilityRule(enabled, sorted(names), sorted(tags), match_all)
    server.session_visibility.add(call, rule)
