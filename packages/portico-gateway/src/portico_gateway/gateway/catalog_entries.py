"""What upstreams list, as the bytes they gave: only what is renamed or of another revision is written anew."""

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
from portico.protocol.methods import METHODS
from portico.protocol.prompts import ListPromptsResult, Prompt
from portico.protocol.resources import ListResourcesResult, ListResourceTemplatesResult, Resource, ResourceTemplate
from portico.protocol.tools import CallToolResult, ListToolsResult, ReceivedToolResult, Tool, ToolAnnotations
from portico.protocol.versions import MODERN, Revision

# Whatever an upstream promises.
LONGEST_HINT_SECONDS = 24 * 3600.0

log = logging.getLogger("portico.gateway")

Members = dict[str, Raw]
members = msgspec.json.Decoder(Members)
_text = msgspec.json.Decoder(str)


class EntryList(Struct, frozen=True):
    """One of the four lists: where its entries stand, by what they are known, and how they are read."""

    member: str
    # The member of the same in our own result.
    field: str
    key: str
    entry: type[Struct]
    result: Callable[..., CacheableResult]
    capability: str


LISTS = {
    "tools/list": EntryList("tools", "tools", "name", Tool, ListToolsResult, "tools"),
    "prompts/list": EntryList("prompts", "prompts", "name", Prompt, ListPromptsResult, "prompts"),
    "resources/list": EntryList("resources", "resources", "uri", Resource, ListResourcesResult, "resources"),
    "resources/templates/list": EntryList(
        "resourceTemplates",
        "resource_templates",
        "uriTemplate",
        ResourceTemplate,
        ListResourceTemplatesResult,
        "resources",
    ),
}


class ListedEntry(Struct, frozen=True):
    """One tool, prompt, resource or template of an upstream."""

    key: str
    members: Members
    # The revision whose words it is in.
    revision: Revision

    def digest(self) -> bytes:
        return sha256(jsonrpc.encode(self.members)).digest()


class ListHints(Struct, frozen=True):
    """What an upstream says of a list: for how many seconds it is good, and whether it is the same for all users."""

    seconds: float
    public: bool

    def with_page(self, other: ListHints) -> ListHints:
        """Of both together."""
        return ListHints(min(self.seconds, other.seconds), self.public and other.public)


def read_hints(said: Raw) -> ListHints:
    """One that says nothing is good for no time, and private."""
    page = members.decode(said)
    ttl = msgspec.json.decode(page.get("ttlMs", b"0"))
    public = bytes(page.get("cacheScope", b"")) == b'"public"'
    good = isinstance(ttl, int | float) and not isinstance(ttl, bool) and ttl > 0
    return ListHints(min(ttl / 1000, LONGEST_HINT_SECONDS) if good else 0.0, public)


def read_page(method: str, said: Raw, revision: Revision, alias: str = "") -> tuple[list[ListedEntry], str | None]:
    """Return the valid entries of a page, and the cursor of the next page. Log the entries that are left out."""
    kind = LISTS[method]
    page = members.decode(said)
    found = []
    for one in msgspec.json.decode(page.get(kind.member, b"[]"), type=list[Raw]):
        try:
            decode_bounded(one, type=kind.entry)
            inside = members.decode(one)
            found.append(ListedEntry(_text.decode(inside[kind.key]), inside, revision))
        except (msgspec.DecodeError, RecursionError) as failure:
            log.warning("%s: left an invalid entry out of %s: %s", alias, method, failure)
    cursor = msgspec.json.decode(page.get("nextCursor", b"null"))
    return found, cursor if isinstance(cursor, str) else None


class _Execution(Struct, rename="camel"):
    task_support: str = ""


def task_support(entry: ListedEntry) -> str:
    """Whether a tool of 2025-11-25 is called as a task: "optional" or "required"; or nothing, if it is not."""
    if "execution" not in entry.members or entry.revision >= MODERN:
        return ""
    try:
        return msgspec.json.decode(entry.members["execution"], type=_Execution).task_support
    except msgspec.DecodeError:
        return ""


def hints(entry: ListedEntry) -> ToolAnnotations:
    """What a tool says of itself."""
    said = msgspec.json.decode(entry.members.get("annotations", b"null"), type=ToolAnnotations | None)
    return said or ToolAnnotations()


def own_entry(method: str, definition: Struct) -> ListedEntry:
    """The same for what this server has itself."""
    inside = members.decode(jsonrpc.encode(definition))
    return ListedEntry(_text.decode(inside[LISTS[method].key]), inside, MODERN)


def written(method: str, entry: ListedEntry, changed: Mapping[str, Any], revision: Revision) -> Raw:
    """An entry with these members in place of its own, in the words of a revision."""
    kind = LISTS[method]
    inside = {**entry.members, **{name: Raw(jsonrpc.encode(value)) for name, value in changed.items()}}
    # What this server has itself says of each tool whether it can be a task, which only an older revision is told.
    if entry.revision != revision or (revision >= MODERN and "execution" in inside):
        typed = msgspec.json.decode(jsonrpc.encode(inside), type=kind.entry)
        page = kind.result(**{kind.field: [typed]})
        said = translation.modern(page) if revision >= MODERN else translation.result(page, revision)
        inside = _merged(inside, typed, getattr(said, kind.field)[0])
    return Raw(jsonrpc.encode(inside))


def _merged(raw: Members, typed: Struct, said: Struct) -> Members:
    """What a translation has changed, over what was there: members that only the upstream knows stay as they are."""
    before, after = members.decode(jsonrpc.encode(typed)), members.decode(jsonrpc.encode(said))
    gone = before.keys() - after.keys()
    changed = {name: value for name, value in after.items() if bytes(before.get(name, b"")) != bytes(value)}
    return {**{name: value for name, value in raw.items() if name not in gone}, **changed}


def list_page(method: str, entries: list[Raw], cursor: Any, hints: Mapping[str, Any], revision: Revision) -> Raw:
    """A page of a list, encoded."""
    kind = LISTS[method]
    if revision >= MODERN:
        return Raw(jsonrpc.encode(kind.result(**{kind.field: entries}, next_cursor=cursor, **hints)))
    return Raw(strip_result_type(jsonrpc.encode(kind.result(**{kind.field: entries}, next_cursor=cursor))))


_COMPLETE = b'"resultType":"complete"'


def result_at(method: str, said: Raw, given: Revision, wanted: Revision) -> Raw:
    """An upstream's result in the words of the client's revision. Nothing changes where both speak the same."""
    if given == wanted:
        return said
    inside = members.decode(said)
    if wanted >= MODERN:
        if "resultType" in inside:
            return said
        body = bytes(said).rstrip()[:-1]
        return Raw(body + (b"," if inside else b"") + _COMPLETE + _hints(method) + b"}")
    inside.pop("resultType", None)
    typed = _typed(method, inside)
    if typed is not None:
        inside = _merged(inside, typed, translation.result(typed, wanted))
        for name in ("ttlMs", "cacheScope"):
            inside.pop(name, None)
    return Raw(jsonrpc.encode(inside))


def _hints(method: str) -> bytes:
    """2026-07-28 has what can be cached say for how long; an older server has said nothing."""
    return b',"ttlMs":0,"cacheScope":"private"' if method == "resources/read" else b""


def _typed(method: str, inside: Members) -> Any:
    try:
        found = msgspec.json.decode(jsonrpc.encode(inside), type=METHODS[method].result)
    except (msgspec.DecodeError, RecursionError, KeyError):
        return None
    if isinstance(found, ReceivedToolResult):
        structured = inside.get("structuredContent", UNSET)
        return CallToolResult(content=found.content, structured_content=structured, is_error=found.is_error)
    return found
