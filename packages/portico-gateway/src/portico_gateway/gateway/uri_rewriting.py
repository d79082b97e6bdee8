"""Addresses inside of what upstreams give: links, embedded resources, contents, and the pages of tools (`_meta.ui`).

They are looked for in the bytes first, and what has none that is called otherwise here stays as it is, to the byte.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from msgspec import Raw

from portico.protocol import jsonrpc

Outward = Callable[[str], str]
"""The address under which an address of an upstream is known here."""

_members = msgspec.json.Decoder(dict[str, Raw])
_items = msgspec.json.Decoder(list[Raw])
# Of MCP Apps: today's place of a page's address, and that of its first drafts.
_PAGE, _OLD_PAGE = "resourceUri", "ui/resourceUri"


def link_result(method: str, said: Raw, outward: Outward) -> Raw:
    """A result with the addresses in it as they are known here."""
    change = _RESULTS.get(method)
    try:
        changed = change(said, outward) if change is not None else None
    except (msgspec.DecodeError, RecursionError):
        return said
    return said if changed is None else changed


def link_inside(meta: Raw, outward: Outward) -> Raw | None:
    """A `_meta` with the address of a page as it is known here; None if it is the same."""
    if b"esourceUri" not in bytes(meta):
        return None
    try:
        return _meta(meta, outward)
    except (msgspec.DecodeError, RecursionError):
        return None


# Each of these gives what it has changed, or None where nothing is to be changed.

_Change = Callable[[Raw, Outward], Raw | None]


def _uri(said: Raw, outward: Outward) -> Raw | None:
    uri = msgspec.json.decode(said)
    if not isinstance(uri, str):
        return None
    known = outward(uri)
    return None if known == uri else Raw(jsonrpc.encode(known))


def _object(changes: dict[str, _Change]) -> _Change:
    def change(said: Raw, outward: Outward) -> Raw | None:
        if bytes(said)[:1] != b"{":
            return None
        inside = _members.decode(said)
        tried = {name: one(inside[name], outward) for name, one in changes.items() if name in inside}
        changed = {name: found for name, found in tried.items() if found is not None}
        return Raw(jsonrpc.encode({**inside, **changed})) if changed else None

    return change


def _each(one: _Change) -> _Change:
    """Of every item of an array; what is no array is taken for the only one."""

    def change(said: Raw, outward: Outward) -> Raw | None:
        if bytes(said)[:1] != b"[":
            return one(said, outward)
        items = _items.decode(said)
        changed = [one(item, outward) for item in items]
        if all(found is None for found in changed):
            return None
        return Raw(
            jsonrpc.encode([item if found is None else found for item, found in zip(items, changed, strict=True)])
        )

    return change


_meta = _object({"ui": _object({_PAGE: _uri}), _OLD_PAGE: _uri})
_located = _object({"uri": _uri, "_meta": _meta})
# A link has its address itself, an embedded resource that of what it holds.
_block = _object({"uri": _uri, "resource": _located, "_meta": _meta})
_RESULTS: dict[str, _Change] = {
    "tools/call": _object({"content": _each(_block), "_meta": _meta}),
    "prompts/get": _object({"messages": _each(_object({"content": _each(_block)})), "_meta": _meta}),
    "resources/read": _object({"contents": _each(_located), "_meta": _meta}),
}
