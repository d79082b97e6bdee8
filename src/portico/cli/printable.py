"""What others say, made fit for a terminal: a server's text may hold escape sequences that move the cursor, change the
title, or write words that are not there."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable

# Joiners that scripts and emoji are written with. Everything else that cannot be seen is shown as what it is.
_JOINERS = "\u200c\u200d"


def printable(text: str) -> str:
    """The same text with nothing in it that a terminal would obey. Lines and tabs stay."""
    return _guarded(text.replace("\r\n", "\n"), _escape)


def one_line(text: str, longest: int = 2000) -> str:
    """The same in one line, and not longer than can be read."""
    line = " ".join(text[: longest + 1].split())
    return printable(f"{line[:longest]}…" if len(line) > longest else line)


def printable_json(text: str) -> str:
    """JSON that means the same. What cannot be seen only stands in its strings, where an escape says it as well."""
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
