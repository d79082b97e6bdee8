"""Markdown, as far as specifications need it: written so that no text can break it, read with line numbers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from msgspec import Struct, field

from portico.definitions import visible, visible_json

# Writing


# The last one is no Markdown: a line that begins so gives orders to the machine that runs a workflow on GitHub.
_SPECIAL = ("#", ">", "<", "|", "```", "~~~", "::")


def prose(text: str) -> str:
    """A foreign text as paragraphs: no heading, fence or table begins in them."""
    return "\n".join(map(_harmless, visible(text).strip().split("\n")))


def _harmless(line: str) -> str:
    bare = line.lstrip()
    # A line of nothing but these makes a heading of the one above it.
    underlines = len(bare) > 1 and bare[0] in "=-" and not bare.strip().strip(bare[0])
    if not bare.startswith(_SPECIAL) and not underlines:
        return line
    return f"{line[: len(line) - len(bare)]}\\{bare}"


def line(text: str) -> str:
    """The same in one line."""
    return " ".join(prose(text).split())


def cell(text: str) -> str:
    """In a table."""
    return line(text).replace("\\", "\\\\").replace("|", "\\|") if text else ""


def code(text: str) -> str:
    """In backticks."""
    inner = " ".join(visible(text).split())
    return f"`{inner}`" if "`" not in inner else f"`` {inner} ``"


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Cells are Markdown already."""
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def fence(language: str, body: str) -> str:
    longest = max((len(run) for run in re.findall(r"^[ \t]*(`{3,})", body, re.MULTILINE)), default=2)
    marks = "`" * max(3, longest + 1)
    return f"{marks}{language}\n{body.rstrip()}\n{marks}"


def json_block(value: Any) -> str:
    return fence("json", visible_json(value))


# Reading


class Heading(Struct, frozen=True):
    level: int
    title: str
    line: int


class Fence(Struct, frozen=True):
    """A block of code. `line` is that of its first line of content."""

    language: str
    body: str
    line: int


class Table(Struct, frozen=True):
    line: int
    headings: list[str]
    # Each with its line.
    rows: list[tuple[int, list[str]]]


class Subsection(Struct):
    """A heading, and what stands below it up to the next."""

    heading: Heading
    lines: list[tuple[int, str]] = field(default_factory=list)
    fences: list[Fence] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)

    @property
    def text(self) -> str:
        """Without blocks of code."""
        return "\n".join(text for _, text in self.lines)


# Longer ones are no headings.
LONGEST_HEADING = 500


def _heading(line: str) -> tuple[int, str] | None:
    """Its level and its title. Not by expressions: a hostile line makes them look at each character again and again."""
    bare = line.strip()
    level = len(bare) - len(bare.lstrip("#"))
    if not 1 <= level <= 6 or len(bare) > LONGEST_HEADING or len(line) - len(line.lstrip(" ")) > 3:
        return None
    rest = bare[level:]
    if rest and rest[0] not in " \t":
        return None
    title = rest.strip()
    closing = title.rstrip("#")
    return level, closing.rstrip() if closing != title and closing[-1:] in ("", " ", "\t") else title


def _fence(line: str) -> tuple[str, str] | None:
    """The marks that open a block of code, and its language."""
    bare = line.strip()
    mark = bare[:1]
    count = len(bare) - len(bare.lstrip(mark)) if mark in ("`", "~") else 0
    if count < 3 or len(line) - len(line.lstrip(" ")) > 3 or "`" in bare[count:]:
        return None
    words = bare[count:].split(None, 1)
    return bare[:count], words[0].lower() if words else ""


def _is_delimiter(line: str) -> bool:
    """The line below the headings of a table."""
    cells = [cell.strip() for cell in line.strip().removeprefix("|").removesuffix("|").split("|")]
    return "|" in line and all(cell.strip(":") and not cell.strip(":").strip("-") for cell in cells)


def read_heading(line: str) -> tuple[int, str] | None:
    """Return the level and the title of a heading; None if the line is not one."""
    return _heading(line)


def starts_fence(line: str) -> str:
    """Return the marks that open a block of code; empty if the line does not."""
    opening = _fence(line)
    return "" if opening is None else opening[0]


def closing_fence(lines: list[str], at: int, marks: str) -> int:
    """Return the number of the line that closes a block of code, or of the end of the text."""
    return _closing(lines, at, marks)


def parts(text: str) -> list[Subsection]:
    """The parts of a document in order; the first is what stands above all headings."""
    found = [Subsection(Heading(0, "", 1))]
    lines = text.splitlines()
    at = 0
    while at < len(lines):
        heading, opening = _heading(lines[at]), _fence(lines[at])
        if heading is not None:
            found.append(Subsection(Heading(*heading, at + 1)))
        elif opening is not None:
            end = _closing(lines, at + 1, opening[0])
            found[-1].fences.append(Fence(opening[1], "\n".join(lines[at + 1 : end]), at + 2))
            at = end
        else:
            found[-1].lines.append((at + 1, lines[at]))
        at += 1
    for part in found:
        part.tables.extend(_tables(part.lines))
    return found


def _closing(lines: list[str], at: int, marks: str) -> int:
    """The line that closes a block of code; it may be the end of the text."""
    while at < len(lines):
        text = lines[at].strip()
        if len(text) >= len(marks) and not text.strip(marks[0]):
            break
        at += 1
    return at


def _tables(lines: list[tuple[int, str]]) -> list[Table]:
    found: list[Table] = []
    at = 0
    while at + 1 < len(lines):
        number, text = lines[at]
        below = lines[at + 1]
        is_table = "|" in text and below[0] == number + 1 and _is_delimiter(below[1])
        if not is_table:
            at += 1
            continue
        rows: list[tuple[int, list[str]]] = []
        at += 2
        while at < len(lines) and "|" in lines[at][1] and lines[at][0] == number + 2 + len(rows):
            rows.append((lines[at][0], _cells(lines[at][1])))
            at += 1
        found.append(Table(number, _cells(text), rows))
    return found


def _cells(text: str) -> list[str]:
    """A `\\|` is a bar."""
    cells = re.split(r"(?<!\\)\|", text.strip().removeprefix("|").removesuffix("|"))
    return [re.sub(r"\\(.)", r"\1", one.strip()) for one in cells]
