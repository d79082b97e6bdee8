"""Stored results: bound to their caller, limited in number, size and age, and shared by the workers of a server.

The id is a secret of its caller. The store has only its digest, and each chunk has a MAC whose key is the id, so that a
role with access to the database can neither look up a result for a client nor alter one.
"""

from __future__ import annotations

import asyncio
import hmac
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator
from functools import partial
from hashlib import sha256
from heapq import heapify, heappop, heapreplace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from portico._lazy import LazyModule
from portico.server.context.replay_guard import process_store
from portico.store.data_directory import named_store
from portico.store.errors import DatabaseOpenError, StoreError

if TYPE_CHECKING:
    from portico.store import database as database_module
    from portico.store.database import Database
    from portico.store.transaction import Transaction
else:
    database_module = LazyModule("portico.store.database")

# Characters of a text, or bytes of binary content, in one row.
CHUNK_SIZE = 128 * 1024
# Rows written in one transaction: other writers of the store wait for it.
CHUNKS_PER_WRITE = 32
# A larger result is shortened but not stored.
MAX_RESULT_BYTES = 128 * 1024 * 1024
# Parts of one result: content blocks, and the structured content.
MAX_PARTS = 1_000


class StorageLimits(Struct, frozen=True, kw_only=True):
    """Limits of the stored results. Beyond them the oldest results are deleted, of the callers with the most bytes."""

    max_age_seconds: float = 3600.0
    max_results_per_caller: int = 100
    max_bytes_per_caller: int = 256 * 1024 * 1024
    max_bytes: int = 1024 * 1024 * 1024


class Part(Struct):
    """A text, a JSON document, or binary content."""

    kind: str
    mime_type: str
    data: str | bytes

    @property
    def size(self) -> int:
        return len(self.data)


class PartInfo(Struct):
    """What the store knows about a part: `size` in characters, or in bytes for binary content."""

    kind: str
    mime_type: str
    size: int
    bytes: int = 0


class StoredResult(Struct):
    """A stored result, without its contents."""

    id: str
    parts: list[PartInfo]
    expires_at: float


class _Row(Struct):
    parts: str
    expires_at: float


class _Chunk(Struct):
    number: int
    chars: int
    data: bytes
    mac: bytes


class ResultStore:
    """Results in the store of a server, or in a temporary database if it has none."""

    def __init__(self, url: Callable[[], str | None], limits: StorageLimits) -> None:
        self._url = url
        self.limits = limits
        self._database: Database | None = None
        self._temporary: str | None = None
        self._opening = asyncio.Lock()

    async def _open(self) -> Database:
        """Return the database, opened with the first large result."""
        if self._database is None:
            async with self._opening:
                if self._database is None:
                    url = named_store(self._url()) or process_store()
                    if url is None or url in ("", "sqlite://", ":memory:"):
                        # Also one of an attempt that failed, for example because the disk was full.
                        self._temporary = self._temporary or _make_directory(prefix="portico-results-")
                        url = str(Path(self._temporary) / "results.db")
                    database: Database = await database_module.Database(url).open()
                    try:
                        await database.migrate("results", Path(__file__).with_name("migrations"))
                    except BaseException:
                        await database.close()
                        raise
                    self._database = database
        return self._database

    async def close(self) -> None:
        database, self._database = self._database, None
        if database is not None:
            await database.close()
        folder, self._temporary = self._temporary, None
        if folder is not None:
            await asyncio.to_thread(_remove_directory, folder)

    async def put(self, owner: str, id: str, parts: list[Part]) -> StoredResult:
        """Store a result. Storing the same one again only renews it. Raises StoreError."""
        database = await self._open()
        moment = time.time()
        expires = moment + self.limits.max_age_seconds
        infos = [PartInfo(part.kind, part.mime_type, part.size) for part in parts]
        stored = StoredResult(id, infos, expires)
        key = _digest(id)
        if await database.write(partial(_renew, key=key, owner=owner, expires=expires), isolation="read committed"):
            return stored
        await database.write(
            partial(_begin, key=key, owner=owner, moment=moment, expires=expires), isolation="read committed"
        )
        size = 0
        rows: list[tuple[Any, ...]] = []
        for at, part in enumerate(parts):
            for number, (count, data) in enumerate(_chunks(part.data)):
                infos[at].bytes += len(data)
                size += len(data)
                rows.append((key, at, number, count, data, _mac(id, at, infos[at], number, count, data)))
                if len(rows) == CHUNKS_PER_WRITE:
                    await database.write(partial(_add_chunks, rows=rows), isolation="read committed")
                    rows = []
        encoded = msgspec.json.encode(infos).decode()
        await database.write(
            partial(_complete, key=key, rows=rows, parts=encoded, size=size, owner=owner, limits=self.limits),
            isolation="read committed",
        )
        return stored

    async def find(self, owner: str, id: str) -> StoredResult | None:
        """Return a result of this owner, or None. Raises StoreError."""
        database = await self._open()
        row = await database.read(partial(_find, key=_digest(id), owner=owner, moment=time.time()))
        if row is None:
            return None
        return StoredResult(id, msgspec.json.decode(row.parts, type=list[PartInfo]), row.expires_at)

    async def read_bytes(self, stored: StoredResult, part: int) -> bytes:
        """Return the whole of a part. Raises StoreError."""
        chunks = []
        async for _, data in self.iter_chunks(stored, part):
            chunks.append(data)
        return b"".join(chunks)

    async def read_slice(self, stored: StoredResult, part: int, start: int, count: int) -> str | bytes:
        """Return characters of a text, or bytes of binary content. Raises StoreError."""
        is_text = stored.parts[part].kind in ("text", "json")
        pieces: list[Any] = []
        async for position, data in self.iter_chunks(stored, part, start, start + count):
            piece: Any = data.decode() if is_text else data
            pieces.append(piece[max(start - position, 0) : start + count - position])
        return "".join(pieces) if is_text else b"".join(pieces)

    async def iter_chunks(self, stored: StoredResult, part: int, start: int = 0, end: float = float("inf")) -> Any:
        """Iterate over the chunks that overlap a range, each with its position. Raises StoreError."""
        database = await self._open()
        key = _digest(stored.id)
        number, position = start // CHUNK_SIZE, start // CHUNK_SIZE * CHUNK_SIZE
        while position < min(end, stored.parts[part].size):
            chunk = await database.read(partial(_read_chunk, key=key, part=part, number=number))
            # Deleted in the meantime, or altered by someone with access to the database.
            if chunk is None or not hmac.compare_digest(
                chunk.mac, _mac(stored.id, part, stored.parts[part], number, chunk.chars, chunk.data)
            ):
                raise StoreError("the stored result is incomplete")
            yield position, chunk.data
            number, position = number + 1, position + chunk.chars


def create_id(key: bytes, owner: str, parts: list[Part]) -> str:
    """Return the id of a result: unguessable without the key, and the same for the same result of the same owner."""
    digest = sha256()
    for part in parts:
        digest.update(msgspec.json.encode([part.kind, part.mime_type, part.size]))
        for _, data in _chunks(part.data):
            digest.update(data)
    mac = hmac.digest(key, msgspec.json.encode([owner, digest.hexdigest()]), "sha256")
    return urlsafe_b64encode(mac[:24]).decode()


def _chunks(data: str | bytes) -> Iterator[tuple[int, bytes]]:
    """Yield chunks of a part: the number of characters or bytes, and the bytes."""
    for start in range(0, len(data), CHUNK_SIZE):
        piece = data[start : start + CHUNK_SIZE]
        yield len(piece), piece if isinstance(piece, bytes) else piece.encode(errors="replace")


def _digest(id: str) -> str:
    return sha256(b"portico result " + id.encode(errors="replace")).hexdigest()


def _mac(id: str, part: int, info: PartInfo, number: int, chars: int, data: bytes) -> bytes:
    place = msgspec.json.encode([part, info.kind, info.mime_type, info.size, number, chars])
    return hmac.digest(id.encode(errors="replace"), place + data, "sha256")


# Transactions


def _renew(tx: Transaction, key: str, owner: str, expires: float) -> bool:
    return (
        tx.execute(
            "update portico_result set expires_at = ? where id = ? and owner = ? and is_complete = 1",
            (expires, key, owner),
        )
        == 1
    )


def _begin(tx: Transaction, key: str, owner: str, moment: float, expires: float) -> None:
    # Also what an interrupted write left.
    tx.execute("delete from portico_result where id = ? or expires_at < ?", (key, moment))
    tx.execute(
        "insert into portico_result (id, owner, created_at, expires_at, bytes, parts, is_complete)"
        " values (?, ?, ?, ?, 0, '[]', 0) on conflict do nothing",
        (key, owner, moment, expires),
    )


def _add_chunks(tx: Transaction, rows: list[tuple[Any, ...]]) -> None:
    tx.execute_many(
        "insert into portico_result_chunk (result, part, number, chars, data, mac) values (?, ?, ?, ?, ?, ?)"
        " on conflict do nothing",
        rows,
    )


class _StoredSize(Struct):
    id: str
    bytes: int


class _OwnedSize(_StoredSize):
    owner: str


def _complete(
    tx: Transaction, key: str, rows: list[tuple[Any, ...]], parts: str, size: int, owner: str, limits: StorageLimits
) -> None:
    if rows:
        _add_chunks(tx, rows)
    tx.execute("update portico_result set parts = ?, bytes = ?, is_complete = 1 where id = ?", (parts, size, key))
    own = tx.fetch_all(
        _StoredSize, "select id, bytes from portico_result where owner = ? order by created_at desc", (owner,)
    )
    _delete_beyond(tx, own, limits.max_bytes_per_caller, limits.max_results_per_caller, key)
    total = tx.fetch_one(int, "select cast(coalesce(sum(bytes), 0) as bigint) from portico_result")
    if total > limits.max_bytes:
        everything = tx.fetch_all(
            _OwnedSize, "select id, bytes, owner from portico_result where bytes > 0 order by created_at desc"
        )
        _delete_of_largest_owners(tx, everything, total - limits.max_bytes, key)


def _delete_beyond(tx: Transaction, rows: list[_StoredSize], max_bytes: int, max_count: int, newest: str) -> None:
    """Delete the oldest results beyond the limits, but not the newest."""
    total = 0
    for count, row in enumerate(rows, 1):
        total += row.bytes
        if row.id != newest and (total > max_bytes or count > max_count):
            tx.execute("delete from portico_result where id = ?", (row.id,))


def _delete_of_largest_owners(tx: Transaction, rows: list[_OwnedSize], excess: int, newest: str) -> None:
    """Delete the oldest results of the owners with the most bytes: others must not lose theirs to one caller."""
    by_owner: dict[str, list[_OwnedSize]] = {}
    for row in rows:
        by_owner.setdefault(row.owner, []).append(row)
    largest = [(-sum(row.bytes for row in owned), owner) for owner, owned in by_owner.items()]
    heapify(largest)
    while excess > 0 and largest:
        negative_total, owner = largest[0]
        row = by_owner[owner].pop()
        if row.id == newest:
            # The last one of this owner.
            heappop(largest)
            continue
        tx.execute("delete from portico_result where id = ?", (row.id,))
        excess -= row.bytes
        if by_owner[owner]:
            heapreplace(largest, (negative_total + row.bytes, owner))
        else:
            heappop(largest)


def _find(tx: Transaction, key: str, owner: str, moment: float) -> _Row | None:
    return tx.fetch_optional(
        _Row,
        "select parts, expires_at from portico_result"
        " where id = ? and owner = ? and expires_at >= ? and is_complete = 1",
        (key, owner, moment),
    )


def _read_chunk(tx: Transaction, key: str, part: int, number: int) -> _Chunk | None:
    return tx.fetch_optional(
        _Chunk,
        "select number, chars, data, mac from portico_result_chunk where result = ? and part = ? and number = ?",
        (key, part, number),
    )


# Only servers without a store need these modules, and only once a result was too large.


def _make_directory(prefix: str) -> str:
    import tempfile

    try:
        return tempfile.mkdtemp(prefix=prefix)
    except OSError as failure:
        raise DatabaseOpenError(f"cannot create a temporary directory: {failure.strerror or failure}") from None


def _remove_directory(path: str) -> None:
    import shutil

    shutil.rmtree(path, ignore_errors=True)
