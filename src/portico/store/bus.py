"""Change events: what a transaction published, for its subscribers.

An event is a hint to look, sent after the commit. Within a process it arrives at once; other processes get it by a
Route, which may lose some. So a subscriber looks once when it begins, at each event, and now and then without one.

Queues are bounded: equal events that wait are one, and of too many only the topics are left.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Iterable
from typing import Protocol, Self

import msgspec
from msgspec import Struct

from portico.store.transaction import Event

log = logging.getLogger("portico")

MOST_WAITING = 1000
LONGEST_PACKET = 7900


class Packet(Struct, frozen=True, array_like=True):
    sender: str
    events: list[Event]


class Route(Protocol):
    """The way to other processes."""

    def send(self, packets: list[bytes]) -> None:
        """Without waiting, and without failing."""

    async def listen(self, hear: Callable[[bytes], None], missed: Callable[[], None]) -> None:
        """From when this returns, what others send is heard. `missed` is called after a gap."""

    async def close(self) -> None: ...


class Bus:
    """Lives on the loop."""

    def __init__(self, route: Route | None) -> None:
        self._route = route
        self._sender = secrets.token_hex(6)
        self._by_topic: dict[str, set[Subscription]] = {}
        self._listening: asyncio.Task[None] | None = None
        self._decoder = msgspec.json.Decoder(Packet)

    def tell(self, events: Iterable[Event]) -> None:
        """What was just committed here."""
        once = dict.fromkeys(events)
        self._spread(once)
        if self._route is not None:
            self._route.send(packets(self._sender, once))

    async def listen(self) -> None:
        """Begin to hear other processes, with the first subscription."""
        if self._route is None:
            return
        if self._listening is None or (self._listening.done() and self._listening.exception() is not None):
            self._listening = asyncio.ensure_future(self._route.listen(self._hear, self._missed))
        await asyncio.shield(self._listening)

    def add(self, subscription: Subscription) -> None:
        for topic in subscription.topics:
            self._by_topic.setdefault(topic, set()).add(subscription)

    def remove(self, subscription: Subscription) -> None:
        for topic in subscription.topics:
            others = self._by_topic.get(topic, set())
            others.discard(subscription)
            if not others:
                self._by_topic.pop(topic, None)

    async def close(self) -> None:
        for subscription in set().union(*self._by_topic.values()):
            subscription.end()
        if self._route is not None:
            await self._route.close()

    def _hear(self, data: bytes) -> None:
        try:
            packet = self._decoder.decode(data)
        except msgspec.DecodeError:
            log.debug("ignored a packet on the bus that is not ours")
            return
        if packet.sender != self._sender:
            self._spread(packet.events)

    def _missed(self) -> None:
        self._spread(map(Event, list(self._by_topic)))

    def _spread(self, events: Iterable[Event]) -> None:
        for one in events:
            for subscription in self._by_topic.get(one.topic, ()):
                subscription.take(one)


class Subscription:
    """`async with db.subscribe("task") as events: async for event in events: …`; ends when the database is closed."""

    def __init__(self, bus: Bus, topics: tuple[str, ...]) -> None:
        self.topics = frozenset(topics)
        self._bus = bus
        self._waiting: dict[Event, None] = {}
        self._news = asyncio.Event()
        self._ended = False

    async def __aenter__(self) -> Self:
        self._bus.add(self)
        try:
            await self._bus.listen()
        except BaseException:
            self._bus.remove(self)
            raise
        return self

    async def __aexit__(self, *exception: object) -> None:
        self._bus.remove(self)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        while not self._waiting:
            if self._ended:
                raise StopAsyncIteration
            self._news.clear()
            await self._news.wait()
        first = next(iter(self._waiting))
        del self._waiting[first]
        return first

    def take(self, one: Event) -> None:
        self._waiting[one] = None
        if len(self._waiting) > MOST_WAITING:
            self._waiting = {Event(one.topic): None for one in self._waiting}
        self._news.set()

    def end(self) -> None:
        self._ended = True
        self._news.set()


def packets(sender: str, events: Iterable[Event]) -> list[bytes]:
    """The events in as few packets as hold them all."""
    full: list[bytes] = []
    some: list[Event] = []
    size = 0
    for one in events:
        length = len(msgspec.json.encode(one)) + 1
        if some and size + length > LONGEST_PACKET - 100:
            full.append(msgspec.json.encode(Packet(sender, some)))
            some, size = [], 0
        some.append(one)
        size += length
    if some:
        full.append(msgspec.json.encode(Packet(sender, some)))
    return full
