"""Invisible characters: a model reads them but a reviewer does not, so a description can hide instructions in them."""

from __future__ import annotations

import re
import unicodedata
from typing import Any

import msgspec

from portico.text import escape_json_char

# Characters without a glyph that Python considers printable (Unicode, Default_Ignorable_Code_Point), and the blank
# Braille pattern. U+FE0E and U+FE0F, which select the form of an emoji, are excluded.
_INVISIBLE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u180f\u2800\u3164\ufe00-\ufe0d\uffa0\U000e0100-\U000e01ef]"
)
# Joiners are legitimate in some scripts and in emoji, but never next to a Latin letter or doubled.
_MISPLACED = re.compile(
    "[\u200c\u200d]{2}|[\ufe0e\ufe0f]{2}|(?:^|[\x00-\x7f])[\u200c\u200d]|[\u200c\u200d](?:[\x00-\x7f]|$)"
    '|(?:^|[\x00-"\x24-\x29+-/:-\x7f])[\ufe0e\ufe0f]'
)
# Escapes as written by `visible` and in readable JSON.
_ESCAPED_INVISIBLE = re.compile(
    r"\\u(?:00ad|034f|061c|115f|1160|17b[45]|180[b-f]|200[bef]|202[a-e]|206[0-9a-f]|2800|3164|fe0[0-9a-d]|feff|ffa0)"
    r"|\\U000e0|\\udb40\\ud[c-f]",
    re.IGNORECASE,
)


def is_visible(char: str) -> bool:
    """Return whether a character is visible, or part of a visible one."""
    # Joiners are decided by their context, in `has_invisible`.
    if char in "\n\t\u200c\u200d":
        return True
    return (char.isprintable() or unicodedata.category(char) == "Zs") and _INVISIBLE.match(char) is None


def visible(text: str) -> str:
    """Return the text with invisible characters escaped: controls, and bidirectional overrides."""
    return "".join(char if is_visible(char) else _escape(char) for char in text.replace("\r\n", "\n"))


def has_invisible(text: str) -> bool:
    """Return whether a text contains invisible characters."""
    # ASCII text cannot contain joiners, so the expression is skipped for nearly all descriptions.
    return not all(map(is_visible, text)) or (not text.isascii() and _MISPLACED.search(text) is not None)


def has_escaped_invisible(text: str) -> bool:
    """Return whether a text contains escapes of invisible characters."""
    return _ESCAPED_INVISIBLE.search(text) is not None


def _escape(char: str) -> str:
    return f"\\u{ord(char):04x}" if ord(char) < 0x10000 else f"\\U{ord(char):08x}"


def visible_json(value: Any, *, sort: bool = False) -> str:
    """Return indented JSON with every invisible character escaped."""
    text = msgspec.json.format(msgspec.json.encode(value, order="sorted" if sort else None), indent=2).decode()
    if text.isascii() and "\x7f" not in text:
        return text
    return "".join(
        char if char == "\n" or (char.isprintable() and is_visible(char)) else escape_json_char(char) for char in text
    )
