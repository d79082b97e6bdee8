"""Hearing of changes: one way to say it for every revision."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Literal, Self

import msgspec
from msgspec import Raw, Struct

from portico.protocol import notifications
from portico.protocol.errors import ProtocolError, TimedOut, TransportError
from portico.protocol.jsonrpc import encode
from portico.protocol.subscriptions import AcknowledgedParams, Filter, ListenParams
from portico.protocol.tasks import EXTENSION
from portico.rpc.call import Call, Listening
from portico.transports.upstream import Upstream

log = logging.getLogger("portico")

# A change that was not fetched yet is remembered once, however often it is said; of so many resources at most.
MOST_PENDING = 10_000
LONGEST_URI = 8192
PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.1, 30.0

Kind = Literal["tools", "prompts", "resources", "resource"]

_KINDS: dict[str, Kind] = {
    notifications.TOOLS_CHANGED: "tools",
    notifications.PROMPTS_CHANGED: "prompts",
    notifications.RESOURCES_CHANGED: "resources",
    notifications.RESOURCE_UPDATED: "resource",
}


class Change(Struct, frozen=True):
    """What has changed: a list (`tools`, `prompts`, `resources`), or one `resource`, whose URI is given.

    `missed`: nothing was heard for a while, so it may have changed. What was fetched before is to be fetched again.
    """

    kind: Kind
    uri: str | None = None
    missed: bool = False


class ChangeListener:
    """`async for change in client.listen(tools=True)`, or the same inside `async with`, which waits until it is on.

    The end of the loop is the server's: it said that there will be no more. A connection that breaks is made again.
    """

    def __init__(
        self,
        upstream: Upstream,
        wanted: Filter,
        listeners: set[ChangeListener],
        notice: Callable[[str, Raw], None],
        subscribe: Callable[[str], Awaitable[None]],
        unsubscribe: Callable[[str], Awaitable[None]],
        timeout: float | None,
    ) -> None:
        self.wanted = wanted
        # What the server agreed to; None until it has.
        self.honoured: Filter | None = None
        self._upstream = upstream
        self._notice = notice
        self._subscribe_to, self._unsubscribe_from = subscribe, unsubscribe
        self._timeout = timeout
        self._listeners = listeners
        self._pending: dict[Change, None] = {}
        self._news = asyncio.Event()
        self._on: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._failure: Exception | None = None
        self._ended = False
        # Nothing was heard for a while, and the listener is not on again yet.
        self._gap = False
        self._told = False
        # Set when a session may be no more, or its server has become a newer one; None where it is not waited for.
        self._moved: asyncio.Event | None = None
        self._polite = True

    # As a block, and as an iterator

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
            raise TimedOut(f"listening was not acknowledged within {self._timeout:g} s") from None
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
                if self._ended:
                    break
                self._news.clear()
                await self._news.wait()
            if self._failure is not None:
                raise self._failure
        finally:
            if own:
                await self.close()

    async def close(self, *, polite: bool = True) -> None:
        """Stop listening. `polite`: a session is told; there is no need to when it ends as well."""
        self._polite = polite
        self._listeners.discard(self)
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait({task})
        if self._on is not None and not self._on.done():
            self._on.cancel()

    # What is heard

    def hear(self, method: str, params: Raw) -> None:
        """A notification that came to our request; or to the session, where it may be for another listener."""
        try:
            if method == notifications.ACKNOWLEDGED:
                self._acknowledge(msgspec.json.decode(params, type=AcknowledgedParams).notifications)
            elif (kind := _KINDS.get(method)) is not None:
                self._note(kind, params)
        except (msgspec.DecodeError, RecursionError) as failure:
            log.debug("%s: %s", method, failure)

    def _acknowledge(self, honoured: Filter) -> None:
        self.honoured = honoured
        if self._gap:
            self._gap = False
            # Events are not replayed (basic/utilities/subscriptions). Told now, and not when it broke, so that what is
            # fetched because of it is newer than the gap.
            self.missed()
        self._switch_on()

    def _note(self, kind: Kind, params: Raw) -> None:
        uri = msgspec.json.decode(params, type=notifications.ResourceUpdatedParams).uri if kind == "resource" else None
        if self._upstream.modern or self._wants(kind, uri):
            self._add(Change(kind, uri))

    def _wants(self, kind: Kind, uri: str | None) -> bool:
        """Before 2026-07-28 a client hears everything, so each listener picks what is its own."""
        wanted = self.wanted
        if kind == "resource":
            above = wanted.resource_subscriptions or ()
            return any(uri == one or str(uri).startswith(one.rstrip("/") + "/") for one in above)
        return bool(getattr(wanted, f"{kind}_list_changed"))

    def _add(self, change: Change) -> None:
        long = change.uri is not None and len(change.uri) > LONGEST_URI
        if not long and (len(self._pending) < MOST_PENDING or change in self._pending):
            self._pending[change] = None
            self._news.set()
        else:
            # More than can be told one by one.
            self._pending.clear()
            self.missed()

    def missed(self) -> None:
        """There was a gap: whatever was listened for may have changed in it."""
        wanted = self.honoured or self.wanted
        for kind in ("tools", "prompts", "resources"):
            if getattr(wanted, f"{kind}_list_changed"):
                self._pending[Change(kind, missed=True)] = None
        for uri in wanted.resource_subscriptions or ():
            self._pending[Change("resource", uri, missed=True)] = None
        self._news.set()

    def lost(self) -> None:
        """A session was not heard of for a while, or its connection is broken. Who only listens has to look."""
        if self._moved is not None:
            self._moved.set()

    def reopened(self) -> None:
        """The connection is a new one. 2026-07-28 notices by itself; a session's listener has to be told."""
        if self._moved is None:
            return
        if self._upstream.modern:
            self._moved.set()
        else:
            self._told = True
            self.missed()

    def _switch_on(self) -> None:
        if self._on is not None and not self._on.done():
            self._on.set_result(None)

    # Keeping at it

    async def _listen(self) -> None:
        try:
            while not await (self._request() if self._upstream.modern else self._subscribe()):
                # It is of another era now, and is listened to in another way.
                self._gap = True
        except Exception as failure:
            self._failure = failure
            if self._on is not None and not self._on.done():
                self._on.set_exception(failure)
                self._failure = None
        finally:
            self._ended = True
            self._news.set()

    def _call(self) -> Call:
        identity = self._upstream.identity
        return Call(
            method="subscriptions/listen",
            params=Raw(encode(ListenParams(self.wanted))),
            id=0,
            capabilities=identity.able_with(EXTENSION) if self.wanted.task_ids else identity.capabilities,
            reply=Listening(self._emit),
        )

    def _emit(self, method: str, params: Any) -> None:
        self.hear(method, params)
        self._notice(method, params)

    async def _request(self) -> bool:
        """2026-07-28: a request that goes on. When it ends without a result, it is made again. True: it is over."""
        pause = PAUSE_SECONDS
        clock = asyncio.get_running_loop().time
        while True:
            link, begun_at = None, clock()
            try:
                link = await self._upstream.alive()
                if not self._upstream.modern:
                    return False
                await self._upstream.send(link, self._call())
                if self._on is not None and not self._on.done():
                    raise ProtocolError(f"{link.name} ended subscriptions/listen before it had begun")
                return True
            except (TransportError, ProtocolError) as failure:
                # The caller that waits for the beginning is told why there is none.
                begun = self._on is None or self._on.done()
                if not await self._upstream.should_retry(link, failure, patient=begun):
                    raise
            self._gap = True
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            # To be acknowledged is not enough: a server that ends it each time is not hurried back to.
            lasted = clock() - begun_at > 2 * LONGEST_PAUSE_SECONDS
            pause = PAUSE_SECONDS if lasted else min(LONGEST_PAUSE_SECONDS, pause * 2)

    async def _subscribe(self) -> bool:
        """Before: resources are subscribed to one by one, and the rest comes unasked. False: it has become newer."""
        uris = self.wanted.resource_subscriptions or []
        taken: list[str] = []
        self._moved = asyncio.Event()
        try:
            for uri in uris:
                await self._subscribe_to(uri)
                taken.append(uri)
            self._acknowledge(self.wanted)
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
            for uri in taken if self._polite else ():
                await asyncio.shield(self._unsubscribe_from(uri))

    async def _mend(self) -> None:
        """Have the connection made again if it is broken: without a request that would never be noticed."""
        pause = PAUSE_SECONDS
        self._told = False
        while True:
            try:
                await self._upstream.alive()
                break
            except (TransportError, ProtocolError) as failure:
                if not await self._upstream.should_retry(None, failure, patient=True):
                    raise
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(LONGEST_PAUSE_SECONDS, pause * 2)
        if not self._told and not self._upstream.modern:
            self.missed()
