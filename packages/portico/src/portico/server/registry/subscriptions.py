"""`subscriptions/listen`: change notifications to clients."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Collection
from typing import Any

from msgspec import Raw, Struct

from portico.protocol import jsonrpc, notifications
from portico.protocol.content import EmptyResult
from portico.protocol.errors import InternalError
from portico.protocol.meta import SUBSCRIPTION_ID_META_KEY, ServerCapabilities
from portico.protocol.subscriptions import SubscriptionFilter, SubscriptionsAcknowledgedParams
from portico.protocol.tasks import EXTENSION
from portico.rpc.call import Call, NotificationCallback, ServerView
from portico.rpc.fair_queue import get_caller_key

log = logging.getLogger("portico")

# Each subscriber holds an open request. The limits bound memory; rate limits bound the requests.
MAX_SUBSCRIBERS = 100_000
# Per listen request; and for all of them together, in URIs and in characters.
MAX_URIS_PER_SUBSCRIBER = 1000
MAX_URIS_TOTAL = 100_000
MAX_URI_CHARS_TOTAL = 16 * 1024 * 1024
# One caller may have a quarter of each of these totals, so that it leaves room for others.
_SHARES = 4
# Notifications sent before other tasks of the event loop get their turn.
NOTIFY_BATCH_SIZE = 500


ServerViews = frozenset[ServerView | None]


class Subscriber(Struct, eq=False):
    """A client that listens: its filter, and how to notify it."""

    emit: NotificationCallback
    filter: SubscriptionFilter
    # 2026-07-28, basic/patterns/subscriptions: every notification carries the id of the listen request.
    tag: dict[str, Any]
    # Whether it also wants the progress of tasks as numbers.
    progress: bool = False
    # The view of the server that it listens to.
    server_view: ServerView | None = None
    # Predicate for the resources that it may be notified of; None: all.
    is_visible: Callable[[str], bool] | None = None
    # The `subscriptions/listen` call, and the principal or client network that it counts for.
    call: Call | None = None
    caller: str = ""

    def notify(self, method: str, params: Any) -> None:
        """Send a notification. Failures are logged, so that other subscribers are still notified."""
        try:
            self.emit(method, params)
        except Exception:
            log.exception("failed to notify a subscriber of %s", method)


def accepted_filter(
    requested: SubscriptionFilter, capabilities: ServerCapabilities, exists: Callable[[str], bool]
) -> SubscriptionFilter:
    """Return the part of a requested filter that a server with these capabilities supports, with existing resources
    only.
    """

    def is_declared(feature: str, flag: str = "listChanged") -> bool:
        return bool((getattr(capabilities, feature) or {}).get(flag))

    uris = requested.resource_subscriptions
    # Above the limit the listen request is rejected later, so the checks can be skipped.
    if uris is not None and len(uris) <= MAX_URIS_PER_SUBSCRIBER:
        uris = [uri for uri in dict.fromkeys(uris) if exists(uri)]
    return SubscriptionFilter(
        tools_list_changed=requested.tools_list_changed and is_declared("tools"),
        prompts_list_changed=requested.prompts_list_changed and is_declared("prompts"),
        resources_list_changed=requested.resources_list_changed and is_declared("resources"),
        resource_subscriptions=uris if is_declared("resources", "subscribe") else None,
        task_ids=requested.task_ids if EXTENSION in (capabilities.extensions or {}) else None,
    )


class _SubscriptionUsage:
    """Number of subscribers, of their URIs, and of the characters of these URIs."""

    def __init__(self) -> None:
        self.subscribers = self.uris = self.characters = 0

    def change(self, filter: SubscriptionFilter, sign: int) -> None:
        uris = filter.resource_subscriptions or ()
        self.subscribers += sign
        self.uris += sign * len(uris)
        self.characters += sign * sum(map(len, uris))

    def has_room(self, filter: SubscriptionFilter, shares: int = 1) -> bool:
        """Return whether one more subscriber fits into one of several equal shares of the totals."""
        uris = filter.resource_subscriptions or ()
        return (
            self.subscribers < MAX_SUBSCRIBERS // shares
            and self.uris + len(uris) <= MAX_URIS_TOTAL // shares
            and self.characters + sum(map(len, uris)) <= MAX_URI_CHARS_TOTAL // shares
        )


class _SubscriberIndex:
    """Index of subscribers by change, so that a change only touches its subscribers."""

    def __init__(self) -> None:
        self.total = _SubscriptionUsage()
        # Usage of each caller: a principal, or a client network.
        self.by_caller: dict[str, _SubscriptionUsage] = {}
        self._lists: dict[str, set[Subscriber]] = {}
        self._exact: dict[str, set[Subscriber]] = {}
        # By URI without its trailing slash, for changes below a resource; and how many of these URIs have each length.
        self._below: dict[str, set[Subscriber]] = {}
        self._lengths: Counter[int] = Counter()

    def has_room(self, caller: str, filter: SubscriptionFilter) -> bool:
        """Return whether a caller may have one more subscriber with this filter."""
        # The local user and this process itself have no share: there are no others, or they serve all of them.
        own = self.by_caller.get(caller) or _SubscriptionUsage()
        return (
            len(filter.resource_subscriptions or ()) <= MAX_URIS_PER_SUBSCRIBER
            and self.total.has_room(filter)
            and (not caller or own.has_room(filter, _SHARES))
        )

    def add(self, subscriber: Subscriber) -> None:
        self.total.change(subscriber.filter, 1)
        self.by_caller.setdefault(subscriber.caller, _SubscriptionUsage()).change(subscriber.filter, 1)
        for method in _list_notifications(subscriber.filter):
            self._lists.setdefault(method, set()).add(subscriber)
        for uri in subscriber.filter.resource_subscriptions or ():
            parent = uri.rstrip("/")
            # Both indexes are needed: a subscription to `a://x/` matches changes of that URI and of
            # all URIs below it, but not of `a://x`.
            self._exact.setdefault(uri, set()).add(subscriber)
            self._below.setdefault(parent, set()).add(subscriber)
            self._lengths[len(parent)] += 1

    def remove(self, subscriber: Subscriber) -> None:
        self.total.change(subscriber.filter, -1)
        own = self.by_caller[subscriber.caller]
        own.change(subscriber.filter, -1)
        if not own.subscribers:
            del self.by_caller[subscriber.caller]
        for method in _list_notifications(subscriber.filter):
            _discard(self._lists, method, subscriber)
        for uri in subscriber.filter.resource_subscriptions or ():
            parent = uri.rstrip("/")
            _discard(self._exact, uri, subscriber)
            _discard(self._below, parent, subscriber)
            self._lengths[len(parent)] -= 1
            if not self._lengths[len(parent)]:
                del self._lengths[len(parent)]

    def find(self, method: str, uri: str | None) -> Collection[Subscriber]:
        """Return the subscribers of a change. Subscriptions to a resource include everything below it."""
        if uri is None:
            return self._lists.get(method, ())
        result = set(self._exact.get(uri, ()))
        end = uri.find("/")
        while end >= 0:
            # Checking the length first avoids slicing the URI at every slash.
            if end in self._lengths:
                result |= self._below.get(uri[:end], set())
            end = uri.find("/", end + 1)
        return result


def _list_notifications(wants: SubscriptionFilter) -> list[str]:
    """Return the list notifications that a filter includes."""
    members = {
        notifications.TOOLS_LIST_CHANGED: wants.tools_list_changed,
        notifications.PROMPTS_LIST_CHANGED: wants.prompts_list_changed,
        notifications.RESOURCES_LIST_CHANGED: wants.resources_list_changed,
    }
    return [method for method, is_included in members.items() if is_included]


def _discard(index: dict[str, set[Subscriber]], key: str, subscriber: Subscriber) -> None:
    index[key].discard(subscriber)
    if not index[key]:
        del index[key]


# The method, the URI of a resource, and a predicate for the calls to notify.
_Change = tuple[str, str | None, Callable[[Call], bool] | None]


def _is_admitted(subscriber: Subscriber, admits: Callable[[Call], bool] | None) -> bool:
    return admits is None or (subscriber.call is not None and admits(subscriber.call))


class Subscriptions:
    """The subscribers of one server, and the changes that are still to be sent."""

    def __init__(self) -> None:
        self._listeners: set[Subscriber] = set()
        self._index = _SubscriberIndex()
        # Pending changes, and the server views to notify; None: all.
        self._pending_changes: dict[_Change, ServerViews | None] = {}
        # Forwards changes to other processes that serve the same clients.
        self.broadcast_hook: Callable[[str, str | None], None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def listen(
        self,
        call: Call,
        filter: SubscriptionFilter,
        on_end: Callable[[], None] = lambda: None,
        is_visible: Callable[[str], bool] | None = None,
    ) -> Awaitable[EmptyResult]:
        """Notify the caller of changes until it or the server ends the call; of resources only if `is_visible` accepts
        them.

        Returns an awaitable for that end; `on_end` is then called. Raises InternalError if there are too many
        subscriptions.
        """
        caller, _ = get_caller_key(call)
        if not self._index.has_room(caller, filter):
            raise InternalError("Rejected: too many subscriptions")
        self._loop = asyncio.get_running_loop()
        subscriber = Subscriber(
            call.reply.notify,
            filter,
            {SUBSCRIPTION_ID_META_KEY: call.id},
            server_view=call.facet,
            is_visible=is_visible,
            call=call,
            caller=caller,
        )
        # The acknowledgement must be the first message of the stream, so send it before the subscriber is registered.
        call.reply.notify(
            notifications.SUBSCRIPTIONS_ACKNOWLEDGED,
            SubscriptionsAcknowledgedParams(meta=subscriber.tag, notifications=filter),
        )
        self._listeners.add(subscriber)
        self._index.add(subscriber)
        return self._until_ended(call, subscriber, on_end)

    async def _until_ended(self, call: Call, subscriber: Subscriber, ended: Callable[[], None]) -> EmptyResult:
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            # Cancelled by the client, the request gets no response; otherwise the server ends it with a result.
            if call.reply.cancelled:
                raise
        finally:
            self._listeners.discard(subscriber)
            self._index.remove(subscriber)
            ended()
        return EmptyResult(meta=Raw(jsonrpc.encode(subscriber.tag)))

    def publish(
        self,
        method: str,
        uri: str | None = None,
        server_views: ServerViews | None = None,
        admits: Callable[[Call], bool] | None = None,
    ) -> None:
        """Notify subscribers of a change, once for all changes of one event loop turn. Thread-safe.

        With `server_views`, only subscribers of one of these views; with `admits`, only those whose call it returns
        True for.
        """
        if self._loop is None or not self._listeners:
            return
        # Through the loop even from the loop's own thread: a hundred tools added in one turn become
        # one notification.
        self._loop.call_soon_threadsafe(self._gather, (method, uri, admits), server_views)

    def broadcast(self, method: str, uri: str | None = None) -> None:
        """Notify subscribers of this process and of the others that serve the same clients."""
        self.publish(method, uri)
        if self.broadcast_hook is not None:
            self.broadcast_hook(method, uri)

    def _gather(self, change: _Change, facets: ServerViews | None) -> None:
        if not self._pending_changes and self._loop is not None:
            self._loop.call_soon(self._flush)
        # None means all views and absorbs any restriction of the same change.
        before = self._pending_changes.get(change, frozenset())
        self._pending_changes[change] = None if before is None or facets is None else before | facets

    def _flush(self) -> None:
        # Sorted, so that clients receive the changes of one turn in a reproducible order.
        changes, self._pending_changes = sorted(self._pending_changes.items(), key=str), {}
        self._tell_some(
            [
                (subscriber, method, uri)
                for (method, uri, admits), facets in changes
                for subscriber in self._index.find(method, uri)
                if (facets is None or subscriber.server_view in facets) and _is_admitted(subscriber, admits)
            ]
        )

    def _tell_some(self, owed: list[tuple[Subscriber, str, str | None]], start: int = 0) -> None:
        end = start + NOTIFY_BATCH_SIZE
        for subscriber, method, uri in owed[start:end]:
            unseen = uri is not None and subscriber.is_visible is not None and not subscriber.is_visible(uri)
            # It may have left between two batches.
            if subscriber in self._listeners and not unseen:
                tag = subscriber.tag
                params = notifications.NotificationParams(meta=tag)
                if uri is not None:
                    params = notifications.ResourceUpdatedParams(meta=tag, uri=uri)
                subscriber.notify(method, params)
        if end < len(owed) and self._loop is not None:
            self._loop.call_soon(self._tell_some, owed, end)
