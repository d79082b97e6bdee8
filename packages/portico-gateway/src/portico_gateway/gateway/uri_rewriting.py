"""Rewriting of URIs in results: resource links, embedded resources, contents, and app pages (`_meta.ui`).

The bytes are searched first. A result without URIs to rewrite is returned unchanged, byte for byte.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from msgspec import Raw

from portico.protocol import jsonrpc
from portico.protocol.jsonrpc import array_decoder, object_decoder

UriRewriter = Callable[[str], str]
"Maps a URI of an upstream to its exposed URI."

# MCP Apps: the current member for a page's URI, and the one of the first drafts.
_APP_URI_KEY, _LEGACY_APP_URI_KEY = "resourceUri", "ui/resourceUri"


def rewrite_result_uris(method: str, result: Raw, expose_uri: UriRewriter) -> Raw:
    """Return a result with exposed URIs."""
    change = _RESULTS.get(method)
    try:
        changed = change(result, expose_uri) if change is not None else None
    except (msgspec.DecodeError, RecursionError):
        return result
    return result if changed is None else changed


def rewrite_meta_uris(meta: Raw, outward: UriRewriter) -> Raw | None:
    """Return `_meta` with the exposed URI of its page, or None if nothing changes."""
    if b"esourceUri" not in bytes(meta):
        return None
    try:
        return _meta(meta, outward)
    except (msgspec.DecodeError, RecursionError):
        return None


# Each of these functions returns the rewritten value, or None if nothing changes.

_Rewrite = Callable[[Raw, UriRewriter], Raw | None]


def _uri(value: Raw, outward: UriRewriter) -> Raw | None:
    uri = msgspec.json.decode(value)
    if not isinstance(uri, str):
        return None
    rewritten = outward(uri)
    return None if rewritten == uri else Raw(jsonrpc.encode(rewritten))


def _object(changes: dict[str, _Rewrite]) -> _Rewrite:
    def change(raw: Raw, outward: UriRewriter) -> Raw | None:
        if bytes(raw)[:1] != b"{":
            return None
        inside = object_decoder.decode(raw)
        tried = {name: rewrite(inside[name], outward) for name, rewrite in changes.items() if name in inside}
        changed = {name: value for name, value in tried.items() if value is not None}
        return Raw(jsonrpc.encode({**inside, **changed})) if changed else None

    return change


def _for_each_item(value: _Rewrite) -> _Rewrite:
    """Return a rewriter for every item of an array. A value that is not an array is treated as a single item."""

    def change(raw: Raw, outward: UriRewriter) -> Raw | None:
        if bytes(raw)[:1] != b"[":
            return value(raw, outward)
        items = array_decoder.decode(raw)
        changed = [value(item, outward) for item in items]
        if all(rewritten is None for rewritten in changed):
            return None
        return Raw(
            jsonrpc.encode(
                [item if rewritten is None else rewritten for item, rewritten in zip(items, changed, strict=True)]
            )
        )

    return change


_meta = _object({"ui": _object({_APP_URI_KEY: _uri}), _LEGACY_APP_URI_KEY: _uri})
_located = _object({"uri": _uri, "_meta": _meta})
# A resource link has a URI itself; an embedded resource has it in `resource`.
_block = _object({"uri": _uri, "resource": _located, "_meta": _meta})
_RESULTS: dict[str, _Rewrite] = {
    "tools/call": _object({"content": _for_each_item(_block), "_meta": _meta}),
    "prompts/get": _object({"messages": _for_each_item(_object({"content": _for_each_item(_block)})), "_meta": _meta}),
    "resources/read": _object({"contents": _for_each_item(_located), "_meta": _meta}),
}
