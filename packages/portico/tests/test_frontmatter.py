"""Frontmatter of skills: the subset of YAML that every parser reads alike."""

from __future__ import annotations

from typing import Any

import pytest

from portico import UsageError
from portico.frontmatter import MAX_FRONTMATTER_CHARS, MAX_NESTING_DEPTH, parse_frontmatter


def read(yaml: str) -> dict[str, Any]:
    return parse_frontmatter(f"---\n{yaml}\n---\n\n# The rest\n")


@pytest.mark.parametrize(
    ("yaml", "value"),
    [
        # plain
        ("k: word", "word"),
        ("k: two words", "two words"),
        ("k: a#b", "a#b"),
        ("k: text # a comment", "text"),
        ("k: http://example.com:80/x", "http://example.com:80/x"),
        ('k: it\'s "so" [here]', 'it\'s "so" [here]'),
        ("k: -x", "-x"),
        ("k: 1.2.3", "1.2.3"),
        ("k: 3 days", "3 days"),
        ("k: one\n  two\n\n  three", "one two\nthree"),
        ("k:\n  on the next line\n  and on", "on the next line and on"),
        # types
        ("k:", None),
        ("k: # a comment", None),
        ("k: ~", None),
        ("k: null", None),
        ("k: true", True),
        ("k: False", False),
        ("k: 0", 0),
        ("k: -12", -12),
        ("k: 1.10", 1.1),
        ("k: 2.5e+3", 2500.0),
        ('k: "true"', "true"),
        ("k: '12'", "12"),
        # quotes
        ("k: 'it''s: #1'", "it's: #1"),
        (r'k: "tab\tquote\" slash\\ \u00e9 \x41 \U0001F600"', 'tab\tquote" slash\\ é A 😀'),
        ("k: \"it''s\"", "it''s"),
        ('k: "one\n  two\n\n  three"  # and a comment', "one two\nthree"),
        ("k: ''", ""),
        # blocks
        ("k: |\n  one\n    two\n\n  three", "one\n  two\n\nthree\n"),
        ("k: |-\n  one\n  # no comment\n", "one\n# no comment"),
        ("k: >\n  one\n  two\n\n  three\n    four\n  five", "one two\nthree\n  four\nfive\n"),
        ("k: >- # a comment\n  one\n  two\n\n", "one two"),
        ("k: |\n", ""),
        # lists and mappings
        ("k:\n  - a\n  - 2\n  - 'c'", ["a", 2, "c"]),
        ("k:\n- a\n- b", ["a", "b"]),
        ("k:\n  - a: 1\n    b: 2\n  -\n    c: 3\n  - - x\n    - y", [{"a": 1, "b": 2}, {"c": 3}, ["x", "y"]]),
        ("k:\n  a:\n    b: c\n  d:\n    - e", {"a": {"b": "c"}, "d": ["e"]}),
        ("k: [a, 'b, c', 3, [true], {d: e}]", ["a", "b, c", 3, [True], {"d": "e"}]),
        ("k: [\n    a, # first\n    b,\n  ]", ["a", "b"]),
        ('k: {a: 1, "b c": [x]}', {"a": 1, "b c": ["x"]}),
        ("k: []", []),
        ("k: {}", {}),
        ("k: Bash(git:*) Read", "Bash(git:*) Read"),
        # keys
        ("'k': v", "v"),
        ('"k" : v', "v"),
        ("# a comment\n\nk: v\n# another", "v"),
    ],
)
def test_unambiguous_yaml_is_parsed(yaml: str, value: Any) -> None:
    message = read(yaml)
    assert message == {"k": value}
    assert type(message["k"]) is type(value)


@pytest.mark.parametrize(
    ("yaml", "line", "said"),
    [
        ("a: 1\nk: use when: asked", 3, "colon"),
        ("k: see:", 2, "colon"),
        ("k: &a x", 2, "quotes"),
        ("k: *a", 2, "quotes"),
        ("k: !!str x", 2, "quotes"),
        ("k: @x", 2, "quotes"),
        ("k: - x", 2, "quotes"),
        ("? k\n: v", 2, "key"),
        ("<<: {a: b}", 2, "quotes"),
        ("1: v", 2, "a key that is not text"),
        ("a: 1\na: 2", 3, "'a' is given twice"),
        ("k: {a: 1, a: 2}", 2, "given twice"),
        ("k:\tv", 2, "tab"),
        ("a: 1\nk: a\u2028b", 3, r"U\+2028"),
        ("k: a\x07b", 2, r"U\+0007"),
        ("  k: v", 2, "edge"),
        ("k: v\n  a: 1", 2, "colon"),
        ('k: "v"\n  more', 3, "too far"),
        ("k:\n    a: 1\n  b: 2", 4, "too far"),
        ("just a text", 2, "key: value"),
        ("- a", 2, "key: value"),
        ("a: 1\nk: 'no end\nb: 2", 3, "quote that does not end"),
        (r'k: "\q"', 2, "escape"),
        (r'k: "\ud83d\ude00"', 2, "not a valid character"),
        ('k: "v" w', 2, "after the end"),
        ("k: [a, b", 2, "no `]`"),
        ("k: [\n  a\n]", 3, "not indented far enough"),
        ("k: [a: b]", 2, "expected `,`"),
        ("k: {a}", 2, "key: value"),
        ("k: one\n  - two", 3, "a list cannot continue a text"),
        ("k:\n# why\n  text", 4, "a comment between"),
        ("k: |2\n   x", 2, "expected `|`"),
        ("k: |+\n  x", 2, "expected `|`"),
        ("k: |\n    x\n  y", 4, "less"),
        ("... x: y", 2, "would end"),
        *[
            (f"k: {text}", 2, "put it in quotes")
            for text in ("yes", "No", "on", "OFF", "007", "0x1F", "0o7", "1_000", "+1", "1e3", "1.", ".5", ".inf")
        ],
        *[
            (f"k: {text}", 2, "put it in quotes")
            for text in ("2026-07-28", "2026-07-28 10:00:00", "12:30", "=", "9007199254740993", "-0")
        ],
        ("k: " + "[" * (MAX_NESTING_DEPTH + 2), 2, "deep"),
        ("k:\n" + "- " * (MAX_NESTING_DEPTH + 2) + "x", 3, "deep"),
    ],
)
def test_ambiguous_yaml_is_rejected_with_its_line(yaml: str, line: int, said: str) -> None:
    with pytest.raises(UsageError, match=said) as refused:
        read(yaml)
    assert str(refused.value).startswith(f"line {line}: ")


@pytest.mark.parametrize("text", ["", "# A title", "---\nname: x\n", " ---\nname: x\n---", "--- \nname: x\n---\n"])
def test_file_must_begin_with_the_two_fences(text: str) -> None:
    with pytest.raises(UsageError, match="expected frontmatter"):
        parse_frontmatter(text)


def test_way_of_ending_lines_and_a_byte_order_mark_do_not_matter() -> None:
    assert parse_frontmatter("\ufeff---\r\nname: x\r\nd: |\r\n  a\r\n  b\r\n---\r\nrest") == {
        "name": "x",
        "d": "a\nb\n",
    }
    assert parse_frontmatter("---\nname: x\n---") == {"name": "x"}
    assert parse_frontmatter("---\n---\n") == {}


def test_long_frontmatter_is_rejected() -> None:
    with pytest.raises(UsageError, match="exceeds 64 KiB"):
        read("k: " + "x" * MAX_FRONTMATTER_CHARS)
