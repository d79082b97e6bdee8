"""Escaping of text for the terminal. Every command imports this module, so it imports little.

A server's text may contain escape sequences that move the cursor, change the title or fake other output.
"""

from __future__ import annotations

import errno
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from portico.protocol.errors import PorticoError
from portico.text import escape_json_char, truncate

# Joiners that scripts and emoji need. All other invisible characters are escaped.
_JOINERS = "\u200c\u200d"


def escape_control(text: str) -> str:
    """Escape control characters, except line ends and tabs."""
    return _escape_lines(text.replace("\r\n", "\n"), _escape)


def to_single_line(text: str, max_chars: int = 2000) -> str:
    """Return the text as one escaped line of at most `max_chars` characters."""
    # Cut before splitting: a server's text may be megabytes long, and only its beginning is shown.
    return escape_control(truncate(" ".join(text[: 4 * max_chars + 1].split()), max_chars))


def plural(noun: str, count: int) -> str:
    """Return the noun in the form that follows this number: `1 tool`, `2 tools`."""
    return noun if count == 1 else f"{noun}s"


def escape_json(text: str) -> str:
    """Escape invisible characters in JSON. They occur only in strings, so the value is unchanged."""
    return _escape_lines(text, escape_json_char)


def _escape_lines(text: str, escape: Callable[[str], str]) -> str:
    return "\n".join(
        line if line.isprintable() else "".join(char if _is_plain(char) else escape(char) for char in line)
        for line in text.split("\n")
    )


def _is_plain(char: str) -> bool:
    # Zs: spaces such as U+00A0 are harmless, although isprintable() rejects them.
    return char.isprintable() or char == "\t" or char in _JOINERS or unicodedata.category(char) == "Zs"


def _escape(char: str) -> str:
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


# Output


def is_terminal(stream: TextIO | None) -> bool:
    """Return whether a user reads the stream and may see secrets; pipes, files and journals have other readers."""
    return stream is not None and not stream.closed and stream.isatty()


# What a write to a full disk, a file that may not grow, a failing device or a closed descriptor returns.
_WRITE_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)


@contextmanager
def report_write_errors() -> Iterator[None]:
    """Convert write errors to PorticoError, but leave a closed pipe to `main`, which exits silently."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as failure:
        # Errors of files and sockets have other causes.
        if failure.errno not in _WRITE_ERRORS or failure.filename is not None:
            raise
        raise PorticoError(f"cannot write to standard output: {failure.strerror or failure}") from None
