"""What a server says cannot move the cursor, hide words or change their order."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from portico.cli.output import plain_table, width
from portico.cli.terminal_text import one_line, printable, printable_json


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
def test_what_a_terminal_would_obey_is_shown_instead(said: str, shown: str) -> None:
    assert printable(said) == shown


@settings(deadline=None)
@given(st.text())
def test_nothing_that_is_printed_is_obeyed(text: str) -> None:
    for char in printable(text):
        assert char in "\n\t\u200c\u200d" or char.isprintable() or char.isspace()
        assert char == "\n" or char == "\t" or not ("\x00" <= char < "\x20" or "\x7f" <= char < "\xa0")


@settings(deadline=None)
@given(st.dictionaries(st.text(), st.text()))
def test_json_means_the_same_with_everything_escaped(value: dict[str, str]) -> None:
    said = printable_json(json.dumps(value, ensure_ascii=False))
    assert json.loads(said) == value
    assert said.isprintable() or any(char in "\u200c\u200d" or char.isspace() for char in said)


def test_a_line_is_one_line_and_not_endless() -> None:
    assert one_line("a\nb\t c\r\n") == "a b c"
    assert one_line("x" * 5000, 10) == "xxxxxxxxxx…"


def test_columns_are_as_wide_as_what_is_in_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    rows = [["a", "1", "short"], ["世界", "22", "a text that is too long for what is left of it"]]
    assert plain_table(["NAME", "N", "WHAT"], rows) == (
        "NAME  N   WHAT\na     1   short\n世界  22  a text that is too long for\n          what is left of it\n"
    )


@pytest.mark.parametrize("text, columns", [("abc", 3), ("世界", 4), ("é", 1), ("e\u0301", 1), ("", 0)])
def test_a_width_is_counted_in_columns(text: str, columns: int) -> None:
    assert width(text) == columns
