"""A bound for the nesting of JSON that others wrote.

Many functions walk decoded JSON by recursion, and Python allows about 1,000 frames. How many are left depends on the
caller, and from Python 3.12 on the C parser reads far deeper documents than Python code can walk. So every foreign
document is checked when it is read: whatever has passed can be walked with several frames for each level.
"""

from __future__ import annotations

import re
from typing import Any, TypeVar, overload

import msgspec
from msgspec import Struct

# The limit of serde_json, so that documents which other implementations read are read here too.
MAX_JSON_DEPTH = 128

TOO_DEEP = f"nested too deeply: at most {MAX_JSON_DEPTH} levels are accepted"

T = TypeVar("T")

_OTHER_BYTES = bytes(set(range(256)) - set(b'"{}[]'))
# With one kind of brackets, a pair that holds nothing is "{}".
_ONE_KIND = bytes.maketrans(b"[]", b"{}")
# Removing the innermost pairs takes one level off. Few documents have anything left after this many rounds.
_ROUNDS = 8
# Everything up to the next bracket, and the last string before it. A string that is not closed extends to the end, and
# so does text without brackets, so that no byte is scanned twice.
_SEGMENT = rb'(?s)[^"{}\[\]]*+(?:("[^"\\]*+(?:\\.[^"\\]*+)*+"?)[^"{}\[\]]*+)*+([{}\[\]]|\Z)'

# The members of list results whose elements can be left out without changing the others.
_LISTS = frozenset({b'"tools"', b'"prompts"', b'"resources"', b'"resourceTemplates"'})
# The depths of a member of the message, such as `result`, and of an entry in `result.tools`.
_MEMBER, _ENTRY = 2, 4


class DepthExceeded(msgspec.DecodeError):
    """A document is nested deeper than MAX_JSON_DEPTH."""

    def __init__(self) -> None:
        super().__init__(TOO_DEEP)


def exceeds_depth(data: bytes | str, max_depth: int = MAX_JSON_DEPTH) -> bool:
    """Return whether a JSON text is nested deeper than `max_depth`. Takes linear time, and does not recurse."""
    text = data.encode(errors="surrogatepass") if isinstance(data, str) else bytes(data)
    if text.count(b"{") + text.count(b"[") <= max_depth:
        return False
    # Drop escaped quotes, then everything but quotes and brackets; every second part is inside a string.
    left = text.replace(b"\\\\", b"").replace(b'\\"', b"").translate(None, _OTHER_BYTES)
    brackets = b"".join(left.split(b'"')[::2]).translate(_ONE_KIND)
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


def check_depth(value: Any, max_depth: int = MAX_JSON_DEPTH) -> None:
    """Raise DepthExceeded if a decoded value is nested deeper than `max_depth`. Does not recurse."""
    level, depth = [value], 0
    while level:
        containers = [one for one in level if isinstance(one, dict | list)]
        depth += bool(containers)
        if depth > max_depth:
            raise DepthExceeded
        level = [item for one in containers for item in (one.values() if isinstance(one, dict) else one)]


class ShortenedMessage(Struct):
    """A message without the parts that are nested too deeply, and descriptions of the list entries left out.

    `whole`: only list entries were left out, so that the rest can be used. Otherwise members of the message are null.
    """

    data: bytes
    left_out: list[str]
    whole: bool


def shorten(data: bytes) -> ShortenedMessage:
    """Remove what is nested too deeply from a JSON-RPC message, so that the rest can be decoded.

    Entries of list results are left out one by one. Any other member of the message becomes null as a whole.
    """
    entries, parts = _find_deep(data)
    if not parts:
        return ShortenedMessage(_without(data, entries), [_describe(data[a:b]) for a, b in entries], True)
    pieces, place = [], 0
    for begin, end in parts:
        pieces += [data[place:begin], b"null"]
        place = end
    return ShortenedMessage(b"".join(pieces) + data[place:], [], False)


def _find_deep(data: bytes) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Return the spans of the list entries that are too deep, and of the message members with other parts that are."""
    entries: list[tuple[int, int]] = []
    parts: list[tuple[int, int]] = []
    # By depth, of the containers that are open: where they begin, and the name before them.
    begins, keys = [0] * (_ENTRY + 1), [b""] * (_ENTRY + 1)
    depth = highest = part_highest = 0
    for segment in re.finditer(_SEGMENT, data):
        bracket = segment[2]
        if bracket == b"{" or bracket == b"[":
            depth += 1
            highest = max(highest, depth)
            if depth <= _ENTRY:
                begins[depth], keys[depth] = segment.end() - 1, segment[1] or b""
                highest = depth
        elif bracket:
            if depth == _ENTRY and highest > MAX_JSON_DEPTH and keys[2] == b'"result"' and keys[3] in _LISTS:
                entries.append((begins[depth], segment.end()))
                highest = 0
            if depth <= _ENTRY:
                part_highest = max(part_highest, highest)
            if depth == _MEMBER and part_highest > MAX_JSON_DEPTH:
                parts.append((begins[depth], segment.end()))
            if depth <= _MEMBER:
                part_highest = 0
            depth = max(depth - 1, 0)
    return entries, parts


def _without(data: bytes, entries: list[tuple[int, int]]) -> bytes:
    """Return an array's text without some of its elements, each with a comma beside it."""
    pieces, place = [], 0
    for begin, end in entries:
        pieces.append(data[place:begin])
        comma = re.compile(rb"\s*+,").match(data, end)
        place = end if comma is None else comma.end()
        if comma is None:
            # The last element of its array: the comma before it goes.
            while len(pieces) > 1 and not pieces[-1].strip():
                pieces.pop()
            pieces[-1] = pieces[-1].rstrip().removesuffix(b",")
    return b"".join(pieces) + data[place:]


def _describe(entry: bytes) -> str:
    found = re.search(rb'"(?:name|uri|uriTemplate)"\s*:\s*"([^"\\]{1,128})"', entry)
    return found[1].decode(errors="replace") if found is not None else "an entry without a readable name"
