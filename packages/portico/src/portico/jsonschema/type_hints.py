"""Reading type hints: what an author wrote in `Annotated`, and which fields a class has.

Both the schema of a type and its decoder are made from what this module reads, so that they cannot disagree. Classes
of other libraries are known by their module and their attributes: importing pydantic costs more than all of Portico.
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

from portico.jsonschema import SchemaError
from portico.jsonschema.docstrings import Docstring, parse_docstring

BOUNDS = ("ge", "gt", "le", "lt", "multiple_of")
SIZES = ("min_length", "max_length")
LIMITS = (*BOUNDS, *SIZES, "pattern")
WORDS = ("title", "description", "examples", "deprecated")
FOREIGN = {"annotated_types", "pydantic", "pydantic_core"}


class Constraints(Struct, frozen=True):
    """What stands beside a type: its limits, and words about it."""

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
    # Some limit is not written as msgspec.Meta, so msgspec would not see it.
    foreign: bool = False
    # Functions of pydantic take part (AfterValidator and the like): only pydantic can describe and decode this.
    validated: bool = False

    @property
    def limits(self) -> dict[str, Any]:
        found = {name: getattr(self, name) for name in (*LIMITS, "tz")}
        return {name: value for name, value in found.items() if value is not None}


UNCONSTRAINED = Constraints()


class Field(Struct, frozen=True):
    """One property of an object: a parameter of a function, or an attribute of a class."""

    name: str
    type: Any
    default: Any = UNSET
    description: str = ""
    # May be left out although there is no default to show.
    optional: bool = False
    # The name in Python, where it differs.
    attribute: str = ""

    @property
    def required(self) -> bool:
        return self.default is UNSET and not self.optional


class Shape(Struct, frozen=True):
    """A class seen as a JSON object, or as an array where msgspec writes it as one."""

    cls: type
    fields: list[Field]
    doc: Docstring
    array: bool = False
    tag: tuple[str, str | int] | None = None


def strip_annotations(tp: Any) -> tuple[Any, Constraints]:
    """The type without `Annotated`, `NotRequired`, `NewType` and their like, and what they say about it."""
    found: dict[str, Any] = {}
    while True:
        origin = typing.get_origin(tp)
        if origin is Annotated:
            for item in reversed(tp.__metadata__):
                _read(item, found)
            tp = tp.__origin__
        elif _is_qualifier(origin):
            tp = typing.get_args(tp)[0]
        elif isinstance(tp, NewType):
            tp = tp.__supertype__
        elif isinstance(tp, TypeVar):
            tp = tp.__bound__ or (union_of(tp.__constraints__) if tp.__constraints__ else Any)
        else:
            return tp, Constraints(**found) if found else UNCONSTRAINED


def _is_qualifier(origin: Any) -> bool:
    """Says something about a field, not about its values."""
    return origin in (Required, NotRequired, Final) or getattr(origin, "_name", "") == "ReadOnly"


def _read(item: Any, found: dict[str, Any]) -> None:
    """Add what one element of `Annotated` says. Later elements were read before: what is there stays."""
    if isinstance(item, str):
        found.setdefault("description", inspect.cleandoc(item))
    elif isinstance(item, Meta):
        _take(item, (*LIMITS, *WORDS, "tz"), found)
        found["extra"] = {**(item.extra_json_schema or {}), **found.get("extra", {})}
    elif type(item).__module__.partition(".")[0] in FOREIGN:
        _read_foreign(item, found)
    elif type(item).__name__ == "Doc":
        _take(types.SimpleNamespace(description=getattr(item, "documentation", None)), ("description",), found)


def _read_foreign(item: Any, found: dict[str, Any]) -> None:
    if is_field_info(item):
        _take(item, WORDS, found)
        if isinstance(item.json_schema_extra, dict):
            found["extra"] = {**item.json_schema_extra, **found.get("extra", {})}
        if item.default_factory is not None:
            found.setdefault("factory", item.default_factory)
        elif type(item.default).__name__ != "PydanticUndefinedType" and item.default is not ...:
            found.setdefault("default", item.default)
        for inner in reversed(item.metadata):
            _read(inner, found)
    elif _take(item, LIMITS, found):
        found["foreign"] = True
    elif hasattr(item, "__get_pydantic_core_schema__"):
        found["validated"] = True


def _take(item: Any, names: tuple[str, ...], found: dict[str, Any]) -> bool:
    taken = {name: value for name in names if (value := getattr(item, name, None)) is not None}
    if isinstance(taken.get("pattern"), re.Pattern):
        taken["pattern"] = taken["pattern"].pattern
    for name, value in taken.items():
        found.setdefault(name, value)
    return bool(taken)


def is_field_info(item: Any) -> bool:
    """`pydantic.Field(…)`, as a default or in `Annotated`."""
    return type(item).__module__ == "pydantic.fields" and hasattr(item, "default_factory")


def is_pydantic(tp: Any) -> bool:
    """A model, a pydantic dataclass, or a type that tells pydantic how to read it."""
    cls = typing.get_origin(tp) or tp
    return isinstance(cls, type) and (
        hasattr(cls, "__pydantic_core_schema__") or hasattr(cls, "__get_pydantic_core_schema__")
    )


def adapter(tp: Any) -> Any:
    """pydantic's view of a type. The author of such a type has imported pydantic, so it is only looked up."""
    return sys.modules["pydantic"].TypeAdapter(tp)


def is_union(tp: Any) -> bool:
    return typing.get_origin(tp) in (typing.Union, types.UnionType)


def union_of(options: Sequence[Any]) -> Any:
    """A union made while running, for which `X | Y` does not do: a name in quotes has no `|`."""
    return typing.Union[tuple(options)]  # noqa: UP007


def members(tp: Any) -> list[Any]:
    """The members of a union. UNSET means that a field is absent, and an absent field has no type."""
    return [arg for arg in typing.get_args(tp) if arg is not UnsetType]


def alias_value(tp: Any) -> Any:
    """What a `type X = …` alias stands for, or UNSET for anything else."""
    alias = typing.get_origin(tp) or tp
    if type(alias).__name__ != "TypeAliasType":
        return UNSET
    return _bound(alias.__value__, dict(zip(alias.__type_params__, typing.get_args(tp), strict=False)))


def identity(tp: Any) -> Any:
    """Something to remember a type by. Types with a dict in their annotations have no hash."""
    try:
        hash(tp)
    except TypeError:
        return repr(tp)
    return tp


def shape_of(tp: Any, *, output: bool = False) -> Shape | None:
    """The fields of a class that is made of fields; None for any other type."""
    # A server that is built asks for each class dozens of times. What is no class may have no hash.
    return _kept_shape(tp, output) if isinstance(tp, type) else _shape(tp, output)


def _shape(tp: Any, output: bool) -> Shape | None:
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
    doc = doc_of(cls)
    described = [msgspec.structs.replace(one, description=doc.params.get(one.attribute, "")) for one in fields]
    return Shape(cls, described, doc, array, tag)


_kept_shape = lru_cache(maxsize=1024)(_shape)


def doc_of(cls: type) -> Docstring:
    """The author's docstring; dataclasses and named tuples without one are given a signature in its place."""
    text = vars(cls).get("__doc__")
    generated = isinstance(text, str) and text.startswith(f"{cls.__name__}(")
    return parse_docstring(None if generated or not isinstance(text, str) else text)


def _of_struct(tp: Any, cls: type[Struct]) -> Iterator[Field]:
    try:
        infos = msgspec.structs.fields(tp)
    except (NameError, TypeError) as error:
        raise _unresolved(cls, error) from error
    for info in infos:
        default, optional = _default(info.default, info.default_factory, NODEFAULT)
        yield Field(info.encode_name, info.type, default, "", optional, info.name)


def _of_dataclass(tp: Any, cls: Any, output: bool) -> Iterator[Field]:
    # The author of such a class has imported the module, so it is only looked up.
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
        # Under `from __future__ import annotations` the class did not see Required and NotRequired; the hint did.
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
    """The default to show, and whether there is one that cannot be shown."""
    if factory is not missing:
        # Other factories may read a clock or a database: they run when the object is made, not to describe it.
        return (factory(), False) if factory in (list, dict, set, frozenset, tuple) else (UNSET, True)
    if default is missing:
        return UNSET, False
    return default, default is UNSET


def _hints(tp: Any) -> dict[str, Any]:
    """The annotations of a class, with the type parameters of generic classes filled in."""
    cls = typing.get_origin(tp) or tp
    hints = resolve(cls, {cls.__name__: cls})
    bound = dict(_bindings(cls, typing.get_args(tp)))
    owner = {name: klass for klass in reversed(cls.__mro__) for name in inspect.get_annotations(klass)}
    return {name: _bound(hint, bound.get(owner.get(name, cls), {})) for name, hint in hints.items()}


def resolve(annotated: Any, names: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """`typing.get_type_hints`, which also finds a class inside the function that defines it."""
    try:
        return typing.get_type_hints(annotated, include_extras=True)
    except NameError as error:
        try:
            return typing.get_type_hints(annotated, localns=dict(names or {}), include_extras=True)
        except NameError:
            raise _unresolved(annotated, error) from error
    except (TypeError, SyntaxError, AttributeError) as error:
        raise _unresolved(annotated, error) from error


def _unresolved(annotated: Any, error: Exception) -> SchemaError:
    name = getattr(annotated, "__qualname__", repr(annotated))
    return SchemaError(
        f"{name}: an annotation cannot be resolved ({error}). Names used in annotations must exist in the module when"
        " it runs; an import under `if TYPE_CHECKING` is not enough."
    )


def _bindings(cls: type, args: tuple[Any, ...]) -> Iterator[tuple[type, dict[Any, Any]]]:
    """What each class in the family was given for its type parameters."""
    own = dict(zip(getattr(cls, "__parameters__", ()), args, strict=False))
    yield cls, own
    for base in getattr(cls, "__orig_bases__", ()):
        origin = typing.get_origin(base)
        if isinstance(origin, type) and origin not in (Generic, Protocol):
            yield from _bindings(origin, tuple(_bound(arg, own) for arg in typing.get_args(base)))


def _bound(tp: Any, values: Mapping[Any, Any]) -> Any:
    if isinstance(tp, TypeVar):
        return values.get(tp, tp)
    params = () if isinstance(tp, type) else getattr(tp, "__parameters__", ())
    return tp[tuple(values.get(param, param) for param in params)] if params and values else tp


def literal_values(tp: Any) -> list[tuple[Any, Any]]:
    """(what stands in JSON, what it means) for every value of a Literal."""
    return [(getattr(value, "value", value), value) for value in typing.get_args(tp)]


def is_literal(tp: Any) -> bool:
    return typing.get_origin(tp) is Literal
