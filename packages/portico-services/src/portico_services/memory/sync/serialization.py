"""Serialization of memories: JSON Lines, Markdown, and one Markdown file per memory.

Parsed memories are validated like any other input.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, Literal

import msgspec
from msgspec import Struct, field

from portico.extend import decode_bounded
from portico_services import timestamps
from portico_services.memory.errors import InvalidInput
from portico_services.memory.store import records, validation
from portico_services.memory.store.capture import classify_author, new_id
from portico_services.memory.store.namespaces import STATUSES, normalize_domain, validate_namespace
from portico_services.memory.store.ownership import home_of
from portico_services.memory.store.records import MemoryRecord

ExportFormat = Literal["jsonl", "markdown"]

_ID = re.compile(r"[0-9a-f]{8,64}")
# Metadata line of a memory in Markdown. A content line that looks like it is escaped with a backslash.
_METADATA_COMMENT = re.compile(r"<!-- memory (\{.*\}) -->")
_COMMENT_START = re.compile(r"(?m)^(\\*)(<!-- memory )")
_ESCAPED_COMMENT = re.compile(r"(?m)^\\(\\*)(<!-- memory )")


class PortableMemory(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Serialized form of a memory: ISO 8601 timestamps, default values omitted."""

    id: str = ""
    domain: str = "project"
    namespace: str = ""
    content: str = ""
    tags: list[str] = field(default_factory=list)
    source: str | None = None
    author: str | None = None
    thread: str | None = None
    place: int | None = None
    project: str | None = None
    branch: str | None = None
    path: str | None = None
    status: str = "active"
    version: int = 1
    at: str | None = None
    created_at: str | None = None
    updated_at: str | None = None
    expires_at: str | None = None
    deleted_at: str | None = None


def to_portable(record: MemoryRecord) -> PortableMemory:
    """Return the serialized form of a record."""
    fields: dict[str, Any] = msgspec.structs.asdict(record)
    for name in ("at", "created_at", "updated_at", "expires_at", "deleted_at"):
        fields[name] = None if fields[name] is None else timestamps.format_iso(fields[name])
    # The owner in the user domain is not exported: the importing caller becomes the owner.
    fields["project"] = record.project if record.domain == "project" else None
    return PortableMemory(**{name: fields[name] for name in PortableMemory.__struct_fields__})


def from_portable(portable: PortableMemory, now: int, *, project: str | None, owner: str = "") -> MemoryRecord:
    """Validate a parsed memory and return its record. Raises `InvalidInput`."""
    content = validation.validate_content(portable.content)
    domain = normalize_domain(portable.domain)
    if portable.status not in STATUSES or not 1 <= portable.version < 1_000_000_000:
        raise InvalidInput(f"Invalid status {portable.status[:40]!r} or version {portable.version}.")
    created = _parse_timestamp(portable.created_at, now, now)
    deleted = _parse_timestamp(portable.deleted_at, now, now) if portable.status == "deleted" else None
    return MemoryRecord(
        id=portable.id if _ID.fullmatch(portable.id) else new_id(),
        domain=domain,
        namespace=validate_namespace(portable.namespace),
        content=content,
        tags=validation.normalize_tags(portable.tags),
        **validation.validate_labels(portable),
        author_kind=classify_author(portable.author),
        place=portable.place if portable.place is not None and 0 <= portable.place < 2**63 else None,
        project=home_of(
            domain, (validation.validate_project(portable.project) or project) if domain == "project" else None, owner
        ),
        status=portable.status,
        version=portable.version,
        at=_parse_timestamp(portable.at, created, now),
        created_at=created,
        updated_at=_parse_timestamp(portable.updated_at, created, now),
        expires_at=None if portable.expires_at is None else validation.parse_timestamp(portable.expires_at),
        deleted_at=deleted,
        digest=records.content_digest(content),
    )


def _parse_timestamp(text: str | None, otherwise: int, now: int) -> int:
    return otherwise if text is None else validation.parse_past_timestamp(text, now)


# Many memories in one text.


def dump(memories: Iterable[MemoryRecord], format: ExportFormat) -> str:
    """Return memories in an export format."""
    if format == "jsonl":
        return "".join(msgspec.json.encode(to_portable(item)).decode() + "\n" for item in memories)
    return "".join(_to_section(to_portable(item)) for item in memories)


def load(text: str, format: ExportFormat) -> Iterator[PortableMemory | str]:
    """Yield each memory, or an error message if it cannot be parsed."""
    if format == "jsonl":
        for number, line in enumerate(text.split("\n"), 1):
            if line.strip():
                yield _decode_json(line, f"line {number}")
        return
    yield from _parse_sections(text)


def _to_section(item: PortableMemory) -> str:
    head = msgspec.json.encode(msgspec.structs.replace(item, content="")).decode()
    # `--` would end the HTML comment.
    head = head.replace("--", "-\\u002d")
    return f"<!-- memory {head} -->\n{escape_comments(item.content)}\n\n"


def _parse_sections(text: str) -> Iterator[PortableMemory | str]:
    head: PortableMemory | str | None = None
    lines: list[str] = []
    # Not `splitlines`, which also splits at other characters that a content may contain.
    for line in [*text.removesuffix("\n").split("\n"), "<!-- memory {} -->"]:
        match = _METADATA_COMMENT.fullmatch(line)
        if match is None:
            lines.append(line)
            continue
        if isinstance(head, PortableMemory):
            content = "\n".join(lines)
            yield msgspec.structs.replace(head, content=unescape_comments(content.removesuffix("\n")))
        elif head is not None:
            yield head
        head, lines = _decode_json(match[1], "a comment"), []


def _decode_json(text: str, where: str) -> PortableMemory | str:
    try:
        return decode_bounded(text, type=PortableMemory)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as failure:
        return f"{where}: {failure}"


# One file per memory.


def to_markdown_file(record: MemoryRecord) -> str:
    """Return a readable and deterministic file, so that a change results in a small diff."""
    fields: dict[str, Any] = msgspec.to_builtins(to_portable(record))
    content = fields.pop("content")
    head = "".join(f"{name}: {msgspec.json.encode(value).decode()}\n" for name, value in fields.items())
    return f"---\n{head}---\n{content}\n"


def from_markdown_file(text: str) -> PortableMemory:
    """Parse the file of a memory. Raises `InvalidInput`."""
    head, mark, content = text.removeprefix("---\n").partition("\n---\n")
    fields: dict[str, Any] = {"content": content.removesuffix("\n")}
    try:
        for line in head.split("\n"):
            name, _, value = line.partition(": ")
            fields[name] = decode_bounded(value)
        if not mark or not text.startswith("---\n"):
            raise InvalidInput("Expected a header between two lines of ---.")
        return msgspec.convert(fields, PortableMemory)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as failure:
        raise InvalidInput(f"Invalid memory: {failure}") from None


def escape_comments(content: str) -> str:
    return _COMMENT_START.sub(r"\\\1\2", content)


def unescape_comments(content: str) -> str:
    return _ESCAPED_COMMENT.sub(r"\1\2", content)
