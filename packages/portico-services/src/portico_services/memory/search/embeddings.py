"""Meanings: a vector for each memory, by which it is found when it says the same in other words.

A memory is encoded together with the end of what came before it in its thread: an answer means little without its
question. That takes milliseconds, so it is done after a capture has returned (`embed_pending`); until then a memory is
found by its words.

To look through all of them, the sign of each number is enough: 48 bytes for a memory, kept in the process and brought
up to date with each question. The nearest by these are then compared exactly.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from portico import Error
from portico.extend import Transaction
from portico_services.memory.search import doc_ids
from portico_services.memory.search.analyzer import prose
from portico_services.memory.search.id_allocator import ABSENT, PERSON
from portico_services.memory.store import counters

if TYPE_CHECKING:
    import numpy as np

    from portico.extend import Database

    Array = np.ndarray[Any, np.dtype[np.float32]]

# How much of a memory is encoded, and of the one before it, in characters; and how many pieces of words that may be.
OWN, BEFORE, PIECES = 700, 200, 192
# So many are encoded at once and then kept: what a process that is killed has done in vain, half a second of it.
BATCH = 64
# So many signs of memories that are gone are borne with.
STALE = 10_000
_SCALE = 127.0
# So many signs are read at once: of a million, their rows would take more room than they do.
PIECE = 20_000


class NoModel(Error):
    """There are no vectors here; the text says what is missing."""


class Encoder(Protocol):
    """A model: the vectors it gives have length one."""

    def encode_all(self, texts: Sequence[str], most: int) -> Sequence[Array]: ...


class Meanings:
    """What is known of the meanings in one store. `load` gives the model that is called `name`; it may take a while."""

    def __init__(self, name: str, load: Callable[[], Encoder]) -> None:
        self.name = name
        self._load = load
        self._encoder: Encoder | None = None
        self._lock = threading.Lock()
        self._seats: Any = None
        self._signs: Any = None
        # The number of the last sign that was read, and how many there were when all of them were.
        self._last, self._whole = 0, 0

    def encode(self, texts: Sequence[str]) -> Sequence[Array]:
        """The vectors of texts. Outside of a transaction, and in a thread."""
        with self._lock:
            self._encoder = self._encoder or self._load()
        return self._encoder.encode_all(texts, PIECES)

    def of_question(self, text: str) -> Sense:
        return Sense(self, self.encode([text[:OWN]])[0])

    def refreshed(self, tx: Transaction) -> tuple[Any, Any]:
        """The seats and the signs of all. Those of memories that are gone stay in here until all is read again, which
        is when there are half as many new ones as old ones."""
        import numpy as np

        with self._lock:
            if self._seats is not None and len(self._seats) > 1.5 * self._whole + STALE:
                self._seats, self._last = None, 0
            sql = (
                "select number, seat, signs from memory_sign where number > :last and model = :model "
                f"order by number limit {PIECE}"
            )
            places, signs = [], []
            while rows := tx.all(tuple[int, int, bytes], sql, {"last": self._last, "model": self.name}):
                places.append(np.array([row[1] for row in rows], np.int64))
                signs.append(np.frombuffer(b"".join(row[2] for row in rows), np.uint64).reshape(len(rows), -1))
                self._last = rows[-1][0]
            if not places:
                return _no_signs() if self._seats is None else (self._seats, self._signs)
            if self._seats is None:
                self._seats, self._signs = np.concatenate(places), np.concatenate(signs)
                self._whole = len(self._seats)
            else:
                self._seats = np.concatenate([self._seats, *places])
                self._signs = np.concatenate([self._signs, *signs])
            return self._seats, self._signs


class Sense:
    """What a question means."""

    def __init__(self, meanings: Meanings, vector: Array) -> None:
        self._meanings = meanings
        self._vector = vector

    def nearest(self, tx: Transaction, scopes: Sequence[int] | None, most: int) -> list[int]:
        """The seats of those whose signs differ least, the nearest first."""
        import numpy as np

        everyone, signs = self._meanings.refreshed(tx)
        if scopes is not None:
            inside = np.isin(everyone // doc_ids.SCOPE, np.array(scopes, np.int64))
            everyone, signs = everyone[inside], signs[inside]
        if not len(everyone):
            return []
        differ = np.zeros(len(signs), np.int16)
        # By columns, because numpy is slow to add up many rows of six.
        for column, wanted in zip(signs.T, _signs(self._vector), strict=True):
            differ += np.bitwise_count(column ^ wanted)
        near = differ <= np.partition(differ, most - 1)[most - 1] if len(differ) > most else differ >= 0
        everyone, differ = everyone[near], differ[near]
        # Of those that differ alike, the later one.
        chosen = np.lexsort((-everyone, differ))[:most]
        return list(dict.fromkeys(everyone[chosen].tolist()))

    def closeness(self, tx: Transaction, candidates: Sequence[int]) -> dict[int, float]:
        """By seat, how near to what is wanted; of those that have been encoded."""
        import numpy as np

        sql = "select seat, scale, vector from memory_vector where seat in :seats and model = :model"
        rows = tx.all(tuple[int, float, bytes], sql, {"seats": list(candidates), "model": self._meanings.name})
        if not rows:
            return {}
        vectors = np.frombuffer(b"".join(row[2] for row in rows), np.int8).reshape(len(rows), -1)
        close = vectors.astype(np.float32) @ self._vector * np.array([row[1] for row in rows], np.float32)
        # Rounded, so that what is equal stays equal on every machine.
        return {row[0]: round(float(one), 5) for row, one in zip(rows, close, strict=True)}


def _no_signs() -> tuple[Any, Any]:
    import numpy as np

    return np.zeros(0, np.int64), np.zeros((0, 1), np.uint64)


def prepare(tx: Transaction) -> None:
    """Make what `_waiting` looks into. Without a model it would have every memory, and be of no use."""
    tx.run(f"create index if not exists memory_seat_model on memory_seat (model, seat) where kind <> {ABSENT}")


async def embed_pending(db: Database, meanings: Meanings, most: int = BATCH) -> int:
    """Encode memories that have not been; how many were. Again until there are none."""
    # Hooks recall without an event loop, and importing asyncio takes half of their time.
    import asyncio

    waiting = await db.read(lambda tx: _waiting(tx, meanings.name, most))
    if not waiting:
        return 0
    vectors = await asyncio.to_thread(meanings.encode, list(waiting.values()))
    done = [(seat, text, vector) for (seat, text), vector in zip(waiting.items(), vectors, strict=True)]
    await db.write(lambda tx: _keep(tx, meanings.name, done), isolation="read committed")
    return len(done)


def passage(own: str, before: str | None) -> str:
    """What is encoded of a memory."""
    text = " ".join(prose(own[: 8 * OWN]).split())[:OWN]
    if before is None:
        return text
    return f"{' '.join(prose(before[-8 * BEFORE :]).split())[-BEFORE:]}\n{text}"


def _waiting(tx: Transaction, model: str, most: int) -> dict[int, str]:
    """What is to be encoded, by seat: of memories that no model has encoded, and then of those that another one has."""
    sql = f"select seat from memory_seat where kind <> {ABSENT} and {{}} order by seat desc limit :most"
    chosen = tx.all(int, sql.format("model is null"), {"most": most})
    if not chosen:
        chosen = tx.all(int, sql.format("(model < :model or model > :model)"), {"most": most, "model": model})
    return _passages(tx, chosen)


def _passages(tx: Transaction, seats: list[int]) -> dict[int, str]:
    """What is to be encoded of the memories at these seats, by seat."""
    rows = tx.all(
        tuple[int, str | None, int, str, str | None, int | None, str | None],
        "select own.seat, memory.author, own.kind, memory.content, earlier.author, before.kind, earlier.content "
        "from memory_seat as own join memory on memory.id = own.memory "
        "left join memory_seat as before on before.seat = own.seat - 1 "
        "left join memory as earlier on earlier.id = before.memory "
        f"where own.seat in :seats and own.kind <> {ABSENT} order by own.seat",
        {"seats": seats},
    )
    found = {}
    for seat, author, kind, content, other, other_kind, earlier in rows:
        before = None
        if earlier is not None and doc_ids.place_of(seat):
            before = _said(other, other_kind, earlier)
        found[seat] = passage(_said(author, kind, content), before)
    return found


def _said(author: str | None, kind: int | None, content: str) -> str:
    """Who a person is matters; that it is the user or the assistant does not."""
    return f"{author}: {content}" if author is not None and kind == PERSON else content


def _keep(tx: Transaction, model: str, done: list[tuple[int, str, Array]]) -> None:
    """The vectors of those that say what was encoded; one that was changed meanwhile is waiting again."""
    # So that the numbers of signs are seen in their order by those who only read the new ones.
    tx.lock("memory signs")
    # A caller who changes one now, does so after this. What they say is read in a statement of its own, which sees the
    # changes that were waited for.
    sql = "select seat from memory_seat where seat in :seats order by seat for update"
    locked = tx.all(int, sql, {"seats": [seat for seat, _, _ in done]})
    said = _passages(tx, locked)
    kept = [(seat, vector) for seat, text, vector in done if said.get(seat) == text]
    seats = {"seats": [seat for seat, _ in kept]}
    tx.run("delete from memory_sign where seat in :seats", seats)
    known = tx.run("delete from memory_vector where seat in :seats", seats)
    counters.add(tx, "vector", {"": len(kept) - known})
    tx.many(
        "insert into memory_vector (seat, model, scale, vector) values (?, ?, ?, ?)",
        [(seat, model, *_packed(vector)) for seat, vector in kept],
    )
    tx.many(
        "insert into memory_sign (seat, model, signs) values (?, ?, ?)",
        [(seat, model, _signs(vector).tobytes()) for seat, vector in kept],
    )
    tx.run("update memory_seat set model = :model where seat in :seats", {"model": model, **seats})


def _packed(vector: Array) -> tuple[float, bytes]:
    """One byte for each number, and what they are to be multiplied by."""
    import numpy as np

    scale = float(np.abs(vector).max()) / _SCALE or 1.0
    return scale, np.round(vector / scale).astype(np.int8).tobytes()


def _signs(vector: Array) -> Any:
    import numpy as np

    return np.packbits(vector > 0).view(np.uint64)
