"""Signing keys of a store, stored outside the database.

A role that can read or write a database must not be able to impersonate its users, so data that determines identity,
code or sessions is signed or encrypted with a key outside the database: PORTICO_ENCRYPTION_KEYS, or a key file next to
a SQLite file, readable by its owner only.
"""

from __future__ import annotations

import hmac
import os
from base64 import urlsafe_b64encode
from collections.abc import Sequence
from pathlib import Path

from portico.protocol.errors import UsageError
from portico.store.transaction import Engine

VARIABLE = "PORTICO_ENCRYPTION_KEYS"
# 128 bits; shorter keys can be guessed offline from one signed row.
MIN_KEY_BYTES = 16
MEMORY = ":memory:"


class SigningKeys:
    """Signs with the first key and verifies with any. Without keys nothing verifies."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        self.keys = list(keys)

    def sign(self, purpose: bytes, message: bytes) -> bytes:
        return _signature(self.keys[0], purpose, message)

    def verify(self, purpose: bytes, message: bytes, signature: bytes) -> bool:
        """Verify a signature, which may be truncated: callers check its length."""
        return any(
            hmac.compare_digest(signature, _signature(key, purpose, message)[: len(signature)]) for key in self.keys
        )

    def sign_row(self, purpose: bytes, *values: str | None) -> str:
        """Return the signature of a row. Values are length-prefixed, so that bytes cannot move between columns."""
        return self.sign(purpose, _encode_values(values)).hex()

    def is_row_signed(self, purpose: bytes, signature: str | None, *values: str | None) -> bool:
        """Return whether the signature of a row is valid."""
        try:
            result = bytes.fromhex(signature or "")
        except ValueError:
            return False
        return len(result) == _SIGNATURE_BYTES and self.verify(purpose, _encode_values(values), result)


_SIGNATURE_BYTES = 32


def _signature(key: bytes, purpose: bytes, message: bytes) -> bytes:
    # One derived key per purpose: a signature for one purpose is never valid for another.
    return hmac.digest(hmac.digest(key, purpose, "sha256"), message, "sha256")


def _encode_values(values: Sequence[str | None]) -> bytes:
    parts = [None if value is None else value.encode("utf-8", "surrogatepass") for value in values]
    return b"".join(b"-" if part is None else b"%d:%b" % (len(part), part) for part in parts)


def configured_keys() -> list[bytes]:
    """Return the keys in PORTICO_ENCRYPTION_KEYS, the active one first."""
    return validate_keys([key.encode() for key in os.environ.get(VARIABLE, "").split(",") if key])


def validate_keys(keys: Sequence[bytes]) -> list[bytes]:
    """Return the keys. Raises UsageError for a key that is too short."""
    for key in keys:
        if len(key) < MIN_KEY_BYTES:
            raise UsageError(
                f"an encryption key must have at least {MIN_KEY_BYTES} bytes, 32 recommended, got {len(key)}. "
                "`openssl rand -base64 32` prints one"
            )
    return list(keys)


def load_keys(engine: Engine, address: str) -> list[bytes]:
    """Return the keys of a store, the active one first: the configured ones, or those in the key file of SQLite.

    Returns an empty list for PostgreSQL without PORTICO_ENCRYPTION_KEYS. Raises `UsageError` for an unusable key file.
    """
    configured = configured_keys()
    if configured or engine == "postgresql":
        return configured
    # The data ends with the process, and so may its key.
    if address == MEMORY:
        return [os.urandom(32)]
    return _load_key_file(Path(address).with_suffix(".keys"))


def _load_key_file(path: Path) -> list[bytes]:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # Written completely before it gets its name: another process may start at the same time and read it.
    draft = path.with_name(f"{path.name}.{os.urandom(6).hex()}")
    if not path.exists():
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(urlsafe_b64encode(os.urandom(32)) + b"\n")
                file.flush()
                os.fsync(file.fileno())
            try:
                os.link(draft, path)
            except OSError:
                # Another process was first, or the file system has no hard links.
                if not path.exists():
                    os.replace(draft, path)
        finally:
            draft.unlink(missing_ok=True)
    _check_file(path)
    keys = [line.strip() for line in path.read_bytes().splitlines() if line.strip()]
    if not keys:
        raise UsageError(
            f"{path} must contain an encryption key but is empty; restore it, or remove it to get a new key"
        )
    return validate_keys(keys)


def _check_file(path: Path) -> None:
    """Raise UsageError for a key file that other users can read or replace."""
    if os.name != "posix":
        return
    result = path.stat()
    if result.st_uid not in (os.geteuid(), 0):
        raise UsageError(f"{path} must belong to the user of this process, but belongs to user {result.st_uid}")
    # A key that others can read protects nothing, so the server refuses to start with it.
    if result.st_mode & 0o077:
        raise UsageError(
            f"{path} must be readable by its owner only, but has mode {result.st_mode & 0o777:03o}: chmod 600 {path}"
        )
