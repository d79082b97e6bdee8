"""Sessions without server state: the id, which the client sends, contains the negotiated values.

Any process with the same key can serve such a session. Features that require all requests at one process are not
available: server-to-client requests, GET streams, subscriptions, and cancellation by another request.
"""

from __future__ import annotations

import hmac
import zlib
from base64 import urlsafe_b64decode, urlsafe_b64encode

import msgspec

from portico.protocol.lifecycle import InitializeParams
from portico.protocol.meta import Implementation
from portico.protocol.versions import negotiate_version
from portico.rpc.handshake.session import SessionState

_MAC_BYTES = 16
# Header space is limited. Client information beyond name and version is omitted.
MAX_SESSION_ID_CHARS = 1024
MAX_STATE_BYTES = 4096
MAX_CLIENT_INFO_CHARS = 200


class StatelessSessionIds:
    """Encodes and decodes session ids that contain the session state, authenticated with a MAC."""

    def __init__(self, key: bytes) -> None:
        self._key = hmac.digest(key, b"carried sessions", "sha256")

    def encode(self, params: InitializeParams, owner: str | None) -> str:
        """Return the id of a new session of this owner."""
        about = params.client_info
        client = Implementation(about.name[:MAX_CLIENT_INFO_CHARS], about.version[:MAX_CLIENT_INFO_CHARS])
        facts = SessionState(protocol_version=negotiate_version(params.protocol_version), client=client, operating=True)
        payload = zlib.compress(msgspec.json.encode(facts))
        return urlsafe_b64encode(self._mac(payload, owner) + payload).decode()

    def decode(self, id: str, owner: str | None) -> SessionState | None:
        """Return the state of a session, or None if the id is invalid or belongs to another owner."""
        if len(id) > MAX_SESSION_ID_CHARS:
            return None
        try:
            data = urlsafe_b64decode(id.encode("ascii"))
            if not hmac.compare_digest(data[:_MAC_BYTES], self._mac(data[_MAC_BYTES:], owner)):
                return None
            payload = zlib.decompressobj().decompress(data[_MAC_BYTES:], MAX_STATE_BYTES)
            return msgspec.json.decode(payload, type=SessionState)
        except (ValueError, zlib.error, msgspec.DecodeError):
            return None

    def _mac(self, payload: bytes, owner: str | None) -> bytes:
        owner_bytes = b"" if owner is None else hmac.digest(self._key, owner.encode(), "sha256")
        return hmac.digest(self._key, owner_bytes + payload, "sha256")[:_MAC_BYTES]
