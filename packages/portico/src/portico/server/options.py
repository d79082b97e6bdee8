"""Types of Server options."""

from __future__ import annotations

from typing import Protocol

from portico.protocol.errors import PorticoError
from portico.server.components.resources import ResourceSecurity as ResourceSecurity
from portico.server.components.validation import CacheHint as CacheHint
from portico.server.registry.registration import ComponentDefaults as ComponentDefaults


class InvalidRequestState(PorticoError):
    """Raised by a codec for a state that it did not seal. The reason is not sent to the client."""


class StateCodec(Protocol):
    """Codec that encrypts or signs the state which clients carry from one round to the next."""

    def seal(self, payload: bytes) -> str: ...
    def unseal(self, token: str) -> bytes: ...
