"""The key that signs checkpoints, and those that are believed.

The private half stays in the data directory, readable by its owner alone. The public halves of all keys that were ever
made there are in a file beside it, one a line: copied to another machine, they verify there what was signed here.
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

PRIVATE, PUBLIC = "audit-key", "audit-keys.pub"
_SEED_BYTES = 32


def _ed25519() -> Any:
    try:
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError:
        raise UsageError("The audit is signed, which needs cryptography: pip install 'portico[audit]'") from None
    return ed25519


def key_id(public: bytes) -> str:
    """By which a checkpoint names the key that it was signed with."""
    return hashlib.sha256(public).hexdigest()[:16]


class AuditKey:
    """Signs; and keeps the salt of the digests of arguments, which is made of the key."""

    def __init__(self, seed: bytes) -> None:
        self._key = _ed25519().Ed25519PrivateKey.from_private_bytes(seed)
        self.public: bytes = self._key.public_key().public_bytes_raw()
        self.id = key_id(self.public)
        self.salt = hmac.digest(seed, b"portico audit arguments", "sha256")

    def sign(self, body: bytes) -> str:
        return base64.b64encode(self._key.sign(body)).decode()


class TrustedKeys:
    """The public keys that are believed."""

    def __init__(self, keys: Iterable[bytes]) -> None:
        self._keys = {key_id(one): one for one in keys}

    def __len__(self) -> int:
        return len(self._keys)

    def knows(self, id: str) -> bool:
        return id in self._keys

    def verifies(self, id: str, body: bytes, signature: str) -> bool:
        """Whether the key of this id has signed this."""
        ed25519 = _ed25519()
        from cryptography.exceptions import InvalidSignature

        if id not in self._keys:
            return False
        try:
            key = ed25519.Ed25519PublicKey.from_public_bytes(self._keys[id])
            key.verify(base64.b64decode(signature, validate=True), body)
        except (InvalidSignature, binascii.Error, ValueError):
            return False
        return True


def load_or_make(folder: Path) -> AuditKey:
    """The key of a data directory, made there with the first audit. Raises UsageError."""
    path = folder / PRIVATE
    _ed25519()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _make(path)
        seed = base64.b64decode(path.read_bytes().strip(), validate=True)
        if len(seed) != _SEED_BYTES:
            raise ValueError
        key = AuditKey(seed)
        _publish(folder / PUBLIC, key)
    except OSError as failure:
        raise UsageError(f"The key of the audit, {path}, cannot be had: {failure.strerror}") from None
    except ValueError:
        raise UsageError(f"{path} is not a key of an audit; restore it, or move it away for a new one") from None
    return key


def _make(path: Path) -> None:
    """Written beside and put in its place whole: another process may be starting now, and the first one counts."""
    if path.exists():
        return
    beside = path.with_name(f"{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with open(fd, "wb") as opened:
            opened.write(base64.b64encode(os.urandom(_SEED_BYTES)) + b"\n")
            opened.flush()
            os.fsync(opened.fileno())
        try:
            os.link(beside, path)
        except FileExistsError:
            pass
        except OSError:
            # A file system without links.
            os.replace(beside, path)
            return
    finally:
        beside.unlink(missing_ok=True)


def _publish(path: Path, key: AuditKey) -> None:
    line = base64.b64encode(key.public)
    if not path.exists() or line not in path.read_bytes().split():
        with path.open("ab") as opened:
            opened.write(line + b"\n")


def read_public(path: Path) -> list[bytes]:
    """The keys in a file, one a line. Raises UsageError."""
    try:
        lines = path.read_bytes().split()
        keys = [base64.b64decode(line, validate=True) for line in lines]
        if any(len(key) != _SEED_BYTES for key in keys):
            raise ValueError
    except OSError as failure:
        raise UsageError(f"{path} cannot be read: {failure.strerror}") from None
    except ValueError:
        raise UsageError(f"{path} does not have one public key a line") from None
    return keys
