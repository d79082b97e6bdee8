"""Generation of JSON Schema (2020-12) from Python types.

The schema is read by a language model, which fills in the arguments, and by a decoder, which checks them. Objects are
therefore closed, required members are listed, the author's descriptions are used, and nothing is made up: no titles
derived from names. A class that is used once is inlined; one that is used repeatedly, or recursively, goes to `$defs`.
"""

from __future__ import annotations

import datetime
import decimal
import enum
import math
import types
import typing
import uuid
from collections import abc
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from portico.jsonschema import type_hints
from portico.jsonschema.schema import Schema, SchemaError
from portico.jsonschema.type_hints import ClassFields, Constraints, Field

__all__ = ["Field", "schema_for_fields", "schema_for_type", "to_json_value"]

# As msgspec encodes and decodes these types. It also accepts a Decimal as a number, but writes a string.
PRIMITIVE_SCHEMAS: dict[Any, Schema] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    None: {"type": "null"},
    types.NoneType: {"type": "null"},
    Any: {},
    object: {},
    msgspec.Raw: {},
    typing.LiteralString: {"type": "string"},
    datetime.datetime: {"type": "string", "format": "date-time"},
    datetime.date: {"type": "string", "format": "date"},
    datetime.time: {"type": "string", "format": "time"},
    datetime.timedelta: {"type": "string", "format": "duration"},
    uuid.UUID: {"type": "string", "format": "uuid"},
    decimal.Decimal: {"type": "string", "format": "decimal"},
    bytes: {"type": "string", "contentEncoding": "base64"},
    bytearray: {"type": "string", "contentEncoding": "base64"},
    memoryview: {"type": "string", "contentEncoding": "base64"},
}

ARRAY_TYPES = {
    list,
    set,
    frozenset,
    abc.Sequence,
    abc.MutableSequence,
    abc.Collection,
    abc.Iterable,
    abc.Set,
    abc.MutableSet,
}
MAPPING_TYPES = {dict, abc.Mapping, abc.MutableMapping}

BOUND_KEYWORDS = {
    "ge": "minimum",
    "gt": "exclusiveMinimum",
    "le": "maximum",
    "lt": "exclusiveMaximum",
    "multiple_of": "multipleOf",
}
SIZE_KEYWORDS = {
    "string": ("minLength", "maxLength"),
    "array": ("minItems", "maxItems"),
    "object": ("minProperties", "maxProperties"),
}
# Keywords that hold values rather than schemas.
_VALUES = ("default", "examples", "const", "enum")
JSON_TYPES = {str: "string", int: "integer", float: "number", bool: "boolean", types.NoneType: "null"}


def schema_for_type(tp: Any, *, forbid_extra: bool = True, for_output: bool = False) -> Schema:
    """Return a self-contained schema. `for_output` describes encoded values instead of accepted ones.

    Output may gain members in later versions, so its objects are open: today's clients must not reject them.
    """
    writer = _SchemaGenerator(forbid_extra and not for_output, for_output)
    return writer.finish(writer.write(tp, _name(tp)))


def schema_for_fields(
    fields: Iterable[Field], *, forbid_extra: bool = True, context: str = "", description: str = ""
) -> Schema:
    """Return the schema of an object with these fields, such as the parameters of a function named `context`."""
    writer = _SchemaGenerator(forbid_extra, output=False)
    return writer.finish(writer.object(list(fields), context, description=description))


def _is_path(tp: type) -> bool:
    """Return whether a class is a pathlib path, without importing pathlib."""
    return any(cls.__name__ == "PurePath" and cls.__module__.startswith("pathlib") for cls in tp.__mro__)


def string_class_schema(tp: Any) -> Schema | None:
    """Return the schema of a class that is constructed from one string and unknown to msgspec, or None."""
    if not isinstance(tp, type):
        return None
    if _is_path(tp):
        return {"type": "string", "format": "path"}
    if tp.__module__ == "ipaddress":
        kind = tp.__name__.lower()
        return {"type": "string", "format": kind[:4]} if kind.endswith("address") else {"type": "string"}
    return None


def to_json_value(value: Any) -> Any:
    """Convert a value to JSON types. Raises TypeError if that is not possible."""
    # msgspec would encode it as null, which is another value.
    if isinstance(value, float) and not math.isfinite(value):
        raise TypeError(f"{value} is not JSON")
    # The order of a set differs between processes; a schema must not.
    return msgspec.to_builtins(value, str_keys=True, order="deterministic", enc_hook=_foreign_value)


def _foreign_value(value: Any) -> Any:
    if string_class_schema(type(value)):
        return str(value)
    if type_hints.is_pydantic(type(value)):
        return type_hints.pydantic_adapter(type(value)).dump_python(value, mode="json")
    raise TypeError(f"{type(value).__name__} is not JSON")


class _SchemaGenerator:
    """Generator of one document. Classes are references first; `finish` inlines those that are used once."""

    def __init__(self, closed: bool, output: bool) -> None:
        # Arguments are closed, so that a misspelled name is an error; results stay open for new members.
        self.closed = closed
        self.output = output
        self.defs: dict[str, Schema] = {}
        self.names: dict[Any, str] = {}
        self.references: dict[str, list[Schema]] = {}
        # The original $defs of pydantic, so that models with a common submodel share its definition.
        self.hoisted: dict[str, tuple[str, Schema]] = {}

    def finish(self, root: Schema) -> Schema:
        """Inline references that are used once, and attach the definitions."""
        for name, references in self.references.items():
            if len(references) == 1:
                _inline_reference(references[0], self.defs.pop(name))
        if "$ref" in root:
            # The protocol requires `"type": "object"` at the root, so a recursive class is repeated there.
            _inline_reference(root, self.defs[root["$ref"].rpartition("/")[2]])
        return {**root, "$defs": self.defs} if self.defs else root

    def write(self, tp: Any, where: str) -> Schema:
        bare, constraints = type_hints.split_annotations(tp)
        body = self.pydantic(tp, where) if constraints.validated else self.bare(bare, where)
        return _annotate(body, constraints)

    def bare(self, tp: Any, where: str) -> Schema:
        key = type_hints.type_key(tp)
        if key in PRIMITIVE_SCHEMAS:
            return dict(PRIMITIVE_SCHEMAS[key])
        if type_hints.is_union(tp):
            return self.union(tp, where)
        if type_hints.is_literal(tp):
            return _enum_schema([value for value, _ in type_hints.literal_values(tp)])
        if (value := type_hints.alias_value(tp)) is not msgspec.UNSET:
            return self.named(tp, lambda _: self.write(value, where))
        # Before the general classes: pydantic describes its validators and aliases, which the fields do not show.
        if type_hints.is_pydantic(tp):
            return self.named(tp, lambda name: self.pydantic(tp, where, name))
        if shape := type_hints.get_class_fields(tp, for_output=self.output):
            return self.named(tp, lambda _: self.shape(shape))
        if (text := string_class_schema(tp)) is not None:
            return text
        if isinstance(tp, type) and issubclass(tp, enum.Enum):
            return self.enum(tp, where)
        return self.container(tp, where)

    def union(self, tp: Any, where: str) -> Schema:
        options: list[Schema] = []
        for member in type_hints.union_members(tp):
            body = self.write(member, where)
            # Nested unions are flattened: models read one list of alternatives better.
            options.extend(body["anyOf"] if list(body) == ["anyOf"] else [body])
        return options[0] if len(options) == 1 else {"anyOf": options}

    def enum(self, cls: type[enum.Enum], where: str) -> Schema:
        try:
            body = _enum_schema([to_json_value(member.value) for member in cls])
        except TypeError as error:
            raise _unsupported_type_error(cls, where) from error
        words = type_hints.get_docstring(cls).summary
        return {**body, "description": words} if words else body

    def container(self, tp: Any, where: str) -> Schema:
        origin, args = typing.get_origin(tp) or tp, typing.get_args(tp)
        if origin in MAPPING_TYPES:
            return self.mapping(args, where)
        if origin is tuple and typing.get_origin(tp) and args[-1:] != (...,):
            items = [self.write(arg, f"{where}[{at}]") for at, arg in enumerate(args)]
            return {"type": "array", **({"prefixItems": items} if items else {}), **_size(len(items))}
        if origin in ARRAY_TYPES or origin is tuple:
            items_schema = self.write(args[0], f"{where}[]") if args else {}
            return {"type": "array", **({"items": items_schema} if items_schema else {})}
        raise _unsupported_type_error(tp, where)

    def mapping(self, args: tuple[Any, ...], where: str) -> Schema:
        key, value = args or (Any, Any)
        keys = self.write(key, f"{where} (key)")
        if keys.get("type") in ("integer", "number"):
            # JSON keys are always strings.
            keys = {"pattern": r"^-?\d+$"} if keys["type"] == "integer" else {}
        keys.pop("type", None)
        return {
            "type": "object",
            **({"propertyNames": keys} if keys else {}),
            "additionalProperties": self.write(value, f"{where}[]") or True,
        }

    def shape(self, shape: ClassFields) -> Schema:
        where, words = shape.cls.__name__, shape.doc.summary
        if not shape.array:
            return self.object(shape.fields, where, tag=shape.tag, description=words)
        items = [_enum_schema([shape.tag[1]])] if shape.tag else []
        # Optional fields are at the end of an array, so only the required ones count.
        minimum = len(items) + sum(field.required for field in shape.fields)
        items += [self.property(field, where) for field in shape.fields]
        head = {"type": "array", **({"description": words} if words else {})}
        return {**head, "prefixItems": items, **_size(minimum, len(items))}

    def object(
        self, fields: list[Field], where: str, *, tag: tuple[str, str | int] | None = None, description: str = ""
    ) -> Schema:
        properties = {tag[0]: _enum_schema([tag[1]])} if tag else {}
        required = list(properties) + [field.name for field in fields if field.required]
        for field in fields:
            properties[field.name] = self.property(field, where)
        return {
            "type": "object",
            **({"description": description} if description else {}),
            "properties": properties,
            **({"required": required} if required else {}),
            **({"additionalProperties": False} if self.closed else {}),
        }

    def property(self, field: Field, where: str) -> Schema:
        body = self.write(field.type, f"{where}.{field.name}" if where else field.name)
        if field.description and not type_hints.split_annotations(field.type)[1].description:
            body["description"] = field.description
        if field.default is not msgspec.UNSET:
            try:
                body["default"] = to_json_value(field.default)
            except (TypeError, ValueError):
                pass  # a default without a JSON form still makes the property optional
        return body

    def named(self, tp: Any, write: Callable[[str], Schema]) -> Schema:
        """Return a reference to a class, generating its definition on first use."""
        key = type_hints.type_key(tp)
        name = self.names.get(key)
        if name is None:
            name = self.names[key] = self.free(_name(tp))
            # Reserves the name before the class is written, because it may refer to itself.
            self.defs[name] = {}
            self.defs[name] = write(name)
        reference = {"$ref": f"#/$defs/{name}"}
        self.references.setdefault(name, []).append(reference)
        return reference

    def free(self, name: str) -> str:
        """Return an unused definition name."""
        # Two classes may have the same name in different modules.
        number = 1
        candidate = name
        while candidate in self.defs:
            number += 1
            candidate = f"{name}_{number}"
        return candidate

    def pydantic(self, tp: Any, where: str, own: str = "") -> Schema:
        """Return pydantic's schema of a model with its definitions moved to ours. `own` is our name for the model."""
        # The two differ for computed fields and for types that serialize as another one.
        mode = "serialization" if self.output else "validation"
        try:
            make = getattr(tp, "model_json_schema", None) or type_hints.pydantic_adapter(tp).json_schema
            body: Schema = make(mode=mode)
        except Exception as error:  # pydantic raises many exception types here; all mean that the type is unsupported
            raise _unsupported_type_error(tp, where) from error
        defs = body.pop("$defs", {})
        # The schema of a recursive model is only a reference.
        itself = body["$ref"].rpartition("/")[2] if own and list(body) == ["$ref"] else None
        if self.output:
            body, defs = _without_forbid_extra(body), _without_forbid_extra(defs)
        renamed = {name: own if name == itself else self.claim(name, content) for name, content in defs.items()}
        self.defs.update(
            {renamed[name]: _rewrite_pydantic_schema(content, renamed, name) for name, content in defs.items()}
        )
        if itself is None:
            return dict(_rewrite_pydantic_schema(body, renamed, _name(tp)))
        self.references.setdefault(own, []).append({})
        return self.defs[own]

    def claim(self, name: str, content: Schema) -> str:
        existing = self.hoisted.get(name)
        if existing and existing[1] == content:
            return existing[0]
        free = self.free(name)
        self.defs[free] = {}
        self.hoisted[name] = (free, content)
        return free


def _inline_reference(reference: Schema, content: Schema) -> None:
    """Replace a reference by its target. Keywords next to the reference take precedence."""
    siblings = {key: value for key, value in reference.items() if key != "$ref"}
    reference.clear()
    reference.update(content, **siblings)


def _annotate(body: Schema, constraints: Constraints) -> Schema:
    for target in body.get("anyOf", [body]):
        target.update(_limits(target, constraints))
    words = {"title": constraints.title, "description": constraints.description, "examples": constraints.examples}
    body.update({key: value for key, value in words.items() if value})
    if constraints.deprecated:
        body["deprecated"] = True
    body.update(constraints.extra)
    return body


def _limits(body: Schema, constraints: Constraints) -> Schema:
    """Return the limits that apply to this type: in `Annotated[int | None, Ge(1)]` they apply to the integer."""
    kind = body.get("type")
    limits: Schema = {}
    if kind in ("integer", "number"):
        limits = {BOUND_KEYWORDS[name]: getattr(constraints, name) for name in type_hints.BOUNDS}
    elif kind in SIZE_KEYWORDS:
        minimum, maximum = SIZE_KEYWORDS[kind]
        limits = {minimum: constraints.min_length or None, maximum: constraints.max_length}
        if "contentEncoding" in body:
            # The limits count bytes; base64 needs four characters for three bytes.
            limits = {key: size and 4 * ((size + 2) // 3) for key, size in limits.items()}
        if kind == "string":
            limits["pattern"] = constraints.pattern
    return {key: value for key, value in limits.items() if value is not None}


def _enum_schema(values: list[Any]) -> Schema:
    kinds = {JSON_TYPES.get(type(value)) for value in values}
    kind = {"type": kinds.pop()} if len(kinds) == 1 and None not in kinds else {}
    return {**kind, "const": values[0]} if len(values) == 1 else {**kind, "enum": values}


def _size(minimum: int, maximum: int | None = None) -> Schema:
    maximum = minimum if maximum is None else maximum
    return {**({"minItems": minimum} if minimum else {}), "maxItems": maximum}


def _rewrite_pydantic_schema(node: Any, renamed: dict[str, str], name: str) -> Any:
    """Rewrite pydantic's schema with our definition names and without generated titles."""
    if isinstance(node, list):
        return [_rewrite_pydantic_schema(item, renamed, "") for item in node]
    if not isinstance(node, dict):
        return node
    adopted: Schema = {}
    for key, value in node.items():
        if key == "$ref" and isinstance(value, str):
            adopted[key] = _rename_reference(value, renamed)
        # The `discriminator` of OpenAPI, which refers to definitions outside of `$ref`.
        elif key == "mapping" and isinstance(value, dict):
            adopted[key] = {tag: _rename_reference(target, renamed) for tag, target in value.items()}
        elif key in ("properties", "patternProperties") and isinstance(value, dict):
            adopted[key] = {field: _rewrite_pydantic_schema(inner, renamed, field) for field, inner in value.items()}
        # Data of the user, in which "title" or "$ref" are ordinary names.
        elif key in _VALUES:
            adopted[key] = value
        elif not (key == "title" and isinstance(value, str) and _is_generated_title(value, name)):
            adopted[key] = _rewrite_pydantic_schema(value, renamed, "")
    return adopted


def _without_forbid_extra(node: Any) -> Any:
    """Remove `additionalProperties: false` from pydantic's schema."""
    if isinstance(node, list):
        return [_without_forbid_extra(item) for item in node]
    if not isinstance(node, dict):
        return node
    remaining = {key: value for key, value in node.items() if not (key == "additionalProperties" and value is False)}
    return {key: value if key in _VALUES else _without_forbid_extra(value) for key, value in remaining.items()}


def _rename_reference(reference: str, renamed: dict[str, str]) -> str:
    head, _, name = reference.rpartition("/")
    return f"{head}/{renamed.get(name, name)}"


def _is_generated_title(title: str, name: str) -> bool:
    # pydantic derives "User Id" from `user_id`. Repeating the name costs tokens and says nothing.
    return _letters(title) == _letters(name)


def _letters(text: str) -> str:
    return "".join(char for char in text.lower() if char.isalnum())


def _name(tp: Any) -> str:
    """Return a readable name that needs no escaping in a reference: `Box[int]` → "Box_int"."""
    args = [_name(arg) for arg in typing.get_args(tp)]
    origin = typing.get_origin(tp) or tp
    name = getattr(origin, "__name__", None) or str(origin)
    return "_".join(["".join(char if char.isalnum() else "_" for char in name), *args])


def _unsupported_type_error(tp: Any, where: str) -> SchemaError:
    name = tp.__qualname__ if isinstance(tp, type) else str(tp)
    return SchemaError(
        f"{where}: {name} cannot be described as JSON Schema. Use plain types, dataclasses, TypedDicts, msgspec"
        " Structs, Enums, Literals or pydantic models."
    )
