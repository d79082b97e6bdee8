"""Similarity of two texts, and their subjects."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as some

from portico_services.memory.store.entities import extract_entities
from portico_services.memory.store.near_duplicates import (
    DEFAULT_DUPLICATE_THRESHOLD,
    DUPLICATE_THRESHOLDS,
    RELATED_THRESHOLD,
    TokenizedText,
    find_contradiction,
    is_near_duplicate,
    similarity,
    word_overlap,
)

# Few words, so that many of them are alike.
TEXTS = some.lists(some.sampled_from(["the", "cache", "is", "not", "kept", "7", "9", "long", "here"]), max_size=12).map(
    " ".join
)


@given(
    TEXTS, TEXTS, some.sampled_from([*DUPLICATE_THRESHOLDS.values(), DEFAULT_DUPLICATE_THRESHOLD, RELATED_THRESHOLD])
)
def test_near_duplicates_are_texts_above_the_similarity_threshold(one: str, other: str, least: float) -> None:
    assert is_near_duplicate(TokenizedText(one), TokenizedText(other), least) == (similarity(one, other) >= least)
    assert similarity(one, other) == similarity(other, one)
    assert (
        find_contradiction(one, other) is None
        or word_overlap(TokenizedText(one), TokenizedText(other)) >= RELATED_THRESHOLD
    )


def test_similarity_uses_words_and_bigrams() -> None:
    # Of five words and pairs, “cache warm” and its two words are in both.
    assert similarity("the cache warm", "a cache warm again") == 3 / 5
    assert similarity("the", "the") == 1 and similarity("the", "of") == 0


def test_typographic_apostrophe_denies_as_the_plain_one_does() -> None:
    for apostrophe in ("'", "’"):
        denied = find_contradiction("use tabs in this project", f"don{apostrophe}t use tabs in this project")
        assert denied == "one says it and the other denies it"
    assert similarity("it's the project's cache", "it’s the project’s cache") == 1


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("See src/store/rows.py.", [("src/store/rows.py", "File")]),
        ("It ends with a dot.py-like word", [("dot.py", "File")]),
        ("Ann works for Acme Tools GmbH now", [("Acme Tools GmbH", "Organization")]),
        ("a corp without a name, 3.5 times", []),
    ],
)
def test_files_and_organizations_are_recognized_by_suffix(text: str, found: list[tuple[str, str]]) -> None:
    assert [
        (extract_entity.label, extract_entity.kind)
        for extract_entity in extract_entities(text)[0]
        if extract_entity.kind in ("File", "Organization")
    ] == found


def test_relation_needs_two_in_one_sentence() -> None:
    assert [tuple(extract_entity) for extract_entity in extract_entities("FastAPI uses Starlette.")[1]] == [
        ("fastapi", "Uses", "starlette")
    ]
    assert extract_entities("FastAPI is used here. It uses Starlette.")[1] == []
    assert extract_entities("FastAPI uses FastAPI.")[1] == []
