"""Change events that transactions publish to subscribers.

An event is a hint to read the store, sent after the commit. Within a process it arrives immediately; other processes
receive it through an EventTransport, which may lose some. A subscriber therefore reads when it starts, at each event,
and periodically.

Queues are bounded: equal pending events are merged, and on overflow only their topics remain.

Any role of a PostgreSQL server may NOTIFY, so packets are signed there with a key that is not in the database, and
carry a number and a time against replay: a packet that was sent before the receiver listened, or that it may have
missed, is only a hint. Without a key a packet is only a hint: its payloads are dropped and
subscribers read the store. A transport that other users cannot write to needs no key.
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

from portico.caching import LruCache
from portico.store.keys import SigningKeys
from portico.store.transaction import Event

log = logging.getLogger("portico")

# A subscriber that is this far behind reads everything anyway.
MAX_PENDING_EVENTS = 1000
# The payload of a NOTIFY is limited to 8000 bytes (PostgreSQL, NOTIFY).
MAX_PACKET_BYTES = 7900
# Maximum clock difference between machines: events of older packets lose their payloads.
MAX_PACKET_AGE_SECONDS = 300.0
# Each process is a sender. If one is evicted, its old packets count as new, but only within their maximum age.
MAX_SENDERS = 4096

_PURPOSE = b"bus packets"
# Length of the signature in hexadecimal digits, before the dot.
_SIGNATURE_CHARS = 64


class EventPacket(Struct, frozen=True, array_like=True):
    """Events of one sender, with an increasing number and the sender's time."""

    sender: str
    events: list[Event]
    number: int = 0
    sent_at: float = 0.0


class EventTransport(Protocol):
    """Transport to other processes."""

    def send(self, packets: list[bytes]) -> None:
        """Send packets without blocking and without raising."""

    async def listen(self, on_packet: Callable[[bytes], None], on_gap: Callable[[], None]) -> None:
        """Start receiving packets. `on_gap` is called after packets may have been lost."""

    async def close(self) -> None: ...


class PacketSignatures:
    """Signs outgoing packets and verifies incoming ones."""

    def __init__(self, keys: SigningKeys) -> None:
        self._keys = keys
        self._decoder = msgspec.json.Decoder(EventPacket)
        # Highest number received from each sender.
        self._numbers: LruCache[str, int] = LruCache(MAX_SENDERS)
        # Packets sent before this time were not received here, so their numbers are unknown: a copy could be a replay.
        self._not_before = time.time()
        self._has_warned = False

    def sign(self, data: bytes) -> bytes:
        return self._keys.sign(_PURPOSE, data).hex().encode() + b"." + data if self._keys.keys else data

    def open(self, data: bytes) -> EventPacket | None:
        """Return the packet, without payloads unless it is authentic and new, or None if the signature is wrong."""
        signature, body = b"", data
        if data[_SIGNATURE_CHARS : _SIGNATURE_CHARS + 1] == b".":
            signature, body = data[:_SIGNATURE_CHARS], data[_SIGNATURE_CHARS + 1 :]
        if self._keys.keys and not self._is_authentic(signature, body):
            self._warn()
            return None
        packet = self._decoder.decode(body)
        if self._keys.keys and self._is_new(packet):
            return packet
        # Payloads of unauthenticated packets are not trusted, but the topics are harmless hints.
        return EventPacket(packet.sender, [Event(event.topic) for event in packet.events])

    def _is_authentic(self, signature: bytes, body: bytes) -> bool:
        try:
            result = bytes.fromhex(signature.decode("ascii"))
        except ValueError:
            return False
        return len(result) * 2 == _SIGNATURE_CHARS and self._keys.verify(_PURPOSE, body, result)

    def reset(self) -> None:
        """Distrust the payloads of all packets that were sent until now: some may have been missed."""
        self._not_before = time.time()

    def _is_new(self, packet: EventPacket) -> bool:
        if packet.sent_at < self._not_before or abs(time.time() - packet.sent_at) > MAX_PACKET_AGE_SECONDS:
            return False
        if packet.number <= self._numbers.peek(packet.sender, 0):
            return False
        self._numbers[packet.sender] = packet.number
        return True

    def _warn(self) -> None:
        if not self._has_warned:
            self._has_warned = True
            log.warning(
                "ignored a message on the database's notification channel: its signature is missing or wrong. All "
                "processes that share the database need the same PORTICO_ENCRYPTION_KEYS"
            )


class EventBus:
    """Event bus on the event loop. `keys` sign packets; None: other users cannot write to the transport."""

    def __init__(self, transport: EventTransport | None, keys: SigningKeys | None = None) -> None:
        self._transport = transport
        self._signatures = None if keys is None else PacketSignatures(keys)
        self._number = 0
        self._sender = secrets.token_hex(6)
        self._by_topic: dict[str, set[Subscription]] = {}
        self._listening: asyncio.Task[None] | None = None
        self._decoder = msgspec.json.Decoder(EventPacket)

    def publish(self, events: Iterable[Event]) -> None:
        """Deliver committed events here and to other processes."""
        unique_events = dict.fromkeys(events)
        self._dispatch(unique_events)
        if self._transport is not None:
            self._transport.send(self._encode_packets(unique_events))

    def _encode_packets(self, events: Iterable[Event]) -> list[bytes]:
        """Return the events in as few packets as hold them all."""
        packets: list[bytes] = []
        for part in split_into_packets(events):
            self._number += 1
            data = msgspec.json.encode(EventPacket(self._sender, part, self._number, time.time()))
            packets.append(data if self._signatures is None else self._signatures.sign(data))
        return packets

    async def listen(self) -> None:
        """Start receiving from other processes, with the first subscription."""
        if self._transport is None:
            return
        if self._listening is None or (self._listening.done() and self._listening.exception() is not None):
            if self._signatures is not None:
                self._signatures.reset()
            self._listening = asyncio.ensure_future(self._transport.listen(self._on_packet, self._on_gap))
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
            subscription.close()
        if self._transport is not None:
            await self._transport.close()

    def _on_packet(self, data: bytes) -> None:
        """Process a packet, which any role of the database server may have sent."""
        if len(data) > MAX_PACKET_BYTES:
            return
        try:
            packet = self._decoder.decode(data) if self._signatures is None else self._signatures.open(data)
        except (ValueError, msgspec.DecodeError, RecursionError):
            log.debug("ignored an unreadable packet on the bus")
            return
        # The own events were delivered when they were published.
        if packet is not None and packet.sender != self._sender:
            self._dispatch(packet.events)

    def _on_gap(self) -> None:
        if self._signatures is not None:
            self._signatures.reset()
        self._dispatch(map(Event, list(self._by_topic)))

    def _dispatch(self, events: Iterable[Event]) -> None:
        for event in events:
            for subscription in self._by_topic.get(event.topic, ()):
                subscription.deliver(event)


class Subscription:
    """Async iterator over events: `async with db.subscribe("task") as events: async for event in events: …`.

    It ends when the database is closed.
    """

    def __init__(self, bus: EventBus, topics: tuple[str, ...]) -> None:
        self.topics = frozenset(topics)
        self._bus = bus
        self._pending: dict[Event, None] = {}
        self._wakeup = asyncio.Event()
        self._is_closed = False

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
        while not self._pending:
            if self._is_closed:
                raise StopAsyncIteration
            self._wakeup.clear()
            await self._wakeup.wait()
        first = next(iter(self._pending))
        del self._pending[first]
        return first

    def deliver(self, event: Event) -> None:
        self._pending[event] = None
        # Overflow: keep one event per topic without payload, which tells the subscriber to read everything.
        if len(self._pending) > MAX_PENDING_EVENTS:
            self._pending = {Event(event.topic): None for event in self._pending}
        self._wakeup.set()

    def close(self) -> None:
        self._is_closed = True
        self._wakeup.set()


def split_into_packets(events: Iterable[Event]) -> Iterable[list[Event]]:
    """Split events into lists that each fit into a packet."""
    some: list[Event] = []
    size = 0
    for event in events:
        length = len(msgspec.json.encode(event)) + 1
        if some and size + length > MAX_PACKET_BYTES - 200:
            yield some
            some, size = [], 0
        some.append(event)
        size += length
    if some:
        yield some
