"""Subscriptions of clients to list changes and resource updates."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from hashlib import sha256
from typing import Any, Protocol

from msgspec import Struct

from portico.protocol import jsonrpc, notifications
from portico.protocol.subscriptions import SubscriptionFilter
from portico.rpc.call import ServerView
from portico_gateway.gateway.change_listener import CHANGE_DEBOUNCE_SECONDS, ResourceUpdateRelay
from portico_gateway.gateway.routing_table import RoutingTable

_NOTICES = {
    "tools/list": notifications.TOOLS_LIST_CHANGED,
    "prompts/list": notifications.PROMPTS_LIST_CHANGED,
    "resources/list": notifications.RESOURCES_LIST_CHANGED,
    "resources/templates/list": notifications.RESOURCES_LIST_CHANGED,
}


class ChangePublisher(Protocol):
    """Publishes a notification to subscribers; with `server_views`, only to those of these views."""

    def __call__(
        self, method: str, uri: str | None, server_views: frozenset[ServerView | None] | None = None
    ) -> None: ...


class _SharedRelay(Struct, eq=False):
    """Shared resource subscription: number of subscribers, relays, and URIs whose upstream is not known yet."""

    users: int
    relays: list[ResourceUpdateRelay]
    unheard: set[str]
    facet: ServerView | None


class GatewaySubscriptions:
    """Subscriptions of a gateway's clients. `table` contains all known routes. Changes are debounced."""

    def __init__(self, publish: ChangePublisher, table: RoutingTable) -> None:
        self._publish = publish
        self._table = table
        # Fingerprint of each list that was served or subscribed, by method and view.
        self._encoded: dict[tuple[str, ServerView | None], bytes] = {}
        self._changed: set[str] = set()
        self._telling: asyncio.TimerHandle | None = None
        self._relays: dict[Any, _SharedRelay] = {}
        self._count = 0

    def __bool__(self) -> bool:
        return bool(self._count)

    def close(self) -> None:
        if self._telling is not None:
            self._telling.cancel()
            self._telling = None
        self._encoded.clear()

    def remove_view(self, facet: ServerView) -> None:
        self._encoded = {key: granted for key, granted in self._encoded.items() if key[1] is not facet}

    # Lists

    def record_listed(self, method: str, facet: ServerView | None) -> None:
        """Record that a list was served, so that later changes are announced."""
        if (method, facet) not in self._encoded:
            self._encoded[method, facet] = self._fingerprint(method, facet)

    def on_lists_changed(self, methods: Iterable[str]) -> None:
        """Schedule notifications, after lists may have changed."""
        for shared in self._relays.values():
            self._listen(shared)
        self._changed |= set(methods)
        if self._encoded and self._telling is None:
            # A list can only have been served while an event loop runs.
            self._telling = asyncio.get_running_loop().call_later(CHANGE_DEBOUNCE_SECONDS, self._publish_changes)

    def _publish_changes(self) -> None:
        """Notify the subscribers whose view of a list changed."""
        self._telling = None
        changed, self._changed = self._changed, set()
        news: dict[str, set[ServerView | None]] = {}
        for (method, facet), before in self._encoded.items():
            if method in changed:
                self._encoded[method, facet] = now = self._fingerprint(method, facet)
                if now != before:
                    news.setdefault(_NOTICES[method], set()).add(facet)
        for notice, facets in news.items():
            self._publish(notice, None, frozenset(facets))

    def _fingerprint(self, method: str, facet: ServerView | None) -> bytes:
        result = sha256()
        shared = {alias: upstream.catalog.shared_keys(method) for alias, upstream in self._table.upstreams.items()}
        generations: dict[str, int] = {}
        for name, route in self._table.routes(method, facet).items():
            alias = route.upstream.alias
            if route.inward in shared[alias]:
                result.update(jsonrpc.encode([name, route.entry.digest().hex(), route.shown]))
            else:
                # The contents of per-caller lists are not compared; their generation shows that something changed.
                generations[alias] = route.upstream.catalog.generation
        result.update(jsonrpc.encode(generations))
        return result.digest()

    # Resources

    def on_resource_updated(self, uri: str) -> None:
        self._publish(notifications.RESOURCE_UPDATED, uri)

    def subscribe(self, filter: SubscriptionFilter, view: ServerView | None) -> list[Any]:
        """Add a subscriber. Return the keys for `unsubscribe`."""
        self._count += 1
        listeners = {
            notifications.TOOLS_LIST_CHANGED: filter.tools_list_changed,
            notifications.PROMPTS_LIST_CHANGED: filter.prompts_list_changed,
            notifications.RESOURCES_LIST_CHANGED: filter.resources_list_changed,
        }
        for method, notice in _NOTICES.items():
            if listeners[notice]:
                # Includes lists that no client has requested yet.
                self.record_listed(method, view)
        uris = tuple(sorted(set(filter.resource_subscriptions or ())))
        if not uris:
            return []
        key = (view, uris)
        if key not in self._relays:
            self._relays[key] = _SharedRelay(0, [], set(uris), view)
            self._listen(self._relays[key])
        self._relays[key].users += 1
        return [key]

    def _listen(self, shared: _SharedRelay) -> None:
        """Subscribe to the resources whose upstream has become known."""
        by_upstream: dict[str, list[str]] = {}
        for uri in sorted(shared.unheard):
            for upstream, inward in self._table.candidate_upstreams(uri, shared.facet):
                by_upstream.setdefault(upstream.alias, []).append(inward)
                shared.unheard.remove(uri)
                break
        for alias, inside in by_upstream.items():
            shared.relays.append(self._table.upstreams[alias].change_listener.subscribe_resources(inside))

    def unsubscribe(self, keys: list[Any]) -> None:
        self._count -= 1
        for key in keys:
            shared = self._relays[key]
            shared.users -= 1
            if not shared.users:
                del self._relays[key]
                for relay in shared.relays:
                    relay.stop()
