"""Validation of keyword options of constructors, decorators and settings.

An unknown option is reported with the closest known one, and a value that does not match its annotation is rejected. A
string is never accepted as a list of characters.
"""

from __future__ import annotations

import inspect
import os
import re
import sys
import types
from collections.abc import Callable, Iterable, Mapping, Set as AbstractSet
from functools import cache, partial, wraps
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Concatenate,
    ForwardRef,
    Literal,
    ParamSpec,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from portico._lazy import LazyModule
from portico.protocol.errors import UsageError

if TYPE_CHECKING:
    from portico import settings_file
    from portico.jsonschema import argument_issues
else:
    settings_file = LazyModule("portico.settings_file")
    argument_issues = LazyModule("portico.jsonschema.argument_issues")

P = ParamSpec("P")
S = TypeVar("S")
R = TypeVar("R")

_STRING_TYPES = (str, bytes, bytearray)
# Collections that can be inspected without consuming them.
_COLLECTION_TYPES = (list, tuple, AbstractSet)
# The closing brace is optional, so that a missing one is reported rather than taken literally.
_VARIABLE = r"\$\{([^{}]*)(\}?)"


class InvalidOption(UsageError):
    """An invalid option; `option` is its name, by which portico-services finds its line in a settings file."""

    def __init__(self, message: str, option: str) -> None:
        super().__init__(message)
        self.option = option


def validate_options(owner: str, options: Mapping[str, Any], schema: type) -> None:
    """Raise InvalidOption for the first option that is not a key of the TypedDict `schema`, or not of its type."""
    _check(owner, options, schema.__annotations__, partial(_option_type, schema))


def check_table(table: str, values: Mapping[str, Any], schema: type) -> None:
    """Check a table of a settings file against a TypedDict. Raises SettingsError."""
    for name, value in values.items():
        if name not in schema.__annotations__:
            raise settings_file.unknown_key(table, name, schema.__annotations__)
        kind = _option_type(schema, name)
        if not matches_type(value, kind):
            raise settings_file.wrong_value(table, name, settings_file.describe(kind), value)


def validated_kwargs(func: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """Decorate a constructor or method to reject unknown keywords and values that do not match its annotations."""
    return validated_kwargs_of(func)(func)


def validated_kwargs_of(
    model: Callable[Concatenate[Any, P], R],
) -> Callable[[Callable[..., R]], Callable[Concatenate[Any, P], R]]:
    """Decorate a constructor that passes its `**options` to the constructor `model`, to validate them alike."""
    function = inspect.unwrap(model)
    code = function.__code__
    # Parameter names without `self`.
    names = code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]
    # Resolved on use: an annotation may name a type that is defined later in its module.
    hints = {name: function.__annotations__.get(name, Any) for name in names}

    def decorate(init: Callable[..., R]) -> Callable[Concatenate[Any, P], R]:
        @wraps(model)
        def wrapper(self: Any, /, *args: P.args, **options: P.kwargs) -> R:
            values = {**dict(zip(names, args, strict=False)), **options}
            _check(type(self).__name__, values, hints, lambda name: _resolve_hint(hints[name], function.__globals__))
            return init(self, *args, **options)

        return wrapper

    return decorate


def validate_fields(struct: Any) -> None:
    """Validate the fields of a Struct, which does not check them on creation; for `__post_init__`."""
    kind = type(struct)
    values = {name: getattr(struct, name) for name in kind.__struct_fields__}
    names = vars(sys.modules[kind.__module__])
    _check(kind.__name__, values, kind.__annotations__, lambda name: _resolve_hint(kind.__annotations__[name], names))


def expand_paths(model: Callable[..., Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options from a file with `~` and `${NAME}` expanded where their annotations allow a path.

    Raises `InvalidOption` for an unknown variable or user, because the path would be a different one.
    """
    function = inspect.unwrap(model)
    kinds = {name: _resolve_hint(kind, function.__globals__) for name, kind in function.__annotations__.items()}
    return {name: _expand(name, value, kinds.get(name, Any)) for name, value in options.items()}


_DURATION = r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)"
_UNIT_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def parse_duration(option: str, value: float | str, max_seconds: float) -> float:
    """Return the seconds of a duration: a number, or a text such as "90s", "10m" or "14d". Raises UsageError."""
    if isinstance(value, str):
        match = re.fullmatch(_DURATION, value.strip())
        if match is None:
            raise UsageError(
                f"{option} must be a duration such as '90s', '10m' or '14d', or a number of seconds, got {value!r}"
            )
        value = float(match[1]) * _UNIT_SECONDS[match[2]]
    if not 0 < value < max_seconds:
        raise UsageError(f"{option} must be greater than 0 and less than {max_seconds:g} seconds, got {value}")
    return float(value)


def _expand(option: str, value: Any, kind: Any) -> Any:
    kinds = get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)
    if isinstance(value, str):
        is_path = any((get_origin(item) or item) is os.PathLike for item in kinds)
        return _expand_path(option, value) if is_path else value
    # The type of a table's values or a list's items.
    within = next((get_args(item)[-1] for item in kinds if get_args(item)), Any)
    if isinstance(value, dict):
        return {name: _expand(option, item, within) for name, item in value.items()}
    return [_expand(option, item, within) for item in value] if isinstance(value, list) else value


def _expand_path(option: str, text: str) -> str:
    def variable(match: re.Match[str]) -> str:
        if not match[2]:
            raise InvalidOption(f"{option}: missing }} after ${{ in {text!r}", option)
        if match[1] not in os.environ:
            raise InvalidOption(f"{option}: the environment variable {match[1]!r} in {text!r} is not set", option)
        return os.environ[match[1]]

    home = os.path.expanduser(text)
    if text.startswith("~") and home == text:
        raise InvalidOption(f"{option}: the user in {text!r} does not exist or has no home directory", option)
    return re.sub(_VARIABLE, variable, home)


def _check(
    owner: str, values: Mapping[str, Any], annotations: Mapping[str, Any], type_of: Callable[[str], Any]
) -> None:
    for name, value in values.items():
        if name not in annotations:
            close = argument_issues.closest_names(name, annotations)
            hint = f"did you mean {close[0]!r}?" if close else f"expected one of {', '.join(sorted(annotations))}"
            raise InvalidOption(f"{owner}: unknown option {name!r} ({hint})", name)
        kind = type_of(name)
        if not matches_type(value, kind):
            preview = repr(value)[:60]
            more = f" (write [{preview}])" if isinstance(value, str) and matches_type([value], kind) else ""
            raise InvalidOption(f"{owner}: {name}: expected {settings_file.describe(kind)}, got {preview}{more}", name)


@cache
def _option_type(schema: type, name: str) -> Any:
    """Return the resolved type of an option. Cached, because all tools of a server share their options."""
    return _resolve_hint(schema.__annotations__[name], vars(sys.modules[schema.__module__]))


def _resolve_hint(hint: Any, names: dict[str, Any]) -> Any:
    """Resolve a type hint. Names that exist only for type checkers become Any."""
    if isinstance(hint, ForwardRef):
        # An inherited key belongs to another module, whose names may differ from those of the subclass.
        module = sys.modules.get(str(hint.__forward_module__))
        names = names if module is None else vars(module)
        hint = hint.__forward_arg__
    if not isinstance(hint, str):
        return hint
    try:
        return get_type_hints(type("_", (), {"__annotations__": {"it": hint}}), names)["it"]
    except NameError:
        return Any


def matches_type(value: Any, type_hint: Any) -> bool:
    """Return whether a value matches a type hint, as far as that can be checked without consuming it."""
    origin, args = get_origin(type_hint), get_args(type_hint)
    if origin in (Union, types.UnionType):
        return any(matches_type(value, arg) for arg in args)
    if origin is Annotated:
        return matches_type(value, args[0])
    if origin is Literal:
        return any(type(value) is type(arg) and value == arg for arg in args)
    if type_hint is None or type_hint is types.NoneType:
        return value is None
    # bool is an int in Python, but `workers = true` is a mistake.
    if isinstance(value, bool) and type_hint in (int, float):
        return False
    if type_hint is float:
        return isinstance(value, int | float)
    result = type_hint if origin is None else origin
    if not isinstance(result, type):
        return True
    if issubclass(result, Mapping):
        return isinstance(value, Mapping) and (
            not args or all(matches_type(key, args[0]) and matches_type(arg, args[1]) for key, arg in value.items())
        )
    if _is_collection(result):
        return _matches_collection(value, args)
    try:
        return isinstance(value, result)
    except TypeError:  # a protocol or a TypedDict
        return True


def _is_collection(kind: type) -> bool:
    return (
        kind is not type and issubclass(kind, Iterable) and not issubclass(kind, _STRING_TYPES) and _is_container(kind)
    )


def _is_container(kind: type) -> bool:
    # Other iterable classes are objects to pass on, such as a Path or a Server, not lists of values.
    return kind.__module__ in ("builtins", "collections.abc", "typing")


def _matches_collection(value: Any, args: tuple[Any, ...]) -> bool:
    if isinstance(value, (*_STRING_TYPES, Mapping)) or not isinstance(value, Iterable):
        return False
    # A generator can be read only once, so its items are left to the function that consumes it.
    return not args or not isinstance(value, _COLLECTION_TYPES) or all(matches_type(item, args[0]) for item in value)
