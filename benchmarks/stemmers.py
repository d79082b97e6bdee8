"""Compare our stemmer with Snowball's: different stems, conflated pairs, and speed.

    pip install snowballstemmer PyStemmer
    .venv/bin/python benchmarks/stemmers.py TEXT…

What follows from it is in docs/decisions/stemming.md.
"""

from __future__ import annotations

import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from importlib import import_module
from itertools import combinations
from pathlib import Path

from portico.search.text import stem, tokenize_words

Stem = Callable[[str], str]


def libraries() -> Iterator[tuple[str, Stem]]:
    compiled = import_module("Stemmer").Stemmer
    for name in ("english", "porter"):
        module = import_module(f"snowballstemmer.{name}_stemmer")
        yield f"snowballstemmer {name}", getattr(module, f"{name.title()}Stemmer")().stemWord
        yield f"PyStemmer {name}", compiled(name, 0).stemWord


def measured(stemmer: Stem, vocabulary: list[str]) -> tuple[list[str], float]:
    start = time.process_time()
    stems = [stemmer(word) for word in vocabulary]
    return stems, 1e6 * (time.process_time() - start) / len(vocabulary)


def together(stems: list[str], vocabulary: list[str]) -> set[tuple[str, str]]:
    """Return the pairs of words with the same stem."""
    groups: dict[str, list[str]] = defaultdict(list)
    for found, word in zip(stems, vocabulary, strict=True):
        groups[found].append(word)
    return {pair for group in groups.values() for pair in combinations(group, 2)}


def main() -> None:
    text = " ".join(Path(name).read_text(encoding="utf-8") for name in sys.argv[1:])
    counts = Counter(tokenize_words(text.lower()))
    vocabulary = sorted(word for word in counts if word.isascii() and word.isalpha() and len(word) > 2)
    ours, our_time = measured(stem.__wrapped__, vocabulary)
    our_pairs = together(ours, vocabulary)
    print(f"{counts.total()} words, {len(vocabulary)} different; ours: {our_time:.1f} µs, {len(our_pairs)} pairs")
    for name, stemmer in libraries():
        stems, library_time = measured(stemmer, vocabulary)
        pairs = together(stems, vocabulary)
        other = sum(one != two for one, two in zip(ours, stems, strict=True)) / len(vocabulary)
        print(
            f"{name}: {library_time:.1f} µs, {other:.1%} other stems, {len(pairs)} pairs, "
            f"{len(our_pairs - pairs)} only ours, {len(pairs - our_pairs)} only theirs"
        )


if __name__ == "__main__":
    main()
