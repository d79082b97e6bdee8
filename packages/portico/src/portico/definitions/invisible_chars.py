"""Characters that a model reads and people do not see: in a description they carry orders past its reader."""

from __future__ import annotations

import re
import unicodedata
from typing import Any

import msgspec

# Letters and marks that have no shape, of which Python says that they can be printed (Unicode,
# Default_Ignorable_Code_Point), and the empty pattern of Braille. Which shape an emoji has, 0xFE0E and 0xFE0F choose.
_SHAPELESS = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u180f\u2800\u3164\ufe00-\ufe0d\uffa0\U000e0100-\U000e01ef]"
)
# Joiners are part of how some languages are written, and of emoji: never beside a Latin letter, nor two of them.
_MISPLACED = re.compile(
    "[\u200c\u200d]{2}|[\ufe0e\ufe0f]{2}|(?:^|[\x00-\x7f])[\u200c\u200d]|[\u200c\u200d](?:[\x00-\x7f]|$)"
    '|(?:^|[\x00-"\x24-\x29+-/:-\x7f])[\ufe0e\ufe0f]'
)
# What `visible`, and JSON that is written for reading, make of them.
_SPELLED = re.compile(
    r"\\u(?:00ad|034f|061c|115f|1160|17b[45]|180[b-f]|200[bef]|202[a-e]|206[0-9a-f]|2800|3164|fe0[0-9a-d]|feff|ffa0)"
    r"|\\U000e0|\\udb40\\ud[c-f]",
    re.IGNORECASE,
)


def is_seen(char: str) -> bool:
    """Whether it has a shape, or is part of one."""
    if char in "\n\t\u200c\u200d":
        return True
    return (char.isprintable() or unicodedata.category(char) == "Zs") and _SHAPELESS.match(char) is None


def visible(text: str) -> str:
    """The same text with nothing hidden in it: controls, and characters that turn the direction of writing."""
    return "".join(char if is_seen(char) else _escape(char) for char in text.replace("\r\n", "\n"))


def hides(text: str) -> bool:
    """Whether something in it cannot be seen."""
    return not all(map(is_seen, text)) or (not text.isascii() and _MISPLACED.search(text) is not None)


def spells_hidden(text: str) -> bool:
    """Whether something in it could not be seen before it was made visible."""
    return _SPELLED.search(text) is not None


def _escape(char: str) -> str:
    return f"\\u{ord(char):04x}" if ord(char) < 0x10000 else f"\\U{ord(char):08x}"


def visible_json(value: Any, *, sort: bool = False) -> str:
    """Return indented JSON for reading, with every character that cannot be seen escaped."""
    text = msgspec.json.format(msgspec.json.encode(value, order="sorted" if sort else None), indent=2).decode()
    if text.isascii() and "\x7f" not in text:
        return text
    return "".join(char if char == "\n" or (char.isprintable() and is_seen(char)) else _units(char) for char in text)


def _units(char: str) -> str:
    units = char.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))
