"""The keys of a store: secrets that are kept outside of it.

A role that can read or write a database must not be able to act as its users, so what decides about identity, code or
sessions is signed or sealed with a key that the database does not contain: PORTICO_SEALING_KEYS, or, beside a database
that is a file, a key file for its owner alone.
"""

from __future__ import annotations

import hmac
import os
from base64 import urlsafe_b64encode
from collections.abc import Sequence
from pathlib import Path

from portico.protocol.errors import UsageError
from portico.store.transaction import Engine

VARIABLE = "PORTICO_SEALING_KEYS"
MIN_KEY_BYTES = 16
MEMORY = ":memory:"


class SigningKeys:
    """Signs with the first key, and verifies with each of them. Without a key it verifies nothing."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        self.keys = list(keys)

    def sign(self, purpose: bytes, message: bytes) -> bytes:
        return _signature(self.keys[0], purpose, message)

    def is_signed(self, purpose: bytes, message: bytes, signature: bytes) -> bool:
        """Compare as many bytes as `signature` has: callers check its length."""
        return any(
            hmac.compare_digest(signature, _signature(key, purpose, message)[: len(signature)]) for key in self.keys
        )

    def sign_row(self, purpose: bytes, *values: str | None) -> str:
        """Return the signature column of a row. Each value is preceded by its length, so that none can move over."""
        return self.sign(purpose, _joined(values)).hex()

    def is_row_signed(self, purpose: bytes, signature: str | None, *values: str | None) -> bool:
        try:
            found = bytes.fromhex(signature or "")
        except ValueError:
            return False
        return len(found) == _SIGNATURE_BYTES and self.is_signed(purpose, _joined(values), found)


_SIGNATURE_BYTES = 32


def _signature(key: bytes, purpose: bytes, message: bytes) -> bytes:
    return hmac.digest(hmac.digest(key, purpose, "sha256"), message, "sha256")


def _joined(values: Sequence[str | None]) -> bytes:
    parts = [None if value is None else value.encode("utf-8", "surrogatepass") for value in values]
    return b"".join(b"-" if part is None else b"%d:%b" % (len(part), part) for part in parts)


def configured_keys() -> list[bytes]:
    """Return the keys in PORTICO_SEALING_KEYS, the one in use first."""
    return checked([key.encode() for key in os.environ.get(VARIABLE, "").split(",") if key])


def checked(keys: Sequence[bytes]) -> list[bytes]:
    """Return the keys. Raises UsageError for one that could be guessed."""
    for key in keys:
        if len(key) < MIN_KEY_BYTES:
            raise UsageError(
                f"a sealing key must have at least {MIN_KEY_BYTES} bytes, better 32; got {len(key)}. "
                "`openssl rand -base64 32` prints one"
            )
    return list(keys)


def load_keys(engine: Engine, address: str) -> list[bytes]:
    """Return the keys of a store, the one in use first: the configured ones, or those of the file beside SQLite.

    Returns an empty list for PostgreSQL without PORTICO_SEALING_KEYS. Raises UsageError for an unusable key file.
    """
    configured = configured_keys()
    if configured or engine == "postgresql":
        return configured
    if address == MEMORY:
        return [os.urandom(32)]
    return _from_file(Path(address).with_suffix(".keys"))


def _from_file(path: Path) -> list[bytes]:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # Written completely before it has its name: another process may start at the same time and read it.
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
        raise UsageError(f"{path} must contain a sealing key, and is empty; restore it, or remove it to get a new key")
    return checked(keys)


def _check_file(path: Path) -> None:
    """Raise UsageError for a key file that other users can read or replace."""
    if os.name != "posix":
        return
    found = path.stat()
    if found.st_uid not in (os.geteuid(), 0):
        raise UsageError(f"{path} must belong to the user of this process, and belongs to user {found.st_uid}")
    if found.st_mode & 0o077:
        raise UsageError(
            f"{path} must be readable for its owner alone, and has mode {found.st_mode & 0o777:03o}: chmod 600 {path}"
        )
