"""Change events: what a transaction published, for its subscribers.

An event is a hint to look, sent after the commit. Within a process it arrives at once; other processes get it by a
Route, which may lose some. So a subscriber looks once when it begins, at each event, and now and then without one.

Queues are bounded: equal events that wait are one, and of too many only the topics are left.

Any role of a PostgreSQL server may NOTIFY, so a packet there is signed with a key that the database does not contain,
and is numbered and dated, so that a copy of it is not heard again. Without a key a packet is nothing but a hint: its
payloads are dropped, and subscribers read the store instead. A route that no other user can write to needs no key.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Iterable
from typing import Protocol, Self

import msgspec
from msgspec import Struct

from portico.store.keys import SigningKeys
from portico.store.transaction import Event

log = logging.getLogger("portico")

MOST_WAITING = 1000
MAX_PACKET_BYTES = 7900
# How far the clocks of two machines may differ: the events of an older packet are hints without payloads.
MAX_PACKET_AGE_SECONDS = 300.0
MAX_SENDERS = 4096

_PURPOSE = b"bus packets"
# The signature in hexadecimal digits, and a dot.
_SIGNATURE_CHARS = 64


class Packet(Struct, frozen=True, array_like=True):
    """Events of one sender, with a number that grows and the time by its clock."""

    sender: str
    events: list[Event]
    number: int = 0
    sent_at: float = 0.0


class Route(Protocol):
    """The way to other processes."""

    def send(self, packets: list[bytes]) -> None:
        """Without waiting, and without failing."""

    async def listen(self, hear: Callable[[bytes], None], missed: Callable[[], None]) -> None:
        """From when this returns, what others send is heard. `missed` is called after a gap."""

    async def close(self) -> None: ...


class PacketSignatures:
    """Signs packets, and verifies those of other processes."""

    def __init__(self, keys: SigningKeys) -> None:
        self._keys = keys
        self._decoder = msgspec.json.Decoder(Packet)
        # The highest number of each sender.
        self._numbers: dict[str, int] = {}
        self._has_warned = False

    def sign(self, data: bytes) -> bytes:
        return self._keys.sign(_PURPOSE, data).hex().encode() + b"." + data if self._keys.keys else data

    def open(self, data: bytes) -> Packet | None:
        """Return the packet, without payloads unless it is authentic and new; None if it is to be ignored."""
        signature, body = b"", data
        if data[_SIGNATURE_CHARS : _SIGNATURE_CHARS + 1] == b".":
            signature, body = data[:_SIGNATURE_CHARS], data[_SIGNATURE_CHARS + 1 :]
        if self._keys.keys and not self._is_authentic(signature, body):
            self._warn()
            return None
        packet = self._decoder.decode(body)
        if self._keys.keys and self._is_new(packet):
            return packet
        return Packet(packet.sender, [Event(event.topic) for event in packet.events])

    def _is_authentic(self, signature: bytes, body: bytes) -> bool:
        try:
            found = bytes.fromhex(signature.decode("ascii"))
        except ValueError:
            return False
        return len(found) * 2 == _SIGNATURE_CHARS and self._keys.is_signed(_PURPOSE, body, found)

    def _is_new(self, packet: Packet) -> bool:
        if abs(time.time() - packet.sent_at) > MAX_PACKET_AGE_SECONDS:
            return False
        if packet.number <= self._numbers.get(packet.sender, 0):
            return False
        self._numbers.pop(packet.sender, None)
        if len(self._numbers) >= MAX_SENDERS:
            # The sender that was silent for longest.
            del self._numbers[next(iter(self._numbers))]
        self._numbers[packet.sender] = packet.number
        return True

    def _warn(self) -> None:
        if not self._has_warned:
            self._has_warned = True
            log.warning(
                "ignored a message on the database's notification channel: its signature is missing or wrong. All "
                "processes that share the database need the same PORTICO_SEALING_KEYS"
            )


class Bus:
    """Lives on the loop. `keys` sign what is sent; None: no other user can write to the route."""

    def __init__(self, route: Route | None, keys: SigningKeys | None = None) -> None:
        self._route = route
        self._signatures = None if keys is None else PacketSignatures(keys)
        self._number = 0
        self._sender = secrets.token_hex(6)
        self._by_topic: dict[str, set[Subscription]] = {}
        self._listening: asyncio.Task[None] | None = None
        self._decoder = msgspec.json.Decoder(Packet)

    def tell(self, events: Iterable[Event]) -> None:
        """What was just committed here."""
        once = dict.fromkeys(events)
        self._spread(once)
        if self._route is not None:
            self._route.send(self._packed(once))

    def _packed(self, events: Iterable[Event]) -> list[bytes]:
        """Return the events in as few packets as hold them all."""
        packed: list[bytes] = []
        for some in parts(events):
            self._number += 1
            data = msgspec.json.encode(Packet(self._sender, some, self._number, time.time()))
            packed.append(data if self._signatures is None else self._signatures.sign(data))
        return packed

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
        """Take a packet that any role of the database server may have sent."""
        if len(data) > MAX_PACKET_BYTES:
            return
        try:
            packet = self._decoder.decode(data) if self._signatures is None else self._signatures.open(data)
        except (ValueError, msgspec.DecodeError, RecursionError):
            log.debug("ignored a packet on the bus that is not ours")
            return
        if packet is not None and packet.sender != self._sender:
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


def parts(events: Iterable[Event]) -> Iterable[list[Event]]:
    """Divide events into lists that each fit into a packet."""
    some: list[Event] = []
    size = 0
    for one in events:
        length = len(msgspec.json.encode(one)) + 1
        if some and size + length > MAX_PACKET_BYTES - 200:
            yield some
            some, size = [], 0
        some.append(one)
        size += length
    if some:
        yield some
