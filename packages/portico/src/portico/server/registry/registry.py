"""Everything a server offers, by name: what is registered, what is taken, and who answers to what."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property, partial
from logging import DEBUG, WARNING, getLogger
from typing import TYPE_CHECKING, Any

from portico._lazy import LazyModule
from portico.protocol import notifications
from portico.protocol.errors import UsageError
from portico.protocol.header_params import Mirror
from portico.protocol.prompts import ListPromptsResult
from portico.protocol.resources import ListResourcesResult, ListResourceTemplatesResult
from portico.protocol.tools import ListToolsResult
from portico.server.components.prompts import Prompt
from portico.server.components.resources import Resource
from portico.server.components.tools import Tool
from portico.server.registry.catalog import Catalog, ListCursors
from portico.server.registry.service import Completes, Component

if TYPE_CHECKING:
    from portico.protocol import uri_template as uris
    from portico.protocol.uri_template import Templates
    from portico.server.components import completion
    from portico.server.components.completion import Completer, CompleterOfAll
else:
    completion = LazyModule("portico.server.components.completion")
    uris = LazyModule("portico.protocol.uri_template")

log = getLogger("portico.server")


class NotRegistered(UsageError, ValueError):
    """Raised for the removal of a component that is not registered."""


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
        self.tools: Catalog[Tool] = catalog("tool", "tools/list", ListToolsResult, "tools", notifications.TOOLS_CHANGED)
        self.prompts: Catalog[Prompt] = catalog(
            "prompt", "prompts/list", ListPromptsResult, "prompts", notifications.PROMPTS_CHANGED
        )
        self.resources: Catalog[Resource] = catalog(
            "resource", "resources/list", ListResourcesResult, "resources", notifications.RESOURCES_CHANGED
        )
        self.templates: Catalog[Resource] = catalog(
            "resource template",
            "resources/templates/list",
            ListResourceTemplatesResult,
            "resource_templates",
            notifications.RESOURCES_CHANGED,
        )
        # Every tool by its name and by its aliases.
        self.by_name: dict[str, Tool] = {}
        self.mirrored: dict[str, tuple[Mirror, ...]] = {}
        # Of the tools that there are several versions of: all of them, by name and version.
        self._versions: dict[str, dict[str, Tool]] = {}
        # Prompts and resources that wait behind a higher version of themselves.
        self._older: list[Any] = []
        self._completers: dict[tuple[str, str], Completer] = {}
        # One function for all arguments of everything.
        self.completes_all: CompleterOfAll | None = None
        # The URIs of the resources in their order, and of which list.
        self._sorted: tuple[Any, list[str]] = (None, [])
        # URIs that are understood and not listed: a scheme, and the one that is listed in its place.
        self.schemes: dict[str, str] = {}

    @cached_property
    def _matcher(self) -> Templates:
        return uris.Templates()

    def forget_schemes(self, schemes: Mapping[str, str]) -> None:
        self.schemes = {known: listed for known, listed in self.schemes.items() if known not in schemes}

    # Looking up

    def tool(self, name: str) -> Tool | None:
        return self.by_name.get(name)

    def key_of(self, tool: Tool) -> str:
        """A name that no other tool answers to, and no other version of it."""
        return tool.name if self.by_name.get(tool.name, tool) is tool else _versioned(tool)

    def resource(self, uri: str) -> tuple[Resource | None, dict[str, Any]]:
        """The exact URI first, then the template that says most about it, and what it reads in the URI."""
        resource = self.resources.get(uri)
        if resource is not None:
            return resource, {}
        matched = self._matcher.best(uri) if self.templates else None
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
        if uri in self.resources or (self.templates and self._matcher.best(uri) is not None):
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
        from bisect import bisect_left  # only servers with resources look for those below another

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
        first: list[Component] = []
        later: list[Tool] = []
        others: list[Component] = []
        batch: dict[str, Component] = {}
        tools: dict[str, Tool] = {}
        for component in components:
            if not isinstance(component, Tool):
                known = self._known_version(component, batch)
                (first if known is None else others).append(component)
                batch.setdefault(str(_keys(component)), component)
                continue
            known = self.tools.get(component.name) or tools.setdefault(component.name, component)
            (later if _is_other_version(component, known) else first).append(component)
        taken: dict[tuple[str, str], str] = {}
        for component in first:
            self._check_free(component, _keys(component), taken)
        for tool in later:
            self._check_free(tool, [*_keys(tool), ("tool", _versioned(tool))], taken, shared=tool.name)
        for component in first:
            self._add(component)
        for tool in later:
            self._add_version(tool)
        for other in others:
            self._shelve(other)

    def _check_free(
        self, component: Component, keys: list[tuple[str, str]], taken: dict[tuple[str, str], str], shared: str = ""
    ) -> None:
        """Raises UsageError for a name that something else has. `shared`: versions of the tool of this name share
        theirs, but not those that say which version it is."""
        for kind, key in keys:
            holder = taken.get((kind, key)) or self._holder(kind, key)
            if holder and (holder != shared or "@" in key):
                raise UsageError(f"there is already a {kind} {key!r}; remove it first")
            taken[kind, key] = shared or getattr(component, "name", key)

    def without_doubles(self, components: list[Component], how: str) -> list[Component]:
        """Those that are to be added: what has the name of one that is there is left out ("ignore"), or takes its
        place."""
        kept: list[Component] = []
        for one in components:
            known = self._known(one)
            if isinstance(one, Completes) or known is None or known.version != one.version:
                kept.append(one)
                continue
            log.log(DEBUG if how == "replace" else WARNING, "there is already a %s %r", *_keys(one)[0])
            if how != "ignore":
                self.remove(known)
                kept.append(one)
        return kept

    def _known(self, component: Component) -> Any:
        if isinstance(component, Tool):
            return self.by_name.get(component.name)
        if isinstance(component, Prompt):
            return self.prompts.get(component.name)
        if isinstance(component, Completes):
            return None
        return self.resources.get(component.uri) or self.templates.get(component.uri)

    def _known_version(self, component: Any, batch: Mapping[str, Any]) -> Any:
        """The prompt or resource that is there, or comes with it, of which this is another version; None if there is
        none."""
        if isinstance(component, Completes) or component.version is None:
            return None
        known: Any
        if isinstance(component, Prompt):
            known = self.prompts.get(component.name)
        else:
            known = self.resources.get(component.uri) or self.templates.get(component.uri)
        known = known or batch.get(str(_keys(component)))
        return None if known is None or known.version in (None, component.version) else known

    def _shelve(self, component: Any) -> None:
        """Of two versions the lower one waits until the higher one is removed."""
        known = self._known_version(component, {})
        if version_order(component.version) < version_order(known.version):
            self._older.append(component)
        else:
            self._older.append(known)
            self._take_out(known)
            self._add(component)

    def _back(self, removed: Any) -> None:
        """The highest version that waits for the place of what was removed has it now."""
        key = _keys(removed)
        waiting = [one for one in self._older if _keys(one) == key]
        if waiting:
            found = max(waiting, key=lambda one: version_order(one.version))
            self._older.remove(found)
            self._add(found)

    def _add_version(self, tool: Tool) -> None:
        """Another version of a tool that is there."""
        known = self.tools.get(tool.name)
        assert known is not None
        versions = self._versions.setdefault(tool.name, {known.version or "": known})
        versions[tool.version or ""] = tool
        if version_order(tool.version) > version_order(known.version):
            self._withdraw(known)
            self._add(tool)
        for one in versions.values():
            self._answer_to([_versioned(one)], one)

    def _of(self, name: str) -> dict[str, Tool]:
        """The versions of a tool, where there are several."""
        return self._versions.get(name, {})

    def versions(self, component: Component) -> list[Component]:
        """What goes by the same name: all versions of a tool, the highest last."""
        if not isinstance(component, Tool):
            return [*(one for one in self._older if _keys(one) == _keys(component)), component]
        found = self._of(component.name)
        return [*sorted(found.values(), key=lambda one: version_order(one.version))] or [component]

    def _holder(self, kind: str, key: str) -> str | None:
        """The name of what has a name or an alias already."""
        if kind == "tool":
            tool = self.tool(key)
            return None if tool is None else tool.name
        taken = key in self.prompts if kind == "prompt" else key in self.resources or key in self.templates
        return key if taken else None

    def _add(self, component: Component) -> None:
        if isinstance(component, Tool):
            self.tools.add(component.name, component)
            self._answer_to([component.name, *component.aliases], component)
        elif isinstance(component, Prompt):
            self.prompts.add(component.name, component)
        elif isinstance(component, Completes):
            if isinstance(component.completer, completion.CompleterOfAll):
                self.completes_all = component.completer
            else:
                self._completers[component.of, component.argument] = component.completer
        elif component.template is None:
            self.resources.add(component.uri, component)
        else:
            self.templates.add(component.uri, component)
            self._matcher.add(component.template)

    def _answer_to(self, names: list[str], tool: Tool) -> None:
        self.by_name |= dict.fromkeys(names, tool)
        if tool.mirrors:
            self.mirrored |= dict.fromkeys(names, tool.mirrors)

    def _withdraw(self, tool: Tool) -> None:
        """Take a tool out of the list, and every name away that it has."""
        self.tools.remove(tool.name, tool)
        for name in (tool.name, *tool.aliases, _versioned(tool)):
            if self.by_name.get(name) is tool:
                del self.by_name[name]
                self.mirrored.pop(name, None)

    def _remove_tool(self, tool: Tool) -> None:
        """The highest of the versions that are left has the name."""
        self._withdraw(tool)
        versions = self._of(tool.name)
        if versions.get(tool.version or "") is tool:
            del versions[tool.version or ""]
        if not versions:
            self._versions.pop(tool.name, None)
        elif tool.name not in self.tools:
            self._add(max(versions.values(), key=lambda one: version_order(one.version)))

    def remove(self, component: Component) -> None:
        """Take a component out, unless another has its name by now."""
        if component in self._older:
            self._older.remove(component)
        elif self._take_out(component) and self._older:
            self._back(component)

    def _take_out(self, component: Component) -> bool:
        if isinstance(component, Tool):
            self._remove_tool(component)
        elif isinstance(component, Prompt):
            return self.prompts.remove(component.name, component)
        elif isinstance(component, Completes):
            if self._completers.get((component.of, component.argument)) is component.completer:
                del self._completers[component.of, component.argument]
        elif component.template is None:
            return self.resources.remove(component.uri, component)
        elif self.templates.remove(component.uri, component):
            self._matcher.remove(component.template)
            return True
        return False


def _keys(component: Component) -> list[tuple[str, str]]:
    """The names that an component occupies."""
    if isinstance(component, Tool):
        return [("tool", name) for name in (component.name, *component.aliases)]
    if isinstance(component, Prompt):
        return [("prompt", component.name)]
    return [("resource", component.uri)] if isinstance(component, Resource) else []


def _is_other_version(tool: Tool, known: Tool) -> bool:
    return None not in (tool.version, known.version) and tool.version != known.version


def _versioned(tool: Tool) -> str:
    return f"{tool.name}@{tool.version}"


def version_order(version: str | None) -> list[tuple[int, str]]:
    """Versions in their order: numbers as numbers."""
    parts = (version or "").replace("-", ".").split(".")
    return [(int(one), "") if one.isdecimal() and len(one) < 10 else (-1, one) for one in parts]
