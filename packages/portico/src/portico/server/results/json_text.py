"""Encoded JSON without decoding it: elements, paths, and shorter versions.

Decoding 100 MB of JSON takes more than a gigabyte. These functions scan the bytes instead, with constant memory, and
decode single strings only. They expect valid JSON: see `is_json`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec
from msgspec import Raw, Struct

from portico.protocol.errors import ToolError
from portico.protocol.json_depth import exceeds_depth
from portico.text import truncate
from portico.tokens import estimate_span, estimate_tokens, fit_text

MAX_PATH_CHARS = 1_000
# Members of an object that are considered for a shorter version.
MAX_MEMBERS = 2_000
# Smaller values are scanned again at every level; the number of larger ones is bounded, and thereby the memory.
MIN_INDEXED_BYTES = 1024
MAX_INDEXED_PER_LEVEL = 1024
# Estimated tokens of punctuation around a member.
_PUNCTUATION_TOKENS = 3

# Possessive, so that a string of a hundred megabytes needs no backtracking stack.
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
_BRACKET = re.compile(rb'"(?:[^"\\]++|\\.)*+"|[\[\]{}]', re.DOTALL)
_SCALAR = re.compile(rb"[^\s,\]}]++")
_SPACE = re.compile(rb"[\s,:]*+")
_raw = msgspec.json.Decoder(Raw)


class Span(NamedTuple):
    """A value in an encoded document, and its key in the enclosing object."""

    start: int
    end: int
    key: str | None = None


class JsonDocument(bytes):
    """Encoded JSON that knows where its large values end.

    Without that, every level of nesting would scan the values inside it once more: a megabyte takes ten seconds.
    """

    def __init__(self, data: bytes) -> None:
        least = max(MIN_INDEXED_BYTES, len(data) // MAX_INDEXED_PER_LEVEL)
        # Ends of the objects and arrays with at least that size, by their starts.
        self.ends: dict[int, int] = {}
        starts: list[int] = []
        for match in _BRACKET.finditer(data):
            token = data[match.start()]
            if token in b"{[":
                starts.append(match.start())
            elif token in b"}]" and starts:
                start = starts.pop()
                if match.end() - start >= least:
                    self.ends[start] = match.end()


_NO_ENDS: dict[int, int] = {}


def is_json(data: bytes) -> bool:
    """Return whether the text is a JSON object or array, with a bounded depth."""
    if data.lstrip()[:1] not in (b"{", b"["):
        return False
    try:
        _raw.decode(data)
    except (msgspec.DecodeError, RecursionError):
        return False
    return not exceeds_depth(data)


def whole_span(data: bytes) -> Span:
    start = _skip_space(data, 0)
    return Span(start, _value_end(data, start))


def _skip_space(data: bytes, start: int) -> int:
    match = _SPACE.match(data, start)
    assert match is not None
    return match.end()


def _value_end(data: bytes, start: int) -> int:
    first = data[start : start + 1]
    if first not in (b"{", b"["):
        match = (_STRING if first == b'"' else _SCALAR).match(data, start)
        assert match is not None
        return match.end()
    end = (data.ends if isinstance(data, JsonDocument) else _NO_ENDS).get(start)
    if end is not None:
        return end
    depth = 0
    for match in _BRACKET.finditer(data, start):
        token = data[match.start()]
        if token in b"{[":
            depth += 1
        elif token in b"}]":
            depth -= 1
            if depth == 0:
                return match.end()
    raise ValueError("unbalanced JSON")


def iter_elements(data: bytes, container: Span) -> Iterator[Span]:
    """Iterate over the elements of an array, or the members of an object."""
    is_object = data[container.start : container.start + 1] == b"{"
    position = _skip_space(data, container.start + 1)
    while position < container.end - 1:
        key = None
        if is_object:
            end = _value_end(data, position)
            key = _decode_string(data[position:end])
            position = _skip_space(data, end)
        end = _value_end(data, position)
        yield Span(position, end, key)
        position = _skip_space(data, end)


def _decode_string(data: bytes) -> str:
    try:
        text: str = msgspec.json.decode(data, type=str)
    except msgspec.DecodeError:
        return data[1:-1].decode(errors="replace")  # lone surrogates
    return text


def kind_of(data: bytes, span: Span) -> str:
    """Return "object", "array", "string" or "scalar"."""
    first = data[span.start : span.start + 1]
    return {b"{": "object", b"[": "array", b'"': "string"}.get(first, "scalar")


# Paths

_STEP = re.compile(r"\.?([^.\[\]]+)|\[(\d+)\]")


def parse_path(path: str) -> list[str]:
    """Parse a JSON Pointer (`/items/0/name`) or a dotted path (`items[0].name`). Raises ToolError."""
    if len(path) > MAX_PATH_CHARS:
        raise ToolError(f"path must have at most {MAX_PATH_CHARS} characters, got {len(path)}.")
    if path in ("", "$"):
        return []
    if path.startswith("/"):
        return [step.replace("~1", "/").replace("~0", "~") for step in path[1:].split("/")]
    steps, position = [], 1 if path.startswith("$") else 0
    while position < len(path):
        match = _STEP.match(path, position)
        if match is None:
            raise ToolError(
                f"Invalid path {truncate(path, 100)!r}: expected a JSON Pointer, such as /items/0/name, or "
                "items[0].name.",
                error_type="ValidationError",
            )
        steps.append(match[1] if match[1] is not None else match[2])
        position = match.end()
    return steps


def find_path(data: bytes, path: str) -> Span:
    """Return the value at a path. Raises ToolError with the available keys."""
    span = whole_span(data)
    for depth, step in enumerate(parse_path(path)):
        kind = kind_of(data, span)
        match = None
        if kind == "object":
            match = next((item for item in iter_elements(data, span) if item.key == step), None)
        elif kind == "array" and re.fullmatch(r"\d{1,12}", step, re.ASCII):
            number = int(step)
            match = next((item for at, item in enumerate(iter_elements(data, span)) if at == number), None)
        if match is None:
            where = f"The value after {depth} steps of the path is {describe(data, span)}"
            raise ToolError(f"{where} and has no {truncate(step, 100)!r}.", error_type="ResourceNotFound")
        span = match
    return span


def describe(data: bytes, span: Span, max_keys: int = 20, max_elements: int = 1_000_000) -> str:
    """Describe a value for a model: its kind, size, and keys."""
    kind = kind_of(data, span)
    if kind == "object":
        keys: list[str] = []
        count = 0
        for item in iter_elements(data, span):
            count += 1
            if len(keys) < max_keys:
                keys.append(truncate(item.key or "", 40))
            if count >= max_elements:
                break
        return f"an object with {count:,} members ({', '.join(keys)}{', …' if count > len(keys) else ''})"
    if kind == "array":
        count, first = 0, None
        for item in iter_elements(data, span):
            count, first = count + 1, first or item
            if count >= max_elements:
                break
        more = "at least " if count >= max_elements else ""
        inside = ""
        if first is not None and kind_of(data, first) == "object":
            names = [
                truncate(item.key or "", 40)
                for item, _ in zip(iter_elements(data, first), range(max_keys), strict=False)
            ]
            inside = f" of objects with the keys {', '.join(names)}"
        return f"an array of {more}{count:,} elements{inside}"
    size = span.end - span.start
    return (
        f"a string of about {size - 2:,} characters"
        if kind == "string"
        else f"the value {truncate(data[span.start : span.end].decode(errors='replace'), 40)}"
    )


# Shorter versions


class ShortenOptions(Struct, frozen=True):
    """What a shorter version may leave out."""

    arrays: bool = True
    strings: bool = True
    members: bool = False


def shorten_json(data: bytes, budget: float, options: ShortenOptions, span: Span | None = None) -> bytes | None:
    """Return a shorter valid document within the budget, or None if the options do not suffice."""
    result = _shorten(data, whole_span(data) if span is None else span, budget, options)
    return result if estimate_tokens(result, budget) <= budget else None


def _shorten(data: bytes, span: Span, budget: float, options: ShortenOptions) -> bytes:
    if estimate_span(data, span.start, span.end, budget) <= budget:
        return data[span.start : span.end]
    kind = kind_of(data, span)
    if kind == "string" and options.strings:
        return _shorten_string(data, span, budget)
    # Every level costs two brackets, so the budget bounds the levels.
    if kind == "array" and (budget >= 2 or options.arrays):
        return _shorten_array(data, span, budget, options) if budget >= 2 else b"[]"
    if kind == "object" and (budget >= 2 or options.members):
        return _shorten_object(data, span, budget, options) if budget >= 2 else b"{}"
    return data[span.start : span.end]


def _shorten_string(data: bytes, span: Span, budget: float) -> bytes:
    # Six bytes are the longest escape of a character, so the text needs no more of the encoded string.
    text = _decode_string(data[span.start : span.end])
    text = text[: text_end(text, max(budget - _PUNCTUATION_TOKENS, 0))]
    encoded = msgspec.json.encode(text + "…")
    while text and estimate_tokens(encoded) > budget:
        # Escapes make the encoded string longer than the text.
        text = text[: len(text) * 3 // 4]
        encoded = msgspec.json.encode(text + "…")
    return encoded if text else b'""'


def _shorten_array(data: bytes, span: Span, budget: float, options: ShortenOptions) -> bytes:
    parts: list[bytes] = []
    left = budget - 2
    if not options.arrays:
        elements = []
        for item in iter_elements(data, span):
            elements.append(item)
            if len(elements) > MAX_MEMBERS:
                return data[span.start : span.end]
        return b"[" + b",".join(_share(data, elements, left, options)) + b"]"
    for item in iter_elements(data, span):
        cost = estimate_span(data, item.start, item.end, left)
        if cost + 1 <= left:
            parts.append(data[item.start : item.end])
            left -= cost + 1
            continue
        if not parts:
            shorter = _shorten(data, item, left, options)
            if estimate_tokens(shorter, left) <= left:
                parts.append(shorter)
        break
    return b"[" + b",".join(parts) + b"]"


def _shorten_object(data: bytes, span: Span, budget: float, options: ShortenOptions) -> bytes:
    members = []
    for item in iter_elements(data, span):
        members.append(item)
        if len(members) >= MAX_MEMBERS:
            if not options.members:
                return data[span.start : span.end]
            break
    keys = [msgspec.json.encode(item.key) for item in members]
    if options.members:
        # Leave out the last members whose keys alone exceed half of the budget.
        used, count = 0.0, 0
        for key in keys:
            used += estimate_tokens(key) + _PUNCTUATION_TOKENS
            if used > budget / 2 and count:
                break
            count += 1
        members, keys = members[:count], keys[:count]
    left = budget - 2 - sum(estimate_tokens(key) + 2 for key in keys)
    values = _share(data, members, max(left, 0), options)
    return b"{" + b",".join(key + b":" + value for key, value in zip(keys, values, strict=True)) + b"}"


def _share(data: bytes, items: list[Span], budget: float, options: ShortenOptions) -> list[bytes]:
    """Return the items within a common budget: small ones whole, the large ones with equal shares of the rest."""
    budget -= len(items)
    costs = [estimate_span(data, item.start, item.end, budget) for item in items]
    shares: dict[int, float] = {}
    left, remaining = budget, len(items)
    for index in sorted(range(len(items)), key=costs.__getitem__):
        shares[index] = min(costs[index], max(left / remaining, 0))
        left, remaining = left - shares[index], remaining - 1
    return [_shorten(data, item, shares[index], options) for index, item in enumerate(items)]


def text_end(text: str, budget: float) -> int:
    """Return where to cut a text: after the last line, or else word, that is within the budget."""
    end = fit_text(text, budget)
    if end >= len(text):
        return len(text)
    for separator in ("\n", " "):
        cut = text.rfind(separator, end * 3 // 4, end)
        if cut > 0:
            return cut + 1
    # Not between a character and a mark that belongs to it.
    while end > 0 and text[end] in _JOINED:
        end -= 1
    return end


_JOINED = frozenset(
    "\u200d\ufe0e\ufe0f" + "".join(map(chr, range(0x300, 0x370))) + "".join(map(chr, range(0x1F3FB, 0x1F400)))
)


def decode_text(data: bytes) -> Any:
    """Decode a small document."""
    return msgspec.json.decode(data)
