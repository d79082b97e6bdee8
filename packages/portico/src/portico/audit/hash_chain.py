"""A chain: each record's hash is made of the hash before it and of the record. Pure.

A process has a chain of its own, so that no process waits for another. Its first hash is made of its name: a record
cannot be moved from one chain to another.
"""

from __future__ import annotations

import hashlib
import os

from msgspec import Struct

# As many bytes of each record's hash stand in the checkpoint that signs it. Who makes all hashes anew does not match
# them, so the first record that is not what it was can be named.
MARK_BYTES = 4


# A copy of an empty one is made in less time than another.
_fresh = hashlib.sha256().copy


class ChainHead(Struct, frozen=True, array_like=True):
    """The last record of a chain, so far."""

    number: int
    hash: str
    # Nothing comes after it.
    ended: bool = False


def new_name() -> str:
    """A name that no other chain has."""
    return os.urandom(8).hex()


def origin(name: str) -> bytes:
    """What stands before the first record of a chain."""
    return hashlib.sha256(b"portico audit chain " + name.encode()).digest()


def link(before: bytes, body: bytes) -> bytes:
    """The hash of a record."""
    hashed = _fresh()
    hashed.update(before + body)
    return hashed.digest()


def marks(hashes: list[bytes]) -> bytes:
    return b"".join(one[:MARK_BYTES] for one in hashes)
