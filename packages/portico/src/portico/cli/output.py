"""Output of commands: tables and text for users, JSON for programs."""

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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TextIO

import msgspec
from msgspec import UNSET

from portico.cli.terminal_text import escape_control, escape_json, report_write_errors, to_single_line
from portico.protocol.content import (
    AudioContent,
    BlobResourceContents,
    EmbeddedResource,
    ImageContent,
    ResourceContents,
    ResourceLink,
    TextContent,
    TextResourceContents,
)
from portico.protocol.errors import UsageError

# Minimum interval between progress updates, however often a server reports progress.
STATUS_INTERVAL_SECONDS = 0.05
# Carriage return, then erase to the end of the line.
CLEAR_LINE = "\r\x1b[K"
# Limits of table cells. JSON output is never truncated.
MAX_CELL_CHARS, MAX_TEXT_CHARS = 100, 500
# The gap between columns of a plain table, and the width below which columns are not shrunk.
COLUMN_GAP = "  "
MIN_COLUMN_WIDTH = 12
# Limits for the names of saved files.
MAX_FILE_NAME_CHARS = 80
MAX_NAME_ATTEMPTS = 10_000


class Printer:
    """Writes results to standard output as `table`, `json` or `jsonl`, and everything else to standard error.

    `jsonl` is one line of JSON per value, written immediately. `json` is one indented document, written by `flush`: an
    array for a list or for several values.
    """

    def __init__(self, format: str | None) -> None:
        # Either stream may have been closed by the parent process.
        self.out: TextIO = sys.stdout or io.StringIO()
        self.err: TextIO = sys.stderr or io.StringIO()
        self.is_terminal = self.out.isatty()
        # A pipe gets JSON lines, so that scripts work without --format and never parse a table.
        self.format = format or ("table" if self.is_terminal else "jsonl")
        self._values: list[Any] = []
        self._is_list = False
        self._has_status = False
        self._next_status = 0.0

    @property
    def is_json(self) -> bool:
        return self.format in ("json", "jsonl")

    def print_json(self, value: Any) -> None:
        """Print a value as JSON; in `json` format it is buffered until `flush`."""
        if self.format == "json":
            self._values.append(value)
        else:
            self._write(escape_json(msgspec.json.encode(value).decode()) + "\n")

    def json_list(self, values: Iterable[Any]) -> None:
        """Print values that form an array in a JSON document, even if there is only one or none."""
        self._is_list = True
        for value in values:
            self.print_json(value)

    def print_pretty_json(self, value: Any) -> None:
        """Print the value as indented JSON."""
        text = msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
        self._write(escape_json(text) + "\n")

    def print_text(self, text: str, *, verbatim: bool = False) -> None:
        """Print a server's text. On a terminal control characters are escaped; a file or a pipe gets it unchanged."""
        self._write(escape_control(text) if self.is_terminal else text)
        if not text.endswith("\n") and (self.is_terminal or not verbatim):
            self._write("\n")

    def print_line(self, line: str) -> None:
        """Print one line of this program, which may quote the server."""
        self._write(to_single_line(line) + "\n")

    def print_table(self, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Print a table, drawn with rich if it is installed and the output is a terminal."""
        # The last column holds prose and gets more room; the others hold names.
        cells = [
            [*(to_single_line(cell, MAX_CELL_CHARS) for cell in head), to_single_line(last, MAX_TEXT_CHARS)]
            for *head, last in rows
        ]
        drawn = format_rich_table(headings, cells, self.out) if self.is_terminal else None
        self._write(format_plain_table(headings, cells) if drawn is None else drawn)

    def print_rows(
        self, items: Sequence[Any], headings: Sequence[str], row: Callable[[Any], Sequence[str]], *, empty: str
    ) -> None:
        """Print a list of items as JSON or as a table; `empty` replaces a table without rows."""
        if self.is_json:
            self.json_list(items)
        elif items:
            self.print_table(headings, [row(item) for item in items])
        else:
            self.print_error(empty)

    def print_value(self, value: Any, sentence: str = "") -> None:
        """Print a value as JSON; in table format, print the sentence, or the whole value without one."""
        if self.is_json:
            self.print_json(value)
        elif sentence:
            self.print_line(sentence)
        else:
            self.print_pretty_json(value)

    def print_details(self, value: Mapping[str, Any]) -> None:
        """Print one value with all its members, one line each in table format."""
        if self.is_json:
            self.print_json(value)
        else:
            self._write("".join(f"{line}\n" for line in format_details(msgspec.to_builtins(value))))

    def write_raw(self, codes: str) -> None:
        """Write text that is already safe, such as terminal codes."""
        self._write(codes)

    def flush(self) -> None:
        """Write the buffered output, and in `json` format the document."""
        if self._values or (self._is_list and self.format == "json"):
            # A list stays an array even with one item, so that a `jq` filter works for any count.
            document = self._values if self._is_list or len(self._values) > 1 else self._values[0]
            self._values, self._is_list = [], False
            self.print_pretty_json(document)
        with report_write_errors():
            self.out.flush()

    def _write(self, text: str) -> None:
        with report_write_errors():
            self.out.write(text)

    # Standard error

    def print_error(self, text: str, end: str = "\n") -> None:
        """Print a message to standard error."""
        # Otherwise the message would continue the line that shows the progress.
        self.clear_status()
        self.err.write(escape_control(text) + end)
        self.err.flush()

    def show_status(self, text: str) -> None:
        """Show progress on standard error, in a line that the next update replaces. Needs a terminal."""
        now = time.monotonic()
        if not self.err.isatty() or now < self._next_status:
            return
        # A server may report thousands of times per second; a terminal cannot show that.
        self._next_status = now + STATUS_INTERVAL_SECONDS
        # A longer text would wrap, and CLEAR_LINE erases only the last of the wrapped lines.
        room = max(shutil.get_terminal_size().columns - 2, 1)
        self.err.write(CLEAR_LINE + to_single_line(text, room))
        self.err.flush()
        self._has_status = True

    def clear_status(self) -> None:
        """Remove the progress line."""
        if self._has_status:
            self.err.write(CLEAR_LINE)
            self.err.flush()
            self._has_status = False


def format_details(value: Mapping[str, Any], indent: str = "") -> Iterator[str]:
    """Yield `name   value` lines. Nested values follow below their name; empty values are omitted."""
    members = {
        name: member
        for name, member in value.items()
        if member is not None and member != "" and member != [] and member != {}
    }
    name_width = max((display_width(name) for name in members), default=0)
    for name, member in members.items():
        head = f"{indent}{to_single_line(str(name), MAX_CELL_CHARS)}"
        parts = _get_objects(member)
        if parts is None:
            text = {True: "yes", False: "no"}.get(member, member) if isinstance(member, bool) else member
            text = ", ".join(map(str, text)) if isinstance(text, list) else str(text)
            first, *more = escape_control(text).split("\n")
            yield f"{head}{' ' * (name_width - display_width(str(name)) + 2)}{first}".rstrip()
            yield from (f"{indent}{' ' * (name_width + 2)}{line}".rstrip() for line in more)
        else:
            yield head
            for at, part in enumerate(parts):
                yield from ([""] if at and len(part) > 1 else [])
                yield from format_details(part, f"{indent}  ")


def _get_objects(value: Any) -> list[Mapping[str, Any]] | None:
    """Return the objects that a value consists of, or None for a plain value."""
    if isinstance(value, Mapping):
        return [value]
    if isinstance(value, list) and any(isinstance(item, Mapping | list) for item in value):
        return [item if isinstance(item, Mapping) else {"": item} for item in value]
    return None


def format_rich_table(headings: Sequence[str], rows: Sequence[Sequence[str]], out: TextIO) -> str | None:
    """Return a table drawn by rich for this stream, or None without rich. Markup in cells is not interpreted."""
    try:
        # Optional dependency, imported here because only a table on a terminal needs it.
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text
    except ImportError:
        return None
    console = Console(file=out, highlight=False, markup=False, emoji=False)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    # Keep the first column, which users copy from, unwrapped as long as that leaves room for the others.
    fits_one_line = max((display_width(row[0]) for row in rows), default=0) <= console.width * 0.6
    for at, heading in enumerate(headings):
        style = "cyan" if at == 0 else "" if at == len(headings) - 1 else "dim"
        table.add_column(heading, style=style, overflow="fold", no_wrap=fits_one_line and at == 0, min_width=4)
    for row in rows:
        # A `Text` is literal whatever the settings of the console: cells quote the server.
        table.add_row(*map(Text, row))
    with console.capture() as drawn:
        console.print(table)
    return drawn.get()


def format_plain_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return the rows as aligned columns, folded to the width of the terminal."""
    # Errors and names come from servers.
    table = [[" ".join(escape_control(cell).split("\n")) for cell in row] for row in (headings, *rows)]
    natural = [max(display_width(row[at]) for row in table) for at in range(len(headings))]
    widths = _fit_widths(natural, shutil.get_terminal_size().columns - len(COLUMN_GAP) * (len(natural) - 1))
    lines = []
    for row in table:
        cells = [_wrap_cell(cell, size) for cell, size in zip(row, widths, strict=True)]
        for at in range(max(map(len, cells))):
            parts = [cell[at] if at < len(cell) else "" for cell in cells]
            lines.append(
                COLUMN_GAP.join(
                    part + " " * (size - display_width(part)) for part, size in zip(parts, widths, strict=True)
                )
            )
    return "".join(f"{line.rstrip()}\n" for line in lines)


def _fit_widths(natural: Sequence[int], room: int) -> list[int]:
    """Return column widths that fit into the room, shrinking the widest columns first.

    The first column has the names and ids that users copy, so it keeps its width unless it takes most of the line.
    """
    widths = list(natural)
    first = 1 if len(widths) > 1 and widths[0] <= room * 0.6 else 0
    # Many columns fit only if some are narrower than prose should be.
    for narrowest in (MIN_COLUMN_WIDTH, MIN_COLUMN_WIDTH // 2, MIN_COLUMN_WIDTH // 3):
        while sum(widths) > room:
            at = max(range(first, len(widths)), key=widths.__getitem__)
            if widths[at] <= narrowest:
                break
            widths[at] = max(widths[at] - (sum(widths) - room), widths[at] // 2, narrowest)
    return widths


def _wrap_cell(cell: str, room: int) -> list[str]:
    """Fold a cell between words, and inside a word that is longer than a line."""
    if display_width(cell) <= room:
        return [cell]
    lines, line = [], ""
    for word in cell.split(" "):
        if line and display_width(line) + 1 + display_width(word) > room:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}" if line else word
        while display_width(line) > room:
            cut = next(at for at in range(len(line), 0, -1) if display_width(line[:at]) <= room or at == 1)
            lines.append(line[:cut])
            line = line[cut:]
    return [*lines, line]


def display_width(text: str) -> int:
    """Return the number of terminal columns that a text takes."""
    # The common case, which needs no lookup per character.
    if text.isascii():
        return len(text)
    return sum(2 if unicodedata.east_asian_width(char) in "WF" else 0 if _is_joined(char) else 1 for char in text)


def _is_joined(char: str) -> bool:
    # Combining marks and format characters take no column.
    return unicodedata.category(char) in ("Mn", "Me", "Cf")


# Content blocks


class ContentPrinter:
    """Prints content blocks. Binary data is saved in the directory, if one is set."""

    def __init__(self, printer: Printer, directory: str | None, name: str) -> None:
        self.printer = printer
        self.folder = directory
        self.name = name

    def print_block(self, block: Any) -> None:
        """Print one content block."""
        if isinstance(block, TextContent):
            self.printer.print_text(block.text)
        elif isinstance(block, ImageContent | AudioContent):
            kind = "image" if isinstance(block, ImageContent) else "audio"
            self.printer.print_line(self.describe_binary(kind, block.data, block.mime_type, self.name))
        elif isinstance(block, EmbeddedResource):
            self.print_contents(_to_contents(block.resource))
        elif isinstance(block, ResourceLink):
            kind = f", {block.mime_type}" if block.mime_type else ""
            self.printer.print_line(f"({block.title or block.name}: {block.uri}{kind})")
        else:
            self.printer.print_pretty_json(block)

    def print_contents(self, contents: ResourceContents, *, exactly: bool = False) -> None:
        """Print the contents of a resource."""
        if contents.text is not UNSET:
            self.printer.print_text(contents.text, verbatim=exactly)
        elif contents.blob is not UNSET:
            self.printer.print_line(
                self.describe_binary(
                    "data", contents.blob, contents.mime_type, _last_path_segment(contents.uri), contents.uri
                )
            )

    def save_binary(self, blocks: list[Any]) -> None:
        """Save the binary data of blocks that were printed as JSON."""
        for block in blocks if self.folder is not None else ():
            if isinstance(block, ImageContent | AudioContent):
                self.printer.print_error(self.describe_binary("", block.data, block.mime_type, self.name))
            contents = _to_contents(block.resource) if isinstance(block, EmbeddedResource) else block
            if isinstance(contents, ResourceContents) and contents.blob is not UNSET:
                self.printer.print_error(
                    self.describe_binary("", contents.blob, contents.mime_type, _last_path_segment(contents.uri))
                )

    def describe_binary(self, kind: str, data: str, mime_type: str | None, name: str, uri: str = "") -> str:
        """Return a line that describes binary data: its type, its size, and the file that it was saved in."""
        description = ", ".join(word for word in (kind, mime_type, uri) if word)
        try:
            # Without `validate`, Python skips foreign characters and returns data that the server did not send.
            decoded = b64decode(data, validate=True)
        except (NotBase64, ValueError):
            return f"({description}: not valid base64)"
        if self.folder is None:
            return f"({description}, {_size(len(decoded))}; use --save-dir DIR to save it)"
        path = self._save(decoded, mime_type, name)
        return f"({description + ', ' if description else ''}{_size(len(decoded))}: {path})"

    def _save(self, data: bytes, mime_type: str | None, name: str) -> str:
        """Save the data in a new file and return its path. The name comes from the server, so it is sanitized."""
        assert self.folder is not None
        stem, extension = _file_name(name, mime_type)
        try:
            os.makedirs(self.folder, exist_ok=True)
            # Never overwrites: a second image of the same tool gets the next number.
            for number in range(1, MAX_NAME_ATTEMPTS):
                path = os.path.join(self.folder, f"{stem}{'' if number == 1 else f'-{number}'}{extension}")
                try:
                    # Exclusive creation: a server must not be able to overwrite a file of the user by its name.
                    with open(path, "xb") as file:
                        file.write(data)
                    return path
                except FileExistsError:
                    continue
        except OSError as failure:
            raise UsageError(f"cannot write to {self.folder}: {failure.strerror or failure}") from None
        raise UsageError(f"{self.folder} already has {MAX_NAME_ATTEMPTS} files named {stem}")


def _to_contents(resource: Any) -> ResourceContents:
    if isinstance(resource, TextResourceContents | BlobResourceContents):
        resource = msgspec.to_builtins(resource)
    return resource if isinstance(resource, ResourceContents) else msgspec.convert(resource, ResourceContents)


def _last_path_segment(uri: str) -> str:
    return uri.partition("?")[0].rstrip("/").rpartition("/")[2]


def _file_name(name: str, mime_type: str | None) -> tuple[str, str]:
    stem, mark, suffix = name.rpartition(".")
    guessed = mimetypes.guess_extension((mime_type or "").partition(";")[0].strip())
    extension = f".{suffix}" if mark and re.fullmatch(r"[A-Za-z0-9]{1,8}", suffix) else guessed or ".bin"
    # No dots or slashes from the server reach the path, so it stays inside the directory.
    safe = re.sub(r"[^A-Za-z0-9_-]+", "-", stem if mark and extension == f".{suffix}" else name).strip("-")
    return safe[:MAX_FILE_NAME_CHARS] or "data", extension


def _size(count: int) -> str:
    return f"{count} bytes" if count < 10_000 else f"{count / 1000:,.0f} kB"
