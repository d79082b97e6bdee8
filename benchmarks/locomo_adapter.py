"""The memory service as a retriever for evaluations that store and query turns of conversations.

    python locomo_retrieval.py run benchmarks/locomo_adapter.py:Memory benchmarks/locomo_adapter.py:MemoryVectors

`Memory` has no model. `MemoryVectors` has one, which is fetched on first use into `.bench/`. Each turn is captured as a
separate memory, and each question is a recall, by the functions that the tools call: the conversation is the project,
its session the thread, its speaker the author. Nothing else is told.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Coroutine, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

# As the evaluations have it: one core for one question.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from portico.store.database import Database
from portico_services.memory.search import model_download, model_loader
from portico_services.memory.search.candidates import CandidateSet, RetrievalRequest, retrieve_candidates
from portico_services.memory.search.embeddings import EmbeddingIndex, QueryEmbedding
from portico_services.memory.store.capture import MemoryDraft
from portico_services.memory.store.memory_store import MemoryStore
from portico_services.memory.store.validation import MAX_CONTENT_CHARS

T = TypeVar("T")

MODELS = Path(__file__).resolve().parent.parent / ".bench"


class Memory:
    """Retriever by words."""

    scoped = True
    requires: tuple[str, ...] = ()

    def __init__(self, url: str = "") -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="portico-recall-")
        self._loop = asyncio.new_event_loop()
        self._database = Database(url or f"{self._folder.name}/memory.db")
        self._meanings = self._model()
        self._memories = MemoryStore(self._database, embeddings=self._meanings)
        # The name of each memory in the evaluation, by its id.
        self._names: dict[str, str] = {}
        self._run(self._database.open())
        self._run(self._memories.open())

    def add(self, docs: Sequence[Any]) -> None:
        self.keep(docs, [draft(item) for item in docs])

    def keep(self, docs: Sequence[Any], drafts: Sequence[MemoryDraft]) -> None:
        result = self._run(self._memories.capture_batch(drafts))
        self._names |= {one.record.id: doc.id for one, doc in zip(result, docs, strict=True)}

    def search(self, query: str, k: int, scope: str | None) -> list[str]:
        result = self._memories.filter("").with_condition("project", scope or "*")
        page = self._run(self._memories.recall(query, result, limit=k))
        return [self._names[hit.record.id] for hit in page.hits]

    def look(self, query: str, scope: str | None) -> tuple[CandidateSet, list[str]]:
        """Return the candidates and features of the ranker, for fitting its weights."""
        sql = "select number from memory_scope where project = :scope"
        scopes = (
            None
            if scope is None
            else self._run(self._memories.read(lambda tx: tx.fetch_all(int, sql, {"scope": scope})))
        )
        search = RetrievalRequest(query, scopes, query_embedding=self._sense(query))
        seen: CandidateSet = self._run(self._memories.read(lambda tx: retrieve_candidates(tx, search)))
        return seen, [self._names[memory] for _, memory, *_ in seen.candidates]

    def close(self) -> None:
        self._run(self._memories.close())
        self._run(self._database.close())
        self._loop.close()
        self._folder.cleanup()

    def _model(self) -> EmbeddingIndex | None:
        return None

    def _sense(self, query: str) -> QueryEmbedding | None:
        return None if self._meanings is None else self._meanings.embed_query(query)

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._loop.run_until_complete(work)


class MemoryVectors(Memory):
    """Retriever by words and embeddings."""

    requires = ("numpy",)

    def flush(self) -> None:
        self._run(self._memories.wait_until_indexed())

    def _model(self) -> EmbeddingIndex | None:
        if model_loader.find_model(MODELS) is None:
            model_download.download_model(MODELS)
        return model_loader.load_embedding_index(MODELS)


def draft(doc: Any) -> MemoryDraft:
    output = f" [image: {doc.caption}]" if doc.caption else ""
    return MemoryDraft(
        # Longer ones are refused, and one of BEAM's is; nor can one say nothing.
        content=(doc.text + output).strip()[:MAX_CONTENT_CHARS] or "…",
        namespace="context",
        project=doc.scope,
        author=doc.speaker or None,
        thread=str(doc.session),
        at=_moment(doc.when),
        on_duplicate="keep",
    )


def _moment(when: str) -> str | None:
    try:
        return datetime.fromisoformat(when).isoformat()
    except ValueError:
        return None
