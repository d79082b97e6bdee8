"""Cursors: where a page ended, encrypted.

A position holds names of folders and numbers of entries that privacy may have taken out of the page itself, so a
signature is not enough: the client must not be able to read it. AES-GCM does both, and binds the cursor to its query.
Nothing is kept in memory, so a cursor works in every process that has the key, and after a restart.
"""

from __future__ import annotations

import hmac
import os
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Any

import msgspec

from portico_services.system.errors import InvalidArgument, MissingDependency, package

LONGEST_CURSOR = 16 * 1024
_NONCE = 12


class Cursors:
    """Issues cursors and reads them again. A cursor belongs to the query that it was issued for."""

    def __init__(self, key: bytes | None = None) -> None:
        # A key of its own: the same secret also makes the tokens that stand for names.
        self._key = hmac.digest(key or os.urandom(32), b"cursors", "sha256")

    def _cipher(self) -> Any:
        return package("cryptography.hazmat.primitives.ciphers.aead", "Paging by cursor").AESGCM(self._key)

    def issue(self, query: Any, position: Any, problems: list[str]) -> str | None:
        """A cursor. Where the package for it is missing there is none, and `problems` is told why."""
        try:
            cipher = self._cipher()
        except MissingDependency as failure:
            problems.append(str(failure))
            return None
        nonce = os.urandom(_NONCE)
        sealed: bytes = cipher.encrypt(nonce, msgspec.json.encode(position), _context(query))
        return urlsafe_b64encode(nonce + sealed).decode().rstrip("=")

    def redeem(self, cursor: str, query: Any) -> Any:
        """The position. There is one error for every way in which a cursor can be wrong."""
        cipher = self._cipher()
        try:
            if len(cursor) > LONGEST_CURSOR:
                raise ValueError
            data = urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
            return msgspec.json.decode(cipher.decrypt(data[:_NONCE], data[_NONCE:], _context(query)))
        except (ValueError, package("cryptography.exceptions", "Paging by cursor").InvalidTag):
            raise InvalidArgument(
                "The cursor was not issued for this query. Repeat the query with the same arguments and the nextCursor "
                "of its last page, or begin without a cursor."
            ) from None


def _context(query: Any) -> bytes:
    return b"cursor" + msgspec.json.encode(query, order="deterministic")
