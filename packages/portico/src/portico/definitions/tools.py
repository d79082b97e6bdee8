"""Tool definitions parsed from a list that may be hostile."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct, field

from portico.jsonschema import Schema
from portico.jsonschema.comparison import UNREADABLE_KEYWORD
from portico.jsonschema.cost import MAX_SCHEMA_BYTES

# Legitimate schemas have a few kilobytes and a dozen levels.
MAX_SCHEMA_DEPTH = 128

HINTS = ("readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint")
# Defaults of hints (server/tools, ToolAnnotations).
DEFAULT_HINTS = {"readOnlyHint": False, "destructiveHint": True, "idempotentHint": False, "openWorldHint": True}


class ListedTool(Struct, frozen=True, kw_only=True):
    """One entry of `tools/list`."""

    name: str
    title: str = ""
    description: str = ""
    input_schema: Schema = field(default_factory=dict)
    output_schema: Schema | None = None
    annotations: dict[str, Any] = field(default_factory=dict)
    # Task support: "forbidden" or empty, "optional", "required".
    task: str = ""
    # All other members, such as icons, `_meta` and unknown ones: a host may show them, and a model may read them.
    others: dict[str, Any] = field(default_factory=dict)
    # Why a part of the entry could not be read.
    trouble: str = ""

    def hint(self, name: str) -> bool:
        """Return the value of a hint, or its default."""
        value = self.annotations.get(name)
        return value if isinstance(value, bool) else DEFAULT_HINTS[name]


def read_tool(entry: Mapping[str, Any]) -> ListedTool:
    """Parse one entry of `tools/list`. Members of the wrong type count as absent."""
    # Entries come from servers that may be hostile: nothing here may recurse without a limit or
    # raise.
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
        others=_other_members(entry),
        trouble=troubled or also,
    )


_COVERED = {"name", "title", "description", "inputSchema", "outputSchema", "annotations", "execution", "_meta"}


def _other_members(entry: Mapping[str, Any]) -> dict[str, Any]:
    result = {name: value for name, value in entry.items() if name not in _COVERED and value is not None}
    meta = _mapping(entry.get("_meta"))
    result |= {"_meta": dict(meta)} if meta else {}
    if not result or _is_shallow(result):
        return result
    return {UNREADABLE_KEYWORD: hashlib.sha256(repr(result).encode(errors="backslashreplace")).hexdigest()}


def _schema(schema: Any) -> tuple[Schema | None, str]:
    """Return a schema that can be walked, and why it is not the original.

    An unreadable schema is replaced by its fingerprint, so that changes are detected.
    """
    if not isinstance(schema, Mapping):
        return None, ""
    if _is_shallow(schema):
        encoded = msgspec.json.encode(schema)
        if len(encoded) <= MAX_SCHEMA_BYTES:
            return dict(schema), ""
    else:
        # `repr` and not JSON: msgspec would raise RecursionError for a schema this deep.
        encoded = repr(schema).encode(errors="backslashreplace")
    fingerprint = hashlib.sha256(encoded).hexdigest()
    why = f"a schema exceeds {MAX_SCHEMA_BYTES} bytes or {MAX_SCHEMA_DEPTH} levels"
    return {"type": "object", UNREADABLE_KEYWORD: fingerprint}, why


def _is_shallow(schema: Any) -> bool:
    level = [schema]
    # Level by level instead of recursively, to limit the depth.
    for _ in range(MAX_SCHEMA_DEPTH):
        inside = [item for item in level if isinstance(item, dict | list)]
        level = [part for item in inside for part in (item.values() if isinstance(item, dict) else item)]
        if not level:
            return True
    return False


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
