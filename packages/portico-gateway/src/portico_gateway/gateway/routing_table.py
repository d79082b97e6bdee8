"""Under which outward name each thing of an upstream is known, and whose an outward name is. Nothing here waits."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from portico.protocol.header_params import KEYWORD, Mirror, mirrors
from portico.protocol.json_depth import decode_bounded
from portico.protocol.uri_template import Template, begins_with_variable, parsed
from portico.protocol.versions import V2025_11_25, Revision
from portico.rpc.call import Facet
from portico.server.providers.naming import addressed_alias, folded_alias, inward_uri, outward_uri
from portico_gateway.gateway.catalog_cache import Lists
from portico_gateway.gateway.catalog_entries import LISTS, ListedEntry, task_support
from portico_gateway.gateway.upstream import GatewayUpstream
from portico_gateway.gateway.uri_rewriting import link_inside

log = logging.getLogger("portico.gateway")

RESOURCES, TEMPLATES = "resources/list", "resources/templates/list"

Held = Callable[[str, str, ListedEntry], str]
"""Why an entry of a list of an upstream is held back, by its alias and the method; empty if it is not."""


class OutwardRoute(Struct, frozen=True):
    """Where a name leads."""

    upstream: GatewayUpstream
    inward: str
    entry: ListedEntry
    # The members that are shown otherwise.
    shown: dict[str, Any]
    # Whether it may be called as a task: 2025-11-25 says so of each tool.
    task_support: str = ""

    def shown_at(self, method: str, revision: Revision) -> dict[str, Any]:
        """2025-11-25 wants to know of each tool whether it may be a task; 2026-07-28 says nothing of that."""
        traits = self.upstream.traits
        if method == "tools/list" and revision == V2025_11_25 and traits.tasks and not traits.sessions:
            return {**self.shown, "execution": {"taskSupport": "optional"}}
        return self.shown


class HeldEntry(Struct, frozen=True):
    """Something that is not shown, although it is there, and why."""

    alias: str
    inward: str
    why: str


RoutesByName = dict[str, OutwardRoute]


class RouteTable:
    """What the upstreams have, in the order of the file: the first one has a name that two want. `lists_of` gives what
    an upstream lists to those whom the table is for."""

    def __init__(
        self,
        upstreams: Mapping[str, GatewayUpstream],
        held: Held,
        lists_of: Callable[[GatewayUpstream], Lists],
        key: Hashable = None,
    ) -> None:
        self.upstreams = upstreams
        # The same for tables of the same lists; None for that of all that is known.
        self.key = key
        self._lists_of = lists_of
        # What is hidden because another has its name; and what is held back, and why, by method and outward name.
        self.clashes: list[str] = []
        self.held: dict[tuple[str, str], HeldEntry] = {}
        # The arguments of each tool that stand in HTTP headers too.
        self.mirrored: dict[str, Sequence[Mirror]] = {}
        # Whether a URI of an upstream may need the alias in front.
        self.crosses = False
        self._is_held = held
        self._all: dict[str, RoutesByName] | None = None
        self._seen: dict[tuple[str, Facet], RoutesByName] = {}
        # By alias: the URIs and the templates that an upstream lists. And all templates, the most specific first.
        self._listed: dict[str, tuple[frozenset[str], list[Template]]] = {}
        self._by_rank: list[tuple[Template, OutwardRoute]] | None = None
        self._by_alias: dict[str, GatewayUpstream] = {}

    def forget(self) -> None:
        """Something is not what it was: all is made anew."""
        self._all = None
        self._seen.clear()
        self.mirrored.clear()
        for name, route in self.routes("tools/list").items():
            schema = bytes(route.entry.members["inputSchema"])
            if KEYWORD.encode() in schema:
                try:
                    self.mirrored[name] = mirrors(decode_bounded(schema))
                except ValueError as failure:
                    log.debug("%s: ignored %s of %s: %s", route.upstream.alias, KEYWORD, route.inward, failure)

    # Names

    def routes(self, method: str, facet: Facet | None = None) -> RoutesByName:
        """By their outward names, what one of the four lists has; of it only what a facet shows."""
        if self._all is None:
            self.clashes, self.held = [], {}
            self._listed, self._by_rank = {}, None
            self._by_alias = {folded_alias(alias): one for alias, one in self.upstreams.items()}
            # A tool may name a resource, so these come first.
            self._all = {method: self._gather(method) for method in (RESOURCES, TEMPLATES)}
            self.crosses = (len(self.upstreams) > 1 and any(self._all.values())) or any(
                begins_with_variable(route.inward) for route in self._all[TEMPLATES].values()
            )
            self._all |= {method: self._gather(method) for method in LISTS if method not in self._all}
        if facet is None:
            return self._all[method]
        seen = self._seen.get((method, facet))
        if seen is None:
            routes = self._all[method].items()
            seen = {name: one for name, one in routes if facet.shows(one.upstream.alias, one.inward)}
            self._seen[method, facet] = seen
        return seen

    def _gather(self, method: str) -> RoutesByName:
        by_name = LISTS[method].key == "name"
        found: RoutesByName = {}
        for upstream in self.upstreams.values():
            settings = upstream.settings
            for entry in self._lists_of(upstream).get(method, ()):
                name = entry.key
                if not settings.shows(name):
                    continue
                outward = settings.outward(name) if by_name else name
                if not by_name and (outward in found or self._is_taken(upstream, name)):
                    outward = outward_uri(upstream.alias, name)
                why = self._is_held(upstream.alias, method, entry)
                if why:
                    self.held[method, outward] = HeldEntry(upstream.alias, name, why)
                elif outward in found:
                    other = found[outward].upstream.alias
                    self.clashes.append(f"{outward}: {other} has it, so that of {upstream.alias} ({name}) is hidden")
                else:
                    shown = self._shown(method, upstream, entry, outward)
                    found[outward] = OutwardRoute(upstream, name, entry, shown, task_support(entry))
        return found

    def _shown(self, method: str, upstream: GatewayUpstream, entry: ListedEntry, outward: str) -> dict[str, Any]:
        shown: dict[str, Any] = {} if outward == entry.key else {LISTS[method].key: outward}
        if method == "tools/list":
            if entry.key in upstream.settings.descriptions:
                shown["description"] = upstream.settings.descriptions[entry.key]
            meta = entry.members.get("_meta")
            changed = meta and self.crosses and link_inside(meta, lambda uri: self.outward_uri(upstream, uri))
            if changed:
                shown["_meta"] = changed
        return shown

    # Addresses

    def outward_uri(self, upstream: GatewayUpstream, uri: str) -> str:
        """Return the URI under which a resource of an upstream is known here: its own, unless that belongs to another
        or can only be read with the alias in front."""
        for owner, inward in self._owners(uri, None):
            return uri if owner is upstream and inward == uri else outward_uri(upstream.alias, uri)
        return outward_uri(upstream.alias, uri) if self._has(upstream, uri) else uri

    def owners(self, uri: str, facet: Facet | None) -> Iterator[tuple[GatewayUpstream, str]]:
        """Yield the upstreams that may have a resource and show it, the most likely first, each with its own URI of it.

        Whose a URI is does not depend on whether it is shown: one that its owner hides is not read from another."""
        for upstream, inward in self._owners(uri, facet):
            if self.shows(upstream, inward, facet):
                yield upstream, inward

    def shows(self, upstream: GatewayUpstream, uri: str, facet: Facet | None) -> bool:
        """Return whether a URI of an upstream is shown, however the upstream was found."""
        return upstream.settings.shows(uri) and (facet is None or facet.shows(upstream.alias, uri))

    def _owners(self, uri: str, facet: Facet | None) -> Iterator[tuple[GatewayUpstream, str]]:
        """A URI with an alias in front that the upstream has itself is that upstream's, whatever others list. Then come
        listed resources. Of templates the most specific one decides, and of equal ones that of the upstream which is
        first in the file; an alias in front counts as literal text."""
        inwards = ((one, inward_uri(one.alias, uri)) for one in self.upstreams.values())
        aliased = [(one, inward) for one, inward in inwards if inward is not None]
        for upstream, inward in aliased:
            if self._has(upstream, inward):
                yield upstream, inward
                return
        if uri in self.routes(RESOURCES):
            route = self.routes(RESOURCES)[uri]
            yield route.upstream, route.inward
            return
        found = [(-(len(uri) - len(inward)) - _scheme_length(inward), 1, one, inward) for one, inward in aliased]
        for template, route in self._templates():
            if template.match(uri) is not None and self._is_candidate(route, uri, facet):
                found.append((template.rank[0], 0, route.upstream, uri))
                break
        for _, _, upstream, inward in sorted(found, key=lambda one: one[:2]):
            yield upstream, inward

    def _is_candidate(self, route: OutwardRoute, uri: str, facet: Facet | None) -> bool:
        alias = route.upstream.alias
        return facet is None or facet.shows(alias, route.inward) or facet.shows(alias, uri)

    def _templates(self) -> list[tuple[Template, OutwardRoute]]:
        """Return the templates that are known by their own text, the most specific first. One that begins with a
        variable would match the resources of others: it is known with its alias in front."""
        if self._by_rank is None:
            routes = self.routes(TEMPLATES)
            own = ((parsed(name), route) for name, route in routes.items() if name == route.inward)
            self._by_rank = sorted(
                ((template, route) for template, route in own if template is not None), key=lambda one: one[0].rank
            )
        return self._by_rank

    def _has(self, upstream: GatewayUpstream, uri: str) -> bool:
        """Return whether an upstream lists a URI, or a template that matches it."""
        listed = self._listed.get(upstream.alias)
        if listed is None:
            lists = self._lists_of(upstream)
            templates = (parsed(entry.key) for entry in lists.get(TEMPLATES, ()))
            uris = frozenset(entry.key for entry in lists.get(RESOURCES, ()))
            listed = self._listed[upstream.alias] = uris, [one for one in templates if one is not None]
        return uri in listed[0] or any(template.match(uri) is not None for template in listed[1])

    def _is_taken(self, upstream: GatewayUpstream, uri: str) -> bool:
        """Return whether a URI or template of an upstream needs the alias in front: it begins with a variable, or looks
        like one of another upstream that has its alias in front."""
        if begins_with_variable(uri):
            return True
        other = self._by_alias.get(addressed_alias(uri))
        if other is None or other is upstream:
            return False
        inward = inward_uri(other.alias, uri)
        return inward is not None and (self._has(other, inward) or inward in self._template_texts(other))

    def _template_texts(self, upstream: GatewayUpstream) -> set[str]:
        return {entry.key for entry in self._lists_of(upstream).get(TEMPLATES, ())}


def _scheme_length(uri: str) -> int:
    scheme, mark, _ = uri.partition("://")
    return len(scheme + mark) if mark else 0
