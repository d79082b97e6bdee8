"""Reading schemas, our own and those of others: references, alternatives, and what is said about the values.

A schema may be wrong, endless, or made to hurt. So nothing is fetched, whatever is followed has a bound, and a keyword
that is not of the type it must have counts as absent.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from portico.jsonschema import Schema

TYPES = ("string", "integer", "number", "boolean", "null", "array", "object")

# References that lead to references, and how deep alternatives are looked for inside alternatives.
MOST_REFERENCES = 32
DEEPEST = 16
# Of one schema: its alternatives, or the parts of an `allOf`; the values it names; its properties.
MOST_OPTIONS = 64
MOST_CHOICES = 500
MOST_FIELDS = 200
# Schemas read to answer one question. What refers to itself twice would otherwise be read for ever.
MOST_READ = 300

# The keywords by what they are about: words for people; bounds of numbers, texts, arrays and objects; values, whatever
# these look like; schemas by name.
WORDS = ("description", "title", "examples", "example", "$comment", "deprecated", "readOnly", "writeOnly")
LEAST = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties", "minContains")
MOST = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties", "maxContains")
VALUES = ("const", "enum", "default", "examples")
NAMED = ("properties", "patternProperties", "$defs", "definitions")
# Schemas that the value itself is held against: lists of them, single ones, and those for when a member is there.
# "dependencies" is of draft-07 and before.
TOGETHER = ("allOf", "anyOf", "oneOf")
ALONE = ("not", "if", "then", "else")
BY_MEMBER = ("dependentSchemas", "dependencies")

_KINDS = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}

_NUMBER = (int, float)
# What each keyword has to be to mean anything; others are not read.
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
    **dict.fromkeys((*LEAST[:2], *MOST[:2], "multipleOf"), _NUMBER),
    **dict.fromkeys((*LEAST[2:5], *MOST[2:5]), int),
    **dict.fromkeys(("contentEncoding", "format", "pattern", "title", "description"), str),
    **dict.fromkeys(("const", "default"), object),
}
# Accepts every value.
_ANYTHING: Schema = {}
_COMPOSED = ("$ref", *TOGETHER)


# One keyword at a time


def kind_of(value: Any) -> str:
    """The JSON type of a decoded value."""
    return _KINDS.get(type(value), "null")


def properties_of(schema: Schema) -> dict[str, Any]:
    found = schema.get("properties")
    return {name: one for name, one in found.items() if isinstance(name, str)} if isinstance(found, dict) else {}


def required_of(schema: Schema) -> list[str]:
    return [name for name in list_of(schema, "required") if isinstance(name, str)]


def types_of(schema: Schema) -> list[str]:
    """The JSON types that a schema names itself."""
    kind = schema.get("type")
    return [one for one in (kind if isinstance(kind, list) else [kind]) if one in TYPES]


def options_of(schema: Schema) -> list[Any]:
    """The alternatives of a schema as they are written; none if it has none."""
    return list_of(schema, "anyOf") or list_of(schema, "oneOf")


def values_of(schema: Schema) -> list[Any]:
    """The values that a schema names, if only those are accepted."""
    return [schema["const"]] if "const" in schema else list_of(schema, "enum")


def list_of(schema: Schema, keyword: str) -> list[Any]:
    found = schema.get(keyword)
    return found if isinstance(found, list) else []


def defaults_of(schema: Schema) -> dict[str, Any]:
    """The values of an untouched form (2025-11-25, client/elicitation, Default Values)."""
    fields = properties_of(schema).items()
    return {name: one["default"] for name, one in fields if isinstance(one, dict) and "default" in one}


def definitions_of(schema: Schema) -> Schema:
    """What a part of the schema needs beside it to be read alone."""
    return {key: schema[key] for key in ("$defs", "definitions", "$schema") if key in schema}


def without(schema: Schema, *keywords: str) -> Schema:
    return {key: value for key, value in schema.items() if key not in keywords}


# References and composition


def target_of(reference: str, root: Any) -> Any:
    """What a JSON pointer refers to in the document; None if nothing is there, {} if it is no pointer into it."""
    reference = unescaped(reference)
    if reference != "#" and not reference.startswith("#/"):
        return {}
    found = root
    for step in reference.split("/")[1:]:
        step = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, list) and step.isdecimal() and len(step) < 10:
            found = found[int(step)] if int(step) < len(found) else None
        else:
            found = found.get(step) if isinstance(found, dict) else None
    return found


def unescaped(reference: str) -> str:
    """A reference without percent-encoding."""
    if "%" not in reference:
        return reference
    # Hardly any reference needs it, so it is imported for those that do.
    from urllib.parse import unquote

    return unquote(reference)


def resolved(schema: Any, root: Any) -> Schema:
    """What a schema stands for once references into the same document are followed. What stands beside them wins."""
    for _ in range(MOST_REFERENCES):
        if not isinstance(schema, dict) or not isinstance(schema.get("$ref"), str):
            break
        found = target_of(schema["$ref"], root)
        schema = {**found, **without(schema, "$ref")} if isinstance(found, dict) else {}
    return schema if isinstance(schema, dict) else {}


def merged(one: Schema, other: Schema) -> Schema:
    """Both at once. Where they disagree the second, which is the more particular, is believed."""
    both = {**one, **other}
    if properties := {**properties_of(one), **properties_of(other)}:
        both["properties"] = properties
    if required := dict.fromkeys([*required_of(one), *required_of(other)]):
        both["required"] = list(required)
    return both


def with_all_of(schema: Schema, root: Schema) -> Schema:
    """A schema together with the parts of its `allOf`."""
    whole = without(schema, "allOf")
    for part in list_of(schema, "allOf")[:MOST_OPTIONS]:
        whole = merged(whole, resolved(part, root))
    return whole


def cleaned(schema: Any, keep: tuple[str, ...] = ()) -> Schema:
    """Without the keywords that are not what they must be, or that are not read."""
    if not isinstance(schema, dict):
        return {}
    found = {name: value for name, value in schema.items() if name in keep or _is_sound(name, value)}
    if "type" in found:
        kinds = types_of(found)
        found["type"] = kinds[0] if len(kinds) == 1 else kinds
        if not kinds:
            del found["type"]
    if "properties" in found:
        # A property that is `true` takes anything.
        found["properties"] = {
            str(name): one if isinstance(one, dict) else {} for name, one in found["properties"].items()
        }
    if "required" in found:
        found["required"] = required_of(found)
    return found


def _is_sound(name: str, value: Any) -> bool:
    wanted = _KEYWORDS.get(name)
    if wanted is None or not isinstance(value, wanted):
        return False
    # True is an int in Python, and no number in JSON.
    return not isinstance(value, bool) or wanted is object or name == "additionalProperties"


class Reader:
    """Answers questions about the parts of one document."""

    def __init__(self, root: Any) -> None:
        self.root: Schema = root if isinstance(root, dict) else {}
        # By the address of the schema, which is kept beside its options so that no other one can get that address.
        self._known: dict[int, tuple[Schema, list[Schema]]] = {}

    def options(self, schema: Schema) -> list[Schema]:
        """Each way to satisfy a schema, as one flat schema, as far as that can be said."""
        known = self._known.get(id(schema))
        if known is None:
            known = self._known[id(schema)] = (schema, self._options(schema, DEEPEST, iter(range(MOST_READ))))
        return known[1]

    def _options(self, schema: Any, depth: int, budget: Iterator[int]) -> list[Schema]:
        schema = resolved(schema, self.root)
        options = [cleaned(schema)]
        if depth == 0 or next(budget, None) is None:
            return options
        for member in list_of(schema, "allOf")[:MOST_OPTIONS]:
            parts = self._options(member, depth - 1, budget)
            options = [merged(one, parts[0]) for one in options] if len(parts) == 1 else options
        for keyword in ("anyOf", "oneOf"):
            members = list_of(schema, keyword)
            if members:
                parts = [part for member in members[:MOST_OPTIONS] for part in self._options(member, depth - 1, budget)]
                if len(members) > MOST_OPTIONS or len(parts) * len(options) > MOST_OPTIONS:
                    # Whatever the rest of them accept.
                    parts = [*parts[: MOST_OPTIONS // len(options)], {}]
                options = [merged(one, part) for one in options for part in parts]
        return options

    def resolved(self, schema: Schema) -> Schema:
        return cleaned(without(resolved(schema, self.root), "$ref"), _COMPOSED)

    def takes(self, schema: Schema, kind: str) -> bool:
        """Whether some value of this JSON type could be accepted."""
        return any(takes(option, kind) for option in self.options(schema))

    def property(self, schema: Schema, name: str) -> Schema:
        """What one option accepts under a name."""
        found = schema.get("properties", {}).get(name, schema.get("additionalProperties"))
        return found if isinstance(found, dict) else _ANYTHING

    def item(self, schema: Schema, at: int) -> Schema:
        """What one option accepts at a place of an array."""
        first = schema.get("prefixItems", [])
        found = first[at] if at < len(first) else schema.get("items")
        return found if isinstance(found, dict) else _ANYTHING

    def member(self, schema: Schema, name: str) -> Schema:
        """What is accepted under a name, whichever option it belongs to."""
        options = self.options(schema)
        holding = [option for option in options if name in option.get("properties", ())]
        found = [cleaned(self.property(option, name), _COMPOSED) for option in holding or options]
        return found[0] if len(found) == 1 else {"anyOf": _distinct(found)} if found else {}

    def names(self, schema: Schema) -> list[str]:
        """The names of the properties, in the order they are written in."""
        return list(dict.fromkeys(name for option in self.options(schema) for name in option.get("properties", ())))

    def required(self, schema: Schema) -> list[str]:
        options = self.options(schema)
        return [name for name in self.names(schema) if all(name in option.get("required", ()) for option in options)]

    def takes_more(self, schema: Schema) -> bool:
        """Whether it says that properties beside those it names are welcome, or names none."""
        return any(
            option.get("additionalProperties", not option.get("properties")) is not False
            for option in self.options(schema)
        )

    def choices(self, schema: Schema) -> list[Any]:
        """The values to choose from, where only some are accepted."""
        return _distinct([value for option in self.options(schema) for value in values_of(option)][:MOST_CHOICES])

    def titled_choices(self, schema: Schema) -> list[tuple[Any, str]]:
        """The choices of a form's field or of its items, each with the words that a person is shown: `enum`, perhaps
        with `enumNames`, or `oneOf`/`anyOf` with titles."""
        items = schema.get("items")
        if self.takes(schema, "array") and isinstance(items, dict):
            schema = items
        titled = [
            (one["const"], str(one.get("title", one["const"])))
            for keyword in ("oneOf", "anyOf")
            for one in list_of(schema, keyword)[:MOST_OPTIONS]
            if isinstance(one, dict) and "const" in one
        ]
        values, names = self.choices(schema), list_of(schema, "enumNames")
        return titled or list(zip(values, map(str, names if len(names) == len(values) else values), strict=True))

    def is_base64(self, schema: Schema) -> bool:
        return any(option.get("contentEncoding") == "base64" for option in self.options(schema))


def takes(option: Schema, kind: str) -> bool:
    """Whether an option accepts some value of this JSON type."""
    if values := values_of(option):
        return any(kind_of(value) == kind for value in values)
    wanted = option.get("type", kind)
    wanted = wanted if isinstance(wanted, list) else [wanted]
    return kind in wanted or (kind == "integer" and "number" in wanted)


def _distinct(values: list[Any]) -> list[Any]:
    found: list[Any] = []
    for value in values:
        if not any(kind_of(value) == kind_of(other) and value == other for other in found):
            found.append(value)
    return found
