"""Hash chain over audit records, without I/O: each hash covers the previous hash and the record.

Every process has a separate chain, so that no process waits for another. The first hash is derived from the chain's
name: a record cannot be moved to another chain.
"""

from __future__ import annotations

import hashlib
import os

from msgspec import Struct

# Number of bytes of each record's hash that its checkpoint contains. If all hashes are recomputed, these no longer
# match, so the first changed record can be identified.
HASH_PREFIX_BYTES = 4


# Copying an empty hash object is faster than creating one.
_new_sha256 = hashlib.sha256().copy


class ChainHead(Struct, frozen=True, array_like=True):
    """The last record of a chain."""

    number: int
    hash: str
    # Whether the chain is complete.
    ended: bool = False


def new_chain_id() -> str:
    """Return a unique chain id."""
    return os.urandom(8).hex()


def genesis_hash(name: str) -> bytes:
    """Return the hash that precedes the first record of a chain."""
    return hashlib.sha256(b"portico audit chain " + name.encode()).digest()


def chain_hash(before: bytes, body: bytes) -> bytes:
    """Return the hash of a record."""
    hashed = _new_sha256()
    hashed.update(before + body)
    return hashed.digest()


def hash_prefixes(hashes: list[bytes]) -> bytes:
    """Return the concatenated prefixes of the hashes."""
    return b"".join(hash_[:HASH_PREFIX_BYTES] for hash_ in hashes)
