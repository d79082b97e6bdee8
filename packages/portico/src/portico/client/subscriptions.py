"""Change listeners: one API for the subscriptions of every protocol version."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Literal, Self

import msgspec
from msgspec import Raw, Struct

from portico.protocol import notifications
from portico.protocol.errors import ProtocolError, RequestTimeout, TransportError
from portico.protocol.jsonrpc import encode
from portico.protocol.subscriptions import (
    SubscriptionFilter,
    SubscriptionsAcknowledgedParams,
    SubscriptionsListenParams,
)
from portico.protocol.tasks import EXTENSION
from portico.rpc.call import Call, CallbackReply
from portico.transports.upstream import Upstream

log = logging.getLogger("portico")

# A pending change is stored once, however often it is reported. Beyond this number a gap is reported instead.
MAX_PENDING_CHANGES = 10_000
MAX_URI_CHARS = 8192
RECONNECT_DELAY_SECONDS, MAX_RECONNECT_DELAY_SECONDS = 0.1, 30.0

ChangeKind = Literal["tools", "prompts", "resources", "resource"]

_KINDS: dict[str, ChangeKind] = {
    notifications.TOOLS_LIST_CHANGED: "tools",
    notifications.PROMPTS_LIST_CHANGED: "prompts",
    notifications.RESOURCES_LIST_CHANGED: "resources",
    notifications.RESOURCE_UPDATED: "resource",
}


class Change(Struct, frozen=True):
    """A change of a list (`tools`, `prompts`, `resources`) or of one `resource`, whose URI is set.

    `missed`: notifications may have been lost, so it may have changed. Fetch again what depends on it.
    """

    kind: ChangeKind
    uri: str | None = None
    missed: bool = False


class ChangeListener:
    """Iterator over changes: `async for change in client.listen(tools=True)`.

    Used with `async with`, entering the block waits until the subscription is active. The loop ends when the server
    ends the subscription. A broken connection is re-established.
    """

    def __init__(
        self,
        upstream: Upstream,
        filter: SubscriptionFilter,
        listeners: set[ChangeListener],
        on_notification: Callable[[str, Raw], None],
        subscribe: Callable[[str], Awaitable[None]],
        unsubscribe: Callable[[str], Awaitable[None]],
        timeout: float | None,
    ) -> None:
        self.filter = filter
        # The filter that the server acknowledged; None before.
        self.accepted_filter: SubscriptionFilter | None = None
        self._upstream = upstream
        self._notice = on_notification
        self._subscribe_to, self._unsubscribe_from = subscribe, unsubscribe
        self._timeout = timeout
        self._listeners = listeners
        # A dict as an ordered set: changes that repeat before they are read are reported once.
        self._pending: dict[Change, None] = {}
        self._news = asyncio.Event()
        self._on: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._failure: Exception | None = None
        self._is_closed = False
        # Notifications may have been lost, and the subscription is not active again yet.
        self._gap = False
        self._told = False
        # Set when a session may have ended or its server was upgraded; None while nothing waits for it.
        self._moved: asyncio.Event | None = None
        self._polite = True

    # Context manager and iterator

    async def __aenter__(self) -> Self:
        self._listeners.add(self)
        self._on = asyncio.get_running_loop().create_future()
        self._task = asyncio.get_running_loop().create_task(self._listen())
        try:
            async with asyncio.timeout(self._timeout):
                await self._on
        except TransportError:
            await self.close()
            raise
        except TimeoutError:
            await self.close()
            raise RequestTimeout(f"subscription not acknowledged within {self._timeout:g} s") from None
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *failure: object) -> None:
        await self.close()

    async def __aiter__(self) -> AsyncIterator[Change]:
        own = self._task is None
        if own:
            await self.__aenter__()
        try:
            while True:
                while self._pending:
                    change = next(iter(self._pending))
                    del self._pending[change]
                    yield change
                if self._is_closed:
                    break
                # Cleared before waiting and after the pending changes were read, so that no wake-up is lost.
                self._news.clear()
                await self._news.wait()
            if self._failure is not None:
                raise self._failure
        finally:
            if own:
                await self.close()

    async def close(self, *, unsubscribe: bool = True) -> None:
        """Stop listening. `unsubscribe`: also cancel the subscriptions of a session that stays open."""
        self._polite = unsubscribe
        self._listeners.discard(self)
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            # `wait` instead of `await`: the cancellation of the task must not be raised here.
            await asyncio.wait({task})
        if self._on is not None and not self._on.done():
            self._on.cancel()

    # Notifications

    def handle_notification(self, method: str, params: Raw) -> None:
        """Handle a notification of this subscription, or of the session, where it may concern another listener."""
        try:
            if method == notifications.SUBSCRIPTIONS_ACKNOWLEDGED:
                self._acknowledge(msgspec.json.decode(params, type=SubscriptionsAcknowledgedParams).notifications)
            elif (kind := _KINDS.get(method)) is not None:
                self._queue_change(kind, params)
        except (msgspec.DecodeError, RecursionError) as failure:
            log.debug("%s: %s", method, failure)

    def _acknowledge(self, honoured: SubscriptionFilter) -> None:
        self.accepted_filter = honoured
        if self._gap:
            self._gap = False
            # Notifications are not replayed (basic/utilities/subscriptions). The gap is reported after reconnecting,
            # not when the connection broke, so that data fetched because of it is newer than the gap.
            self.mark_gap()
        self._switch_on()

    def _queue_change(self, kind: ChangeKind, params: Raw) -> None:
        uri = msgspec.json.decode(params, type=notifications.ResourceUpdatedParams).uri if kind == "resource" else None
        if self._upstream.modern or self._is_subscribed(kind, uri):
            self._add(Change(kind, uri))

    def _is_subscribed(self, kind: ChangeKind, uri: str | None) -> bool:
        """Return whether the filter matches. Before 2026-07-28 a client receives all notifications, so listeners
        filter.
        """
        requested = self.filter
        if kind == "resource":
            above = requested.resource_subscriptions or ()
            return any(uri == item or str(uri).startswith(item.rstrip("/") + "/") for item in above)
        return bool(getattr(requested, f"{kind}_list_changed"))

    def _add(self, change: Change) -> None:
        long = change.uri is not None and len(change.uri) > MAX_URI_CHARS
        if not long and (len(self._pending) < MAX_PENDING_CHANGES or change in self._pending):
            self._pending[change] = None
            self._news.set()
        else:
            # Too many changes to report one by one: report a gap instead.
            self._pending.clear()
            self.mark_gap()

    def mark_gap(self) -> None:
        """Report everything in the filter as possibly changed."""
        active_filter = self.accepted_filter or self.filter
        for kind in ("tools", "prompts", "resources"):
            if getattr(active_filter, f"{kind}_list_changed"):
                self._pending[Change(kind, missed=True)] = None
        for uri in active_filter.resource_subscriptions or ():
            self._pending[Change("resource", uri, missed=True)] = None
        self._news.set()

    def mark_disconnected(self) -> None:
        """Wake the listener because the session may be broken: without requests nothing else would notice."""
        if self._moved is not None:
            self._moved.set()

    def mark_reconnected(self) -> None:
        """Report a gap after a reconnection. At 2026-07-28 the listener's own stream notices it."""
        if self._moved is None:
            return
        if self._upstream.modern:
            self._moved.set()
        else:
            self._told = True
            self.mark_gap()

    def _switch_on(self) -> None:
        if self._on is not None and not self._on.done():
            self._on.set_result(None)

    # Staying subscribed

    async def _listen(self) -> None:
        try:
            while not await (self._request() if self._upstream.modern else self._subscribe()):
                # The server now uses another kind of protocol version, which has a different way to subscribe.
                self._gap = True
        except Exception as failure:
            self._failure = failure
            if self._on is not None and not self._on.done():
                self._on.set_exception(failure)
                self._failure = None
        finally:
            self._is_closed = True
            self._news.set()

    def _call(self) -> Call:
        identity = self._upstream.client_identity
        return Call(
            method="subscriptions/listen",
            params=Raw(encode(SubscriptionsListenParams(self.filter))),
            id=0,
            capabilities=identity.with_extension(EXTENSION) if self.filter.task_ids else identity.capabilities,
            reply=CallbackReply(self._emit),
        )

    def _emit(self, method: str, params: Any) -> None:
        self.handle_notification(method, params)
        self._notice(method, params)

    async def _request(self) -> bool:
        """Send subscriptions/listen (2026-07-28) and repeat it when it ends without a result.

        Returns True when the server ended it, False if the server no longer speaks 2026-07-28.
        """
        pause = RECONNECT_DELAY_SECONDS
        clock = asyncio.get_running_loop().time
        while True:
            transport, begun_at = None, clock()
            try:
                transport = await self._upstream.ensure_connected()
                if not self._upstream.modern:
                    return False
                await self._upstream.send(transport, self._call())
                if self._on is not None and not self._on.done():
                    raise ProtocolError(f"{transport.name} ended subscriptions/listen without acknowledging it")
                return True
            except (TransportError, ProtocolError) as failure:
                # Before the acknowledgement the failure is raised to the waiting caller instead of being retried.
                is_settled = self._on is None or self._on.done()
                if not await self._upstream.should_retry(transport, failure, retry_temporary=is_settled):
                    raise
            self._gap = True
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            # An acknowledgement is not enough to reset the pause: the server may end every subscription immediately.
            lasted = clock() - begun_at > 2 * MAX_RECONNECT_DELAY_SECONDS
            pause = RECONNECT_DELAY_SECONDS if lasted else min(MAX_RECONNECT_DELAY_SECONDS, pause * 2)

    async def _subscribe(self) -> bool:
        """Subscribe to resources one by one (before 2026-07-28); list changes arrive without a subscription.

        Returns False if the server now speaks 2026-07-28.
        """
        uris = self.filter.resource_subscriptions or []
        subscribed_uris: list[str] = []
        self._moved = asyncio.Event()
        try:
            for uri in uris:
                await self._subscribe_to(uri)
                subscribed_uris.append(uri)
            self._acknowledge(self.filter)
            while not self._upstream.modern:
                await self._moved.wait()
                self._moved.clear()
                await self._mend()
            return False
        except ProtocolError:
            if self._upstream.modern:
                return False
            raise
        finally:
            self._moved = None
            for uri in subscribed_uris if self._polite else ():
                # Shielded, because this runs while the task is being cancelled.
                await asyncio.shield(self._unsubscribe_from(uri))

    async def _mend(self) -> None:
        """Reconnect if the connection is broken. Without a request nothing else would notice."""
        pause = RECONNECT_DELAY_SECONDS
        self._told = False
        while True:
            try:
                await self._upstream.ensure_connected()
                break
            except (TransportError, ProtocolError) as failure:
                if not await self._upstream.should_retry(None, failure, retry_temporary=True):
                    raise
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(MAX_RECONNECT_DELAY_SECONDS, pause * 2)
        if not self._told and not self._upstream.modern:
            self.mark_gap()
