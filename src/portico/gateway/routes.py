"""All that the upstreams have, under its outward names: one look-up says whose a name is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from hashlib import sha256
from typing import Any, Protocol

import msgspec
from msgspec import UNSET, Raw, Struct
from msgspec.structs import replace

from portico.gateway.entries import LISTS, ListedEntry, list_page, members, own_entry, result_at, written
from portico.gateway.links import link_result
from portico.gateway.params import spliced
from portico.gateway.table import RESOURCES, TEMPLATES, Held, RouteTable
from portico.gateway.upstream import GATHER_SECONDS, GatewayUpstream
from portico.rpc.call import Call, Face
from portico.rpc.questions import asked_by
from portico.rpc.relay import ChangeRelay
from portico.schema.problems import nearest
from portico.server.asking.request_state import Seal, binding
from portico.server.registry.catalog import Catalog
from portico.wire import jsonrpc, notices
from portico.wire.completion import CompleteParams, PromptReference
from portico.wire.errors import InvalidParams, MethodNotFound, ResourceNotFound, ToolError, Unknown
from portico.wire.methods import ASKABLE
from portico.wire.revisions import LATEST, MODERN, Revision
from portico.wire.subscriptions import Filter

# How long a first list waits for upstreams of which nothing is known.
FIRST_SECONDS = 2.0

_NOTICES = {
    "tools/list": notices.TOOLS_CHANGED,
    "prompts/list": notices.PROMPTS_CHANGED,
    "resources/list": notices.RESOURCES_CHANGED,
    "resources/templates/list": notices.RESOURCES_CHANGED,
}


class _Relays(Struct, eq=False):
    """How many listen to these resources, the relays that tell of them, and those whose upstream is not known yet."""

    users: int
    relays: list[ChangeRelay]
    unheard: set[str]
    face: Face | None


class Publish(Protocol):
    """Tells those who listen of a change; of those only who listen to one of these faces."""

    def __call__(self, method: str, uri: str | None, faces: frozenset[Face | None] | None = None) -> None: ...


class Routes:
    """The upstreams of a gateway, and what is answered in their stead. `publish` is told of changes."""

    def __init__(self, publish: Publish, seal: Seal, own: str, held: Held = lambda alias, method, entry: "") -> None:
        self._publish = publish
        self._seal = seal
        # Whose the entries are that the gateway has itself.
        self._own = own
        self.table = RouteTable(held)
        self._parts: dict[Any, tuple[list[Raw], Any]] = {}
        # Whole pages, each with the hints in it.
        self._pages: dict[Any, tuple[Mapping[str, Any], Raw]] = {}
        # What those who were given a list have: its fingerprint, by the method and the face.
        self._given: dict[tuple[str, Face | None], bytes] = {}
        self._changed: set[str] = set()
        self._telling: asyncio.TimerHandle | None = None
        self._relays: dict[Any, _Relays] = {}

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

    def forget_face(self, face: Face) -> None:
        """No client sees it any more."""
        self.table.forget()
        self._parts.clear()
        self._pages.clear()
        self._given = {key: given for key, given in self._given.items() if key[1] is not face}

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
        news: dict[str, set[Face | None]] = {}
        for (method, face), before in self._given.items():
            if method in changed:
                self._given[method, face] = now = self._fingerprint(method, face)
                if now != before:
                    news.setdefault(_NOTICES[method], set()).add(face)
        for notice, faces in news.items():
            self._publish(notice, None, frozenset(faces))

    def _fingerprint(self, method: str, face: Face | None) -> bytes:
        found = sha256()
        for name, route in self.table.routes(method, face).items():
            found.update(jsonrpc.encode([name, route.entry.digest().hex(), route.shown]))
        return found.digest()

    def updated(self, upstream: GatewayUpstream, uri: str) -> None:
        self._publish(notices.RESOURCE_UPDATED, self.table.outward_uri(upstream, uri))

    def hear(self, wanted: Filter, face: Face | None) -> list[Any]:
        for upstream in self.upstreams.values():
            upstream.begin_listing()
        uris = tuple(sorted(set(wanted.resource_subscriptions or ())))
        if not uris:
            return []
        key = (face, uris)
        if key not in self._relays:
            self._relays[key] = _Relays(0, [], set(uris), face)
            self._listen(self._relays[key])
        self._relays[key].users += 1
        return [key]

    def _listen(self, shared: _Relays) -> None:
        """Hear of those whose upstream is known, and has not been asked yet."""
        by_upstream: dict[str, list[str]] = {}
        for uri in sorted(shared.unheard):
            for upstream, inward in self.table.owners(uri, shared.face):
                by_upstream.setdefault(upstream.alias, []).append(inward)
                shared.unheard.remove(uri)
                break
        for alias, inside in by_upstream.items():
            upstream = self.upstreams[alias]
            shared.relays.append(upstream.relay(inside, partial(self.updated, upstream)))

    def unhear(self, keys: list[Any]) -> None:
        for key in keys:
            shared = self._relays[key]
            shared.users -= 1
            if not shared.users:
                del self._relays[key]
                for relay in shared.relays:
                    relay.end()

    def may_have(self, uri: str, face: Face | None) -> bool:
        """Whether an upstream has a resource, or may turn out to when it is listed."""
        owned = any(True for _ in self.table.owners(uri, face))
        return owned or not all(one.listed.is_set() for one in self.upstreams.values())

    # Lists

    async def settled(self, seconds: float = FIRST_SECONDS) -> None:
        """Wait until all upstreams are listed, or a little: what comes later comes as a change."""
        waiting = [one for one in self.upstreams.values() if not one.listed.is_set() and not one.breaker.is_open]
        if not waiting:
            return
        for upstream in waiting:
            upstream.begin_listing()
        tasks = [asyncio.ensure_future(one.listed_or_failed()) for one in waiting]
        try:
            await asyncio.wait(tasks, timeout=max(one.left_of(seconds) for one in waiting))
        finally:
            for task in tasks:
                task.cancel()

    def listed(self, catalog: Catalog[Any]) -> Sequence[Any] | None:
        return None

    def page(self, catalog: Catalog[Any], call: Call, cursor: str | None) -> Any:
        """A page of our own list and those of the upstreams, or a coroutine that comes to it."""
        for upstream in self.upstreams.values():
            upstream.begin_listing()
        if all(one.listed.is_set() or one.breaker.is_open for one in self.upstreams.values()):
            return self._page(catalog, call, cursor)
        return self._page_when_settled(catalog, call, cursor)

    async def _page_when_settled(self, catalog: Catalog[Any], call: Call, cursor: str | None) -> Raw:
        await self.settled()
        return self._page(catalog, call, cursor)

    def _page(self, catalog: Catalog[Any], call: Call, cursor: str | None) -> Raw:
        method, face, revision = catalog.method, call.face, call.revision or LATEST
        if (method, face) not in self._given:
            self._given[method, face] = self._fingerprint(method, face)
        start = 0 if cursor is None else catalog.start(cursor, len(catalog) + len(self.table.routes(method, face)))
        definitions = catalog.definitions
        key = (method, face, revision, start, id(definitions))
        found = self._parts.get(key)
        if found is None:
            found = self._parts[key] = self._part(catalog, definitions, face, revision, start)
        hints = catalog.hints
        page = self._pages.get(key)
        if page is None or page[0] != hints:
            page = self._pages[key] = (hints, list_page(method, *found, hints, revision))
        return page[1]

    def _part(
        self, catalog: Catalog[Any], definitions: Sequence[Any], face: Face | None, revision: Revision, start: int
    ) -> tuple[list[Raw], Any]:
        """The entries of a page, and the cursor of the next one."""
        method = catalog.method
        own: list[tuple[ListedEntry, dict[str, Any]]] = [
            (own_entry(method, one), {})
            for one in definitions
            if face is None or face.shows(self._own, catalog.name_of(one))
        ]
        routes = self.table.routes(method, face).items()
        entries = [*own, *((route.entry, route.shown) for name, route in routes if name not in catalog)]
        end = start + catalog.page_size
        part = [written(method, entry, shown, revision) for entry, shown in entries[start:end]]
        return part, catalog.cursor(end) if end < len(entries) else UNSET

    # Answering

    async def call(self, call: Call, kind: str, name: str, catalog: Catalog[Any]) -> Any:
        """The answer of the upstream whose tool or prompt it is."""
        method = f"{kind}s/list"
        route = self.table.routes(method, call.face).get(name)
        if route is None:
            await self.settled()
            route = self.table.routes(method, call.face).get(name)
        if route is None:
            held = self.table.held.get((method, name))
            if held is not None and (call.face is None or call.face.shows(held.alias, held.inward)):
                raise ToolError(f"{name} is held back: {held.why}.", kind="PermissionDenied")
            own = [one.definition.name for one in catalog]
            shown = [one for one in own if call.face is None or call.face.shows(self._own, one)]
            names = [*shown, *self.table.routes(method, call.face)]
            raise Unknown(kind, name, nearest(name, names, most=3))
        return await self._delegate(route.upstream, call, "name", route.inward)

    async def read(self, call: Call, uri: str) -> Any:
        await self.settled()
        for upstream, inward in self.table.owners(uri, call.face):
            try:
                return await self._delegate(upstream, call, "uri", inward)
            except (ResourceNotFound, MethodNotFound):
                continue
        raise ResourceNotFound(uri)

    async def complete(self, call: Call, params: CompleteParams) -> Any:
        await self.settled()
        ref, table, face = params.ref, self.table, call.face
        if isinstance(ref, PromptReference):
            route = table.routes("prompts/list", face).get(ref.name)
            inner = {"type": "ref/prompt", "name": route.inward if route else ""}
        else:
            route = table.routes(TEMPLATES, face).get(ref.uri) or table.routes(RESOURCES, face).get(ref.uri)
            inner = {"type": "ref/resource", "uri": route.inward if route else ""}
        if route is None:
            raise InvalidParams("Nothing to complete: there is no such prompt or template")
        return await self._delegate(route.upstream, call, "ref", inner)

    async def _delegate(self, upstream: GatewayUpstream, call: Call, member: str, inward: Any) -> Any:
        """The same call with the inward name, and its answer under ours."""
        # A digest, which most calls do without.
        bound = partial(self._binding, call)
        params = spliced(call, inward) or self._inward(call, {member: inward}, bound)
        answered = await upstream.call(replace(call, params=params, read=None, face=None), bound)
        asked = asked_by(call.method, answered.result)
        if asked is None:
            try:
                said = result_at(call.method, answered.result, answered.revision, call.revision or MODERN)
                if self.table.crosses and (b'"uri"' in (data := bytes(said)) or b"esourceUri" in data):
                    return link_result(call.method, said, partial(self.table.outward_uri, upstream))
                return said
            except (msgspec.DecodeError, RecursionError):
                raise ToolError(f"{upstream.alias} gave a result that cannot be read.") from None
        if type(answered.result) is Raw:
            answered_state = None if asked.request_state is UNSET else asked.request_state
            steps = {"state": Raw(jsonrpc.encode(answered_state))}
            asked.request_state = self._seal.close(bound(), {}, steps, list(asked.input_requests or {}))
        return asked

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
