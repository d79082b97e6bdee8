"""Shorter versions of tool results: text, JSON, binary and structured content."""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct
from msgspec.structs import replace

from portico.protocol import jsonrpc, translation
from portico.protocol.content import (
    AudioContent,
    BlobResourceContents,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    ResourceContents,
    ResourceLink,
    TextContent,
    TextResourceContents,
)
from portico.protocol.jsonrpc import array_decoder, object_decoder
from portico.protocol.tools import CallToolResult
from portico.protocol.versions import FIRST_MODERN_VERSION, ProtocolVersion
from portico.server.results.json_text import (
    JsonDocument,
    ShortenOptions,
    describe,
    is_json,
    iter_elements,
    kind_of,
    shorten_json,
    text_end,
    whole_span,
)
from portico.server.results.storage import Part
from portico.text import one_line
from portico.tokens import estimate_binary, estimate_tokens

# Larger JSON is cut like a text.
MAX_JSON_BYTES = 32 * 1024 * 1024
# Part of the budget for the summary and the link.
MAX_NOTE_TOKENS = 600
MAX_HEADINGS = 8
# Parts that the summary lists.
MAX_LISTED_PARTS = 8
# Text in which headings are searched.
MAX_HEADING_CHARS = 1024 * 1024
_HEADING = re.compile(r"^#{1,4} [^\n]{1,200}", re.MULTILINE)
# From little to much: what a shorter version with an output schema may leave out.
_ATTEMPTS = (
    ShortenOptions(),
    ShortenOptions(strings=False),
    ShortenOptions(arrays=False),
    ShortenOptions(members=True),
)
TRUNCATION_META_KEY = "portico/truncated"

_block_decoder = msgspec.json.Decoder(ContentBlock)

Validate = Callable[[bytes, ShortenOptions], bool]
"Returns whether encoded structured content, shortened with these options, is valid."


class Block(Struct):
    """A content block: the original, and what it contains."""

    original: Any
    kind: str
    text: str = ""
    base64: str = ""
    mime_type: str = ""

    def estimate(self, limit: float) -> int:
        if self.kind in ("text", "other"):
            return estimate_tokens(self.text, limit)
        return estimate_binary(len(self.base64), is_image=self.kind == "image")


class LargeResult(Struct):
    """A tool result that may exceed its budget, in one form for our own results and those of upstreams."""

    # The CallToolResult, or the members of an upstream's result.
    source: CallToolResult | dict[str, Raw]
    blocks: list[Block]
    # Encoded structured content; empty if there is none.
    structured: bytes
    is_error: bool


def parse_result(result: Any) -> LargeResult | None:
    """Return a tool result for shortening, or None for other results, such as input requests and tasks."""
    if isinstance(result, CallToolResult):
        structured = b"" if result.structured_content is UNSET else bytes(jsonrpc.encode(result.structured_content))
        return LargeResult(result, [_parse_block(item) for item in result.content], structured, result.is_error)
    try:
        members = object_decoder.decode(result)
        if "content" not in members:
            return None
        blocks = [_parse_block(item) for item in array_decoder.decode(members["content"])]
        is_error = bytes(members.get("isError", b"")).strip() == b"true"
    except (msgspec.DecodeError, RecursionError):
        return None  # the client reports it
    structured = bytes(members.get("structuredContent", b"")).strip()
    return LargeResult(members, blocks, structured, is_error)


def _parse_block(item: Any) -> Block:
    block = item
    if not isinstance(item, TextContent | ImageContent | AudioContent | EmbeddedResource | ResourceLink):
        encoded = item if isinstance(item, Raw) else jsonrpc.encode(item)
        try:
            block = _block_decoder.decode(encoded)
        except (msgspec.DecodeError, RecursionError):
            return Block(item, "other", text=bytes(encoded).decode(errors="replace"))
    if isinstance(block, TextContent):
        return Block(item, "text", text=block.text, mime_type="text/plain")
    if isinstance(block, ImageContent | AudioContent):
        kind = "image" if isinstance(block, ImageContent) else "audio"
        return Block(item, kind, base64=block.data, mime_type=block.mime_type)
    if isinstance(block, EmbeddedResource):
        resource = block.resource
        if not isinstance(resource, TextResourceContents | BlobResourceContents | ResourceContents):
            resource = msgspec.convert(resource, ResourceContents)
        text, blob = getattr(resource, "text", UNSET), getattr(resource, "blob", UNSET)
        if isinstance(blob, str):
            return Block(item, "blob", base64=blob, mime_type=resource.mime_type or "application/octet-stream")
        if isinstance(text, str):
            return Block(item, "embedded", text=text, mime_type=resource.mime_type or "text/plain")
    return Block(item, "other", text=jsonrpc.encode(block).decode(errors="replace"))


def is_within_budget(result: LargeResult, tokens: float, text_chars: int) -> bool:
    """Return whether a result needs no shortening.

    Hosts pass either the content or the structured content to the model, so each of them has the budget.
    `text_chars`: what the host accepts of this tool as text, whatever its tokens; 0 if unknown.
    """
    left = tokens
    chars = 0
    for block in result.blocks:
        if block.kind in _BINARY:
            left -= block.estimate(left)
        else:
            chars += len(block.text)
    if left < 0:
        return False
    if text_chars and chars <= text_chars and len(result.structured) <= text_chars:
        return True
    for block in result.blocks:
        if block.kind not in _BINARY:
            left -= _text_cost(block, left)
            if left < 0:
                return False
    return estimate_tokens(result.structured, tokens) <= tokens


_BINARY = frozenset({"image", "audio", "blob"})


def _text_cost(block: Block, limit: float) -> int:
    return estimate_tokens(block.text, max(limit, 0))


def to_parts(result: LargeResult) -> list[Part]:
    """Return what is stored of a result: its blocks, and the structured content if no block has the same JSON."""
    parts: list[Part] = []
    for block in result.blocks:
        if block.kind in _BINARY:
            try:
                data: str | bytes = b64decode(block.base64, validate=True)
            except ValueError:
                data = block.base64.encode(errors="replace")
            parts.append(Part(block.kind, block.mime_type, data))
        else:
            parts.append(Part("text", block.mime_type or "application/json", block.text))
    if result.structured and not _is_duplicate(result):
        parts.append(Part("json", "application/json", result.structured.decode(errors="replace")))
    return parts


def _is_duplicate(result: LargeResult) -> bool:
    """Return whether the text content has the same value as the structured content."""
    texts = [block.text for block in result.blocks if block.kind == "text"]
    return any(_same_value(text, result.structured) for text in texts)


def _same_value(text: str, structured: bytes) -> bool:
    inner = _unwrap(structured)
    encoded = text.encode(errors="replace")
    if encoded in (structured, inner):
        return True
    try:
        return inner[:1] == b'"' and msgspec.json.decode(inner, type=str) == text
    except msgspec.DecodeError:
        return False


def _unwrap(structured: bytes) -> bytes:
    """Return the value of `{"result": …}`, which wraps values that are not objects."""
    if structured.startswith(b'{"result":') and structured.endswith(b"}"):
        try:
            members = object_decoder.decode(structured)
        except (msgspec.DecodeError, RecursionError):
            return structured
        if len(members) == 1:
            return bytes(members["result"])
    return structured


class Link(Struct):
    """Where the complete result is."""

    id: str
    uri: str
    until: str


def shorten_result(
    result: LargeResult, tokens: int, link: Link | None, validate: Validate | None, version: ProtocolVersion
) -> Any:
    """Return the result within its budget, with a summary and a link, in the form in which it came.

    `validate` checks structured content against the tool's output schema; None if there is none.
    """
    room = tokens - min(MAX_NOTE_TOKENS, tokens // 2)
    structured = _shorten_structured(result, room, validate)
    if structured is None and validate is not None and not result.is_error:
        note = "The result is too large, and its structured content cannot be shortened within the output schema."
        content = [TextContent(text=_note([note, *_describe_parts(result, {})], link))]
        return _rebuild(result, [*content, *_links(result, link)], b"", True, link, version)
    content, previews, next_arguments = _shorten_content(result, room, structured)
    lines = ["The result was shortened.", *_describe_parts(result, previews)]
    note_text = TextContent(text=_note(lines, link, next_arguments))
    return _rebuild(
        result, [*content, note_text, *_links(result, link)], structured or b"", result.is_error, link, version
    )


def _shorten_structured(result: LargeResult, tokens: int, validate: Validate | None) -> bytes | None:
    """Return valid structured content within the budget; empty if there is none, None if that is impossible."""
    data = result.structured
    if not data or (result.is_error and estimate_tokens(data, tokens) > tokens):
        return b""
    if estimate_tokens(data, tokens) <= tokens:
        return data
    if len(data) > MAX_JSON_BYTES:
        return None
    document = JsonDocument(data)
    for options in _ATTEMPTS:
        shorter = shorten_json(document, tokens, options)
        if shorter is not None and (validate is None or validate(shorter, options)):
            return shorter
    return None


def _shorten_content(
    result: LargeResult, tokens: int, structured: bytes | None
) -> tuple[list[Any], dict[int, str], str]:
    """Return the blocks within the budget, what is shown of each block, and the arguments that read the rest of the
    first.
    """
    content: list[Any] = []
    previews: dict[int, str] = {}
    next_arguments = ""
    left = float(tokens)
    is_cut = False
    for at, block in enumerate(result.blocks):
        cost = block.estimate(left) if block.kind in _BINARY else _text_cost(block, left)
        if cost <= left:
            content.append(block.original)
            left -= cost
            previews[at] = "shown"
            continue
        if is_cut or block.kind in _BINARY or left < 50:
            previews[at] = "not shown"
            continue
        is_cut = True
        text, previews[at], arguments = _shorten_text(block.text, left, structured, result.structured)
        next_arguments = arguments if at == 0 else ""
        if text:
            content.append(TextContent(text=text))
            left -= estimate_tokens(text)
    return content, previews, next_arguments


def _shorten_text(text: str, tokens: float, structured: bytes | None, full_text: bytes) -> tuple[str, str, str]:
    """Return a shorter text, a description of it, and the arguments of `read_result` for the rest."""
    # Cheaper than encoding: longer texts are never shortened as JSON.
    if len(text) <= MAX_JSON_BYTES and text.lstrip()[:1] in ("{", "["):
        if structured and _same_value(text, full_text):
            shorter = _unwrap(structured) if _unwrap(full_text) == text.encode(errors="replace") else structured
            if estimate_tokens(shorter, tokens) <= tokens:
                return shorter.decode(), *_describe_shorter(shorter)
        encoded = text.encode(errors="replace")
        if is_json(encoded):
            document = JsonDocument(encoded)
            for options in (ShortenOptions(), ShortenOptions(members=True)):
                short = shorten_json(document, tokens, options)
                if short is not None:
                    return short.decode(), *_describe_shorter(short)
    end = text_end(text, tokens)
    return text[:end], f"characters 0 to {end:,} shown", f"offset={end}"


def _describe_shorter(data: bytes) -> tuple[str, str]:
    """Return a description of shorter JSON, and the arguments of `read_result` for the rest."""
    span = whole_span(data)
    if kind_of(data, span) == "array":
        count = sum(1 for _ in iter_elements(data, span))
        return f"the first {count:,} elements shown", f'path="$", offset={count}'
    largest = max(iter_elements(data, span), key=lambda item: item.end - item.start, default=None)
    if largest is None or largest.key is None:
        return "not shown", 'path="$"'
    return "shortened", f"path={one_line('/' + largest.key.replace('~', '~0').replace('/', '~1'), 60)!r}"


def _describe_parts(result: LargeResult, previews: dict[int, str]) -> list[str]:
    """Describe the parts of a result for the model."""
    lines: list[str] = []
    blocks = result.blocks
    for at, block in enumerate(blocks):
        if previews.get(at) == "shown":
            continue
        if len(lines) == MAX_LISTED_PARTS:
            hidden = sum(1 for later in range(at, len(blocks)) if previews.get(later) != "shown")
            lines.append(f"… and {hidden:,} more parts")
            break
        state = f"; {previews[at]}" if at in previews else ""
        lines.append(f"Part {at}: {_describe_block(block)}{state}.")
    if result.structured and not _is_duplicate(result):
        lines.append(f"Part {len(blocks)}: structured content, {len(result.structured):,} bytes.")
    return lines


def _describe_block(block: Block) -> str:
    if block.kind in _BINARY:
        return f"{one_line(block.mime_type, 60)}, {len(block.base64) * 3 // 4:,} bytes"
    text = block.text
    encoded = text.encode(errors="replace") if len(text) <= MAX_JSON_BYTES and text.lstrip()[:1] in ("{", "[") else b""
    if encoded and is_json(encoded):
        return f"JSON, {len(text):,} characters, {describe(encoded, whole_span(encoded))}"
    headings = _HEADING.findall(text[:MAX_HEADING_CHARS])
    about = ""
    if headings:
        names = "; ".join(one_line(heading.lstrip("# "), 60) for heading in headings[:MAX_HEADINGS])
        about = f", headings: {names}{'; …' if len(headings) > MAX_HEADINGS else ''}"
    return f"text, {len(text):,} characters in {text.count(chr(10)) + 1:,} lines{about}"


def _note(lines: list[str], link: Link | None, next_arguments: str = "") -> str:
    if link is None:
        return "\n".join([*lines, "The complete result could not be stored. Ask for less, with other arguments."])
    more = f'read_result(id="{link.id}"{", " if next_arguments else ""}{next_arguments})'
    how = (
        f"Read more with the tool read_result, such as {more}. With path it selects from JSON, with pattern it "
        f'searches. Other parts have ids such as "{link.id}/1". The complete result is {link.uri}, until {link.until}.'
    )
    # The summary is bounded, but keys and headings come from outside and may be expensive.
    room = max(MAX_NOTE_TOKENS - estimate_tokens(how) - 40, 0)
    remaining: list[str] = []
    for line in lines:
        room -= estimate_tokens(line)
        if room < 0 and remaining:
            break
        remaining.append(line)
    return "\n".join([*remaining, how])


def _links(result: LargeResult, link: Link | None) -> list[Any]:
    if link is None:
        return []
    first = result.blocks[0] if result.blocks else None
    is_single = len(result.blocks) == 1 and first is not None
    mime_type = first.mime_type if is_single and first is not None else None
    return [ResourceLink(uri=link.uri, name="complete-result", title="Complete result", mime_type=mime_type or None)]


def _rebuild(
    result: LargeResult,
    content: list[Any],
    structured: bytes,
    is_error: bool,
    link: Link | None,
    version: ProtocolVersion,
) -> Any:
    """Return the result in its original form with other contents."""
    about = {"uri": link.uri, "expires": link.until} if link is not None else {}
    source = result.source
    if isinstance(source, CallToolResult):
        return replace(
            source,
            content=content,
            structured_content=Raw(structured) if structured else UNSET,
            is_error=is_error,
            meta=_with_meta(source.meta, about),
        )
    translated = [
        translation.translate_content_block(item, version) if version < FIRST_MODERN_VERSION else item
        for item in content
    ]
    members: dict[str, Any] = {**source, "content": translated, "isError": is_error}
    members.pop("structuredContent", None)
    if structured:
        members["structuredContent"] = Raw(structured)
    try:
        meta = msgspec.json.decode(source["_meta"]) if "_meta" in source else {}
    except (msgspec.DecodeError, RecursionError):
        meta = {}
    members["_meta"] = {**(meta if isinstance(meta, dict) else {}), TRUNCATION_META_KEY: about}
    return Raw(jsonrpc.encode(members))


def _with_meta(meta: Any, about: dict[str, str]) -> dict[str, Any]:
    members = msgspec.json.decode(meta) if isinstance(meta, Raw) else meta
    return {**(members if isinstance(members, dict) else {}), TRUNCATION_META_KEY: about}
