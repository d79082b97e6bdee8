"""Router: maps exposed names to upstreams and forwards calls to them."""

from __future__ import annotations

import asyncio
from collections import ChainMap
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Hashable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, cast

import msgspec
from msgspec import UNSET, Raw

from portico.caching import LruCache
from portico.protocol import jsonrpc
from portico.protocol.client_features import InputRequiredResult
from portico.protocol.completion import CompleteParams, PromptReference
from portico.protocol.errors import (
    InvalidParams,
    MethodNotFound,
    MissingClientCapability,
    ResourceNotFound,
    ToolError,
)
from portico.protocol.header_params import HeaderParam
from portico.protocol.jsonrpc import EMPTY_RAW, object_decoder
from portico.protocol.methods import INPUT_REQUIRED_METHODS, as_input_required, is_minimal_call
from portico.protocol.subscriptions import SubscriptionFilter
from portico.protocol.tools import CallToolParams, ToolAnnotations
from portico.protocol.versions import FIRST_MODERN_VERSION
from portico.rpc.attribution import attribute_all
from portico.rpc.call import Call, ServerView, get_capabilities
from portico.rpc.client_requests import to_capability_error
from portico.server.context.request_state import RequestStateSealer, request_binding
from portico.server.policy.interfaces import RESULTS_OWNER, Kind, QualifiedName
from portico.server.providers.base import HeaderParams, Provider
from portico.server.registry.caller_view import CallerView
from portico.server.registry.catalog import Catalog
from portico.transports.targets import InProcessTarget, parse_target
from portico.transports.upstream import is_connection_meta
from portico_gateway.gateway.catalog_entries import LIST_METHODS, get_annotations, translate_result
from portico_gateway.gateway.pagination import PageCache
from portico_gateway.gateway.routing_table import (
    RESOURCES_LIST,
    TEMPLATES_LIST,
    ApprovalCheck,
    RoutingTable,
    UpstreamRoute,
)
from portico_gateway.gateway.settings import UpstreamSettings, make_upstream_settings
from portico_gateway.gateway.subscriptions import ChangePublisher, GatewaySubscriptions
from portico_gateway.gateway.tasks import GatewayTasks
from portico_gateway.gateway.upstream import DetachHandler, UpstreamProvider, UpstreamResponse
from portico_gateway.gateway.uri_rewriting import rewrite_result_uris

# Cached routing tables for groups of callers that see the same lists.
MAX_ROUTING_TABLES = 100


class UpstreamRouter(Provider):
    """Provider that exposes the upstreams of a gateway.

    `publish` receives change notifications; `add` and `remove` add and remove an upstream.
    """

    def __init__(
        self,
        publish: ChangePublisher,
        seal: RequestStateSealer,
        qualify: Callable[[Any], QualifiedName],
        first_seconds: float,
        add: Callable[[UpstreamSettings], None],
        remove: Callable[[str], None],
        unapproved_reason: ApprovalCheck = lambda alias, method, entry: "",
    ) -> None:
        self._seal = seal
        self._add, self._remove = add, remove
        self._unapproved_reason = unapproved_reason
        # Tasks of the upstreams.
        self.tasks: GatewayTasks | None = None
        self.upstreams: dict[str, UpstreamProvider] = {}
        # Routes over all known entries. Callers that see other lists have separate tables.
        self.table = RoutingTable(self.upstreams, unapproved_reason, lambda upstream: upstream.catalog.merged.entries)
        # The tools of that table, which is all that most calls need.
        self._tools: Mapping[str, UpstreamRoute] = {}
        # Callers with equal lists share a table, so the number of tables depends on the number of different lists,
        # not of users.
        self._tables: LruCache[Hashable, RoutingTable] = LruCache(MAX_ROUTING_TABLES)
        # Upstreams whose lists depend on the caller.
        self._varying: list[UpstreamProvider] = []
        # Seconds that a list waits for upstreams that have not answered yet.
        self.first_seconds = first_seconds
        self._pages = PageCache(qualify)
        self._listeners = GatewaySubscriptions(publish, self.table)

    def __bool__(self) -> bool:
        return True

    def __len__(self) -> int:
        return len(self.upstreams)

    def mount(self, target: Any, namespace: str | None) -> None:
        """Add a target as an upstream, which can be configured and observed as one.

        Its alias is `namespace`, or its own name.
        """
        parsed = parse_target(target)
        info = get_capabilities(parsed.handler).info if isinstance(parsed, InProcessTarget) else None
        alias = namespace or ("mount" if info is None else info.name)
        self._add(make_upstream_settings(alias, parsed, {"prefix": f"{namespace}_" if namespace else ""}))

    def unmount(self, target: Any) -> None:
        for alias, upstream in list(self.upstreams.items()):
            if upstream.settings.target == parse_target(target):
                self._remove(alias)

    def add_header_params(self, own: HeaderParams) -> HeaderParams:
        return ChainMap(cast("dict[str, Sequence[HeaderParam]]", own), self.table.mirrored_headers)

    def set_order(self, aliases: list[str]) -> None:
        """Order the upstreams as in the file. The first one wins a name conflict."""
        rest = [alias for alias in self.upstreams if alias not in aliases]
        ordered = {alias: self.upstreams[alias] for alias in [*aliases, *rest] if alias in self.upstreams}
        # Changed in place: routing tables and views hold a reference to this mapping.
        self.upstreams.clear()
        self.upstreams.update(ordered)
        self.on_lists_changed()

    def close(self) -> None:
        self._listeners.close()

    def remove_view(self, facet: ServerView) -> None:
        """Forget a view that was removed."""
        self._invalidate()
        self._listeners.remove_view(facet)

    def _invalidate(self) -> None:
        self.table.invalidate()
        self._tools = self.table.routes("tools/list")
        self._tables.clear()
        self._pages.clear()

    def table_for(self, call: Call) -> RoutingTable:
        """Return the routing table for a caller. Callers that see the same lists share a table."""
        for item in self._varying:
            # Compare digests instead of lists; a caller who sees everything uses the common table and its caches.
            if item.catalog.get(call).digest != item.catalog.merged.digest:
                return self._caller_table(call)
        return self.table

    def _caller_table(self, call: Call) -> RoutingTable:
        result = {item.alias: item.catalog.get(call) for item in self._varying}
        key = tuple(listing.digest for listing in result.values())
        table = self._tables.get(key)
        if table is None:
            own = {alias: listing.entries for alias, listing in result.items()}
            table = RoutingTable(
                self.upstreams,
                self._unapproved_reason,
                lambda upstream: own.get(upstream.alias, upstream.catalog.merged.entries),
                key,
            )
            self._tables[key] = table
        return table

    # Changes

    def on_lists_changed(self, methods: Iterable[str] = tuple(LIST_METHODS)) -> None:
        """Rebuild the routes and notify subscribers, after lists may have changed."""
        self._varying = [upstream for upstream in self.upstreams.values() if upstream.catalog.is_per_caller]
        self._invalidate()
        self._listeners.on_lists_changed(methods)

    def on_resource_updated(self, upstream: UpstreamProvider, uri: str) -> None:
        if upstream.settings.includes(uri):
            self._listeners.on_resource_updated(self.table.exposed_uri(upstream, uri))

    def refresh_for_subscribers(self) -> None:
        """List upstreams that were never listed, if there are subscribed clients."""
        if self._listeners:
            for upstream in self.upstreams.values():
                upstream.retry_refresh()

    def subscribe(self, filter: SubscriptionFilter, call: Call) -> list[Any]:
        for upstream in self.upstreams.values():
            upstream.start_refresh(call)
        return self._listeners.subscribe(filter, call.facet)

    def unsubscribe(self, keys: list[Any]) -> None:
        self._listeners.unsubscribe(keys)

    def may_have_resource(self, uri: str, call: Call, view: CallerView | None = None) -> bool:
        """Return whether an upstream has a resource, or might have it once it is listed."""
        for upstream, inward in self.table_for(call).candidate_upstreams(uri, call.facet):
            if view is None or view.is_visible("resource", QualifiedName(upstream.alias, inward)):
                return True
        # An upstream that was never listed may have any resource. With a policy the answer is no: a rule can only
        # admit names that are known.
        return view is None and not all(item.catalog.get(call).is_known for item in self.upstreams.values())

    # Ownership

    def qualified_name(self, kind: Kind, name: str) -> QualifiedName | None:
        """Return the upstream and original name of a component, or None."""
        if kind == "resource":
            return next(
                (
                    QualifiedName(upstream.alias, inward)
                    for upstream, inward in self.table.candidate_upstreams(name, None)
                ),
                None,
            )
        route = self.table.routes(TEMPLATES_LIST if kind == "template" else f"{kind}s/list").get(name)
        if route is None and kind == "template":
            route = self.table.routes(RESOURCES_LIST).get(name)
        return None if route is None else QualifiedName(route.upstream.alias, route.inward)

    def requires_task(self, tool: str) -> bool:
        """Return whether a tool must be called as a task, according to its upstream (2025-11-25 only)."""
        route = self.table.routes("tools/list").get(tool)
        return route is not None and route.task_support == "required"

    def tool_annotations(self, call: Call, tool: str) -> ToolAnnotations | None:
        """Return the annotations of a tool as listed for the caller, or None."""
        route = self.table_for(call).routes("tools/list").get(tool)
        return None if route is None else get_annotations(route.entry)

    def canonical_name(self, kind: Kind, name: str) -> str | None:
        """Return the name itself: upstreams are addressed by the names that they list, so each has one spelling."""
        return name if self.qualified_name(kind, name) is not None else None

    def is_hidden(self, call: Call, kind: Kind, name: str) -> bool:
        """Return False: an upstream decides for itself what it hides from a caller."""
        return False

    # Lists

    async def wait_until_listed(
        self, timeout: float | None = None, call: Call | None = None, only: Collection[UpstreamProvider] | None = None
    ) -> None:
        """Wait until all upstreams, or those in `only`, are listed or have failed, for at most `timeout` seconds.

        Without `timeout` it is the short wait of a list: upstreams that answer later are announced by a notification,
        and those that were unreachable in an earlier process are not waited for. Per-caller upstreams are listed on
        behalf of `call`.
        """
        waiting = [
            item
            for item in (self.upstreams.values() if only is None else only)
            if not item.catalog.get(call).is_ready and not item.health.breaker_of(call).is_open
        ]
        for upstream in waiting:
            upstream.start_refresh(call)
        if timeout is None:
            timeout = self.first_seconds
            # An upstream that was down in the last process would delay the first list of every start by the whole
            # timeout.
            waiting = [item for item in waiting if not item.features.is_unreachable]
        if not waiting:
            return
        # Wait concurrently: the slowest upstream determines the delay, not the sum of all.
        tasks = [asyncio.ensure_future(item.wait_until_listed(call)) for item in waiting]
        try:
            await asyncio.wait(tasks, timeout=max(item.remaining_list_timeout(timeout, call) for item in waiting))
        finally:
            for task in tasks:
                task.cancel()

    async def _refresh_for_unknown(self, call: Call) -> None:
        """Refresh the caller's lists, since a requested name is missing and may have been added."""
        for upstream in self._varying:
            upstream.catalog.get(call).expire_if_old()
        await self.wait_until_listed(call=call)

    def cached_list(self, catalog: Catalog[Any]) -> Sequence[Any] | None:
        return None

    def get_page(self, catalog: Catalog[Any], call: Call, cursor: str | None, view: CallerView | None = None) -> Any:
        """Return a page of the merged list, or a coroutine that returns it once the upstreams are listed."""
        for upstream in self.upstreams.values():
            upstream.start_refresh(call)
        if all(
            item.catalog.get(call).is_ready or item.health.breaker_of(call).is_open for item in self.upstreams.values()
        ):
            return self._page(catalog, call, cursor, view)
        return self._page_when_listed(catalog, call, cursor, view)

    async def _page_when_listed(
        self, catalog: Catalog[Any], call: Call, cursor: str | None, view: CallerView | None
    ) -> Raw:
        await self.wait_until_listed(call=call)
        return self._page(catalog, call, cursor, view)

    def _page(self, catalog: Catalog[Any], call: Call, cursor: str | None, view: CallerView | None) -> Raw:
        self._listeners.record_listed(catalog.method, call.facet)
        for upstream in self._varying:
            listing = upstream.catalog.get(call)
            listing.was_missing = listing.was_missing or not listing.is_known
        return self._pages.get_page(
            catalog, call, cursor, view, self.table_for(call), self._cache_hints(catalog, call, view)
        )

    def _cache_hints(self, catalog: Catalog[Any], call: Call, view: CallerView | None) -> Mapping[str, Any]:
        """Return the cache hints of a merged list: the strictest of its parts.

        A list that depends on the caller or on an approval is private.
        """
        hints = (upstream.catalog.cache_hints(call, catalog.method) for upstream in self.upstreams.values())
        parts = [item for item in hints if item is not None]
        # No upstream has a list of this kind, so the hints are those of the server's own components.
        if not parts:
            return catalog.cache_hints
        seconds, public = min(seconds for seconds, _ in parts), all(public for _, public in parts)
        # The tool that reads results does not change, so it does not shorten the hints of the upstreams.
        if any(getattr(item, "owner", "") != RESULTS_OWNER for item in catalog):
            seconds = min(seconds, catalog.cache_hints["ttl_ms"] / 1000)
            public = public and catalog.cache_hints["cache_scope"] == "public"
        # A shared cache must not serve one user's list to another: any rule, view or pending approval makes the list
        # private (2026-07-28, Caching).
        shared = public and view is None and self.protection is None and not self.table.unapproved
        return {"ttl_ms": int(seconds) * 1000, "cache_scope": "public" if shared else "private"}

    # Calls

    def call(self, call: Call, kind: str, name: str, catalog: Catalog[Any]) -> Coroutine[Any, Any, Any]:
        """Return a coroutine that calls the tool or prompt at its upstream."""
        # Fast path: without a policy, most calls need only one dictionary lookup.
        if self.protection is None:
            # The most frequent request of a gateway: one lookup, no await before the request is written.
            if kind == "tool" and call.facet is None and not self._varying:
                route = self._tools.get(name)
            else:
                route = self.table_for(call).routes(f"{kind}s/list", call.facet).get(name)
            if route is not None and not self._may_be_task(call, kind, route):
                return self._forward(route.upstream, call, "name", route.inward)
        return self._call_if_allowed(call, kind, name, catalog)

    def _may_be_task(self, call: Call, kind: str, route: UpstreamRoute) -> bool:
        if kind != "tool" or self.tasks is None:
            return False
        if (
            call.protocol_version == FIRST_MODERN_VERSION
            and call.capabilities.extensions is None
            and not route.task_support
        ):
            return False
        return self.tasks.is_task_call(call, route)

    async def _call_if_allowed(self, call: Call, kind: str, name: str, catalog: Catalog[Any]) -> Any:
        """Call a component that may be forbidden by a rule, may become a task, or is not known yet."""
        method = f"{kind}s/list"
        # Three attempts, from cheap to expensive: the known routes, upstreams that own the prefix but were not listed
        # yet, and a refresh of this caller's lists.
        route, owners = self.table_for(call).routes(method, call.facet).get(name), []
        if route is None:
            owners = await self._await_owners(call, kind, name)
            route = self.table_for(call).routes(method, call.facet).get(name)
        if route is None:
            await self._refresh_for_unknown(call)
            connect_request = await self._request_account_connection(call, owners)
            if connect_request is not None:
                return connect_request
            route = self.table_for(call).routes(method, call.facet).get(name)
        if route is None:
            await self._raise_unapproved(call, kind, name)
            self._raise_unavailable(call, owners)
        # A denied component raises the same error as an unknown one, so that a caller cannot find out which names
        # exist.
        if route is None or not await self.admits(call, kind, QualifiedName(route.upstream.alias, route.inward)):
            raise await self.not_found_error(call, kind, name, catalog)
        if self.tasks is not None and self._may_be_task(call, kind, route):
            try:
                result = await self.tasks.call(call, route, partial(self._send, route.upstream, "name", route.inward))
            except MissingClientCapability as missing:
                raise to_capability_error(missing, call) from None
            return self._expose_result(route.upstream, call, result) if isinstance(result, UpstreamResponse) else result
        return await self._forward(route.upstream, call, "name", route.inward)

    async def _raise_unapproved(self, call: Call, kind: str, name: str) -> None:
        """Raise ToolError with the reason if a component awaits approval and the caller could otherwise use it."""
        unapproved = self.table_for(call).unapproved.get((f"{kind}s/list", name))
        if unapproved is None or not (call.facet is None or call.facet.includes(unapproved.alias, unapproved.inward)):
            return
        # Only callers who may use the tool learn that it is held back; the others get the error for unknown names.
        if await self.admits(call, kind, QualifiedName(unapproved.alias, unapproved.inward)):
            raise ToolError(f"{name} is blocked: {unapproved.why}.", error_type="PermissionError")

    async def _await_owners(self, call: Call, kind: str, name: str) -> list[UpstreamProvider]:
        """Wait for the upstreams that own a name according to its prefix. Return those that were not listed before."""
        owners = [unlisted_candidate async for unlisted_candidate in self._unlisted_candidates(call, kind, name)]
        for upstream in owners:
            await self.wait_until_listed(upstream.settings.timeout, call, only=[upstream])
        return owners

    def _raise_unavailable(self, call: Call, owners: Sequence[UpstreamProvider]) -> None:
        """Raise ToolError with the alias and the reason if an upstream that owns the name could not be listed."""
        for upstream in owners:
            listing, breaker = upstream.catalog.get(call), upstream.health.breaker_of(call)
            if listing.is_known:
                continue
            if breaker.since is not None:
                raise breaker.unavailable_error(upstream.alias)
            if listing.last_error is not None:
                raise listing.last_error.with_traceback(None)
            if not upstream.is_per_caller:
                raise ToolError(
                    f"{upstream.alias} has not responded yet. Try again later.",
                    error_type="ToolExecutionError",
                    details={"upstream": upstream.alias},
                    retryable=True,
                )

    async def _request_account_connection(self, call: Call, owners: Sequence[UpstreamProvider]) -> Any:
        """Return the request to connect the caller's account, without which the upstream lists nothing; or None."""
        for upstream in owners:
            if upstream.catalog.get(call).is_known:
                continue
            prepared = (
                await upstream.auth.prepare_call(call) if upstream.auth is not None and upstream.is_per_caller else None
            )
            if isinstance(prepared, InputRequiredResult):
                return self._expose_result(upstream, call, UpstreamResponse(prepared, FIRST_MODERN_VERSION))
            if prepared is not None:
                await self.wait_until_listed(call=call)
        return None

    async def _unlisted_candidates(self, call: Call, kind: str, name: str) -> AsyncIterator[UpstreamProvider]:
        """Yield the upstreams that are not listed yet and may own a name according to its prefix, if the caller has
        access.

        A client may know the name from an earlier session.
        """
        for alias, upstream in list(self.upstreams.items()):
            before = upstream.settings.exposed_prefix
            if upstream.catalog.get(call).is_known or not before or not name.startswith(before):
                continue
            inward = name.removeprefix(before)
            visible = upstream.settings.includes(inward) and (call.facet is None or call.facet.includes(alias, inward))
            if visible and await self.admits(call, kind, QualifiedName(alias, inward)):
                yield upstream

    def may_own(self, names: Collection[str] | None) -> list[UpstreamProvider]:
        """Return the upstreams that may own any of these names, by prefix or renaming; all of them if that is
        unknown.
        """
        every = list(self.upstreams.values())
        if names is None:
            return every
        result = [item for item in every if any(item.settings.may_show_as(name) for name in names)]
        return result or (every if names else [])

    async def visible_names(self, call: Call, catalog: Catalog[Any], view: CallerView | None) -> list[str]:
        await self.wait_until_listed(call=call)
        return self._pages.visible_names(catalog, call, view, self.table_for(call))

    def may_see(self, call: Call, upstream: UpstreamProvider, uri: str) -> bool:
        """Return whether a resource of an upstream is visible to a caller."""
        visible = self.table.shows(upstream, uri, call.facet)
        view = self.view(call)
        return visible and (view is None or view.is_visible("resource", QualifiedName(upstream.alias, uri)))

    async def may_read(self, call: Call, upstream: UpstreamProvider, uri: str) -> bool:
        """Return whether a caller may read a resource of an upstream."""
        return self.may_see(call, upstream, uri) and await self.admits(
            call, "resource", QualifiedName(upstream.alias, uri)
        )

    async def read(self, call: Call, uri: str) -> Any:
        """Read a resource from the first upstream that has it. Raises ResourceNotFound."""
        await self.wait_until_listed(call=call)
        owners = list(self.table_for(call).candidate_upstreams(uri, call.facet))
        if not owners:
            await self._refresh_for_unknown(call)
            owners = list(self.table_for(call).candidate_upstreams(uri, call.facet))
        for upstream, inward in owners:
            if not await self.admits(call, "resource", QualifiedName(upstream.alias, inward)):
                continue
            try:
                return await self._forward(upstream, call, "uri", inward)
            except (ResourceNotFound, MethodNotFound):
                continue
        raise ResourceNotFound(uri)

    async def complete(self, call: Call, params: CompleteParams) -> Any:
        await self.wait_until_listed(call=call)
        ref, table, facet = params.ref, self.table_for(call), call.facet
        if isinstance(ref, PromptReference):
            route = table.routes("prompts/list", facet).get(ref.name)
            inner = {"type": "ref/prompt", "name": route.inward if route else ""}
        else:
            route = table.routes(TEMPLATES_LIST, facet).get(ref.uri) or table.routes(RESOURCES_LIST, facet).get(ref.uri)
            inner = {"type": "ref/resource", "uri": route.inward if route else ""}
        kind = "prompt" if isinstance(ref, PromptReference) else "template"
        if route is None or not await self.admits(call, kind, QualifiedName(route.upstream.alias, route.inward)):
            raise self.nothing_to_complete(ref.name if isinstance(ref, PromptReference) else ref.uri)
        return await self._forward(route.upstream, call, "ref", inner)

    async def _forward(self, upstream: UpstreamProvider, call: Call, member: str, inward: Any) -> Any:
        """Send a call with the upstream's own name, and return the result with the exposed names."""
        try:
            answered = await self._send(upstream, member, inward, call)
        except MissingClientCapability as missing:
            raise to_capability_error(missing, call) from None
        return self._expose_result(upstream, call, answered)

    def _send(
        self, upstream: UpstreamProvider, member: str, inward: Any, call: Call, detach: DetachHandler | None = None
    ) -> Coroutine[Any, Any, UpstreamResponse]:
        # The binding is a digest, computed only when needed; most calls do without it.
        bound = partial(self._state_binding, call)
        params = _bare_params(call, inward)
        if params is None:
            return upstream.call(call, self._rewrite_params(call, {member: inward}, bound), bound, detach)
        return upstream.call(call, params, bound, detach, tool=inward if detach is None else "")

    def _expose_result(self, upstream: UpstreamProvider, call: Call, answered: UpstreamResponse) -> Any:
        """Return the result for the client.

        The upstream's request state is sealed, so that a client cannot alter it.
        """
        input_required = as_input_required(call.method, answered.result)
        if input_required is None:
            return self.expose_result(upstream, call, answered)
        if type(answered.result) is Raw:
            answered_state = None if input_required.request_state is UNSET else input_required.request_state
            steps = {"state": Raw(jsonrpc.encode(answered_state))}
            input_required.request_state = self._seal.seal(
                self._state_binding(call), {}, steps, list(input_required.input_requests or {})
            )
            return input_required if upstream.is_here else attribute_all(upstream.alias, input_required)
        return input_required

    def expose_result(self, upstream: UpstreamProvider, call: Call, answered: UpstreamResponse) -> Raw:
        """Translate an upstream's result to the client's protocol version and to exposed URIs."""
        try:
            result: Raw = answered.result
            revision = call.protocol_version or FIRST_MODERN_VERSION
            if answered.revision != revision:
                result = translate_result(call.method, result, answered.revision, revision)
            if self.table.may_have_uri_conflicts and (b'"uri"' in (data := bytes(result)) or b"esourceUri" in data):
                return rewrite_result_uris(call.method, result, partial(self.table_for(call).exposed_uri, upstream))
            return result
        except (msgspec.DecodeError, RecursionError):
            raise ToolError(f"{upstream.alias} returned an invalid result.") from None

    def _rewrite_params(self, call: Call, changed: dict[str, Any], bound: Callable[[], bytes]) -> Raw:
        """Return the params with changed members, and with the request state that the upstream issued."""
        params: dict[str, Any] = {**object_decoder.decode(call.params), **changed}
        if "requestState" in params and call.method in INPUT_REQUIRED_METHODS:
            state = self._open_request_state(params["requestState"], bound())
            if state is not None and bytes(state) == b"null":
                del params["requestState"]
            elif state is not None:
                params["requestState"] = state
        return Raw(jsonrpc.encode(params))

    def _open_request_state(self, state: Raw, bound: bytes) -> Raw | None:
        """Return the upstream's request state from our sealed one, or None if it is a ticket of a suspended call."""
        sealed = msgspec.json.decode(state)
        if not isinstance(sealed, str):
            raise InvalidParams("Invalid requestState: expected a string")
        return self._seal.unseal(sealed, bound).steps.get("state")

    def _state_binding(self, call: Call) -> bytes:
        """Return the binding that restricts a request state to this method, target, arguments and principal."""
        params = object_decoder.decode(call.params)
        target = params.get("name") or params.get("uri") or params.get("ref") or b""
        arguments = msgspec.json.decode(params["arguments"]) if "arguments" in params else None
        return request_binding(call.method, bytes(target).decode(), arguments, call.principal)


def _bare_params(call: Call, inward: str) -> Raw | None:
    """Return the params of a tool call that has nothing but a name, arguments and connection metadata, or None.

    The upstream connection adds its own metadata, so the client's can be dropped.
    """
    typed = None if call.read is None or call.read[0] is not call.params else call.read[1]
    if type(typed) is not CallToolParams or not is_minimal_call(call.params, typed):
        return None
    meta = typed.meta
    if meta is not EMPTY_RAW and not is_connection_meta(bytes(meta), cache=call.progress_token is None):
        return None
    return Raw(b'{"name":%b,"arguments":%b}' % (jsonrpc.encode(inward), bytes(typed.arguments)))
