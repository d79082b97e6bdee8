"""Truncation of foreign text."""

from __future__ import annotations

import pytest

from portico.text import escape_unprintable, one_line, truncate


@pytest.mark.parametrize(("text", "expected"), [("", ""), ("abcde", "abcde"), ("abcdef", "abcd…")])
def test_truncated_text_is_never_longer_than_the_limit(text: str, expected: str) -> None:
    assert truncate(text, 5) == expected


def test_one_line_has_no_line_ends_and_no_escape_sequences() -> None:
    assert one_line(" a\r\n\tb \x1b[31mc\u2028d ") == "a b [31mc d"


def test_one_line_is_bounded() -> None:
    assert one_line("a  b\n" * 100, 7) == "a b a …"
    assert one_line("a" * 10**6, 3) == "aa…"
    assert one_line("abc\n", 3) == "abc"


def test_unprintable_characters_are_escaped() -> None:
    assert escape_unprintable("plain é") == "plain é"
    assert escape_unprintable("a\nb\x1b") == "a\\nb\\x1b"
