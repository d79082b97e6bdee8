"""All that the upstreams have, under its outward names: one look-up says whose a name is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
from msgspec import UNSET, Raw, Struct
from msgspec.structs import replace

from portico.gateway.changes import GATHER_SECONDS, ResourceRelay
from portico.gateway.entries import LISTS, ListedEntry, list_page, members, own_entry, result_at, written
from portico.gateway.links import link_result
from portico.gateway.params import spliced
from portico.gateway.straight import straight
from portico.gateway.table import RESOURCES, TEMPLATES, Held, OutwardRoute, RouteTable
from portico.gateway.tasks import GatewayTasks
from portico.gateway.upstream import PRIVATE_LISTS, Answered, Detach, GatewayUpstream
from portico.rpc.call import Call, Facet
from portico.rpc.questions import incapable
from portico.schema.problems import nearest
from portico.server.asking.request_state import Seal, binding
from portico.server.guard import Kind, Owned
from portico.server.registry.catalog import KINDS, Catalog
from portico.server.registry.views import CallerView
from portico.wire import jsonrpc, notices
from portico.wire.completion import CompleteParams, PromptReference
from portico.wire.errors import InvalidParams, MethodNotFound, MissingCapability, ResourceNotFound, ToolError, Unknown
from portico.wire.inputs import InputRequiredResult
from portico.wire.methods import ASKABLE, asked_by
from portico.wire.revisions import LATEST, MODERN, Revision
from portico.wire.subscriptions import Filter

if TYPE_CHECKING:
    from portico.server.protection import Protection

# How long a first list waits for upstreams of which nothing is known.
FIRST_SECONDS = 2.0
# Of lists, as classes of callers see them in each revision.
MOST_PAGES = 1000

_NOTICES = {
    "tools/list": notices.TOOLS_CHANGED,
    "prompts/list": notices.PROMPTS_CHANGED,
    "resources/list": notices.RESOURCES_CHANGED,
    "resources/templates/list": notices.RESOURCES_CHANGED,
}


class _Relays(Struct, eq=False):
    """How many listen to these resources, the relays that tell of them, and those whose upstream is not known yet."""

    users: int
    relays: list[ResourceRelay]
    unheard: set[str]
    facet: Facet | None


class Publish(Protocol):
    """Tells those who listen of a change; of those only who listen to one of these facets."""

    def __call__(self, method: str, uri: str | None, facets: frozenset[Facet | None] | None = None) -> None: ...


class Routes:
    """The upstreams of a gateway, and what is answered in their stead. `publish` is told of changes."""

    def __init__(
        self, publish: Publish, seal: Seal, owned: Callable[[Any], Owned], held: Held = lambda alias, method, entry: ""
    ) -> None:
        self._publish = publish
        self._seal = seal
        # Whose a component is that the gateway has itself.
        self._owned = owned
        self.protection: Protection | None = None
        self.table = RouteTable(held)
        # Those of the upstreams.
        self.tasks: GatewayTasks | None = None
        self._parts: dict[Any, tuple[list[Raw], Any]] = {}
        # Whole pages, each with the hints in it.
        self._pages: dict[Any, tuple[Mapping[str, Any], Raw]] = {}
        # The fingerprint of each list that was given, or is listened to, by its method and the facet.
        self._given: dict[tuple[str, Facet | None], bytes] = {}
        self._changed: set[str] = set()
        self._telling: asyncio.TimerHandle | None = None
        self._relays: dict[Any, _Relays] = {}
        self._listeners = 0

    def __bool__(self) -> bool:
        return True

    def __len__(self) -> int:
        return len(self.upstreams)

    @property
    def upstreams(self) -> dict[str, GatewayUpstream]:
        return self.table.upstreams

    def put_in_order(self, aliases: list[str]) -> None:
        """The first one in the file has a name that two want."""
        rest = [alias for alias in self.upstreams if alias not in aliases]
        ordered = [alias for alias in [*aliases, *rest] if alias in self.upstreams]
        self.table.upstreams = {alias: self.upstreams[alias] for alias in ordered}
        self.changed()

    def close(self) -> None:
        if self._telling is not None:
            self._telling.cancel()
            self._telling = None
        self._given.clear()

    def forget_facet(self, facet: Facet) -> None:
        """No client sees it any more."""
        self.table.forget()
        self._parts.clear()
        self._pages.clear()
        self._given = {key: given for key, given in self._given.items() if key[1] is not facet}

    # Changes

    def changed(self, methods: Iterable[str] = tuple(LISTS)) -> None:
        """These lists may be others now. Changes that come together are told together."""
        self.table.forget()
        self._parts.clear()
        self._pages.clear()
        for shared in self._relays.values():
            self._listen(shared)
        self._changed |= set(methods)
        if self._given and self._telling is None:
            # No client can have been given a list before there was a loop.
            self._telling = asyncio.get_running_loop().call_later(GATHER_SECONDS, self._tell)

    def _tell(self) -> None:
        """Tell those whose own list is not what they were given."""
        self._telling = None
        changed, self._changed = self._changed, set()
        news: dict[str, set[Facet | None]] = {}
        for (method, facet), before in self._given.items():
            if method in changed:
                self._given[method, facet] = now = self._fingerprint(method, facet)
                if now != before:
                    news.setdefault(_NOTICES[method], set()).add(facet)
        for notice, facets in news.items():
            self._publish(notice, None, frozenset(facets))

    def _note_given(self, method: str, facet: Facet | None) -> None:
        if (method, facet) not in self._given:
            self._given[method, facet] = self._fingerprint(method, facet)

    def _fingerprint(self, method: str, facet: Facet | None) -> bytes:
        found = sha256()
        for name, route in self.table.routes(method, facet).items():
            found.update(jsonrpc.encode([name, route.entry.digest().hex(), route.shown]))
        return found.digest()

    def updated(self, upstream: GatewayUpstream, uri: str) -> None:
        self._publish(notices.RESOURCE_UPDATED, self.table.outward_uri(upstream, uri))

    def list_for_listeners(self) -> None:
        """Ask those for their lists who have not given any yet, if there are clients that wait to be told."""
        if self._listeners:
            for upstream in self.upstreams.values():
                upstream.begin_listing_again()

    def hear(self, wanted: Filter, facet: Facet | None) -> list[Any]:
        self._listeners += 1
        for upstream in self.upstreams.values():
            upstream.begin_listing()
        told = {
            notices.TOOLS_CHANGED: wanted.tools_list_changed,
            notices.PROMPTS_CHANGED: wanted.prompts_list_changed,
            notices.RESOURCES_CHANGED: wanted.resources_list_changed,
        }
        for method, notice in _NOTICES.items():
            if told[notice]:
                # Changes are told from now on, also those of a list that no client has asked for.
                self._note_given(method, facet)
        uris = tuple(sorted(set(wanted.resource_subscriptions or ())))
        if not uris:
            return []
        key = (facet, uris)
        if key not in self._relays:
            self._relays[key] = _Relays(0, [], set(uris), facet)
            self._listen(self._relays[key])
        self._relays[key].users += 1
        return [key]

    def _listen(self, shared: _Relays) -> None:
        """Hear of those whose upstream is known, and has not been asked yet."""
        by_upstream: dict[str, list[str]] = {}
        for uri in sorted(shared.unheard):
            for upstream, inward in self.table.owners(uri, shared.facet):
                by_upstream.setdefault(upstream.alias, []).append(inward)
                shared.unheard.remove(uri)
                break
        for alias, inside in by_upstream.items():
            upstream = self.upstreams[alias]
            shared.relays.append(upstream.changes.follow(inside))

    def unhear(self, keys: list[Any]) -> None:
        self._listeners -= 1
        for key in keys:
            shared = self._relays[key]
            shared.users -= 1
            if not shared.users:
                del self._relays[key]
                for relay in shared.relays:
                    relay.end()

    def may_have(self, uri: str, facet: Facet | None, view: CallerView | None = None) -> bool:
        """Whether an upstream has a resource, or may turn out to when it is listed."""
        for upstream, inward in self.table.owners(uri, facet):
            if view is None or view.sees("resource", Owned(upstream.alias, inward)):
                return True
        return view is None and not all(one.listed.is_set() for one in self.upstreams.values())

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

    def canonical(self, kind: Kind, name: str) -> str | None:
        """Upstreams are routed to by the names that they list, so there is one name for each."""
        return name if self.owner_of(kind, name) is not None else None

    def hides(self, call: Call, kind: Kind, name: str) -> bool:
        """What an upstream hides from a caller, it says itself when it is asked."""
        return False

    # Lists

    async def settled(self, seconds: float | None = None, by: Call | None = None) -> None:
        """Wait until all upstreams are listed, or a little: what comes later comes as a change. Those that want to know
        who asks are asked on behalf of a call."""
        waiting = [one for one in self.upstreams.values() if not one.listed.is_set() and not one.breaker.is_open]
        if not waiting:
            return
        for upstream in waiting:
            upstream.begin_listing(by)
        tasks = [asyncio.ensure_future(one.listed_or_failed()) for one in waiting]
        try:
            await asyncio.wait(
                tasks, timeout=max(one.left_of(FIRST_SECONDS if seconds is None else seconds) for one in waiting)
            )
        finally:
            for task in tasks:
                task.cancel()

    def listed(self, catalog: Catalog[Any]) -> Sequence[Any] | None:
        return None

    def page(self, catalog: Catalog[Any], call: Call, cursor: str | None, view: CallerView | None = None) -> Any:
        """A page of our own list and those of the upstreams, or a coroutine that comes to it."""
        for upstream in self.upstreams.values():
            upstream.begin_listing(call)
        if all(one.listed.is_set() or one.breaker.is_open for one in self.upstreams.values()):
            return self._page(catalog, call, cursor, view)
        return self._page_when_settled(catalog, call, cursor, view)

    async def _page_when_settled(
        self, catalog: Catalog[Any], call: Call, cursor: str | None, view: CallerView | None
    ) -> Raw:
        await self.settled()
        return self._page(catalog, call, cursor, view)

    def _page(self, catalog: Catalog[Any], call: Call, cursor: str | None, view: CallerView | None) -> Raw:
        method, facet, revision = catalog.method, call.facet, call.revision or LATEST
        self._note_given(method, facet)
        start = 0 if cursor is None else catalog.start(cursor, len(catalog) + len(self.table.routes(method, facet)))
        hidden = self._hidden(method, call.principal)
        seen = None if view is None else view.sight.view
        key = (method, facet, revision, start, id(catalog.definitions), seen, hidden)
        found = self._parts.get(key)
        if found is None:
            if len(self._parts) >= MOST_PAGES:
                self._parts.clear()
                self._pages.clear()
            found = self._parts[key] = self._part(catalog, facet, view, hidden, revision, start)
        hints = self._hints(catalog, view)
        page = self._pages.get(key)
        if page is None or page[0] != hints:
            page = self._pages[key] = (hints, list_page(method, *found, hints, revision))
        return page[1]

    def _hints(self, catalog: Catalog[Any], view: CallerView | None) -> Mapping[str, Any]:
        """How long a list may be kept by those who are given it, and whether they may share it: as all of its parts
        allow. What depends on the caller, or on an approval, is shared with no other."""
        parts = [one for one in (upstream.hints(catalog.method) for upstream in self.upstreams.values()) if one]
        if not parts:
            return catalog.hints
        seconds, public = min(seconds for seconds, _ in parts), all(public for _, public in parts)
        if len(catalog):
            seconds = min(seconds, catalog.hints["ttl_ms"] / 1000)
            public = public and catalog.hints["cache_scope"] == "public"
        shared = public and view is None and self.protection is None and not self.table.held
        return {"ttl_ms": int(seconds) * 1000, "cache_scope": "public" if shared else "private"}

    def _hidden(self, method: str, principal: Any) -> frozenset[str]:
        """The upstreams whose list was given to another, and is not for this principal."""
        if method not in PRIVATE_LISTS:
            return frozenset()
        return frozenset(alias for alias, one in self.upstreams.items() if not one.lists_for(method, principal))

    def _part(
        self,
        catalog: Catalog[Any],
        facet: Facet | None,
        view: CallerView | None,
        hidden: frozenset[str],
        revision: Revision,
        start: int,
    ) -> tuple[list[Raw], Any]:
        """The entries of a page, and the cursor of the next one."""
        method = catalog.method
        own: list[tuple[ListedEntry, dict[str, Any]]] = [
            (own_entry(method, one), {}) for one in self._own(catalog, facet, view)
        ]
        entries = [
            *own,
            *(
                (route.entry, route.shown_at(method, revision))
                for _, route in self._seen(catalog, facet, view)
                if route.upstream.alias not in hidden
            ),
        ]
        end = start + catalog.page_size
        part = [written(method, entry, shown, revision) for entry, shown in entries[start:end]]
        return part, catalog.cursor(end) if end < len(entries) else UNSET

    def _own(self, catalog: Catalog[Any], facet: Facet | None, view: CallerView | None) -> list[Any]:
        """What the gateway has itself, as far as the caller may see it."""
        kind = KINDS[catalog.method]
        found = [(one.definition, self._owned(one)) for one in catalog]
        return [
            definition
            for definition, owned in found
            if (facet is None or facet.shows(*owned)) and (view is None or view.sees(kind, owned))
        ]

    def _seen(
        self, catalog: Catalog[Any], facet: Facet | None, view: CallerView | None
    ) -> Iterator[tuple[str, OutwardRoute]]:
        """What the upstreams add to a list, as far as the caller may see it."""
        kind = KINDS[catalog.method]
        for name, route in self.table.routes(catalog.method, facet).items():
            if name in catalog:
                continue
            if view is not None:
                owned = view.own(kind, name) or Owned(route.upstream.alias, route.inward)
                if not view.sees(kind, owned):
                    continue
            yield name, route

    # Answering

    def call(self, call: Call, kind: str, name: str, catalog: Catalog[Any]) -> Coroutine[Any, Any, Any]:
        """What comes to the answer of the upstream whose tool or prompt it is."""
        if self.protection is None:
            route = self.table.routes(f"{kind}s/list", call.facet).get(name)
            if route is not None and not self._may_be_task(call, kind, route):
                return self._delegate(route.upstream, call, "name", route.inward)
        return self._call_if_admitted(call, kind, name, catalog)

    def _may_be_task(self, call: Call, kind: str, route: OutwardRoute) -> bool:
        return kind == "tool" and self.tasks is not None and self.tasks.concerns(call, route)

    async def _call_if_admitted(self, call: Call, kind: str, name: str, catalog: Catalog[Any]) -> Any:
        """The same where a rule may forbid it, it may become a task, or nothing of that name is known yet."""
        method = f"{kind}s/list"
        route = self.table.routes(method, call.facet).get(name)
        if route is None:
            await self.settled(by=call)
            asked = await self._ask_to_connect(call, kind, name)
            if asked is not None:
                return asked
            route = self.table.routes(method, call.facet).get(name)
        if route is None:
            await self._refuse_held(call, kind, name)
            await self._refuse_absent(call, kind, name)
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
        held = self.table.held.get((f"{kind}s/list", name))
        if held is None or not (call.facet is None or call.facet.shows(held.alias, held.inward)):
            return
        if await self._admits(call, kind, Owned(held.alias, held.inward)):
            raise ToolError(f"{name} is held back: {held.why}.", kind="PermissionDenied")

    async def _refuse_absent(self, call: Call, kind: str, name: str) -> None:
        """Say whose a name is, and when that one is tried again, if its upstream is away."""
        async for upstream in self._unlisted(call, kind, name):
            if upstream.breaker.since is not None:
                raise upstream.breaker.refusal(upstream.alias)

    async def _ask_to_connect(self, call: Call, kind: str, name: str) -> Any:
        """The question for the account of the caller, without which the upstream of this name lists nothing; None if
        there is none to be asked."""
        async for upstream in self._unlisted(call, kind, name):
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
            if upstream.listed.is_set() or not before or not name.startswith(before):
                continue
            inward = name.removeprefix(before)
            shown = upstream.settings.shows(inward) and (call.facet is None or call.facet.shows(alias, inward))
            if shown and await self._admits(call, kind, Owned(alias, inward)):
                yield upstream

    async def unknown(self, call: Call, kind: str, name: str, catalog: Catalog[Any]) -> Unknown:
        """The refusal of a name that is not there, with those that may have been meant, as far as the caller sees."""
        await self.settled(by=call)
        view = None if self.protection is None else self.protection.view(call)
        own = [one.name for one in self._own(catalog, call.facet, view)]
        names = [*own, *(one for one, _ in self._seen(catalog, call.facet, view))]
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
        shown = upstream.settings.shows(uri) and (call.facet is None or call.facet.shows(upstream.alias, uri))
        view = None if self.protection is None else self.protection.view(call)
        return shown and (view is None or view.sees("resource", Owned(upstream.alias, uri)))

    async def may_read(self, call: Call, upstream: GatewayUpstream, uri: str) -> bool:
        """Whether a caller may have it."""
        return self.may_see(call, upstream, uri) and await self._admits(call, "resource", Owned(upstream.alias, uri))

    async def read(self, call: Call, uri: str) -> Any:
        await self.settled(by=call)
        for upstream, inward in self.table.owners(uri, call.facet):
            if not await self._admits(call, "resource", Owned(upstream.alias, inward)):
                continue
            try:
                return await self._delegate(upstream, call, "uri", inward)
            except (ResourceNotFound, MethodNotFound):
                continue
        raise ResourceNotFound(uri)

    async def complete(self, call: Call, params: CompleteParams) -> Any:
        await self.settled(by=call)
        ref, table, facet = params.ref, self.table, call.facet
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
        return asked

    def outward_result(self, upstream: GatewayUpstream, call: Call, answered: Answered) -> Raw:
        """An upstream's result as its client is to see it."""
        try:
            said = result_at(call.method, answered.result, answered.revision, call.revision or MODERN)
            if self.table.crosses and (b'"uri"' in (data := bytes(said)) or b"esourceUri" in data):
                return link_result(call.method, said, partial(self.table.outward_uri, upstream))
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
