"""Conversion of OpenAPI 3.0 and 3.1 schemas to JSON Schema 2020-12, with `$defs` for references. Nothing is inlined.

Referenced schemas are collected breadth-first up to a size limit. Definitions beyond it accept any value of their type,
so that documents whose schemas all refer to each other stay small.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from typing import Any, Literal

import msgspec
from msgspec import Struct

from portico.protocol.errors import UsageError
from portico.server.providers.openapi.document import OpenApiDocument
from portico.server.providers.openapi.operations import UniqueNames

SchemaDirection = Literal["in", "out"]

# A hostile or generated document may nest without end; real ones stay below twenty levels.
MAX_DEPTH = 100
# Including everything that it refers to.
MAX_SCHEMA_BYTES = 1024 * 1024
# Longer examples cost every client tokens with each listing.
MAX_EXAMPLE_BYTES = 200
_SCHEMAS, _DEFS = "#/components/schemas/", "#/$defs/"

# Keywords whose values are schemas by name, one schema, or several.
_MAP_KEYWORDS = ("properties", "patternProperties")
_SCHEMA_KEYWORDS = ("items", "additionalProperties", "not", "contains", "propertyNames", "if", "then", "else")
_LIST_KEYWORDS = ("allOf", "anyOf", "oneOf", "prefixItems")
_COPIED_KEYWORDS = (
    *("type", "title", "description", "default", "enum", "const", "format", "deprecated"),
    *("multipleOf", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
    *("minLength", "maxLength", "pattern", "contentEncoding", "contentMediaType"),
    *("minItems", "maxItems", "uniqueItems", "minProperties", "maxProperties", "required"),
)
_HIDDEN_BY = {"in": "readOnly", "out": "writeOnly"}


class SchemaDefinition(Struct, frozen=True):
    """A converted schema for `$defs`, with the names that it refers to and its encoded size."""

    schema: dict[str, Any]
    refs: tuple[str, ...]
    size_bytes: int


class SchemaConverter:
    """Converts the schemas of one document, each once for arguments and once for results."""

    def __init__(self, document: OpenApiDocument) -> None:
        self._document = document
        self._definitions: dict[tuple[str, SchemaDirection], SchemaDefinition] = {}
        # Names in `$defs` by reference, and references by name.
        self._names: dict[str, str] = {}
        self._unique_names = UniqueNames()
        self._refs_by_name: dict[str, str] = {}

    def convert(self, schema: Any, direction: SchemaDirection) -> dict[str, Any]:
        """Return a schema that refers to `$defs`, which `with_definitions` adds."""
        return self._convert(schema, direction, 0)

    def with_definitions(self, root: dict[str, Any], direction: SchemaDirection, max_bytes: int) -> dict[str, Any]:
        """Return the root with the `$defs` that it reaches."""
        defs: dict[str, Any] = {}
        pending, left = deque(_list_refs(root)), max_bytes
        while pending:
            name = pending.popleft()
            if name in defs:
                continue
            definition = self.definition(name, direction)
            # Breadth-first: what the arguments mention directly is kept, and the budget runs out in
            # the depths that models rarely fill in.
            if definition.size_bytes <= left:
                left -= definition.size_bytes
                defs[name] = definition.schema
                pending += definition.refs
            else:
                kind = definition.schema.get("type")
                defs[name] = {} if kind is None else {"type": kind}
        result = {**root, "$defs": defs} if defs else root
        if len(msgspec.json.encode(result)) > MAX_SCHEMA_BYTES:
            raise UsageError(f"its schema must have at most {MAX_SCHEMA_BYTES} bytes")
        return result

    def definition(self, name: str, direction: SchemaDirection) -> SchemaDefinition:
        """Return the definition of a name in `$defs`."""
        cached = self._definitions.get((name, direction))
        if cached is None:
            schema = self._convert(self._document.resolve_ref(self._refs_by_name[name]), direction, 0)
            cached = SchemaDefinition(
                schema, tuple(dict.fromkeys(_list_refs(schema))), len(msgspec.json.encode(schema))
            )
            self._definitions[name, direction] = cached
        return cached

    def _definition_name(self, ref: str) -> str:
        if ref not in self._names:
            name = (
                re.sub(r"[^A-Za-z0-9_.-]+", "_", ref.removeprefix(_SCHEMAS).removeprefix("#/")).strip("_") or "schema"
            )
            free = self._unique_names.allocate(name)
            self._names[ref], self._refs_by_name[free] = free, ref
        return self._names[ref]

    def _convert(self, schema: Any, direction: SchemaDirection, level: int) -> dict[str, Any]:
        if level > MAX_DEPTH:
            raise UsageError("a schema of the document is nested too deeply")
        if schema is False:
            return {"not": {}}
        if not isinstance(schema, dict):
            return {}
        if isinstance(ref := schema.get("$ref"), str):
            result: dict[str, Any] = {"$ref": f"{_DEFS}{self._definition_name(ref)}"}
            # OpenAPI 3.0 ignores siblings of `$ref`; 3.1 allows a description next to it.
            if not self._document.is_3_0 and isinstance(description := schema.get("description"), str):
                result["description"] = description
            return result
        result = {name: schema[name] for name in _COPIED_KEYWORDS if name in schema}
        for name in _MAP_KEYWORDS:
            if isinstance(inner := schema.get(name), dict):
                result[name] = {key: self._convert(item, direction, level + 1) for key, item in inner.items()}
        for name in _SCHEMA_KEYWORDS:
            inner = schema.get(name)
            if isinstance(inner, bool) and name == "additionalProperties":
                result[name] = inner
            elif isinstance(inner, dict | bool):
                result[name] = self._convert(inner, direction, level + 1)
        for name in _LIST_KEYWORDS:
            if isinstance(inner := schema.get(name), list) and inner:
                result[name] = [self._convert(item, direction, level + 1) for item in inner]
        self._remove_hidden(schema, result, direction)
        _copy_examples(schema, result, direction)
        return _upgrade_3_0(schema, result) if self._document.is_3_0 else result

    def _remove_hidden(self, schema: dict[str, Any], source: dict[str, Any], direction: SchemaDirection) -> None:
        """Remove properties of the other direction: read-only ones from arguments, write-only ones from results."""
        properties = schema.get("properties")
        if not isinstance(properties, dict):
            return
        hidden = {name for name, property_schema in properties.items() if self._is_hidden(property_schema, direction)}
        if hidden:
            source["properties"] = {
                name: property_schema for name, property_schema in source["properties"].items() if name not in hidden
            }
            required = source.pop("required", None)
            left = [name for name in required if name not in hidden] if isinstance(required, list) else []
            if left:
                source["required"] = left

    def _is_hidden(self, schema: Any, direction: SchemaDirection) -> bool:
        word = _HIDDEN_BY[direction]
        if not isinstance(schema, dict):
            return False
        ref = schema.get("$ref")
        if not isinstance(ref, str) or word in schema:
            return schema.get(word) is True
        ref_flags = self._document.ref_cache
        if (word, ref) not in ref_flags:
            result = self._document.resolve(schema)
            ref_flags[word, ref] = isinstance(result, dict) and result.get(word) is True
        return ref_flags[word, ref]


def _copy_examples(schema: dict[str, Any], source: dict[str, Any], direction: SchemaDirection) -> None:
    """Copy short examples into schemas of arguments. In results they would only cost tokens."""
    if direction == "out":
        return
    examples = schema.get("examples")
    values = examples if isinstance(examples, list) else [schema["example"]] if "example" in schema else []
    short = [item for item in values[:3] if len(msgspec.json.encode(item)) <= MAX_EXAMPLE_BYTES]
    if short:
        source["examples"] = short


def _upgrade_3_0(schema: dict[str, Any], source: dict[str, Any]) -> dict[str, Any]:
    """Convert keywords that differ in OpenAPI 3.0: exclusive limits and `nullable`."""
    for bound, word in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if isinstance(excluded := source.get(word), bool):
            del source[word]
            if excluded and bound in source:
                source[word] = source.pop(bound)
    if schema.get("nullable") is not True:
        return source
    if isinstance(kind := source.get("type"), str):
        source["type"] = [kind, "null"]
        if isinstance(enum := source.get("enum"), list) and None not in enum:
            source["enum"] = [*enum, None]
        return source
    if not any(name in source for name in (*_LIST_KEYWORDS, "enum", "not")):
        return source
    annotations: dict[str, Any] = {
        name: source.pop(name) for name in ("title", "description", "default", "deprecated") if name in source
    }
    return {**annotations, "anyOf": [source, {"type": "null"}]}


def _list_refs(schema: Any) -> Iterator[str]:
    for item in _walk(schema):
        if "$ref" in item:
            yield item["$ref"].removeprefix(_DEFS)


def _walk(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a schema and all schemas within it, in order."""
    yield schema
    for name in _MAP_KEYWORDS:
        for value in schema.get(name, {}).values():
            yield from _walk(value)
    for name in _SCHEMA_KEYWORDS:
        if isinstance(schema.get(name), dict):
            yield from _walk(schema[name])
    for name in _LIST_KEYWORDS:
        for value in schema.get(name, ()):
            yield from _walk(value)
