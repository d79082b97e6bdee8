"""What an upstream tells of: its lists that are others now, and its resources. Whatever breaks is listened to again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from portico.protocol import notifications
from portico.protocol.apps import SHOWN
from portico.protocol.errors import Closed, ToolError, TransportError
from portico.protocol.meta import ClientCapabilities
from portico.protocol.subscriptions import Filter
from portico.rpc.call import Call, Emit, Handler
from portico.rpc.change_relay import ChangeRelay
from portico_gateway.gateway.circuit_breaker import FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS
from portico_gateway.gateway.connection import Lane

# Changes that come together are looked at together.
GATHER_SECONDS = 0.05

# Some servers list what asks a client only to those who can be asked, and what is for a page to those who show pages.
ALL_CAPABILITIES = ClientCapabilities(
    elicitation={"form": {}, "url": {}},
    sampling={"tools": {}, "context": {}},
    roots={},
    extensions=SHOWN,
)

_LISTS = {
    notifications.TOOLS_CHANGED: ("tools/list",),
    notifications.PROMPTS_CHANGED: ("prompts/list",),
    notifications.RESOURCES_CHANGED: ("resources/list", "resources/templates/list"),
}


class UpstreamChanges:
    """`here` is the upstream, if it is a Handler in this process; else `find` gives a connection to listen on.
    `refresh` asks for lists anew, and `updated` is told of a resource."""

    def __init__(
        self,
        here: Handler | None,
        find: Callable[[Call], Awaitable[Lane]],
        refresh: Callable[[tuple[str, ...]], Awaitable[None]],
        updated: Callable[[str], None],
    ) -> None:
        # Listens for a caller until the connection breaks.
        self.handler = here or self._hear
        self._find = find
        self._refresh = refresh
        self._updated = updated
        self._lists: ChangeRelay | None = None
        self._resources: set[ResourceRelay] = set()
        self._stale: set[str] = set()
        self._refreshing: asyncio.Task[None] | None = None
        # Grows while connections end soon after they were listened to.
        self._pause = 0.0

    def begin(self) -> None:
        """Hear of changes of lists, from the first list on."""
        if not self.begun:
            wanted = Filter(tools_list_changed=True, prompts_list_changed=True, resources_list_changed=True)
            self._lists = self.relay(self.handler, wanted, self.tell, self.missed)

    @property
    def begun(self) -> bool:
        return self._lists is not None and not self._lists.ended

    @staticmethod
    def relay(handler: Handler, wanted: Filter, tell: Emit, missed: Callable[[], None]) -> ChangeRelay:
        return ChangeRelay(handler, wanted, tell, capabilities=ALL_CAPABILITIES, missed=missed)

    async def _hear(self, call: Call) -> Any:
        """Listen on the connection of the gateway's own, made anew if it broke."""
        await asyncio.sleep(self._pause)
        begun = time.monotonic()
        try:
            return await (await self._find(call)).listen(call)
        except (ToolError, TransportError) as failure:
            # One that ends again and again is not hurried back to.
            lasted = time.monotonic() - begun > LONGEST_PAUSE_SECONDS
            self._pause = 0.0 if lasted else min(LONGEST_PAUSE_SECONDS, 2 * self._pause + FIRST_PAUSE_SECONDS)
            raise Closed(str(failure)) from None

    def tell(self, method: str, params: Any) -> None:
        """Something that belongs to no call."""
        if method == notifications.RESOURCE_UPDATED:
            uri = getattr(params, "uri", None) or _uri(params)
            if uri is not None:
                self._updated(uri)
            return
        self._stale |= set(_LISTS.get(method, ()))
        if self._stale and (self._refreshing is None or self._refreshing.done()):
            self._refreshing = asyncio.get_running_loop().create_task(self._refresh_stale())

    def missed(self) -> None:
        """Anything may have changed."""
        for method in _LISTS:
            self.tell(method, None)
        for relay in self._resources:
            relay.missed()

    async def _refresh_stale(self) -> None:
        while self._stale:
            await asyncio.sleep(GATHER_SECONDS)
            methods, self._stale = tuple(sorted(self._stale)), set()
            await self._refresh(methods)

    def follow(self, uris: list[str]) -> ResourceRelay:
        """Hear of changes of these resources, on every connection there is and will be."""
        relay = ResourceRelay(uris, self._updated, self._resources.discard)
        relay.listen(self.handler)
        self._resources.add(relay)
        return relay

    def opened(self, lane: Lane) -> None:
        """A connection was made (again)."""
        if not lane.modern:
            for relay in self._resources:
                relay.listen(lane.listen)

    async def close(self) -> None:
        if self._lists is not None:
            self._lists.end()
        for relay in list(self._resources):
            relay.end()
        if self._refreshing is not None:
            self._refreshing.cancel()
            await asyncio.gather(self._refreshing, return_exceptions=True)


class ResourceRelay:
    """Tells of some resources of one upstream. A server with sessions tells each of them what happens in it, and
    each may be another process; so every connection is listened to."""

    def __init__(self, uris: list[str], updated: Callable[[str], None], ended: Callable[[ResourceRelay], None]) -> None:
        self._uris = uris
        self._updated = updated
        self._ended = ended
        self._relays: list[ChangeRelay] = []

    def listen(self, handler: Handler) -> None:
        self._relays = [one for one in self._relays if not one.ended]
        wanted = Filter(resource_subscriptions=self._uris)
        self._relays.append(UpstreamChanges.relay(handler, wanted, self._tell, self.missed))

    def _tell(self, method: str, params: Any) -> None:
        uri = (getattr(params, "uri", None) or _uri(params)) if method == notifications.RESOURCE_UPDATED else None
        if uri is not None:
            self._updated(uri)

    def missed(self) -> None:
        for uri in self._uris:
            self._updated(uri)

    def end(self) -> None:
        self._ended(self)
        for relay in self._relays:
            relay.end()


def _uri(params: Any) -> str | None:
    try:
        return str(msgspec.json.decode(params)["uri"])
    except (TypeError, KeyError, msgspec.DecodeError):
        return None
