"""Text from outside, made fit to be shown: it is data, whatever it says."""

from __future__ import annotations

import os
import re
from typing import Any

LONGEST_MESSAGE = 4000

# C0 and C1 controls except tab and line feed, what turns the direction of writing, what cannot be seen, and halves of
# surrogate pairs, which no JSON can hold.
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]")
_BYTE = re.compile(r"\\udc([89a-f][0-9a-f])")


def plain(text: str) -> str:
    """Control characters as escapes that can be seen: a terminal, or a model, does not obey them."""
    return _UNSAFE.sub(_escaped, text) if not text.isprintable() else text


def plain_text(text: str) -> str:
    """As `plain`, but the ends of lines as Windows writes them are ends of lines. Not for names: two could be one."""
    return plain(text.replace("\r\n", "\n") if "\r" in text else text)


def _escaped(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def plain_all(value: Any) -> Any:
    """Every text in a value that JSON can hold."""
    if isinstance(value, str):
        return plain_text(value)
    if isinstance(value, dict):
        return {plain(name): plain_all(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain_all(one) for one in value]
    return decoded(value) if isinstance(value, bytes) else value


def cut(text: str, rest: str, longest: int = LONGEST_MESSAGE, whole: int = 0) -> str:
    """A long text, cut, with a word on where the rest is; `whole` is its length where this is already a part of it."""
    if len(text) <= longest:
        return text
    return f"{text[:longest]}… [{max(whole, len(text)) - longest:,} more characters: {rest}]"


def decoded(data: bytes) -> str:
    """Bytes that should be UTF-8; what is not stays recognisable."""
    return data.decode("utf-8", "backslashreplace")


def shown_path(path: str) -> str:
    """A path as JSON can hold it. Python has a byte that is no UTF-8 as half a surrogate pair: it is spelt out."""
    return plain(path)


def meant_path(path: str) -> str:
    """The path that was shown this way."""
    if "\\udc" not in path:
        return path
    if os.sep == "\\":
        return path
    return _BYTE.sub(lambda found: chr(0xDC00 + int(found[1], 16)), path)
