"""Limit on the nesting of JSON from other parties.

Many functions walk decoded JSON recursively, and Python allows about 1,000 frames. How many are left depends on the
caller, and from Python 3.12 on the C parser accepts far deeper documents than Python code can walk. Every foreign
document is therefore checked when it is read: those that pass can be walked with several frames per level.
"""

from __future__ import annotations

import re
from typing import Any, TypeVar, overload

import msgspec

# The limit of serde_json, so that documents accepted by other implementations are accepted here, too.
MAX_JSON_DEPTH = 128

# Shorter texts without arrays need no count of their brackets: an object around another takes five bytes, `{"":}`. An
# array takes two, so with arrays between the first `[` and the last `]` a text of `size` bytes has at most
# 1 + size / 5 + (0.5 - 0.2) * (bytes between them) levels. Searching a byte costs a tenth of counting it.
MAX_SHALLOW_BYTES = 5 * (MAX_JSON_DEPTH - 1)
ARRAY_BYTE = ord("[")

TOO_DEEP = f"nested too deeply: at most {MAX_JSON_DEPTH} levels are accepted"

T = TypeVar("T")

_OTHER_BYTES = bytes(set(range(256)) - set(b'"{}[]:,'))
# With a single kind of bracket, an empty pair is always "{}".
_ONE_KIND = bytes.maketrans(b"[]", b"{}")
# Each round removes the innermost pairs, one level. Few documents have anything left afterwards.
_ROUNDS = 8


class DepthExceeded(msgspec.DecodeError):
    """A document is nested deeper than MAX_JSON_DEPTH."""

    def __init__(self) -> None:
        super().__init__(TOO_DEEP)


def exceeds_depth(data: bytes | str, max_depth: int = MAX_JSON_DEPTH) -> bool:
    """Return whether a JSON text is nested deeper than `max_depth`. Takes linear time, and does not recurse."""
    text = data.encode(errors="surrogatepass") if isinstance(data, str) else bytes(data)
    if text.count(b"{") + text.count(b"[") <= max_depth:
        return False
    return is_too_deep(punctuation_of(text), max_depth)


def punctuation_of(text: bytes) -> bytes:
    """Return the brackets, colons and commas of a JSON text that are not inside strings."""
    # Drop escaped quotes, then everything but quotes and punctuation. Most strings are two quotes then; the rest is
    # split, and every second part is inside a string.
    left = text.replace(b"\\\\", b"").replace(b'\\"', b"").translate(None, _OTHER_BYTES).replace(b'""', b"")
    return b"".join(left.split(b'"')[::2])


def is_too_deep(punctuation: bytes, max_depth: int = MAX_JSON_DEPTH) -> bool:
    """Return whether a JSON text with this punctuation is nested deeper than `max_depth`."""
    brackets = punctuation.translate(_ONE_KIND, b":,")
    for levels in range(min(_ROUNDS, max_depth)):
        if len(brackets) <= 2 * (max_depth - levels):
            return False
        brackets = brackets.replace(b"{}", b"")
    depth = min(_ROUNDS, max_depth)
    for run in re.finditer(rb"\{+|\}+", brackets):
        depth += (run.end() - run.start()) * (1 if run[0][:1] == b"{" else -1)
        if depth > max_depth:
            return True
    return False


@overload
def decode_bounded(data: bytes | str) -> Any: ...


@overload
def decode_bounded(data: bytes | str, type: type[T]) -> T: ...


def decode_bounded(data: bytes | str, type: Any = Any) -> Any:
    """Decode a foreign JSON document. Raises msgspec.DecodeError if it is malformed or nested too deeply."""
    if exceeds_depth(data):
        raise DepthExceeded
    return msgspec.json.decode(data, type=type)
