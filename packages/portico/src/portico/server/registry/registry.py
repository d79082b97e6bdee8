"""The registry: all components of a server by name, alias and URI."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property, partial
from logging import DEBUG, WARNING, getLogger
from typing import TYPE_CHECKING, Any

from portico._lazy import LazyModule
from portico.protocol import notifications
from portico.protocol.errors import UsageError
from portico.protocol.header_params import HeaderParam
from portico.protocol.prompts import ListPromptsResult
from portico.protocol.resources import ListResourcesResult, ListResourceTemplatesResult
from portico.protocol.tools import ListToolsResult
from portico.server.components.prompts import Prompt
from portico.server.components.resources import Resource
from portico.server.components.tools import Tool
from portico.server.registry.catalog import Catalog, ListCursorCodec
from portico.server.registry.service import CompletionBinding, Component

if TYPE_CHECKING:
    from portico.protocol import uri_template as uris
    from portico.protocol.uri_template import UriTemplateIndex
    from portico.server.components import completion
    from portico.server.components.completion import CatchAllCompleter, Completer
else:
    completion = LazyModule("portico.server.components.completion")
    uris = LazyModule("portico.protocol.uri_template")

log = getLogger("portico.server")


class NotRegistered(UsageError, ValueError):
    """Raised for the removal of a component that is not registered."""


class Registry:
    """The catalogs of one server with their aliases, completions and URI matching."""

    def __init__(
        self,
        *,
        page_size: int,
        result_meta: Any,
        cache_hints: dict[str, Any],
        cursors: ListCursorCodec,
        publish: Callable[[str], None],
    ) -> None:
        def catalog(kind: str, method: str, result: Any, member: str, notice: str) -> Catalog[Any]:
            return Catalog(
                kind,
                method,
                partial(result, meta=result_meta),
                member,
                page_size=page_size,
                cache_hints=cache_hints,
                cursors=cursors,
                on_change=partial(publish, notice),
            )

        self.cursors = cursors
        self.tools: Catalog[Tool] = catalog(
            "tool", "tools/list", ListToolsResult, "tools", notifications.TOOLS_LIST_CHANGED
        )
        self.prompts: Catalog[Prompt] = catalog(
            "prompt", "prompts/list", ListPromptsResult, "prompts", notifications.PROMPTS_LIST_CHANGED
        )
        self.resources: Catalog[Resource] = catalog(
            "resource", "resources/list", ListResourcesResult, "resources", notifications.RESOURCES_LIST_CHANGED
        )
        self.templates: Catalog[Resource] = catalog(
            "resource template",
            "resources/templates/list",
            ListResourceTemplatesResult,
            "resource_templates",
            notifications.RESOURCES_LIST_CHANGED,
        )
        # Tools by name and alias.
        self.by_name: dict[str, Tool] = {}
        self.header_params: dict[str, tuple[HeaderParam, ...]] = {}
        # Of tools with several versions: all of them, by name and version.
        self._versions: dict[str, dict[str, Tool]] = {}
        # Prompts and resources that are superseded by a higher version.
        self._older: list[Any] = []
        self._completers: dict[tuple[str, str], Completer] = {}
        # Completes all arguments of all components.
        self.catch_all_completer: CatchAllCompleter | None = None
        # Sorted resource URIs, and the list that they were sorted from.
        self._sorted: tuple[Any, list[str]] = (None, [])
        # Schemes that are accepted but not listed, and the listed scheme of each.
        self.scheme_aliases: dict[str, str] = {}

    @cached_property
    def _matcher(self) -> UriTemplateIndex:
        return uris.UriTemplateIndex()

    def remove_scheme_aliases(self, schemes: Mapping[str, str]) -> None:
        self.scheme_aliases = {
            scheme: listed for scheme, listed in self.scheme_aliases.items() if scheme not in schemes
        }

    # Lookup

    def tool(self, name: str) -> Tool | None:
        return self.by_name.get(name)

    def unique_key(self, tool: Tool) -> str:
        """Return a name for this version of a tool that no other tool or version has."""
        return tool.name if self.by_name.get(tool.name, tool) is tool else _versioned_name(tool)

    def resource(self, uri: str) -> tuple[Resource | None, dict[str, Any]]:
        """Return the resource for a URI and the values of its variables: an exact match first, then the most specific
        template.
        """
        resource = self.resources.get(uri)
        if resource is not None:
            return resource, {}
        matched = self._matcher.match(uri) if self.templates else None
        if matched is None:
            return self._known_otherwise(uri)
        template, values = matched
        return self.templates.get(template.text), values

    def _known_otherwise(self, uri: str) -> tuple[Resource | None, dict[str, Any]]:
        scheme, mark, rest = uri.partition("://")
        listed = self.scheme_aliases.get(scheme)
        # An alias must not point to another alias, so the recursion ends.
        if listed is None or listed in self.scheme_aliases:
            return None, {}
        return self.resource(f"{listed}{mark}{rest}")

    def listed_uri(self, uri: str) -> str:
        """Return the listed URI for a URI that may use an alias scheme."""
        if uri in self.resources or (self.templates and self._matcher.match(uri) is not None):
            return uri
        scheme, mark, rest = uri.partition("://")
        return f"{self.scheme_aliases.get(scheme, scheme)}{mark}{rest}"

    def list_below(self, uri: str) -> list[Resource]:
        """Return the resources and templates listed below a URI."""
        above = self.listed_uri(uri).rstrip("/") + "/"
        return [item for catalog in (self.resources, self.templates) for item in catalog if item.uri.startswith(above)]

    def has(self, uri: str) -> bool:
        """Return whether a resource exists at this URI, or is listed below it."""
        if self.resource(uri)[0] is not None:
            return True
        scheme, mark, rest = uri.partition("://")
        above = f"{self.scheme_aliases.get(scheme, scheme)}{mark}{rest}".rstrip("/") + "/"
        # Sorted once per change of the list. A subscription asks for every URI that a client names,
        # and a linear search would be quadratic.
        if self._sorted[0] is not self.resources.definitions:
            self._sorted = (self.resources.definitions, sorted(resource.uri for resource in self.resources))
        uris = self._sorted[1]
        from bisect import bisect_left  # only servers with resource subscriptions need it

        index = bisect_left(uris, above)
        listed = index < len(uris) and uris[index].startswith(above)
        return listed or any(template.uri.startswith(above) for template in self.templates)

    def completer(self, component: Prompt | Resource, argument: str) -> Completer | None:
        """Return the completer for an argument. Templates are found by name and by URI."""
        keys = (component.name, component.uri) if isinstance(component, Resource) else (component.name,)
        result = (self._completers.get((key, argument)) for key in keys)
        return next((completer for completer in result if completer is not None), None)

    def find(self, name: str) -> Component | None:
        """Return the component with a name or URI, or None."""
        catalogs: tuple[Catalog[Any], ...] = (self.tools, self.prompts, self.resources, self.templates)
        return next((item for item in (catalog.get(name) for catalog in catalogs) if item is not None), None)

    # Registration

    def add_all(self, components: list[Component]) -> None:
        """Add all components, or none if a name is taken; subscribers are then not notified. Raises UsageError.

        Of several versions of a tool the highest has the name; each is also reachable by name and version, `add@1.0`.
        """
        first: list[Component] = []
        later: list[Tool] = []
        others: list[Component] = []
        batch: dict[str, Component] = {}
        tools: dict[str, Tool] = {}
        for component in components:
            if not isinstance(component, Tool):
                existing = self._known_version(component, batch)
                (first if existing is None else others).append(component)
                batch.setdefault(str(_keys(component)), component)
                continue
            existing = self.tools.get(component.name) or tools.setdefault(component.name, component)
            # Versions are added after their first version, because `_add_version` requires a
            # registered tool.
            (later if _is_other_version(component, existing) else first).append(component)
        owners: dict[tuple[str, str], str] = {}
        # Check all names before the first change, so that a failure leaves the registry as it was.
        for component in first:
            self._check_free(component, _keys(component), owners)
        for tool in later:
            self._check_free(tool, [*_keys(tool), ("tool", _versioned_name(tool))], owners, shared=tool.name)
        for component in first:
            self._add(component)
        for tool in later:
            self._add_version(tool)
        for other in others:
            self._shelve(other)

    def _check_free(
        self, component: Component, keys: list[tuple[str, str]], owners: dict[tuple[str, str], str], shared: str = ""
    ) -> None:
        """Raise UsageError for a name that another component has.

        `shared`: versions of the tool of this name share their names, except names that include the version.
        """
        for kind, key in keys:
            holder = owners.get((kind, key)) or self._holder(kind, key)
            # `add@1.0` names one version, so even versions of the same tool must not share it.
            if holder and (holder != shared or "@" in key):
                raise UsageError(f"{kind} {key!r} is already registered; remove it first")
            owners[kind, key] = shared or getattr(component, "name", key)

    def apply_duplicate_policy(self, components: list[Component], how: str) -> list[Component]:
        """Return the components to add: a duplicate is left out ("ignore"), or replaces the registered one."""
        remaining: list[Component] = []
        for component in components:
            existing = self._find_registered(component)
            if isinstance(component, CompletionBinding) or existing is None or existing.version != component.version:
                remaining.append(component)
                continue
            log.log(DEBUG if how == "replace" else WARNING, "%s %r is already registered", *_keys(component)[0])
            # Removed first: catalogs reject a second component with the key.
            if how != "ignore":
                self.remove(existing)
                remaining.append(component)
        return remaining

    def _find_registered(self, component: Component) -> Any:
        if isinstance(component, Tool):
            return self.by_name.get(component.name)
        if isinstance(component, Prompt):
            return self.prompts.get(component.name)
        if isinstance(component, CompletionBinding):
            return None
        return self.resources.get(component.uri) or self.templates.get(component.uri)

    def _known_version(self, component: Any, batch: Mapping[str, Any]) -> Any:
        """Return the registered or batched prompt or resource of which this is another version, or None."""
        if isinstance(component, CompletionBinding) or component.version is None:
            return None
        existing: Any
        if isinstance(component, Prompt):
            existing = self.prompts.get(component.name)
        else:
            existing = self.resources.get(component.uri) or self.templates.get(component.uri)
        existing = existing or batch.get(str(_keys(component)))
        return None if existing is None or existing.version in (None, component.version) else existing

    def _shelve(self, component: Any) -> None:
        """Register another version of a prompt or resource; the lower one waits until the higher one is removed."""
        existing = self._known_version(component, {})
        if version_sort_key(component.version) < version_sort_key(existing.version):
            self._older.append(component)
        else:
            # Prompts and resources have no versioned name, so the lower version cannot be reached;
            # it returns if the higher one is removed.
            self._older.append(existing)
            self._take_out(existing)
            self._add(component)

    def _restore_shadowed(self, removed: Any) -> None:
        """Restore the highest version that was set aside for a removed component."""
        key = _keys(removed)
        waiting = [item for item in self._older if _keys(item) == key]
        if waiting:
            result = max(waiting, key=lambda item: version_sort_key(item.version))
            self._older.remove(result)
            self._add(result)

    def _add_version(self, tool: Tool) -> None:
        """Add another version of a registered tool."""
        existing = self.tools.get(tool.name)
        assert existing is not None
        versions = self._versions.setdefault(tool.name, {existing.version or "": existing})
        versions[tool.version or ""] = tool
        if version_sort_key(tool.version) > version_sort_key(existing.version):
            self._withdraw(existing)
            self._add(tool)
        for version in versions.values():
            self._answer_to([_versioned_name(version)], version)

    def _get_versions(self, name: str) -> dict[str, Tool]:
        """Return the versions of a tool that has several."""
        return self._versions.get(name, {})

    def versions(self, component: Component) -> list[Component]:
        """Return all versions of a component, the highest last."""
        if not isinstance(component, Tool):
            return [*(item for item in self._older if _keys(item) == _keys(component)), component]
        result = self._get_versions(component.name)
        return [*sorted(result.values(), key=lambda item: version_sort_key(item.version))] or [component]

    def _holder(self, kind: str, key: str) -> str | None:
        """Return the name of the component that has a name or alias, or None."""
        if kind == "tool":
            tool = self.tool(key)
            return None if tool is None else tool.name
        occupied = key in self.prompts if kind == "prompt" else key in self.resources or key in self.templates
        return key if occupied else None

    def _add(self, component: Component) -> None:
        if isinstance(component, Tool):
            self.tools.add(component.name, component)
            self._answer_to([component.name, *component.aliases], component)
        elif isinstance(component, Prompt):
            self.prompts.add(component.name, component)
        elif isinstance(component, CompletionBinding):
            if isinstance(component.completer, completion.CatchAllCompleter):
                self.catch_all_completer = component.completer
            else:
                self._completers[component.target, component.argument] = component.completer
        elif component.template is None:
            self.resources.add(component.uri, component)
        else:
            self.templates.add(component.uri, component)
            self._matcher.add(component.template)

    def _answer_to(self, names: list[str], tool: Tool) -> None:
        self.by_name |= dict.fromkeys(names, tool)
        if tool.header_params:
            self.header_params |= dict.fromkeys(names, tool.header_params)

    def _withdraw(self, tool: Tool) -> None:
        """Remove a tool from the list, and all of its names."""
        self.tools.remove(tool.name, tool)
        for name in (tool.name, *tool.aliases, _versioned_name(tool)):
            # Another version may have taken the name or alias since.
            if self.by_name.get(name) is tool:
                del self.by_name[name]
                self.header_params.pop(name, None)

    def _remove_tool(self, tool: Tool) -> None:
        """Remove a tool. The highest remaining version takes its name."""
        self._withdraw(tool)
        versions = self._get_versions(tool.name)
        if versions.get(tool.version or "") is tool:
            del versions[tool.version or ""]
        if not versions:
            self._versions.pop(tool.name, None)
        elif tool.name not in self.tools:
            self._add(max(versions.values(), key=lambda item: version_sort_key(item.version)))

    def remove(self, component: Component) -> None:
        """Remove a component, unless another one has its name by now."""
        if component in self._older:
            self._older.remove(component)
        elif self._take_out(component) and self._older:
            self._restore_shadowed(component)

    def _take_out(self, component: Component) -> bool:
        if isinstance(component, Tool):
            self._remove_tool(component)
        elif isinstance(component, Prompt):
            return self.prompts.remove(component.name, component)
        elif isinstance(component, CompletionBinding):
            if self._completers.get((component.target, component.argument)) is component.completer:
                del self._completers[component.target, component.argument]
        elif component.template is None:
            return self.resources.remove(component.uri, component)
        elif self.templates.remove(component.uri, component):
            self._matcher.remove(component.template)
            return True
        return False


def _keys(component: Component) -> list[tuple[str, str]]:
    """Return the kinds and names that a component occupies."""
    if isinstance(component, Tool):
        return [("tool", name) for name in (component.name, *component.aliases)]
    if isinstance(component, Prompt):
        return [("prompt", component.name)]
    return [("resource", component.uri)] if isinstance(component, Resource) else []


def _is_other_version(tool: Tool, registered: Tool) -> bool:
    return None not in (tool.version, registered.version) and tool.version != registered.version


def _versioned_name(tool: Tool) -> str:
    return f"{tool.name}@{tool.version}"


def version_sort_key(version: str | None) -> list[tuple[int, str]]:
    """Return a sort key for versions that compares numeric parts as numbers."""
    # `1.10` is above `1.9`, and `1.0-rc` below `1.0.0`: words sort before numbers. The length limit
    # keeps hostile digits from becoming huge integers.
    parts = (version or "").replace("-", ".").split(".")
    return [(int(part), "") if part.isdecimal() and len(part) < 10 else (-1, part) for part in parts]
