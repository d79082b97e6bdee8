"""What the workers of a fleet sign with the key that they share: the ids of sessions, and requests that are sent on.

An id says which worker began the session, so that it is found without a search; and a signature, that no client has
made it up.
"""

from __future__ import annotations

import os
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from hashlib import sha256

import msgspec
from msgspec import Struct

from portico.auth.principal import Principal
from portico.store.keys import SigningKeys
from portico.transports.http_server.messages import Request

_RANDOM, _WORKER, _MAC, _WHOLE_MAC = 16, 8, 12, 32
_IDS, _SENT = b"session ids", b"requests that are sent on"
# How long a request that is sent on may take to arrive.
LIFETIME_SECONDS = 60.0
MOST_SEEN = 100_000


class SessionIds:
    """Makes and reads the ids of sessions."""

    def __init__(self, keys: SigningKeys, worker: str) -> None:
        self._keys = keys
        self._worker = bytes.fromhex(worker)

    def make(self) -> str:
        said = os.urandom(_RANDOM) + self._worker
        return urlsafe_b64encode(said + self._keys.sign(_IDS, said)[:_MAC]).decode()

    def owner(self, id: str) -> str | None:
        """The worker that began a session; None for what is no id of ours."""
        try:
            data = urlsafe_b64decode(id.encode("ascii"))
        except ValueError:
            return None
        said, mac = data[: _RANDOM + _WORKER], data[_RANDOM + _WORKER :]
        if len(mac) != _MAC or not self._keys.is_signed(_IDS, said, mac):
            return None
        return said[_RANDOM:].hex()


class Forwarding(Struct, kw_only=True, omit_defaults=True):
    """What one worker tells another about a request that it sends on."""

    to: str
    principal: Principal | None = None
    # When that ends.
    until: float | None = None
    peer: str = ""
    # Where it is mounted, in front of its path.
    root: str = ""
    # Whether it came by TLS.
    secure: bool = False
    hops: int = 1
    # Whether the one that gets it is to take the session over, or to find it.
    seeks: bool = False
    at: float = 0.0
    nonce: str = ""
    # The digest of its body, so that the seal can be looked at before that is read.
    body: str = ""


_decoder = msgspec.json.Decoder(Forwarding)


class Forwardings:
    """Seals and opens them. Each is opened once."""

    def __init__(self, keys: SigningKeys) -> None:
        self._keys = keys
        # How far the clock of the store is ahead of ours: machines do not agree on the time.
        self.ahead = 0.0
        self._seen: dict[str, float] = {}
        # What was sealed before this may have been opened and forgotten.
        self._forgotten = 0.0

    def seal(self, envelope: Forwarding, request: Request) -> bytes:
        envelope.at, envelope.nonce = self._now(), os.urandom(12).hex()
        envelope.body = sha256(request.body).hexdigest()
        said = urlsafe_b64encode(msgspec.json.encode(envelope))
        return said + b"." + self._keys.sign(_SENT, _covered(said, request, envelope.body)).hex().encode()

    def may_be_ours(self, sealed: bytes, request: Request) -> bool:
        """Return whether the signature is valid for the body that the envelope announces, which may then be read."""
        return self._read(sealed, request) is not None

    def open(self, sealed: bytes, request: Request) -> Forwarding | None:
        envelope = self._read(sealed, request, sha256(request.body).hexdigest())
        if envelope is None or envelope.at <= self._forgotten or envelope.nonce in self._seen:
            return None
        self._forget()
        self._seen[envelope.nonce] = envelope.at
        return envelope

    def _read(self, sealed: bytes, request: Request, body: str | None = None) -> Forwarding | None:
        """None: it is not ours, or not of now. `body`: the digest of the body, if that was read."""
        said, _, shown = sealed.rpartition(b".")
        try:
            mac = bytes.fromhex(shown.decode("ascii"))
            envelope = _decoder.decode(urlsafe_b64decode(said))
            covered = _covered(said, request, body or envelope.body)
        except (ValueError, msgspec.DecodeError, RecursionError):
            return None
        if len(mac) != _WHOLE_MAC or not self._keys.is_signed(_SENT, covered, mac):
            return None
        return envelope if abs(self._now() - envelope.at) <= LIFETIME_SECONDS else None

    def _now(self) -> float:
        return time.time() + self.ahead

    def _forget(self) -> None:
        """Those that are too old to be opened; and where there are too many, the oldest, with all that are older."""
        old = self._now() - LIFETIME_SECONDS
        while self._seen:
            nonce, at = next(iter(self._seen.items()))
            if at >= old and len(self._seen) < MOST_SEEN:
                return
            self._forgotten = max(self._forgotten, at)
            del self._seen[nonce]


def _covered(said: bytes, request: Request, body: str) -> bytes:
    """All of a request that counts."""
    target = f"{request.method} {request.path}?{request.query}".encode()
    session = request.headers.get(b"mcp-session-id", b"")
    return b"\0".join([said, target, session, bytes.fromhex(body)])
