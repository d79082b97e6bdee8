"""All that the upstreams have, under its outward names: one look-up says whose a name is."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET, Raw, Struct
from msgspec.structs import replace

from portico.gateway.changes import ResourceRelay
from portico.gateway.entries import LISTS, ListedEntry, list_page, members, own_entry, result_at, task_support, written
from portico.gateway.names import inward_uri, outward_uri
from portico.gateway.params import spliced
from portico.gateway.tasks import GatewayTasks
from portico.gateway.upstream import Answered, Detach, GatewayUpstream
from portico.rpc.call import Call
from portico.rpc.questions import asked_by
from portico.schema.problems import nearest
from portico.server.asking.request_state import Seal, binding
from portico.server.guard import Kind, Owned
from portico.server.registry.catalog import Catalog
from portico.server.registry.views import KINDS, CallerView
from portico.wire import jsonrpc, notices
from portico.wire.completion import CompleteParams, PromptReference
from portico.wire.errors import InvalidParams, MethodNotFound, ResourceNotFound, ToolError, Unknown, UsageError
from portico.wire.methods import ASKABLE
from portico.wire.mirrors import KEYWORD, Mirror, mirrors
from portico.wire.revisions import LATEST, MODERN, V2025_11_25, Revision
from portico.wire.subscriptions import Filter
from portico.wire.uris import Template

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


class _Relays(Struct, eq=False):
    """How many listen to these resources, the relays that tell of them, and those whose upstream is not known yet."""

    users: int
    relays: list[ResourceRelay]
    unheard: set[str]


class Routes:
    """The upstreams of a gateway, in the order of its file. `publish` is told of changes."""

    def __init__(self, publish: Callable[[str, str | None], None], seal: Seal) -> None:
        self._publish = publish
        self._seal = seal
        self.protection: Protection | None = None
        self.upstreams: dict[str, GatewayUpstream] = {}
        # Those of the upstreams.
        self.tasks: GatewayTasks | None = None
        # What was hidden because another has its name.
        self.clashes: list[str] = []
        # The arguments of each tool that stand in HTTP headers too.
        self.mirrored: dict[str, Sequence[Mirror]] = {}
        self._routes: dict[str, dict[str, OutwardRoute]] | None = None
        self._pages: dict[Any, Raw] = {}
        # The lists that a client has been given.
        self._shown: set[str] = set()
        self._relays: dict[tuple[str, ...], _Relays] = {}

    def __bool__(self) -> bool:
        return True

    def __len__(self) -> int:
        return len(self.upstreams)

    def put_in_order(self, aliases: list[str]) -> None:
        """The first one in the file has a name that two want."""
        rest = [alias for alias in self.upstreams if alias not in aliases]
        self.upstreams = {alias: self.upstreams[alias] for alias in [*aliases, *rest] if alias in self.upstreams}
        self.changed()

    # Changes

    def changed(self, methods: Iterable[str] = tuple(LISTS)) -> None:
        """These lists are others now. Those that no client was given are no news."""
        self._routes = None
        self._pages.clear()
        self._mirror()
        for shared in self._relays.values():
            self._listen(shared)
        for notice in {_NOTICES[method] for method in methods if method in self._shown}:
            self._publish(notice, None)

    def _mirror(self) -> None:
        self.mirrored.clear()
        for name, route in self.routes("tools/list").items():
            schema = bytes(route.entry.members["inputSchema"])
            if KEYWORD.encode() in schema:
                with contextlib.suppress(ValueError):
                    self.mirrored[name] = mirrors(msgspec.json.decode(schema))

    def updated(self, upstream: GatewayUpstream, uri: str) -> None:
        self._publish(notices.RESOURCE_UPDATED, self.outward_uri(upstream, uri))

    def hear(self, wanted: Filter) -> list[tuple[str, ...]]:
        for upstream in self.upstreams.values():
            upstream.begin_listing()
        uris = tuple(sorted(set(wanted.resource_subscriptions or ())))
        if not uris:
            return []
        if uris not in self._relays:
            self._relays[uris] = _Relays(0, [], set(uris))
            self._listen(self._relays[uris])
        self._relays[uris].users += 1
        return [uris]

    def _listen(self, shared: _Relays) -> None:
        """Hear of those whose upstream is known, and has not been asked yet."""
        by_upstream: dict[str, list[str]] = {}
        for uri in sorted(shared.unheard):
            for upstream, inward in self._owners(uri):
                by_upstream.setdefault(upstream.alias, []).append(inward)
                shared.unheard.remove(uri)
                break
        for alias, inside in by_upstream.items():
            upstream = self.upstreams[alias]
            shared.relays.append(upstream.changes.follow(inside))

    def unhear(self, keys: list[tuple[str, ...]]) -> None:
        for key in keys:
            shared = self._relays[key]
            shared.users -= 1
            if not shared.users:
                del self._relays[key]
                for relay in shared.relays:
                    relay.end()

    def may_have(self, uri: str, view: CallerView | None = None) -> bool:
        """Whether an upstream has a resource, or may turn out to when it is listed."""
        for upstream, inward in self._owners(uri):
            if view is None or view.sees("resource", Owned(upstream.alias, inward)):
                return True
        return view is None and not all(one.listed.is_set() for one in self.upstreams.values())

    # Whose something is

    def owner_of(self, kind: Kind, name: str) -> Owned | None:
        if kind == "resource":
            return next((Owned(upstream.alias, inward) for upstream, inward in self._owners(name)), None)
        method = "resources/templates/list" if kind == "template" else f"{kind}s/list"
        route = self.routes(method).get(name)
        if route is None and kind == "template":
            route = self.routes("resources/list").get(name)
        return None if route is None else Owned(route.upstream.alias, route.inward)

    def canonical(self, kind: Kind, name: str) -> str | None:
        """Upstreams are routed to by the names that they list, so there is one name for each."""
        return name if self.owner_of(kind, name) is not None else None

    # Names

    def routes(self, method: str) -> dict[str, OutwardRoute]:
        if self._routes is None:
            self.clashes = []
            self._routes = {method: self._gather(method) for method in LISTS}
        return self._routes[method]

    def _gather(self, method: str) -> dict[str, OutwardRoute]:
        by_name = LISTS[method].key == "name"
        found: dict[str, OutwardRoute] = {}
        for upstream in self.upstreams.values():
            settings = upstream.settings
            for entry in upstream.entries.get(method, ()):
                name = entry.key
                if not settings.shows(name):
                    continue
                outward = settings.outward(name) if by_name else name
                if outward in found and not by_name:
                    outward = outward_uri(upstream.alias, name)
                if outward in found:
                    other = found[outward].upstream.alias
                    self.clashes.append(f"{outward}: {other} has it, so that of {upstream.alias} ({name}) is hidden")
                    continue
                shown: dict[str, Any] = {} if outward == name else {LISTS[method].key: outward}
                if name in settings.descriptions and method == "tools/list":
                    shown["description"] = settings.descriptions[name]
                found[outward] = OutwardRoute(upstream, name, entry, shown, task_support(entry))
        return found

    def outward_uri(self, upstream: GatewayUpstream, uri: str) -> str:
        """The address under which a resource of an upstream is known here."""
        route = self.routes("resources/list").get(uri)
        if route is not None and route.upstream is not upstream:
            return outward_uri(upstream.alias, uri)
        return uri

    def _owners(self, uri: str) -> Iterator[tuple[GatewayUpstream, str]]:
        """Those who may have a resource, the most likely first, each with its own address of it."""
        route = self.routes("resources/list").get(uri)
        if route is not None:
            yield route.upstream, route.inward
            return
        for template, route in self.routes("resources/templates/list").items():
            if _matches(template, uri):
                yield route.upstream, uri if template == route.inward else inward_uri(route.upstream.alias, uri) or uri
        for upstream in self.upstreams.values():
            inward = inward_uri(upstream.alias, uri)
            if inward is not None and upstream.settings.shows(inward):
                yield upstream, inward

    # Lists

    async def settled(self, seconds: float | None = None) -> None:
        """Wait until all upstreams are listed, or a little: what comes later comes as a change."""
        waiting = [one for one in self.upstreams.values() if not one.listed.is_set() and not one.breaker.is_open]
        if not waiting:
            return
        for upstream in waiting:
            upstream.begin_listing()
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
            upstream.begin_listing()
        if all(one.listed.is_set() or one.breaker.is_open for one in self.upstreams.values()):
            return self._page(catalog, call.revision or LATEST, cursor, view)
        return self._page_when_settled(catalog, call, cursor, view)

    async def _page_when_settled(
        self, catalog: Catalog[Any], call: Call, cursor: str | None, view: CallerView | None
    ) -> Raw:
        await self.settled()
        return self._page(catalog, call.revision or LATEST, cursor, view)

    def _page(self, catalog: Catalog[Any], revision: Revision, cursor: str | None, view: CallerView | None) -> Raw:
        method = catalog.method
        self._shown.add(method)
        routes = self.routes(method)
        start = 0 if cursor is None else catalog.start(cursor, len(catalog) + len(routes))
        definitions = catalog.definitions
        key = (method, revision, start, id(definitions), None if view is None else view.sight.view)
        page = self._pages.get(key)
        if page is None:
            if len(self._pages) >= MOST_PAGES:
                self._pages.clear()
            seen = definitions if view is None else view.definitions(catalog)
            own: list[tuple[ListedEntry, dict[str, Any]]] = [(own_entry(method, one), {}) for one in seen]
            others = [(route.entry, route.shown_at(method, revision)) for _, route in self._seen(catalog, view)]
            entries = [*own, *others]
            end = start + catalog.page_size
            part = [written(method, entry, shown, revision) for entry, shown in entries[start:end]]
            after = catalog.cursor(end) if end < len(entries) else UNSET
            page = self._pages[key] = list_page(method, part, after, catalog.hints, revision)
        return page

    def _seen(self, catalog: Catalog[Any], view: CallerView | None) -> Iterator[tuple[str, OutwardRoute]]:
        """What the upstreams add to a list, as far as the caller may see it."""
        kind = KINDS[catalog.method]
        for name, route in self.routes(catalog.method).items():
            if name in catalog:
                continue
            if view is not None:
                owned = view.own(kind, name) or Owned(route.upstream.alias, route.inward)
                if not view.sees(kind, owned):
                    continue
            yield name, route

    # Answering

    async def call(self, call: Call, kind: str, name: str, catalog: Catalog[Any]) -> Any:
        """The answer of the upstream whose tool or prompt it is."""
        method = f"{kind}s/list"
        route = self.routes(method).get(name)
        if route is None:
            await self.settled()
            route = self.routes(method).get(name)
        if route is None or not await self._admits(call, kind, Owned(route.upstream.alias, route.inward)):
            raise await self.unknown(call, kind, name, catalog)
        if kind == "tool" and self.tasks is not None and self.tasks.concerns(call, route):
            said = await self.tasks.call(call, route, partial(self._send, route.upstream, "name", route.inward))
            return self._outward(route.upstream, call, said) if isinstance(said, Answered) else said
        return await self._delegate(route.upstream, call, "name", route.inward)

    async def unknown(self, call: Call, kind: str, name: str, catalog: Catalog[Any]) -> Unknown:
        """The refusal of a name that is not there, with those that may have been meant, as far as the caller sees."""
        await self.settled()
        view = None if self.protection is None else self.protection.view(call)
        own = catalog.definitions if view is None else view.definitions(catalog)
        names = [one.name for one in own] + [one for one, _ in self._seen(catalog, view)]
        return Unknown(kind, name, nearest(name, names, most=3))

    def nothing_to_complete(self, name: str) -> InvalidParams:
        return InvalidParams("Nothing to complete: there is no such prompt or template")

    async def _admits(self, call: Call, kind: Any, owned: Owned) -> bool:
        if self.protection is None:
            return True
        given = getattr(call.typed(), "arguments", b"")
        return await self.protection.admit(
            call, kind, owned, given if type(given) is Raw else jsonrpc.encode(given or {})
        )

    async def read(self, call: Call, uri: str) -> Any:
        await self.settled()
        for upstream, inward in self._owners(uri):
            if not await self._admits(call, "resource", Owned(upstream.alias, inward)):
                continue
            try:
                return await self._delegate(upstream, call, "uri", inward)
            except (ResourceNotFound, MethodNotFound):
                continue
        raise ResourceNotFound(uri)

    async def complete(self, call: Call, params: CompleteParams) -> Any:
        await self.settled()
        ref = params.ref
        if isinstance(ref, PromptReference):
            route = self.routes("prompts/list").get(ref.name)
            inner = {"type": "ref/prompt", "name": route.inward if route else ""}
        else:
            route = self.routes("resources/templates/list").get(ref.uri) or self.routes("resources/list").get(ref.uri)
            inner = {"type": "ref/resource", "uri": route.inward if route else ""}
        kind = "prompt" if isinstance(ref, PromptReference) else "template"
        if route is None or not await self._admits(call, kind, Owned(route.upstream.alias, route.inward)):
            raise self.nothing_to_complete("")
        return await self._delegate(route.upstream, call, "ref", inner)

    async def _delegate(self, upstream: GatewayUpstream, call: Call, member: str, inward: Any) -> Any:
        """The same call with the inward name, and its answer under ours."""
        return self._outward(upstream, call, await self._send(upstream, member, inward, call))

    async def _send(
        self, upstream: GatewayUpstream, member: str, inward: Any, call: Call, detach: Detach | None = None
    ) -> Answered:
        # A digest, which most calls do without.
        bound = partial(self._binding, call)
        params = spliced(call, inward) or self._inward(call, {member: inward}, bound)
        return await upstream.call(replace(call, params=params, read=None), bound, detach)

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
            return result_at(call.method, answered.result, answered.revision, call.revision or MODERN)
        except (msgspec.DecodeError, RecursionError):
            raise ToolError(f"{upstream.alias} gave a result that cannot be read.") from None

    def _inward(self, call: Call, changed: dict[str, Any], bound: Callable[[], bytes]) -> Raw:
        """The params with other members in place of their own, and the state that the upstream gave."""
        params: dict[str, Any] = {**members.decode(call.params), **changed}
        if "requestState" in params and call.method in ASKABLE:
            state = self._opened(params["requestState"], bound())
            if state == b"null":
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
