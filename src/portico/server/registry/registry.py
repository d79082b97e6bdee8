"""Everything a server offers, by name: what is registered, what is taken, and who answers to what."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from functools import partial
from typing import Any

from portico.server.calling.completion import Completer, CompleterOfAll
from portico.server.calling.prompts import Prompt
from portico.server.calling.resources import Resource
from portico.server.calling.tools import Tool
from portico.server.registry.catalog import Catalog
from portico.server.registry.cursors import ListCursors
from portico.server.registry.service import Completes, Component
from portico.wire import notices
from portico.wire.errors import UsageError
from portico.wire.mirrors import Mirror
from portico.wire.prompts import ListPromptsResult
from portico.wire.resources import ListResourcesResult, ListResourceTemplatesResult
from portico.wire.tools import ListToolsResult
from portico.wire.uris import Templates


class Registry:
    """The catalogs of one server, and what belongs to them: aliases, completions, the matching of URIs."""

    def __init__(
        self, *, page_size: int, stamp: Any, hints: dict[str, Any], cursors: ListCursors, publish: Callable[[str], None]
    ) -> None:
        def catalog(kind: str, method: str, result: Any, member: str, notice: str) -> Catalog[Any]:
            return Catalog(
                kind,
                method,
                partial(result, meta=stamp),
                member,
                page_size=page_size,
                hints=hints,
                cursors=cursors,
                on_change=partial(publish, notice),
            )

        self.cursors = cursors
        self.tools: Catalog[Tool] = catalog("tool", "tools/list", ListToolsResult, "tools", notices.TOOLS_CHANGED)
        self.prompts: Catalog[Prompt] = catalog(
            "prompt", "prompts/list", ListPromptsResult, "prompts", notices.PROMPTS_CHANGED
        )
        self.resources: Catalog[Resource] = catalog(
            "resource", "resources/list", ListResourcesResult, "resources", notices.RESOURCES_CHANGED
        )
        self.templates: Catalog[Resource] = catalog(
            "resource template",
            "resources/templates/list",
            ListResourceTemplatesResult,
            "resource_templates",
            notices.RESOURCES_CHANGED,
        )
        # Every tool by its name and by its aliases.
        self.by_name: dict[str, Tool] = {}
        self.mirrored: dict[str, tuple[Mirror, ...]] = {}
        self._completers: dict[tuple[str, str], Completer] = {}
        # One function for all arguments of everything.
        self.completes_all: CompleterOfAll | None = None
        self._matcher = Templates()
        # The URIs of the resources in their order, and of which list.
        self._sorted: tuple[Any, list[str]] = (None, [])
        # URIs that are understood and not listed: a scheme, and the one that is listed in its place.
        self.schemes: dict[str, str] = {}

    # Looking up

    def tool(self, name: str) -> Tool | None:
        return self.by_name.get(name)

    def resource(self, uri: str) -> tuple[Resource | None, dict[str, Any]]:
        """The exact URI first, then the template that says most about it, and what it reads in the URI."""
        resource = self.resources.get(uri)
        if resource is not None:
            return resource, {}
        matched = self._matcher.best(uri)
        if matched is None:
            return self._known_otherwise(uri)
        template, values = matched
        return self.templates.get(template.text), values

    def _known_otherwise(self, uri: str) -> tuple[Resource | None, dict[str, Any]]:
        scheme, mark, rest = uri.partition("://")
        listed = self.schemes.get(scheme)
        # What stands for something else is not stood for itself, so that this comes to an end.
        if listed is None or listed in self.schemes:
            return None, {}
        return self.resource(f"{listed}{mark}{rest}")

    def listed_as(self, uri: str) -> str:
        """The URI that stands in the lists for one that is understood."""
        if uri in self.resources or self._matcher.best(uri) is not None:
            return uri
        scheme, mark, rest = uri.partition("://")
        return f"{self.schemes.get(scheme, scheme)}{mark}{rest}"

    def below(self, uri: str) -> list[Resource]:
        """The resources and templates that are listed below a URI."""
        above = self.listed_as(uri).rstrip("/") + "/"
        return [one for catalog in (self.resources, self.templates) for one in catalog if one.uri.startswith(above)]

    def has(self, uri: str) -> bool:
        """Whether there is a resource at this URI, or one that is listed below it."""
        if self.resource(uri)[0] is not None:
            return True
        scheme, mark, rest = uri.partition("://")
        above = f"{self.schemes.get(scheme, scheme)}{mark}{rest}".rstrip("/") + "/"
        if self._sorted[0] is not self.resources.definitions:
            self._sorted = (self.resources.definitions, sorted(one.uri for one in self.resources))
        uris = self._sorted[1]
        place = bisect_left(uris, above)
        listed = place < len(uris) and uris[place].startswith(above)
        return listed or any(template.uri.startswith(above) for template in self.templates)

    def completer(self, component: Prompt | Resource, argument: str) -> Completer | None:
        """A template goes by its name and by its URI."""
        keys = (component.name, component.uri) if isinstance(component, Resource) else (component.name,)
        found = (self._completers.get((key, argument)) for key in keys)
        return next((completer for completer in found if completer is not None), None)

    def named(self, name: str) -> Component | None:
        catalogs: tuple[Catalog[Any], ...] = (self.tools, self.prompts, self.resources, self.templates)
        return next((one for one in (catalog.get(name) for catalog in catalogs) if one is not None), None)

    # Registering

    def add_all(self, components: list[Component]) -> None:
        """Add all of them or, if a name is taken, none; then no listener is told of a change. Raises UsageError.

        Of several versions of a tool the highest has the name; each is also called by its name and version, `add@1.0`.
        """
        components = [one for one in components if not self._add_version(one)]
        taken: set[tuple[str, str]] = set()
        for component in components:
            for kind, key in _keys(component):
                if (kind, key) in taken or self._is_taken(kind, key):
                    raise UsageError(f"there is already a {kind} {key!r}; remove it first")
                taken.add((kind, key))
        for component in components:
            self._add(component)

    def _add_version(self, component: Component) -> bool:
        """Whether it is another version of a tool that is there, and was added as such."""
        known = self.tools.get(component.name) if isinstance(component, Tool) else None
        if known is None or not isinstance(component, Tool) or None in (component.version, known.version):
            return False
        if component.version == known.version:
            return False
        higher = _order(component.version) > _order(known.version)
        if higher:
            self.remove(known)
            self._add(component)
        for one in (known, component):
            self.by_name[f"{one.name}@{one.version}"] = one
        return True

    def _is_taken(self, kind: str, key: str) -> bool:
        if kind == "tool":
            return self.tool(key) is not None
        return key in self.prompts if kind == "prompt" else key in self.resources or key in self.templates

    def _add(self, component: Component) -> None:
        if isinstance(component, Tool):
            self.tools.add(component.name, component)
            names = (component.name, *component.aliases)
            self.by_name |= dict.fromkeys(names, component)
            if component.mirrors:
                self.mirrored |= dict.fromkeys(names, component.mirrors)
        elif isinstance(component, Prompt):
            self.prompts.add(component.name, component)
        elif isinstance(component, Completes):
            if isinstance(component.completer, CompleterOfAll):
                self.completes_all = component.completer
            else:
                self._completers[component.of, component.argument] = component.completer
        elif component.template is None:
            self.resources.add(component.uri, component)
        else:
            self.templates.add(component.uri, component)
            self._matcher.add(component.template)

    def remove(self, component: Component) -> None:
        """Take a component out, unless another has its name by now."""
        if isinstance(component, Tool):
            self.tools.remove(component.name, component)
            for name in (component.name, *component.aliases):
                if self.by_name.get(name) is component:
                    del self.by_name[name]
                    self.mirrored.pop(name, None)
        elif isinstance(component, Prompt):
            self.prompts.remove(component.name, component)
        elif isinstance(component, Completes):
            if self._completers.get((component.of, component.argument)) is component.completer:
                del self._completers[component.of, component.argument]
        elif component.template is None:
            self.resources.remove(component.uri, component)
        elif self.templates.remove(component.uri, component):
            self._matcher.remove(component.template)


def _keys(component: Component) -> list[tuple[str, str]]:
    """The names that an component occupies."""
    if isinstance(component, Tool):
        return [("tool", name) for name in (component.name, *component.aliases)]
    if isinstance(component, Prompt):
        return [("prompt", component.name)]
    return [("resource", component.uri)] if isinstance(component, Resource) else []


def _order(version: str | None) -> list[tuple[int, str]]:
    """Versions in their order: numbers as numbers."""
    parts = (version or "").replace("-", ".").split(".")
    return [(int(one), "") if one.isdecimal() and len(one) < 10 else (-1, one) for one in parts]
