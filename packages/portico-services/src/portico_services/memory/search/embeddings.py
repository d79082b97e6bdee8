"""Embeddings of memories, for vector search.

A memory is embedded together with the end of the previous message of its thread, because an answer means little without
its question. Embedding takes milliseconds, so it runs after a capture has returned (`embed_pending`); until then a
memory is found by full-text search only.

Candidates are found by binary quantization: the signs of a vector, 48 bytes per memory, are cached in the process and
refreshed on each query. The nearest candidates are then compared by cosine similarity.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from portico import PorticoError
from portico.extend import Transaction
from portico_services.memory.search import id_allocator
from portico_services.memory.search.analyzer import strip_code
from portico_services.memory.search.id_allocator import NO_ID, PERSON
from portico_services.memory.store import counters

if TYPE_CHECKING:
    import numpy as np

    from portico.extend import Database

    Array = np.ndarray[Any, np.dtype[np.float32]]

# Characters embedded from a memory and from its predecessor, and the maximum number of tokens.
MAX_PASSAGE_CHARS, MAX_CONTEXT_CHARS, MAX_PASSAGE_TOKENS = 700, 200, 192
# Vectors computed per transaction. A killed process loses at most one batch, about half a second of work.
ENCODE_BATCH_SIZE = 64
# Signatures of deleted memories that may stay in the cache.
MAX_STALE_SIGNATURES = 10_000
_QUANTIZATION_SCALE = 127.0
# Signatures read per statement. The rows of a million would take more memory than the signatures themselves.
SIGNATURE_READ_BATCH = 20_000


class EmbeddingsUnavailable(PorticoError):
    """Embeddings are not available; the message names the missing component."""


class Encoder(Protocol):
    """Embedding model. Its vectors have unit length."""

    def encode(self, texts: Sequence[str], limit: int) -> Sequence[Array]: ...


class EmbeddingIndex:
    """Embeddings of one store. `load` loads the model called `name`, which may take seconds."""

    def __init__(self, name: str, load: Callable[[], Encoder]) -> None:
        self.name = name
        self._load = load
        self._encoder: Encoder | None = None
        self._lock = threading.Lock()
        self._doc_ids: Any = None
        self._signatures: Any = None
        # Number of the last signature read, and the size of the cache after the last full read.
        self._last_rowid, self._whole = 0, 0

    def encode_texts(self, texts: Sequence[str]) -> Sequence[Array]:
        """Return the embeddings of texts. Call it in a worker thread, outside of a transaction."""
        with self._lock:
            self._encoder = self._encoder or self._load()
        return self._encoder.encode(texts, MAX_PASSAGE_TOKENS)

    def embed_query(self, text: str) -> QueryEmbedding:
        """Return the embedding of a search query."""
        return QueryEmbedding(self, self.encode_texts([text[:MAX_PASSAGE_CHARS]])[0])

    def refresh_signatures(self, tx: Transaction) -> tuple[Any, Any]:
        """Read new signatures and return the document ids and signatures of all embedded memories.

        Signatures of deleted memories stay in the cache until it is read again, which happens once it has grown by
        half.
        """
        import numpy as np

        with self._lock:
            if self._doc_ids is not None and len(self._doc_ids) > 1.5 * self._whole + MAX_STALE_SIGNATURES:
                # Numbers only grow, and deleted rows are not noticed. Reading everything again is the only way to drop
                # them, so it waits until the cache has grown by half.
                self._doc_ids, self._last_rowid = None, 0
            sql = (
                "select number, seat, signs from memory_sign where number > :last and model = :model "
                f"order by number limit {SIGNATURE_READ_BATCH}"
            )
            doc_ids, signs = [], []
            while rows := tx.fetch_all(tuple[int, int, bytes], sql, {"last": self._last_rowid, "model": self.name}):
                doc_ids.append(np.array([row[1] for row in rows], np.int64))
                signs.append(np.frombuffer(b"".join(row[2] for row in rows), np.uint64).reshape(len(rows), -1))
                self._last_rowid = rows[-1][0]
            if not doc_ids:
                return _empty_signatures() if self._doc_ids is None else (self._doc_ids, self._signatures)
            if self._doc_ids is None:
                self._doc_ids, self._signatures = np.concatenate(doc_ids), np.concatenate(signs)
                self._whole = len(self._doc_ids)
            else:
                self._doc_ids = np.concatenate([self._doc_ids, *doc_ids])
                self._signatures = np.concatenate([self._signatures, *signs])
            return self._doc_ids, self._signatures


class QueryEmbedding:
    """Embedding of a search query."""

    def __init__(self, index: EmbeddingIndex, vector: Array) -> None:
        self._index = index
        self._vector = vector

    def nearest_neighbours(self, tx: Transaction, scopes: Sequence[int] | None, limit: int) -> list[int]:
        """Return the documents with the smallest Hamming distance to the query, nearest first."""
        import numpy as np

        everyone, signs = self._index.refresh_signatures(tx)
        if scopes is not None:
            inside = np.isin(everyone // id_allocator.SCOPE, np.array(scopes, np.int64))
            everyone, signs = everyone[inside], signs[inside]
        if not len(everyone):
            return []
        differ = np.zeros(len(signs), np.int16)
        # Sum by columns: numpy is slow at summing many rows of six values.
        for column, query_bits in zip(signs.T, binary_quantize(self._vector), strict=True):
            differ += np.bitwise_count(column ^ query_bits)
        # A partition finds the threshold in linear time; only the few documents below it are sorted.
        is_near = differ <= np.partition(differ, limit - 1)[limit - 1] if len(differ) > limit else differ >= 0
        everyone, differ = everyone[is_near], differ[is_near]
        # On a tie, the newer memory first.
        chosen = np.lexsort((-everyone, differ))[:limit]
        return list(dict.fromkeys(everyone[chosen].tolist()))

    def cosine_similarity(self, tx: Transaction, candidates: Sequence[int]) -> dict[int, float]:
        """Return the cosine similarity of the candidates that have an embedding."""
        import numpy as np

        sql = "select seat, scale, vector from memory_vector where seat in :seats and model = :model"
        rows = tx.fetch_all(tuple[int, float, bytes], sql, {"seats": list(candidates), "model": self._index.name})
        if not rows:
            return {}
        vectors = np.frombuffer(b"".join(row[2] for row in rows), np.int8).reshape(len(rows), -1)
        close = vectors.astype(np.float32) @ self._vector * np.array([row[1] for row in rows], np.float32)
        # Rounded, so that equal values compare equal on every machine.
        return {row[0]: round(float(similarity), 5) for row, similarity in zip(rows, close, strict=True)}


def _empty_signatures() -> tuple[Any, Any]:
    import numpy as np

    return np.zeros(0, np.int64), np.zeros((0, 1), np.uint64)


def create_pending_index(tx: Transaction) -> None:
    """Create the index that `_pending_passages` uses. Created only with a model: otherwise it would contain every
    memory.
    """
    tx.execute(f"create index if not exists memory_seat_model on memory_seat (model, seat) where kind <> {NO_ID}")


async def embed_pending(db: Database, index: EmbeddingIndex, limit: int = ENCODE_BATCH_SIZE) -> int:
    """Embed up to `limit` memories without an embedding and return how many were embedded. Call it until it returns
    0.
    """
    # Hooks recall without an event loop, and importing asyncio takes half of their run time.
    import asyncio

    waiting = await db.read(lambda tx: _pending_passages(tx, index.name, limit))
    if not waiting:
        return 0
    # Between the two transactions, so that no writer waits for the model. `_store_vectors` compares the texts again.
    vectors = await asyncio.to_thread(index.encode_texts, list(waiting.values()))
    done = [(doc_id, text, vector) for (doc_id, text), vector in zip(waiting.items(), vectors, strict=True)]
    await db.write(lambda tx: _store_vectors(tx, index.name, done), isolation="read committed")
    return len(done)


def build_passage(own: str, before: str | None) -> str:
    """Return the text to embed: the memory, preceded by the end of the previous message."""
    text = " ".join(strip_code(own[: 8 * MAX_PASSAGE_CHARS]).split())[:MAX_PASSAGE_CHARS]
    if before is None:
        return text
    return f"{' '.join(strip_code(before[-8 * MAX_CONTEXT_CHARS :]).split())[-MAX_CONTEXT_CHARS:]}\n{text}"


def _pending_passages(tx: Transaction, model: str, limit: int) -> dict[int, str]:
    """Return the passages to embed by document id: memories without an embedding first, then those embedded by another
    model.
    """
    sql = f"select seat from memory_seat where kind <> {NO_ID} and {{}} order by seat desc limit :most"
    chosen = tx.fetch_all(int, sql.format("model is null"), {"most": limit})
    if not chosen:
        chosen = tx.fetch_all(int, sql.format("(model < :model or model > :model)"), {"most": limit, "model": model})
    return _load_passages(tx, chosen)


def _load_passages(tx: Transaction, doc_ids: list[int]) -> dict[int, str]:
    """Return the passages of the given documents."""
    rows = tx.fetch_all(
        tuple[int, str | None, int, str, str | None, int | None, str | None],
        "select own.seat, memory.author, own.kind, memory.content, earlier.author, before.kind, earlier.content "
        "from memory_seat as own join memory on memory.id = own.memory "
        "left join memory_seat as before on before.seat = own.seat - 1 "
        "left join memory as earlier on earlier.id = before.memory "
        f"where own.seat in :seats and own.kind <> {NO_ID} order by own.seat",
        {"seats": doc_ids},
    )
    result = {}
    for doc_id, author, kind, content, other, other_kind, earlier in rows:
        before = None
        if earlier is not None and id_allocator.place_of(doc_id):
            before = _attribute_to_author(other, other_kind, earlier)
        result[doc_id] = build_passage(_attribute_to_author(author, kind, content), before)
    return result


def _attribute_to_author(author: str | None, kind: int | None, content: str) -> str:
    """Prefix the content with its author if that is a person. “User” and “assistant” carry no meaning."""
    return f"{author}: {content}" if author is not None and kind == PERSON else content


def _store_vectors(tx: Transaction, model: str, done: list[tuple[int, str, Array]]) -> None:
    """Store the embeddings of memories whose text has not changed since; the others stay pending."""
    # Makes signature numbers visible in order, because readers only read numbers above the last one they saw.
    tx.advisory_lock("memory signs")
    # Lock the rows first, so that concurrent changes come after this transaction. The passages are read in a separate
    # statement, which sees the changes that the lock waited for.
    sql = "select seat from memory_seat where seat in :seats order by seat for update"
    locked = tx.fetch_all(int, sql, {"seats": [doc_id for doc_id, _, _ in done]})
    passages = _load_passages(tx, locked)
    remaining = [(doc_id, vector) for doc_id, text, vector in done if passages.get(doc_id) == text]
    doc_ids = {"seats": [doc_id for doc_id, _ in remaining]}
    tx.execute("delete from memory_sign where seat in :seats", doc_ids)
    replaced = tx.execute("delete from memory_vector where seat in :seats", doc_ids)
    counters.adjust(tx, "vector", {"": len(remaining) - replaced})
    tx.execute_many(
        "insert into memory_vector (seat, model, scale, vector) values (?, ?, ?, ?)",
        [(doc_id, model, *_int8_quantize(vector)) for doc_id, vector in remaining],
    )
    tx.execute_many(
        "insert into memory_sign (seat, model, signs) values (?, ?, ?)",
        [(doc_id, model, binary_quantize(vector).tobytes()) for doc_id, vector in remaining],
    )
    tx.execute("update memory_seat set model = :model where seat in :seats", {"model": model, **doc_ids})


def _int8_quantize(vector: Array) -> tuple[float, bytes]:
    """Quantize a vector to int8 and return the scale factor and the bytes."""
    import numpy as np

    # int8 with one scale per vector: a quarter of the size of float32. A zero vector would divide by zero.
    scale = float(np.abs(vector).max()) / _QUANTIZATION_SCALE or 1.0
    return scale, np.round(vector / scale).astype(np.int8).tobytes()


def binary_quantize(vector: Array) -> Any:
    """Return the signs of a vector, packed into 64-bit integers."""
    import numpy as np

    return np.packbits(vector > 0).view(np.uint64)
