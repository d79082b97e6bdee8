"""The input schema of a tool that somebody else wrote, read with care: it may be wrong, endless, or made to hurt.

Only what certainly does not fit is refused here. Patterns, formats and conditions are the server's to check: a
stranger's regular expression can take for ever, so can a validator with a stranger's schema, and a date that we would
not read may be one that the server does.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from portico.schema import Schema
from portico.schema.explain import described
from portico.schema.problems import Inspector, kind_of

MOST_OPTIONS = 64
MOST_CHOICES = 500
DEEPEST = 16
# Schemas looked at to answer one question. What refers to itself twice would otherwise be looked at for ever.
MOST_READ = 300

# What each keyword has to be to mean anything; others are not read.
_TYPES: dict[str, Any] = {
    "type": (str, list),
    "enum": list,
    "enumNames": list,
    "properties": dict,
    "required": list,
    "items": dict,
    "prefixItems": list,
    "additionalProperties": (bool, dict),
    "minimum": (int, float),
    "maximum": (int, float),
    "exclusiveMinimum": (int, float),
    "exclusiveMaximum": (int, float),
    "minLength": int,
    "maxLength": int,
    "minItems": int,
    "maxItems": int,
    "contentEncoding": str,
    "description": str,
    "title": str,
    "format": str,
    "pattern": str,
}
# Not looked at here but for words.
_DESCRIBING = ("format", "pattern", "contentEncoding")
_COMPOSED = ("$ref", "anyOf", "oneOf", "allOf")
_JSON_TYPES = ("string", "integer", "number", "boolean", "null", "array", "object")


class Reader(Inspector):
    """An Inspector for schemas that are not ours."""

    def __init__(self, schema: Any) -> None:
        super().__init__(_cleaned(schema))
        self.root = schema

    # What a schema accepts

    def resolved(self, schema: Schema) -> Schema:
        return _cleaned(self._pointed(schema), _COMPOSED)

    def options(self, schema: Schema) -> list[Schema]:
        """Each way to satisfy a schema, as one flat schema, as far as that can be said."""
        return [_without(option, _DESCRIBING) for option in self._ways(schema)]

    def property(self, schema: Schema, name: str) -> Schema:
        return _cleaned(super().property(schema, name), _COMPOSED)

    def words(self, schema: Schema) -> str:
        return described(self._ways(schema), self.resolved)

    def is_open(self, schema: Schema) -> bool:
        """Whether it says nothing about the type of its values."""
        return any("type" not in option and not values_of(option) for option in self.options(schema))

    def is_base64(self, schema: Schema) -> bool:
        return any(option.get("contentEncoding") == "base64" for option in self._ways(schema))

    def known(self, schema: Schema) -> list[str]:
        """The names of the properties, in the order they are written in."""
        return list(dict.fromkeys(name for option in self.options(schema) for name in option.get("properties", ())))

    def required(self, schema: Schema) -> list[str]:
        options = self.options(schema)
        return [name for name in self.known(schema) if all(name in option.get("required", ()) for option in options)]

    def takes_more(self, schema: Schema) -> bool:
        """Whether it says that properties beside those it names are welcome, or names none."""
        return any(
            option.get("additionalProperties", not option.get("properties")) is not False
            for option in self.options(schema)
        )

    def member(self, schema: Schema, name: str) -> Schema:
        """What a property accepts, whichever option it belongs to."""
        options = self.options(schema)
        holding = [option for option in options if name in option.get("properties", ())]
        found = [self.property(option, name) for option in holding or options]
        return found[0] if len(found) == 1 else {"anyOf": _distinct(found)} if found else {}

    def choices(self, schema: Schema) -> list[Any]:
        return _distinct([value for option in self.options(schema) for value in values_of(option)][:MOST_CHOICES])

    # How it is written

    def _ways(self, schema: Schema) -> list[Schema]:
        return self._options(schema, DEEPEST, iter(range(MOST_READ)))

    def _pointed(self, schema: Any) -> Schema:
        """What a reference stands for. Only those into the same schema are followed: never into the network."""
        for _ in range(DEEPEST):
            if not isinstance(schema, dict) or not isinstance(schema.get("$ref"), str):
                break
            beside = _without(schema, ("$ref",))
            schema = self._found(schema["$ref"])
            if isinstance(schema, dict):
                schema = {**schema, **beside}
        return _without(schema, ("$ref",)) if isinstance(schema, dict) else {}

    def _found(self, reference: str) -> Any:
        if not reference.startswith("#"):
            return {}
        found = self.root
        for step in reference[1:].split("/")[1:]:
            found = found.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(found, dict) else None
        return found

    def _options(self, schema: Any, depth: int, budget: Iterator[int]) -> list[Schema]:
        schema = self._pointed(schema)
        options = [_cleaned(schema)]
        if depth == 0 or next(budget, None) is None:
            return options
        for member in listed(schema.get("allOf")):
            parts = self._options(member, depth - 1, budget)
            options = [_merged(one, parts[0]) for one in options] if len(parts) == 1 else options
        for keyword in ("anyOf", "oneOf"):
            members = listed(schema.get(keyword))
            if members:
                parts = [part for member in members for part in self._options(member, depth - 1, budget)]
                options = [_merged(one, part) for one in options for part in parts[:MOST_OPTIONS]][:MOST_OPTIONS]
        return options


def values_of(option: Schema) -> list[Any]:
    return [option["const"]] if "const" in option else list(option.get("enum", ()))


def _cleaned(schema: Any, keep: tuple[str, ...] = ()) -> Schema:
    """Without the keywords that are not what they must be."""
    if not isinstance(schema, dict):
        return {}
    found = {
        name: value
        for name, value in schema.items()
        if name in ("const", "default", *keep)
        or (name in _TYPES and isinstance(value, _TYPES[name]) and not _is_truth(name, value))
    }
    if "type" in found:
        kinds = found["type"] if isinstance(found["type"], list) else [found["type"]]
        known = [kind for kind in kinds if kind in _JSON_TYPES]
        found["type"] = known[0] if len(known) == 1 else known
        if not known:
            del found["type"]
    if "properties" in found:
        # A property that is `true` takes anything.
        found["properties"] = {
            str(name): one if isinstance(one, dict) else {} for name, one in found["properties"].items()
        }
    if "required" in found:
        found["required"] = [name for name in found["required"] if isinstance(name, str)]
    return found


def _is_truth(name: str, value: Any) -> bool:
    """True is an int in Python, and no number in JSON."""
    return isinstance(value, bool) and name != "additionalProperties"


def _merged(one: Schema, other: Schema) -> Schema:
    """Both at once. Where they disagree the second, which is the more particular, is believed."""
    both = {**one, **other}
    if "properties" in one and "properties" in other:
        both["properties"] = {**one["properties"], **other["properties"]}
    if "required" in one and "required" in other:
        both["required"] = [*one["required"], *other["required"]]
    return both


def _without(schema: Schema, names: tuple[str, ...]) -> Schema:
    return {name: value for name, value in schema.items() if name not in names}


def listed(value: Any) -> list[Any]:
    return value[:MOST_OPTIONS] if isinstance(value, list) else []


def _distinct(values: list[Any]) -> list[Any]:
    found: list[Any] = []
    for value in values:
        if not any(kind_of(value) == kind_of(other) and value == other for other in found):
            found.append(value)
    return found
