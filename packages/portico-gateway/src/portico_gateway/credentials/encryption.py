"""Secrets at rest: AES-GCM under a ring of keys.

The first key seals, every key of the ring opens, so a key is replaced by putting another before it: what the old one
sealed is opened by it, and sealed anew when it is next written (`outdated`). What is sealed for one place opens at no
other: the place is part of what is authenticated.
"""

from __future__ import annotations

import os
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from portico._lazy import LazyModule
from portico.protocol.errors import Error, UsageError
from portico.store.keys import SigningKeys, checked, configured_keys, load_keys

if TYPE_CHECKING:
    from portico.store import database as database_module
else:
    database_module = LazyModule("portico.store.database")  # clients start without a store

_NONCE = 12


class Unsealable(Error):
    """It was sealed with a key that is no longer on the ring, or it was tampered with."""


class KeyRing:
    """`keys` are texts or bytes of at least 16 bytes of randomness, the one in use first."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        if not keys:
            raise UsageError("a ring of keys needs a key")
        checked(keys)
        # Whatever the length of a secret, a key of AES has 32 bytes.
        self._keys = {_id_of(key): sha256(b"portico seal\0" + key).digest() for key in keys}
        self._first = _id_of(keys[0])
        # For rows that may be read, and must not be changed.
        self.signing = SigningKeys(keys)

    def seal(self, plain: bytes, place: str) -> str:
        nonce = os.urandom(_NONCE)
        sealed = _cipher(self._keys[self._first]).encrypt(nonce, plain, place.encode())
        return f"{self._first}.{urlsafe_b64encode(nonce + sealed).decode()}"

    def open(self, sealed: str, place: str) -> bytes:
        name, _, rest = sealed.partition(".")
        key = self._keys.get(name)
        if key is None:
            raise Unsealable(f"what is kept for {place.partition(' ')[0]} was sealed with a key that is not configured")
        from cryptography.exceptions import InvalidTag

        try:
            data = urlsafe_b64decode(rest)
            plain: bytes = _cipher(key).decrypt(data[:_NONCE], data[_NONCE:], place.encode())
        except (ValueError, InvalidTag):
            raise Unsealable(
                f"what is kept for {place.partition(' ')[0]} was changed, or is of another place"
            ) from None
        return plain

    def outdated(self, sealed: str) -> bool:
        """Whether it was sealed with another key than the one in use."""
        return sealed.partition(".")[0] != self._first


def ring_for(store: str | None, keys: Sequence[str]) -> KeyRing:
    """Return the key ring of a store: `keys` and PORTICO_SEALING_KEYS, else the key file beside a SQLite database.

    Raises UsageError for PostgreSQL without a key.
    """
    given = [*(key.encode() for key in keys if key), *configured_keys()]
    found = given or load_keys(*database_module.parse(store or ""))
    if not found:
        raise UsageError(
            "secrets in a database that several machines share need a key that they share: set PORTICO_SEALING_KEYS, "
            "or keys in the file"
        )
    return KeyRing(found)


def digest(secret: str) -> str:
    """What is kept of a secret that only has to be recognised. Ours are random, so no salt is needed."""
    return sha256(secret.encode()).hexdigest()


def _id_of(key: bytes) -> str:
    return sha256(b"portico key id\0" + key).hexdigest()[:12]


def _cipher(key: bytes) -> Any:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError:
        raise UsageError("sealing secrets needs cryptography: pip install 'portico[oauth]'") from None
    return AESGCM(key)
