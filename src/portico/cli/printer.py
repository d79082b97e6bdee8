"""What a command prints, and in which form: tables and text for people, one line of JSON each for programs."""

from __future__ import annotations

import io
import shutil
import sys
import time
from collections.abc import Sequence
from typing import Any, TextIO

import msgspec

from portico.cli.printable import one_line, printable, printable_json
from portico.cli.tables import plain_table, rich_table
from portico.cli.writing import writing

# A server may report progress as often as it likes; people are told so many times a second.
SHOWN_EVERY = 0.05
# From the start of the line to its end.
CLEAR = "\r\x1b[K"
# Of a table, which is for reading: JSON has everything.
LONGEST_CELL, LONGEST_TEXT = 100, 500


class Printer:
    """Standard output in one of three forms, `table`, `text` or `json`; standard error for all that is no result."""

    def __init__(self, form: str | None) -> None:
        # Either may have been closed by whoever started us.
        self.out: TextIO = sys.stdout or io.StringIO()
        self.err: TextIO = sys.stderr or io.StringIO()
        self.is_terminal = self.out.isatty()
        self.form = form or ("table" if self.is_terminal else "json")
        self._has_status = False
        self._next_status = 0.0

    def json(self, value: Any) -> None:
        self._write(printable_json(msgspec.json.encode(value).decode()) + "\n")

    def pretty(self, value: Any) -> None:
        """JSON for people."""
        said = msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
        self._write(printable_json(said) + "\n")

    def text(self, text: str, *, to_the_letter: bool = False) -> None:
        """A text of the server's. A terminal gets what can be seen; a file or a pipe gets it as it is."""
        self._write(printable(text) if self.is_terminal else text)
        if not text.endswith("\n") and (self.is_terminal or not to_the_letter):
            self._write("\n")

    def line(self, line: str) -> None:
        """Words of our own about something of the server's."""
        self._write(one_line(line) + "\n")

    def table(self, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        cells = [
            [*(one_line(cell, LONGEST_CELL) for cell in head), one_line(last, LONGEST_TEXT)] for *head, last in rows
        ]
        drawn = rich_table(headings, cells, self.out) if self.form == "table" else None
        self._write(plain_table(headings, cells) if drawn is None else drawn)

    def raw(self, codes: str) -> None:
        """Codes of our own for the terminal."""
        self._write(codes)

    def flush(self) -> None:
        with writing():
            self.out.flush()

    def _write(self, text: str) -> None:
        with writing():
            self.out.write(text)

    # Standard error

    def aside(self, words: str, end: str = "\n") -> None:
        self.clear()
        self.err.write(printable(words) + end)
        self.err.flush()

    def status(self, words: str) -> None:
        """How far something is: one line that the next one replaces, where there is a terminal to do that."""
        now = time.monotonic()
        if not self.err.isatty() or now < self._next_status:
            return
        self._next_status = now + SHOWN_EVERY
        room = max(shutil.get_terminal_size().columns - 2, 1)
        self.err.write(CLEAR + one_line(words, room))
        self.err.flush()
        self._has_status = True

    def clear(self) -> None:
        if self._has_status:
            self.err.write(CLEAR)
            self.err.flush()
            self._has_status = False
