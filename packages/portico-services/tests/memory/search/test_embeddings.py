"""Recall by embeddings: with a test model, and with the real one if available."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from portico.cli.main import main
from portico.store.database import Database
from portico_services.memory.search import embeddings, model_download, model_loader
from portico_services.memory.search.embeddings import EmbeddingIndex, EmbeddingsUnavailable
from portico_services.memory.search.minilm import MiniLM
from portico_services.memory.store import statistics
from portico_services.memory.store.capture import MemoryDraft
from portico_services.memory.store.memory_store import MemoryStore
from support.engines import sqlite_engine  # noqa: F401
from support.memories import capture_memory
from support.paths import ROOT

np: Any = pytest.importorskip("numpy", reason="numpy is not installed: pip install 'portico-services[memory-vectors]'")

TIMEOUT_SECONDS = 60
SAME = {"feline": "cat", "automobile": "car", "purchase": "buy"}


class Synonyms:
    """A model that knows three pairs of words that mean the same."""

    def __init__(self) -> None:
        self.encoded: list[str] = []

    def encode(self, texts: Sequence[str], most: int) -> list[Any]:
        self.encoded += texts
        return [self._vector(text) for text in texts]

    def _vector(self, text: str) -> Any:
        result = np.zeros(384, np.float32)
        for word in text.lower().replace(".", " ").split():
            seed = int.from_bytes(hashlib.sha256(SAME.get(word, word).encode()).digest()[:4], "little")
            result += np.random.default_rng(seed).standard_normal(384).astype(np.float32)
        return result / max(float(np.sqrt(result @ result)), 1e-9)


@asynccontextmanager
async def opened(url: str, meanings: EmbeddingIndex | None) -> AsyncIterator[MemoryStore]:
    async with Database(url) as database:
        memories = MemoryStore(database, project="here/project", embeddings=meanings)
        await memories.open()
        yield memories
        await memories.close()


async def encoded(memories: MemoryStore, count: int, named: str = "synonyms") -> None:
    async with asyncio.timeout(TIMEOUT_SECONDS):
        await memories.wait_until_indexed()
    sql = "select count(*) from memory_vector where model = :named"
    assert await memories.read(lambda tx: tx.fetch_one(int, sql, {"named": named})) == count


async def sought(memories: MemoryStore, query: str, mode: Any, filter: str = "") -> list[str]:
    page = await memories.recall(query, memories.filter(filter), mode=mode, limit=3)
    return [hit.record.content for hit in page.hits]


async def test_synonym_is_found_by_vector_search(url: str) -> None:
    async with opened(url, EmbeddingIndex("synonyms", Synonyms)) as memories:
        await capture_memory(memories, "cat sleeps")
        await capture_memory(memories, "car drives", tags=["traffic"])
        await encoded(memories, 2)
        page = await memories.recall("feline", memories.filter(""), mode="text")
        assert all(hit.weak for hit in page.hits)
        assert (await sought(memories, "feline", "vector"))[0] == "cat sleeps"
        assert (await sought(memories, "feline", "hybrid"))[0] == "cat sleeps"
        assert await sought(memories, "feline", "vector", "tag:traffic") == ["car drives"]
        assert memories.modes == ["text", "hybrid", "vector"]


@pytest.mark.parametrize("mode", ["hybrid", "vector"])
async def test_superseded_memory_is_not_found_by_its_embedding(url: str, mode: Any) -> None:
    async with opened(url, EmbeddingIndex("synonyms", Synonyms)) as memories:
        old = await capture_memory(memories, "cat sleeps")
        await capture_memory(memories, "car drives")
        await encoded(memories, 2)
        await memories.update(old.id, status="superseded")
        page = await memories.recall("feline sleeps", memories.filter(""), mode=mode)
        assert [hit.record.content for hit in page.hits] == ["car drives"]
        assert page.nothing_known


async def test_explanation_has_the_similarity_of_the_embedding(url: str) -> None:
    async with opened(url, EmbeddingIndex("synonyms", Synonyms)) as memories:
        await capture_memory(memories, "cat")
        await encoded(memories, 1)
        page = await memories.recall("feline", memories.filter(""), explain=True)
        explanation = page.hits[0].explanation
        assert explanation is not None
        assert explanation.embedding == 1.0
        assert explanation.terms == []
        assert not page.nothing_known


async def test_memory_is_encoded_with_the_preceding_message(url: str) -> None:
    encoder = Synonyms()
    async with opened(url, EmbeddingIndex("synonyms", lambda: encoder)) as memories:
        await capture_memory(memories, "Do you have a cat?", thread="talk", author="Ann")
        await capture_memory(memories, "Two of them.", thread="talk", author="Ben")
        await encoded(memories, 2)
    assert "Ann: Do you have a cat?\nBen: Two of them." in encoder.encoded


async def test_encoding_continues_after_a_restart(url: str) -> None:
    async with opened(url, None) as memories:
        for number in range(40):
            await capture_memory(memories, f"automobile {number}", on_duplicate="keep")
    async with opened(url, EmbeddingIndex("synonyms", Synonyms)) as memories:
        await encoded(memories, 40)
        assert len(await sought(memories, "car 7", "vector")) == 3
    async with opened(url, EmbeddingIndex("another", Synonyms)) as memories:
        await encoded(memories, 40, "another")


KILLED = """
import asyncio, os, signal, sys
from test_embeddings import Synonyms, opened
from portico_services.memory.search.embeddings import EmbeddingIndex

class Killed(Synonyms):
    def encode(self, texts, most):
        if len(self.encoded) >= 2 * len(texts):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().encode(texts, most)

async def main():
    async with opened(sys.argv[1], EmbeddingIndex("synonyms", Killed)) as memories:
        await memories.wait_until_indexed()

asyncio.run(main())
"""


@pytest.mark.skipif(os.name == "nt", reason="there is no SIGKILL here")
async def test_embedding_resumes_after_kill_and_reports_progress(url: str) -> None:
    total, done = 3 * embeddings.ENCODE_BATCH_SIZE, 2 * embeddings.ENCODE_BATCH_SIZE
    async with opened(url, None) as memories:
        await memories.capture_batch(
            [MemoryDraft(content=f"automobile {n}", namespace="context") for n in range(total)]
        )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    killed = await asyncio.create_subprocess_exec(sys.executable, "-c", KILLED, url, env=environment)
    assert await asyncio.wait_for(killed.wait(), TIMEOUT_SECONDS) == -signal.SIGKILL
    async with opened(url, None) as memories:
        counts = await memories.read(statistics.collect_counts)
        assert (counts.total, counts.indexed, counts.embedded) == (total, total, done)
    encoder = Synonyms()
    async with opened(url, EmbeddingIndex("synonyms", lambda: encoder)) as memories:
        await encoded(memories, total)
        assert len(encoder.encoded) == total - done
        assert (await memories.read(statistics.collect_counts)).embedded == total


async def test_deleted_memory_leaves_no_vector(url: str) -> None:
    async with opened(url, EmbeddingIndex("synonyms", Synonyms)) as memories:
        kept = await capture_memory(memories, "purchase order")
        await capture_memory(memories, "cat and car")
        await encoded(memories, 2)
        assert (await sought(memories, "buy order", "vector"))[0] == "purchase order"
        await memories.delete(kept.id, hard=True)
        assert await sought(memories, "buy order", "vector") == ["cat and car"]
        for table in ("memory_vector", "memory_sign"):
            count = f"select count(*) from {table}"
            assert await memories.read(lambda tx, count=count: tx.fetch_one(int, count)) == 1  # type: ignore[misc]


class Interrupted(Synonyms):
    """The first text that it is given is changed before its vector is there."""

    def __init__(self, changed: threading.Event, begun: threading.Event) -> None:
        super().__init__()
        self._changed, self._begun = changed, begun

    def encode(self, texts: Sequence[str], most: int) -> list[Any]:
        self._begun.set()
        assert self._changed.wait(TIMEOUT_SECONDS)
        return super().encode(texts, most)


async def test_memory_updated_during_encoding_is_encoded_again(url: str) -> None:
    changed, begun = threading.Event(), threading.Event()
    async with opened(url, EmbeddingIndex("synonyms", lambda: Interrupted(changed, begun))) as memories:
        try:
            result = await capture_memory(memories, "cat sleeps")
            assert await asyncio.to_thread(begun.wait, TIMEOUT_SECONDS)
            await memories.update(result.id, content="car drives")
        finally:
            changed.set()
        await encoded(memories, 1)
        page = await memories.recall("automobile drives", memories.filter(""), mode="vector")
        assert [(hit.record.content, hit.weak) for hit in page.hits] == [("car drives", False)]


async def test_stale_signatures_are_reloaded(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embeddings, "MAX_STALE_SIGNATURES", 2)
    monkeypatch.setattr(embeddings, "SIGNATURE_READ_BATCH", 3)
    async with opened(url, EmbeddingIndex("synonyms", Synonyms)) as memories:
        kept = await capture_memory(memories, "cat one")
        await encoded(memories, 1)
        for number in range(6):
            await memories.update(kept.id, content=f"cat {number} car")
            await encoded(memories, 1)
            assert await sought(memories, "feline", "vector") == [f"cat {number} car"]


async def test_model_that_cannot_be_loaded_leaves_words(url: str) -> None:
    def broken() -> Any:
        raise EmbeddingsUnavailable("The model is damaged.")

    async with opened(url, EmbeddingIndex("broken", broken)) as memories:
        await capture_memory(memories, "cat sleeps")
        assert await sought(memories, "cat", "hybrid") == ["cat sleeps"]
        with pytest.raises(Exception, match="damaged"):
            await sought(memories, "cat", "vector")


def test_invalid_model_files_are_not_loaded(tmp_path: Path) -> None:
    assert model_loader.find_model(tmp_path) is None
    folder = tmp_path / "models" / model_loader.MODEL_DIR
    folder.mkdir(parents=True)
    for name in model_loader.MODEL_FILES:
        (folder / name).write_bytes(b"\xff" * 64)
    result = model_loader.load_embedding_index(tmp_path)
    assert result is not None
    with pytest.raises(EmbeddingsUnavailable):
        result.encode_texts(["hello"])


def test_downloaded_model_with_unexpected_content_is_discarded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def download(place: Path) -> None:
        for name in model_loader.MODEL_FILES:
            (place / name).write_bytes(b"something else")

    monkeypatch.setattr(model_download, "_download", download)
    with pytest.raises(EmbeddingsUnavailable, match="The download was discarded"):
        model_download.download_model(tmp_path)
    assert model_loader.find_model(tmp_path) is None


@pytest.fixture(scope="module")
def real() -> Path:
    """Where the real model is. It is fetched where CI is set, and never elsewhere."""
    place = ROOT / ".bench"
    if model_loader.find_model(place) is None:
        if not os.environ.get("CI"):
            pytest.skip("The model is not here: PORTICO_DATA=.bench portico memory download-model")
        model_download.download_model(place)
    return place


def test_real_model_matches_the_published_similarities(real: Path) -> None:
    folder = model_loader.find_model(real)
    assert folder is not None
    texts = ("The weather is lovely today.", "It's so sunny outside!", "He drove to the stadium.")
    lovely, sunny, stadium = MiniLM(folder, None).encode(texts)
    assert float(lovely @ lovely) == pytest.approx(1, abs=1e-4)
    # What the documentation of the model's own library prints for these.
    assert float(lovely @ sunny) == pytest.approx(0.6660, abs=1e-3)
    assert float(lovely @ stadium) == pytest.approx(0.1046, abs=1e-3)
    assert float(sunny @ stadium) == pytest.approx(0.1411, abs=1e-3)


async def test_model_finds_synonyms(url: str, real: Path) -> None:
    async with opened(url, model_loader.load_embedding_index(real)) as memories:
        await capture_memory(memories, "Ann adopted a puppy from the shelter", "context")
        await capture_memory(memories, "The invoice was paid in euros", "context")
        await encoded(memories, 2, MiniLM.name)
        assert (await sought(memories, "Does anybody own a dog?", "vector"))[0].startswith("Ann adopted")


def test_download_model_prints_the_location_of_the_model(
    real: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PORTICO_DATA", str(real))
    monkeypatch.setattr("sys.argv", ["portico", "memory", "download-model"])
    with contextlib.suppress(SystemExit):
        main()
    said = capsys.readouterr().out
    assert "The model is in" in said and "A running server (portico serve) embeds" in said
