"""Fit the weights of the memory ranker, and report cross-validated scores.

    python benchmarks/fit_memory_weights.py --tools FOLDER --locomo dev.zip --beam GIT_DIRECTORY --qmsum train.jsonl \\
        [--words] [--kinds transcripts] [--write]

FOLDER has `locomo_retrieval.py` and `beam_retrieval.py`, which read the data. Only development parts are used: LoCoMo's
conversations 26, 30 and 41, BEAM's chats 1 to 7 of size 100K, and the training split of QMSum.

The weights maximize the share that the right memories of each question have of the sum of exp(score) over its
candidates, with a penalty for large weights. There are five sets: people in short conversations, fitted on LoCoMo; a
user and an assistant, fitted on BEAM; transcripts (threads of more than a hundred messages), fitted on QMSum; and
memories without an author, in threads and alone, fitted on LoCoMo and BEAM without these labels. Each question is asked
of the right conversation, and where there are authors also of all of them together.

Each conversation is left out once (of the meetings, a tenth), and the weights are scored on those left out (“cv”).
Needs numpy. `--words` leaves out the model, and the weights that were fitted with it stay as they are; so do the
columns of kinds that are not named.
"""

from __future__ import annotations

import argparse
import importlib
import json
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
KINDS = ("notes", "lines", "people", "chat", "transcripts")
# Groups of conversations that are left out together.
MAX_FOLDS = 10
DEVELOPMENT = ("conv-26", "conv-30", "conv-41")


@dataclass
class Asked:
    """One query with its candidates and the relevant ones among them."""

    conversation: str
    features: np.ndarray
    right: np.ndarray
    # Number of right memories, among the candidates or not.
    evidence: int
    # Whether these are spans of many turns, of which at most k can be among the first k.
    spans: bool = False


def filled(data: Any, make: Callable[[], Memory], **without: None) -> Memory:
    store = make()
    store.keep(data.docs, [replace(draft(item), **without) for item in data.docs])
    if isinstance(store, MemoryVectors):
        store.flush()
    return store


def load_meetings(path: str) -> Any:
    """Return QMSum's meetings as documents and queries in LoCoMo's format; a meeting is one thread."""
    tools = importlib.import_module("locomo_retrieval")
    docs, questions = [], []
    for number, line in enumerate(Path(path).read_text(encoding="utf-8").splitlines()):
        meeting, scope = json.loads(line), f"meeting-{number:02}"
        turns = meeting["meeting_transcripts"]
        docs += [
            tools.Doc(f"{scope}/D1:{at}", scope, 1, at, turn["speaker"], turn["content"], "", "")
            for at, turn in enumerate(turns)
        ]
        for at, asks in enumerate(meeting["specific_query_list"]):
            spans = [(int(first), min(int(last), len(turns) - 1)) for first, last in asks["relevant_text_span"]]
            right = {f"{scope}/D1:{turn}": None for first, last in spans for turn in range(first, last + 1)}
            if right:
                questions.append(tools.Question(f"{scope}#{at}", scope, asks["query"], 1, tuple(right)))
    return tools.Dataset(docs, questions, {})


def asked(data: Any, store: Memory, *, pooled: bool = False, spans: bool = False) -> list[Asked]:
    results = []
    width = len(FEATURES) + isinstance(store, MemoryVectors)
    for question in data.questions:
        seen, names = store.look(question.text, None if pooled else question.scope)
        right = np.array([name in question.evidence for name in names], float)
        features = np.array(feature_rows(seen), float).reshape(len(right), width)
        results.append(Asked(question.scope, features, right, len(question.evidence), spans))
    return results


def fit(questions: Sequence[Asked], penalty: float = PENALTY) -> np.ndarray:
    """Fit by Newton's method with backtracking. The objective is concave, so the optimum is unique."""
    useful = [question for question in questions if question.right.any()]
    spread = np.concatenate([question.features for question in useful]).std(0)
    spread[spread == 0] = 1.0
    blocks = [
        ((question.features - question.features.mean(0)) / spread, question.right / question.right.sum())
        for question in useful
    ]
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
    """Return R@1, R@5, R@10 and the reciprocal rank of each question."""
    rows = []
    for question in questions:
        order = np.argsort(-(question.features @ weights), kind="stable")
        right = question.right[order]
        first = 1 / (1 + int(right.argmax())) if right.any() else 0.0
        recalls = [
            right[:most].sum() / (min(most, question.evidence) if question.spans else question.evidence)
            for most in (1, 5, 10)
        ]
        rows.append((*recalls, first))
    return np.array(rows)


def left_out(train: Sequence[Asked], test: Sequence[Asked]) -> np.ndarray:
    rows = np.zeros((len(test), 4))
    conversations = sorted({item.conversation for item in test})
    folds = min(MAX_FOLDS, len(conversations))
    for fold in range(folds):
        out = set(conversations[fold::folds])
        weights = fit([item for item in train if item.conversation not in out])
        chosen = [number for number, item in enumerate(test) if item.conversation in out]
        rows[chosen] = judge([test[number] for number in chosen], weights)
    return rows


def report(name: str, train: Sequence[Asked], tests: dict[str, Sequence[Asked]]) -> np.ndarray:
    weights = usual(fit(train), train)
    for setting, test in tests.items():
        cv, same = left_out(train, test).mean(0), judge(test, weights).mean(0)
        print(
            f"{name:22s} {setting:9s} cv R@1 {cv[0]:.3f} R@5 {cv[1]:.3f} R@10 {cv[2]:.3f} MRR {cv[3]:.3f}   "
            f"in sample R@1 {same[0]:.3f} R@5 {same[1]:.3f} R@10 {same[2]:.3f} MRR {same[3]:.3f}",
            flush=True,
        )
    return weights


def fitted(
    locomo: Any, beam: Any, meetings: Any, make: Callable[[], Memory], name: str, kinds: Sequence[str]
) -> dict[str, np.ndarray]:
    """Return the weights of each kind."""
    results = {}
    # Without authors, and without threads as well: fitted on both kinds of conversations together.
    for kind, without in (("notes", {"author": None, "thread": None}), ("lines", {"author": None})):
        if kind not in kinds:
            continue
        tests: dict[str, Sequence[Asked]] = {}
        for people, data in (("people", locomo), ("chat", beam)):
            store = filled(data, make, **without)
            tests[people] = asked(data, store)
            store.close()
        results[kind] = report(f"{kind}, {name}", [*tests["people"], *tests["chat"]], tests)
    for kind, data in (("people", locomo), ("chat", beam), ("transcripts", meetings)):
        if kind not in kinds:
            continue
        store, spans = filled(data, make), kind == "transcripts"
        tests = {"isolated": asked(data, store, spans=spans)}
        # All meetings together are 38,000 turns with many questions that any of them could answer.
        if not spans:
            tests["pooled"] = asked(data, store, pooled=True)
        results[kind] = report(f"{kind}, {name}", [item for test in tests.values() for item in test], tests)
        store.close()
    return results


def usual(weights: np.ndarray, questions: Sequence[Asked]) -> np.ndarray:
    """Return the weights with a bias such that a typical candidate without query words scores zero, so that no kind of
    memory is preferred before the query is considered.
    """
    seen = np.concatenate([question.features for question in questions]).mean(0)
    of_kind = [
        number
        for number, name in enumerate(FEATURES)
        if FEATURES.index("named") <= number < FEATURES.index("at_all")
        and name not in ("own_share", "section", "section_share")
    ]
    weights = weights.copy()
    weights[FEATURES.index("at_all")] = -float(weights[of_kind] @ seen[of_kind])
    if len(weights) > len(FEATURES):
        weights[FEATURES.index("at_all")] -= float(weights[-1] * seen[-1])
    return weights


def written(fits: dict[str, np.ndarray]) -> str:
    """Return the table with new weights in the columns that were fitted."""
    rows = WEIGHTS.read_text(encoding="utf-8").splitlines()
    lines = [line for line in rows if line.startswith("#")]
    before = {line.split()[0]: [float(number) for number in line.split()[1:]] for line in rows if line[:1] != "#"}
    for number, feature in enumerate((*FEATURES, "meaning")):
        values = before.get(feature, [0.0] * 2 * len(KINDS))
        for at, column in enumerate(f"{kind}, {name}" for name in NAMES for kind in KINDS):
            if column in fits:
                values[at] = fits[column][number] if number < len(fits[column]) else 0.0
        lines.append(feature.ljust(16) + "".join(f"{value:9.3f}" for value in values))
    return "\n".join(lines) + "\n"


NAMES = ("words", "words and meanings")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tools", required=True, help="folder of locomo_retrieval.py and beam_retrieval.py")
    parser.add_argument("--locomo", required=True, help="LoCoMo's development conversations, a zip")
    parser.add_argument("--beam", required=True, help="git directory of BEAM")
    parser.add_argument("--qmsum", required=True, help="training split of QMSum, JSON lines")
    parser.add_argument("--words", action="store_true", help="without the model")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS, help="columns to fit")
    parser.add_argument("--write", action="store_true", help=f"write {WEIGHTS.name}")
    options = parser.parse_args()
    os.environ["BEAM_DATA"] = options.beam
    sys.path.insert(0, options.tools)
    locomo = importlib.import_module("locomo_retrieval").load(options.locomo)
    if {item.scope for item in locomo.docs} - set(DEVELOPMENT):
        raise SystemExit("This file contains conversations that are reserved for evaluation.")
    beam = importlib.import_module("beam_retrieval").load("100K", 1, 7)
    meetings = load_meetings(options.qmsum)
    fits: dict[str, np.ndarray] = {}
    for name, make in zip(NAMES, (Memory, MemoryVectors), strict=True):
        if make is Memory or not options.words:
            weights = fitted(locomo, beam, meetings, make, name, options.kinds)
            fits |= {f"{kind}, {name}": values for kind, values in weights.items()}
    if options.write:
        WEIGHTS.write_text(written(fits), encoding="utf-8")


if __name__ == "__main__":
    main()
