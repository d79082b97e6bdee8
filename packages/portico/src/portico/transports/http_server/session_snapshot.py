"""Snapshot of a session, from which another process can continue it."""

from __future__ import annotations

from msgspec import Struct

from portico.auth.principal import Principal
from portico.rpc.handshake.session import SessionState


class EventSnapshot(Struct, array_like=True):
    """Stored event that a client may request again."""

    stream: str
    number: int
    message: bytes


class SessionSnapshot(Struct, kw_only=True, omit_defaults=True):
    """Serializable session. It contains the events if its worker had time to write them."""

    facts: SessionState
    principal: Principal | None = None
    address: str = ""
    # Number of takeovers: stream and event numbers continue beyond all earlier ones.
    moves: int = 0
    events: list[EventSnapshot] = []
    events_of_get: list[EventSnapshot] = []
    notices: list[bytes] = []
    questions: list[bytes] = []
    listened: bool = False
