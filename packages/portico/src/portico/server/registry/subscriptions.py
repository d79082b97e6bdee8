"""subscriptions/listen: the clients that hear of changes."""

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
from portico.protocol.meta import SUBSCRIPTION_ID, ServerCapabilities
from portico.protocol.subscriptions import AcknowledgedParams, Filter
from portico.protocol.tasks import EXTENSION
from portico.rpc.call import Call, Emit, Facet

log = logging.getLogger("portico")

MOST_LISTENERS = 100_000
# In one listen; and in all of them together, with the characters that they have.
MOST_URIS = 1000
MOST_URIS_IN_ALL = 100_000
MOST_CHARACTERS_IN_ALL = 16 * 1024 * 1024
# Others have their turn in between.
TOLD_AT_ONCE = 500


Facets = frozenset[Facet | None]


class Subscriber(Struct, eq=False):
    """A client that listens: what it wants, and the way to it."""

    emit: Emit
    wants: Filter
    # 2026-07-28, basic/patterns/subscriptions: every notification carries the id of the listen request.
    tag: dict[str, Any]
    # Whether it wants the progress of tasks in numbers too.
    progress: bool = False
    # The part of the server that it listens to.
    facet: Facet | None = None
    # Whether it may be told of a resource; None: of all.
    sees: Callable[[str], bool] | None = None
    # The call that it listens with.
    call: Call | None = None

    def tell(self, method: str, params: Any) -> None:
        try:
            self.emit(method, params)
        except Exception:
            log.exception("a listener could not be told of %s", method)


def honoured(wanted: Filter, capabilities: ServerCapabilities, exists: Callable[[str], bool]) -> Filter:
    """The part of what is wanted that a server with these capabilities tells of, and only resources that exist."""

    def tells(feature: str, flag: str = "listChanged") -> bool:
        return bool((getattr(capabilities, feature) or {}).get(flag))

    uris = wanted.resource_subscriptions
    if uris is not None and len(uris) <= MOST_URIS:
        uris = [uri for uri in dict.fromkeys(uris) if exists(uri)]
    return Filter(
        tools_list_changed=wanted.tools_list_changed and tells("tools"),
        prompts_list_changed=wanted.prompts_list_changed and tells("prompts"),
        resources_list_changed=wanted.resources_list_changed and tells("resources"),
        resource_subscriptions=uris if tells("resources", "subscribe") else None,
        task_ids=wanted.task_ids if EXTENSION in (capabilities.extensions or {}) else None,
    )


class _SubscriberIndex:
    """Who wants to hear of what, so that no listener is looked at that did not ask for a change."""

    def __init__(self) -> None:
        self.uris = self.characters = 0
        self._lists: dict[str, set[Subscriber]] = {}
        self._exact: dict[str, set[Subscriber]] = {}
        # By what stands before the `/` of everything below a resource; and how many of these have a length.
        self._below: dict[str, set[Subscriber]] = {}
        self._lengths: Counter[int] = Counter()

    def add(self, subscriber: Subscriber) -> None:
        for method in _lists(subscriber.wants):
            self._lists.setdefault(method, set()).add(subscriber)
        for uri in subscriber.wants.resource_subscriptions or ():
            parent = uri.rstrip("/")
            self._exact.setdefault(uri, set()).add(subscriber)
            self._below.setdefault(parent, set()).add(subscriber)
            self._lengths[len(parent)] += 1
            self.uris += 1
            self.characters += len(uri)

    def remove(self, subscriber: Subscriber) -> None:
        for method in _lists(subscriber.wants):
            _discard(self._lists, method, subscriber)
        for uri in subscriber.wants.resource_subscriptions or ():
            parent = uri.rstrip("/")
            _discard(self._exact, uri, subscriber)
            _discard(self._below, parent, subscriber)
            self._lengths[len(parent)] -= 1
            if not self._lengths[len(parent)]:
                del self._lengths[len(parent)]
            self.uris -= 1
            self.characters -= len(uri)

    def find(self, method: str, uri: str | None) -> Collection[Subscriber]:
        """Those who want to hear of a change; of a resource also if it lies below one that they subscribed to."""
        if uri is None:
            return self._lists.get(method, ())
        found = set(self._exact.get(uri, ()))
        end = uri.find("/")
        while end >= 0:
            if end in self._lengths:
                found |= self._below.get(uri[:end], set())
            end = uri.find("/", end + 1)
        return found


def _lists(wants: Filter) -> list[str]:
    """The notifications about lists that are wanted."""
    wanted = {
        notifications.TOOLS_CHANGED: wants.tools_list_changed,
        notifications.PROMPTS_CHANGED: wants.prompts_list_changed,
        notifications.RESOURCES_CHANGED: wants.resources_list_changed,
    }
    return [method for method, wanted_too in wanted.items() if wanted_too]


def _discard(index: dict[str, set[Subscriber]], key: str, subscriber: Subscriber) -> None:
    index[key].discard(subscriber)
    if not index[key]:
        del index[key]


# The method, the URI of a resource, and a predicate that says who may hear of it.
_Change = tuple[str, str | None, Callable[[Call], bool] | None]


def _admitted(subscriber: Subscriber, admits: Callable[[Call], bool] | None) -> bool:
    return admits is None or (subscriber.call is not None and admits(subscriber.call))


class Subscriptions:
    """The listeners of one server, and the changes they have not been told of yet."""

    def __init__(self) -> None:
        self._listeners: set[Subscriber] = set()
        self._index = _SubscriberIndex()
        # What has changed, and for whom: None is for all.
        self._waiting: dict[_Change, Facets | None] = {}
        # Tells other processes that serve the same clients.
        self.spread: Callable[[str, str | None], None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def listen(
        self,
        call: Call,
        wants: Filter,
        ended: Callable[[], None] = lambda: None,
        sees: Callable[[str], bool] | None = None,
    ) -> Awaitable[EmptyResult]:
        """Tell the sender of a call what it wants to hear of, from now on and until it or the server ends the call; of
        resources only if it `sees` them.

        Returns what waits for that end; then `ended` is called. Raises InternalError when there are too many.
        """
        uris = wants.resource_subscriptions or ()
        if (
            len(self._listeners) >= MOST_LISTENERS
            or len(uris) > MOST_URIS
            or self._index.uris + len(uris) > MOST_URIS_IN_ALL
            or self._index.characters + sum(map(len, uris)) > MOST_CHARACTERS_IN_ALL
        ):
            raise InternalError("Refused: too many subscriptions")
        self._loop = asyncio.get_running_loop()
        subscriber = Subscriber(
            call.reply.emit, wants, {SUBSCRIPTION_ID: call.id}, facet=call.facet, sees=sees, call=call
        )
        call.reply.emit(notifications.ACKNOWLEDGED, AcknowledgedParams(meta=subscriber.tag, notifications=wants))
        self._listeners.add(subscriber)
        self._index.add(subscriber)
        return self._until_ended(call, subscriber, ended)

    async def _until_ended(self, call: Call, subscriber: Subscriber, ended: Callable[[], None]) -> EmptyResult:
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            # Cancelled by the client it has no answer; otherwise it is the server that ends it, with a result.
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
        facets: Facets | None = None,
        admits: Callable[[Call], bool] | None = None,
    ) -> None:
        """Tell every listener that wants it of a change, once for all changes made in one go. From any thread.

        With `facets`, only those who listen to one of these parts of the server; with `admits`, only those whose call
        it returns True for.
        """
        if self._loop is None or not self._listeners:
            return
        self._loop.call_soon_threadsafe(self._gather, (method, uri, admits), facets)

    def publish_everywhere(self, method: str, uri: str | None = None) -> None:
        """The same for the listeners of other processes too, where this one is one of several."""
        self.publish(method, uri)
        if self.spread is not None:
            self.spread(method, uri)

    def _gather(self, change: _Change, facets: Facets | None) -> None:
        if not self._waiting and self._loop is not None:
            self._loop.call_soon(self._flush)
        before = self._waiting.get(change, frozenset())
        self._waiting[change] = None if before is None or facets is None else before | facets

    def _flush(self) -> None:
        changes, self._waiting = sorted(self._waiting.items(), key=str), {}
        self._tell_some(
            [
                (subscriber, method, uri)
                for (method, uri, admits), facets in changes
                for subscriber in self._index.find(method, uri)
                if (facets is None or subscriber.facet in facets) and _admitted(subscriber, admits)
            ]
        )

    def _tell_some(self, owed: list[tuple[Subscriber, str, str | None]], start: int = 0) -> None:
        end = start + TOLD_AT_ONCE
        for subscriber, method, uri in owed[start:end]:
            unseen = uri is not None and subscriber.sees is not None and not subscriber.sees(uri)
            if subscriber in self._listeners and not unseen:
                tag = subscriber.tag
                params = notifications.NoticeParams(meta=tag)
                if uri is not None:
                    params = notifications.ResourceUpdatedParams(meta=tag, uri=uri)
                subscriber.tell(method, params)
        if end < len(owed) and self._loop is not None:
            self._loop.call_soon(self._tell_some, owed, end)
