"""Memories outside of the database: as lines of JSON, as Markdown, and each as a file of its own.

What comes back in is checked like anything else from outside.
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
from portico_services.memory.store.capture import author_kind, new_id
from portico_services.memory.store.namespaces import STATUSES, checked_domain, checked_namespace
from portico_services.memory.store.ownership import home_of
from portico_services.memory.store.records import Record

Format = Literal["jsonl", "markdown"]

_ID = re.compile(r"[0-9a-f]{8,64}")
# The line before a memory in Markdown; the same at the beginning of a line of content has a backslash before it.
_MARK = re.compile(r"<!-- memory (\{.*\}) -->")
_MARKED = re.compile(r"(?m)^(\\*)(<!-- memory )")
_EXTRA = re.compile(r"(?m)^\\(\\*)(<!-- memory )")


class Portable(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A memory as it travels: moments are written out, and what is usual is left out."""

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


def packed(record: Record) -> Portable:
    said: dict[str, Any] = msgspec.structs.asdict(record)
    for name in ("at", "created_at", "updated_at", "expires_at", "deleted_at"):
        said[name] = None if said[name] is None else timestamps.written(said[name])
    # Whose memory it is in the user domain is not part of it: the importing caller becomes its owner.
    said["project"] = record.project if record.domain == "project" else None
    return Portable(**{name: said[name] for name in Portable.__struct_fields__})


def unpacked(given: Portable, now: int, *, project: str | None, owner: str = "") -> Record:
    """Raises InvalidInput for what cannot be a memory."""
    content = validation.content(given.content)
    domain = checked_domain(given.domain)
    if given.status not in STATUSES or not 1 <= given.version < 1_000_000_000:
        raise InvalidInput(f"{given.status[:40]!r} is no status, or {given.version} no version.")
    created = _moment(given.created_at, now, now)
    deleted = _moment(given.deleted_at, now, now) if given.status == "deleted" else None
    return Record(
        id=given.id if _ID.fullmatch(given.id) else new_id(),
        domain=domain,
        namespace=checked_namespace(given.namespace),
        content=content,
        tags=validation.tags(given.tags),
        **validation.labels(given),
        author_kind=author_kind(given.author),
        place=given.place if given.place is not None and 0 <= given.place < 2**63 else None,
        project=home_of(domain, (validation.project(given.project) or project) if domain == "project" else None, owner),
        status=given.status,
        version=given.version,
        at=_moment(given.at, created, now),
        created_at=created,
        updated_at=_moment(given.updated_at, created, now),
        expires_at=None if given.expires_at is None else validation.moment(given.expires_at),
        deleted_at=deleted,
        digest=records.digest(content),
    )


def _moment(text: str | None, otherwise: int, now: int) -> int:
    return otherwise if text is None else validation.past(text, now)


# Many in one text


def dumped(found: Iterable[Record], format: Format) -> str:
    if format == "jsonl":
        return "".join(msgspec.json.encode(packed(one)).decode() + "\n" for one in found)
    return "".join(_section(packed(one)) for one in found)


def loaded(text: str, format: Format) -> Iterator[Portable | str]:
    """Each memory, or what is wrong with it."""
    if format == "jsonl":
        for number, line in enumerate(text.split("\n"), 1):
            if line.strip():
                yield _decoded(line, f"line {number}")
        return
    yield from _sections(text)


def _section(one: Portable) -> str:
    head = msgspec.json.encode(msgspec.structs.replace(one, content="")).decode()
    # `--` ends a comment.
    head = head.replace("--", "-\\u002d")
    return f"<!-- memory {head} -->\n{escaped(one.content)}\n\n"


def _sections(text: str) -> Iterator[Portable | str]:
    head: Portable | str | None = None
    lines: list[str] = []
    # Not `splitlines`: a content may hold other characters that it takes for the end of a line.
    for line in [*text.removesuffix("\n").split("\n"), "<!-- memory {} -->"]:
        found = _MARK.fullmatch(line)
        if found is None:
            lines.append(line)
            continue
        if isinstance(head, Portable):
            content = "\n".join(lines)
            yield msgspec.structs.replace(head, content=unescaped(content.removesuffix("\n")))
        elif head is not None:
            yield head
        head, lines = _decoded(found[1], "a comment"), []


def _decoded(text: str, where: str) -> Portable | str:
    try:
        return decode_bounded(text, type=Portable)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as failure:
        return f"{where}: {failure}"


# Each in a file


def page(record: Record) -> str:
    """Readable, and the same for the same memory: a change is a small difference between two files."""
    said: dict[str, Any] = msgspec.to_builtins(packed(record))
    content = said.pop("content")
    head = "".join(f"{name}: {msgspec.json.encode(value).decode()}\n" for name, value in said.items())
    return f"---\n{head}---\n{content}\n"


def from_page(text: str) -> Portable:
    """Raises InvalidInput for what is no such file."""
    head, mark, content = text.removeprefix("---\n").partition("\n---\n")
    said: dict[str, Any] = {"content": content.removesuffix("\n")}
    try:
        for line in head.split("\n"):
            name, _, value = line.partition(": ")
            said[name] = decode_bounded(value)
        if not mark or not text.startswith("---\n"):
            raise InvalidInput("There is no head between two lines of ---.")
        return msgspec.convert(said, Portable)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as failure:
        raise InvalidInput(f"This is no memory: {failure}") from None


def escaped(content: str) -> str:
    return _MARKED.sub(r"\\\1\2", content)


def unescaped(content: str) -> str:
    return _EXTRA.sub(r"\1\2", content)
