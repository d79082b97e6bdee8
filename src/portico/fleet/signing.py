"""What the workers of a fleet sign with the key that they share: the ids of sessions, and requests that are sent on.

An id says which worker began the session, so that it is found without a search; and a signature, that no client has
made it up.
"""

from __future__ import annotations

import hmac
import os
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from hashlib import sha256

import msgspec
from msgspec import Struct

from portico.auth.principal import Principal
from portico.transport.http.response import Request

_RANDOM, _WORKER, _MAC = 16, 8, 12
# How long a request that is sent on may take to arrive.
LIFETIME_SECONDS = 60.0
MOST_SEEN = 100_000


class SessionIds:
    """Makes and reads the ids of sessions."""

    def __init__(self, key: bytes, worker: str) -> None:
        self._key = hmac.digest(key, b"session ids", "sha256")
        self._worker = bytes.fromhex(worker)

    def make(self) -> str:
        said = os.urandom(_RANDOM) + self._worker
        return urlsafe_b64encode(said + self._mac(said)).decode()

    def owner(self, id: str) -> str | None:
        """The worker that began a session; None for what is no id of ours."""
        try:
            data = urlsafe_b64decode(id.encode("ascii"))
        except ValueError:
            return None
        said, mac = data[: _RANDOM + _WORKER], data[_RANDOM + _WORKER :]
        if len(mac) != _MAC or not hmac.compare_digest(mac, self._mac(said)):
            return None
        return said[_RANDOM:].hex()

    def _mac(self, said: bytes) -> bytes:
        return hmac.digest(self._key, said, "sha256")[:_MAC]


class Forwarding(Struct, kw_only=True, omit_defaults=True):
    """What one worker tells another about a request that it sends on."""

    to: str
    principal: Principal | None = None
    peer: str = ""
    # Where it is mounted, in front of its path.
    root: str = ""
    hops: int = 1
    # Whether the one that gets it is to take the session over, or to find it.
    seeks: bool = False
    at: float = 0.0
    nonce: str = ""


_decoder = msgspec.json.Decoder(Forwarding)


class Forwardings:
    """Seals and opens them. Each is opened once."""

    def __init__(self, key: bytes) -> None:
        self._key = hmac.digest(key, b"requests that are sent on", "sha256")
        self._seen: dict[str, float] = {}

    def seal(self, envelope: Forwarding, request: Request) -> bytes:
        envelope.at, envelope.nonce = time.time(), os.urandom(12).hex()
        said = urlsafe_b64encode(msgspec.json.encode(envelope))
        return said + b"." + self._mac(said, request)

    def open(self, sealed: bytes, request: Request) -> Forwarding | None:
        said, _, mac = sealed.rpartition(b".")
        if not hmac.compare_digest(mac, self._mac(said, request)):
            return None
        envelope = _decoder.decode(urlsafe_b64decode(said))
        now = time.time()
        if abs(now - envelope.at) > LIFETIME_SECONDS or envelope.nonce in self._seen:
            return None
        self._forget(now)
        self._seen[envelope.nonce] = now
        return envelope

    def _forget(self, now: float) -> None:
        while self._seen:
            oldest = next(iter(self._seen))
            if now - self._seen[oldest] <= 2 * LIFETIME_SECONDS and len(self._seen) < MOST_SEEN:
                return
            del self._seen[oldest]

    def _mac(self, said: bytes, request: Request) -> bytes:
        target = f"{request.method} {request.path}?{request.query}".encode()
        session = request.headers.get(b"mcp-session-id", b"")
        parts = b"\0".join([said, target, session, sha256(request.body).digest()])
        return hmac.digest(self._key, parts, "sha256").hex().encode()
