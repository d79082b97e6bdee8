"""Text that is safe to print, and writing it out. Every command imports this, so it imports little.

A server's text may hold escape sequences that move the cursor, change the title, or write words that are not there.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from portico.protocol.errors import Error

# Joiners that scripts and emoji are written with. Everything else that cannot be seen is shown as what it is.
_JOINERS = "\u200c\u200d"


def printable(text: str) -> str:
    """The text with control characters escaped, except line ends and tabs."""
    return _guarded(text.replace("\r\n", "\n"), _escape)


def one_line(text: str, longest: int = 2000) -> str:
    """The text in one line, escaped, and cut to `longest` characters."""
    line = " ".join(text[: longest + 1].split())
    return printable(f"{line[:longest]}…" if len(line) > longest else line)


def plural(noun: str, count: int) -> str:
    """Return the noun as it follows this number: `1 tool`, `2 tools`."""
    return noun if count == 1 else f"{noun}s"


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


# Writing


def is_terminal(stream: TextIO | None) -> bool:
    """Return whether a user reads the stream, who may see secrets; a pipe, a file and a journal have other readers."""
    return stream is not None and not stream.closed and stream.isatty()


@contextmanager
def writing() -> Iterator[None]:
    """Turns a failure to write into an Error, but leaves a closed pipe to `main`, which ends silently."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as failure:
        raise Error(f"cannot write to standard output: {failure.strerror or failure}") from None
