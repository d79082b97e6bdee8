"""What a transaction says has changed. Apart from the bus that carries it, which needs a loop."""

from __future__ import annotations

from msgspec import Struct

from portico.wire.errors import UsageError

LONGEST_TOPIC = 100
# In characters, of which JSON makes six bytes at most: a packet then fits into what NOTIFY takes, which is 8,000 bytes.
LONGEST_PAYLOAD = 1000


class Event(Struct, frozen=True, array_like=True, gc=False):
    """Something about the topic has changed. An empty payload may mean anything about it."""

    topic: str
    payload: str = ""


def event(topic: str, payload: str) -> Event:
    if not 0 < len(topic) <= LONGEST_TOPIC:
        raise UsageError(f"A topic has 1 to {LONGEST_TOPIC} characters, not {len(topic)}.")
    try:
        (topic + payload).encode()
    except UnicodeEncodeError:
        raise UsageError("Topics and payloads are text, and half a surrogate pair is not.") from None
    return Event(topic, payload if len(payload) <= LONGEST_PAYLOAD else "")
