"""Whose everything is that a server offers, and what a caller may learn of it.

Rules and records go by the owner and by what the owner calls a thing, never by the name that a client was shown: an
alias, another prefix or a rename lead to the same. Loaded where it is asked for: a server without rules, views and
subscriptions never asks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from portico.rpc.call import Call
from portico.server.components.resources import Resource
from portico.server.components.tools import Tool
from portico.server.policy.interfaces import Kind, Owned
from portico.server.registry.caller_view import CallerView
from portico.server.registry.service import Component

if TYPE_CHECKING:
    from portico.server.server import Server

# What asks for one thing of each kind.
_ASKED_BY: dict[Kind, str] = {
    "tool": "tools/call", "prompt": "prompts/get", "resource": "resources/read", "template": "resources/read"
}  # fmt: skip


class Ownership:
    def __init__(self, server: Server) -> None:
        self._server = server

    # Whose it is

    def owner_of(self, kind: Kind, name: str) -> Owned:
        return self.own(kind, name) or self._server.others.owner_of(kind, name) or Owned("", name)

    def own(self, kind: Kind, name: str) -> Owned | None:
        server = self._server
        found: Component | None
        if kind == "tool":
            found = server.registry.by_name.get(name)
        elif kind == "prompt":
            found = server.prompts.get(name)
        elif kind == "template":
            found = server.templates.get(name) or server.resources.get(name)
        else:
            found = server.registry.resource(name)[0]
            if found is not None:
                return Owned(self.owned(found).owner, server.registry.listed_as(name))
        if found is not None:
            return self.owned(found)
        # Where a service answers for all of them, whatever it is asked for is its own.
        service = server.bundles.by_method.get(_ASKED_BY[kind])
        return None if service is None else Owned(service.name, name)

    def owned(self, component: Component) -> Owned:
        owner = getattr(component, "owner", "") or self._server.info.name
        if isinstance(component, Tool):
            known = component.owned
            if known is None or known[0] != owner or known[1] != component.inward:
                known = component.owned = Owned(owner, component.inward)
            return known
        return Owned(owner, component.uri if isinstance(component, Resource) else getattr(component, "name", ""))

    def canonical(self, kind: Kind, name: str) -> str | None:
        own = self.own(kind, name)
        return own.name if own is not None else self._server.others.canonical(kind, name)

    # Who may learn of it

    def hides(self, call: Call, kind: Kind, name: str) -> bool:
        server = self._server
        guard = None if server.protection is None else server.protection.guard
        if guard is not None and not guard.sight(call).sees(kind, self.owner_of(kind, name)):
            return True
        return self.own(kind, name) is None and server.others.hides(call, kind, name)

    def tells_of(self, call: Call, uri: str) -> bool:
        """Whether something can be told of a resource to the sender of a call: it is there, or lies above one; a mount
        may have it."""
        server, facet = self._server, call.facet
        view = None if server.protection is None else server.protection.view(call)
        if view is None and facet is None:
            return server.registry.has(uri) or self._others_have(call, uri)

        def seen(kind: Kind, owned: Owned) -> bool:
            return (facet is None or facet.shows(*owned)) and (view is None or view.sees(kind, owned))

        owned = self.own("resource", uri)
        if owned is not None:
            return seen("resource", owned)
        below = any(seen(_kind(one), self.owned(one)) for one in server.registry.below(uri))
        return below or self._others_have(call, uri, view)

    def _others_have(self, call: Call, uri: str, view: CallerView | None = None) -> bool:
        others = self._server.others
        return others.may_have(uri, call, view) and not others.hides(call, "resource", uri)

    def seen_by(self, call: Call) -> Callable[[str], bool]:
        """Whether the sender of a call may be told of a resource."""
        facet = call.facet

        def sees(uri: str) -> bool:
            shown = facet is None or facet.shows(*self.owner_of("resource", uri))
            return shown and not self.hides(call, "resource", uri)

        return sees


def _kind(resource: Resource) -> Kind:
    return "resource" if resource.template is None else "template"
