"""Robust access to schemas of any origin: references, alternatives, and keywords.

A schema may be invalid, recursive or hostile. Nothing is fetched, every traversal is bounded, and a keyword of the
wrong type counts as absent.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from portico.jsonschema.schema import Schema

JSON_TYPE_NAMES = ("string", "integer", "number", "boolean", "null", "array", "object")

# Limits for chains of references and nested alternatives.
MAX_REFERENCE_HOPS = 32
MAX_ALTERNATIVE_DEPTH = 16
# Per schema: alternatives or parts of an `allOf`, enum values, properties.
MAX_ALTERNATIVES = 64
MAX_ENUM_VALUES = 500
MAX_PROPERTIES = 200
# Schemas visited per lookup. A schema that refers to itself twice would otherwise never end.
MAX_CACHED_ENTRIES = 300

# Keywords by purpose: annotations; bounds of numbers, strings, arrays and objects; keywords that hold arbitrary values;
# keywords that map names to schemas.
ANNOTATION_KEYWORDS = ("description", "title", "examples", "example", "$comment", "deprecated", "readOnly", "writeOnly")
LOWER_BOUND_KEYWORDS = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties", "minContains")
UPPER_BOUND_KEYWORDS = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties", "maxContains")
VALUE_KEYWORDS = ("const", "enum", "default", "examples")
SCHEMA_MAP_KEYWORDS = ("properties", "patternProperties", "$defs", "definitions")
# Keywords with schemas for the same value: lists, single ones, and conditional ones. "dependencies" is draft-07 and
# older.
COMBINATOR_KEYWORDS = ("allOf", "anyOf", "oneOf")
SUBSCHEMA_KEYWORDS = ("not", "if", "then", "else")
DEPENDENCY_KEYWORDS = ("dependentSchemas", "dependencies")

_JSON_TYPES = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}

_NUMBER = (int, float)
# Valid types of each keyword; others are ignored.
_KEYWORDS: dict[str, Any] = {
    "type": (str, list),
    "enum": list,
    "enumNames": list,
    "properties": dict,
    "required": list,
    "propertyNames": dict,
    "additionalProperties": (bool, dict),
    "items": dict,
    "prefixItems": list,
    **dict.fromkeys((*LOWER_BOUND_KEYWORDS[:2], *UPPER_BOUND_KEYWORDS[:2], "multipleOf"), _NUMBER),
    **dict.fromkeys((*LOWER_BOUND_KEYWORDS[2:5], *UPPER_BOUND_KEYWORDS[2:5]), int),
    **dict.fromkeys(("contentEncoding", "format", "pattern", "title", "description"), str),
    **dict.fromkeys(("const", "default"), object),
}
# Accepts every value.
_ANYTHING: Schema = {}
_COMPOSITION_KEYWORDS = ("$ref", *COMBINATOR_KEYWORDS)


# Keywords


def json_type(value: Any) -> str:
    """Return the JSON type of a decoded value."""
    return _JSON_TYPES.get(type(value), "null")


def get_properties(schema: Schema) -> dict[str, Any]:
    """Return the properties, or an empty dict."""
    result = schema.get("properties")
    return (
        {name: subschema for name, subschema in result.items() if isinstance(name, str)}
        if isinstance(result, dict)
        else {}
    )


def get_required(schema: Schema) -> list[str]:
    """Return the required names."""
    return [name for name in get_list(schema, "required") if isinstance(name, str)]


def get_types(schema: Schema) -> list[str]:
    """Return the JSON types of the `type` keyword."""
    kind = schema.get("type")
    return [item for item in (kind if isinstance(kind, list) else [kind]) if item in JSON_TYPE_NAMES]


def get_alternatives(schema: Schema) -> list[Any]:
    """Return the members of `anyOf` or `oneOf`, or an empty list."""
    return get_list(schema, "anyOf") or get_list(schema, "oneOf")


def get_enum_values(schema: Schema) -> list[Any]:
    """Return the values of `const` or `enum`, or an empty list."""
    # Tested by presence, because `const: null` is a valid keyword with a value of None.
    return [schema["const"]] if "const" in schema else get_list(schema, "enum")


def get_list(schema: Schema, keyword: str) -> list[Any]:
    """Return a keyword's value if it is a list, else an empty list."""
    result = schema.get(keyword)
    return result if isinstance(result, list) else []


def get_form_defaults(schema: Schema) -> dict[str, Any]:
    """Return the default values of a form (2025-11-25, client/elicitation, Default Values)."""
    fields = get_properties(schema).items()
    return {
        name: field_schema["default"]
        for name, field_schema in fields
        if isinstance(field_schema, dict) and "default" in field_schema
    }


def get_definitions(schema: Schema) -> Schema:
    """Return the keywords that make a part of the schema self-contained."""
    return {key: schema[key] for key in ("$defs", "definitions", "$schema") if key in schema}


def omit_keywords(schema: Schema, *keywords: str) -> Schema:
    return {key: value for key, value in schema.items() if key not in keywords}


# References and composition


def resolve_pointer(reference: str, root: Any) -> Any:
    """Return the target of a JSON pointer; None if it does not exist, {} if it points outside the document."""
    reference = unquote_reference(reference)
    # Remote references are never fetched: a schema could otherwise make this process send requests.
    if reference != "#" and not reference.startswith("#/"):
        return {}
    result = root
    for step in reference.split("/")[1:]:
        # RFC 6901, section 4: `~1` is decoded before `~0`.
        step = step.replace("~1", "/").replace("~0", "~")
        # Bounded, because int() of a long digit string takes quadratic time.
        if isinstance(result, list) and step.isdecimal() and len(step) < 10:
            result = result[int(step)] if int(step) < len(result) else None
        else:
            result = result.get(step) if isinstance(result, dict) else None
    return result


def unquote_reference(reference: str) -> str:
    """Decode percent-encoding in a reference."""
    if "%" not in reference:
        return reference
    # Imported lazily: almost no reference needs it.
    from urllib.parse import unquote

    return unquote(reference)


def resolve_references(schema: Any, root: Any) -> Schema:
    """Resolve references within the document. Keywords next to a reference take precedence."""
    # References may form a cycle.
    for _ in range(MAX_REFERENCE_HOPS):
        if not isinstance(schema, dict) or not isinstance(schema.get("$ref"), str):
            break
        pointer = resolve_pointer(schema["$ref"], root)
        schema = {**pointer, **omit_keywords(schema, "$ref")} if isinstance(pointer, dict) else {}
    return schema if isinstance(schema, dict) else {}


def merge_schemas(base: Schema, override: Schema) -> Schema:
    """Merge two schemas. Where they conflict, the second wins."""
    both = {**base, **override}
    if properties := {**get_properties(base), **get_properties(override)}:
        both["properties"] = properties
    # Keeps the order, which messages and generated forms show.
    if required := dict.fromkeys([*get_required(base), *get_required(override)]):
        both["required"] = list(required)
    return both


def merge_all_of(schema: Schema, root: Schema) -> Schema:
    """Merge a schema with the parts of its `allOf`."""
    merged = omit_keywords(schema, "allOf")
    for part in get_list(schema, "allOf")[:MAX_ALTERNATIVES]:
        merged = merge_schemas(merged, resolve_references(part, root))
    return merged


def drop_invalid_keywords(schema: Any, keep: tuple[str, ...] = ()) -> Schema:
    """Return the schema without unknown keywords and keywords of the wrong type."""
    if not isinstance(schema, dict):
        return {}
    result = {name: value for name, value in schema.items() if name in keep or _is_valid_keyword(name, value)}
    if "type" in result:
        kinds = get_types(result)
        # One name instead of a list of one, so that readers can compare `type` with a string.
        result["type"] = kinds[0] if len(kinds) == 1 else kinds
        if not kinds:
            del result["type"]
    if "properties" in result:
        # The boolean schema `true` accepts everything.
        result["properties"] = {
            str(name): subschema if isinstance(subschema, dict) else {}
            for name, subschema in result["properties"].items()
        }
    if "required" in result:
        result["required"] = get_required(result)
    return result


def _is_valid_keyword(name: str, value: Any) -> bool:
    expected = _KEYWORDS.get(name)
    if expected is None or not isinstance(value, expected):
        return False
    # True is an int in Python but not a number in JSON.
    return not isinstance(value, bool) or expected is object or name == "additionalProperties"


class SchemaReader:
    """Reader of one document, with cached alternatives."""

    def __init__(self, root: Any) -> None:
        self.root: Schema = root if isinstance(root, dict) else {}
        # Keyed by id; the schema is stored in the value, so that its id cannot be reused.
        self._alternatives_by_id: dict[int, tuple[Schema, list[Schema]]] = {}

    def alternatives(self, schema: Schema) -> list[Schema]:
        """Return the alternatives of a schema, each flattened into one schema as far as possible."""
        cached = self._alternatives_by_id.get(id(schema))
        if cached is None:
            cached = self._alternatives_by_id[id(schema)] = (
                schema,
                self._alternatives(schema, MAX_ALTERNATIVE_DEPTH, iter(range(MAX_CACHED_ENTRIES))),
            )
        return cached[1]

    def _alternatives(self, schema: Any, depth: int, budget: Iterator[int]) -> list[Schema]:
        schema = resolve_references(schema, self.root)
        options = [drop_invalid_keywords(schema)]
        if depth == 0 or next(budget, None) is None:
            return options
        for member in get_list(schema, "allOf")[:MAX_ALTERNATIVES]:
            # An `allOf` member with several alternatives would multiply them; ignoring it accepts more, never less.
            parts = self._alternatives(member, depth - 1, budget)
            options = [merge_schemas(option, parts[0]) for option in options] if len(parts) == 1 else options
        for keyword in ("anyOf", "oneOf"):
            members = get_list(schema, keyword)
            if members:
                parts = [
                    part
                    for member in members[:MAX_ALTERNATIVES]
                    for part in self._alternatives(member, depth - 1, budget)
                ]
                if len(members) > MAX_ALTERNATIVES or len(parts) * len(options) > MAX_ALTERNATIVES:
                    # Truncated: the empty schema covers what the others accept.
                    parts = [*parts[: MAX_ALTERNATIVES // len(options)], {}]
                options = [merge_schemas(option, part) for option in options for part in parts]
        return options

    def resolve(self, schema: Schema) -> Schema:
        """Return the schema with references resolved and invalid keywords dropped."""
        return drop_invalid_keywords(
            omit_keywords(resolve_references(schema, self.root), "$ref"), _COMPOSITION_KEYWORDS
        )

    def accepts_type(self, schema: Schema, type_name: str) -> bool:
        """Return whether some value of this JSON type could be accepted."""
        return any(alternative_accepts_type(option, type_name) for option in self.alternatives(schema))

    def property_schema(self, schema: Schema, name: str) -> Schema:
        """Return the schema of a property in one alternative."""
        result = schema.get("properties", {}).get(name, schema.get("additionalProperties"))
        return result if isinstance(result, dict) else _ANYTHING

    def item_schema(self, schema: Schema, index: int) -> Schema:
        """Return the schema of an array item in one alternative."""
        first = schema.get("prefixItems", [])
        result = first[index] if index < len(first) else schema.get("items")
        return result if isinstance(result, dict) else _ANYTHING

    def member_schema(self, schema: Schema, name: str) -> Schema:
        """Return the schema of a property across all alternatives."""
        options = self.alternatives(schema)
        holding = [option for option in options if name in option.get("properties", ())]
        result = [
            drop_invalid_keywords(self.property_schema(option, name), _COMPOSITION_KEYWORDS)
            # Alternatives that declare the property say more than those that merely allow any.
            for option in holding or options
        ]
        return result[0] if len(result) == 1 else {"anyOf": _distinct(result)} if result else {}

    def property_names(self, schema: Schema) -> list[str]:
        """Return the property names in their order of appearance."""
        return list(
            dict.fromkeys(name for option in self.alternatives(schema) for name in option.get("properties", ()))
        )

    def required_names(self, schema: Schema) -> list[str]:
        """Return the names that every alternative requires."""
        options = self.alternatives(schema)
        return [
            name
            for name in self.property_names(schema)
            # A name that only some alternatives require can be left out by choosing another one.
            if all(name in option.get("required", ()) for option in options)
        ]

    def allows_additional_properties(self, schema: Schema) -> bool:
        """Return whether additional properties are allowed explicitly, or no properties are declared."""
        return any(
            # JSON Schema allows them by default, but an undeclared name next to declared ones is more likely a typo.
            option.get("additionalProperties", not option.get("properties")) is not False
            for option in self.alternatives(schema)
        )

    def enum_values(self, schema: Schema) -> list[Any]:
        """Return the accepted values, if only some are accepted."""
        return _distinct(
            [value for option in self.alternatives(schema) for value in get_enum_values(option)][:MAX_ENUM_VALUES]
        )

    def titled_enum_values(self, schema: Schema) -> list[tuple[Any, str]]:
        """Return the choices of a form field or its items, each with its label.

        Labels come from `enumNames`, or from titles in `oneOf`/`anyOf`.
        """
        items = schema.get("items")
        if self.accepts_type(schema, "array") and isinstance(items, dict):
            schema = items
        titled = [
            (item["const"], str(item.get("title", item["const"])))
            for keyword in ("oneOf", "anyOf")
            for item in get_list(schema, keyword)[:MAX_ALTERNATIVES]
            if isinstance(item, dict) and "const" in item
        ]
        values, names = self.enum_values(schema), get_list(schema, "enumNames")
        return titled or list(zip(values, map(str, names if len(names) == len(values) else values), strict=True))

    def is_base64(self, schema: Schema) -> bool:
        return any(option.get("contentEncoding") == "base64" for option in self.alternatives(schema))


def alternative_accepts_type(option: Schema, type_name: str) -> bool:
    """Return whether an alternative accepts some value of this JSON type."""
    if values := get_enum_values(option):
        return any(json_type(value) == type_name for value in values)
    # A schema without `type` accepts every type.
    accepted = option.get("type", type_name)
    accepted = accepted if isinstance(accepted, list) else [accepted]
    return type_name in accepted or (type_name == "integer" and "number" in accepted)


def _distinct(values: list[Any]) -> list[Any]:
    results: list[Any] = []
    for value in values:
        if not any(json_type(value) == json_type(other) and value == other for other in results):
            results.append(value)
    return results
