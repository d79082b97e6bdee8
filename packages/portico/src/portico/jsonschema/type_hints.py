"""Introspection of type hints: metadata in `Annotated`, and the fields of classes.

Schemas and decoders are both derived from this module, so they cannot disagree. Classes of other libraries are
recognized by module and attributes: importing pydantic costs more than all of Portico.
"""

from __future__ import annotations

import inspect
import re
import sys
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Annotated, Any, ClassVar, Final, Generic, Literal, NewType, NotRequired, Protocol, Required, TypeVar

import msgspec
from msgspec import NODEFAULT, UNSET, Meta, Struct, UnsetType

from portico.jsonschema.docstrings import Docstring, parse_docstring
from portico.jsonschema.schema import SchemaError

BOUNDS = ("ge", "gt", "le", "lt", "multiple_of")
SIZES = ("min_length", "max_length")
CONSTRAINT_NAMES = (*BOUNDS, *SIZES, "pattern")
ANNOTATION_NAMES = ("title", "description", "examples", "deprecated")
FOREIGN_PACKAGES = {"annotated_types", "pydantic", "pydantic_core"}


class Constraints(Struct, frozen=True):
    """Limits and annotations of a type."""

    ge: Any = None
    gt: Any = None
    le: Any = None
    lt: Any = None
    multiple_of: Any = None
    min_length: int | None = None
    max_length: int | None = None
    pattern: str | None = None
    tz: bool | None = None
    title: str | None = None
    description: str | None = None
    examples: list[Any] | None = None
    deprecated: Any = None
    extra: dict[str, Any] = {}
    default: Any = UNSET
    factory: Callable[[], Any] | None = None
    # Some limit is not a msgspec.Meta, so msgspec would ignore it.
    foreign: bool = False
    # Uses pydantic validators (AfterValidator etc.), so only pydantic can describe and decode it.
    validated: bool = False

    @property
    def limits(self) -> dict[str, Any]:
        """Return the limits that are set."""
        result = {name: getattr(self, name) for name in (*CONSTRAINT_NAMES, "tz")}
        return {name: value for name, value in result.items() if value is not None}


UNCONSTRAINED = Constraints()


class Field(Struct, frozen=True):
    """Property of an object: a function parameter or a class attribute."""

    name: str
    type: Any
    default: Any = UNSET
    description: str = ""
    # Optional, although there is no default to show.
    optional: bool = False
    # The Python name, if it differs.
    attribute: str = ""

    @property
    def required(self) -> bool:
        return self.default is UNSET and not self.optional


class ClassFields(Struct, frozen=True):
    """Fields of a class that is encoded as a JSON object, or as an array by msgspec."""

    cls: type
    fields: list[Field]
    doc: Docstring
    array: bool = False
    tag: tuple[str, str | int] | None = None


def split_annotations(tp: Any) -> tuple[Any, Constraints]:
    """Strip `Annotated`, `NotRequired`, `NewType` and similar from a type, and return it with its constraints."""
    result: dict[str, Any] = {}
    while True:
        origin = typing.get_origin(tp)
        if origin is Annotated:
            for item in reversed(tp.__metadata__):
                _read(item, result)
            tp = tp.__origin__
        elif _is_qualifier(origin):
            tp = typing.get_args(tp)[0]
        elif isinstance(tp, NewType):
            tp = tp.__supertype__
        elif isinstance(tp, TypeVar):
            tp = tp.__bound__ or (make_union(tp.__constraints__) if tp.__constraints__ else Any)
        else:
            return tp, Constraints(**result) if result else UNCONSTRAINED


def _is_qualifier(origin: Any) -> bool:
    """Return whether a type qualifies a field rather than its values."""
    return origin in (Required, NotRequired, Final) or getattr(origin, "_name", "") == "ReadOnly"


def _read(item: Any, values: dict[str, Any]) -> None:
    """Collect the metadata of one element of `Annotated`. Later elements are read first and take precedence."""
    if isinstance(item, str):
        values.setdefault("description", inspect.cleandoc(item))
    elif isinstance(item, Meta):
        _take(item, (*CONSTRAINT_NAMES, *ANNOTATION_NAMES, "tz"), values)
        values["extra"] = {**(item.extra_json_schema or {}), **values.get("extra", {})}
    elif type(item).__module__.partition(".")[0] in FOREIGN_PACKAGES:
        _read_foreign(item, values)
    elif type(item).__name__ == "Doc":
        _take(types.SimpleNamespace(description=getattr(item, "documentation", None)), ("description",), values)


def _read_foreign(item: Any, values: dict[str, Any]) -> None:
    if is_field_info(item):
        _take(item, ANNOTATION_NAMES, values)
        if isinstance(item.json_schema_extra, dict):
            values["extra"] = {**item.json_schema_extra, **values.get("extra", {})}
        if item.default_factory is not None:
            values.setdefault("factory", item.default_factory)
        elif type(item.default).__name__ != "PydanticUndefinedType" and item.default is not ...:
            values.setdefault("default", item.default)
        for inner in reversed(item.metadata):
            _read(inner, values)
    elif _take(item, CONSTRAINT_NAMES, values):
        values["foreign"] = True
    elif hasattr(item, "__get_pydantic_core_schema__"):
        values["validated"] = True


def _take(item: Any, names: tuple[str, ...], values: dict[str, Any]) -> bool:
    """Add the attributes of `item` that are set to `values`, and return whether there were any."""
    attributes = {name: value for name in names if (value := getattr(item, name, None)) is not None}
    if isinstance(attributes.get("pattern"), re.Pattern):
        attributes["pattern"] = attributes["pattern"].pattern
    for name, value in attributes.items():
        # An outer annotation was read first and takes precedence.
        values.setdefault(name, value)
    return bool(attributes)


def is_field_info(item: Any) -> bool:
    """Return whether an object is a `pydantic.Field(…)`."""
    return type(item).__module__ == "pydantic.fields" and hasattr(item, "default_factory")


def is_pydantic(tp: Any) -> bool:
    """Return whether a type is a pydantic model or dataclass, or defines a pydantic schema."""
    cls = typing.get_origin(tp) or tp
    return isinstance(cls, type) and (
        hasattr(cls, "__pydantic_core_schema__") or hasattr(cls, "__get_pydantic_core_schema__")
    )


def pydantic_adapter(tp: Any) -> Any:
    """Return a pydantic TypeAdapter. The author of the type has already imported pydantic."""
    return sys.modules["pydantic"].TypeAdapter(tp)


def is_union(tp: Any) -> bool:
    return typing.get_origin(tp) in (typing.Union, types.UnionType)


def make_union(options: Sequence[Any]) -> Any:
    """Build a union at run time. `X | Y` fails for forward references."""
    return typing.Union[tuple(options)]  # noqa: UP007


def union_members(tp: Any) -> list[Any]:
    """Return the members of a union except UNSET, which means an absent field."""
    return [arg for arg in typing.get_args(tp) if arg is not UnsetType]


def alias_value(tp: Any) -> Any:
    """Return the value of a `type X = …` alias, or UNSET for anything else."""
    alias = typing.get_origin(tp) or tp
    if type(alias).__name__ != "TypeAliasType":
        return UNSET
    return _substitute_type_vars(alias.__value__, dict(zip(alias.__type_params__, typing.get_args(tp), strict=False)))


def type_key(tp: Any) -> Any:
    """Return a hashable key for a type. Types with a dict in their annotations are not hashable."""
    try:
        hash(tp)
    except TypeError:
        return repr(tp)
    return tp


def get_class_fields(tp: Any, *, for_output: bool = False) -> ClassFields | None:
    """Return the fields of a class that consists of fields, or None."""
    # Building a server asks for each class dozens of times. Other types may not be hashable.
    return _cached_shape(tp, for_output) if isinstance(tp, type) else _shape(tp, for_output)


def _shape(tp: Any, output: bool) -> ClassFields | None:
    cls: Any = typing.get_origin(tp) or tp
    if not isinstance(cls, type) or is_pydantic(cls):
        return None
    array, tag = False, None
    if issubclass(cls, Struct):
        fields, config = _of_struct(tp, cls), cls.__struct_config__
        array = config.array_like
        tag = (config.tag_field, config.tag) if config.tag is not None and config.tag_field else None
    elif hasattr(cls, "__dataclass_fields__"):
        fields = _of_dataclass(tp, cls, output)
    elif typing.is_typeddict(cls):
        fields = _of_typed_dict(tp, cls)
    elif issubclass(cls, tuple) and hasattr(cls, "_field_defaults"):
        fields, array = _of_named_tuple(tp, cls), True
    else:
        return None
    doc = get_docstring(cls)
    described = [msgspec.structs.replace(field, description=doc.params.get(field.attribute, "")) for field in fields]
    return ClassFields(cls, described, doc, array, tag)


_cached_shape = lru_cache(maxsize=1024)(_shape)


def get_docstring(cls: type) -> Docstring:
    """Return the parsed docstring, ignoring the signature that dataclasses and named tuples generate."""
    text = vars(cls).get("__doc__")
    generated = isinstance(text, str) and text.startswith(f"{cls.__name__}(")
    return parse_docstring(None if generated or not isinstance(text, str) else text)


def _of_struct(tp: Any, cls: type[Struct]) -> Iterator[Field]:
    try:
        infos = msgspec.structs.fields(tp)
    except (NameError, TypeError) as error:
        raise _unresolved_error(cls, error) from error
    for info in infos:
        default, optional = _default(info.default, info.default_factory, NODEFAULT)
        yield Field(info.encode_name, info.type, default, "", optional, info.name)


def _of_dataclass(tp: Any, cls: Any, output: bool) -> Iterator[Field]:
    # Imported by the author of the class already.
    dataclasses = sys.modules["dataclasses"]
    hints = _hints(tp)
    for info in cls.__dataclass_fields__.values():
        hint = hints[info.name]
        if hint is ClassVar or typing.get_origin(hint) is ClassVar:
            continue
        if isinstance(hint, dataclasses.InitVar) if output else not info.init:
            continue
        hint = hint.type if isinstance(hint, dataclasses.InitVar) else hint
        default, optional = _default(info.default, info.default_factory, dataclasses.MISSING)
        yield Field(info.name, hint, default, "", optional, info.name)


def _of_typed_dict(tp: Any, cls: Any) -> Iterator[Field]:
    for name, hint in _hints(tp).items():
        # Under `from __future__ import annotations` the class does not see Required and NotRequired, but the hint does.
        origin = typing.get_origin(hint)
        optional = origin is NotRequired or (origin is not Required and name not in cls.__required_keys__)
        while _is_qualifier(typing.get_origin(hint)):
            hint = typing.get_args(hint)[0]
        yield Field(name, hint, UNSET, "", optional, name)


def _of_named_tuple(tp: Any, cls: Any) -> Iterator[Field]:
    hints = _hints(tp)
    for name in cls._fields:
        yield Field(name, hints.get(name, Any), cls._field_defaults.get(name, UNSET), "", False, name)


def _default(default: Any, factory: Any, missing: Any) -> tuple[Any, bool]:
    """Return the default to show, and whether there is one that cannot be shown."""
    if factory is not missing:
        # Other factories may have side effects: they run when an object is created, not to describe it.
        return (factory(), False) if factory in (list, dict, set, frozenset, tuple) else (UNSET, True)
    if default is missing:
        return UNSET, False
    return default, default is UNSET


def _hints(tp: Any) -> dict[str, Any]:
    """Return the annotations of a class with its type parameters substituted."""
    cls = typing.get_origin(tp) or tp
    hints = resolve_annotations(cls, {cls.__name__: cls})
    bound = dict(_bindings(cls, typing.get_args(tp)))
    owner = {name: klass for klass in reversed(cls.__mro__) for name in inspect.get_annotations(klass)}
    return {name: _substitute_type_vars(hint, bound.get(owner.get(name, cls), {})) for name, hint in hints.items()}


def resolve_annotations(annotated: Any, names: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the type hints, also for a class that is defined inside a function. Raises SchemaError."""
    try:
        return typing.get_type_hints(annotated, include_extras=True)
    except NameError as error:
        try:
            return typing.get_type_hints(annotated, localns=dict(names or {}), include_extras=True)
        except NameError:
            raise _unresolved_error(annotated, error) from error
    except (TypeError, SyntaxError, AttributeError) as error:
        raise _unresolved_error(annotated, error) from error


def _unresolved_error(annotated: Any, error: Exception) -> SchemaError:
    name = getattr(annotated, "__qualname__", repr(annotated))
    return SchemaError(
        f"{name}: an annotation cannot be resolved ({error}). Names used in annotations must exist in the module when"
        " it runs; an import under `if TYPE_CHECKING` is not enough."
    )


def _bindings(cls: type, args: tuple[Any, ...]) -> Iterator[tuple[type, dict[Any, Any]]]:
    """Yield the type arguments of each class in the hierarchy."""
    own = dict(zip(getattr(cls, "__parameters__", ()), args, strict=False))
    yield cls, own
    for base in getattr(cls, "__orig_bases__", ()):
        origin = typing.get_origin(base)
        if isinstance(origin, type) and origin not in (Generic, Protocol):
            yield from _bindings(origin, tuple(_substitute_type_vars(arg, own) for arg in typing.get_args(base)))


def _substitute_type_vars(tp: Any, values: Mapping[Any, Any]) -> Any:
    if isinstance(tp, TypeVar):
        return values.get(tp, tp)
    params = () if isinstance(tp, type) else getattr(tp, "__parameters__", ())
    return tp[tuple(values.get(param, param) for param in params)] if params and values else tp


def literal_values(tp: Any) -> list[tuple[Any, Any]]:
    """Return (JSON value, Python value) for every value of a Literal."""
    return [(getattr(value, "value", value), value) for value in typing.get_args(tp)]


def is_literal(tp: Any) -> bool:
    return typing.get_origin(tp) is Literal
