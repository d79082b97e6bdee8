"""Signed checkpoints of audit chains, numbered and linked to the previous checkpoint.

A record covered by a checkpoint can no longer be changed, moved or removed unnoticed. The last checkpoint is also
written to a file outside the store (`CheckpointFile`), which reveals an older copy of the whole store.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import msgspec
from msgspec import Struct

from portico.audit.hash_chain import ChainHead, hash_prefixes
from portico.audit.signing_keys import AuditSigningKey
from portico.protocol.errors import UsageError

GENESIS_HASH = "0" * 64


class RetentionPoint(Struct, frozen=True, omit_defaults=True):
    """Start of the retained part: records up to these heads, and checkpoints before `first`, were deleted."""

    chains: dict[str, ChainHead] = {}
    # Number of the first retained checkpoint, and the hash of the one before it.
    first: int = 1
    previous: str = GENESIS_HASH


class HashPrefixes(Struct, frozen=True, array_like=True):
    """Prefixes of the hashes of consecutive records, starting at number `first`."""

    first: int
    marks: bytes


class Checkpoint(Struct, frozen=True, omit_defaults=True):
    """State of the chains at one moment."""

    number: int
    at: int
    previous: str
    key: str
    # Empty for a store. A process without a store numbers the checkpoints of its chain separately.
    chain: str = ""
    # The chains that have grown since the previous checkpoint.
    heads: dict[str, ChainHead] = {}
    marks: dict[str, HashPrefixes] = {}
    cut: RetentionPoint | None = None


class ChainProgress(Struct, frozen=True):
    """Progress of a process's own chain: its head, and the hashes since its last checkpoint."""

    chain: str
    head: ChainHead
    hashes: list[bytes]

    def hash_prefixes(self) -> dict[str, HashPrefixes]:
        """Return the hash prefixes of the records since the last checkpoint."""
        first = self.head.number - len(self.hashes) + 1
        return {self.chain: HashPrefixes(first, hash_prefixes(self.hashes))} if self.hashes else {}


class SignedCheckpoint(Struct, frozen=True):
    """One row: the signed bytes and the signature."""

    number: int
    body: str
    signature: str

    @property
    def hash(self) -> str:
        return hash_checkpoint(self.body)

    @property
    def ref(self) -> CheckpointRef:
        return CheckpointRef(self.number, self.hash)


def sign_checkpoint(checkpoint: Checkpoint, key: AuditSigningKey) -> SignedCheckpoint:
    """Encode and sign a checkpoint."""
    # The encoded bytes are stored and verified as they are: encoding again could give other bytes.
    body = msgspec.json.encode(checkpoint)
    return SignedCheckpoint(checkpoint.number, body.decode(), key.sign(body))


def hash_checkpoint(body: str) -> str:
    """Return the hash of a checkpoint's encoded body."""
    return hashlib.sha256(body.encode()).hexdigest()


def parse_checkpoint(body: str) -> Checkpoint | None:
    """Parse a checkpoint, or return None if it is invalid."""
    try:
        return msgspec.json.decode(body, type=Checkpoint)
    except (msgspec.DecodeError, UnicodeError):
        return None


class CheckpointRef(Struct, frozen=True):
    """Number and hash of a checkpoint that is known to exist."""

    number: int
    hash: str

    @classmethod
    def parse(cls, text: str) -> CheckpointRef:
        """Parse `NUMBER:HASH`, as printed by `portico audit checkpoint`. Raises UsageError."""
        # Also accepts the line of the file, which ends with a line break.
        number, colon, hash = text.strip().partition(":")
        if not colon or not number.isdecimal() or len(hash) != len(GENESIS_HASH):
            raise UsageError(
                f"invalid checkpoint {text[:100]!r}: expected NUMBER:HASH, as printed by `portico audit checkpoint`"
            )
        return cls(int(number), hash)

    def __str__(self) -> str:
        return f"{self.number}:{self.hash}"


class CheckpointFile:
    """File outside the store that records its last checkpoint."""

    def __init__(self, directory: Path, store: str) -> None:
        # By relative path, so that a moved data directory keeps its file; without credentials in a database URL.
        location = os.path.relpath(store, directory) if "://" not in store else store.rpartition("@")[2]
        self.path = directory / f"audit-head-{hashlib.sha256(location.encode()).hexdigest()[:8]}"

    def read(self) -> CheckpointRef | None:
        """Return the recorded checkpoint, or None without a file."""
        try:
            return CheckpointRef.parse(self.path.read_text())
        except OSError:
            return None

    def write(self, head: CheckpointRef) -> None:
        """Record a checkpoint atomically, unless a newer one is already recorded."""
        current = None
        try:
            current = self.read()
        except UsageError:
            pass  # an unreadable file is replaced
        # Several processes share the store; the file must never go back to an older checkpoint.
        if current is not None and current.number >= head.number:
            return
        temporary = self.path.with_name(f"{self.path.name}.{os.getpid()}")
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(f"{head}\n")
        os.replace(temporary, self.path)
