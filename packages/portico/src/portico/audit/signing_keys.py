"""The key that signs checkpoints, and the trusted public keys.

The private key stays in the data directory, readable by its owner only. The public keys of all keys ever created there
are in a file next to it, one per line; copied to another machine, they verify the signatures there.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from portico.protocol.errors import UsageError

PRIVATE_KEY_FILE, PUBLIC_KEYS_FILE = "audit-key", "audit-keys.pub"
_SEED_BYTES = 32


def _load_ed25519() -> Any:
    try:
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError:
        raise UsageError("signing the audit needs cryptography: pip install 'portico[audit]'") from None
    return ed25519


def key_id(public: bytes) -> str:
    """Return the id by which a checkpoint names its key."""
    # 64 bits identify a key among a few; the signature is verified with the full key.
    return hashlib.sha256(public).hexdigest()[:16]


class AuditSigningKey:
    """Signing key. It also derives the salt for digests of arguments."""

    def __init__(self, seed: bytes) -> None:
        self._key = _load_ed25519().Ed25519PrivateKey.from_private_bytes(seed)
        self.public: bytes = self._key.public_key().public_bytes_raw()
        self.id = key_id(self.public)
        # Derived, so that digests of arguments cannot be compared between installations, and no second secret is
        # stored.
        self.salt = hmac.digest(seed, b"portico audit arguments", "sha256")

    def sign(self, body: bytes) -> str:
        return base64.b64encode(self._key.sign(body)).decode()


class TrustedKeys:
    """Trusted public keys, by id."""

    def __init__(self, keys: Iterable[bytes]) -> None:
        self._keys = {key_id(key): key for key in keys}

    def __len__(self) -> int:
        return len(self._keys)

    def has(self, id: str) -> bool:
        return id in self._keys

    def verify(self, id: str, body: bytes, signature: str) -> bool:
        """Return whether the key with this id signed the body."""
        ed25519 = _load_ed25519()
        from cryptography.exceptions import InvalidSignature

        if id not in self._keys:
            return False
        try:
            key = ed25519.Ed25519PublicKey.from_public_bytes(self._keys[id])
            key.verify(base64.b64decode(signature, validate=True), body)
        except (InvalidSignature, binascii.Error, ValueError):
            return False
        return True


def load_or_create_key(folder: Path) -> AuditSigningKey:
    """Load the key of a data directory, creating it on first use. Raises UsageError."""
    path = folder / PRIVATE_KEY_FILE
    _load_ed25519()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _create_key(path)
        seed = base64.b64decode(path.read_bytes().strip(), validate=True)
        if len(seed) != _SEED_BYTES:
            raise ValueError
        key = AuditSigningKey(seed)
        _append_public_key(folder / PUBLIC_KEYS_FILE, key)
    except OSError as failure:
        raise UsageError(f"cannot read or create the audit key {path}: {failure.strerror}") from None
    except ValueError:
        raise UsageError(f"{path} is not a valid audit key; restore it, or move it away to get a new one") from None
    return key


def _create_key(path: Path) -> None:
    """Create the key atomically: another process may start at the same time, and the first key wins."""
    if path.exists():
        return
    temporary = path.with_name(f"{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with open(fd, "wb") as file:
            file.write(base64.b64encode(os.urandom(_SEED_BYTES)) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        try:
            # link() fails if the name exists, unlike rename(), so exactly one process installs its key.
            os.link(temporary, path)
        except FileExistsError:
            pass
        except OSError:
            # The file system has no hard links.
            os.replace(temporary, path)
            return
    finally:
        temporary.unlink(missing_ok=True)


def _append_public_key(path: Path, key: AuditSigningKey) -> None:
    line = base64.b64encode(key.public)
    if not path.exists() or line not in path.read_bytes().split():
        with path.open("ab") as opened:
            opened.write(line + b"\n")


def load_public_keys(path: Path) -> list[bytes]:
    """Load public keys from a file, one per line. Raises UsageError."""
    try:
        lines = path.read_bytes().split()
        keys = [base64.b64decode(line, validate=True) for line in lines]
        if any(len(key) != _SEED_BYTES for key in keys):
            raise ValueError
    except OSError as failure:
        raise UsageError(f"cannot read {path}: {failure.strerror}") from None
    except ValueError:
        raise UsageError(f"{path} must contain one public key per line") from None
    return keys
