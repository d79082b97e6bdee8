"""Output schemas of tools that return MCPToolResult: the published schema of a result, with a schema of its `data`.

On the wire such a tool gives `{status, data, error, explanation}`, and its `outputSchema` says so, as the protocol
demands. A contract is about the data alone, so specifications, comparisons, generated clients and checks use that part.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from portico.jsonschema import Schema, as_property, options_of, properties_of, resolved, types_of, values_of, without
from portico_services.contracts.schemas import STATUSES, TOOL_RESULT

MEMBERS = frozenset({"status", "data", "error", "explanation"})

# What a result's `data` is where the tool returns MCPToolResult and declares no schema of the data.
UNDECLARED_DATA: Schema = {
    "type": "object",
    "description": "The tool returns an MCPToolResult and declares no schema of its data.",
}

# Keywords that null would have to satisfy, too, so that a schema with one of them needs an alternative for null.
_COMPOSED = ("$ref", "allOf", "anyOf", "oneOf", "not", "if", "enum", "const")
_DEFINITIONS = ("$defs", "definitions")
# How the envelope refers to the data, and where an alternative is needed.
_INLINE, _ALTERNATIVE = "data", "data/anyOf/0"


def result_schema(data: Schema) -> Schema:
    """Return the schema of a result whose `data` fits `data` or is null. A schema of a whole result stays as it is."""
    if is_result_schema(data):
        return data
    envelope = without(deepcopy(TOOL_RESULT), "$schema")
    is_inline = data.get("type") == "object" and not any(keyword in data for keyword in _COMPOSED)
    name = _INLINE if is_inline else _ALTERNATIVE
    moved = as_property(data, name)
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
    """Return whether an output schema is that of an MCPToolResult, from the names of its members and its statuses."""
    members = properties_of(resolved(output, output))
    if not (MEMBERS - {"explanation"} <= members.keys() or {"status", "data"} <= members.keys() <= MEMBERS):
        return False
    statuses = values_of(resolved(members["status"], output))
    return bool(statuses) and all(status in STATUSES for status in statuses)


def data_of_result(output: Schema) -> Schema:
    """Return the schema of `data`, without null and with the definitions it needs, out of the schema of a result."""
    root = resolved(output, output)
    inner = _without_null(properties_of(root)["data"], output)
    if not declares_data(inner, output):
        return UNDECLARED_DATA
    inner = _moved_back(without(inner, "default"))
    return {**inner, **_needed_definitions(inner, output)}


def _without_null(schema: Any, root: Schema) -> Schema:
    found = resolved(schema, root)
    kinds = types_of(found)
    if "null" in kinds and len(kinds) == 2:
        return {**found, "type": next(kind for kind in kinds if kind != "null")}
    for keyword in ("anyOf", "oneOf"):
        options = [one for one in found.get(keyword) or () if types_of(resolved(one, root)) != ["null"]]
        if keyword in found and len(options) == 1:
            return {**without(found, keyword, "title"), **resolved(options[0], root)}
        if keyword in found:
            return {**found, keyword: options}
    return found


def _moved_back(value: Any) -> Any:
    """Return the schema with references into the `data` of a result replaced by references into itself."""
    if isinstance(value, list):
        return [_moved_back(one) for one in value]
    if not isinstance(value, dict):
        return value
    found = {key: _moved_back(one) for key, one in value.items()}
    reference = found.get("$ref")
    if isinstance(reference, str):
        for name in (_ALTERNATIVE, _INLINE):
            if reference.startswith(f"#/properties/{name}"):
                found["$ref"] = f"#{reference.removeprefix(f'#/properties/{name}')}"
                break
    return found


def _needed_definitions(inner: Schema, root: Schema) -> Schema:
    """Return those definitions of the root that the schema refers to, also by way of each other."""
    needed: dict[str, dict[str, Any]] = {}
    waiting: list[Any] = [inner]
    while waiting:
        for reference in _references(waiting.pop()):
            _, _, rest = reference.partition("#/")
            group, _, name = rest.partition("/")
            name = name.partition("/")[0].replace("~1", "/").replace("~0", "~")
            known: dict[str, Any] = root.get(group) or {}
            if group in _DEFINITIONS and name in known and name not in needed.setdefault(group, {}):
                needed[group][name] = known[name]
                waiting.append(known[name])
    return dict(needed)


def _references(value: Any) -> list[str]:
    parts: Any = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    found = [reference for part in parts for reference in _references(part)]
    own = value.get("$ref") if isinstance(value, dict) else None
    return [*found, own] if isinstance(own, str) else found


def declares_data(schema: Any, root: Schema, depth: int = 4) -> bool:
    """Return whether a schema says what a value holds: `dict` and `list[dict]` do not, `dict[str, int]` does.

    A value that is not an object is declared by its type.
    """
    found = resolved(schema, root)
    if not depth:
        return True
    options = [one for one in options_of(found) if types_of(resolved(one, root)) != ["null"]]
    if options:
        return all(declares_data(one, root, depth - 1) for one in options)
    if any(keyword in found for keyword in ("allOf", "enum", "const")):
        return True
    kinds = [kind for kind in types_of(found) if kind != "null"]
    if kinds == ["array"]:
        items = found.get("items")
        return "prefixItems" in found or (isinstance(items, dict) and declares_data(items, root, depth - 1))
    if kinds and kinds != ["object"]:
        return True
    if properties_of(found) or found.get("patternProperties") or found.get("additionalProperties") is False:
        return True
    others = found.get("additionalProperties")
    return isinstance(others, dict) and bool(others) and declares_data(others, root, depth - 1)
