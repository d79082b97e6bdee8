"""Output schemas of tools that return MCPToolResult: the published result schema with a schema of its `data`.

On the wire such a tool returns `{status, data, error, explanation}`, and its `outputSchema` declares that, as the
protocol requires. A contract only concerns the data, so specifications, comparisons, generated clients and validation
use that part.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from portico.jsonschema import (
    Schema,
    get_alternatives,
    get_enum_values,
    get_properties,
    get_types,
    omit_keywords,
    resolve_references,
    wrap_as_property,
)
from portico_services.contracts.schemas import STATUSES, TOOL_RESULT_SCHEMA

MEMBERS = frozenset({"status", "data", "error", "explanation"})

# Schema of `data` if the tool returns MCPToolResult without declaring a type of the data.
UNDECLARED_DATA: Schema = {
    "type": "object",
    "description": "The tool returns an MCPToolResult without a schema of its data.",
}

# Keywords that null would have to satisfy as well, so a schema with one of them needs a separate alternative for null.
_COMPOSED = ("$ref", "allOf", "anyOf", "oneOf", "not", "if", "enum", "const")
_DEFINITIONS = ("$defs", "definitions")
# JSON Pointer of the data within the envelope, inline and as an alternative.
_INLINE, _ALTERNATIVE = "data", "data/anyOf/0"


def result_schema(data: Schema) -> Schema:
    """Return the schema of a result whose `data` matches `data` or is null. A result schema is returned unchanged."""
    if is_result_schema(data):
        return data
    envelope = omit_keywords(deepcopy(TOOL_RESULT_SCHEMA), "$schema")
    # Inline where possible, which is the form of the published envelope: `type: [object, null]`.
    is_inline = data.get("type") == "object" and not any(keyword in data for keyword in _COMPOSED)
    name = _INLINE if is_inline else _ALTERNATIVE
    # Local references (`#/$defs/…`) would break when the schema moves down into the envelope, so they are rewritten.
    moved = wrap_as_property(data, name)
    inner = moved["properties"][name]
    properties = {
        **envelope["properties"],
        "data": {**inner, "type": ["object", "null"]} if is_inline else {"anyOf": [inner, {"type": "null"}]},
    }
    definitions = {
        key: {**envelope.get(key, {}), **moved.get(key, {})} for key in _DEFINITIONS if key in envelope or key in moved
    }
    return {**envelope, "properties": properties, **definitions}


def is_result_schema(output: Schema) -> bool:
    """Return whether an output schema is that of an MCPToolResult, judged by its members and status values."""
    members = get_properties(resolve_references(output, output))
    # Judged by shape and not by title: tools of other implementations declare the same envelope.
    if not (MEMBERS - {"explanation"} <= members.keys() or {"status", "data"} <= members.keys() <= MEMBERS):
        return False
    statuses = get_enum_values(resolve_references(members["status"], output))
    return bool(statuses) and all(status in STATUSES for status in statuses)


def data_of_result(output: Schema) -> Schema:
    """Extract the schema of `data` from a result schema, without null and with the definitions it needs."""
    root = resolve_references(output, output)
    inner = _without_null(get_properties(root)["data"], output)
    if not declares_data(inner, output):
        return UNDECLARED_DATA
    inner = _moved_back(omit_keywords(inner, "default"))
    return {**inner, **_needed_definitions(inner, output)}


def _without_null(schema: Any, root: Schema) -> Schema:
    references = resolve_references(schema, root)
    kinds = get_types(references)
    # `data` is null in failures; specifications and generated clients describe successful results.
    if "null" in kinds and len(kinds) == 2:
        return {**references, "type": next(kind for kind in kinds if kind != "null")}
    for keyword in ("anyOf", "oneOf"):
        options = [
            item for item in references.get(keyword) or () if get_types(resolve_references(item, root)) != ["null"]
        ]
        if keyword in references and len(options) == 1:
            return {**omit_keywords(references, keyword, "title"), **resolve_references(options[0], root)}
        if keyword in references:
            return {**references, keyword: options}
    return references


def _moved_back(value: Any) -> Any:
    """Return the schema with references into the result's `data` rewritten to references into itself."""
    if isinstance(value, list):
        return [_moved_back(item) for item in value]
    if not isinstance(value, dict):
        return value
    result = {key: _moved_back(item) for key, item in value.items()}
    reference = result.get("$ref")
    if isinstance(reference, str):
        for name in (_ALTERNATIVE, _INLINE):
            if reference.startswith(f"#/properties/{name}"):
                result["$ref"] = f"#{reference.removeprefix(f'#/properties/{name}')}"
                break
    return result


def _needed_definitions(inner: Schema, root: Schema) -> Schema:
    """Return the definitions of the root that the schema refers to, directly or indirectly."""
    needed: dict[str, dict[str, Any]] = {}
    waiting: list[Any] = [inner]
    while waiting:
        for reference in _references(waiting.pop()):
            _, _, rest = reference.partition("#/")
            group, _, name = rest.partition("/")
            # RFC 6901, section 4: ~1 is decoded before ~0.
            name = name.partition("/")[0].replace("~1", "/").replace("~0", "~")
            definitions: dict[str, Any] = root.get(group) or {}
            # Each definition is visited once, so recursive definitions end.
            if group in _DEFINITIONS and name in definitions and name not in needed.setdefault(group, {}):
                needed[group][name] = definitions[name]
                waiting.append(definitions[name])
    return dict(needed)


def _references(value: Any) -> list[str]:
    parts: Any = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    result = [reference for part in parts for reference in _references(part)]
    own = value.get("$ref") if isinstance(value, dict) else None
    return [*result, own] if isinstance(own, str) else result


def declares_data(schema: Any, root: Schema, depth: int = 4) -> bool:
    """Return whether a schema declares what a value contains: `dict` and `list[dict]` do not, `dict[str, int]` does.

    A value that is not an object is declared by its type.
    """
    references = resolve_references(schema, root)
    # Recursive schemas end here; a nesting of this depth counts as declared.
    if not depth:
        return True
    options = [item for item in get_alternatives(references) if get_types(resolve_references(item, root)) != ["null"]]
    if options:
        return all(declares_data(item, root, depth - 1) for item in options)
    if any(keyword in references for keyword in ("allOf", "enum", "const")):
        return True
    kinds = [kind for kind in get_types(references) if kind != "null"]
    if kinds == ["array"]:
        items = references.get("items")
        return "prefixItems" in references or (isinstance(items, dict) and declares_data(items, root, depth - 1))
    if kinds and kinds != ["object"]:
        return True
    if (
        get_properties(references)
        or references.get("patternProperties")
        or references.get("additionalProperties") is False
    ):
        return True
    others = references.get("additionalProperties")
    return isinstance(others, dict) and bool(others) and declares_data(others, root, depth - 1)
