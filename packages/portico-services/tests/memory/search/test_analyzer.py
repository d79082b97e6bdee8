"""Text analysis: words, dates, stems and queries, for arbitrary input."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from portico.search.text import stem, tokenize_words
from portico_services.memory.search.analyzer import (
    FIRST_PERSON,
    HAS_NUMBER,
    HAS_TIME,
    IS_QUESTION,
    IS_REPLY,
    IS_STANDING_INSTRUCTION,
    MAX_TERM_CHARS,
    MAX_TERMS,
    analyze,
    normalize_term,
)
from portico_services.memory.search.dates import date_terms
from portico_services.memory.search.query import MAX_QUERY_TERMS as MOST_ASKED, parse_query
from portico_services.memory.store.validation import parse_timestamp


def terms(text: str) -> set[str]:
    return set(analyze(text).terms)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("getUserName()", {"getusernam", "user", "name"}),
        ("HTTPServer2 parses URLs", {"server", "http", "url"}),
        ("packages/portico/src/portico/rpc_answer.py", {"src", "portico", "rpc", "answer", "py"}),
        ("version 1.2.3 and 3.11", {"1.2.3", "3.11"}),
        ("Café Ångström naïve", {"cafe", "angstrom", "naiv"}),
        ("東京都に住む", {"東京", "京都", "都に", "に住", "住む"}),
        ("한국어", {"한국", "국어"}),
        ("don't can't", set()),
        ("content:* OR \"x\" NEAR/3 'y'^2", {"content", "x", "near", "y", "3", "2"}),
        ("```python\nimport numpy\n```", {"python", "import", "numpi"}),
    ],
)
def test_code_and_non_latin_terms_are_indexed(text: str, wanted: set[str]) -> None:
    assert wanted <= terms(text)


@given(st.text(alphabet="aZ19._-'/#\n\x1c\t "))
def test_terms_ignore_version_suffixes(text: str) -> None:
    assert tokenize_words(f"{text} 1.2") == [*tokenize_words(text), "1.2"]


@pytest.mark.parametrize("text", ["", " ", "\0", "\ud800", "\u202e\u2066", "'\"`", "👩‍👩‍👧‍👦", "!!!", "the of and"])
def test_text_may_have_no_words(text: str) -> None:
    assert terms(text) == set()
    assert parse_query(text).terms == {}


def test_text_without_end_has_an_end() -> None:
    long = " ".join(f"word{number}" for number in range(200_000))
    assert len(long) > 1_000_000
    assert len(analyze(long).terms) == MAX_TERMS
    assert all(len(term) <= MAX_TERM_CHARS for term in terms("x" * 1_000_000))
    assert len(parse_query(long).terms) <= MOST_ASKED + 20


@given(st.text())
def test_any_text_can_be_indexed_and_queried(text: str) -> None:
    reading = analyze(text, 0)
    assert all(term and " " not in term for term in reading.terms)
    assert reading.substance <= len(reading.terms)
    for term in parse_query(text, 0).terms:
        assert term


@given(st.text(alphabet="abcdefghijklmnopqrstuvwxyz", min_size=1))
def test_stem_is_never_longer_by_more_than_a_letter(word: str) -> None:
    assert 0 < len(stem(word)) <= len(word) + 3


@pytest.mark.parametrize(
    "forms",
    [
        ("paint", "painted", "painting", "paints"),
        ("go", "went", "gone", "goes"),
        ("database", "databases"),
        ("decide", "decided", "deciding"),
        ("child", "children"),
        ("organize", "organizing", "organized"),
        ("hope", "hoping", "hoped"),
    ],
)
def test_inflected_forms_share_a_stem(forms: tuple[str, ...]) -> None:
    assert len({normalize_term(form) for form in forms}) == 1


def test_different_words_stay_different() -> None:
    assert len({stem(word) for word in ("hop", "hope", "hot", "universe", "port", "post")}) == 6


AT = parse_timestamp("2023-05-09T10:00:00Z")


@pytest.mark.parametrize(
    "text", ["on 8 may", "may 8th", "the 8th of may", "2023-05-08", "we met yesterday", "last night", "last monday"]
)
def test_date_formats_yield_the_same_term(text: str) -> None:
    assert "@8/5" in date_terms(text, AT)


def test_memory_is_found_by_creation_time() -> None:
    assert {"@9/5", "may", "2023"} <= date_terms("hello", AT)
    assert date_terms("hello") == set()
    assert {"2022"} <= date_terms("last year", AT)
    assert {"april"} <= date_terms("last month", AT)


@pytest.mark.parametrize("at", [-(10**18), -62_135_596_800_001, 253_402_300_800_000, 10**18])
def test_dates_outside_the_calendar_are_ignored(at: int) -> None:
    assert date_terms("yesterday, 31/12/9999, 99 days ago", at) == set()


@given(st.text(alphabet="0123456789 adgilmnorsty-thof"), st.integers(-(10**15), 10**15))
def test_no_text_breaks_the_calendar(text: str, at: int) -> None:
    date_terms(text, at)


@pytest.mark.parametrize(
    ("text", "mark"),
    [
        ("How many?", IS_QUESTION),
        ("It took 5 days", HAS_NUMBER),
        ("I was there yesterday", FIRST_PERSON | HAS_TIME),
        ("Thanks, that helped", IS_REPLY),
        ("Always answer in French", IS_STANDING_INSTRUCTION),
        ("I prefer tabs", IS_STANDING_INSTRUCTION),
    ],
)
def test_analyzer_sets_flags_by_kind_of_text(text: str, mark: int) -> None:
    assert analyze(text).flags & mark == mark


def test_query_intent_is_detected() -> None:
    assert parse_query("When did we move?").intent.asks_when
    assert parse_query("Give me a summary of everything").intent.is_broad
    assert parse_query("Can you help me with the build?").intent.is_request
    assert parse_query("What did you recommend?").intent.about_assistant
    result = parse_query("Can you tell me what Ann said about the storage?")
    assert result.terms["storag"] > result.terms["tell"]
    assert result.names["ann"]
    assert not result.names["storage"]


def test_capitalized_first_word_is_not_a_name() -> None:
    assert not parse_query("Release notes").names["release"]
    assert tokenize_words("a_b-c") is not None
