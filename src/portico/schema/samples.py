"""Values that fit a schema, for examples."""

from __future__ import annotations

import math
from itertools import islice
from typing import Any

from portico.schema import Schema, patterns
from portico.schema import check as schemas
from portico.schema.check import options_of, properties_of, required_of, resolved, types_of

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
        found = _Maker(schema, full=wanted).make(schema, "", DEEPEST)
        if _fits(schema, found):
            return found
    simple: Any
    for simple in ({}, "", 0, [], None, True):
        if _fits(schema, simple):
            return simple
    raise Unsayable("no example was found that fits the schema")


def _fits(schema: Schema, value: Any) -> bool:
    try:
        return not schemas.complaints(schema, value)
    except schemas.Unfit:
        # Nothing can be held against it.
        return True


class _Maker:
    def __init__(self, root: Schema, *, full: bool) -> None:
        self._root = root
        self._full = full
        self._steps = MOST_STEPS

    def make(self, schema: Any, name: str, depth: int) -> Any:
        self._steps -= 1
        if self._steps < 0 or depth < 0 or not isinstance(schema, dict):
            return name or "text"
        found = self._whole(resolved(schema, self._root))
        said, value = _given(found)
        if said:
            return value
        options = options_of(found)
        if options:
            return self._of_options(found, options, name, depth)
        kinds = types_of(found) or _implied(found)
        kind = next((one for one in kinds if one != "null"), "null")
        return self._of_kind(kind, found, name, depth)

    def _whole(self, schema: Schema) -> Schema:
        """With what `allOf` adds."""
        parts = schema.get("allOf")
        if not isinstance(parts, list):
            return schema
        whole = {key: value for key, value in schema.items() if key != "allOf"}
        for part in parts[: schemas.MOST_PARTS]:
            one = resolved(part, self._root)
            both = {**properties_of(whole), **properties_of(one)}
            required = [*required_of(whole), *required_of(one)]
            whole = {**one, **whole, **({"properties": both, "required": required} if both else {})}
        return whole

    def _of_options(self, schema: Schema, options: list[Any], name: str, depth: int) -> Any:
        """The first that is not null (deep inside, null), together with what stands beside the options."""
        beside = {key: value for key, value in schema.items() if key not in ("anyOf", "oneOf")}
        chosen = [resolved(one, self._root) for one in options]
        deep = depth < DEEPEST - SHOWN
        best = next((one for one in chosen if (types_of(one) == ["null"]) is deep), chosen[0])
        merged = {**best, **beside}
        if properties_of(best) and properties_of(beside):
            merged["properties"] = {**properties_of(beside), **properties_of(best)}
            merged["required"] = [*required_of(beside), *required_of(best)]
        return self.make(merged, name, depth - 1)

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
        for name in islice(known, schemas.MOST_FIELDS):
            if len(found) < _count(schema.get("minProperties")):
                found.setdefault(name, self.make(known[name], name, depth - 1))
        while len(found) < _count(schema.get("minProperties")):
            found[f"key{len(found) + 1}"] = self.make(schema.get("additionalProperties"), "value", depth - 1)
        return found

    def _array(self, schema: Schema, name: str, depth: int) -> list[Any]:
        first = schema.get("prefixItems")
        found = [self.make(one, name, depth - 1) for one in first[:MOST_ITEMS]] if isinstance(first, list) else []
        least = max(_count(schema.get("minItems")), 0 if found or depth < DEEPEST - SHOWN else 1)
        items = resolved(schema.get("items", {}), self._root)
        if "maxItems" in schema and _count(schema["maxItems"]) < least:
            return found
        choices = items.get("enum") if schema.get("uniqueItems") else None
        while len(found) < min(least, MOST_ITEMS):
            if isinstance(choices, list) and len(found) < len(choices):
                found.append(choices[len(found)])
                continue
            value = self.make(items, name.removesuffix("s"), depth - 1)
            found.append(_another(value, len(found)) if value in found and schema.get("uniqueItems") else value)
        return found


def _given(schema: Schema) -> tuple[bool, Any]:
    """What the schema itself says a value could be."""
    examples = schema.get("examples")
    if isinstance(examples, list) and examples:
        return True, examples[0]
    if "example" in schema:
        return True, schema["example"]
    if "const" in schema:
        return True, schema["const"]
    if schema.get("default") is not None:
        return True, schema["default"]
    choices = schema.get("enum")
    return (True, choices[0]) if isinstance(choices, list) and choices else (False, None)


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
            return patterns.matching(schema["pattern"], least)
        except patterns.Beyond:
            pass
    if schema.get("contentEncoding") == "base64":
        return "aGVsbG8="
    found = _FORMATS.get(str(schema.get("format")), name or "text")
    found += "x" * (least - len(found))
    most = schema.get("maxLength")
    return found[:most] if type(most) is int and most >= 0 else found
