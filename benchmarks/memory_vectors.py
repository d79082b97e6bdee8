"""What vectors cost: the CPU time of one question, and of giving memories theirs in the background, by numpy and, where
CTranslate2 is installed, in whole numbers of eight bits.

    OPENBLAS_NUM_THREADS=1 python benchmarks/memory_vectors.py [--memories 512] [--questions 200]

CPU time is of the whole process, so that a busy machine matters less. The model is fetched into `.bench/` if it is not
there. A memory is encoded, packed and kept in SQLite; those in a thread together with the end of what came before.
Without OPENBLAS_NUM_THREADS multiplications use all cores, and use the elapsed time.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import tempfile
import time
from functools import partial
from pathlib import Path

from memory_corpus import Corpus
from portico.store.database import Database
from portico_services.memory.search import model_download, model_loader
from portico_services.memory.search.embeddings import MAX_PASSAGE_TOKENS, EmbeddingIndex, build_passage, embed_pending
from portico_services.memory.search.minilm import MiniLM
from portico_services.memory.search.minilm_int8 import Int8MiniLM
from portico_services.memory.search.wordpiece import WordPieceTokenizer
from portico_services.memory.store.memory_store import MemoryStore

MODELS = Path(__file__).resolve().parent.parent / ".bench"


def ask(meanings: EmbeddingIndex, questions: list[str]) -> list[float]:
    """The milliseconds of each, sorted."""
    meanings.embed_query(questions[0])
    items = []
    for question in questions:
        began = time.process_time()
        meanings.embed_query(question)
        items.append((time.process_time() - began) * 1e3)
    return sorted(items)


async def ingest(meanings: EmbeddingIndex, count: int, threads: bool) -> tuple[float, float]:
    """How many in a second of CPU time, and of the clock."""
    with tempfile.TemporaryDirectory(prefix="portico-vectors-") as folder:
        async with Database(f"{folder}/memory.db") as database:
            memories = MemoryStore(database)
            await memories.open()
            corpus = Corpus()
            drafts = list(corpus.drafts(count * 3))
            await memories.capture_batch([draft for draft in drafts if (draft.thread is not None) == threads][:count])
            await memories.close()
            began, clock = time.process_time(), time.perf_counter()
            while await embed_pending(database, meanings):
                pass
            return count / (time.process_time() - began), count / (time.perf_counter() - clock)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--memories", type=int, default=512)
    parser.add_argument("--questions", type=int, default=200)
    options = parser.parse_args()
    folder = model_loader.find_model(MODELS) or model_download.download_model(MODELS)
    if importlib.util.find_spec("numpy") is None:
        raise SystemExit("numpy is not installed: pip install 'portico-services[memory-vectors]'")
    kinds: dict[str, type[MiniLM] | type[Int8MiniLM]] = {"numpy": MiniLM}
    if importlib.util.find_spec("ctranslate2") is not None:
        kinds["eight bits"] = Int8MiniLM
    corpus, pieces = Corpus(), WordPieceTokenizer(folder / "vocab.txt")
    texts = [corpus.text() for _ in range(options.questions)]
    questions = [corpus.question(text) for text in texts]

    def mean(some: list[str]) -> float:
        return sum(len(pieces.encode(item, MAX_PASSAGE_TOKENS)) for item in some) / len(some)

    print(
        f"a question has {mean(questions):.0f} pieces, a memory "
        f"{mean([build_passage(text, None) for text in texts]):.0f}"
    )
    for kind, encoder in kinds.items():
        meanings = EmbeddingIndex(MiniLM.name, partial(encoder, folder))
        response = ask(meanings, questions)
        half, most = response[len(response) // 2], response[len(response) * 9 // 10]
        print(f"{kind}, question: p50 {half:.1f} ms, p90 {most:.1f} ms")
        for threads, name in ((False, "alone"), (True, "in a thread")):
            cpu, clock = asyncio.run(ingest(meanings, options.memories, threads))
            print(f"{kind}, memories {name}: {cpu:.0f} a second of CPU time, {clock:.0f} by the clock")


if __name__ == "__main__":
    main()
