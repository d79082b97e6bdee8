"""Text that is safe to print, tables of it, and writing it out.

A server's text may hold escape sequences that move the cursor, change the title, or write words that are not there.
"""

from __future__ import annotations

import shutil
import textwrap
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from portico.wire.errors import Error

# Joiners that scripts and emoji are written with. Everything else that cannot be seen is shown as what it is.
_JOINERS = "\u200c\u200d"
GAP = "  "
NARROWEST = 20


def printable(text: str) -> str:
    """The text with control characters escaped, except line ends and tabs."""
    return _guarded(text.replace("\r\n", "\n"), _escape)


def one_line(text: str, longest: int = 2000) -> str:
    """The text in one line, escaped, and cut to `longest` characters."""
    line = " ".join(text[: longest + 1].split())
    return printable(f"{line[:longest]}…" if len(line) > longest else line)


def printable_json(text: str) -> str:
    """JSON of the same value with invisible characters escaped. They occur only in strings."""
    return _guarded(text, _escape_json)


def _guarded(text: str, escape: Callable[[str], str]) -> str:
    return "\n".join(
        line if line.isprintable() else "".join(char if _is_plain(char) else escape(char) for char in line)
        for line in text.split("\n")
    )


def _is_plain(char: str) -> bool:
    return char.isprintable() or char == "\t" or char in _JOINERS or unicodedata.category(char) == "Zs"


def _escape(char: str) -> str:
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _escape_json(char: str) -> str:
    units = char.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))


# Tables


def plain_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as what is in them; the last one is folded to what is left of the line."""
    table = [list(headings), *map(list, rows)]
    widths = [max(width(row[at]) for row in table) for at in range(len(headings))]
    left = sum(widths[:-1]) + len(GAP) * (len(widths) - 1)
    room = max(shutil.get_terminal_size().columns - left, NARROWEST)
    lines = []
    for row in table:
        folded = textwrap.wrap(row[-1], room) or [""]
        head = GAP.join(cell + " " * (size - width(cell)) for cell, size in zip(row[:-1], widths, strict=False))
        lines.append(f"{head}{GAP}{folded[0]}")
        lines += [f"{' ' * left}{more}" for more in folded[1:]]
    return "".join(f"{line.rstrip()}\n" for line in lines)


def width(text: str) -> int:
    """How many columns of a terminal a text takes."""
    if text.isascii():
        return len(text)
    return sum(2 if unicodedata.east_asian_width(char) in "WF" else 0 if _is_joined(char) else 1 for char in text)


def _is_joined(char: str) -> bool:
    return unicodedata.category(char) in ("Mn", "Me", "Cf")


# Writing


@contextmanager
def writing() -> Iterator[None]:
    """Turns a failure to write into an Error, but leaves a closed pipe to `main`, which ends silently."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as failure:
        raise Error(f"cannot write to standard output: {failure.strerror or failure}") from None
