"""Everything a server offers, by name: what is registered, what is taken, and who answers to what."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from portico.server.calling.completion import Completer
from portico.server.calling.prompts import Prompt
from portico.server.calling.resources import Resource
from portico.server.calling.tools import Tool
from portico.server.registry.catalog import Catalog
from portico.server.registry.service import Completes, Offered
from portico.wire import notices
from portico.wire.errors import UsageError
from portico.wire.mirrors import Mirror
from portico.wire.prompts import ListPromptsResult
from portico.wire.resources import ListResourcesResult, ListResourceTemplatesResult
from portico.wire.tools import ListToolsResult
from portico.wire.uris import Templates


class Offers:
    """The catalogs of one server, and what belongs to them: aliases, completions, the matching of URIs."""

    def __init__(self, *, page_size: int, stamp: Any, hints: dict[str, Any], publish: Callable[[str], None]) -> None:
        def catalog(kind: str, result: Any, member: str, notice: str) -> Catalog[Any]:
            return Catalog(
                kind,
                partial(result, meta=stamp),
                member,
                page_size=page_size,
                hints=hints,
                on_change=partial(publish, notice),
            )

        changed = notices.RESOURCES_CHANGED
        self.tools: Catalog[Tool] = catalog("tool", ListToolsResult, "tools", notices.TOOLS_CHANGED)
        self.prompts: Catalog[Prompt] = catalog("prompt", ListPromptsResult, "prompts", notices.PROMPTS_CHANGED)
        self.resources: Catalog[Resource] = catalog("resource", ListResourcesResult, "resources", changed)
        self.templates: Catalog[Resource] = catalog(
            "resource template", ListResourceTemplatesResult, "resource_templates", changed
        )
        # Every tool by its name and by its aliases.
        self.by_name: dict[str, Tool] = {}
        self.mirrored: dict[str, tuple[Mirror, ...]] = {}
        self._completers: dict[tuple[str, str], Completer] = {}
        self._matcher = Templates()
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

    def completer(self, offer: Prompt | Resource, argument: str) -> Completer | None:
        """A template goes by its name and by its URI."""
        keys = (offer.name, offer.uri) if isinstance(offer, Resource) else (offer.name,)
        found = (self._completers.get((key, argument)) for key in keys)
        return next((completer for completer in found if completer is not None), None)

    def named(self, name: str) -> Offered | None:
        catalogs: tuple[Catalog[Any], ...] = (self.tools, self.prompts, self.resources, self.templates)
        return next((one for one in (catalog.get(name) for catalog in catalogs) if one is not None), None)

    # Registering

    def add_all(self, offers: list[Offered]) -> None:
        """All of it or nothing; and nothing is not a change that anybody should hear of."""
        taken: set[tuple[str, str]] = set()
        for offer in offers:
            for kind, key in _keys(offer):
                if (kind, key) in taken or self._is_taken(kind, key):
                    raise UsageError(f"there is already a {kind} {key!r}; remove it first")
                taken.add((kind, key))
        for offer in offers:
            self._add(offer)

    def _is_taken(self, kind: str, key: str) -> bool:
        if kind == "tool":
            return self.tool(key) is not None
        return key in self.prompts if kind == "prompt" else key in self.resources or key in self.templates

    def _add(self, offered: Offered) -> None:
        if isinstance(offered, Tool):
            self.tools.add(offered.name, offered)
            names = (offered.name, *offered.aliases)
            self.by_name |= dict.fromkeys(names, offered)
            if offered.mirrors:
                self.mirrored |= dict.fromkeys(names, offered.mirrors)
        elif isinstance(offered, Prompt):
            self.prompts.add(offered.name, offered)
        elif isinstance(offered, Completes):
            self._completers[offered.of, offered.argument] = offered.completer
        elif offered.template is None:
            self.resources.add(offered.uri, offered)
        else:
            self.templates.add(offered.uri, offered)
            self._matcher.add(offered.template)

    def remove(self, offered: Offered) -> None:
        """Take it out, unless somebody else has put something in its place meanwhile."""
        if isinstance(offered, Tool):
            self.tools.remove(offered.name, offered)
            for name in (offered.name, *offered.aliases):
                if self.by_name.get(name) is offered:
                    del self.by_name[name]
                    self.mirrored.pop(name, None)
        elif isinstance(offered, Prompt):
            self.prompts.remove(offered.name, offered)
        elif isinstance(offered, Completes):
            if self._completers.get((offered.of, offered.argument)) is offered.completer:
                del self._completers[offered.of, offered.argument]
        elif offered.template is None:
            self.resources.remove(offered.uri, offered)
        elif self.templates.remove(offered.uri, offered):
            self._matcher.remove(offered.template)


def _keys(offered: Offered) -> list[tuple[str, str]]:
    """The names that an offer occupies."""
    if isinstance(offered, Tool):
        return [("tool", name) for name in (offered.name, *offered.aliases)]
    if isinstance(offered, Prompt):
        return [("prompt", offered.name)]
    return [("resource", offered.uri)] if isinstance(offered, Resource) else []
