"""Checkpoints: what the chains had come to at one moment, numbered, bound to the checkpoint before, and signed.

A record that a checkpoint vouches for can no longer be changed, moved, or taken away unnoticed. The last checkpoint is
also written down beside the store (`HeadFile`): an older copy of the whole store ends with an older one.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import msgspec
from msgspec import Struct

from portico.audit.hash_chain import ChainHead, marks
from portico.audit.signing_keys import AuditKey
from portico.protocol.errors import UsageError

FIRST = "0" * 64


class Cut(Struct, frozen=True, omit_defaults=True):
    """What is kept no longer: records up to these, and checkpoints before this one."""

    chains: dict[str, ChainHead] = {}
    # The number of the first checkpoint that is kept, and the hash of the one before it.
    first: int = 1
    previous: str = FIRST


class ChainMarks(Struct, frozen=True, array_like=True):
    """The beginnings of the hashes of consecutive records, from number `first` on."""

    first: int
    marks: bytes


class Checkpoint(Struct, frozen=True, omit_defaults=True):
    number: int
    at: int
    previous: str
    key: str
    # Empty for those of a store; those of a process that has none are numbered for its chain alone.
    chain: str = ""
    # The chains that have grown since the checkpoint before.
    heads: dict[str, ChainHead] = {}
    marks: dict[str, ChainMarks] = {}
    cut: Cut | None = None


class OwnPart(Struct, frozen=True):
    """What a process says of its own chain: how far it has come, and the hashes since its last checkpoint."""

    chain: str
    head: ChainHead
    hashes: list[bytes]

    def marks(self) -> dict[str, ChainMarks]:
        first = self.head.number - len(self.hashes) + 1
        return {self.chain: ChainMarks(first, marks(self.hashes))} if self.hashes else {}


class StoredCheckpoint(Struct, frozen=True):
    """One row: the bytes that were signed, and the signature."""

    number: int
    body: str
    signature: str

    @property
    def hash(self) -> str:
        return checkpoint_hash(self.body)

    @property
    def head(self) -> ExpectedHead:
        return ExpectedHead(self.number, self.hash)


def signed(checkpoint: Checkpoint, key: AuditKey) -> StoredCheckpoint:
    body = msgspec.json.encode(checkpoint)
    return StoredCheckpoint(checkpoint.number, body.decode(), key.sign(body))


def checkpoint_hash(body: str) -> str:
    return hashlib.sha256(body.encode()).hexdigest()


def read_checkpoint(body: str) -> Checkpoint | None:
    """None: it is none."""
    try:
        return msgspec.json.decode(body, type=Checkpoint)
    except (msgspec.DecodeError, UnicodeError):
        return None


class ExpectedHead(Struct, frozen=True):
    """The checkpoint that is known to have been written."""

    number: int
    hash: str

    @classmethod
    def parse(cls, text: str) -> ExpectedHead:
        """As `portico audit head` prints it: `NUMBER:HASH`."""
        number, colon, hash = text.strip().partition(":")
        if not colon or not number.isdecimal() or len(hash) != len(FIRST):
            raise UsageError(f"{text[:100]!r} is no checkpoint: `portico audit head` prints one, as NUMBER:HASH")
        return cls(int(number), hash)

    def __str__(self) -> str:
        return f"{self.number}:{self.hash}"


class HeadFile:
    """Where the last checkpoint of a store is written down, outside of the store."""

    def __init__(self, folder: Path, store: str) -> None:
        inside = os.path.relpath(store, folder) if "://" not in store else store.rpartition("@")[2]
        self.path = folder / f"audit-head-{hashlib.sha256(inside.encode()).hexdigest()[:8]}"

    def read(self) -> ExpectedHead | None:
        try:
            return ExpectedHead.parse(self.path.read_text())
        except OSError:
            return None

    def write(self, head: ExpectedHead) -> None:
        """Whole or not at all; and never an older one in the place of a newer."""
        known = None
        try:
            known = self.read()
        except UsageError:
            pass  # what stands there is no head: this is one
        if known is not None and known.number >= head.number:
            return
        beside = self.path.with_name(f"{self.path.name}.{os.getpid()}")
        with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as opened:
            opened.write(f"{head}\n")
        os.replace(beside, self.path)
