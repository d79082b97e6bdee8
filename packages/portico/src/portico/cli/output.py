"""What a command prints, and in which form: tables and text for people, one line of JSON each for programs."""

from __future__ import annotations

import io
import mimetypes
import os
import re
import shutil
import sys
import time
import unicodedata
from base64 import b64decode
from binascii import Error as NotBase64
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TextIO

import msgspec
from msgspec import UNSET

from portico.cli.terminal_text import one_line, printable, printable_json, writing
from portico.protocol.content import (
    AudioContent,
    BlobContents,
    Contents,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextContents,
)
from portico.protocol.errors import UsageError

# Progress is drawn no more often than this, however often a server reports it.
STATUS_INTERVAL_SECONDS = 0.05
# From the start of the line to its end.
CLEAR = "\r\x1b[K"
# Of a table, which is for reading: JSON has everything.
LONGEST_CELL, LONGEST_TEXT = 100, 500
# Between the columns of a plain table, and the width below which no column is shrunk.
GAP = "  "
NARROWEST = 12
# Of files that are saved.
LONGEST_NAME = 80
MOST_NAMESAKES = 10_000


class Printer:
    """Standard output in one of three forms, `table`, `text` or `json`; standard error for everything else."""

    def __init__(self, form: str | None) -> None:
        # Either may have been closed by the parent process.
        self.out: TextIO = sys.stdout or io.StringIO()
        self.err: TextIO = sys.stderr or io.StringIO()
        self.is_terminal = self.out.isatty()
        self.form = form or ("table" if self.is_terminal else "json")
        self._has_status = False
        self._next_status = 0.0

    def json(self, value: Any) -> None:
        self._write(printable_json(msgspec.json.encode(value).decode()) + "\n")

    def pretty(self, value: Any) -> None:
        """The value as indented JSON, for people."""
        text = msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
        self._write(printable_json(text) + "\n")

    def text(self, text: str, *, exactly: bool = False) -> None:
        """A text of the server. On a terminal control characters are escaped; a file or a pipe gets it unchanged."""
        self._write(printable(text) if self.is_terminal else text)
        if not text.endswith("\n") and (self.is_terminal or not exactly):
            self._write("\n")

    def line(self, line: str) -> None:
        """One line of our own, which may quote the server."""
        self._write(one_line(line) + "\n")

    def table(self, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        cells = [
            [*(one_line(cell, LONGEST_CELL) for cell in head), one_line(last, LONGEST_TEXT)] for *head, last in rows
        ]
        drawn = rich_table(headings, cells, self.out) if self.form == "table" else None
        self._write(plain_table(headings, cells) if drawn is None else drawn)

    def rows(
        self, items: Sequence[Any], headings: Sequence[str], row: Callable[[Any], Sequence[str]], *, empty: str
    ) -> None:
        """A line of JSON for each item, or a table of them; to people, `empty` if there are none."""
        if self.form == "json":
            for item in items:
                self.json(item)
        elif items:
            self.table(headings, [row(item) for item in items])
        else:
            self.aside(empty)

    def show(self, value: Any, sentence: str = "") -> None:
        """The value as a line of JSON for programs; for people a sentence, or all of it."""
        if self.form == "json":
            self.json(value)
        elif sentence:
            self.line(sentence)
        else:
            self.pretty(value)

    def details(self, value: Mapping[str, Any]) -> None:
        """One thing with all that is known of it: a line of JSON for programs, for people a line for each member."""
        if self.form == "json":
            self.json(value)
        else:
            self._write("".join(f"{line}\n" for line in detail_lines(msgspec.to_builtins(value))))

    def raw(self, codes: str) -> None:
        """Text that is safe already, such as codes for the terminal."""
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
        """Show progress on standard error, in a line that the next one replaces. Needs a terminal."""
        now = time.monotonic()
        if not self.err.isatty() or now < self._next_status:
            return
        self._next_status = now + STATUS_INTERVAL_SECONDS
        room = max(shutil.get_terminal_size().columns - 2, 1)
        self.err.write(CLEAR + one_line(words, room))
        self.err.flush()
        self._has_status = True

    def clear(self) -> None:
        if self._has_status:
            self.err.write(CLEAR)
            self.err.flush()
            self._has_status = False


def detail_lines(value: Mapping[str, Any], indent: str = "") -> Iterator[str]:
    """`name   value`; what has parts stands below its name. What is empty is left out."""
    members = {name: one for name, one in value.items() if one is not None and one != "" and one != [] and one != {}}
    wide = max((width(name) for name in members), default=0)
    for name, one in members.items():
        head = f"{indent}{one_line(str(name), LONGEST_CELL)}"
        parts = _parts(one)
        if parts is None:
            text = {True: "yes", False: "no"}.get(one, one) if isinstance(one, bool) else one
            text = ", ".join(map(str, text)) if isinstance(text, list) else str(text)
            first, *more = printable(text).split("\n")
            yield f"{head}{' ' * (wide - width(str(name)) + 2)}{first}".rstrip()
            yield from (f"{indent}{' ' * (wide + 2)}{line}".rstrip() for line in more)
        else:
            yield head
            for at, part in enumerate(parts):
                yield from ([""] if at and len(part) > 1 else [])
                yield from detail_lines(part, f"{indent}  ")


def _parts(value: Any) -> list[Mapping[str, Any]] | None:
    """The objects that a value is made of; None if it is plain."""
    if isinstance(value, Mapping):
        return [value]
    if isinstance(value, list) and any(isinstance(one, Mapping | list) for one in value):
        return [one if isinstance(one, Mapping) else {"": one} for one in value]
    return None


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
    """Return the rows as aligned columns, folded to the width of the terminal."""
    table = [list(headings), *map(list, rows)]
    natural = [max(width(row[at]) for row in table) for at in range(len(headings))]
    widths = _fitted_widths(natural, shutil.get_terminal_size().columns - len(GAP) * (len(natural) - 1))
    lines = []
    for row in table:
        cells = [_folded(cell, size) for cell, size in zip(row, widths, strict=True)]
        for at in range(max(map(len, cells))):
            parts = [cell[at] if at < len(cell) else "" for cell in cells]
            lines.append(GAP.join(part + " " * (size - width(part)) for part, size in zip(parts, widths, strict=True)))
    return "".join(f"{line.rstrip()}\n" for line in lines)


def _fitted_widths(natural: Sequence[int], room: int) -> list[int]:
    """Shrink the widest columns until all fit into the room.

    The first column has the names and ids that users copy, so it keeps its width unless it takes most of the line.
    """
    widths = list(natural)
    first = 1 if len(widths) > 1 and widths[0] <= room * 0.6 else 0
    while sum(widths) > room:
        at = max(range(first, len(widths)), key=widths.__getitem__)
        if widths[at] <= NARROWEST:
            break
        widths[at] = max(widths[at] - (sum(widths) - room), widths[at] // 2, NARROWEST)
    return widths


def _folded(cell: str, room: int) -> list[str]:
    """Fold a cell between words, and inside a word that is longer than a line."""
    if width(cell) <= room:
        return [cell]
    lines, line = [], ""
    for word in cell.split(" "):
        if line and width(line) + 1 + width(word) > room:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}" if line else word
        while width(line) > room:
            cut = next(at for at in range(len(line), 0, -1) if width(line[:at]) <= room or at == 1)
            lines.append(line[:cut])
            line = line[cut:]
    return [*lines, line]


def width(text: str) -> int:
    """How many columns of a terminal a text takes."""
    if text.isascii():
        return len(text)
    return sum(2 if unicodedata.east_asian_width(char) in "WF" else 0 if _is_joined(char) else 1 for char in text)


def _is_joined(char: str) -> bool:
    return unicodedata.category(char) in ("Mn", "Me", "Cf")


# Content of a server


class BlockPrinter:
    """Prints content blocks. Binary data is saved in the folder, if there is one."""

    def __init__(self, printer: Printer, folder: str | None, name: str) -> None:
        self.printer = printer
        self.folder = folder
        self.name = name

    def block(self, block: Any) -> None:
        if isinstance(block, TextContent):
            self.printer.text(block.text)
        elif isinstance(block, ImageContent | AudioContent):
            kind = "an image" if isinstance(block, ImageContent) else "sound"
            self.printer.line(self.binary(kind, block.data, block.mime_type, self.name))
        elif isinstance(block, EmbeddedResource):
            self.contents(_received(block.resource))
        elif isinstance(block, ResourceLink):
            kind = f", {block.mime_type}" if block.mime_type else ""
            self.printer.line(f"({block.title or block.name}: {block.uri}{kind})")
        else:
            self.printer.pretty(block)

    def contents(self, one: Contents, *, exactly: bool = False) -> None:
        """Prints the contents of a resource."""
        if one.text is not UNSET:
            self.printer.text(one.text, exactly=exactly)
        elif one.blob is not UNSET:
            self.printer.line(self.binary("data", one.blob, one.mime_type, _last_step(one.uri), one.uri))

    def save(self, blocks: list[Any]) -> None:
        """Saves the binary data of blocks that were printed as JSON."""
        for block in blocks if self.folder is not None else ():
            if isinstance(block, ImageContent | AudioContent):
                self.printer.aside(self.binary("", block.data, block.mime_type, self.name))
            contents = _received(block.resource) if isinstance(block, EmbeddedResource) else block
            if isinstance(contents, Contents) and contents.blob is not UNSET:
                self.printer.aside(self.binary("", contents.blob, contents.mime_type, _last_step(contents.uri)))

    def binary(self, kind: str, data: str, mime_type: str | None, name: str, uri: str = "") -> str:
        """A line about binary data: what it is, its size, and the file that it was saved in."""
        words = ", ".join(word for word in (kind, mime_type, uri) if word)
        try:
            decoded = b64decode(data, validate=True)
        except (NotBase64, ValueError):
            return f"({words}: not valid base64)"
        if self.folder is None:
            return f"({words}, {_size(len(decoded))}; --save DIR saves it to a file)"
        return f"({words + ', ' if words else ''}{_size(len(decoded))}: {self._save(decoded, mime_type, name)})"

    def _save(self, data: bytes, mime_type: str | None, name: str) -> str:
        """The path of a new file with this data. Its name is made safe, for the server chose it."""
        assert self.folder is not None
        stem, extension = _file_name(name, mime_type)
        try:
            os.makedirs(self.folder, exist_ok=True)
            for number in range(1, MOST_NAMESAKES):
                path = os.path.join(self.folder, f"{stem}{'' if number == 1 else f'-{number}'}{extension}")
                try:
                    with open(path, "xb") as file:
                        file.write(data)
                    return path
                except FileExistsError:
                    continue
        except OSError as failure:
            raise UsageError(f"cannot write to {self.folder}: {failure.strerror or failure}") from None
        raise UsageError(f"{self.folder} has {MOST_NAMESAKES} files called {stem} already")


def _received(resource: Any) -> Contents:
    if isinstance(resource, TextContents | BlobContents):
        resource = msgspec.to_builtins(resource)
    return resource if isinstance(resource, Contents) else msgspec.convert(resource, Contents)


def _last_step(uri: str) -> str:
    return uri.partition("?")[0].rstrip("/").rpartition("/")[2]


def _file_name(name: str, mime_type: str | None) -> tuple[str, str]:
    stem, mark, suffix = name.rpartition(".")
    guessed = mimetypes.guess_extension((mime_type or "").partition(";")[0].strip())
    extension = f".{suffix}" if mark and re.fullmatch(r"[A-Za-z0-9]{1,8}", suffix) else guessed or ".bin"
    safe = re.sub(r"[^A-Za-z0-9_-]+", "-", stem if mark and extension == f".{suffix}" else name).strip("-")
    return safe[:LONGEST_NAME] or "data", extension


def _size(count: int) -> str:
    return f"{count} bytes" if count < 10_000 else f"{count / 1000:,.0f} kB"
