"""Signatures with the key that workers share: session ids and forwarded requests.

A session id contains the worker that started the session, so that it is found without a lookup, and a signature, so
that clients cannot forge it.
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
from portico.transports.http_server.messages import HttpRequest

_RANDOM_BYTES, _WORKER_ID_BYTES, _SESSION_ID_MAC_BYTES, _FORWARD_MAC_BYTES = 16, 8, 12, 32
_SESSION_ID_PURPOSE, _FORWARD_PURPOSE = b"session ids", b"requests that are sent on"
# Validity of a forwarded request.
FORWARD_TTL_SECONDS = 60.0
MAX_SEEN_NONCES = 100_000


class SignedSessionIds:
    """Creates and verifies session ids."""

    def __init__(self, keys: SigningKeys, worker: str) -> None:
        self._keys = keys
        self._worker = bytes.fromhex(worker)

    def new_id(self) -> str:
        # The id names the worker that created it, so most requests find their session without reading the
        # store.
        payload = os.urandom(_RANDOM_BYTES) + self._worker
        return urlsafe_b64encode(
            payload + self._keys.sign(_SESSION_ID_PURPOSE, payload)[:_SESSION_ID_MAC_BYTES]
        ).decode()

    def owner_of(self, id: str) -> str | None:
        """Return the worker that started a session, or None if the id is invalid."""
        try:
            data = urlsafe_b64decode(id.encode("ascii"))
        except ValueError:
            return None
        payload, mac = data[: _RANDOM_BYTES + _WORKER_ID_BYTES], data[_RANDOM_BYTES + _WORKER_ID_BYTES :]
        # Without the signature, clients could make workers look up arbitrary ids in the store.
        if len(mac) != _SESSION_ID_MAC_BYTES or not self._keys.verify(_SESSION_ID_PURPOSE, payload, mac):
            return None
        return payload[_RANDOM_BYTES:].hex()


class ForwardClaims(Struct, kw_only=True, omit_defaults=True):
    """Signed claims about a forwarded request."""

    to: str
    principal: Principal | None = None
    # Expiry of the principal's credentials.
    until: float | None = None
    peer: str = ""
    # Mount point, in front of the path.
    root: str = ""
    # Whether the request arrived over TLS.
    secure: bool = False
    hops: int = 1
    # Whether the receiver should locate or take over the session.
    seeks: bool = False
    at: float = 0.0
    nonce: str = ""
    # Digest of the body, so that the signature can be verified before the body is read.
    body: str = ""


_decoder = msgspec.json.Decoder(ForwardClaims)


class ForwardSigner:
    """Signs and verifies claims. Each signature is accepted once (replay protection)."""

    def __init__(self, keys: SigningKeys) -> None:
        self._keys = keys
        # Offset of the store's clock: the clocks of machines differ.
        self.clock_offset = 0.0
        self._seen_nonces: dict[str, float] = {}
        # Claims issued before this time may have been seen and evicted, so they are rejected.
        self._min_issued_at = 0.0

    def sign(self, claims: ForwardClaims, request: HttpRequest) -> bytes:
        """Sign claims for a request.

        Relayed claims keep their nonce and time: with new ones, a copy of a request would be accepted once by each
        worker that relays it.
        """
        if not claims.nonce:
            claims.at, claims.nonce = self._now(), os.urandom(12).hex()
        claims.body = sha256(request.body).hexdigest()
        payload = urlsafe_b64encode(msgspec.json.encode(claims))
        return (
            payload
            + b"."
            + self._keys.sign(_FORWARD_PURPOSE, _signed_content(payload, request, claims.body)).hex().encode()
        )

    def precheck(self, token: bytes, request: HttpRequest) -> bool:
        """Return whether the signature is valid for the body digest in the claims. The body may then be read."""
        return self._decode(token, request) is not None

    def verify(self, token: bytes, request: HttpRequest) -> ForwardClaims | None:
        envelope = self._decode(token, request, sha256(request.body).hexdigest())
        # A captured request can be replayed only within its lifetime, and within it the nonce is remembered.
        if envelope is None or envelope.at <= self._min_issued_at or envelope.nonce in self._seen_nonces:
            return None
        self._evict_nonces()
        self._seen_nonces[envelope.nonce] = envelope.at
        return envelope

    def _decode(self, sealed: bytes, request: HttpRequest, body: str | None = None) -> ForwardClaims | None:
        """Verify and decode claims. Return None if they are invalid or expired. `body` is the digest of the body if it
        was read.
        """
        payload, _, hex_mac = sealed.rpartition(b".")
        try:
            mac = bytes.fromhex(hex_mac.decode("ascii"))
            envelope = _decoder.decode(urlsafe_b64decode(payload))
            covered = _signed_content(payload, request, body or envelope.body)
        except (ValueError, msgspec.DecodeError, RecursionError):
            return None
        if len(mac) != _FORWARD_MAC_BYTES or not self._keys.verify(_FORWARD_PURPOSE, covered, mac):
            return None
        # `abs`: claims from the future would outlive the memory of their nonce.
        return envelope if abs(self._now() - envelope.at) <= FORWARD_TTL_SECONDS else None

    def _now(self) -> float:
        return time.time() + self.clock_offset

    def _evict_nonces(self) -> None:
        """Remove expired nonces. Above the limit, remove the oldest and reject everything issued before it."""
        old = self._now() - FORWARD_TTL_SECONDS
        while self._seen_nonces:
            nonce, at = next(iter(self._seen_nonces.items()))
            if at >= old and len(self._seen_nonces) < MAX_SEEN_NONCES:
                return
            self._min_issued_at = max(self._min_issued_at, at)
            del self._seen_nonces[nonce]


def _signed_content(claims: bytes, request: HttpRequest, body: str) -> bytes:
    """Return the parts of a request that the signature covers."""
    target = f"{request.method} {request.path}?{request.query}".encode()
    # Covered as well, otherwise a valid signature could be moved to a request for another session.
    session = request.headers.get(b"mcp-session-id", b"")
    return b"\0".join([claims, target, session, bytes.fromhex(body)])
