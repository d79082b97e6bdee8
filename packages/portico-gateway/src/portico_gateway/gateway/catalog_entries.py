"""Catalog entries as the upstream sent them. Only renamed members and other protocol versions are encoded again."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct

from portico.protocol import jsonrpc, translation
from portico.protocol.content import CacheableResult, strip_result_type
from portico.protocol.json_depth import decode_bounded
from portico.protocol.jsonrpc import object_decoder
from portico.protocol.methods import METHODS
from portico.protocol.prompts import ListPromptsResult, Prompt
from portico.protocol.resources import ListResourcesResult, ListResourceTemplatesResult, Resource, ResourceTemplate
from portico.protocol.tools import CallToolResult, ListToolsResult, ReceivedToolResult, Tool, ToolAnnotations
from portico.protocol.versions import FIRST_MODERN_VERSION, ProtocolVersion

# Upper limit for the ttlMs of an upstream.
MAX_CACHE_TTL_SECONDS = 24 * 3600.0

log = logging.getLogger("portico.gateway")

RawObject = dict[str, Raw]
_text = msgspec.json.Decoder(str)


class ListMethod(Struct, frozen=True):
    """One of the four list methods: the member with its entries, their key, and their type."""

    member: str
    # Name of the member in our own result type.
    field: str
    key: str
    entry: type[Struct]
    result: Callable[..., CacheableResult]
    capability: str

    @property
    def names(self) -> tuple[str, ...]:
        """Return the member names of an entry of this list."""
        return tuple(field.encode_name for field in msgspec.structs.fields(self.entry))


LIST_METHODS = {
    "tools/list": ListMethod("tools", "tools", "name", Tool, ListToolsResult, "tools"),
    "prompts/list": ListMethod("prompts", "prompts", "name", Prompt, ListPromptsResult, "prompts"),
    "resources/list": ListMethod("resources", "resources", "uri", Resource, ListResourcesResult, "resources"),
    "resources/templates/list": ListMethod(
        "resourceTemplates",
        "resource_templates",
        "uriTemplate",
        ResourceTemplate,
        ListResourceTemplatesResult,
        "resources",
    ),
}


class CatalogEntry(Struct, frozen=True):
    """A tool, prompt, resource or resource template of an upstream."""

    key: str
    members: RawObject
    # Protocol version of the members.
    revision: ProtocolVersion

    # The encoded members in their original order: an upstream that reorders them has changed its list, which is
    # harmless to announce.
    def digest(self) -> bytes:
        return sha256(jsonrpc.encode(self.members)).digest()


class CacheHints(Struct, frozen=True):
    """Cache hints of a list: its lifetime, and whether it is the same for all users."""

    seconds: float
    public: bool

    def combine(self, other: CacheHints) -> CacheHints:
        """Return hints that hold for both lists."""
        return CacheHints(min(self.seconds, other.seconds), self.public and other.public)


def parse_cache_hints(result: Raw) -> CacheHints:
    """Parse the cache hints of a result. Without hints it is not cacheable and private."""
    page = object_decoder.decode(result)
    ttl = msgspec.json.decode(page.get("ttlMs", b"0"))
    public = bytes(page.get("cacheScope", b"")) == b'"public"'
    # `true` is an integer in Python; a lifetime must be a number.
    good = isinstance(ttl, int | float) and not isinstance(ttl, bool) and ttl > 0
    return CacheHints(min(ttl / 1000, MAX_CACHE_TTL_SECONDS) if good else 0.0, public)


def parse_page(
    method: str, result: Raw, protocol_version: ProtocolVersion, alias: str = ""
) -> tuple[list[CatalogEntry], str | None]:
    """Return the valid entries of a page and the cursor of the next page. Log invalid entries and skip them."""
    kind = LIST_METHODS[method]
    page = object_decoder.decode(result)
    results = []
    for item in msgspec.json.decode(page.get(kind.member, b"[]"), type=list[Raw]):
        try:
            # Bounded depth: a schema nested thousands of levels would exhaust the stack of this process and of every
            # client.
            decode_bounded(item, type=kind.entry)
            inside = object_decoder.decode(item)
            # A case-insensitive client would read another name or description than the one that was filtered.
            if jsonrpc.has_other_case(inside, kind.names):
                raise msgspec.ValidationError("a member name differs from a known one in case only")
            results.append(CatalogEntry(_text.decode(inside[kind.key]), inside, protocol_version))
        except (msgspec.DecodeError, RecursionError) as failure:
            log.warning("%s: skipped an invalid entry of %s: %s", alias, method, failure)
    cursor = msgspec.json.decode(page.get("nextCursor", b"null"))
    return results, cursor if isinstance(cursor, str) else None


class _ToolExecution(Struct, rename="camel"):
    task_support: str = ""


def get_task_support(entry: CatalogEntry) -> str:
    """Return the task support of a 2025-11-25 tool: "optional", "required", or an empty string if it has none."""
    if "execution" not in entry.members or entry.revision >= FIRST_MODERN_VERSION:
        return ""
    try:
        return msgspec.json.decode(entry.members["execution"], type=_ToolExecution).task_support
    except msgspec.DecodeError:
        return ""


def get_annotations(entry: CatalogEntry) -> ToolAnnotations:
    """Return the annotations of a tool."""
    annotations = msgspec.json.decode(entry.members.get("annotations", b"null"), type=ToolAnnotations | None)
    return annotations or ToolAnnotations()


def make_local_entry(method: str, definition: Struct) -> CatalogEntry:
    """Return an entry for a component of this server."""
    inside = object_decoder.decode(jsonrpc.encode(definition))
    return CatalogEntry(_text.decode(inside[LIST_METHODS[method].key]), inside, FIRST_MODERN_VERSION)


def encode_entry(
    method: str, entry: CatalogEntry, overrides: Mapping[str, Any], protocol_version: ProtocolVersion
) -> Raw:
    """Encode an entry for a protocol version, with `overrides` replacing its members."""
    kind = LIST_METHODS[method]
    inside = {**entry.members, **{name: Raw(jsonrpc.encode(value)) for name, value in overrides.items()}}
    # Equal versions are forwarded as they came, with members that this version of Portico does not know.
    # Local tools declare their task support, which only 2025-11-25 has in the list.
    if entry.revision != protocol_version or (protocol_version >= FIRST_MODERN_VERSION and "execution" in inside):
        typed = msgspec.json.decode(jsonrpc.encode(inside), type=kind.entry)
        page = kind.result(**{kind.field: [typed]})
        members = (
            translation.modernize_list(page)
            if protocol_version >= FIRST_MODERN_VERSION
            else translation.translate_result(page, protocol_version)
        )
        inside = _merge_translated(inside, typed, getattr(members, kind.field)[0])
    return Raw(jsonrpc.encode(inside))


def _merge_translated(raw: RawObject, typed: Struct, translated: Struct) -> RawObject:
    """Apply the changes of a translation to the raw object. Members unknown to us are preserved."""
    before, after = object_decoder.decode(jsonrpc.encode(typed)), object_decoder.decode(jsonrpc.encode(translated))
    # Only the difference is applied to the raw object, so unknown members and the precision of numbers survive the
    # translation.
    removed = before.keys() - after.keys()
    changed = {name: value for name, value in after.items() if bytes(before.get(name, b"")) != bytes(value)}
    return {**{name: value for name, value in raw.items() if name not in removed}, **changed}


def encode_page(
    method: str, entries: list[Raw], cursor: Any, hints: Mapping[str, Any], revision: ProtocolVersion
) -> Raw:
    """Encode a page of a list."""
    kind = LIST_METHODS[method]
    if revision >= FIRST_MODERN_VERSION:
        return Raw(jsonrpc.encode(kind.result(**{kind.field: entries}, next_cursor=cursor, **hints)))
    return Raw(strip_result_type(jsonrpc.encode(kind.result(**{kind.field: entries}, next_cursor=cursor))))


_COMPLETE = b'"resultType":"complete"'


def translate_result(method: str, result: Raw, source_version: ProtocolVersion, target_version: ProtocolVersion) -> Raw:
    """Translate an upstream's result to the client's protocol version. Equal versions return it unchanged."""
    if source_version == target_version:
        return result
    inside = object_decoder.decode(result)
    if target_version >= FIRST_MODERN_VERSION:
        if "resultType" in inside:
            return result
        # Append the member to the encoded object instead of encoding the whole result again.
        # Results can be megabytes long; decoding and encoding them again would cost more than the rest of the call.
        body = bytes(result).rstrip()[:-1]
        return Raw(body + (b"," if inside else b"") + _COMPLETE + _add_cache_hints(method) + b"}")
    inside.pop("resultType", None)
    typed = _decode_typed(method, inside)
    if typed is not None:
        inside = _merge_translated(inside, typed, translation.translate_result(typed, target_version))
        for name in ("ttlMs", "cacheScope"):
            inside.pop(name, None)
    return Raw(jsonrpc.encode(inside))


def _add_cache_hints(method: str) -> bytes:
    """Return the cache hints that 2026-07-28 requires for cacheable results; older servers do not send them."""
    return b',"ttlMs":0,"cacheScope":"private"' if method == "resources/read" else b""


def _decode_typed(method: str, inside: RawObject) -> Any:
    """Decode a result into its type, or return None if it does not fit."""
    try:
        result = msgspec.json.decode(jsonrpc.encode(inside), type=METHODS[method].result)
    except (msgspec.DecodeError, RecursionError, KeyError):
        return None
    if isinstance(result, ReceivedToolResult):
        # Taken from the raw object: decoding and encoding would change numbers such as 1.0 or 1e400.
        structured = inside.get("structuredContent", UNSET)
        return CallToolResult(content=result.content, structured_content=structured, is_error=result.is_error)
    return result
