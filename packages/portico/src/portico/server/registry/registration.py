"""How tools, resources and prompts come into a server and leave it again: one by one, or as the bundle of a service."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING, Any

from portico._lazy import LazyModule
from portico.protocol.errors import UsageError
from portico.server.components.prompts import Prompt
from portico.server.components.resources import Resource, ResourceSecurity
from portico.server.components.tools import Tool
from portico.server.components.validation import TAGS
from portico.server.registry.registry import NotRegistered
from portico.server.registry.service import Completes, Component, Service, marked

if TYPE_CHECKING:
    from portico.server import apps
    from portico.server.components import auth_checks
    from portico.server.options import OnDuplicate
    from portico.server.server import Server
    from portico.server.tasks import service as tasks
else:
    apps = LazyModule("portico.server.apps")
    auth_checks = LazyModule("portico.server.components.auth_checks")
    tasks = LazyModule("portico.server.tasks.service")


class Intake:
    """What a server says of all that it has: it is said of each component on its way into the registry."""

    def __init__(
        self,
        server: Server,
        structured: bool | None,
        on_duplicate: OnDuplicate,
        resource_security: ResourceSecurity | None,
    ) -> None:
        self._server = server
        # Whether texts are structured content too.
        self._structured = structured
        # What becomes of a second component of one name.
        self._on_duplicate = on_duplicate
        # Which values of a URI never reach a function.
        self._resource_security = resource_security
        # What transforms let through.
        self.filters: list[Callable[[Component], bool]] = []
        # What is there from the first tool on that has a page of MCP Apps.
        self.app_pages: Service | None = None
        # Whether a component has a check of who may have it.
        self._has_checks = False

    def add(self, component: Any) -> None:
        """A service, an object with marked methods, a single component, or a function as a tool."""
        if isinstance(component, Tool | Resource | Prompt):
            self._server._register(component)
        elif isinstance(component, Service):
            self._add_new_bundle(component.name, component.guarded())
            self._server._add_service(component)
        elif marks := list(marked(component)):
            self._add_new_bundle(type(component).__name__.lower(), marks)
        elif callable(component):
            self._server._register(Tool(component))
        else:
            raise UsageError(f"cannot add {component!r}: not a service, a tool, a resource, a prompt or a function")

    def _add_new_bundle(self, name: str, components: list[Component]) -> None:
        if name in self._server.bundles:
            raise UsageError(f"there is already a service {name!r}; remove it first")
        self.add_to_bundle(name, components)

    def add_to_bundle(self, name: str, components: list[Component]) -> None:
        for component in components:
            if not isinstance(component, Completes):
                component.owner = name
        self.add_components(components)
        self._server.bundles.add(name, components)

    def add_components(self, components: list[Component]) -> None:
        """All of them or none."""
        for one in components:
            # A service says itself how its tools answer.
            if isinstance(one, Tool) and (not one.owner if self._structured is None else self._structured):
                one.structure_text()
            if isinstance(one, Resource) and not one.says_security:
                one.security = self._resource_security
        registry = self._server.registry
        if self._on_duplicate != "error":
            components = registry.without_doubles(components, self._on_duplicate)
        if self.filters:
            components = [one for one in components if all(keeps(one) for keeps in self.filters)]
        pages = [one.page for one in components if isinstance(one, Tool) and one.page is not None]
        known = {one.uri for one in components if isinstance(one, Resource)}
        registry.add_all([*components, *(page for page in pages if page.uri not in known)])
        self._bring_what_they_need(components)

    def _bring_what_they_need(self, components: list[Component]) -> None:
        """What comes with the first component that needs it, and is not loaded before."""
        server = self._server
        if self.app_pages is None and any(isinstance(one, Tool) and one.is_app for one in components):
            self.app_pages = apps.AppPages()
            server._add_service(self.app_pages)
        if not self._has_checks and any(getattr(one, "auth", None) is not None for one in components):
            self._has_checks = True
            server.use_innermost(auth_checks.CheckedLists(server))
        if server.tasks is None and any(isinstance(one, Tool) and one.task is not None for one in components):
            server.tasks = tasks.TaskService()
            server._add_service(server.tasks)

    def remove(self, name: str) -> None:
        """A bundle, or every version of a single component. Raises UsageError if there is no such thing."""
        server, registry = self._server, self._server.registry
        if name in server.bundles:
            components, services = server.bundles.remove(name)
            for component in components:
                registry.remove(component)
            for service in services:
                server.lifespans.remove(service)
                registry.forget_schemes(service.schemes)
            server._extend()
            return
        self.remove_component(name)

    def remove_component(self, name: str) -> None:
        """Remove every version of a single component. Raises NotRegistered if there is none."""
        registry = self._server.registry
        named = registry.named(name)
        if named is None:
            raise NotRegistered(f"there is nothing called {name!r} to remove")
        for one in registry.versions(named):
            registry.remove(one)

    def discard(self, matches: Callable[[Any], bool]) -> list[Component]:
        """Remove the components that match, every version on its own, and return them."""
        registry = self._server.registry
        components = [one for one in self._all_versions() if matches(one)]
        for component in components:
            registry.remove(component)
        return components

    def _all_versions(self) -> Iterator[Any]:
        for catalog in self._server.catalogs.values():
            for listed in list(catalog):
                yield from self._server.registry.versions(listed)

    def add_filter(self, includes: Callable[[Any], bool]) -> None:
        """Keep only components that a filter includes, now and when others are added later."""
        self.filters.append(includes)
        self.discard(lambda component: not includes(component))

    def disable(self, matches: Callable[[Any], bool]) -> None:
        self._server.disabled += self.discard(matches)

    def enable(self, matches: Callable[[Any], bool]) -> None:
        server = self._server
        enabled = [one for one in server.disabled if matches(one)]
        server.disabled = [one for one in server.disabled if one not in enabled]
        server.registry.add_all(enabled)


def create_matcher(
    names: Collection[str], tags: Collection[str], keys: Collection[str], components: Collection[str] | None
) -> Callable[[Any], bool]:
    """Return whether a component is one that `enable` and `disable` are about."""

    def matches(component: Any) -> bool:
        kind = _kind(component)
        if components is not None and kind not in components:
            return False
        uri = getattr(component, "uri", "")
        own_tags = (component.definition.meta or {}).get(TAGS, ())
        named = component.name in names or uri in names or f"{kind}:{uri or component.name}" in keys
        everything = components is not None and not (names or tags or keys)
        return everything or named or not set(tags).isdisjoint(own_tags)

    return matches


def _kind(component: Any) -> str:
    if isinstance(component, Resource):
        return "resource" if component.template is None else "template"
    return "prompt" if isinstance(component, Prompt) else "tool"
