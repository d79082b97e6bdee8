"""Cursors: where a page ended, sealed. What comes back is what was given out, and nobody can read it on the way.

A position holds names of folders and numbers of entries, which privacy may have taken out of the page itself. So it is
not only signed: it is encrypted with HMAC-SHA-256 as a stream, under a nonce of its own, and then signed.
"""

from __future__ import annotations

import hmac
import os
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Any

import msgspec

from portico.services.system.errors import InvalidArgument

LONGEST_CURSOR = 16 * 1024
_NONCE, _MAC, _BLOCK = 12, 16, 32


class Cursors:
    """Gives cursors out and takes them back. A cursor belongs to the question that it was given for."""

    def __init__(self, key: bytes | None = None) -> None:
        key = key or os.urandom(32)
        self._reading = hmac.digest(key, b"cursor: reading", "sha256")
        self._signing = hmac.digest(key, b"cursor: signing", "sha256")

    def issue(self, question: Any, position: Any) -> str:
        nonce = os.urandom(_NONCE)
        sealed = nonce + self._stream(nonce, msgspec.json.encode(position))
        return urlsafe_b64encode(self._mac(question, sealed) + sealed).decode().rstrip("=")

    def redeem(self, cursor: str, question: Any) -> Any:
        """The position, or one answer for every way in which a cursor can be wrong."""
        try:
            if len(cursor) > LONGEST_CURSOR:
                raise ValueError
            data = urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
            mac, sealed = data[:_MAC], data[_MAC:]
            if hmac.compare_digest(mac, self._mac(question, sealed)):
                return msgspec.json.decode(self._stream(sealed[:_NONCE], sealed[_NONCE:]))
        except ValueError:
            pass
        raise InvalidArgument(
            "The cursor was not issued for this query. Repeat the query with the same arguments and the nextCursor of "
            "its last page, or begin without a cursor."
        )

    def _stream(self, nonce: bytes, data: bytes) -> bytes:
        """Data made unreadable, or readable again: it is the same."""
        blocks = range((len(data) + _BLOCK - 1) // _BLOCK)
        pad = b"".join(hmac.digest(self._reading, nonce + n.to_bytes(4, "big"), "sha256") for n in blocks)
        return bytes(a ^ b for a, b in zip(data, pad, strict=False))

    def _mac(self, question: Any, sealed: bytes) -> bytes:
        asked = msgspec.json.encode(question, order="deterministic")
        return hmac.digest(self._signing, len(asked).to_bytes(4, "big") + asked + sealed, "sha256")[:_MAC]
