"""Schemas of OpenAPI 3.0 and 3.1 as JSON Schema 2020-12, with `$defs` for what they refer to. Nothing is inlined.

What a schema reaches is gathered breadth first up to a number of bytes. What lies beyond is left open: a name that
stands for anything of its type. So a document whose schemas all reach each other stays small.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from typing import Any, Literal

import msgspec
from msgspec import Struct

from portico.protocol.errors import UsageError
from portico.server.providers.openapi.document import ApiDocument
from portico.server.providers.openapi.operations import FreeNames

Direction = Literal["in", "out"]

MOST_LEVELS = 100
# With all that it refers to, which is the more the more it refers to.
LONGEST_SCHEMA = 1024 * 1024
LONGEST_EXAMPLE = 200
_SCHEMAS, _DEFS = "#/components/schemas/", "#/$defs/"

# Keywords by what their values are: schemas by name, one schema, several.
_NAMED = ("properties", "patternProperties")
_SINGLE = ("items", "additionalProperties", "not", "contains", "propertyNames", "if", "then", "else")
_SEVERAL = ("allOf", "anyOf", "oneOf", "prefixItems")
_KEPT = (
    *("type", "title", "description", "default", "enum", "const", "format", "deprecated"),
    *("multipleOf", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
    *("minLength", "maxLength", "pattern", "contentEncoding", "contentMediaType"),
    *("minItems", "maxItems", "uniqueItems", "minProperties", "maxProperties", "required"),
)
_HIDDEN = {"in": "readOnly", "out": "writeOnly"}


class SharedSchema(Struct, frozen=True):
    """A schema of the document as it stands in `$defs`: with the names that it refers to, and how long it is."""

    schema: dict[str, Any]
    refs: tuple[str, ...]
    size: int


class Schemas:
    """The schemas of one document, each converted once for arguments and once for results."""

    def __init__(self, document: ApiDocument) -> None:
        self._document = document
        self._definitions: dict[tuple[str, Direction], SharedSchema] = {}
        # Which reference has which name in `$defs`, and the other way round.
        self._names: dict[str, str] = {}
        self._free = FreeNames()
        self._places: dict[str, str] = {}

    def convert(self, schema: Any, direction: Direction) -> dict[str, Any]:
        """A schema with references to `$defs` that `gather` gives."""
        return self._converted(schema, direction, 0)

    def gather(self, root: dict[str, Any], direction: Direction, most: int) -> dict[str, Any]:
        """The root with the `$defs` that it reaches."""
        defs: dict[str, Any] = {}
        wanted, left = deque(_refs(root)), most
        while wanted:
            name = wanted.popleft()
            if name in defs:
                continue
            one = self.definition(name, direction)
            if one.size <= left:
                left -= one.size
                defs[name] = one.schema
                wanted += one.refs
            else:
                kind = one.schema.get("type")
                defs[name] = {} if kind is None else {"type": kind}
        found = {**root, "$defs": defs} if defs else root
        if len(msgspec.json.encode(found)) > LONGEST_SCHEMA:
            raise UsageError(f"its schema takes more than {LONGEST_SCHEMA} bytes")
        return found

    def definition(self, name: str, direction: Direction) -> SharedSchema:
        """What stands under a name in `$defs`."""
        known = self._definitions.get((name, direction))
        if known is None:
            schema = self._converted(self._document.find(self._places[name]), direction, 0)
            known = SharedSchema(schema, tuple(dict.fromkeys(_refs(schema))), len(msgspec.json.encode(schema)))
            self._definitions[name, direction] = known
        return known

    def _name(self, ref: str) -> str:
        if ref not in self._names:
            name = (
                re.sub(r"[^A-Za-z0-9_.-]+", "_", ref.removeprefix(_SCHEMAS).removeprefix("#/")).strip("_") or "schema"
            )
            free = self._free.take(name)
            self._names[ref], self._places[free] = free, ref
        return self._names[ref]

    def _converted(self, schema: Any, direction: Direction, level: int) -> dict[str, Any]:
        if level > MOST_LEVELS:
            raise UsageError("a schema of the document has too many levels")
        if schema is False:
            return {"not": {}}
        if not isinstance(schema, dict):
            return {}
        if isinstance(ref := schema.get("$ref"), str):
            found: dict[str, Any] = {"$ref": f"{_DEFS}{self._name(ref)}"}
            if not self._document.is_3_0 and isinstance(said := schema.get("description"), str):
                found["description"] = said
            return found
        found = {name: schema[name] for name in _KEPT if name in schema}
        for name in _NAMED:
            if isinstance(inner := schema.get(name), dict):
                found[name] = {key: self._converted(one, direction, level + 1) for key, one in inner.items()}
        for name in _SINGLE:
            inner = schema.get(name)
            if isinstance(inner, bool) and name == "additionalProperties":
                found[name] = inner
            elif isinstance(inner, dict | bool):
                found[name] = self._converted(inner, direction, level + 1)
        for name in _SEVERAL:
            if isinstance(inner := schema.get(name), list) and inner:
                found[name] = [self._converted(one, direction, level + 1) for one in inner]
        self._hide(schema, found, direction)
        _examples(schema, found, direction)
        return _modern(schema, found) if self._document.is_3_0 else found

    def _hide(self, schema: dict[str, Any], found: dict[str, Any], direction: Direction) -> None:
        """Take out what is not for this direction: what the server alone sets, or only takes."""
        properties = schema.get("properties")
        if not isinstance(properties, dict):
            return
        hidden = {name for name, one in properties.items() if self._is_hidden(one, direction)}
        if hidden:
            found["properties"] = {name: one for name, one in found["properties"].items() if name not in hidden}
            said = found.pop("required", None)
            left = [name for name in said if name not in hidden] if isinstance(said, list) else []
            if left:
                found["required"] = left

    def _is_hidden(self, schema: Any, direction: Direction) -> bool:
        word = _HIDDEN[direction]
        if not isinstance(schema, dict):
            return False
        ref = schema.get("$ref")
        if not isinstance(ref, str) or word in schema:
            return schema.get(word) is True
        known = self._document.known
        if (word, ref) not in known:
            found = self._document.resolved(schema)
            known[word, ref] = isinstance(found, dict) and found.get(word) is True
        return known[word, ref]


def _examples(schema: dict[str, Any], found: dict[str, Any], direction: Direction) -> None:
    """Examples help those who write arguments; in results they would only be read."""
    if direction == "out":
        return
    examples = schema.get("examples")
    said = examples if isinstance(examples, list) else [schema["example"]] if "example" in schema else []
    short = [one for one in said[:3] if len(msgspec.json.encode(one)) <= LONGEST_EXAMPLE]
    if short:
        found["examples"] = short


def _modern(schema: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """What 3.0 says otherwise: limits that are excluded, and null."""
    for bound, word in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if isinstance(excluded := found.get(word), bool):
            del found[word]
            if excluded and bound in found:
                found[word] = found.pop(bound)
    if schema.get("nullable") is not True:
        return found
    if isinstance(kind := found.get("type"), str):
        found["type"] = [kind, "null"]
        if isinstance(known := found.get("enum"), list) and None not in known:
            found["enum"] = [*known, None]
        return found
    if not any(name in found for name in (*_SEVERAL, "enum", "not")):
        return found
    told: dict[str, Any] = {
        name: found.pop(name) for name in ("title", "description", "default", "deprecated") if name in found
    }
    return {**told, "anyOf": [found, {"type": "null"}]}


def _refs(schema: Any) -> Iterator[str]:
    for one in _subschemas(schema):
        if "$ref" in one:
            yield one["$ref"].removeprefix(_DEFS)


def _subschemas(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A schema and all that are within it, in their order."""
    yield schema
    for name in _NAMED:
        for one in schema.get(name, {}).values():
            yield from _subschemas(one)
    for name in _SINGLE:
        if isinstance(schema.get(name), dict):
            yield from _subschemas(schema[name])
    for name in _SEVERAL:
        for one in schema.get(name, ()):
            yield from _subschemas(one)
