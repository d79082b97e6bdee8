"""Sanitization of external text for results: it is data, whatever it contains."""

from __future__ import annotations

import os
import re
from importlib import import_module
from importlib.util import find_spec
from typing import Any

MAX_MESSAGE_CHARS = 4000

# C0 and C1 controls except tab and line feed, bidirectional controls, invisible characters, and lone surrogates, which
# JSON cannot represent.
_CONTROL_CHARS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]"
)
_BYTE = re.compile(r"\\udc([89a-f][0-9a-f])")


def escape_controls(text: str) -> str:
    """Replace control characters by visible escapes, so that neither a terminal nor a model interprets them."""
    return _CONTROL_CHARS.sub(_escape_match, text) if not text.isprintable() else text


def escape_controls_multiline(text: str) -> str:
    """Escape like `escape_controls`, but treat CRLF as a line end. Not for names: two different names could become
    equal.
    """
    return escape_controls(text.replace("\r\n", "\n") if "\r" in text else text)


def _escape_match(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def escape_controls_deep(value: Any) -> Any:
    """Escape every string in a JSON value."""
    if isinstance(value, str):
        return escape_controls_multiline(value)
    if isinstance(value, dict):
        return {escape_controls(name): escape_controls_deep(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [escape_controls_deep(item) for item in value]
    return decode_lossy(value) if isinstance(value, bytes) else value


def truncate(text: str, rest: str, longest: int = MAX_MESSAGE_CHARS, whole: int = 0) -> str:
    """Truncate a long text and append where to find the rest; `whole` is the full length if the text is already
    a part.
    """
    if len(text) <= longest:
        return text
    return f"{text[:longest]}… [{max(whole, len(text)) - longest:,} more characters: {rest}]"


def decode_lossy(data: bytes) -> str:
    """Decode UTF-8; invalid bytes become escapes."""
    return data.decode("utf-8", "backslashreplace")


def path_to_text(path: str) -> str:
    """Return a path in a form that JSON can represent. Undecodable bytes, which Python maps to lone surrogates, are
    escaped.
    """
    return escape_controls(path)


def path_from_text(path: str) -> str:
    """Return the path that `path_to_text` encoded."""
    if "\\udc" not in path:
        return path
    # On Windows a backslash separates directories, so `\udc80` can be part of a real path.
    if os.sep == "\\":
        return path
    return _BYTE.sub(lambda match: chr(0xDC00 + int(match[1], 16)), path)


# For so few bytes, lowering a copy is faster than calling RE2.
MAX_COPY_BYTES = 16 * 1024


class CaseInsensitiveByteSearch:
    """Case-insensitive search in bytes. RE2 does it in one pass; without it the bytes are lowered first, which only
    affects ASCII letters.
    """

    def __init__(self, text: str) -> None:
        self._small = text.encode().lower()
        self._pattern: Any = None
        self._is_ascii = text.isascii()
        if find_spec("re2") is not None:
            re2 = import_module("re2")
            options = re2.Options()
            # The text comes from the caller and is not a pattern.
            options.literal = True
            options.case_sensitive = False
            options.log_errors = False
            self._pattern = re2.compile(text.encode(), options)

    def find(self, data: bytes, at: int = 0) -> int:
        """Return the offset of the next match from an offset on, or -1."""
        if self._pattern is None or (self._is_ascii and len(data) < MAX_COPY_BYTES):
            # Sufficient for ASCII text: `bytes.lower` changes no other letters.
            return data.lower().find(self._small, at)
        match = self._pattern.search(data, at)
        return -1 if match is None else int(match.start())
