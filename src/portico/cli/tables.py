"""Rows and columns: by rich where it is installed, plainly aligned where it is not."""

from __future__ import annotations

import shutil
import textwrap
import unicodedata
from collections.abc import Sequence
from typing import TextIO

GAP = "  "
NARROWEST = 20


def rich_table(headings: Sequence[str], rows: Sequence[Sequence[str]], out: TextIO) -> str | None:
    """A table by rich, as that stream can show it; None without rich. Cells are Text: nothing in them is markup."""
    try:
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text
    except ImportError:
        return None
    console = Console(file=out, highlight=False, markup=False, emoji=False)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    # What people copy stays in one piece, while that leaves room for the rest.
    whole = max((width(row[0]) for row in rows), default=0) <= console.width * 0.6
    for at, heading in enumerate(headings):
        style = "cyan" if at == 0 else "" if at == len(headings) - 1 else "dim"
        table.add_column(heading, style=style, overflow="fold", no_wrap=whole and at == 0, min_width=4)
    for row in rows:
        table.add_row(*map(Text, row))
    with console.capture() as drawn:
        console.print(table)
    return drawn.get()


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
