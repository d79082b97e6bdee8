"""Registration and removal of tools, resources and prompts, individually or as part of a service."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct

from portico._lazy import LazyModule
from portico.protocol.errors import UsageError
from portico.server.components.prompts import Prompt
from portico.server.components.resources import Resource, ResourceSecurity
from portico.server.components.tools import Tool
from portico.server.components.validation import META_TAGS
from portico.server.registry.registry import NotRegistered
from portico.server.registry.service import CompletionBinding, Component, Service, collect_components

if TYPE_CHECKING:
    from portico.server import apps
    from portico.server.components import auth_checks
    from portico.server.server import Server
    from portico.server.tasks import service as tasks
else:
    apps = LazyModule("portico.server.apps")
    auth_checks = LazyModule("portico.server.components.auth_checks")
    tasks = LazyModule("portico.server.tasks.service")

OnDuplicate = Literal["error", "warn", "replace", "ignore"]


class ComponentDefaults(Struct, frozen=True, kw_only=True):
    """Options of a server's components that do not set them themselves.

    * **structured_output** – whether a string returned by a tool is also sent as structured content. None: yes, except
      for tools of a service.
    * **strict_arguments** – whether tools reject strings that represent a number, a boolean, a list or an object, such
      as `"5"` for 5, instead of repairing them.
    * **resource_security** – which values of URI variables to reject before they reach a function; None accepts all.
      The default rejects absolute paths and paths that escape their directory.
    """

    structured_output: bool | None = None
    strict_arguments: bool = False
    resource_security: ResourceSecurity | None = ResourceSecurity()


NO_DEFAULTS = ComponentDefaults()


class Registration:
    """Applies a server's defaults to components on their way into the registry."""

    def __init__(self, server: Server, defaults: ComponentDefaults, on_duplicate: OnDuplicate) -> None:
        self._server = server
        self._defaults = defaults
        # What to do with a second component of the same name.
        self._on_duplicate = on_duplicate
        # Filters of transforms.
        self.filters: list[Callable[[Component], bool]] = []
        # Created with the first tool that has an MCP Apps page.
        self.app_pages: Service | None = None
        # Whether any component has an auth check.
        self._has_checks = False

    def add(self, component: Any) -> None:
        """Add a service, an object with decorated methods, a single component, or a function as a tool. Raises
        UsageError.
        """
        if isinstance(component, Tool | Resource | Prompt):
            self._server._register(component)
        elif isinstance(component, Service):
            self._add_new_service(component.name, component.scoped_components())
            self._server._add_service(component)
        # Before `callable`: an object with decorated methods may also define `__call__`.
        elif marks := list(collect_components(component)):
            self._add_new_service(type(component).__name__.lower(), marks)
        elif callable(component):
            self._server._register(Tool(component))
        else:
            raise UsageError(f"expected a service, a tool, a resource, a prompt or a function, got {component!r}")

    def _add_new_service(self, name: str, components: list[Component]) -> None:
        if name in self._server.service_registry:
            raise UsageError(f"service {name!r} is already registered; remove it first")
        self.add_to_service(name, components)

    def add_to_service(self, name: str, components: list[Component]) -> None:
        """Add components under the name of a service."""
        for component in components:
            if not isinstance(component, CompletionBinding):
                component.owner = name
        self.add_components(components)
        self._server.service_registry.add(name, components)

    def add_components(self, components: list[Component]) -> None:
        """Add all of the components or none."""
        structured = self._defaults.structured_output
        for component in components:
            # A service decides itself about the structured output of its tools.
            if isinstance(component, Tool) and (not component.owner if structured is None else structured):
                component.structure_text_output()
            if isinstance(component, Resource) and not component.has_own_security:
                component.security = self._defaults.resource_security
        registry = self._server.registry
        if self._on_duplicate != "error":
            components = registry.apply_duplicate_policy(components, self._on_duplicate)
        if self.filters:
            components = [component for component in components if all(keeps(component) for keeps in self.filters)]
        pages = [
            component.app_page
            for component in components
            if isinstance(component, Tool) and component.app_page is not None
        ]
        # Several tools may share one page, and a page may also be registered explicitly.
        uris = {component.uri for component in components if isinstance(component, Resource)}
        registry.add_all([*components, *(page for page in pages if page.uri not in uris)])
        self._add_internal_services(components)

    def _add_internal_services(self, components: list[Component]) -> None:
        """Add the internal services that components need, imported with the first component that needs them."""
        server = self._server
        if self.app_pages is None and any(isinstance(component, Tool) and component.is_app for component in components):
            # Internal services are added when first needed, so that a plain server neither imports
            # nor calls them.
            self.app_pages = apps.AppsExtension()
            server._add_service(self.app_pages)
        if not self._has_checks and any(getattr(component, "auth", None) is not None for component in components):
            self._has_checks = True
            server._add_service(auth_checks.AuthFilteredLists())
        if server.tasks is None and any(
            isinstance(component, Tool) and component.task is not None for component in components
        ):
            server.tasks = tasks.TaskService()
            server._add_service(server.tasks)

    def remove(self, name: str) -> None:
        """Remove a service, or every version of a single component. Raises UsageError if it does not exist."""
        server, registry = self._server, self._server.registry
        if name in server.service_registry:
            components, services = server.service_registry.remove(name)
            for component in components:
                registry.remove(component)
            for service in services:
                server.lifespans.remove(service)
                registry.remove_scheme_aliases(service.scheme_aliases)
            server._extend()
            return
        self.remove_component(name)

    def remove_component(self, name: str) -> None:
        """Remove every version of a single component. Raises NotRegistered if it does not exist."""
        registry = self._server.registry
        named = registry.find(name)
        if named is None:
            raise NotRegistered(f"cannot remove {name!r}: it is not registered")
        for version in registry.versions(named):
            registry.remove(version)

    def discard(self, matches: Callable[[Any], bool]) -> list[Component]:
        """Remove the components that match, each version separately, and return them."""
        registry = self._server.registry
        # Collect before removing: removing the highest version puts the next one into the catalog.
        components = [version for version in self._all_versions() if matches(version)]
        for component in components:
            registry.remove(component)
        return components

    def _all_versions(self) -> Iterator[Any]:
        for catalog in self._server.catalogs.values():
            for listed in list(catalog):
                yield from self._server.registry.versions(listed)

    def add_filter(self, includes: Callable[[Any], bool]) -> None:
        """Restrict the server to components that a filter includes, now and when others are added later."""
        self.filters.append(includes)
        self.discard(lambda component: not includes(component))

    def disable(self, matches: Callable[[Any], bool]) -> None:
        """Hide matching components until `enable`."""
        self._server.disabled += self.discard(matches)

    def enable(self, matches: Callable[[Any], bool]) -> None:
        """Show matching components again."""
        server = self._server
        enabled = [item for item in server.disabled if matches(item)]
        server.disabled = [item for item in server.disabled if item not in enabled]
        server.registry.add_all(enabled)


def create_matcher(
    names: Collection[str], tags: Collection[str], keys: Collection[str], components: Collection[str] | None
) -> Callable[[Any], bool]:
    """Return a predicate for the components that `enable` and `disable` select."""

    def matches(component: Any) -> bool:
        kind = _kind(component)
        if components is not None and kind not in components:
            return False
        uri = getattr(component, "uri", "")
        own_tags = (component.definition.meta or {}).get(META_TAGS, ())
        named = component.name in names or uri in names or f"{kind}:{uri or component.name}" in keys
        # `disable(components=["tool"])` selects all tools, but a call without any selection selects
        # nothing.
        everything = components is not None and not (names or tags or keys)
        return everything or named or not set(tags).isdisjoint(own_tags)

    return matches


def _kind(component: Any) -> str:
    if isinstance(component, Resource):
        return "resource" if component.template is None else "template"
    return "prompt" if isinstance(component, Prompt) else "tool"
