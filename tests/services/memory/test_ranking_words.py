"""Text to words, dates, stems and questions: pure functions, whatever they are given."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from portico.search.text import stem, words
from portico_services.memory.search.analyzer import (
    LONGEST,
    MOST_TERMS,
    NUMBER,
    QUESTION,
    REPLIES,
    SPEAKS_OF_SELF,
    STANDING,
    TIME,
    read,
    term_of,
)
from portico_services.memory.search.dates import date_words
from portico_services.memory.search.query import MOST_TERMS as MOST_ASKED
from portico_services.memory.search.query import ask
from portico_services.memory.store.validation import moment


def terms(text: str) -> set[str]:
    return set(read(text).terms)


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
def test_words_of_code_and_of_other_scripts_are_found(text: str, wanted: set[str]) -> None:
    assert wanted <= terms(text)


@given(st.text(alphabet="aZ19._-'/#\n\x1c\t "))
def test_words_do_not_depend_on_a_version_number_behind_them(text: str) -> None:
    assert words(f"{text} 1.2") == [*words(text), "1.2"]


@pytest.mark.parametrize("text", ["", " ", "\0", "\ud800", "\u202e\u2066", "'\"`", "👩‍👩‍👧‍👦", "!!!", "the of and"])
def test_a_text_may_have_no_words(text: str) -> None:
    assert terms(text) == set()
    assert ask(text).terms == {}


def test_a_text_without_end_has_an_end() -> None:
    long = " ".join(f"word{number}" for number in range(200_000))
    assert len(long) > 1_000_000
    assert len(read(long).terms) == MOST_TERMS
    assert all(len(term) <= LONGEST for term in terms("x" * 1_000_000))
    assert len(ask(long).terms) <= MOST_ASKED + 20


@given(st.text())
def test_any_text_is_words_and_a_question(text: str) -> None:
    reading = read(text, 0)
    assert all(term and " " not in term for term in reading.terms)
    assert reading.substance <= len(reading.terms)
    for term in ask(text, 0).terms:
        assert term


@given(st.text(alphabet="abcdefghijklmnopqrstuvwxyz", min_size=1))
def test_a_stem_is_never_longer_by_more_than_a_letter(word: str) -> None:
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
def test_forms_of_a_word_are_one_word(forms: tuple[str, ...]) -> None:
    assert len({term_of(form) for form in forms}) == 1


def test_different_words_stay_different() -> None:
    assert len({stem(word) for word in ("hop", "hope", "hot", "universe", "port", "post")}) == 6


AT = moment("2023-05-09T10:00:00Z")


@pytest.mark.parametrize(
    "text", ["on 8 may", "may 8th", "the 8th of may", "2023-05-08", "we met yesterday", "last night", "last monday"]
)
def test_a_day_is_one_word_however_it_is_said(text: str) -> None:
    assert "@8/5" in date_words(text, AT)


def test_a_memory_is_found_by_when_it_was_made() -> None:
    assert {"@9/5", "may", "2023"} <= date_words("hello", AT)
    assert date_words("hello") == set()
    assert {"2022"} <= date_words("last year", AT)
    assert {"april"} <= date_words("last month", AT)


@pytest.mark.parametrize("at", [-(10**18), -62_135_596_800_001, 253_402_300_800_000, 10**18])
def test_a_moment_that_no_calendar_has_is_no_date(at: int) -> None:
    assert date_words("yesterday, 31/12/9999, 99 days ago", at) == set()


@given(st.text(alphabet="0123456789 adgilmnorsty-thof"), st.integers(-(10**15), 10**15))
def test_no_text_breaks_the_calendar(text: str, at: int) -> None:
    date_words(text, at)


@pytest.mark.parametrize(
    ("text", "mark"),
    [
        ("How many?", QUESTION),
        ("It took 5 days", NUMBER),
        ("I was there yesterday", SPEAKS_OF_SELF | TIME),
        ("Thanks, that helped", REPLIES),
        ("Always answer in French", STANDING),
        ("I prefer tabs", STANDING),
    ],
)
def test_what_kind_of_text_it_is(text: str, mark: int) -> None:
    assert read(text).flags & mark == mark


def test_what_kind_of_question_it_is() -> None:
    assert ask("When did we move?").manner.when
    assert ask("Give me a summary of everything").manner.broad
    assert ask("Can you help me with the build?").manner.request
    assert ask("What did you recommend?").manner.of_assistant
    asked = ask("Can you tell me what Ann said about the storage?")
    assert asked.terms["storag"] > asked.terms["tell"]
    assert asked.names["ann"]
    assert not asked.names["storage"]


def test_a_capital_letter_at_the_beginning_is_no_sign_of_a_name() -> None:
    assert not ask("Release notes").names["release"]
    assert words("a_b-c") is not None
