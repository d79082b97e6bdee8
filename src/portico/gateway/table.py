"""Under which outward name each thing of an upstream is known, and whose an outward name is. Nothing here waits."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from msgspec import Struct

from portico.gateway.entries import LISTS, ListedEntry, task_support
from portico.gateway.kept import Lists
from portico.gateway.links import link_inside
from portico.gateway.names import inward_uri, outward_uri
from portico.gateway.upstream import GatewayUpstream
from portico.json_depth import decode_bounded
from portico.rpc.call import Facet
from portico.wire.errors import UsageError
from portico.wire.mirrors import KEYWORD, Mirror, mirrors
from portico.wire.revisions import V2025_11_25, Revision
from portico.wire.uris import Template

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
        # Whether an address of one upstream may be that of another.
        self.crosses = False
        self._is_held = held
        self._all: dict[str, RoutesByName] | None = None
        self._seen: dict[tuple[str, Facet], RoutesByName] = {}

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
            # A tool may name a resource, so these come first.
            self._all = {method: self._gather(method) for method in (RESOURCES, TEMPLATES)}
            self.crosses = len(self.upstreams) > 1 and any(self._all.values())
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
                if outward in found and not by_name:
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
        """The address under which a resource of an upstream is known here: its own, unless another's is meant by it."""
        for owner, _ in self._known_owners(uri, None):
            return uri if owner is upstream else outward_uri(upstream.alias, uri)
        return uri

    def owners(self, uri: str, facet: Facet | None) -> Iterator[tuple[GatewayUpstream, str]]:
        """Those who may have a resource, the most likely first, each with its own address of it."""
        yield from self._known_owners(uri, facet)
        if uri in self.routes(RESOURCES):
            return
        for upstream in self.upstreams.values():
            inward = inward_uri(upstream.alias, uri)
            shown = inward is not None and (facet is None or facet.shows(upstream.alias, inward))
            if inward is not None and shown and upstream.settings.shows(inward):
                yield upstream, inward

    def _known_owners(self, uri: str, facet: Facet | None) -> Iterator[tuple[GatewayUpstream, str]]:
        """By the lists: who has listed it, or else a template that fits."""
        if uri in self.routes(RESOURCES):
            route = self.routes(RESOURCES, facet).get(uri)
            if route is not None:
                yield route.upstream, route.inward
            return
        for template, route in self.routes(TEMPLATES, facet).items():
            if _matches(template, uri):
                yield route.upstream, uri if template == route.inward else inward_uri(route.upstream.alias, uri) or uri


def _matches(template: str, uri: str) -> bool:
    found = _parsed(template)
    return found is not None and found.match(uri) is not None


@lru_cache(maxsize=10_000)
def _parsed(template: str) -> Template | None:
    """None: it is none that could match anything."""
    try:
        return Template(template)
    except UsageError:
        return None
