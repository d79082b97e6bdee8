"""Subscriptions to an upstream's change notifications, for lists and resources. Broken subscriptions are restored."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from portico.protocol import notifications
from portico.protocol.apps import APPS_CLIENT_CAPABILITY
from portico.protocol.errors import ConnectionClosed, ToolError, TransportError
from portico.protocol.meta import ClientCapabilities
from portico.protocol.subscriptions import SubscriptionFilter
from portico.rpc.call import Call, Handler, NotificationCallback
from portico.rpc.change_relay import ChangeRelay
from portico_gateway.gateway.accounting import FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS
from portico_gateway.gateway.connection import UpstreamConnection

# Notifications within this period lead to one refresh.
CHANGE_DEBOUNCE_SECONDS = 0.05

# Some servers list tools that need elicitation or an app UI only to clients that declare these capabilities.
ALL_CAPABILITIES = ClientCapabilities(
    elicitation={"form": {}, "url": {}},
    sampling={"tools": {}, "context": {}},
    roots={},
    extensions=APPS_CLIENT_CAPABILITY,
)


class UpstreamChangeListener:
    """Listens for changes of one upstream.

    `handler` is the upstream if it runs in this process; otherwise `find_connection` returns a connection to listen on.
    `refresh_catalog` fetches lists again, and `on_resource_updated` receives the URI of a changed resource.
    """

    def __init__(
        self,
        handler: Handler | None,
        find_connection: Callable[[Call], Awaitable[UpstreamConnection]],
        refresh_catalog: Callable[[tuple[str, ...]], Awaitable[None]],
        on_resource_updated: Callable[[str], None],
    ) -> None:
        # Listens on behalf of a call until the connection ends.
        self.handler = handler or self._listen
        self._find = find_connection
        self._refresh = refresh_catalog
        self._updated = on_resource_updated
        self._lists: ChangeRelay | None = None
        self._resources: set[ResourceUpdateRelay] = set()
        self._stale: set[str] = set()
        self._refreshing: asyncio.Task[None] | None = None
        # Back-off, which grows while connections end soon after they were opened.
        self._pause = 0.0

    def start(self) -> None:
        """Subscribe to list changes, unless already subscribed. Called with the first list."""
        if not self.is_started:
            filter = SubscriptionFilter(tools_list_changed=True, prompts_list_changed=True, resources_list_changed=True)
            self._lists = self.relay(self.handler, filter, self.handle_notification, self.mark_all_stale)

    @property
    def is_started(self) -> bool:
        return self._lists is not None and not self._lists.closed

    @property
    def has_resources(self) -> bool:
        """Return whether a client subscribed to resources."""
        return bool(self._resources)

    @staticmethod
    def relay(
        handler: Handler, filter: SubscriptionFilter, on_notification: NotificationCallback, on_gap: Callable[[], None]
    ) -> ChangeRelay:
        return ChangeRelay(handler, filter, on_notification, capabilities=ALL_CAPABILITIES, on_gap=on_gap)

    async def _listen(self, call: Call) -> Any:
        """Listen on the gateway's own connection; reconnect if it broke."""
        await asyncio.sleep(self._pause)
        started_at = time.monotonic()
        try:
            return await (await self._find(call)).listen(call)
        except (ToolError, TransportError) as failure:
            # Back off if connections end repeatedly.
            lasted = time.monotonic() - started_at > MAX_PAUSE_SECONDS
            self._pause = 0.0 if lasted else min(MAX_PAUSE_SECONDS, 2 * self._pause + FIRST_PAUSE_SECONDS)
            raise ConnectionClosed(str(failure)) from None

    def handle_notification(self, method: str, params: Any) -> None:
        """Handle a notification that belongs to no call."""
        if method == notifications.RESOURCE_UPDATED:
            uri = getattr(params, "uri", None) or _uri(params)
            if uri is not None:
                self._updated(uri)
            return
        self._stale |= set(notifications.CHANGED_LISTS.get(method, ()))
        if self._stale and (self._refreshing is None or self._refreshing.done()):
            self._refreshing = asyncio.get_running_loop().create_task(self._refresh_stale())

    def mark_all_stale(self) -> None:
        """Assume that all lists and subscribed resources changed, after notifications may have been lost."""
        for method in notifications.CHANGED_LISTS:
            self.handle_notification(method, None)
        for relay in self._resources:
            relay.mark_all_stale()

    async def _refresh_stale(self) -> None:
        while self._stale:
            await asyncio.sleep(CHANGE_DEBOUNCE_SECONDS)
            methods, self._stale = tuple(sorted(self._stale)), set()
            await self._refresh(methods)

    def subscribe_resources(self, uris: list[str]) -> ResourceUpdateRelay:
        """Subscribe to changes of resources on all current and future connections."""
        relay = ResourceUpdateRelay(uris, self._updated, self._resources.discard)
        relay.listen(self.handler)
        self._resources.add(relay)
        return relay

    def on_connected(self, connection: UpstreamConnection) -> None:
        """Restore resource subscriptions on a new connection."""
        if not connection.is_stateless:
            for relay in self._resources:
                relay.listen(connection.listen)

    async def close(self) -> None:
        if self._lists is not None:
            self._lists.close()
        for relay in list(self._resources):
            relay.stop()
        if self._refreshing is not None:
            self._refreshing.cancel()
            await asyncio.gather(self._refreshing, return_exceptions=True)


class ResourceUpdateRelay:
    """Subscriptions to resources of one upstream.

    A server with sessions notifies each session separately, and each may be a separate process; so every connection is
    subscribed.
    """

    def __init__(
        self, uris: list[str], on_updated: Callable[[str], None], on_ended: Callable[[ResourceUpdateRelay], None]
    ) -> None:
        self._uris = uris
        self._updated = on_updated
        self._on_ended = on_ended
        self._relays: list[ChangeRelay] = []

    def listen(self, handler: Handler) -> None:
        self._relays = [relay for relay in self._relays if not relay.closed]
        filter = SubscriptionFilter(resource_subscriptions=self._uris)
        self._relays.append(UpstreamChangeListener.relay(handler, filter, self._forward, self.mark_all_stale))

    def _forward(self, method: str, params: Any) -> None:
        uri = (getattr(params, "uri", None) or _uri(params)) if method == notifications.RESOURCE_UPDATED else None
        if uri is not None:
            self._updated(uri)

    def mark_all_stale(self) -> None:
        for uri in self._uris:
            self._updated(uri)

    def stop(self) -> None:
        self._on_ended(self)
        for relay in self._relays:
            relay.close()


def _uri(params: Any) -> str | None:
    try:
        return str(msgspec.json.decode(params)["uri"])
    except (TypeError, KeyError, msgspec.DecodeError):
        return None
