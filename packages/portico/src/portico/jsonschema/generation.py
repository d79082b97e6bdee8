"""JSON Schema (2020-12) from Python types.

The reader is a language model that fills in the arguments, and a decoder that checks them. So objects are closed,
what is required is said, words of the author are kept, and nothing is said that the author did not say: no titles
made from names. A class that is used once is written where it is used; one that is used again, or by itself, goes to
`$defs`.
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

from portico.jsonschema import Schema, SchemaError, type_hints
from portico.jsonschema.type_hints import Constraints, Field, Shape

__all__ = ["Field", "json_value", "object_schema", "schema"]

# What msgspec reads and writes for these types. It takes a Decimal as a number too, but writes a string.
SIMPLE: dict[Any, Schema] = {
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

ARRAYS = {
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
OBJECTS = {dict, abc.Mapping, abc.MutableMapping}

BOUND_WORDS = {
    "ge": "minimum",
    "gt": "exclusiveMinimum",
    "le": "maximum",
    "lt": "exclusiveMaximum",
    "multiple_of": "multipleOf",
}
SIZE_WORDS = {
    "string": ("minLength", "maxLength"),
    "array": ("minItems", "maxItems"),
    "object": ("minProperties", "maxProperties"),
}
# Members of a schema that hold values, and no schemas.
_VALUES = ("default", "examples", "const", "enum")
JSON_TYPES = {str: "string", int: "integer", float: "number", bool: "boolean", types.NoneType: "null"}


def schema(tp: Any, *, closed: bool = True, output: bool = False) -> Schema:
    """A schema that stands alone. `output` describes what is written instead of what is accepted.

    What is written may say more one day: its objects are open, so that clients of today will not refuse them.
    """
    writer = _SchemaWriter(closed and not output, output)
    return writer.finish(writer.write(tp, _name(tp)))


def object_schema(fields: Iterable[Field], *, closed: bool = True, where: str = "", description: str = "") -> Schema:
    """The schema of an object with these fields, such as the parameters of a function named `where`."""
    writer = _SchemaWriter(closed, output=False)
    return writer.finish(writer.object(list(fields), where, description=description))


def _is_path(tp: type) -> bool:
    """By name: an author who uses such a class has imported pathlib, and other authors should not pay for it."""
    return any(cls.__name__ == "PurePath" and cls.__module__.startswith("pathlib") for cls in tp.__mro__)


def string_class(tp: Any) -> Schema | None:
    """Classes that are made from one string and that msgspec does not know."""
    if not isinstance(tp, type):
        return None
    if _is_path(tp):
        return {"type": "string", "format": "path"}
    if tp.__module__ == "ipaddress":
        kind = tp.__name__.lower()
        return {"type": "string", "format": kind[:4]} if kind.endswith("address") else {"type": "string"}
    return None


def json_value(value: Any) -> Any:
    """A value as it stands in JSON; TypeError if it cannot stand there."""
    if isinstance(value, float) and not math.isfinite(value):
        raise TypeError(f"{value} is not JSON")
    # The order of a set changes between processes; a schema must not.
    return msgspec.to_builtins(value, str_keys=True, order="deterministic", enc_hook=_foreign_value)


def _foreign_value(value: Any) -> Any:
    if string_class(type(value)):
        return str(value)
    if type_hints.is_pydantic(type(value)):
        return type_hints.adapter(type(value)).dump_python(value, mode="json")
    raise TypeError(f"{type(value).__name__} is not JSON")


class _SchemaWriter:
    """Writes one document. Classes are written as references first and put in their place by `finish`."""

    def __init__(self, closed: bool, output: bool) -> None:
        self.closed = closed
        self.output = output
        self.defs: dict[str, Schema] = {}
        self.names: dict[Any, str] = {}
        self.references: dict[str, list[Schema]] = {}
        # pydantic's own $defs as they came, so that two models sharing a third share its definition.
        self.hoisted: dict[str, tuple[str, Schema]] = {}

    def finish(self, root: Schema) -> Schema:
        for name, references in self.references.items():
            if len(references) == 1:
                _put(references[0], self.defs.pop(name))
        if "$ref" in root:
            # The protocol wants `"type": "object"` at the root, so a class that contains itself stands there twice.
            _put(root, self.defs[root["$ref"].rpartition("/")[2]])
        return {**root, "$defs": self.defs} if self.defs else root

    def write(self, tp: Any, where: str) -> Schema:
        bare, constraints = type_hints.strip_annotations(tp)
        body = self.pydantic(tp, where) if constraints.validated else self.bare(bare, where)
        return _annotate(body, constraints)

    def bare(self, tp: Any, where: str) -> Schema:
        key = type_hints.identity(tp)
        if key in SIMPLE:
            return dict(SIMPLE[key])
        if type_hints.is_union(tp):
            return self.union(tp, where)
        if type_hints.is_literal(tp):
            return _choices([value for value, _ in type_hints.literal_values(tp)])
        if (value := type_hints.alias_value(tp)) is not msgspec.UNSET:
            return self.named(tp, lambda _: self.write(value, where))
        if type_hints.is_pydantic(tp):
            return self.named(tp, lambda name: self.pydantic(tp, where, name))
        if shape := type_hints.shape_of(tp, output=self.output):
            return self.named(tp, lambda _: self.shape(shape))
        if (text := string_class(tp)) is not None:
            return text
        if isinstance(tp, type) and issubclass(tp, enum.Enum):
            return self.enum(tp, where)
        return self.container(tp, where)

    def union(self, tp: Any, where: str) -> Schema:
        options: list[Schema] = []
        for member in type_hints.members(tp):
            body = self.write(member, where)
            options.extend(body["anyOf"] if list(body) == ["anyOf"] else [body])
        return options[0] if len(options) == 1 else {"anyOf": options}

    def enum(self, cls: type[enum.Enum], where: str) -> Schema:
        try:
            body = _choices([json_value(member.value) for member in cls])
        except TypeError as error:
            raise _cannot(cls, where) from error
        words = type_hints.doc_of(cls).summary
        return {**body, "description": words} if words else body

    def container(self, tp: Any, where: str) -> Schema:
        origin, args = typing.get_origin(tp) or tp, typing.get_args(tp)
        if origin in OBJECTS:
            return self.mapping(args, where)
        if origin is tuple and typing.get_origin(tp) and args[-1:] != (...,):
            items = [self.write(arg, f"{where}[{at}]") for at, arg in enumerate(args)]
            return {"type": "array", **({"prefixItems": items} if items else {}), **_size(len(items))}
        if origin in ARRAYS or origin is tuple:
            items_schema = self.write(args[0], f"{where}[]") if args else {}
            return {"type": "array", **({"items": items_schema} if items_schema else {})}
        raise _cannot(tp, where)

    def mapping(self, args: tuple[Any, ...], where: str) -> Schema:
        key, value = args or (Any, Any)
        keys = self.write(key, f"{where} (key)")
        if keys.get("type") in ("integer", "number"):
            # In JSON every key is a string.
            keys = {"pattern": r"^-?\d+$"} if keys["type"] == "integer" else {}
        keys.pop("type", None)
        return {
            "type": "object",
            **({"propertyNames": keys} if keys else {}),
            "additionalProperties": self.write(value, f"{where}[]") or True,
        }

    def shape(self, shape: Shape) -> Schema:
        where, words = shape.cls.__name__, shape.doc.summary
        if not shape.array:
            return self.object(shape.fields, where, tag=shape.tag, description=words)
        items = [_choices([shape.tag[1]])] if shape.tag else []
        least = len(items) + sum(field.required for field in shape.fields)
        items += [self.property(field, where) for field in shape.fields]
        head = {"type": "array", **({"description": words} if words else {})}
        return {**head, "prefixItems": items, **_size(least, len(items))}

    def object(
        self, fields: list[Field], where: str, *, tag: tuple[str, str | int] | None = None, description: str = ""
    ) -> Schema:
        properties = {tag[0]: _choices([tag[1]])} if tag else {}
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
        if field.description and not type_hints.strip_annotations(field.type)[1].description:
            body["description"] = field.description
        if field.default is not msgspec.UNSET:
            try:
                body["default"] = json_value(field.default)
            except (TypeError, ValueError):
                pass  # A default that JSON cannot show is still a default: the property is not required.
        return body

    def named(self, tp: Any, write: Callable[[str], Schema]) -> Schema:
        """A reference to a class, which is written when it is met for the first time."""
        key = type_hints.identity(tp)
        name = self.names.get(key)
        if name is None:
            name = self.names[key] = self.free(_name(tp))
            self.defs[name] = {}
            self.defs[name] = write(name)
        reference = {"$ref": f"#/$defs/{name}"}
        self.references.setdefault(name, []).append(reference)
        return reference

    def free(self, name: str) -> str:
        number = 1
        candidate = name
        while candidate in self.defs:
            number += 1
            candidate = f"{name}_{number}"
        return candidate

    def pydantic(self, tp: Any, where: str, own: str = "") -> Schema:
        """The model's own schema, its definitions moved to ours. `own` is the name that we gave to the model."""
        mode = "serialization" if self.output else "validation"
        try:
            make = getattr(tp, "model_json_schema", None) or type_hints.adapter(tp).json_schema
            body: Schema = make(mode=mode)
        except Exception as error:  # pydantic raises many kinds here, and all of them say the same to the author
            raise _cannot(tp, where) from error
        defs = body.pop("$defs", {})
        # A model that contains itself is only a reference in its own schema.
        itself = body["$ref"].rpartition("/")[2] if own and list(body) == ["$ref"] else None
        if self.output:
            body, defs = _opened(body), _opened(defs)
        renamed = {name: own if name == itself else self.claim(name, content) for name, content in defs.items()}
        self.defs.update({renamed[name]: _adopt(content, renamed, name) for name, content in defs.items()})
        if itself is None:
            return dict(_adopt(body, renamed, _name(tp)))
        self.references.setdefault(own, []).append({})
        return self.defs[own]

    def claim(self, name: str, content: Schema) -> str:
        known = self.hoisted.get(name)
        if known and known[1] == content:
            return known[0]
        free = self.free(name)
        self.defs[free] = {}
        self.hoisted[name] = (free, content)
        return free


def _put(reference: Schema, content: Schema) -> None:
    """Replace a reference by what it stands for. Words beside the reference win over those of the class."""
    beside = {key: value for key, value in reference.items() if key != "$ref"}
    reference.clear()
    reference.update(content, **beside)


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
    """The limits that this type can have. `Annotated[int | None, Ge(1)]` means the integer, not the null."""
    kind = body.get("type")
    limits: Schema = {}
    if kind in ("integer", "number"):
        limits = {BOUND_WORDS[name]: getattr(constraints, name) for name in type_hints.BOUNDS}
    elif kind in SIZE_WORDS:
        least, most = SIZE_WORDS[kind]
        limits = {least: constraints.min_length or None, most: constraints.max_length}
        if "contentEncoding" in body:
            limits = {key: size and 4 * ((size + 2) // 3) for key, size in limits.items()}
        if kind == "string":
            limits["pattern"] = constraints.pattern
    return {key: value for key, value in limits.items() if value is not None}


def _choices(values: list[Any]) -> Schema:
    kinds = {JSON_TYPES.get(type(value)) for value in values}
    kind = {"type": kinds.pop()} if len(kinds) == 1 and None not in kinds else {}
    return {**kind, "const": values[0]} if len(values) == 1 else {**kind, "enum": values}


def _size(least: int, most: int | None = None) -> Schema:
    most = least if most is None else most
    return {**({"minItems": least} if least else {}), "maxItems": most}


def _adopt(node: Any, renamed: dict[str, str], name: str) -> Any:
    """pydantic's schema with our names for its definitions, and without the titles it makes up."""
    if isinstance(node, list):
        return [_adopt(item, renamed, "") for item in node]
    if not isinstance(node, dict):
        return node
    adopted: Schema = {}
    for key, value in node.items():
        if key == "$ref" and isinstance(value, str):
            adopted[key] = _renamed(value, renamed)
        elif key == "mapping" and isinstance(value, dict):
            adopted[key] = {tag: _renamed(target, renamed) for tag, target in value.items()}
        elif key in ("properties", "patternProperties") and isinstance(value, dict):
            adopted[key] = {field: _adopt(inner, renamed, field) for field, inner in value.items()}
        elif key in _VALUES:
            adopted[key] = value
        elif not (key == "title" and isinstance(value, str) and _made_up(value, name)):
            adopted[key] = _adopt(value, renamed, "")
    return adopted


def _opened(node: Any) -> Any:
    """pydantic's schema without the word of a model that it takes nothing else."""
    if isinstance(node, list):
        return [_opened(item) for item in node]
    if not isinstance(node, dict):
        return node
    kept = {key: value for key, value in node.items() if not (key == "additionalProperties" and value is False)}
    return {key: value if key in _VALUES else _opened(value) for key, value in kept.items()}


def _renamed(reference: str, renamed: dict[str, str]) -> str:
    head, _, name = reference.rpartition("/")
    return f"{head}/{renamed.get(name, name)}"


def _made_up(title: str, name: str) -> bool:
    return _letters(title) == _letters(name)


def _letters(text: str) -> str:
    return "".join(char for char in text.lower() if char.isalnum())


def _name(tp: Any) -> str:
    """`Box[int]` → "Box_int": readable, and needs no escaping in a reference."""
    args = [_name(arg) for arg in typing.get_args(tp)]
    origin = typing.get_origin(tp) or tp
    name = getattr(origin, "__name__", None) or str(origin)
    return "_".join(["".join(char if char.isalnum() else "_" for char in name), *args])


def _cannot(tp: Any, where: str) -> SchemaError:
    name = tp.__qualname__ if isinstance(tp, type) else str(tp)
    return SchemaError(
        f"{where}: {name} cannot be described as JSON Schema. Use plain types, dataclasses, TypedDicts, msgspec"
        " Structs, Enums, Literals or pydantic models."
    )
