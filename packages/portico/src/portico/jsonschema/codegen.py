"""Schemas as types: objects with names, and what they are made of. Each language writes these in its own way."""

from __future__ import annotations

import re
from typing import Any

from msgspec import Struct, field

from portico.jsonschema import Schema
from portico.jsonschema.explanation import field_notes
from portico.jsonschema.reader import (
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

LONGEST = 80
INDENT = "    "


def pieces(text: str) -> list[str]:
    """The words of a name: `placeOrder`, `place_order` and `place-order` have the same."""
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", text[:LONGEST])
    return [word for word in re.split(r"[^A-Za-z0-9]+", spaced) if word]


def pascal(text: str) -> str:
    found = "".join(word[:1].upper() + word[1:] for word in pieces(text))
    return found if found[:1].isalpha() else f"T{found}"


def camel(text: str) -> str:
    found = pascal(text)
    return found[:1].lower() + found[1:]


def snake(text: str) -> str:
    found = "_".join(word.lower() for word in pieces(text))
    return found if found[:1].isalpha() else f"t_{found}".rstrip("_")


def unique(wanted: str, taken: set[str]) -> str:
    """The name, or with a number behind it; it is taken then."""
    name, number = wanted, 1
    while name in taken:
        number += 1
        name = f"{wanted}{number}"
    taken.add(name)
    return name


# Values, in the form that formatters leave alone


def text(value: str) -> str:
    """In double quotes, unless that takes more escapes than single ones would."""
    mark = "'" if value.count('"') > value.count("'") else '"'
    inner = ascii(value + "'\"")[1:-1]
    # Both kinds of quotes are in it, so Python has chosen single ones and escaped those alone.
    inner = inner.removesuffix("\\'\"").replace("\\'", "'")
    return f"{mark}{_escaped(inner, mark)}{mark}"


def _escaped(inner: str, mark: str) -> str:
    return inner.replace(mark, f"\\{mark}")


def literal(value: Any, depth: int = 0) -> str:
    """JSON as Python: one member on each line, with a comma behind the last."""
    if isinstance(value, str):
        return text(value)
    if isinstance(value, dict) and value:
        members = [f"{text(str(name))}: {literal(one, depth + 1)}" for name, one in value.items()]
        return _block("{", members, "}", depth)
    if isinstance(value, list) and value:
        return _block("[", [literal(one, depth + 1) for one in value], "]", depth)
    return ascii(value)


def _block(opening: str, members: list[str], closing: str, depth: int) -> str:
    inside = INDENT * (depth + 1)
    return opening + "\n" + "".join(f"{inside}{one},\n" for one in members) + INDENT * depth + closing


DEEPEST = 24
MOST_MODELS = 2000
MOST_LITERALS = 200


class Basic(Struct, frozen=True):
    """`string`, `integer`, `number`, `boolean`, `null`, `object` with anything in it, or `any`."""

    kind: str


class Literals(Struct, frozen=True):
    """One of a few values: texts, numbers, true, false, null."""

    values: tuple[Any, ...]


class Array(Struct, frozen=True):
    item: Type


class Tuple(Struct, frozen=True):
    """An array with something else at each place."""

    items: tuple[Type, ...]


class Mapping(Struct, frozen=True):
    """An object with any names in it, and one type for all of them."""

    value: Type


class Union(Struct, frozen=True):
    options: tuple[Type, ...]


class Reference(Struct, frozen=True):
    """A Model, by its name."""

    name: str


Type = Basic | Literals | Array | Tuple | Mapping | Union | Reference

PYTHON_TYPES = {
    "string": "str",
    "integer": "int",
    "number": "float",
    "boolean": "bool",
    "null": "None",
    "object": "dict[str, Any]",
    "any": "Any",
}


class TypeWriter:
    """Types as Python writes them. `models`: what each Model is called there; its own name unless said otherwise."""

    basic = PYTHON_TYPES

    def __init__(self, models: dict[str, str] | None = None) -> None:
        self._names = models

    def write(self, kind: Type) -> str:
        if isinstance(kind, Basic):
            return self.basic[kind.kind]
        if isinstance(kind, Literals):
            return self.literals(kind.values)
        if isinstance(kind, Array):
            return f"list[{self.write(kind.item)}]"
        if isinstance(kind, Tuple):
            return f"list[{self._either(kind.items)}]"
        if isinstance(kind, Mapping):
            return f"dict[str, {self.write(kind.value)}]"
        return self._either(kind.options) if isinstance(kind, Union) else self.model(kind.name)

    def literals(self, values: tuple[Any, ...]) -> str:
        return f"Literal[{', '.join(literal(value) for value in values)}]"

    def model(self, name: str) -> str:
        return name if self._names is None else self._names[name]

    def _either(self, kinds: tuple[Type, ...]) -> str:
        found = list(dict.fromkeys(map(self.write, kinds)))
        return "Any" if "Any" in found else " | ".join(found)


def annotation(kind: Type, models: dict[str, str] | None = None) -> str:
    """A type as Python writes it."""
    return TypeWriter(models).write(kind)


ANY = Basic("any")


class Member(Struct, frozen=True):
    name: str
    type: Type
    required: bool
    description: str = ""
    notes: tuple[str, ...] = ()


class Model(Struct):
    """An object that has a name in the generated code."""

    name: str
    description: str
    members: list[Member] = field(default_factory=list)
    # Whether there may be other members too.
    is_open: bool = False


class ModelWriter:
    """The types of one schema, whose objects get names that are not taken yet and are added to `models`."""

    def __init__(self, root: Schema, stem: str, taken: set[str], models: list[Model]) -> None:
        self._root, self._stem, self._taken, self._models = root, stem, taken, models
        self._known: dict[str, Type] = {}
        self._begun: set[str] = set()

    def arguments(self) -> Model:
        """Always an object, whatever the schema says."""
        whole = self._flat(resolved(self._root, self._root))
        model = self._model(whole, f"{self._stem}Arguments", DEEPEST)
        if "additionalProperties" not in whole and model.members:
            model.is_open = False
        return model

    def result(self) -> Type:
        return self.type(self._root, f"{self._stem}Result", DEEPEST)

    def type(self, schema: Any, name: str, depth: int) -> Type:
        if not isinstance(schema, dict) or depth < 0:
            return ANY
        reference = schema.get("$ref")
        if isinstance(reference, str):
            return self._referred(schema, reference, depth)
        return self._of(schema, name, depth, None)

    def _referred(self, schema: Schema, reference: str, depth: int) -> Type:
        """Each once. What contains itself and is no object has no name that could stand for it."""
        known = self._known.get(reference)
        if known is not None or reference in self._begun:
            return known or ANY
        self._begun.add(reference)
        label = pascal(reference.rpartition("/")[2]) if reference != "#" else "Whole"
        found = self._of(resolved(schema, self._root), f"{self._stem}{label}", depth, reference)
        self._begun.discard(reference)
        self._known[reference] = found
        return found

    def _of(self, schema: Schema, name: str, depth: int, reference: str | None) -> Type:
        values = _values(schema)
        if values is not None:
            return Literals(values)
        whole = with_all_of(schema, self._root)
        options = [one for one in options_of(whole) if isinstance(one, dict)]
        if options and not all(_only_requires(one) for one in options):
            return self._union(whole, options, name, depth)
        kinds = types_of(whole) or (["object"] if properties_of(whole) else [])
        if not kinds:
            return ANY
        found = tuple(dict.fromkeys(self._kind(kind, whole, name, depth, reference) for kind in kinds))
        return found[0] if len(found) == 1 else Union(found)

    def _kind(self, kind: str, schema: Schema, name: str, depth: int, reference: str | None) -> Type:
        if kind == "array":
            first = schema.get("prefixItems")
            if isinstance(first, list) and first:
                items = [self.type(one, f"{name}{at + 1}", depth - 1) for at, one in enumerate(first[:MOST_LITERALS])]
                return Tuple(tuple(items))
            return Array(self.type(schema.get("items"), f"{name}Item", depth - 1))
        if kind != "object":
            return Basic(kind)
        rest = schema.get("additionalProperties")
        if not properties_of(schema):
            return Mapping(self.type(rest, f"{name}Value", depth - 1)) if isinstance(rest, dict) else Basic("object")
        if len(self._models) >= MOST_MODELS:
            return Basic("object")
        return Reference(self._model(schema, name, depth, reference).name)

    def _model(self, schema: Schema, name: str, depth: int, reference: str | None = None) -> Model:
        rest = schema.get("additionalProperties", True)
        model = Model(unique(name, self._taken), str(schema.get("description") or ""), is_open=rest is not False)
        self._models.append(model)
        if reference is not None:
            # Known before its members are looked at, for it may contain itself.
            self._known[reference] = Reference(model.name)
        required = required_of(schema)
        for member, one in properties_of(schema).items():
            found = resolved(one, self._root)
            kind = self.type(one, f"{name.removesuffix('Arguments').removesuffix('Result')}{pascal(member)}", depth - 1)
            said = found.get("description") or found.get("title") or ""
            model.members.append(Member(member, kind, member in required, str(said), tuple(field_notes(found))))
        return model

    def _union(self, schema: Schema, options: list[Schema], name: str, depth: int) -> Type:
        beside = without(schema, "anyOf", "oneOf")
        if properties_of(beside):
            options = [merged(beside, resolved(one, self._root)) for one in options]
        several = sum(bool(properties_of(resolved(one, self._root))) for one in options) > 1
        found: list[Type] = []
        for at, one in enumerate(options):
            kind = self.type(one, f"{name}{at + 1}" if several else name, depth - 1)
            found += kind.options if isinstance(kind, Union) else [kind]
        distinct = tuple(dict.fromkeys(found))
        if ANY in distinct:
            return ANY
        return distinct[0] if len(distinct) == 1 else Union(distinct)

    def _flat(self, schema: Schema) -> Schema:
        """The arguments as one object: what only some alternatives have is optional."""
        whole = with_all_of(schema, self._root)
        options = [with_all_of(resolved(one, self._root), self._root) for one in options_of(whole)]
        known = dict(properties_of(whole))
        for one in options:
            known |= {name: value for name, value in properties_of(one).items() if name not in known}
        required = [*required_of(whole)]
        if options:
            required += [name for name in required_of(options[0]) if all(name in required_of(one) for one in options)]
        return {**whole, "properties": known, "required": required}


def _only_requires(option: Schema) -> bool:
    """An alternative that says nothing but which members have to be there."""
    return option.keys() <= {"required", "title", "description"}


def _values(schema: Schema) -> tuple[Any, ...] | None:
    found = values_of(schema)
    plain = all(value is None or type(value) in (str, int, bool) for value in found)
    return tuple(found) if plain and 0 < len(found) <= MOST_LITERALS else None
