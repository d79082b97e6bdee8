"""Values that fit a schema, for examples; and texts that match a pattern."""

from __future__ import annotations

import math
import re
import string
import warnings
from collections.abc import Callable
from itertools import islice
from typing import Any

from portico.jsonschema import Schema
from portico.jsonschema.reader import (
    MOST_FIELDS,
    list_of,
    merged,
    options_of,
    properties_of,
    required_of,
    resolved,
    types_of,
    values_of,
    with_all_of,
    without,
)
from portico.jsonschema.validation import Unfit, complaints

DEEPEST = 12
# How far down an example has what it need not have. What contains itself would otherwise go on for ever.
SHOWN = 4
MOST_ITEMS = 20
MOST_STEPS = 2000
LONGEST_TEXT = 200

_FORMATS = {
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


class Unsayable(ValueError):
    """No value could be found that fits."""


def sample(schema: Schema, *, full: bool = False) -> Any:
    """A value that fits. `full`: with what is optional, too."""
    for wanted in (full, not full):
        found = _SampleMaker(schema, full=wanted).make(schema, "", DEEPEST)
        if _fits(schema, found):
            return found
    simple: Any
    for simple in ({}, "", 0, [], None, True):
        if _fits(schema, simple):
            return simple
    raise Unsayable("no example was found that fits the schema")


def _fits(schema: Schema, value: Any) -> bool:
    try:
        return not complaints(schema, value)
    except Unfit:
        # Nothing can be held against it.
        return True


class _SampleMaker:
    def __init__(self, root: Schema, *, full: bool) -> None:
        self._root = root
        self._full = full
        self._steps = MOST_STEPS

    def make(self, schema: Any, name: str, depth: int) -> Any:
        self._steps -= 1
        if self._steps < 0 or depth < 0 or not isinstance(schema, dict):
            return name or "text"
        found = with_all_of(resolved(schema, self._root), self._root)
        said, value = _given(found)
        if said:
            return value
        options = options_of(found)
        if options:
            return self._of_options(found, options, name, depth)
        kinds = types_of(found) or _implied(found)
        kind = next((one for one in kinds if one != "null"), "null")
        return self._of_kind(kind, found, name, depth)

    def _of_options(self, schema: Schema, options: list[Any], name: str, depth: int) -> Any:
        """The first that is not null (deep inside, null), together with what stands beside the options."""
        beside = without(schema, "anyOf", "oneOf")
        chosen = [resolved(one, self._root) for one in options]
        deep = depth < DEEPEST - SHOWN
        best = next((one for one in chosen if (types_of(one) == ["null"]) is deep), chosen[0])
        return self.make(merged(best, beside), name, depth - 1)

    def _of_kind(self, kind: str, schema: Schema, name: str, depth: int) -> Any:
        if kind == "object":
            return self._object(schema, depth)
        if kind == "array":
            return self._array(schema, name, depth)
        if kind in ("integer", "number"):
            return _number(schema, whole=kind == "integer")
        return {"boolean": True, "null": None}[kind] if kind in ("boolean", "null") else _text(schema, name)

    def _object(self, schema: Schema, depth: int) -> dict[str, Any]:
        known, required = properties_of(schema), required_of(schema)
        wanted = list(known) if self._full and depth > DEEPEST - SHOWN else [name for name in known if name in required]
        found = {name: self.make(known[name], name, depth - 1) for name in wanted}
        for name in required:
            if name not in found:
                found[name] = self.make(schema.get("additionalProperties"), name, depth - 1)
        for name in islice(known, MOST_FIELDS):
            if len(found) < _count(schema.get("minProperties")):
                found.setdefault(name, self.make(known[name], name, depth - 1))
        while len(found) < _count(schema.get("minProperties")):
            found[f"key{len(found) + 1}"] = self.make(schema.get("additionalProperties"), "value", depth - 1)
        return found

    def _array(self, schema: Schema, name: str, depth: int) -> list[Any]:
        found = [self.make(one, name, depth - 1) for one in list_of(schema, "prefixItems")[:MOST_ITEMS]]
        least = max(_count(schema.get("minItems")), 0 if found or depth < DEEPEST - SHOWN else 1)
        items = resolved(schema.get("items", {}), self._root)
        if "maxItems" in schema and _count(schema["maxItems"]) < least:
            return found
        choices = list_of(items, "enum") if schema.get("uniqueItems") else []
        while len(found) < min(least, MOST_ITEMS):
            if len(found) < len(choices):
                found.append(choices[len(found)])
                continue
            value = self.make(items, name.removesuffix("s"), depth - 1)
            found.append(_another(value, len(found)) if value in found and schema.get("uniqueItems") else value)
        return found


def _given(schema: Schema) -> tuple[bool, Any]:
    """What the schema itself says a value could be."""
    given = [*list_of(schema, "examples")[:1], *(schema[key] for key in ("example", "const") if key in schema)]
    if schema.get("default") is not None:
        given.append(schema["default"])
    given += values_of(schema)[:1]
    return (True, given[0]) if given else (False, None)


def _implied(schema: Schema) -> list[str]:
    if properties_of(schema) or required_of(schema):
        return ["object"]
    return ["array"] if "items" in schema else ["string"]


def _count(value: Any) -> int:
    return min(value, MOST_ITEMS) if type(value) is int and value > 0 else 0


def _another(value: Any, at: int) -> Any:
    if isinstance(value, str):
        return f"{value}{at + 1}"
    return value + at if type(value) in (int, float) else value


def _number(schema: Schema, *, whole: bool) -> float:
    """One, or else something near the bounds."""
    given: Any = schema.get("multipleOf")
    step: float = given if type(given) in (int, float) and given > 0 else (1 if whole else 0)
    least = max(_bound(schema, "minimum", -1), _bound(schema, "exclusiveMinimum", -1))
    most = min(_bound(schema, "maximum", 1), _bound(schema, "exclusiveMaximum", 1))
    nudge = step or 0.5
    for value in (1, 0, step, least, least + nudge, (least + most) / 2, most - nudge, most):
        if math.isfinite(value):
            for snapped in (math.ceil(value / step) * step, math.floor(value / step) * step) if step else (value,):
                if _is_within(schema, snapped):
                    return int(snapped) if whole or float(snapped).is_integer() else snapped
    return 1


def _is_within(schema: Schema, value: float) -> bool:
    return (
        _bound(schema, "minimum", -1) <= value <= _bound(schema, "maximum", 1)
        and _bound(schema, "exclusiveMinimum", -1) < value < _bound(schema, "exclusiveMaximum", 1)
    )  # fmt: skip


def _bound(schema: Schema, key: str, sign: int) -> float:
    value: Any = schema.get(key)
    return float(value) if type(value) in (int, float) and abs(value) < 1e300 else sign * math.inf


def _text(schema: Schema, name: str) -> str:
    least = schema.get("minLength")
    least = least if type(least) is int and 0 < least <= LONGEST_TEXT else 0
    if isinstance(schema.get("pattern"), str):
        try:
            return text_matching(schema["pattern"], least)
        except NotUnderstood:
            pass
    if schema.get("contentEncoding") == "base64":
        return "aGVsbG8="
    found = _FORMATS.get(str(schema.get("format")), name or "text")
    found += "x" * (least - len(found))
    most = schema.get("maxLength")
    return found[:most] if type(most) is int and most >= 0 else found


# Texts that match a pattern. Only what most schemas use is understood, and the result is checked by the schema.

LONGEST_PATTERN = 500
LONGEST_MATCH = 1000

_ANY = string.ascii_lowercase + string.ascii_uppercase + string.digits + "_- .:/@"
_ENDS = ("AT_BEGINNING", "AT_BEGINNING_STRING", "AT_END", "AT_END_STRING")
_CATEGORIES: dict[str, Callable[[str], bool]] = {
    "DIGIT": str.isdigit,
    "WORD": lambda char: char.isalnum() or char == "_",
    "SPACE": str.isspace,
}


class NotUnderstood(ValueError):
    """The pattern says something that is not understood here."""


def text_matching(pattern: str, least: int = 0) -> str:
    """A text that matches, of at least so many characters where something in the pattern repeats."""
    if len(pattern) > LONGEST_PATTERN:
        raise NotUnderstood("it is too long")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # How Python itself reads a pattern. It is private, but other libraries that make texts build on it too.
            parts = re._parser.parse(pattern)  # type: ignore[attr-defined]
    except (re.error, RecursionError, OverflowError) as failure:
        raise NotUnderstood(str(failure)) from None
    shortest = _written(parts, 0)
    return shortest if len(shortest) >= least else _written(parts, min(least, LONGEST_MATCH))


def _written(parts: Any, extra: int) -> str:
    """What a sequence asks for. `extra`: how many characters more than needed to write where something repeats."""
    text = ""
    for kind, value in parts:
        text += _part(str(kind), value, max(extra - len(text), 0))
        if len(text) > LONGEST_MATCH:
            raise NotUnderstood("what it asks for is too long")
    return text


def _part(kind: str, value: Any, extra: int) -> str:
    if kind == "LITERAL":
        return chr(value)
    if kind == "ANY" or (kind == "AT" and str(value) in _ENDS):
        return "a" if kind == "ANY" else ""
    if kind in ("IN", "NOT_LITERAL"):
        return _chosen(value if kind == "IN" else [("NEGATE", None), ("LITERAL", value)])
    if kind == "SUBPATTERN":
        return _written(value[-1], extra)
    if kind == "BRANCH":
        return _written(value[1][0], extra)
    if kind in ("MAX_REPEAT", "MIN_REPEAT"):
        least, most = int(value[0]), int(value[1])
        once = _written(value[2], 0)
        # What may repeat makes up for what is missing in length; the most is a matter of the schema.
        times = min(least if least == most else least + extra, most)
        if len(once) * times <= LONGEST_MATCH:
            return once * times
    raise NotUnderstood(f"{kind} is not understood")


def _chosen(items: list[tuple[object, Any]]) -> str:
    """One of a set of characters: a letter or a digit, if there is one."""
    kinds = [(str(kind), value) for kind, value in items]
    is_negative = kinds[0][0] == "NEGATE"
    own = [chr(value if kind == "LITERAL" else value[0]) for kind, value in kinds if kind in ("LITERAL", "RANGE")]
    fitting = [char for char in (*own, *_ANY) if any(_holds(*one, char) for one in kinds) is not is_negative]
    if not fitting:
        raise NotUnderstood("a set is empty")
    best: str = next((char for char in fitting if char.isalnum()), fitting[0])
    return best


def _holds(kind: str, value: Any, char: str) -> bool:
    if kind == "CATEGORY":
        name = str(value).removeprefix("CATEGORY_")
        return _CATEGORIES[name.removeprefix("NOT_")](char) is not name.startswith("NOT_")
    first, last = value if kind == "RANGE" else (value, value)
    return kind != "NEGATE" and first <= ord(char) <= last
