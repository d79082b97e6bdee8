"""Type model of a schema for code generators: named objects and type expressions that each language formats."""

from __future__ import annotations

import re
from typing import Any

from msgspec import Struct, field

from portico.jsonschema.explanation import describe_constraints
from portico.jsonschema.reader import (
    get_alternatives,
    get_enum_values,
    get_properties,
    get_required,
    get_types,
    merge_all_of,
    merge_schemas,
    omit_keywords,
    resolve_references,
)
from portico.jsonschema.schema import Schema

MAX_NAME_CHARS = 80
INDENT = "    "


def split_words(text: str) -> list[str]:
    """Split a name into words: `placeOrder`, `place_order` and `place-order` give the same result."""
    # Bounded: names come from other parties.
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", text[:MAX_NAME_CHARS])
    return [word for word in re.split(r"[^A-Za-z0-9]+", spaced) if word]


def pascal_case(text: str) -> str:
    result = "".join(word[:1].upper() + word[1:] for word in split_words(text))
    # A name such as `2fa` would not be an identifier in the generated code.
    return result if result[:1].isalpha() else f"T{result}"


def camel_case(text: str) -> str:
    result = pascal_case(text)
    return result[:1].lower() + result[1:]


def snake_case(text: str) -> str:
    result = "_".join(word.lower() for word in split_words(text))
    return result if result[:1].isalpha() else f"t_{result}".rstrip("_")


def unique_name(name: str, used_names: set[str]) -> str:
    """Return the name, with a number appended if it is taken, and mark it as used."""
    candidate, number = name, 1
    while candidate in used_names:
        number += 1
        candidate = f"{name}{number}"
    used_names.add(candidate)
    return candidate


# Literals, formatted as code formatters leave them


def python_string(value: str) -> str:
    """Return a Python literal in double quotes, unless single quotes need fewer escapes."""
    quote_char = "'" if value.count('"') > value.count("'") else '"'
    inner = ascii(value + "'\"")[1:-1]
    # The text contains both kinds of quotes here, so `ascii` used single quotes and escaped only those.
    inner = inner.removesuffix("\\'\"").replace("\\'", "'")
    return f"{quote_char}{_escape_quotes(inner, quote_char)}{quote_char}"


def _escape_quotes(inner: str, quote_char: str) -> str:
    return inner.replace(quote_char, f"\\{quote_char}")


def python_literal(value: Any, depth: int = 0) -> str:
    """Format JSON as Python: one member per line, with a trailing comma."""
    if isinstance(value, str):
        return python_string(value)
    if isinstance(value, dict) and value:
        members = [f"{python_string(str(name))}: {python_literal(item, depth + 1)}" for name, item in value.items()]
        return _block("{", members, "}", depth)
    if isinstance(value, list) and value:
        return _block("[", [python_literal(item, depth + 1) for item in value], "]", depth)
    return ascii(value)


def _block(opening: str, members: list[str], closing: str, depth: int) -> str:
    inside = INDENT * (depth + 1)
    return opening + "\n" + "".join(f"{inside}{member},\n" for member in members) + INDENT * depth + closing


# Deeper members become `any`; generated types stay readable, and recursion stays bounded.
MAX_DEPTH = 24
MAX_MODELS = 2000
# A longer enumeration is a list of data, which a Literal would only make slow to check.
MAX_LITERALS = 200


class PrimitiveType(Struct, frozen=True):
    """`string`, `integer`, `number`, `boolean`, `null`, an untyped `object`, or `any`."""

    kind: str


class LiteralType(Struct, frozen=True):
    """One of a fixed set of strings, numbers, booleans or null."""

    values: tuple[Any, ...]


class ArrayType(Struct, frozen=True):
    item: TypeExpression


class TupleType(Struct, frozen=True):
    """Array with a separate type for each position."""

    items: tuple[TypeExpression, ...]


class MappingType(Struct, frozen=True):
    """Object with arbitrary keys and one value type."""

    value: TypeExpression


class UnionType(Struct, frozen=True):
    options: tuple[TypeExpression, ...]


class ModelReference(Struct, frozen=True):
    """Reference to an ObjectModel by name."""

    name: str


TypeExpression = PrimitiveType | LiteralType | ArrayType | TupleType | MappingType | UnionType | ModelReference

PYTHON_TYPES = {
    "string": "str",
    "integer": "int",
    "number": "float",
    "boolean": "bool",
    "null": "None",
    "object": "dict[str, Any]",
    "any": "Any",
}


class PythonTypeFormatter:
    """Formats type expressions as Python annotations. `models` maps model names to their names in the code."""

    basic = PYTHON_TYPES

    def __init__(self, models: dict[str, str] | None = None) -> None:
        self._names = models

    def format(self, kind: TypeExpression) -> str:
        if isinstance(kind, PrimitiveType):
            return self.basic[kind.kind]
        if isinstance(kind, LiteralType):
            return self.literals(kind.values)
        if isinstance(kind, ArrayType):
            return f"list[{self.format(kind.item)}]"
        if isinstance(kind, TupleType):
            return f"list[{self._format_union(kind.items)}]"
        if isinstance(kind, MappingType):
            return f"dict[str, {self.format(kind.value)}]"
        return self._format_union(kind.options) if isinstance(kind, UnionType) else self.model(kind.name)

    def literals(self, values: tuple[Any, ...]) -> str:
        return f"Literal[{', '.join(python_literal(value) for value in values)}]"

    def model(self, name: str) -> str:
        return name if self._names is None else self._names[name]

    def _format_union(self, kinds: tuple[TypeExpression, ...]) -> str:
        # Different schemas may have the same Python type, and `Any` absorbs the others.
        result = list(dict.fromkeys(map(self.format, kinds)))
        return "Any" if "Any" in result else " | ".join(result)


def format_annotation(kind: TypeExpression, models: dict[str, str] | None = None) -> str:
    """Format a type expression as a Python annotation."""
    return PythonTypeFormatter(models).format(kind)


ANY = PrimitiveType("any")


class ModelField(Struct, frozen=True):
    name: str
    type: TypeExpression
    required: bool
    description: str = ""
    notes: tuple[str, ...] = ()


class ObjectModel(Struct):
    """Object that gets a named type in the generated code."""

    name: str
    description: str
    members: list[ModelField] = field(default_factory=list)
    # Whether additional members are allowed.
    is_open: bool = False


class ModelBuilder:
    """Builds the type expressions of one schema and appends its objects, with unique names, to `models`."""

    def __init__(self, root: Schema, base_name: str, used_names: set[str], models: list[ObjectModel]) -> None:
        self._root, self._base_name, self._used_names, self._models = root, base_name, used_names, models
        self._types_by_reference: dict[str, TypeExpression] = {}
        self._in_progress: set[str] = set()

    def build_arguments(self) -> ObjectModel:
        """Build the model of the arguments, which are an object whatever the schema says."""
        merged = self._merge_alternatives(resolve_references(self._root, self._root))
        model = self._model(merged, f"{self._base_name}Arguments", MAX_DEPTH)
        # Arguments are closed unless the schema says otherwise, because an unknown argument is a mistake.
        if "additionalProperties" not in merged and model.members:
            model.is_open = False
        return model

    def build_result(self) -> TypeExpression:
        """Build the type of the result."""
        return self.build_type(self._root, f"{self._base_name}Result", MAX_DEPTH)

    def build_type(self, schema: Any, name: str, depth: int) -> TypeExpression:
        """Build the type of a subschema; `name` is used if it needs a model."""
        if not isinstance(schema, dict) or depth < 0:
            return ANY
        reference = schema.get("$ref")
        if isinstance(reference, str):
            return self._referenced_type(schema, reference, depth)
        return self._schema_type(schema, name, depth, None)

    def _referenced_type(self, schema: Schema, reference: str, depth: int) -> TypeExpression:
        """Build the target of a reference once.

        A recursive schema that is not an object becomes `any`, because it has no name.
        """
        cached = self._types_by_reference.get(reference)
        if cached is not None or reference in self._in_progress:
            return cached or ANY
        self._in_progress.add(reference)
        label = pascal_case(reference.rpartition("/")[2]) if reference != "#" else "Whole"
        result = self._schema_type(
            resolve_references(schema, self._root), f"{self._base_name}{label}", depth, reference
        )
        self._in_progress.discard(reference)
        self._types_by_reference[reference] = result
        return result

    def _schema_type(self, schema: Schema, name: str, depth: int, reference: str | None) -> TypeExpression:
        values = _values(schema)
        if values is not None:
            return LiteralType(values)
        merged = merge_all_of(schema, self._root)
        options = [item for item in get_alternatives(merged) if isinstance(item, dict)]
        # `anyOf: [{required: [a]}, {required: [b]}]` is a rule about members, which a type cannot express.
        if options and not all(_only_requires(item) for item in options):
            return self._union(merged, options, name, depth)
        kinds = get_types(merged) or (["object"] if get_properties(merged) else [])
        if not kinds:
            return ANY
        result = tuple(dict.fromkeys(self._type_of_kind(kind, merged, name, depth, reference) for kind in kinds))
        return result[0] if len(result) == 1 else UnionType(result)

    def _type_of_kind(self, kind: str, schema: Schema, name: str, depth: int, reference: str | None) -> TypeExpression:
        if kind == "array":
            first = schema.get("prefixItems")
            if isinstance(first, list) and first:
                items = [
                    self.build_type(item_schema, f"{name}{at + 1}", depth - 1)
                    for at, item_schema in enumerate(first[:MAX_LITERALS])
                ]
                return TupleType(tuple(items))
            return ArrayType(self.build_type(schema.get("items"), f"{name}Item", depth - 1))
        if kind != "object":
            return PrimitiveType(kind)
        rest = schema.get("additionalProperties")
        if not get_properties(schema):
            return (
                MappingType(self.build_type(rest, f"{name}Value", depth - 1))
                if isinstance(rest, dict)
                else PrimitiveType("object")
            )
        # A hostile schema may declare any number of objects; the rest stay untyped.
        if len(self._models) >= MAX_MODELS:
            return PrimitiveType("object")
        return ModelReference(self._model(schema, name, depth, reference).name)

    def _model(self, schema: Schema, name: str, depth: int, reference: str | None = None) -> ObjectModel:
        rest = schema.get("additionalProperties", True)
        model = ObjectModel(
            unique_name(name, self._used_names), str(schema.get("description") or ""), is_open=rest is not False
        )
        self._models.append(model)
        if reference is not None:
            # Registered before its members are built, because the object may contain itself.
            self._types_by_reference[reference] = ModelReference(model.name)
        required = get_required(schema)
        for member, member_schema in get_properties(schema).items():
            references = resolve_references(member_schema, self._root)
            kind = self.build_type(
                member_schema,
                f"{name.removesuffix('Arguments').removesuffix('Result')}{pascal_case(member)}",
                depth - 1,
            )
            description = references.get("description") or references.get("title") or ""
            model.members.append(
                ModelField(member, kind, member in required, str(description), tuple(describe_constraints(references)))
            )
        return model

    def _union(self, schema: Schema, options: list[Schema], name: str, depth: int) -> TypeExpression:
        common = omit_keywords(schema, "anyOf", "oneOf")
        # Members next to `anyOf` apply to each alternative, so each needs them in its own model.
        if get_properties(common):
            options = [merge_schemas(common, resolve_references(option, self._root)) for option in options]
        is_numbered = sum(bool(get_properties(resolve_references(option, self._root))) for option in options) > 1
        results: list[TypeExpression] = []
        for at, option in enumerate(options):
            kind = self.build_type(option, f"{name}{at + 1}" if is_numbered else name, depth - 1)
            results += kind.options if isinstance(kind, UnionType) else [kind]
        distinct = tuple(dict.fromkeys(results))
        if ANY in distinct:
            return ANY
        return distinct[0] if len(distinct) == 1 else UnionType(distinct)

    def _merge_alternatives(self, schema: Schema) -> Schema:
        """Merge the alternatives of the arguments into one object; members that only some have become optional."""
        merged = merge_all_of(schema, self._root)
        options = [merge_all_of(resolve_references(item, self._root), self._root) for item in get_alternatives(merged)]
        properties = dict(get_properties(merged))
        for item in options:
            properties |= {name: value for name, value in get_properties(item).items() if name not in properties}
        required = [*get_required(merged)]
        if options:
            required += [
                name for name in get_required(options[0]) if all(name in get_required(item) for item in options)
            ]
        return {**merged, "properties": properties, "required": required}


def _only_requires(option: Schema) -> bool:
    """Return whether an alternative only lists required members."""
    return option.keys() <= {"required", "title", "description"}


def _values(schema: Schema) -> tuple[Any, ...] | None:
    enum_values = get_enum_values(schema)
    # Python's Literal allows neither floats nor containers.
    plain = all(value is None or type(value) in (str, int, bool) for value in enum_values)
    return tuple(enum_values) if plain and 0 < len(enum_values) <= MAX_LITERALS else None
