"""Risk and coverage of `match: strong` and `nothing_known`: ask questions of the right and of the wrong conversation.

    python benchmarks/recall_calibration.py --tools FOLDER --locomo dev.zip --beam GIT_DIRECTORY --qmsum train.jsonl \\
        [--vectors]

The data is the development data of `fit_memory_weights.py`. Each question is asked of the right conversation, which
has the answer, and of the next one, which has not. For each threshold of the share of the query that a strong match
covers: `known` is the share of the questions with a strong match among the first ten in the right conversation
(coverage), `false` the same in the wrong one, and `risk` how often none of the strong matches is right although there
are some.

With `--vectors` the thresholds apply to the similarity. A match is then strong if it reaches the threshold or
covers the share that is strong without a model.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from typing import Any

import numpy as np

from fit_memory_weights import load_meetings
from locomo_adapter import Memory, MemoryVectors
from portico_services.memory.search.reranker import MIN_STRONG_SHARE, FeatureScorer, rerank

THRESHOLDS = (0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6, 0.7)
RESULTS = 10


def measure(store: Memory, query: str, scope: str, right: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Return how strong each of the first results is, by the share of the query that it covers or by its similarity,
    and whether it is right.
    """
    seen, names = store.look(query, scope)
    by_id = {candidate[1]: (candidate, name) for candidate, name in zip(seen.candidates, names, strict=True)}
    best = [by_id[item.memory] for item in rerank(seen, RESULTS)] if seen.candidates else []
    strengths = FeatureScorer(seen.query, seen.matches, seen.authors).query_shares([candidate for candidate, _ in best])
    if seen.similarities is not None:
        similarities = dict(zip(seen.candidates, seen.similarities, strict=True))
        strengths = [
            1.0 if share >= MIN_STRONG_SHARE else similarities[candidate]
            for share, (candidate, _) in zip(strengths, best, strict=True)
        ]
    return np.array([*strengths, 0.0]), np.array([*(name in right for _, name in best), False])


def curve(name: str, data: Any, store: Memory) -> None:
    scopes, rows = data.scopes(), []
    store.add(data.docs)
    if isinstance(store, MemoryVectors):
        store.flush()
    for question in data.questions:
        other = scopes[(scopes.index(question.scope) + 1) % len(scopes)]
        own = measure(store, question.text, question.scope, question.evidence)
        rows.append((*own, measure(store, question.text, other, ())[0]))
    store.close()
    for least in THRESHOLDS:
        known_items = [(strengths >= least, right) for strengths, right, _ in rows if strengths.max() >= least]
        false = np.mean([strengths.max() >= least for *_, strengths in rows])
        risk = 1 - np.mean([(strong & right).any() for strong, right in known_items])
        print(
            f"{name:8s} {least:.2f}  known {len(known_items) / len(rows):.3f}  false {false:.3f}  risk {risk:.3f}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    for option in ("tools", "locomo", "beam", "qmsum"):
        parser.add_argument(f"--{option}", required=True)
    parser.add_argument("--vectors", action="store_true", help="with the embedding model")
    options = parser.parse_args()
    make = MemoryVectors if options.vectors else Memory
    os.environ["BEAM_DATA"] = options.beam
    sys.path.insert(0, options.tools)
    curve("LoCoMo", importlib.import_module("locomo_retrieval").load(options.locomo), make())
    curve("BEAM", importlib.import_module("beam_retrieval").load("100K", 1, 7), make())
    curve("QMSum", load_meetings(options.qmsum), make())


if __name__ == "__main__":
    main()
