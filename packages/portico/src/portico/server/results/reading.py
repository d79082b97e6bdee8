"""Reading of stored results in pieces: by offset, by path into JSON, and by search."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import msgspec
from msgspec import Struct

from portico.protocol.content import ImageContent, TextContent
from portico.protocol.errors import ToolError
from portico.server.results.json_text import (
    JsonDocument,
    ShortenOptions,
    Span,
    describe,
    find_path,
    is_json,
    iter_elements,
    kind_of,
    shorten_json,
    text_end,
)
from portico.server.results.storage import ResultStore, StoredResult
from portico.text import truncate
from portico.tokens import MAX_TOKENS_PER_BYTE, estimate_binary, estimate_span, estimate_tokens

# Larger results are processed in a thread, a few at a time, so that memory and the event loop stay free.
THREAD_BYTES = 256 * 1024
SCHEME = "result://"
MAX_ID_CHARS = 100
MAX_OFFSET = 2**40
MAX_PATTERN_CHARS = 200
MAX_PIECES = 8
DEFAULT_MATCHES, MAX_MATCHES = 20, 200
# Characters searched by one call; the next call continues.
MAX_SEARCH_CHARS = 32 * 1024 * 1024
# Characters that a `*` matches at most, and of the excerpt around a match.
MAX_GAP_CHARS = 2_000
EXCERPT_CHARS = 160
# Tokens of the description of a piece.
_FOOTER_TOKENS = 150
_ID = re.compile(r"(?:result://)?([A-Za-z0-9_-]{32})(?:/(\d{1,4}))?", re.ASCII)
_TEXT_KINDS = ("text", "json")

RunInThread = Callable[..., Awaitable[Any]]
"Calls a function with arguments in a thread, and returns its result."


class ResultAddress(Struct, frozen=True):
    """A stored result and one of its parts."""

    id: str
    part: int | None


def parse_address(text: str) -> ResultAddress | None:
    """Parse `ID`, `ID/1` or their `result://` links, or return None."""
    match = _ID.fullmatch(text) if len(text) <= MAX_ID_CHARS else None
    return None if match is None else ResultAddress(match[1], None if match[2] is None else int(match[2]))


class ReadRequest(Struct, frozen=True):
    """Arguments of `read_result`, for one part of a stored result."""

    part: int = 0
    offset: int = 0
    limit: int | None = None
    path: str | None = None
    pattern: str | None = None


async def read_piece(
    store: ResultStore, stored: StoredResult, request: ReadRequest, tokens: int, run_in_thread: RunInThread
) -> list[Any]:
    """Return a piece of a stored result as content blocks within a budget. Raises ToolError and StoreError."""
    if request.part >= len(stored.parts):
        raise ToolError(
            f"The result has {len(stored.parts)} parts, numbered from 0; got {request.part}.",
            error_type="ResourceNotFound",
        )
    info = stored.parts[request.part]
    room = max(tokens - _FOOTER_TOKENS, tokens // 2)
    others = f" Part {request.part} of {len(stored.parts)}." if len(stored.parts) > 1 else ""
    if info.kind not in _TEXT_KINDS:
        if request.path is not None or request.pattern is not None:
            raise ToolError("path and pattern need a text, but this part is binary.", error_type="ValidationError")
        return await _read_binary(store, stored, request, room, others)
    if request.path is not None:
        if request.pattern is not None:
            raise ToolError("Use path or pattern, not both.", error_type="ValidationError")
        data = await store.read_bytes(stored, request.part)
        if len(data) <= THREAD_BYTES:
            return _read_path(data, request, room, others)
        pieces: list[Any] = await run_in_thread(_read_path, data, request, room, others)
        return pieces
    if request.pattern is not None:
        return await _search(store, stored, request, room, others)
    requested_chars = min(request.limit or info.size, 20 * tokens)
    text = await store.read_slice(stored, request.part, request.offset, requested_chars)
    assert isinstance(text, str)
    piece = text[: text_end(text, room)] if text else ""
    end = request.offset + len(piece)
    rest = f"; continue with offset={end}" if end < info.size else ""
    footer = f"[Characters {request.offset:,} to {end:,} of {info.size:,}{rest}.{others}]"
    return [TextContent(text=piece), TextContent(text=footer)]


async def _read_binary(
    store: ResultStore, stored: StoredResult, request: ReadRequest, room: int, others: str
) -> list[Any]:
    info = stored.parts[request.part]
    is_complete = request.offset == 0 and request.limit is None
    if info.kind == "image" and is_complete and estimate_binary(info.size * 4 // 3 + 4, is_image=True) <= room:
        data = await store.read_bytes(stored, request.part)
        return [ImageContent(data=b64encode(data).decode(), mime_type=info.mime_type)]
    # Three bytes are four characters of base64.
    limit = max(int(room / MAX_TOKENS_PER_BYTE) // 4 * 3, 3)
    data = bytes(await store.read_slice(stored, request.part, request.offset, min(request.limit or limit, limit)))  # type: ignore[arg-type]
    end = request.offset + len(data)
    rest = f"; continue with offset={end}" if end < info.size else ""
    kind = truncate(info.mime_type, 60)
    footer = f"[{kind}, base64 of bytes {request.offset:,} to {end:,} of {info.size:,}{rest}.{others}]"
    return [TextContent(text=b64encode(data).decode()), TextContent(text=footer)]


def _read_path(data: bytes, request: ReadRequest, room: int, others: str) -> list[Any]:
    if not is_json(data):
        raise ToolError(
            "path needs JSON, but this part is a text; use offset or pattern.", error_type="ValidationError"
        )
    data = JsonDocument(data)
    span = find_path(data, request.path or "")
    kind = kind_of(data, span)
    if kind == "array" or (kind == "object" and (request.offset or request.limit)):
        return _read_elements(data, span, request, room, others)
    if kind == "string":
        text = msgspec.json.decode(data[span.start : span.end], type=str)
        piece = text[request.offset : None if request.limit is None else request.offset + request.limit]
        piece = piece[: text_end(piece, room)]
        end = request.offset + len(piece)
        rest = f"; continue with offset={end}" if end < len(text) else ""
        return [
            TextContent(text=piece),
            TextContent(text=f"[Characters {request.offset:,} to {end:,} of {len(text):,}{rest}.{others}]"),
        ]
    if estimate_span(data, span.start, span.end, room) <= room:
        return [TextContent(text=data[span.start : span.end].decode())]
    short = shorten_json(data, room, ShortenOptions(members=True), span)
    about = f"[Shortened: {describe(data, span)}. Select a member with a longer path.{others}]"
    return [*([] if short is None else [TextContent(text=short.decode())]), TextContent(text=about)]


def _read_elements(data: bytes, span: Span, request: ReadRequest, room: int, others: str) -> list[Any]:
    """Return elements of an array, or members of an object, from an offset."""
    pieces: list[bytes] = []
    left = float(room)
    count = 0
    is_full = False
    for element in iter_elements(data, span):
        count += 1
        if count <= request.offset or is_full:
            continue
        key = b"" if element.key is None else msgspec.json.encode(element.key) + b":"
        cost = estimate_span(data, element.start, element.end, left) + estimate_tokens(key) + 1
        if cost > left and not pieces:
            short = shorten_json(data, left - estimate_tokens(key) - 1, ShortenOptions(members=True), element)
            if short is not None:
                pieces.append(key + short)
            is_full = True
        elif cost > left:
            is_full = True
        else:
            pieces.append(key + data[element.start : element.end])
            left -= cost
        is_full = is_full or (request.limit is not None and len(pieces) >= request.limit)
    first, last = data[span.start : span.start + 1], data[span.end - 1 : span.end]
    end = request.offset + len(pieces)
    rest = f"; continue with offset={end}" if end < count else ""
    return [
        TextContent(text=(first + b",".join(pieces) + last).decode()),
        TextContent(text=f"[Elements {request.offset:,} to {end:,} of {count:,}{rest}.{others}]"),
    ]


# Search. Patterns are texts with `*`, not regular expressions: these can take exponential time.


def parse_pattern(pattern: str) -> list[list[str]]:
    """Parse alternatives separated by `|`, each a text in which `*` matches any characters of a line.

    Raises ToolError.
    """
    if len(pattern) > MAX_PATTERN_CHARS:
        raise ToolError(
            f"pattern must have at most {MAX_PATTERN_CHARS} characters, got {len(pattern)}.",
            error_type="ValidationError",
        )
    alternatives = [[piece for piece in part.lower().split("*") if piece] for part in pattern.split("|")]
    alternatives = [pieces for pieces in alternatives if pieces]
    if not alternatives or "\n" in pattern or sum(map(len, alternatives)) > MAX_PIECES:
        raise ToolError(
            f"pattern must be a text of one line with at most {MAX_PIECES} parts, separated by * (anything) or | (or).",
            error_type="ValidationError",
        )
    return alternatives


def find_matches(text: str, alternatives: list[list[str]]) -> Iterator[tuple[int, int]]:
    """Yield the start and end of each match, at most one per line and excerpt, in linear time."""
    lowered = text.lower()
    if len(lowered) != len(text):
        lowered = text  # a few letters change their length
    position = 0
    next_of: list[tuple[int, int] | None] = [_find(lowered, pieces, 0) for pieces in alternatives]
    while True:
        pending = [item for item in next_of if item is not None]
        if not pending:
            return
        start, end = min(pending)
        yield start, end
        newline = lowered.find("\n", end, end + EXCERPT_CHARS)
        position = newline + 1 if newline >= 0 else end + EXCERPT_CHARS
        next_of = [
            _find(lowered, pieces, position) if item is not None and item[0] < position else item
            for pieces, item in zip(alternatives, next_of, strict=True)
        ]


def _find(text: str, pieces: list[str], start: int) -> tuple[int, int] | None:
    """Return the first match at or after `start`."""
    while True:
        begin = text.find(pieces[0], start)
        if begin < 0:
            return None
        end = begin + len(pieces[0])
        limit = min(_line_end(text, end), end + MAX_GAP_CHARS)
        for piece in pieces[1:]:
            at = text.find(piece, end, limit)
            if at < 0:
                # No earlier start can match before the next place of this piece.
                later = text.find(piece, limit)
                if later < 0:
                    return None
                start = max(limit if limit == _line_end(text, end) else begin + 1, later - MAX_GAP_CHARS)
                break
            end = at + len(piece)
        else:
            return begin, end


def _line_end(text: str, start: int) -> int:
    end = text.find("\n", start, start + MAX_GAP_CHARS)
    return end if end >= 0 else start + MAX_GAP_CHARS


async def _search(store: ResultStore, stored: StoredResult, request: ReadRequest, room: int, others: str) -> list[Any]:
    alternatives = parse_pattern(request.pattern or "")
    info = stored.parts[request.part]
    limit = min(request.limit or DEFAULT_MATCHES, MAX_MATCHES)
    lines: list[str] = []
    left = float(room)
    stop = min(request.offset + MAX_SEARCH_CHARS, info.size)
    carried, resume = "", stop
    searched_to = request.offset
    async for position, data in store.iter_chunks(stored, request.part, request.offset, stop):
        text = data.decode()
        begin = max(request.offset - position, 0)
        text, position = text[begin:], position + begin
        # A match may begin in the previous chunk.
        text, position = carried + text, position - len(carried)
        is_last = position + len(text) >= stop
        for start, end in find_matches(text, alternatives):
            if position + start < searched_to:
                continue
            if not is_last and end > len(text) - MAX_GAP_CHARS:
                break
            low = max(text.rfind("\n", max(start - EXCERPT_CHARS, 0), start) + 1, start - EXCERPT_CHARS, 0)
            high = min(_line_end(text, end), end + EXCERPT_CHARS, len(text))
            line = f"{position + start}: {text[low:high]}"
            cost = estimate_tokens(line) + 1
            if cost > left or len(lines) >= limit:
                resume = position + start
                break
            lines.append(line)
            left -= cost
            searched_to = position + high
        if resume != stop:
            break
        carried = text[-2 * MAX_GAP_CHARS :]
        searched_to = max(searched_to, position + len(text) - 2 * MAX_GAP_CHARS)
    rest = f"; continue with offset={resume}" if resume < info.size else ""
    footer = f"[{len(lines)} matches in characters {request.offset:,} to {resume:,} of {info.size:,}{rest}.{others}]"
    return [TextContent(text="\n".join(lines) if lines else "No match."), TextContent(text=footer)]
