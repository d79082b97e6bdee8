"""Routing table: exposed names of upstream components and their owners. No I/O."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from portico.protocol.header_params import HEADER_KEYWORD, HeaderParam, parse_header_params
from portico.protocol.json_depth import decode_bounded
from portico.protocol.uri_template import UriTemplate, begins_with_variable, try_parse_template
from portico.protocol.versions import V2025_11_25, ProtocolVersion
from portico.rpc.call import ServerView
from portico.server.providers.naming import addressed_alias, exposed_uri, normalize_alias, upstream_uri
from portico.server.results.settings import declare_result_size
from portico_gateway.gateway.catalog_cache import Catalog
from portico_gateway.gateway.catalog_entries import LIST_METHODS, CatalogEntry, get_task_support
from portico_gateway.gateway.upstream import UpstreamProvider
from portico_gateway.gateway.uri_rewriting import rewrite_meta_uris

log = logging.getLogger("portico.gateway")

RESOURCES_LIST, TEMPLATES_LIST = "resources/list", "resources/templates/list"

ApprovalCheck = Callable[[str, str, CatalogEntry], str]
"Returns why an entry is held back, by alias and list method; an empty string if it is not."


class UpstreamRoute(Struct, frozen=True):
    """Target of an exposed name."""

    upstream: UpstreamProvider
    inward: str
    entry: CatalogEntry
    # Members that replace those of the entry.
    shown: dict[str, Any]
    # Task support of the tool, which 2025-11-25 declares for each tool.
    task_support: str = ""

    def overrides_for(self, method: str, protocol_version: ProtocolVersion) -> dict[str, Any]:
        """Return the members to replace. Adds the task support for 2025-11-25; 2026-07-28 does not have it."""
        traits = self.upstream.features
        if method == "tools/list" and protocol_version == V2025_11_25 and traits.tasks and not traits.sessions:
            return {**self.shown, "execution": {"taskSupport": "optional"}}
        return self.shown


class UnapprovedEntry(Struct, frozen=True):
    """A component that is hidden until it is approved, and the reason."""

    alias: str
    inward: str
    why: str


RoutesByExposedName = dict[str, UpstreamRoute]


class RoutingTable:
    """Routes of all upstreams, in the order of the file: the first one wins a name conflict.

    `catalog_of` returns the catalog of an upstream for the callers of this table.
    """

    def __init__(
        self,
        upstreams: Mapping[str, UpstreamProvider],
        approval_check: ApprovalCheck,
        catalog_of: Callable[[UpstreamProvider], Catalog],
        key: Hashable = None,
    ) -> None:
        self.upstreams = upstreams
        # Equal for tables of the same lists; None for the table of all known entries.
        self.key = key
        self._lists_of = catalog_of
        # Messages about hidden components with conflicting names; and components held back, by method and exposed name.
        self.name_conflicts: list[str] = []
        self.unapproved: dict[tuple[str, str], UnapprovedEntry] = {}
        # Arguments of each tool that are mirrored in HTTP headers.
        self.mirrored_headers: dict[str, Sequence[HeaderParam]] = {}
        # Whether URIs of an upstream may need the alias as a prefix.
        self.may_have_uri_conflicts = False
        self._is_held = approval_check
        self._all_routes: dict[str, RoutesByExposedName] | None = None
        self._view_cache: dict[tuple[str, ServerView], RoutesByExposedName] = {}
        # URIs and templates listed by each upstream; and all templates, the most specific first.
        self._listed: dict[str, tuple[frozenset[str], list[UriTemplate]]] = {}
        self._by_rank: list[tuple[UriTemplate, UpstreamRoute]] | None = None
        self._by_alias: dict[str, UpstreamProvider] = {}

    def invalidate(self) -> None:
        """Discard all routes, and rebuild the tools and their mirrored headers."""
        self._all_routes = None
        self._view_cache.clear()
        self.mirrored_headers.clear()
        for name, route in self.routes("tools/list").items():
            schema = bytes(route.entry.members["inputSchema"])
            # A substring search first: few tools mirror arguments in headers (2026-07-28, Streamable HTTP), and
            # schemas can be large.
            if HEADER_KEYWORD.encode() in schema:
                try:
                    self.mirrored_headers[name] = parse_header_params(decode_bounded(schema))
                except ValueError as failure:
                    log.debug("%s: ignored %s of %s: %s", route.upstream.alias, HEADER_KEYWORD, route.inward, failure)

    # Names

    def routes(self, method: str, view: ServerView | None = None) -> RoutesByExposedName:
        """Return the routes of a list by exposed name; with `view`, only those that it includes."""
        if self._all_routes is None:
            self.name_conflicts, self.unapproved = [], {}
            self._listed, self._by_rank = {}, None
            self._by_alias = {normalize_alias(alias): upstream for alias, upstream in self.upstreams.items()}
            # Built lazily and as a whole: conflicts can only be decided when the names of all upstreams are known.
            # Resources come first, since tools may refer to them.
            self._all_routes = {method: self._build_routes(method) for method in (RESOURCES_LIST, TEMPLATES_LIST)}
            self.may_have_uri_conflicts = (len(self.upstreams) > 1 and any(self._all_routes.values())) or any(
                begins_with_variable(route.inward) for route in self._all_routes[TEMPLATES_LIST].values()
            )
            self._all_routes |= {
                method: self._build_routes(method) for method in LIST_METHODS if method not in self._all_routes
            }
        if view is None:
            return self._all_routes[method]
        seen = self._view_cache.get((method, view))
        if seen is None:
            routes = self._all_routes[method].items()
            seen = {
                name: upstream for name, upstream in routes if view.includes(upstream.upstream.alias, upstream.inward)
            }
            self._view_cache[method, view] = seen
        return seen

    def _build_routes(self, method: str) -> RoutesByExposedName:
        by_name = LIST_METHODS[method].key == "name"
        result: RoutesByExposedName = {}
        for upstream in self.upstreams.values():
            settings = upstream.settings
            for entry in self._lists_of(upstream).get(method, ()):
                name = entry.key
                if not settings.includes(name):
                    continue
                # Tools and prompts get a prefix. URIs stay unchanged where possible, because clients and models know
                # them from other texts.
                outward = settings.exposed_name(name) if by_name else name
                if not by_name and (outward in result or self._is_taken(upstream, name)):
                    outward = exposed_uri(upstream.alias, name)
                # Checked before conflicts: an unapproved tool must not take a name away from an approved one of
                # another upstream.
                why = self._is_held(upstream.alias, method, entry)
                if why:
                    self.unapproved[method, outward] = UnapprovedEntry(upstream.alias, name, why)
                elif outward in result:
                    other = result[outward].upstream.alias
                    self.name_conflicts.append(
                        f"{outward}: exposed by {other}; that of {upstream.alias} ({name}) is hidden"
                    )
                else:
                    overrides = self._entry_overrides(method, upstream, entry, outward)
                    result[outward] = UpstreamRoute(upstream, name, entry, overrides, get_task_support(entry))
        return result

    def _entry_overrides(
        self, method: str, upstream: UpstreamProvider, entry: CatalogEntry, outward: str
    ) -> dict[str, Any]:
        overrides: dict[str, Any] = {} if outward == entry.key else {LIST_METHODS[method].key: outward}
        if method == "tools/list":
            if entry.key in upstream.settings.descriptions:
                overrides["description"] = upstream.settings.descriptions[entry.key]
            meta = entry.members.get("_meta")
            changed = (
                meta
                and self.may_have_uri_conflicts
                and rewrite_meta_uris(meta, lambda uri: self.exposed_uri(upstream, uri))
            )
            if changed:
                overrides["_meta"] = changed
            tokens = upstream.settings.max_result_tokens
            if tokens is not None:
                overrides["_meta"] = declare_result_size(overrides.get("_meta", meta), tokens)
        return overrides

    # URIs

    def exposed_uri(self, upstream: UpstreamProvider, uri: str) -> str:
        """Return the exposed URI of an upstream's resource.

        It is the original URI, unless another upstream owns that or it can be read only with the alias as a prefix.
        """
        # The first owner decides. A second upstream that lists the same URI is reachable under its alias.
        for owner, inward in self._owners(uri, None):
            return uri if owner is upstream and inward == uri else exposed_uri(upstream.alias, uri)
        return exposed_uri(upstream.alias, uri) if self._lists_uri(upstream, uri) else uri

    def candidate_upstreams(self, uri: str, facet: ServerView | None) -> Iterator[tuple[UpstreamProvider, str]]:
        """Yield the upstreams that may have a resource and expose it, the most likely first, each with its original
        URI.

        Ownership does not depend on visibility: a URI that its owner hides is never read from another upstream.
        """
        for upstream, inward in self._owners(uri, facet):
            if self.shows(upstream, inward, facet):
                yield upstream, inward

    def shows(self, upstream: UpstreamProvider, uri: str, facet: ServerView | None) -> bool:
        """Return whether a URI of an upstream is visible."""
        return upstream.settings.includes(uri) and (facet is None or facet.includes(upstream.alias, uri))

    def _owners(self, uri: str, facet: ServerView | None) -> Iterator[tuple[UpstreamProvider, str]]:
        """Yield the owners of a URI, the most likely first.

        A URI with an alias prefix belongs to that upstream if it has the resource, whatever others list. Listed
        resources come next, then the most specific template; ties are decided by the order of the file. An alias prefix
        counts as literal text.
        """
        inwards = ((item, upstream_uri(item.alias, uri)) for item in self.upstreams.values())
        aliased = [(item, inward) for item, inward in inwards if inward is not None]
        # The explicit prefix wins over everything else; otherwise an upstream could capture another's resources by
        # listing URIs with its alias.
        for upstream, inward in aliased:
            if self._lists_uri(upstream, inward):
                yield upstream, inward
                return
        # A listed resource is a statement about this URI; a template only says that there may be one.
        if uri in self.routes(RESOURCES_LIST):
            route = self.routes(RESOURCES_LIST)[uri]
            yield route.upstream, route.inward
            return
        result = [(-(len(uri) - len(inward)) - _scheme_length(inward), 1, item, inward) for item, inward in aliased]
        for template, route in self._templates():
            if template.match(uri) is not None and self._is_candidate(route, uri, facet):
                result.append((template.specificity[0], 0, route.upstream, uri))
                break
        for _, _, upstream, inward in sorted(result, key=lambda candidate: candidate[:2]):
            yield upstream, inward

    def _is_candidate(self, route: UpstreamRoute, uri: str, facet: ServerView | None) -> bool:
        alias = route.upstream.alias
        return facet is None or facet.includes(alias, route.inward) or facet.includes(alias, uri)

    def _templates(self) -> list[tuple[UriTemplate, UpstreamRoute]]:
        """Return the templates that are exposed unchanged, the most specific first.

        A template that begins with a variable would match resources of other upstreams; it is exposed with an alias
        prefix.
        """
        if self._by_rank is None:
            routes = self.routes(TEMPLATES_LIST)
            own = ((try_parse_template(name), route) for name, route in routes.items() if name == route.inward)
            self._by_rank = sorted(
                ((template, route) for template, route in own if template is not None),
                key=lambda candidate: candidate[0].specificity,
            )
        return self._by_rank

    def _lists_uri(self, upstream: UpstreamProvider, uri: str) -> bool:
        """Return whether an upstream lists a URI, or a template that matches it."""
        # Cached per table: the templates of an upstream are parsed once, and matched for each URI.
        listed = self._listed.get(upstream.alias)
        if listed is None:
            lists = self._lists_of(upstream)
            templates = (try_parse_template(entry.key) for entry in lists.get(TEMPLATES_LIST, ()))
            uris = frozenset(entry.key for entry in lists.get(RESOURCES_LIST, ()))
            listed = self._listed[upstream.alias] = uris, [item for item in templates if item is not None]
        return uri in listed[0] or any(template.match(uri) is not None for template in listed[1])

    def _is_taken(self, upstream: UpstreamProvider, uri: str) -> bool:
        """Return whether a URI or template needs the alias prefix.

        That is the case if it begins with a variable, or looks like a prefixed URI of another upstream.
        """
        # `{+path}` matches every URI, so without a prefix this upstream would receive the reads of all others.
        if begins_with_variable(uri):
            return True
        other = self._by_alias.get(addressed_alias(uri))
        if other is None or other is upstream:
            return False
        inward = upstream_uri(other.alias, uri)
        return inward is not None and (self._lists_uri(other, inward) or inward in self._template_texts(other))

    def _template_texts(self, upstream: UpstreamProvider) -> set[str]:
        return {entry.key for entry in self._lists_of(upstream).get(TEMPLATES_LIST, ())}


def _scheme_length(uri: str) -> int:
    scheme, mark, _ = uri.partition("://")
    return len(scheme + mark) if mark else 0
