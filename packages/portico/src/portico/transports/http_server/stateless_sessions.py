"""Sessions that no process has: what the handshake has settled stands in the id, which the client carries.

Any process with the same key goes on with such a session. What would need one place for all of its requests is not
there: questions to the client, streams by GET, subscriptions, and cancelling a call by another request.
"""

from __future__ import annotations

import hmac
import zlib
from base64 import urlsafe_b64decode, urlsafe_b64encode

import msgspec

from portico.protocol.lifecycle import InitializeParams
from portico.protocol.meta import Implementation
from portico.protocol.versions import negotiate
from portico.rpc.handshake.session import SessionFacts

_MAC = 16
# Headers have little room. What a client says of itself beyond its name is left out.
LONGEST_ID = 1024
LONGEST_FACTS = 4096
LONGEST_NAME = 200


class CarriedSessions:
    """Makes and reads ids that say everything about their sessions."""

    def __init__(self, key: bytes) -> None:
        self._key = hmac.digest(key, b"carried sessions", "sha256")

    def make(self, params: InitializeParams, owner: str | None) -> str:
        """The id of a session that belongs to this identity."""
        about = params.client_info
        client = Implementation(about.name[:LONGEST_NAME], about.version[:LONGEST_NAME])
        facts = SessionFacts(revision=negotiate(params.protocol_version), client=client, operating=True)
        said = zlib.compress(msgspec.json.encode(facts))
        return urlsafe_b64encode(self._mac(said, owner) + said).decode()

    def read(self, id: str, owner: str | None) -> SessionFacts | None:
        """None for what is no id of ours, or belongs to another identity."""
        if len(id) > LONGEST_ID:
            return None
        try:
            data = urlsafe_b64decode(id.encode("ascii"))
            if not hmac.compare_digest(data[:_MAC], self._mac(data[_MAC:], owner)):
                return None
            said = zlib.decompressobj().decompress(data[_MAC:], LONGEST_FACTS)
            return msgspec.json.decode(said, type=SessionFacts)
        except (ValueError, zlib.error, msgspec.DecodeError):
            return None

    def _mac(self, said: bytes, owner: str | None) -> bytes:
        whose = b"" if owner is None else hmac.digest(self._key, owner.encode(), "sha256")
        return hmac.digest(self._key, whose + said, "sha256")[:_MAC]
