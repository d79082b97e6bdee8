"""Write the thesaurus of the memory ranker: similar words for each word.

    python benchmarks/distill_thesaurus.py

Every whole word of the vocabulary of all-MiniLM-L6-v2 and of `thesaurus/technology.txt`, is encoded by the model
that `portico memory download-model` fetches (here into `.bench/`), in some minutes. The common direction of all
vectors is removed, words of one stem form one entry, and each entry stores its nearest ones. Technical terms are
listed in `technology.txt`, because a model of everyday English does not know that Kafka is a queue.

The model is by the Sentence-Transformers project (sentence-transformers/all-MiniLM-L6-v2, Apache License 2.0). The
thesaurus holds no weights of it, only which of its vectors are near each other.
"""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

from portico_services.memory.search import model_download, model_loader
from portico_services.memory.search.analyzer import normalize_term
from portico_services.memory.search.minilm import MiniLM

HERE = Path(__file__).resolve().parent
MODELS = HERE.parent / ".bench"
TARGET = HERE.parent / "packages/portico/src/portico/search/thesaurus.txt"
# So many of the nearest, if they are as near as this.
MOST, LEAST = 8, 0.45
# How near a name is to the first word for its kind, and to the others; and what each further kind takes off.
FIRST, HAND, LESS = 0.66, 0.6, 0.02
HEAD = """\
# Which words mean nearly the same, in hundredths, by their stems. Distilled from sentence-transformers/all-MiniLM-L6-v2
# (Apache License 2.0) and benchmarks/thesaurus/technology.txt by benchmarks/distill_thesaurus.py. Sorted; bisected.
"""


def technology() -> tuple[set[str], dict[str, dict[str, float]]]:
    """Return the words of the table, and for each stem its neighbours with their similarity."""
    lines = (HERE / "thesaurus" / "technology.txt").read_text(encoding="utf-8").splitlines()
    rows = [[part.split() for part in line.split(":")] for line in lines if not line.startswith("#")]
    listed = Counter(normalize_term(name) for _, names in rows for name in set(names))
    near: dict[str, dict[str, float]] = defaultdict(dict)
    for kinds, names in rows:
        for place, kind in enumerate(map(normalize_term, kinds)):
            for other in map(normalize_term, (*kinds, *names)):
                # What is of many kinds says less about each.
                close = (FIRST if place == 0 else HAND) - LESS * max(0, listed[other] - 1)
                if kind and other and kind != other:
                    near[kind][other] = near[other][kind] = max(close, near[kind].get(other, 0.0))
    return {word for row in rows for part in row for word in part}, near


def vectors(folder: Path, words: list[str]) -> np.ndarray:
    """Encode the words once and cache the vectors next to the model."""
    kept = folder / "words.npz"
    if kept.is_file():
        with np.load(kept) as file:
            if file["words"].tolist() == words:
                return file["vectors"]
    encoder = MiniLM(folder, None)
    result = np.array(encoder.encode(words))
    np.savez(kept, words=np.array(words), vectors=result)
    return result


def stems(words: list[str], encoded: np.ndarray) -> tuple[list[str], np.ndarray]:
    """Return the stems, and a unit vector for each."""
    encoded = encoded - encoded.mean(0)
    encoded /= np.linalg.norm(encoded, axis=1, keepdims=True)
    groups: dict[str, list[int]] = defaultdict(list)
    for number, word in enumerate(words):
        groups[normalize_term(word)].append(number)
    result = np.array([encoded[numbers].mean(0) for numbers in groups.values()])
    return list(groups), result / np.linalg.norm(result, axis=1, keepdims=True)


def rows(table: np.ndarray, lot: int = 256) -> Iterator[np.ndarray]:
    """Return the similarity of each entry to all of them."""
    for first in range(0, len(table), lot):
        yield from table[first : first + lot] @ table.T


def main() -> None:
    folder = model_loader.find_model(MODELS) or model_download.download_model(MODELS)
    by_hand, beside = technology()
    vocabulary = (folder / "vocab.txt").read_text(encoding="utf-8").split("\n")
    whole = [word for word in vocabulary if re.fullmatch("[a-z]{3,}", word)]
    words = [word for word in dict.fromkeys((*whole, *sorted(by_hand))) if normalize_term(word)]
    terms, table = stems(words, vectors(folder, words))
    lines = []
    for number, (term, closeness) in enumerate(zip(terms, rows(table), strict=True)):
        order = [at for at in np.argpartition(-closeness, MOST)[: MOST + 1] if closeness[at] >= LEAST]
        near = {terms[at]: float(closeness[at]) for at in order if at != number}
        for other, close in beside.get(term, {}).items():
            near[other] = max(close, near.get(other, 0.0))
        if near:
            ranked = sorted(near.items(), key=lambda pair: (-pair[1], pair[0]))
            lines.append(" ".join([term, *(f"{other} {round(100 * close)}" for other, close in ranked)]))
    TARGET.write_text(HEAD + "".join(f"{line}\n" for line in sorted(lines)), encoding="ascii")
    print(f"{len(words):,} words, {len(lines):,} stems with neighbours, {TARGET.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
