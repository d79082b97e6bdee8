"""Generation of example values for schemas, and of strings that match a pattern."""

from __future__ import annotations

import math
import re
import string
import warnings
from collections.abc import Callable
from itertools import islice
from typing import Any

from portico.jsonschema.reader import (
    MAX_PROPERTIES,
    get_alternatives,
    get_enum_values,
    get_list,
    get_properties,
    get_required,
    get_types,
    merge_all_of,
    merge_schemas,
    omit_keywords,
    resolve_references,
)
from portico.jsonschema.schema import Schema
from portico.jsonschema.validation import InvalidSchema, validate

MAX_DEPTH = 12
# Depth up to which optional members are included; bounds recursive schemas.
MAX_OPTIONAL_DEPTH = 4
MAX_ITEMS = 20
# Recursive schemas would otherwise grow exponentially with each optional member.
MAX_GENERATION_STEPS = 2000
MAX_TEXT_CHARS = 200

_FORMAT_EXAMPLES = {
    "date-time": "2024-01-15T10:30:00Z",
    "date": "2024-01-15",
    "time": "10:30:00Z",
    "duration": "PT90S",
    "email": "ada@example.com",
    "idn-email": "ada@example.com",
    "hostname": "example.com",
    "ipv4": "192.0.2.1",
    "ipv6": "2001:db8::1",
    "uri": "https://example.com/",
    "uri-reference": "/path",
    "iri": "https://example.com/",
    "uuid": "123e4567-e89b-12d3-a456-426614174000",
    "json-pointer": "/a",
    "regex": "^a$",
    "decimal": "12.50",
    "path": "notes.txt",
}


class NoExampleFound(ValueError):
    """No matching value was found."""


def generate_example(schema: Schema, *, include_optional: bool = False) -> Any:
    """Return a value that the schema accepts. `include_optional`: with optional members, too.

    Raises `NoExampleFound`.
    """
    # If the preferred variant does not validate, the other one may.
    for with_optional in (include_optional, not include_optional):
        result = _ExampleGenerator(schema, include_optional=with_optional).make(schema, "", MAX_DEPTH)
        if _is_valid(schema, result):
            return result
    simple: Any
    # Schemas with `not` or conditions often accept one of these.
    for simple in ({}, "", 0, [], None, True):
        if _is_valid(schema, simple):
            return simple
    raise NoExampleFound("no example was found that fits the schema")


def _is_valid(schema: Schema, value: Any) -> bool:
    try:
        return not validate(schema, value)
    except InvalidSchema:
        # The schema cannot be used for validation, so any value is accepted.
        return True


class _ExampleGenerator:
    """Generator of one example, with a step budget."""

    def __init__(self, root: Schema, *, include_optional: bool) -> None:
        self._root = root
        self._include_optional = include_optional
        self._steps = MAX_GENERATION_STEPS

    def make(self, schema: Any, name: str, depth: int) -> Any:
        self._steps -= 1
        if self._steps < 0 or depth < 0 or not isinstance(schema, dict):
            return name or "text"
        result = merge_all_of(resolve_references(schema, self._root), self._root)
        is_declared, value = _declared_example(result)
        if is_declared:
            return value
        options = get_alternatives(result)
        if options:
            return self._from_alternatives(result, options, name, depth)
        kinds = get_types(result) or _inferred_example(result)
        kind = next((item for item in kinds if item != "null"), "null")
        return self._from_type(kind, result, name, depth)

    def _from_alternatives(self, schema: Schema, options: list[Any], name: str, depth: int) -> Any:
        """Use the first alternative that is not null (deep inside: null), merged with the sibling keywords."""
        siblings = omit_keywords(schema, "anyOf", "oneOf")
        resolved = [resolve_references(option, self._root) for option in options]
        is_deep = depth < MAX_DEPTH - MAX_OPTIONAL_DEPTH
        best = next((option for option in resolved if (get_types(option) == ["null"]) is is_deep), resolved[0])
        return self.make(merge_schemas(best, siblings), name, depth - 1)

    def _from_type(self, kind: str, schema: Schema, name: str, depth: int) -> Any:
        if kind == "object":
            return self._object(schema, depth)
        if kind == "array":
            return self._array(schema, name, depth)
        if kind in ("integer", "number"):
            return _number(schema, whole=kind == "integer")
        return {"boolean": True, "null": None}[kind] if kind in ("boolean", "null") else _text(schema, name)

    def _object(self, schema: Schema, depth: int) -> dict[str, Any]:
        properties, required = get_properties(schema), get_required(schema)
        selected = (
            list(properties)
            if self._include_optional and depth > MAX_DEPTH - MAX_OPTIONAL_DEPTH
            else [name for name in properties if name in required]
        )
        result = {name: self.make(properties[name], name, depth - 1) for name in selected}
        for name in required:
            if name not in result:
                result[name] = self.make(schema.get("additionalProperties"), name, depth - 1)
        for name in islice(properties, MAX_PROPERTIES):
            if len(result) < _count(schema.get("minProperties")):
                result.setdefault(name, self.make(properties[name], name, depth - 1))
        while len(result) < _count(schema.get("minProperties")):
            result[f"key{len(result) + 1}"] = self.make(schema.get("additionalProperties"), "value", depth - 1)
        return result

    def _array(self, schema: Schema, name: str, depth: int) -> list[Any]:
        result = [self.make(item, name, depth - 1) for item in get_list(schema, "prefixItems")[:MAX_ITEMS]]
        minimum = max(_count(schema.get("minItems")), 0 if result or depth < MAX_DEPTH - MAX_OPTIONAL_DEPTH else 1)
        items = resolve_references(schema.get("items", {}), self._root)
        if "maxItems" in schema and _count(schema["maxItems"]) < minimum:
            return result
        # Unique items of an enumeration have to be different values of it.
        choices = get_list(items, "enum") if schema.get("uniqueItems") else []
        while len(result) < min(minimum, MAX_ITEMS):
            if len(result) < len(choices):
                result.append(choices[len(result)])
                continue
            value = self.make(items, name.removesuffix("s"), depth - 1)
            result.append(_vary_value(value, len(result)) if value in result and schema.get("uniqueItems") else value)
        return result


def _declared_example(schema: Schema) -> tuple[bool, Any]:
    """Return whether the schema declares an example, default or enum value, and that value."""
    # The author knows best: declared values are more telling than generated ones.
    declared = [*get_list(schema, "examples")[:1], *(schema[key] for key in ("example", "const") if key in schema)]
    if schema.get("default") is not None:
        declared.append(schema["default"])
    declared += get_enum_values(schema)[:1]
    return (True, declared[0]) if declared else (False, None)


def _inferred_example(schema: Schema) -> list[str]:
    if get_properties(schema) or get_required(schema):
        return ["object"]
    return ["array"] if "items" in schema else ["string"]


def _count(value: Any) -> int:
    return min(value, MAX_ITEMS) if type(value) is int and value > 0 else 0


def _vary_value(value: Any, at: int) -> Any:
    if isinstance(value, str):
        return f"{value}{at + 1}"
    return value + at if type(value) in (int, float) else value


def _number(schema: Schema, *, whole: bool) -> float:
    """Return 1 if it is valid, else a number near the bounds."""
    multiple: Any = schema.get("multipleOf")
    step: float = multiple if type(multiple) in (int, float) and multiple > 0 else (1 if whole else 0)
    minimum = max(_get_bound(schema, "minimum", -1), _get_bound(schema, "exclusiveMinimum", -1))
    maximum = min(_get_bound(schema, "maximum", 1), _get_bound(schema, "exclusiveMaximum", 1))
    nudge = step or 0.5
    # From the most natural number to the bounds themselves, which may be exclusive.
    for value in (1, 0, step, minimum, minimum + nudge, (minimum + maximum) / 2, maximum - nudge, maximum):
        if math.isfinite(value):
            for snapped in (math.ceil(value / step) * step, math.floor(value / step) * step) if step else (value,):
                if _is_within(schema, snapped):
                    return int(snapped) if whole or float(snapped).is_integer() else snapped
    return 1


def _is_within(schema: Schema, value: float) -> bool:
    return (
        _get_bound(schema, "minimum", -1) <= value <= _get_bound(schema, "maximum", 1)
        and _get_bound(schema, "exclusiveMinimum", -1) < value < _get_bound(schema, "exclusiveMaximum", 1)
    )  # fmt: skip


def _get_bound(schema: Schema, key: str, sign: int) -> float:
    value: Any = schema.get(key)
    return float(value) if type(value) in (int, float) and abs(value) < 1e300 else sign * math.inf


def _text(schema: Schema, name: str) -> str:
    minimum = schema.get("minLength")
    minimum = minimum if type(minimum) is int and 0 < minimum <= MAX_TEXT_CHARS else 0
    if isinstance(schema.get("pattern"), str):
        try:
            return generate_matching_text(schema["pattern"], minimum)
        except NoExampleFound:
            pass
    if schema.get("contentEncoding") == "base64":
        return "aGVsbG8="
    format_example = _FORMAT_EXAMPLES.get(str(schema.get("format")), name or "text")
    # Usually invalid for a format, but valid for a plain string with a minimum length.
    format_example += "x" * (minimum - len(format_example))
    maximum = schema.get("maxLength")
    return format_example[:maximum] if type(maximum) is int and maximum >= 0 else format_example


# Strings that match a pattern. Only common syntax is supported; the result is validated against the schema.

MAX_PATTERN_CHARS = 500
MAX_MATCH_CHARS = 1000

_ANY = string.ascii_lowercase + string.ascii_uppercase + string.digits + "_- .:/@"
_ENDS = ("AT_BEGINNING", "AT_BEGINNING_STRING", "AT_END", "AT_END_STRING")
_CATEGORIES: dict[str, Callable[[str], bool]] = {
    "DIGIT": str.isdigit,
    "WORD": lambda char: char.isalnum() or char == "_",
    "SPACE": str.isspace,
}


def generate_matching_text(pattern: str, min_length: int = 0) -> str:
    """Return a matching string of at least `min_length` characters, if the pattern has a repetition."""
    if len(pattern) > MAX_PATTERN_CHARS:
        raise NoExampleFound("it is too long")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # Python's own pattern parser. It is private, but other libraries depend on it, too.
            parts = re._parser.parse(pattern)  # type: ignore[attr-defined]
    except (re.error, RecursionError, OverflowError) as failure:
        raise NoExampleFound(str(failure)) from None
    shortest = _generate_sequence(parts, 0)
    return shortest if len(shortest) >= min_length else _generate_sequence(parts, min(min_length, MAX_MATCH_CHARS))


def _generate_sequence(parts: Any, extra: int) -> str:
    """Generate text for a sequence. `extra`: characters to add where something repeats."""
    text = ""
    for kind, value in parts:
        text += _generate_part(str(kind), value, max(extra - len(text), 0))
        if len(text) > MAX_MATCH_CHARS:
            raise NoExampleFound("the generated text is too long")
    return text


def _generate_part(kind: str, value: Any, extra: int) -> str:
    if kind == "LITERAL":
        return chr(value)
    if kind == "ANY" or (kind == "AT" and str(value) in _ENDS):
        return "a" if kind == "ANY" else ""
    if kind in ("IN", "NOT_LITERAL"):
        return _choose_char(value if kind == "IN" else [("NEGATE", None), ("LITERAL", value)])
    if kind == "SUBPATTERN":
        return _generate_sequence(value[-1], extra)
    if kind == "BRANCH":
        return _generate_sequence(value[1][0], extra)
    if kind in ("MAX_REPEAT", "MIN_REPEAT"):
        minimum, maximum = int(value[0]), int(value[1])
        once = _generate_sequence(value[2], 0)
        # Repetitions provide the missing length; the schema checks the maximum.
        times = min(minimum if minimum == maximum else minimum + extra, maximum)
        if len(once) * times <= MAX_MATCH_CHARS:
            return once * times
    raise NoExampleFound(f"{kind} is not supported")


def _choose_char(items: list[tuple[object, Any]]) -> str:
    """Return a character of a set, preferably a letter or digit."""
    kinds = [(str(kind), value) for kind, value in items]
    is_negative = kinds[0][0] == "NEGATE"
    own = [chr(value if kind == "LITERAL" else value[0]) for kind, value in kinds if kind in ("LITERAL", "RANGE")]
    fitting = [char for char in (*own, *_ANY) if any(_class_contains(*item, char) for item in kinds) is not is_negative]
    if not fitting:
        raise NoExampleFound("a set is empty")
    best: str = next((char for char in fitting if char.isalnum()), fitting[0])
    return best


def _class_contains(kind: str, value: Any, char: str) -> bool:
    if kind == "CATEGORY":
        name = str(value).removeprefix("CATEGORY_")
        return _CATEGORIES[name.removeprefix("NOT_")](char) is not name.startswith("NOT_")
    first, last = value if kind == "RANGE" else (value, value)
    return kind != "NEGATE" and first <= ord(char) <= last
