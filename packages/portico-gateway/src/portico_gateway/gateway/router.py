"""All that the upstreams have, under its outward names: one look-up says whose a name is."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Hashable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET, Raw
from msgspec.structs import replace

from portico.jsonschema.argument_issues import nearest
from portico.protocol import jsonrpc
from portico.protocol.client_features import InputRequiredResult
from portico.protocol.completion import CompleteParams, PromptReference
from portico.protocol.errors import (
    InvalidParams,
    MethodNotFound,
    MissingCapability,
    ResourceNotFound,
    ToolError,
    Unknown,
)
from portico.protocol.methods import ASKABLE, asked_by
from portico.protocol.subscriptions import Filter
from portico.protocol.tools import ToolAnnotations
from portico.protocol.versions import MODERN
from portico.rpc.attribution import attribute_all
from portico.rpc.call import Call, Facet
from portico.rpc.client_requests import incapable
from portico.server.context.request_state import Seal, binding
from portico.server.policy.interfaces import Kind, Owned
from portico.server.registry.caller_view import CallerView
from portico.server.registry.catalog import Catalog
from portico_gateway.gateway.catalog_entries import LISTS, hints, members, result_at
from portico_gateway.gateway.fast_path import straight
from portico_gateway.gateway.fast_path_params import spliced
from portico_gateway.gateway.pagination import ListPages
from portico_gateway.gateway.routing_table import RESOURCES, TEMPLATES, Held, OutwardRoute, RouteTable
from portico_gateway.gateway.subscriptions import Listeners, Publish
from portico_gateway.gateway.tasks import GatewayTasks
from portico_gateway.gateway.upstream import Answered, Detach, GatewayUpstream
from portico_gateway.gateway.uri_rewriting import link_result

if TYPE_CHECKING:
    from portico.server.policy.enforcement import Protection

# How long a first list waits for upstreams of which nothing is known.
FIRST_SECONDS = 2.0
# Of those who are given the same lists by upstreams that look at who asks.
MOST_TABLES = 100


class Routes:
    """The upstreams of a gateway, and what is answered in their stead. `publish` is told of changes."""

    def __init__(
        self, publish: Publish, seal: Seal, owned: Callable[[Any], Owned], held: Held = lambda alias, method, entry: ""
    ) -> None:
        self._seal = seal
        self._held = held
        self.protection: Protection | None = None
        # Those of the upstreams.
        self.tasks: GatewayTasks | None = None
        self.upstreams: dict[str, GatewayUpstream] = {}
        # Of all that is known; and of what callers are given who are given something else.
        self.table = RouteTable(self.upstreams, held, lambda one: one.lists.all.entries)
        self._tables: OrderedDict[Hashable, RouteTable] = OrderedDict()
        # The upstreams whose lists depend on who asks.
        self._varying: list[GatewayUpstream] = []
        # How many seconds a list waits for upstreams that have not answered yet; FIRST_SECONDS if None.
        self.first_seconds: float | None = None
        self._pages = ListPages(owned)
        self._listeners = Listeners(publish, self.table)

    def __bool__(self) -> bool:
        return True

    def __len__(self) -> int:
        return len(self.upstreams)

    def put_in_order(self, aliases: list[str]) -> None:
        """The first one in the file has a name that two want."""
        rest = [alias for alias in self.upstreams if alias not in aliases]
        ordered = {alias: self.upstreams[alias] for alias in [*aliases, *rest] if alias in self.upstreams}
        self.upstreams.clear()
        self.upstreams.update(ordered)
        self.changed()

    def close(self) -> None:
        self._listeners.close()

    def forget_facet(self, facet: Facet) -> None:
        """No client sees it any more."""
        self._forget()
        self._listeners.forget_facet(facet)

    def _forget(self) -> None:
        self.table.forget()
        self._tables.clear()
        self._pages.forget()

    def table_of(self, call: Call) -> RouteTable:
        """What leads where for the sender of a call: one table for all who are given the same lists."""
        for one in self._varying:
            if one.lists.find(call).digest != one.lists.all.digest:
                return self._own_table(call)
        return self.table

    def _own_table(self, call: Call) -> RouteTable:
        found = {one.alias: one.lists.find(call) for one in self._varying}
        key = tuple(listing.digest for listing in found.values())
        table = self._tables.get(key)
        if table is None:
            own = {alias: listing.entries for alias, listing in found.items()}
            table = RouteTable(self.upstreams, self._held, lambda one: own.get(one.alias, one.lists.all.entries), key)
            self._tables[key] = table
            while len(self._tables) > MOST_TABLES:
                self._tables.popitem(last=False)
        self._tables.move_to_end(key)
        return table

    # Changes

    def changed(self, methods: Iterable[str] = tuple(LISTS)) -> None:
        """These lists may be others now."""
        self._varying = [one for one in self.upstreams.values() if one.lists.vary]
        self._forget()
        self._listeners.changed(methods)

    def updated(self, upstream: GatewayUpstream, uri: str) -> None:
        if upstream.settings.shows(uri):
            self._listeners.updated(self.table.outward_uri(upstream, uri))

    def list_for_listeners(self) -> None:
        """Ask those for their lists who have not given any yet, if there are clients that wait to be told."""
        if self._listeners:
            for upstream in self.upstreams.values():
                upstream.begin_listing_again()

    def hear(self, wanted: Filter, call: Call) -> list[Any]:
        for upstream in self.upstreams.values():
            upstream.begin_listing(call)
        return self._listeners.hear(wanted, call.facet)

    def unhear(self, keys: list[Any]) -> None:
        self._listeners.unhear(keys)

    def may_have(self, uri: str, call: Call, view: CallerView | None = None) -> bool:
        """Whether an upstream has a resource, or may turn out to when it is listed."""
        for upstream, inward in self.table_of(call).owners(uri, call.facet):
            if view is None or view.sees("resource", Owned(upstream.alias, inward)):
                return True
        return view is None and not all(one.lists.find(call).is_known for one in self.upstreams.values())

    # Whose something is

    def owner_of(self, kind: Kind, name: str) -> Owned | None:
        if kind == "resource":
            return next((Owned(upstream.alias, inward) for upstream, inward in self.table.owners(name, None)), None)
        route = self.table.routes(TEMPLATES if kind == "template" else f"{kind}s/list").get(name)
        if route is None and kind == "template":
            route = self.table.routes(RESOURCES).get(name)
        return None if route is None else Owned(route.upstream.alias, route.inward)

    def needs_task(self, tool: str) -> bool:
        """As its upstream lists it, which only one of 2025-11-25 does."""
        route = self.table.routes("tools/list").get(tool)
        return route is not None and route.task_support == "required"

    def hints(self, call: Call, tool: str) -> ToolAnnotations | None:
        """As its upstream lists it to the sender of a call."""
        route = self.table_of(call).routes("tools/list").get(tool)
        return None if route is None else hints(route.entry)

    def canonical(self, kind: Kind, name: str) -> str | None:
        """Upstreams are routed to by the names that they list, so there is one name for each."""
        return name if self.owner_of(kind, name) is not None else None

    def hides(self, call: Call, kind: Kind, name: str) -> bool:
        """What an upstream hides from a caller, it says itself when it is asked."""
        return False

    # Lists

    async def settled(
        self, seconds: float | None = None, by: Call | None = None, only: Collection[GatewayUpstream] | None = None
    ) -> None:
        """Wait until all upstreams, or `only` some, are listed or have failed, for at most `seconds`.

        Without `seconds` it is the short wait of a list: upstreams that answer later are announced as a change, and
        those that did not answer in an earlier process are not waited for. Personal upstreams are asked on behalf of
        the call `by`.
        """
        waiting = [
            one
            for one in (self.upstreams.values() if only is None else only)
            if not one.lists.find(by).is_ready and not one.health.breaker_of(by).is_open
        ]
        for upstream in waiting:
            upstream.begin_listing(by)
        if seconds is None:
            seconds = FIRST_SECONDS if self.first_seconds is None else self.first_seconds
            waiting = [one for one in waiting if not one.traits.is_unreachable]
        if not waiting:
            return
        tasks = [asyncio.ensure_future(one.listed_or_failed(by)) for one in waiting]
        try:
            await asyncio.wait(tasks, timeout=max(one.left_of(seconds, by) for one in waiting))
        finally:
            for task in tasks:
                task.cancel()

    async def _look_again(self, call: Call) -> None:
        """Something is asked for that is not in the lists of who asks: it may be by now."""
        for upstream in self._varying:
            upstream.lists.find(call).doubt()
        await self.settled(by=call)

    def listed(self, catalog: Catalog[Any]) -> Sequence[Any] | None:
        return None

    def page(self, catalog: Catalog[Any], call: Call, cursor: str | None, view: CallerView | None = None) -> Any:
        """A page of our own list and those of the upstreams, or a coroutine that comes to it."""
        for upstream in self.upstreams.values():
            upstream.begin_listing(call)
        if all(one.lists.find(call).is_ready or one.health.breaker_of(call).is_open for one in self.upstreams.values()):
            return self._page(catalog, call, cursor, view)
        return self._page_when_settled(catalog, call, cursor, view)

    async def _page_when_settled(
        self, catalog: Catalog[Any], call: Call, cursor: str | None, view: CallerView | None
    ) -> Raw:
        await self.settled(by=call)
        return self._page(catalog, call, cursor, view)

    def _page(self, catalog: Catalog[Any], call: Call, cursor: str | None, view: CallerView | None) -> Raw:
        self._listeners.note_given(catalog.method, call.facet)
        for upstream in self._varying:
            listing = upstream.lists.find(call)
            listing.was_missing = listing.was_missing or not listing.is_known
        return self._pages.page(catalog, call, cursor, view, self.table_of(call), self._hints(catalog, call, view))

    def _hints(self, catalog: Catalog[Any], call: Call, view: CallerView | None) -> Mapping[str, Any]:
        """How long a list may be kept by those who are given it, and whether they may share it: as all of its parts
        allow. What depends on the caller, or on an approval, is shared with no other."""
        said = (upstream.lists.hints(call, catalog.method) for upstream in self.upstreams.values())
        parts = [one for one in said if one is not None]
        if not parts:
            return catalog.hints
        seconds, public = min(seconds for seconds, _ in parts), all(public for _, public in parts)
        if len(catalog):
            seconds = min(seconds, catalog.hints["ttl_ms"] / 1000)
            public = public and catalog.hints["cache_scope"] == "public"
        shared = public and view is None and self.protection is None and not self.table.held
        return {"ttl_ms": int(seconds) * 1000, "cache_scope": "public" if shared else "private"}

    # Answering

    def call(self, call: Call, kind: str, name: str, catalog: Catalog[Any]) -> Coroutine[Any, Any, Any]:
        """What comes to the answer of the upstream whose tool or prompt it is."""
        if self.protection is None:
            route = self.table_of(call).routes(f"{kind}s/list", call.facet).get(name)
            if route is not None and not self._may_be_task(call, kind, route):
                return self._delegate(route.upstream, call, "name", route.inward)
        return self._call_if_admitted(call, kind, name, catalog)

    def _may_be_task(self, call: Call, kind: str, route: OutwardRoute) -> bool:
        return kind == "tool" and self.tasks is not None and self.tasks.concerns(call, route)

    async def _call_if_admitted(self, call: Call, kind: str, name: str, catalog: Catalog[Any]) -> Any:
        """The same where a rule may forbid it, it may become a task, or nothing of that name is known yet."""
        method = f"{kind}s/list"
        route, owners = self.table_of(call).routes(method, call.facet).get(name), []
        if route is None:
            owners = await self._await_owners(call, kind, name)
            route = self.table_of(call).routes(method, call.facet).get(name)
        if route is None:
            await self._look_again(call)
            asked = await self._ask_to_connect(call, owners)
            if asked is not None:
                return asked
            route = self.table_of(call).routes(method, call.facet).get(name)
        if route is None:
            await self._refuse_held(call, kind, name)
            self._refuse_absent(call, owners)
        if route is None or not await self._admits(call, kind, Owned(route.upstream.alias, route.inward)):
            raise await self.unknown(call, kind, name, catalog)
        if self.tasks is not None and self._may_be_task(call, kind, route):
            try:
                said = await self.tasks.call(call, route, partial(self._send, route.upstream, "name", route.inward))
            except MissingCapability as missing:
                raise incapable(missing, call) from None
            return self._outward(route.upstream, call, said) if isinstance(said, Answered) else said
        return await self._delegate(route.upstream, call, "name", route.inward)

    async def _refuse_held(self, call: Call, kind: str, name: str) -> None:
        """Say why something is not to be had, to those who would have it otherwise."""
        held = self.table_of(call).held.get((f"{kind}s/list", name))
        if held is None or not (call.facet is None or call.facet.shows(held.alias, held.inward)):
            return
        if await self._admits(call, kind, Owned(held.alias, held.inward)):
            raise ToolError(f"{name} is held back: {held.why}.", kind="PermissionError")

    async def _await_owners(self, call: Call, kind: str, name: str) -> list[GatewayUpstream]:
        """Wait for the upstreams to which a name belongs by its prefix, and for no others. Returns those that were not
        listed before."""
        owners = [one async for one in self._unlisted(call, kind, name)]
        for upstream in owners:
            await self.settled(upstream.settings.timeout, call, only=[upstream])
        return owners

    def _refuse_absent(self, call: Call, owners: Sequence[GatewayUpstream]) -> None:
        """Raise ToolError with the alias and the reason if an upstream to which a name belongs could not be listed."""
        for upstream in owners:
            listing, breaker = upstream.lists.find(call), upstream.health.breaker_of(call)
            if listing.is_known:
                continue
            if breaker.since is not None:
                raise breaker.refusal(upstream.alias)
            if listing.refusal is not None:
                raise listing.refusal.with_traceback(None)
            if not upstream.personal:
                raise ToolError(
                    f"{upstream.alias} has not answered yet. Try again later.",
                    kind="ToolExecutionError",
                    details={"upstream": upstream.alias},
                    retryable=True,
                )

    async def _ask_to_connect(self, call: Call, owners: Sequence[GatewayUpstream]) -> Any:
        """The question for the account of the caller, without which the upstream of this name lists nothing; None if
        there is none to be asked."""
        for upstream in owners:
            if upstream.lists.find(call).is_known:
                continue
            prepared = await upstream.auth.prepare(call) if upstream.auth is not None and upstream.personal else None
            if isinstance(prepared, InputRequiredResult):
                return self._outward(upstream, call, Answered(prepared, MODERN))
            if prepared is not None:
                await self.settled(by=call)
        return None

    async def _unlisted(self, call: Call, kind: str, name: str) -> AsyncIterator[GatewayUpstream]:
        """Those whose lists are not known, and who may have this name, if the caller may: a client may have it from
        before. Names say that only where they have a prefix."""
        for alias, upstream in list(self.upstreams.items()):
            before = upstream.settings.outward_prefix
            if upstream.lists.find(call).is_known or not before or not name.startswith(before):
                continue
            inward = name.removeprefix(before)
            shown = upstream.settings.shows(inward) and (call.facet is None or call.facet.shows(alias, inward))
            if shown and await self._admits(call, kind, Owned(alias, inward)):
                yield upstream

    def may_own(self, names: Collection[str] | None) -> list[GatewayUpstream]:
        """Return the upstreams to which any of these names belongs, by prefix or by renaming; all, if that does not
        tell."""
        every = list(self.upstreams.values())
        if names is None:
            return every
        found = [one for one in every if any(one.settings.may_show_as(name) for name in names)]
        return found or (every if names else [])

    async def unknown(self, call: Call, kind: str, name: str, catalog: Catalog[Any]) -> Unknown:
        """The refusal of a name that is not there, with those that may have been meant, as far as the caller sees."""
        await self.settled(by=call)
        view = None if self.protection is None else self.protection.view(call)
        names = self._pages.names(catalog, call, view, self.table_of(call))
        return Unknown(kind, name, nearest(name, catalog.unchecked(names), most=3))

    def nothing_to_complete(self, name: str) -> InvalidParams:
        return InvalidParams("Nothing to complete: there is no such prompt or template")

    async def _admits(self, call: Call, kind: Any, owned: Owned) -> bool:
        if self.protection is None:
            return True
        given = getattr(call.typed(), "arguments", b"")
        return await self.protection.admit(
            call, kind, owned, given if type(given) is Raw else jsonrpc.encode(given or {})
        )

    def may_see(self, call: Call, upstream: GatewayUpstream, uri: str) -> bool:
        """Whether a resource of an upstream is shown to a caller."""
        shown = self.table.shows(upstream, uri, call.facet)
        view = None if self.protection is None else self.protection.view(call)
        return shown and (view is None or view.sees("resource", Owned(upstream.alias, uri)))

    async def may_read(self, call: Call, upstream: GatewayUpstream, uri: str) -> bool:
        """Whether a caller may have it."""
        return self.may_see(call, upstream, uri) and await self._admits(call, "resource", Owned(upstream.alias, uri))

    async def read(self, call: Call, uri: str) -> Any:
        await self.settled(by=call)
        owners = list(self.table_of(call).owners(uri, call.facet))
        if not owners:
            await self._look_again(call)
            owners = list(self.table_of(call).owners(uri, call.facet))
        for upstream, inward in owners:
            if not await self._admits(call, "resource", Owned(upstream.alias, inward)):
                continue
            try:
                return await self._delegate(upstream, call, "uri", inward)
            except (ResourceNotFound, MethodNotFound):
                continue
        raise ResourceNotFound(uri)

    async def complete(self, call: Call, params: CompleteParams) -> Any:
        await self.settled(by=call)
        ref, table, facet = params.ref, self.table_of(call), call.facet
        if isinstance(ref, PromptReference):
            route = table.routes("prompts/list", facet).get(ref.name)
            inner = {"type": "ref/prompt", "name": route.inward if route else ""}
        else:
            route = table.routes(TEMPLATES, facet).get(ref.uri) or table.routes(RESOURCES, facet).get(ref.uri)
            inner = {"type": "ref/resource", "uri": route.inward if route else ""}
        kind = "prompt" if isinstance(ref, PromptReference) else "template"
        if route is None or not await self._admits(call, kind, Owned(route.upstream.alias, route.inward)):
            raise self.nothing_to_complete("")
        return await self._delegate(route.upstream, call, "ref", inner)

    async def _delegate(self, upstream: GatewayUpstream, call: Call, member: str, inward: Any) -> Any:
        """The same call with the inward name, and its answer under ours."""
        # A digest, which most calls do without.
        bound = partial(self._binding, call)
        params = spliced(call, inward)
        begun = None if params is None else straight(upstream, call, inward, params)
        if begun is not None:
            answered = await begun
        else:
            params = params or self._inward(call, {member: inward}, bound)
            try:
                answered = await upstream.call(replace(call, params=params, read=None, facet=None), bound)
            except MissingCapability as missing:
                raise incapable(missing, call) from None
        return self._outward(upstream, call, answered)

    async def _send(
        self, upstream: GatewayUpstream, member: str, inward: Any, call: Call, detach: Detach | None = None
    ) -> Answered:
        """What an upstream answers to a call that may become a task."""
        bound = partial(self._binding, call)
        params = spliced(call, inward) or self._inward(call, {member: inward}, bound)
        return await upstream.call(replace(call, params=params, read=None, facet=None), bound, detach)

    def _outward(self, upstream: GatewayUpstream, call: Call, answered: Answered) -> Any:
        asked = asked_by(call.method, answered.result)
        if asked is None:
            return self.outward_result(upstream, call, answered)
        if type(answered.result) is Raw:
            answered_state = None if asked.request_state is UNSET else asked.request_state
            steps = {"state": Raw(jsonrpc.encode(answered_state))}
            asked.request_state = self._seal.close(self._binding(call), {}, steps, list(asked.input_requests or {}))
            return asked if upstream.is_here else attribute_all(upstream.alias, asked)
        return asked

    def outward_result(self, upstream: GatewayUpstream, call: Call, answered: Answered) -> Raw:
        """An upstream's result as its client is to see it."""
        try:
            said = result_at(call.method, answered.result, answered.revision, call.revision or MODERN)
            if self.table.crosses and (b'"uri"' in (data := bytes(said)) or b"esourceUri" in data):
                return link_result(call.method, said, partial(self.table_of(call).outward_uri, upstream))
            return said
        except (msgspec.DecodeError, RecursionError):
            raise ToolError(f"{upstream.alias} gave a result that cannot be read.") from None

    def _inward(self, call: Call, changed: dict[str, Any], bound: Callable[[], bytes]) -> Raw:
        """The params with other members in place of their own, and the state that the upstream gave."""
        params: dict[str, Any] = {**members.decode(call.params), **changed}
        if "requestState" in params and call.method in ASKABLE:
            state = self._opened(params["requestState"], bound())
            if state is not None and bytes(state) == b"null":
                del params["requestState"]
            elif state is not None:
                params["requestState"] = state
        return Raw(jsonrpc.encode(params))

    def _opened(self, said: Raw, bound: bytes) -> Raw | None:
        """What the upstream gave its client to keep, out of what we gave ours; None if it is a ticket of our own."""
        sealed = msgspec.json.decode(said)
        if not isinstance(sealed, str):
            raise InvalidParams("Invalid requestState: it is no text")
        return self._seal.open(sealed, bound).steps.get("state")

    def _binding(self, call: Call) -> bytes:
        given = members.decode(call.params)
        target = given.get("name") or given.get("uri") or given.get("ref") or b""
        arguments = msgspec.json.decode(given["arguments"]) if "arguments" in given else None
        return binding(call.method, bytes(target).decode(), arguments, call.principal)
