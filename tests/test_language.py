"""Prose: docstrings, comments, messages and documentation avoid vague constructions.

Each pattern matches a construction for which technical English has a plain term: "what it has" for the contents, "is no
X" for "X must be …", "kept" for stored, cached or retained. Some matches are correct English, so the test limits their
frequency and does not forbid them.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from support import sources

ROOT = Path(__file__).parents[1]
PACKAGES = sorted(path for path in (ROOT / "packages").iterdir() if (path / "src").is_dir())
MAX_PER_1000_WORDS = 1.75
MAX_PER_1000_WORDS_IN_DOCS = 1.0
# Examples contain the dialogues that the conformance suite prescribes, and test programs quote hostile texts.
MAX_PER_1000_WORDS_OUTSIDE_PACKAGES = {"examples": 5.5, "benchmarks": 3.5, "tests/support": 5.5}
# Strings with fewer words are names, keys and formats rather than messages.
MIN_MESSAGE_SPACES = 3

CONSTRUCTIONS = {
    "what … as a noun": r"\bwhat (?:is|are|was|were|has|have|had|it|they|a|an|the|one|may|can|could|must|should)\b",
    "those who": r"\b(?:those|these) (?:who|that|which|of)\b",
    "is no": r"\bis (?:no|none)\b",
    "is told": r"\b(?:is|are|was|be) told\b|\btold of\b",
    "looks at": r"\blook(?:s|ed|ing)? (?:at|for|through|into|again)\b",
    "of its own": r"\bof (?:its|their|our) own\b",
    "stands": r"\bstands?\b",
    "so many": r"\bso (?:many|long|much)\b",
    "in place of": r"\bin place of\b|\banew\b|\bmeanwhile\b|\bbesides\b",
    "kept": r"\bkept\b",
    "at once": r"\bat once\b",
    "somebody": r"\b(?:some|no|any|every)body\b|\bwh(?:o|ich)ever\b",
}
PATTERN = re.compile("|".join(CONSTRUCTIONS.values()), re.IGNORECASE)


def prose_of_source(path: Path) -> Iterator[str]:
    """Yield the docstrings, messages and comments of a module."""
    for node in sources.nodes(path):
        # Docstrings are constants, too.
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and node.value.count(" ") >= MIN_MESSAGE_SPACES
        ):
            yield node.value
    for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
        if token.type == tokenize.COMMENT:
            yield token.string.lstrip("# ")


def prose_of_page(text: str) -> str:
    """Return the text of a Markdown page without its code blocks."""
    return re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)


def rate(texts: list[str]) -> float:
    """Return the number of constructions per 1,000 words."""
    words = sum(len(text.split()) for text in texts)
    return sum(len(PATTERN.findall(text)) for text in texts) / max(words, 1) * 1000


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.name)
def test_sources_use_plain_terms(package: Path) -> None:
    texts = [text for path in (package / "src").rglob("*.py") for text in prose_of_source(path)]
    assert rate(texts) <= MAX_PER_1000_WORDS, _examples(texts)


@pytest.mark.parametrize(("folder", "limit"), MAX_PER_1000_WORDS_OUTSIDE_PACKAGES.items())
def test_other_code_uses_plain_terms(folder: str, limit: float) -> None:
    texts = [text for path in (ROOT / folder).rglob("*.py") for text in prose_of_source(path)]
    assert rate(texts) <= limit, _examples(texts)


def test_documentation_uses_plain_terms() -> None:
    pages = [*(ROOT / "docs").rglob("*.md"), *(ROOT / "packages").glob("*/src/**/*.md")]
    pages += [*ROOT.glob("*.md"), *ROOT.glob("packages/*/README.md"), *ROOT.glob("deploy/*.md")]
    texts = [prose_of_page(path.read_text()) for path in pages]
    assert rate(texts) <= MAX_PER_1000_WORDS_IN_DOCS, _examples(texts)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("Return the cached list, or None.", 0),
        ("what it had when it was last seen", 1),
        ("those who ask are told of it", 2),
        ("the proof is none", 1),
    ],
)
def test_constructions_are_recognized(text: str, count: int) -> None:
    assert len(PATTERN.findall(text)) == count


def _examples(texts: list[str]) -> str:
    """Return the first matches with their surroundings."""
    results = [
        text[max(match.start() - 40, 0) : match.end() + 40] for text in texts for match in PATTERN.finditer(text)
    ]
    return "\n".join(" ".join(example.split()) for example in results[:40])
