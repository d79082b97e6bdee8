"""Docstring parser for the Google, NumPy and Sphinx styles.

The text becomes descriptions for models, so anything unrecognized stays prose. Each line is read a fixed number of
times, without regular expressions, so that the time is linear.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Literal

from msgspec import Struct

SectionKind = Literal["params", "returns", "other"]

# Notes and examples are prose that helps a model, so only these headers open a section in Google style.
_PARAMS = ("args", "arguments", "params", "parameters", "other parameters", "keyword args", "keyword arguments")
SECTIONS: Mapping[str, SectionKind] = {
    **dict.fromkeys((*_PARAMS, "attributes", "fields"), "params"),
    **dict.fromkeys(("return", "returns", "yield", "yields"), "returns"),
    **dict.fromkeys(("raise", "raises"), "other"),
}

SPHINX_PARAMS = {"param", "parameter", "arg", "argument", "key", "keyword", "ivar", "var", "cvar"}
SPHINX_RETURNS = {"return", "returns"}
SPHINX_OTHER = {"type", "rtype", "raise", "raises", "except", "exception", "yield", "yields", "meta", "vartype"}


class Docstring(Struct, frozen=True):
    """Parsed docstring. `summary` is all prose before the first section."""

    summary: str = ""
    params: dict[str, str] = {}
    returns: str = ""


class _Section(Struct):
    kind: SectionKind
    numpy: bool
    lines: list[str]


def parse_docstring(text: str | None) -> Docstring:
    """Parse a docstring. It never fails: unrecognized text is part of the summary."""
    lines = inspect.cleandoc(text).splitlines() if text else []
    prose, sections, fields = _split(lines)
    params: dict[str, str] = {}
    returns = ""
    for section in sections:
        if section.kind == "params":
            for name, words in _entries(section):
                # The first description wins, as readers of the docstring see it first.
                params.setdefault(name, words)
        elif section.kind == "returns":
            returns = returns or _return_description(section)
    for head, words in fields:
        kind, _, name = head.partition(" ")
        if kind in SPHINX_PARAMS and name:
            params.setdefault(name.split()[-1].lstrip("*"), words)
        elif kind in SPHINX_RETURNS:
            returns = returns or words
    return Docstring("\n".join(prose).strip(), params, returns)


def _split(lines: list[str]) -> tuple[list[str], list[_Section], list[tuple[str, str]]]:
    """Return the prose, the sections, and the Sphinx fields as (head, words)."""
    prose: list[str] = []
    sections: list[_Section] = []
    fields: list[tuple[str, list[str]]] = []
    into, indented, underline = prose, False, False
    for line, following in zip(lines, [*lines[1:], ""], strict=False):
        if underline:
            underline = False
        elif section := _header(line, following):
            sections.append(section)
            into, indented, underline = section.lines, not section.numpy, section.numpy
        elif field := _sphinx(line):
            into, indented = [field[1]], True
            fields.append((field[0], into))
        elif indented and line and not line[0].isspace():
            # Text at the left margin ends a Google section or a Sphinx field and is ignored from there on.
            into, indented = [], False
        else:
            into.append(line)
    return prose, sections, [(head, _join_lines(words)) for head, words in fields]


def _header(line: str, following: str) -> _Section | None:
    """Return the section that a header opens: `Args:` with an indented block, or an underlined word."""
    # A longer line is prose that happens to end in a colon.
    if not line or line[0].isspace() or len(line) > 40:
        return None
    name = line.strip().lower()
    if len(following) >= 3 and not following.strip("-"):
        return _Section(SECTIONS.get(name, "other"), True, [])
    if not name.endswith(":") or (following and not following[0].isspace()):
        return None
    kind = SECTIONS.get(name[:-1].rstrip())
    return _Section(kind, False, []) if kind else None


def _sphinx(line: str) -> tuple[str, str] | None:
    """Parse a Sphinx field: `:param int name: words` → ("param int name", "words")."""
    if not line.startswith(":"):
        return None
    head, colon, words = line[1:].partition(":")
    kind = head.partition(" ")[0]
    is_known = kind in SPHINX_PARAMS or kind in SPHINX_RETURNS or kind in SPHINX_OTHER
    return (head.rstrip(), words) if colon and is_known else None


def _entries(section: _Section) -> Iterator[tuple[str, str]]:
    names: list[str] = []
    words: list[str] = []
    margin: int | None = None
    for line in section.lines:
        text = line.lstrip()
        indent = len(line) - len(text)
        # The first entry sets the indentation; deeper lines continue its description.
        if text and margin is None:
            margin = indent
        entry = _entry(text, section.numpy) if text and indent == margin else None
        if entry is None:
            words.append(text)
            continue
        yield from ((name, _join_lines(words)) for name in names)
        names, words = entry[0], [entry[1]]
    yield from ((name, _join_lines(words)) for name in names)


def _entry(text: str, numpy: bool) -> tuple[list[str], str] | None:
    """Parse `name (type): words` in Google style, or `name, name : type` in NumPy style."""
    if numpy:
        names = [name.strip().lstrip("*") for name in text.partition(":")[0].split(",")]
        return (names, "") if all(name.isidentifier() for name in names) else None
    head, rest = _word(text.lstrip("*"))
    if rest.startswith("("):
        rest = _skip_parenthesized(rest).lstrip()
    return ([head], rest[1:]) if head and rest.startswith(":") else None


def _word(text: str) -> tuple[str, str]:
    """Split off the leading identifier."""
    end = next((at for at, char in enumerate(text) if not (char.isalnum() or char == "_")), len(text))
    return text[:end], text[end:].lstrip()


def _skip_parenthesized(text: str) -> str:
    depth = 0
    for at, char in enumerate(text):
        depth += (char == "(") - (char == ")")
        if depth == 0:
            return text[at + 1 :]
    return ""


def _return_description(section: _Section) -> str:
    """Return the description of the result. NumPy puts the type on a separate line above it."""
    below = [line for line in section.lines if not line or line[0].isspace()] if section.numpy else []
    return _join_lines(below) or _join_lines(section.lines)


def _join_lines(lines: list[str]) -> str:
    return " ".join(text for line in lines if (text := line.strip()))
