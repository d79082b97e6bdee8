"""Markdown support for specifications: writing that no text can break, and parsing with line numbers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from msgspec import Struct, field

from portico.definitions import visible, visible_json

# Writing


# `::` is not Markdown: a line that starts with it is a workflow command when it is printed in GitHub Actions.
_BLOCK_STARTERS = ("#", ">", "<", "|", "```", "~~~", "::")


def escape_paragraphs(text: str) -> str:
    """Escape a foreign text so that no heading, fence or table starts in its paragraphs."""
    # Descriptions come from servers that are not trusted: an unescaped heading could forge a section of another tool.
    return "\n".join(map(_escape_block_start, visible(text).strip().split("\n")))


def _escape_block_start(line: str) -> str:
    bare = line.lstrip()
    # A line of only `=` or `-` turns the line above it into a heading.
    underlines = len(bare) > 1 and bare[0] in "=-" and not bare.strip().strip(bare[0])
    if not bare.startswith(_BLOCK_STARTERS) and not underlines:
        return line
    return f"{line[: len(line) - len(bare)]}\\{bare}"


def escape_line(text: str) -> str:
    """Escape a foreign text and join it into one line."""
    return " ".join(escape_paragraphs(text).split())


def escape_cell(text: str) -> str:
    """Escape a foreign text for a table cell."""
    return escape_line(text).replace("\\", "\\\\").replace("|", "\\|") if text else ""


def inline_code(text: str) -> str:
    """Return the text as inline code."""
    inner = " ".join(visible(text).split())
    # Markdown has no escape inside inline code; two backticks with spaces may contain a single one.
    return f"`{inner}`" if "`" not in inner else f"`` {inner} ``"


def render_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Render a table. The cells must already be Markdown."""
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def render_fence(language: str, body: str) -> str:
    # The fence must be longer than any run of backticks in the body.
    longest = max((len(run) for run in re.findall(r"^[ \t]*(`{3,})", body, re.MULTILINE)), default=2)
    marks = "`" * max(3, longest + 1)
    return f"{marks}{language}\n{body.rstrip()}\n{marks}"


def json_block(value: Any) -> str:
    return render_fence("json", visible_json(value))


# Reading


class Heading(Struct, frozen=True):
    level: int
    title: str
    line: int


class CodeFence(Struct, frozen=True):
    """Code block. `line` is the line number of its first line of content."""

    language: str
    body: str
    line: int


class MarkdownTable(Struct, frozen=True):
    line: int
    headings: list[str]
    # Cells of each row with its line number.
    rows: list[tuple[int, list[str]]]


class Subsection(Struct):
    """Heading with the text below it, up to the next heading."""

    heading: Heading
    lines: list[tuple[int, str]] = field(default_factory=list)
    fences: list[CodeFence] = field(default_factory=list)
    tables: list[MarkdownTable] = field(default_factory=list)

    @property
    def text(self) -> str:
        """Return the text without code blocks."""
        return "\n".join(text for _, text in self.lines)


# Longer lines are not treated as headings.
MAX_HEADING_CHARS = 500


def _heading(line: str) -> tuple[int, str] | None:
    """Parse a heading and return its level and title, or None.

    Not a regular expression: a hostile line could cause quadratic backtracking.
    """
    bare = line.strip()
    level = len(bare) - len(bare.lstrip("#"))
    if not 1 <= level <= 6 or len(bare) > MAX_HEADING_CHARS or len(line) - len(line.lstrip(" ")) > 3:
        return None
    rest = bare[level:]
    if rest and rest[0] not in " \t":
        return None
    title = rest.strip()
    # CommonMark 0.31, section 4.2: a closing sequence of # must be preceded by a space.
    closing = title.rstrip("#")
    return level, closing.rstrip() if closing != title and closing[-1:] in ("", " ", "\t") else title


def _fence(line: str) -> tuple[str, str] | None:
    """Parse an opening fence and return its marks and language, or None."""
    bare = line.strip()
    mark = bare[:1]
    count = len(bare) - len(bare.lstrip(mark)) if mark in ("`", "~") else 0
    # CommonMark 0.31, section 4.5: four spaces make an indented code block, and the info string of a backtick fence
    # contains no backtick.
    if count < 3 or len(line) - len(line.lstrip(" ")) > 3 or "`" in bare[count:]:
        return None
    words = bare[count:].split(None, 1)
    return bare[:count], words[0].lower() if words else ""


def _is_delimiter(line: str) -> bool:
    """Return whether a line is the delimiter row below a table header."""
    cells = [cell.strip() for cell in line.strip().removeprefix("|").removesuffix("|").split("|")]
    return "|" in line and all(cell.strip(":") and not cell.strip(":").strip("-") for cell in cells)


def read_heading(line: str) -> tuple[int, str] | None:
    """Return the level and title of a heading, or None if the line is not one."""
    return _heading(line)


def starts_fence(line: str) -> str:
    """Return the marks that open a code block, or an empty string if the line does not open one."""
    opening = _fence(line)
    return "" if opening is None else opening[0]


def closing_fence(lines: list[str], at: int, marks: str) -> int:
    """Return the index of the line that closes a code block, or of the end of the text."""
    return _closing(lines, at, marks)


def parse_sections(text: str) -> list[Subsection]:
    """Split a document into its headed parts, in order. The first part is the text above all headings."""
    results = [Subsection(Heading(0, "", 1))]
    lines = text.splitlines()
    at = 0
    while at < len(lines):
        heading, opening = _heading(lines[at]), _fence(lines[at])
        if heading is not None:
            results.append(Subsection(Heading(*heading, at + 1)))
        elif opening is not None:
            end = _closing(lines, at + 1, opening[0])
            results[-1].fences.append(CodeFence(opening[1], "\n".join(lines[at + 1 : end]), at + 2))
            at = end
        else:
            results[-1].lines.append((at + 1, lines[at]))
        at += 1
    for part in results:
        part.tables.extend(_tables(part.lines))
    return results


def _closing(lines: list[str], at: int, marks: str) -> int:
    """Return the index of the line that closes a code block; an unclosed block ends with the text."""
    while at < len(lines):
        text = lines[at].strip()
        # CommonMark 0.31, section 4.5: the closing fence is at least as long as the opening one and of the same
        # character.
        if len(text) >= len(marks) and not text.strip(marks[0]):
            break
        at += 1
    return at


def _tables(lines: list[tuple[int, str]]) -> list[MarkdownTable]:
    results: list[MarkdownTable] = []
    at = 0
    while at + 1 < len(lines):
        number, text = lines[at]
        below = lines[at + 1]
        # Line numbers and not positions: code blocks were removed from `lines`, so neighbours need not be adjacent.
        is_table = "|" in text and below[0] == number + 1 and _is_delimiter(below[1])
        if not is_table:
            at += 1
            continue
        rows: list[tuple[int, list[str]]] = []
        at += 2
        while at < len(lines) and "|" in lines[at][1] and lines[at][0] == number + 2 + len(rows):
            rows.append((lines[at][0], _cells(lines[at][1])))
            at += 1
        results.append(MarkdownTable(number, _cells(text), rows))
    return results


def _cells(text: str) -> list[str]:
    r"""Split a table row into cells. An escaped bar `\\|` is part of a cell."""
    cells = re.split(r"(?<!\\)\|", text.strip().removeprefix("|").removesuffix("|"))
    return [re.sub(r"\\(.)", r"\1", cell.strip()) for cell in cells]
