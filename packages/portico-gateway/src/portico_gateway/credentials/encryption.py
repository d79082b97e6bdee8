"""Encryption of secrets at rest: AES-GCM with a key ring.

The first key encrypts, every key of the ring decrypts. To rotate keys, put a new key in front: old values remain
readable and are encrypted again when they are next written (`needs_rotation`). The context of a value is authenticated,
so a ciphertext cannot be moved to another row.
"""

from __future__ import annotations

import os
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence
from hashlib import sha256
from typing import Any

from portico.protocol.errors import PorticoError, UsageError
from portico.store.keys import SigningKeys, configured_keys, load_keys, validate_keys

_NONCE = 12


class DecryptionFailed(PorticoError):
    """The key is no longer on the ring, or the ciphertext or its context was changed."""


class KeyRing:
    """Key ring. `keys` are secrets with at least 16 random bytes; the first one encrypts."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        if not keys:
            raise UsageError("a key ring must contain at least one key")
        validate_keys(keys)
        # Hash secrets of any length to the 32 bytes that AES-256 requires.
        # The prefix separates this use of the secret from the signing keys and the key IDs derived from the same
        # secret.
        self._keys = {_id_of(key): sha256(b"portico seal\0" + key).digest() for key in keys}
        self._primary_key_id = _id_of(keys[0])
        # For rows that may be readable but must not be changed.
        self.signing = SigningKeys(keys)

    def encrypt(self, plain: bytes, context: str) -> str:
        # A random 96-bit nonce; the number of encryptions per key stays far below the limit of 2^32 (NIST SP 800-38D).
        """Encrypt bytes for a context. The result starts with the ID of the key."""
        nonce = os.urandom(_NONCE)
        sealed = _cipher(self._keys[self._primary_key_id]).encrypt(nonce, plain, context.encode())
        return f"{self._primary_key_id}.{urlsafe_b64encode(nonce + sealed).decode()}"

    def decrypt(self, sealed: str, context: str) -> bytes:
        """Decrypt a value.

        Raises DecryptionFailed if the key is unknown, or if the value or its context was changed.
        """
        # The key ID selects the key, so old values need no trial decryption. It is not secret: it is a hash of the
        # key.
        name, _, rest = sealed.partition(".")
        key = self._keys.get(name)
        if key is None:
            raise DecryptionFailed(
                f"the stored {context.partition(' ')[0]} was encrypted with a key that is not configured"
            )
        from cryptography.exceptions import InvalidTag

        try:
            data = urlsafe_b64decode(rest)
            plain: bytes = _cipher(key).decrypt(data[:_NONCE], data[_NONCE:], context.encode())
        # Both cases get one message: details would help someone who probes ciphertexts.
        except (ValueError, InvalidTag):
            raise DecryptionFailed(
                f"the stored {context.partition(' ')[0]} was changed, or belongs to another row"
            ) from None
        return plain

    def needs_rotation(self, sealed: str) -> bool:
        """Return whether a value was encrypted with another key than the current one."""
        return sealed.partition(".")[0] != self._primary_key_id


def load_key_ring(store: str | None, keys: Sequence[str]) -> KeyRing:
    """Return the key ring of a store: `keys` and PORTICO_ENCRYPTION_KEYS, or the key file next to a SQLite database.

    Raises UsageError for PostgreSQL without a key.
    """
    # Keys of the settings come first and encrypt; keys of the environment still decrypt, so that a rotation can begin
    # in either place.
    raw_keys = [*(key.encode() for key in keys if key), *configured_keys()]
    from portico.store import database as database_module

    result = raw_keys or load_keys(*database_module.parse_database_url(store or ""))
    if not result:
        raise UsageError(
            "secrets in a shared database need a shared key: set PORTICO_ENCRYPTION_KEYS, or encryption_keys in the "
            "configuration file"
        )
    return KeyRing(result)


def digest(secret: str) -> str:
    """Return the hash to store for a secret that is only compared. Our secrets are random, so no salt is needed."""
    return sha256(secret.encode()).hexdigest()


def _id_of(key: bytes) -> str:
    return sha256(b"portico key id\0" + key).hexdigest()[:12]


def _cipher(key: bytes) -> Any:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError:
        raise UsageError("encryption requires the cryptography package: pip install 'portico[oauth]'") from None
    return AESGCM(key)
