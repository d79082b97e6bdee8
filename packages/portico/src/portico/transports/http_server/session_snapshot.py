"""What is known of a session, so that another process can go on with it."""

from __future__ import annotations

from msgspec import Struct

from portico.auth.principal import Principal
from portico.rpc.handshake.session import SessionFacts


class EventMemo(Struct, array_like=True):
    """An event that was said, and may be asked for again."""

    stream: str
    number: int
    message: bytes


class SessionMemo(Struct, kw_only=True, omit_defaults=True):
    """A session as it is written down. The events are there where its worker had the time to write them."""

    facts: SessionFacts
    principal: Principal | None = None
    address: str = ""
    # How often it was taken over: the numbers of streams and events go on beyond all that were given before.
    moves: int = 0
    events: list[EventMemo] = []
    events_of_get: list[EventMemo] = []
    notices: list[bytes] = []
    questions: list[bytes] = []
    listened: bool = False
