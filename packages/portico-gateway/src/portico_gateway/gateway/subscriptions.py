"""The clients that want to be told: of lists that are others than those they were given, and of resources."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from hashlib import sha256
from typing import Any, Protocol

from msgspec import Struct

from portico.protocol import jsonrpc, notifications
from portico.protocol.subscriptions import Filter
from portico.rpc.call import Facet
from portico_gateway.gateway.change_listener import GATHER_SECONDS, ResourceRelay
from portico_gateway.gateway.routing_table import RouteTable

_NOTICES = {
    "tools/list": notifications.TOOLS_CHANGED,
    "prompts/list": notifications.PROMPTS_CHANGED,
    "resources/list": notifications.RESOURCES_CHANGED,
    "resources/templates/list": notifications.RESOURCES_CHANGED,
}


class Publish(Protocol):
    """Tells those who listen of a change; of those only who listen to one of these facets."""

    def __call__(self, method: str, uri: str | None, facets: frozenset[Facet | None] | None = None) -> None: ...


class _Relays(Struct, eq=False):
    """How many listen to these resources, the relays that tell of them, and those whose upstream is not known yet."""

    users: int
    relays: list[ResourceRelay]
    unheard: set[str]
    facet: Facet | None


class Listeners:
    """`table` has all that is known. Changes that come together are told together."""

    def __init__(self, publish: Publish, table: RouteTable) -> None:
        self._publish = publish
        self._table = table
        # The fingerprint of each list that was given, or is listened to, by its method and the facet.
        self._given: dict[tuple[str, Facet | None], bytes] = {}
        self._changed: set[str] = set()
        self._telling: asyncio.TimerHandle | None = None
        self._relays: dict[Any, _Relays] = {}
        self._count = 0

    def __bool__(self) -> bool:
        return bool(self._count)

    def close(self) -> None:
        if self._telling is not None:
            self._telling.cancel()
            self._telling = None
        self._given.clear()

    def forget_facet(self, facet: Facet) -> None:
        self._given = {key: given for key, given in self._given.items() if key[1] is not facet}

    # Lists

    def note_given(self, method: str, facet: Facet | None) -> None:
        """Changes of this list are told from now on."""
        if (method, facet) not in self._given:
            self._given[method, facet] = self._fingerprint(method, facet)

    def changed(self, methods: Iterable[str]) -> None:
        """These lists may be others now."""
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

    def _fingerprint(self, method: str, facet: Facet | None) -> bytes:
        found = sha256()
        shared = {alias: one.lists.shared_keys(method) for alias, one in self._table.upstreams.items()}
        generations: dict[str, int] = {}
        for name, route in self._table.routes(method, facet).items():
            alias = route.upstream.alias
            if route.inward in shared[alias]:
                found.update(jsonrpc.encode([name, route.entry.digest().hex(), route.shown]))
            else:
                # Of what single callers are given it is known only that it has changed.
                generations[alias] = route.upstream.lists.generation
        found.update(jsonrpc.encode(generations))
        return found.digest()

    # Resources

    def updated(self, uri: str) -> None:
        self._publish(notifications.RESOURCE_UPDATED, uri)

    def hear(self, wanted: Filter, facet: Facet | None) -> list[Any]:
        """One more, who wants this. Returns what `unhear` takes."""
        self._count += 1
        told = {
            notifications.TOOLS_CHANGED: wanted.tools_list_changed,
            notifications.PROMPTS_CHANGED: wanted.prompts_list_changed,
            notifications.RESOURCES_CHANGED: wanted.resources_list_changed,
        }
        for method, notice in _NOTICES.items():
            if told[notice]:
                # Also those of a list that no client has asked for.
                self.note_given(method, facet)
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
            for upstream, inward in self._table.owners(uri, shared.facet):
                by_upstream.setdefault(upstream.alias, []).append(inward)
                shared.unheard.remove(uri)
                break
        for alias, inside in by_upstream.items():
            shared.relays.append(self._table.upstreams[alias].changes.follow(inside))

    def unhear(self, keys: list[Any]) -> None:
        self._count -= 1
        for key in keys:
            shared = self._relays[key]
            shared.users -= 1
            if not shared.users:
                del self._relays[key]
                for relay in shared.relays:
                    relay.end()
