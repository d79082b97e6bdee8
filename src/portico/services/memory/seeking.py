"""The seam to the ranker: what is told to its index, and what is asked of it."""

from __future__ import annotations

from collections.abc import Sequence

from portico.services.memory import records
from portico.services.memory.filters import Filter
from portico.services.memory.likeness import words
from portico.services.memory.records import Record
from portico.store.transaction import Transaction

MOST = 100_000


def modes() -> list[str]:
    return ["text"]


def index(tx: Transaction, found: Sequence[Record]) -> None:
    """Nothing yet."""


def unindex(tx: Transaction, ids: Sequence[str]) -> None:
    """Nothing yet."""


def seek(tx: Transaction, query: str, filter: Filter, limit: int, *, at: int) -> list[tuple[str, float]]:
    wanted = set(words(query))
    scored = []
    for one in records.matching(tx, filter, limit=MOST, at=at):
        score = float(len(wanted & set(words(one.content))))
        if score:
            scored.append((one.id, score))
    scored.sort(key=lambda pair: -pair[1])
    return scored[:limit]
