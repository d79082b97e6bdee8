"""Encrypted pagination cursors.

A position contains directory names and entry ids that anonymization may have removed from the page, so a signature is
not sufficient: the client must not be able to read it. AES-GCM provides both, and binds the cursor to its query. No
state is held in memory, so a cursor works in every process that has the key, and after a restart.
"""

from __future__ import annotations

import hmac
import os
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Any

import msgspec

from portico_services.system.errors import MissingDependency, SystemToolError, require_package

MAX_CURSOR_CHARS = 16 * 1024
_NONCE_BYTES = 12


class EncryptedCursorCodec:
    """Encodes and decodes cursors. A cursor is valid only for the query that it was issued for."""

    def __init__(self, key: bytes | None = None) -> None:
        # A derived key: the same secret also keys the tokens of the anonymizer.
        self._key = hmac.digest(key or os.urandom(32), b"cursors", "sha256")

    def _cipher(self) -> Any:
        return require_package("cryptography.hazmat.primitives.ciphers.aead", "Paging by cursor").AESGCM(self._key)

    def encode(self, query: Any, position: Any, problems: list[str]) -> str | None:
        """Return a cursor. If the required package is missing, return None and append the reason to `problems`."""
        try:
            cipher = self._cipher()
        except MissingDependency as failure:
            problems.append(str(failure))
            return None
        # GCM must never use a nonce twice with one key; 96 random bits suffice for billions of cursors.
        nonce = os.urandom(_NONCE_BYTES)
        sealed: bytes = cipher.encrypt(nonce, msgspec.json.encode(position), _context(query))
        return urlsafe_b64encode(nonce + sealed).decode().rstrip("=")

    def decode(self, cursor: str, query: Any) -> Any:
        """Return the position. Every kind of invalid cursor raises the same error."""
        cipher = self._cipher()
        try:
            # Before decoding, so that a huge argument costs nothing.
            if len(cursor) > MAX_CURSOR_CHARS:
                raise ValueError
            data = urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
            return msgspec.json.decode(cipher.decrypt(data[:_NONCE_BYTES], data[_NONCE_BYTES:], _context(query)))
        # One message for all causes: a caller must not learn whether a forged cursor failed to decrypt or to parse.
        except (ValueError, require_package("cryptography.exceptions", "Paging by cursor").InvalidTag):
            raise SystemToolError(
                "The cursor does not belong to this query. Repeat the query with the same arguments and the "
                "nextCursor of its last page, or start without a cursor.",
                outcome="invalid",
            ) from None


def _context(query: Any) -> bytes:
    # Authenticated but not encrypted: a cursor of another query fails to decrypt.
    return b"cursor" + msgspec.json.encode(query, order="deterministic")
