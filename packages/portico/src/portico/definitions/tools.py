"""A tool as a server lists it, read from a list that may be hostile."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct, field

from portico.jsonschema import Schema
from portico.jsonschema.comparison import UNREADABLE
from portico.jsonschema.cost import LONGEST_SCHEMA

# Honest schemas have a few kilobytes, and a dozen levels.
DEEPEST_SCHEMA = 128

HINTS = ("readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint")
# The meaning of a hint that is not given (server/tools, ToolAnnotations).
ASSUMED = {"readOnlyHint": False, "destructiveHint": True, "idempotentHint": False, "openWorldHint": True}


class ListedTool(Struct, frozen=True, kw_only=True):
    """One entry of `tools/list`."""

    name: str
    title: str = ""
    description: str = ""
    input_schema: Schema = field(default_factory=dict)
    output_schema: Schema | None = None
    annotations: dict[str, Any] = field(default_factory=dict)
    # Whether it may be called as a task: "forbidden" or nothing, "optional", "required".
    task: str = ""
    # The members that the others do not cover, such as icons, `_meta` and those that are not in the schema: a host may
    # show them, and a model may read them.
    others: dict[str, Any] = field(default_factory=dict)
    # Why a part of the entry could not be read.
    trouble: str = ""

    def hint(self, name: str) -> bool:
        said = self.annotations.get(name)
        return said if isinstance(said, bool) else ASSUMED[name]


def read_tool(entry: Mapping[str, Any]) -> ListedTool:
    """Read one entry of `tools/list`. Members of the wrong type count as absent."""
    takes, troubled = _schema(entry.get("inputSchema"))
    gives, also = _schema(entry.get("outputSchema"))
    return ListedTool(
        name=_text(entry.get("name")),
        title=_text(entry.get("title")),
        description=_text(entry.get("description")),
        input_schema=takes or {},
        output_schema=gives,
        annotations=dict(_mapping(entry.get("annotations"))),
        task=_text(_mapping(entry.get("execution")).get("taskSupport")),
        others=_others(entry),
        trouble=troubled or also,
    )


_COVERED = {"name", "title", "description", "inputSchema", "outputSchema", "annotations", "execution", "_meta"}


def _others(entry: Mapping[str, Any]) -> dict[str, Any]:
    found = {name: said for name, said in entry.items() if name not in _COVERED and said is not None}
    meta = _mapping(entry.get("_meta"))
    found |= {"_meta": dict(meta)} if meta else {}
    if not found or _is_shallow(found):
        return found
    return {UNREADABLE: hashlib.sha256(repr(found).encode(errors="backslashreplace")).hexdigest()}


def _schema(said: Any) -> tuple[Schema | None, str]:
    """Return a schema that can be walked, and why it is not the original. An unreadable one is replaced by its
    fingerprint, so that changes are seen."""
    if not isinstance(said, Mapping):
        return None, ""
    if _is_shallow(said):
        encoded = msgspec.json.encode(said)
        if len(encoded) <= LONGEST_SCHEMA:
            return dict(said), ""
    else:
        encoded = repr(said).encode(errors="backslashreplace")
    fingerprint = hashlib.sha256(encoded).hexdigest()
    why = f"a schema of it is longer than {LONGEST_SCHEMA} bytes, or deeper than {DEEPEST_SCHEMA} levels"
    return {"type": "object", UNREADABLE: fingerprint}, why


def _is_shallow(schema: Any) -> bool:
    level = [schema]
    for _ in range(DEEPEST_SCHEMA):
        inside = [one for one in level if isinstance(one, dict | list)]
        level = [part for one in inside for part in (one.values() if isinstance(one, dict) else one)]
        if not level:
            return True
    return False


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
