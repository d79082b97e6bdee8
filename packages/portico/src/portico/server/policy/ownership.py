"""Ownership of components, and what callers may learn about them.

Rules and records use the owner and the owner's name of a component, never the name that a client was shown, so aliases,
prefixes and renames cannot bypass them. Imported on demand: servers without rules, views and subscriptions do not need
it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from portico.rpc.call import Call
from portico.server.components.resources import Resource
from portico.server.components.tools import Tool
from portico.server.policy.interfaces import Kind, QualifiedName
from portico.server.registry.caller_view import CallerView
from portico.server.registry.service import Component

if TYPE_CHECKING:
    from portico.server.server import Server

# The method that addresses a component of each kind.
_ASKED_BY: dict[Kind, str] = {
    "tool": "tools/call", "prompt": "prompts/get", "resource": "resources/read", "template": "resources/read"
}  # fmt: skip


class Ownership:
    """Maps the components of a server to their owners."""

    def __init__(self, server: Server) -> None:
        self._server = server

    # Owners

    def qualified_name(self, kind: Kind, name: str) -> QualifiedName:
        """Return the qualified name of a component; the owner is empty if it is unknown."""
        return (
            self.local_qualified_name(kind, name)
            or self._server.provider.qualified_name(kind, name)
            or QualifiedName("", name)
        )

    def local_qualified_name(self, kind: Kind, name: str) -> QualifiedName | None:
        """Return the qualified name of a component that the server has itself, or None."""
        server = self._server
        prompt: Component | None
        if kind == "tool":
            prompt = server.registry.by_name.get(name)
        elif kind == "prompt":
            prompt = server.prompts.get(name)
        elif kind == "template":
            prompt = server.templates.get(name) or server.resources.get(name)
        else:
            prompt = server.registry.resource(name)[0]
            if prompt is not None:
                # The requested URI and not the template's: a rule may allow
                # `file:///public/{+path}` for some paths only. Alias schemes are resolved first, so
                # that they cannot bypass a rule.
                return QualifiedName(self.component_qualified_name(prompt).owner, server.registry.listed_uri(name))
        if prompt is not None:
            return self.component_qualified_name(prompt)
        # If a service answers for the whole kind, every name belongs to it.
        service = server.service_registry.by_method.get(_ASKED_BY[kind])
        return None if service is None else QualifiedName(service.name, name)

    def component_qualified_name(self, component: Component) -> QualifiedName:
        """Return the qualified name of a component of the server."""
        owner = getattr(component, "owner", "") or self._server.info.name
        if isinstance(component, Tool):
            qualified_name = component.qualified_name
            # Compared before it is reused, because a service or a transform can rename a tool.
            if qualified_name is None or qualified_name[0] != owner or qualified_name[1] != component.local_name:
                qualified_name = component.qualified_name = QualifiedName(owner, component.local_name)
            return qualified_name
        return QualifiedName(
            owner, component.uri if isinstance(component, Resource) else getattr(component, "name", "")
        )

    def canonical_name(self, kind: Kind, name: str) -> str | None:
        """Return the canonical name of a component, or None if it does not exist."""
        own = self.local_qualified_name(kind, name)
        return own.name if own is not None else self._server.provider.canonical_name(kind, name)

    # Visibility

    def is_hidden(self, call: Call, kind: Kind, name: str) -> bool:
        """Return whether a component is hidden from the caller."""
        server = self._server
        guard = None if server.policy is None else server.policy.access_policy
        # The policy first: it also decides about components of mounts, by the owner's name.
        if guard is not None and not guard.visibility(call).is_visible(kind, self.qualified_name(kind, name)):
            return True
        return self.local_qualified_name(kind, name) is None and server.provider.is_hidden(call, kind, name)

    def may_notify(self, call: Call, uri: str) -> bool:
        """Return whether the caller may be notified about a resource: it exists, has resources below it, or may be a
        mount's.
        """
        server, facet = self._server, call.facet
        view = None if server.policy is None else server.policy.caller_view(call)
        if view is None and facet is None:
            return server.registry.has(uri) or self._provider_has(call, uri)

        def is_seen(kind: Kind, owned: QualifiedName) -> bool:
            return (facet is None or facet.includes(*owned)) and (view is None or view.is_visible(kind, owned))

        owned = self.local_qualified_name("resource", uri)
        if owned is not None:
            return is_seen("resource", owned)
        # A subscription to a collection is accepted only if the caller may see something in it;
        # otherwise the acknowledgement would confirm that it exists.
        below = any(
            is_seen(_kind(item), self.component_qualified_name(item)) for item in server.registry.list_below(uri)
        )
        return below or self._provider_has(call, uri, view)

    def _provider_has(self, call: Call, uri: str, view: CallerView | None = None) -> bool:
        provider = self._server.provider
        return provider.may_have_resource(uri, call, view) and not provider.is_hidden(call, "resource", uri)

    def visible_resources(self, call: Call) -> Callable[[str], bool]:
        """Return a predicate for the resources that the caller may be notified of."""
        facet = call.facet

        def sees(uri: str) -> bool:
            in_facet = facet is None or facet.includes(*self.qualified_name("resource", uri))
            return in_facet and not self.is_hidden(call, "resource", uri)

        return sees


def _kind(resource: Resource) -> Kind:
    return "resource" if resource.template is None else "template"
