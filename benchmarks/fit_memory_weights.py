"""Fits the weights of the memory ranker, and says how well they do where they were not fitted.

    python benchmarks/fit_memory_weights.py --tools FOLDER --locomo dev.zip --beam GIT_DIRECTORY [--words] [--write]

FOLDER has `locomo_retrieval.py` and `beam_retrieval.py`, which know how to read the data. Only the development parts
are looked at: LoCoMo's conversations 26, 30 and 41, and BEAM's chats 1 to 7 of size 100K.

A weight says how much one feature of a memory speaks for it. They are such that the right memories of each question
get as large a share as possible of the sum of exp(score) over all that were looked at, with a penalty for large
weights, so that few questions do not say too much. There are four sets of them: for people who talk, fitted on LoCoMo;
for a user and an assistant, fitted on BEAM; for what nobody in particular wrote, in threads and alone, fitted on both,
with authors, or authors and threads, taken away. Each question is asked of its own conversation, and where there are
authors also of all of them together.

Each conversation is left out once, and the weights are then judged on the one that was left out (“cv”).
Needs numpy; `--words` leaves out the model, and what was fitted with it stays as it is.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from msgspec.structs import replace

from locomo_adapter import Memory, MemoryVectors, draft
from portico_services.memory.search.reranker import FEATURES, feature_rows

WEIGHTS = (
    Path(__file__).resolve().parent.parent / "packages/portico-services/src/portico_services/memory/search/weights.txt"
)
PENALTY = 10.0
DEVELOPMENT = ("conv-26", "conv-30", "conv-41")


@dataclass
class Asked:
    """One question: what was looked at, and which of it is right."""

    conversation: str
    features: np.ndarray
    right: np.ndarray
    # How many memories are right, looked at or not.
    evidence: int


def filled(data: Any, make: Callable[[], Memory], **without: None) -> Memory:
    store = make()
    store.keep(data.docs, [replace(draft(one), **without) for one in data.docs])
    if isinstance(store, MemoryVectors):
        store.flush()
    return store


def asked(data: Any, store: Memory, *, pooled: bool = False) -> list[Asked]:
    found = []
    width = len(FEATURES) + isinstance(store, MemoryVectors)
    for question in data.questions:
        seen, names = store.look(question.text, None if pooled else question.scope)
        right = np.array([name in question.evidence for name in names], float)
        features = np.array(feature_rows(seen), float).reshape(len(right), width)
        found.append(Asked(question.scope, features, right, len(question.evidence)))
    return found


def fit(questions: Sequence[Asked], penalty: float = PENALTY) -> np.ndarray:
    """Newton's method, with shorter steps where a whole one would overshoot. The sum is concave: there is one best."""
    useful = [one for one in questions if one.right.any()]
    spread = np.concatenate([one.features for one in useful]).std(0)
    spread[spread == 0] = 1.0
    blocks = [((one.features - one.features.mean(0)) / spread, one.right / one.right.sum()) for one in useful]
    weights = np.zeros(len(spread))
    value = _value(blocks, weights, penalty)
    for _ in range(50):
        slope, bend = _curve(blocks, weights, penalty)
        step = np.linalg.solve(bend, slope)
        while (reached := _value(blocks, weights + step, penalty)) < value and np.abs(step).max() > 1e-9:
            step /= 2
        weights, gained, value = weights + step, reached - value, reached
        if gained < 1e-6:
            break
    return weights / spread


def _value(blocks: list[tuple[np.ndarray, np.ndarray]], weights: np.ndarray, penalty: float) -> float:
    total = -penalty * float(weights @ weights) / 2
    for features, wanted in blocks:
        score = features @ weights
        total += float(wanted @ score) - float(np.logaddexp.reduce(score))
    return total


def _curve(
    blocks: list[tuple[np.ndarray, np.ndarray]], weights: np.ndarray, penalty: float
) -> tuple[np.ndarray, np.ndarray]:
    slope, bend = -penalty * weights, penalty * np.eye(len(weights))
    for features, wanted in blocks:
        score = features @ weights
        share = np.exp(score - np.logaddexp.reduce(score))
        centre = share @ features
        slope = slope + wanted @ features - centre
        bend += (features * share[:, None]).T @ features - np.outer(centre, centre)
    return slope, bend


def judge(questions: Sequence[Asked], weights: np.ndarray) -> np.ndarray:
    """R@5, R@10 and the reciprocal rank of each question."""
    rows = []
    for one in questions:
        order = np.argsort(-(one.features @ weights), kind="stable")
        right = one.right[order]
        first = 1 / (1 + int(right.argmax())) if right.any() else 0.0
        rows.append((right[:5].sum() / one.evidence, right[:10].sum() / one.evidence, first))
    return np.array(rows)


def left_out(train: Sequence[Asked], test: Sequence[Asked]) -> np.ndarray:
    rows = np.zeros((len(test), 3))
    for conversation in sorted({one.conversation for one in test}):
        weights = fit([one for one in train if one.conversation != conversation])
        chosen = [number for number, one in enumerate(test) if one.conversation == conversation]
        rows[chosen] = judge([test[number] for number in chosen], weights)
    return rows


def report(name: str, train: Sequence[Asked], tests: dict[str, Sequence[Asked]]) -> np.ndarray:
    weights = usual(fit(train), train)
    for setting, test in tests.items():
        cv, same = left_out(train, test).mean(0), judge(test, weights).mean(0)
        print(
            f"{name:22s} {setting:9s} cv R@5 {cv[0]:.3f} R@10 {cv[1]:.3f} MRR {cv[2]:.3f}   "
            f"in sample R@5 {same[0]:.3f} R@10 {same[1]:.3f} MRR {same[2]:.3f}",
            flush=True,
        )
    return weights


def fitted(locomo: Any, beam: Any, make: Callable[[], Memory], name: str) -> list[np.ndarray]:
    """The weights, in the order of COLUMNS."""
    found = []
    # Without authors, and without threads as well: fitted on both kinds of conversations together.
    for kind, without in (("notes", {"author": None, "thread": None}), ("lines", {"author": None})):
        tests = {}
        for people, data in (("people", locomo), ("chat", beam)):
            store = filled(data, make, **without)
            tests[people] = asked(data, store)
            store.close()
        found.append(report(f"{kind}, {name}", [*tests["people"], *tests["chat"]], tests))
    for kind, data in (("people", locomo), ("chat", beam)):
        store = filled(data, make)
        tests = {"isolated": asked(data, store), "pooled": asked(data, store, pooled=True)}
        found.append(report(f"{kind}, {name}", [*tests["isolated"], *tests["pooled"]], tests))
        store.close()
    return found


def usual(weights: np.ndarray, questions: Sequence[Asked]) -> np.ndarray:
    """The weights with the last one such that the usual memory that was looked at, if none of its words had been asked
    for, gets nothing: so those of one kind are not ahead of those of another before anything is asked."""
    seen = np.concatenate([one.features for one in questions]).mean(0)
    of_kind = slice(FEATURES.index("named"), FEATURES.index("at_all"))
    weights = weights.copy()
    weights[FEATURES.index("at_all")] = -float(weights[of_kind] @ seen[of_kind])
    if len(weights) > len(FEATURES):
        weights[FEATURES.index("at_all")] -= float(weights[-1] * seen[-1])
    return weights


def written(words: list[np.ndarray], meaning: list[np.ndarray]) -> str:
    """The table with the same head, and new weights."""
    lines = [line for line in WEIGHTS.read_text(encoding="utf-8").splitlines() if line.startswith("#")]
    for number, feature in enumerate((*FEATURES, "meaning")):
        values = [column[number] if number < len(column) else 0.0 for column in (*words, *meaning)]
        lines.append(feature.ljust(16) + "".join(f"{value:9.3f}" for value in values))
    return "\n".join(lines) + "\n"


def stored(first: int) -> list[np.ndarray]:
    """The columns of the table from this one on, as they are."""
    lines = [line for line in WEIGHTS.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    table = np.array([[float(number) for number in line.split()[1:]] for line in lines])
    return list(table.T[first:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tools", required=True, help="folder of locomo_retrieval.py and beam_retrieval.py")
    parser.add_argument("--locomo", required=True, help="LoCoMo's development conversations, a zip")
    parser.add_argument("--beam", required=True, help="git directory of BEAM")
    parser.add_argument("--words", action="store_true", help="without the model")
    parser.add_argument("--write", action="store_true", help=f"write {WEIGHTS.name}")
    options = parser.parse_args()
    os.environ["BEAM_DATA"] = options.beam
    sys.path.insert(0, options.tools)
    locomo = importlib.import_module("locomo_retrieval").load(options.locomo)
    if {one.scope for one in locomo.docs} - set(DEVELOPMENT):
        raise SystemExit("There are conversations in this file that are kept for judging.")
    beam = importlib.import_module("beam_retrieval").load("100K", 1, 7)
    words = fitted(locomo, beam, Memory, "words")
    meaning = stored(4) if options.words else fitted(locomo, beam, MemoryVectors, "words and meanings")
    if options.write:
        WEIGHTS.write_text(written(words, meaning), encoding="utf-8")


if __name__ == "__main__":
    main()
