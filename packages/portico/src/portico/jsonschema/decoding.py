"""Types that msgspec can decode, from the types that authors write.

msgspec decodes in C and knows most types, but it does not read annotated_types, refuses some unions, ignores unknown
keys in dataclasses, and has never heard of pydantic. Such a type is replaced by a marker: a class that msgspec hands
to `hook` together with the plain JSON value. A type that msgspec knows whole stays as it is, and costs nothing.
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

from portico.jsonschema import SchemaError, type_hints
from portico.jsonschema.generation import ARRAYS, OBJECTS, SIMPLE, string_class
from portico.jsonschema.type_hints import Constraints, Shape

# msgspec can compare only numbers; the others that have an order are compared here.
ORDERED = (decimal.Decimal, datetime.date, datetime.datetime, datetime.time, datetime.timedelta)
# Known to the schema under a name that msgspec does not know.
SAME_AS = {object: Any, typing.LiteralString: str}
COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "ge": operator.ge,
    "gt": operator.gt,
    "le": operator.le,
    "lt": operator.lt,
    "multiple_of": lambda value, step: value % step == 0,
    "min_length": lambda value, size: len(value) >= size,
    "max_length": lambda value, size: len(value) <= size,
    "pattern": lambda value, pattern: re.search(pattern, value) is not None,
}


class Marker(type):
    """The class of markers. msgspec asks whether the decoded value is an instance: whatever came out is right."""

    decode: Callable[[Any], Any]

    def __instancecheck__(cls, instance: Any) -> bool:
        return True


def marker(name: str, decode: Callable[[Any], Any]) -> Marker:
    return Marker(name, (), {"decode": staticmethod(decode)})


def hook(tp: Any, value: Any) -> Any:
    """msgspec's `dec_hook`: only markers come here."""
    return tp.decode(value)


class HookError(ValueError):
    """Stands between msgspec and the reason. msgspec adds its path to any ValueError of a hook except to its own."""


def convert(value: Any, tp: Any) -> Any:
    try:
        return msgspec.convert(value, tp, str_keys=True, dec_hook=hook)
    except msgspec.ValidationError as error:
        raise HookError from error


def accepts(tp: Any) -> bool:
    """Whether msgspec takes this type. Its rules for unions and limits are its own; asking is better than copying."""
    try:
        msgspec.json.Decoder(tp)
    except (TypeError, ValueError, RecursionError):
        return False
    return True


def is_native(tp: Any, met: set[Any] | None = None, *, tagged: bool = False) -> bool:
    """Whether msgspec alone accepts exactly what the schema of this type accepts.

    `tagged` says that other Structs may stand here too: only then does msgspec insist on the tag.
    """
    met = set() if met is None else met
    bare, constraints = type_hints.strip_annotations(tp)
    key = type_hints.identity(bare)
    if constraints.foreign or constraints.validated or (constraints.limits and not accepts(tp)):
        return False
    if (key, tagged) in met or (key in SIMPLE and key not in SAME_AS):
        return True
    met.add((key, tagged))
    if type_hints.is_union(bare):
        tagged = sum(_is_struct(member) for member in type_hints.members(bare)) > 1
        return all(is_native(member, met, tagged=tagged) for member in type_hints.members(bare)) and accepts(bare)
    if type_hints.is_literal(bare):
        return all(value is None or type(value) in (str, int) for value in typing.get_args(bare))
    if isinstance(bare, type) and issubclass(bare, enum.Enum):
        return accepts(bare)
    if (value := type_hints.alias_value(bare)) is not UNSET:
        return accepts(bare) and is_native(value, met)
    if shape := type_hints.shape_of(bare):
        closed = _is_closed(shape) and (tagged or not shape.tag)
        return closed and all(is_native(field.type, met) for field in shape.fields)
    return _is_container(typing.get_origin(bare) or bare) and all(
        arg is ... or is_native(arg, met) for arg in typing.get_args(bare)
    )


def _is_container(origin: Any) -> bool:
    # abc.Iterable is no collection for msgspec.
    return (origin in ARRAYS and origin is not abc.Iterable) or origin in OBJECTS or origin is tuple


def _is_struct(tp: Any) -> bool:
    bare = type_hints.strip_annotations(tp)[0]
    cls = typing.get_origin(bare) or bare
    return isinstance(cls, type) and issubclass(cls, Struct)


def _is_closed(shape: Shape) -> bool:
    if issubclass(shape.cls, Struct):
        return bool(shape.cls.__struct_config__.forbid_unknown_fields)
    return shape.array


class Translator:
    """Makes the types of one signature decodable."""

    def __init__(self) -> None:
        self.markers: dict[Any, Marker] = {}

    def translate(self, tp: Any) -> Any:
        return tp if is_native(tp) else self._limited(tp, type_hints.UNCONSTRAINED)

    def _limited(self, tp: Any, outer: Constraints) -> Any:
        bare, constraints = type_hints.strip_annotations(tp)
        if constraints.validated:
            return _by_pydantic(tp)
        if type_hints.is_union(bare):
            # msgspec refuses limits on a union; they mean the members that can have them.
            within = constraints if constraints.limits else outer
            return self._union([self._limited(member, within) for member in type_hints.members(bare)])
        inner = self._bare(bare)
        if constraints.limits:
            inner = _limit(inner, constraints) or _checked(inner, constraints)
        if outer.limits:
            inner = _limit(inner, outer) or (_checked(inner, outer) if bare in ORDERED else inner)
        return inner

    def _bare(self, tp: Any) -> Any:
        key = type_hints.identity(tp)
        if key in SAME_AS:
            return SAME_AS[key]
        if is_native(tp):
            return tp
        if key not in self.markers and (make := self._maker(tp)):
            # The marker exists before what it decodes to is looked at, because a class may contain itself.
            self.markers[key] = marker(getattr(tp, "__name__", str(tp)), _unfinished)
            self.markers[key].decode = make()
        return self.markers.get(key) or self._container(tp)

    def _maker(self, tp: Any) -> Callable[[], Callable[[Any], Any]] | None:
        if type_hints.is_pydantic(tp):
            return lambda: _by_pydantic(tp).decode
        if shape := type_hints.shape_of(tp):
            return lambda: self._shaped(shape)
        if string_class(tp):
            return lambda: _from_string(tp)
        if type_hints.is_literal(tp):
            return lambda: _choice(type_hints.literal_values(tp))
        if isinstance(tp, type) and issubclass(tp, enum.Enum):
            return lambda: _choice([(member.value, member) for member in tp])
        if (value := type_hints.alias_value(tp)) is not UNSET:
            return lambda: _through(self.translate(value))
        return None

    def _container(self, tp: Any) -> Any:
        origin, args = typing.get_origin(tp) or tp, typing.get_args(tp)
        if origin is abc.Iterable:
            origin = list
        if not _is_container(origin):
            raise SchemaError(f"{tp} cannot be decoded from JSON.")
        return origin if not args else origin[tuple(arg if arg is ... else self.translate(arg) for arg in args)]

    def _union(self, options: list[Any]) -> Any:
        union = type_hints.union_of(options)
        return union if accepts(union) else marker("union", _first_of(options))

    def _shaped(self, shape: Shape) -> Callable[[Any], Any]:
        """Decode into a closed Struct with the same fields, then call the class."""
        fields: list[Any] = []
        for at, field in enumerate(shape.fields):
            default = {} if field.required else {"default": UNSET}
            fields.append((f"f{at}", self.translate(field.type), msgspec.field(name=field.name, **default)))
        if shape.tag:
            # As a field of its own the tag is required. msgspec would let a Struct that stands alone do without.
            fields.insert(0, ("tag", Literal[shape.tag[1]], msgspec.field(name=shape.tag[0])))
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
            given = dict(zip(names, msgspec.structs.astuple(convert(value, twin))[first:], strict=True))
            for name in optional:
                if given[name] is UNSET:
                    del given[name]
            return make(**given)

        return decode


def _unfinished(value: Any) -> Any:
    raise TypeError("a type was used before it was complete")


def _limit(tp: Any, constraints: Constraints) -> Any:
    """The type with its limits, if msgspec can check them."""
    try:
        limited = Annotated[tp, Meta(**constraints.limits)]
    except re.error as error:
        raise SchemaError(f"the pattern {constraints.pattern!r} is not a regular expression: {error}") from error
    except (TypeError, ValueError):
        return None
    return limited if accepts(limited) else None


def _checked(tp: Any, constraints: Constraints) -> Marker:
    limits = [(name, getattr(constraints, name)) for name in (*type_hints.BOUNDS, *type_hints.SIZES, "pattern")]
    checks = [(COMPARE[name], limit) for name, limit in limits if limit is not None]

    def decode(value: Any) -> Any:
        found = convert(value, tp)
        if not _hold(checks, found):
            words = ", ".join(f"{name.replace('_', ' ')} {limit}" for name, limit in limits if limit is not None)
            raise ValueError(f"it must meet: {words}")
        return found

    return marker("limited", decode)


def _hold(checks: list[tuple[Callable[[Any, Any], bool], Any]], value: Any) -> bool:
    try:
        return all(holds(value, limit) for holds, limit in checks)
    except ArithmeticError:
        return False  # Decimal("NaN") is larger than nothing, and says so loudly.


def _through(tp: Any) -> Callable[[Any], Any]:
    return lambda value: convert(value, tp)


def _from_string(cls: Any) -> Callable[[Any], Any]:
    return lambda value: cls(convert(value, str))


def _choice(values: list[tuple[Any, Any]]) -> Callable[[Any], Any]:
    def decode(value: Any) -> Any:
        for json, meaning in values:
            # In Python True == 1 == 1.0; in JSON they differ.
            if type(json) is type(value) and json == value:
                return meaning
        raise ValueError("not one of the choices")

    return decode


def _by_pydantic(tp: Any) -> Marker:
    # In JSON mode a strict model still takes a date from a string, which is how JSON has it.
    validate = getattr(tp, "model_validate_json", None) or type_hints.adapter(tp).validate_json

    def decode(value: Any) -> Any:
        try:
            return validate(msgspec.json.encode(value))
        except ValueError as error:
            # msgspec asks an error for its text, and pydantic's may be hundreds of megabytes.
            raise HookError from error

    return marker("pydantic", decode)


# What the unions of the decoding in progress made of each value, by the union and the value. Two members of a union may
# both hold a union, so trying members in order would double the work with each level of a hostile value; remembering
# the outcome for each value keeps it linear.
_tried: ContextVar[dict[tuple[int, int], Any] | None] = ContextVar("tried", default=None)
_NOTHING_FITS = object()


def _first_of(options: list[Any]) -> Callable[[Any], Any]:
    def attempt(value: Any) -> Any:
        for option in options:
            try:
                return convert(value, option)
            except ValueError:
                continue
        return _NOTHING_FITS

    def remembered(value: Any, outcomes: dict[tuple[int, int], Any]) -> Any:
        # Values are known by their address: all of them are alive while the outermost one is being decoded.
        key = (id(attempt), id(value))
        if key not in outcomes:
            outcomes[key] = attempt(value)
        if outcomes[key] is _NOTHING_FITS:
            raise ValueError("it fits no member of the union")
        return outcomes[key]

    def decode(value: Any) -> Any:
        outcomes = _tried.get()
        if outcomes is not None:
            return remembered(value, outcomes)
        outcomes = {}
        token = _tried.set(outcomes)
        try:
            return remembered(value, outcomes)
        finally:
            _tried.reset(token)

    return decode
