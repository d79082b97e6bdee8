"""Translation of type annotations into types that msgspec can decode.

msgspec decodes in C and supports most types, but it does not read annotated_types, rejects some unions, ignores unknown
keys in dataclasses and does not know pydantic. Such types are replaced by a converter: a class that msgspec passes to
`dec_hook` together with the plain JSON value. Fully supported types stay unchanged and cost nothing.
"""

from __future__ import annotations

import datetime
import decimal
import enum
import operator
import re
import typing
from collections import abc
from collections.abc import Callable
from contextvars import ContextVar
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Struct

from portico.jsonschema import type_hints
from portico.jsonschema.generation import ARRAY_TYPES, MAPPING_TYPES, PRIMITIVE_SCHEMAS, string_class_schema
from portico.jsonschema.schema import SchemaError
from portico.jsonschema.type_hints import ClassFields, Constraints

# msgspec compares only numbers; these ordered types are compared here.
COMPARABLE_TYPES = (decimal.Decimal, datetime.date, datetime.datetime, datetime.time, datetime.timedelta)
# Types that the schema generator supports and msgspec does not.
EQUIVALENT_TYPES = {object: Any, typing.LiteralString: str}
BOUND_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "ge": operator.ge,
    "gt": operator.gt,
    "le": operator.le,
    "lt": operator.lt,
    "multiple_of": lambda value, step: value % step == 0,
    "min_length": lambda value, size: len(value) >= size,
    "max_length": lambda value, size: len(value) <= size,
    # Not anchored: `pattern` matches anywhere in the text (JSON Schema 2020-12, Validation, section 6.3.3).
    "pattern": lambda value, pattern: re.search(pattern, value) is not None,
}


class ConverterMeta(type):
    """Metaclass of converters. msgspec checks that the decoded value is an instance: any result is."""

    decode: Callable[[Any], Any]

    def __instancecheck__(cls, instance: Any) -> bool:
        return True


def make_converter(name: str, decode: Callable[[Any], Any]) -> ConverterMeta:
    """Create a converter class around a decode function."""
    return ConverterMeta(name, (), {"decode": staticmethod(decode)})


def dec_hook(tp: Any, value: Any) -> Any:
    """Decode a value with its converter; msgspec's `dec_hook`."""
    return tp.decode(value)


class ConversionError(ValueError):
    """Wrapper around a decoding error. msgspec adds its path to any ValueError of a hook except its own."""


def convert(value: Any, tp: Any) -> Any:
    """Convert a JSON value into a type, with converters."""
    try:
        return msgspec.convert(value, tp, str_keys=True, dec_hook=dec_hook)
    except msgspec.ValidationError as error:
        raise ConversionError from error


def is_supported_by_msgspec(tp: Any) -> bool:
    """Return whether msgspec supports the type. Trying is more reliable than copying its rules."""
    try:
        msgspec.json.Decoder(tp)
    except (TypeError, ValueError, RecursionError):
        return False
    return True


def is_native(tp: Any, visited: set[Any] | None = None, *, tagged: bool = False) -> bool:
    """Return whether msgspec alone accepts exactly what the schema of this type accepts.

    `tagged`: other Structs are possible here; only then does msgspec require the tag.
    """
    visited = set() if visited is None else visited
    bare, constraints = type_hints.split_annotations(tp)
    key = type_hints.type_key(bare)
    if constraints.foreign or constraints.validated or (constraints.limits and not is_supported_by_msgspec(tp)):
        return False
    if (key, tagged) in visited or (key in PRIMITIVE_SCHEMAS and key not in EQUIVALENT_TYPES):
        return True
    visited.add((key, tagged))
    if type_hints.is_union(bare):
        tagged = sum(_is_struct(member) for member in type_hints.union_members(bare)) > 1
        return all(
            is_native(member, visited, tagged=tagged) for member in type_hints.union_members(bare)
        ) and is_supported_by_msgspec(bare)
    if type_hints.is_literal(bare):
        return all(value is None or type(value) in (str, int) for value in typing.get_args(bare))
    if isinstance(bare, type) and issubclass(bare, enum.Enum):
        return is_supported_by_msgspec(bare)
    if (value := type_hints.alias_value(bare)) is not UNSET:
        return is_supported_by_msgspec(bare) and is_native(value, visited)
    if shape := type_hints.get_class_fields(bare):
        closed = _is_closed(shape) and (tagged or not shape.tag)
        return closed and all(is_native(field.type, visited) for field in shape.fields)
    return _is_container(typing.get_origin(bare) or bare) and all(
        arg is ... or is_native(arg, visited) for arg in typing.get_args(bare)
    )


def _is_container(origin: Any) -> bool:
    # msgspec does not accept abc.Iterable as a collection.
    return (origin in ARRAY_TYPES and origin is not abc.Iterable) or origin in MAPPING_TYPES or origin is tuple


def _is_struct(tp: Any) -> bool:
    bare = type_hints.split_annotations(tp)[0]
    cls = typing.get_origin(bare) or bare
    return isinstance(cls, type) and issubclass(cls, Struct)


def _is_closed(shape: ClassFields) -> bool:
    if issubclass(shape.cls, Struct):
        return bool(shape.cls.__struct_config__.forbid_unknown_fields)
    return shape.array


class TypeTranslator:
    """Translates the types of one signature."""

    def __init__(self) -> None:
        self.converters: dict[Any, ConverterMeta] = {}

    def translate(self, tp: Any) -> Any:
        """Return a type that msgspec can decode."""
        return tp if is_native(tp) else self._translate_constrained(tp, type_hints.UNCONSTRAINED)

    def _translate_constrained(self, tp: Any, outer: Constraints) -> Any:
        bare, constraints = type_hints.split_annotations(tp)
        # A pydantic validator is arbitrary code, which only pydantic can run.
        if constraints.validated:
            return _pydantic_converter(tp)
        if type_hints.is_union(bare):
            # msgspec rejects limits on a union; they apply to the members that support them.
            within = constraints if constraints.limits else outer
            return self._union(
                [self._translate_constrained(member, within) for member in type_hints.union_members(bare)]
            )
        inner = self._translate_plain(bare)
        if constraints.limits:
            inner = _limit(inner, constraints) or _constrained_converter(inner, constraints)
        if outer.limits:
            inner = _limit(inner, outer) or (
                _constrained_converter(inner, outer) if bare in COMPARABLE_TYPES else inner
            )
        return inner

    def _translate_plain(self, tp: Any) -> Any:
        key = type_hints.type_key(tp)
        if key in EQUIVALENT_TYPES:
            return EQUIVALENT_TYPES[key]
        if is_native(tp):
            return tp
        if key not in self.converters and (make := self._converter_for(tp)):
            # The converter is registered before its fields are translated, because a class may contain itself.
            self.converters[key] = make_converter(getattr(tp, "__name__", str(tp)), _raise_unfinished)
            self.converters[key].decode = make()
        return self.converters.get(key) or self._container(tp)

    def _converter_for(self, tp: Any) -> Callable[[], Callable[[Any], Any]] | None:
        if type_hints.is_pydantic(tp):
            return lambda: _pydantic_converter(tp).decode
        if shape := type_hints.get_class_fields(tp):
            return lambda: self._translate_class(shape)
        if string_class_schema(tp):
            return lambda: _from_string(tp)
        if type_hints.is_literal(tp):
            return lambda: _make_choice_decoder(type_hints.literal_values(tp))
        if isinstance(tp, type) and issubclass(tp, enum.Enum):
            return lambda: _make_choice_decoder([(member.value, member) for member in tp])
        if (value := type_hints.alias_value(tp)) is not UNSET:
            return lambda: _make_converter(self.translate(value))
        return None

    def _container(self, tp: Any) -> Any:
        origin, args = typing.get_origin(tp) or tp, typing.get_args(tp)
        if origin is abc.Iterable:
            origin = list
        if not _is_container(origin):
            raise SchemaError(f"{tp} cannot be decoded from JSON.")
        return origin if not args else origin[tuple(arg if arg is ... else self.translate(arg) for arg in args)]

    def _union(self, options: list[Any]) -> Any:
        union = type_hints.make_union(options)
        return union if is_supported_by_msgspec(union) else make_converter("union", _first_match(options))

    def _translate_class(self, shape: ClassFields) -> Callable[[Any], Any]:
        """Decode into a closed Struct with the same fields, then call the class."""
        fields: list[Any] = []
        for at, field in enumerate(shape.fields):
            default = {} if field.required else {"default": UNSET}
            fields.append((f"f{at}", self.translate(field.type), msgspec.field(name=field.name, **default)))
        if shape.tag:
            # As a separate field the tag is required; msgspec makes it optional for a Struct outside a union.
            fields.insert(0, ("tag", Literal[shape.tag[1]], msgspec.field(name=shape.tag[0])))
        # msgspec validates in C; calling the class afterwards runs its own __init__ and __post_init__.
        twin = msgspec.defstruct(
            shape.cls.__name__,
            fields,
            forbid_unknown_fields=True,
            kw_only=not shape.array,
            array_like=shape.array,
        )
        make, names = shape.cls, [field.attribute for field in shape.fields]
        optional = [field.attribute for field in shape.fields if not field.required]
        first = 1 if shape.tag else 0

        def decode(value: Any) -> Any:
            values = dict(zip(names, msgspec.structs.astuple(convert(value, twin))[first:], strict=True))
            for name in optional:
                if values[name] is UNSET:
                    del values[name]
            return make(**values)

        return decode


def _raise_unfinished(value: Any) -> Any:
    raise TypeError("a type was used before it was complete")


def _limit(tp: Any, constraints: Constraints) -> Any:
    """Return the type with its limits if msgspec can check them, else None."""
    try:
        limited = Annotated[tp, Meta(**constraints.limits)]
    # A mistake of the author. Limits that msgspec merely does not support raise TypeError or ValueError.
    except re.error as error:
        raise SchemaError(f"invalid regular expression {constraints.pattern!r}: {error}") from error
    except (TypeError, ValueError):
        return None
    return limited if is_supported_by_msgspec(limited) else None


def _constrained_converter(tp: Any, constraints: Constraints) -> ConverterMeta:
    limits = [(name, getattr(constraints, name)) for name in (*type_hints.BOUNDS, *type_hints.SIZES, "pattern")]
    checks = [(BOUND_OPERATORS[name], limit) for name, limit in limits if limit is not None]

    def decode(value: Any) -> Any:
        result = convert(value, tp)
        if not _check_bounds(checks, result):
            words = ", ".join(f"{name.replace('_', ' ')} {limit}" for name, limit in limits if limit is not None)
            raise ValueError(f"expected {words}")
        return result

    return make_converter("limited", decode)


def _check_bounds(checks: list[tuple[Callable[[Any, Any], bool], Any]], value: Any) -> bool:
    try:
        return all(holds(value, limit) for holds, limit in checks)
    except ArithmeticError:
        return False  # comparing Decimal("NaN") raises


def _make_converter(tp: Any) -> Callable[[Any], Any]:
    return lambda value: convert(value, tp)


def _from_string(cls: Any) -> Callable[[Any], Any]:
    return lambda value: cls(convert(value, str))


def _make_choice_decoder(values: list[tuple[Any, Any]]) -> Callable[[Any], Any]:
    def decode(value: Any) -> Any:
        for json, meaning in values:
            # In Python True == 1 == 1.0; in JSON they differ.
            if type(json) is type(value) and json == value:
                return meaning
        raise ValueError("not one of the choices")

    return decode


def _pydantic_converter(tp: Any) -> ConverterMeta:
    # JSON mode: even a strict model accepts a date from a string.
    validate = getattr(tp, "model_validate_json", None) or type_hints.pydantic_adapter(tp).validate_json

    def decode(value: Any) -> Any:
        try:
            return validate(msgspec.json.encode(value))
        except ValueError as error:
            # msgspec formats the error, and the text of pydantic's may be hundreds of megabytes long.
            raise ConversionError from error

    return make_converter("pydantic", decode)


# Results of the unions during the current decoding, by union and value. Two members of a union may both contain a
# union, so trying members in order would double the work with each level of a hostile value; memoization keeps it
# linear.
_attempted_options: ContextVar[dict[tuple[int, int], Any] | None] = ContextVar("tried", default=None)
_NO_MATCH = object()


def _first_match(options: list[Any]) -> Callable[[Any], Any]:
    def attempt(value: Any) -> Any:
        # In order: the first member that matches wins, as in msgspec and in pydantic's left-to-right mode.
        for option in options:
            try:
                return convert(value, option)
            except ValueError:
                continue
        return _NO_MATCH

    def decode_once(value: Any, outcomes: dict[tuple[int, int], Any]) -> Any:
        # The id is a valid key: all values stay alive until the outermost one is decoded.
        key = (id(attempt), id(value))
        if key not in outcomes:
            outcomes[key] = attempt(value)
        if outcomes[key] is _NO_MATCH:
            raise ValueError("no member of the union matches")
        return outcomes[key]

    def decode(value: Any) -> Any:
        outcomes = _attempted_options.get()
        if outcomes is not None:
            return decode_once(value, outcomes)
        outcomes = {}
        token = _attempted_options.set(outcomes)
        try:
            return decode_once(value, outcomes)
        finally:
            _attempted_options.reset(token)

    return decode
