"""Server text cannot move the cursor, hide words or change their order."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings, strategies as st

from portico.cli.output import display_width, format_plain_table
from portico.cli.terminal_text import escape_control, escape_json, to_single_line


@pytest.mark.parametrize(
    "said, shown",
    [
        ("plain\ttext\nof two lines", "plain\ttext\nof two lines"),
        ("héllo, 世界, 👩‍👩‍👧", "héllo, 世界, 👩‍👩‍👧"),
        ("\x1b[31mred\x1b[0m", "\\x1b[31mred\\x1b[0m"),
        ("\x1b]0;title\x07", "\\x1b]0;title\\x07"),
        ("\x9b2J", "\\x9b2J"),
        ("a\x00b\x08c\x7f", "a\\x00b\\x08c\\x7f"),
        ("windows\r\nlines", "windows\nlines"),
        ("over\rwritten", "over\\x0dwritten"),
        ("safe\u202eexe.txt", "safe\\u202eexe.txt"),
        ("zero\u200bwidth\ufeff", "zero\\u200bwidth\\ufeff"),
        ("tag\U000e0041", "tag\\U000e0041"),
        ("line\u2028separator", "line\\u2028separator"),
        ("no-break\u00a0space", "no-break\u00a0space"),
    ],
)
def test_control_characters_are_escaped(said: str, shown: str) -> None:
    assert escape_control(said) == shown


@settings(deadline=None)
@given(st.text())
def test_nothing_that_is_printed_is_obeyed(text: str) -> None:
    for char in escape_control(text):
        assert char in "\n\t\u200c\u200d" or char.isprintable() or char.isspace()
        assert char == "\n" or char == "\t" or not ("\x00" <= char < "\x20" or "\x7f" <= char < "\xa0")


@settings(deadline=None)
@given(st.dictionaries(st.text(), st.text()))
def test_json_means_the_same_with_everything_escaped(value: dict[str, str]) -> None:
    result = escape_json(json.dumps(value, ensure_ascii=False))
    assert json.loads(result) == value
    assert result.isprintable() or any(char in "\u200c\u200d" or char.isspace() for char in result)


def test_line_is_one_line_and_not_endless() -> None:
    assert to_single_line("a\nb\t c\r\n") == "a b c"
    assert to_single_line("x" * 5000, 10) == "xxxxxxxxx…"


def test_columns_fit_their_contents(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    rows = [["a", "1", "short"], ["世界", "22", "a text that is too long for what is left of it"]]
    assert format_plain_table(["NAME", "N", "WHAT"], rows) == (
        "NAME  N   WHAT\na     1   short\n世界  22  a text that is too long for\n          what is left of it\n"
    )


def test_table_of_many_columns_fits_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    headings = [f"COLUMN {number}" for number in range(10)]
    table = format_plain_table(headings, [["name", *("value" for _ in range(8)), "a sentence about the state of it"]])
    assert max(map(display_width, table.splitlines())) <= 80


@pytest.mark.parametrize("text, columns", [("abc", 3), ("世界", 4), ("é", 1), ("e\u0301", 1), ("", 0)])
def test_width_is_counted_in_columns(text: str, columns: int) -> None:
    assert display_width(text) == columns
