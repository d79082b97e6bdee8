"""Options by keyword, of constructors, decorators and settings: an unknown one is answered with the nearest that there
is, and a value that its annotation does not allow is refused. A text is never taken for a list of letters."""

from __future__ import annotations

import inspect
import os
import re
import sys
import types
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
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
    from portico.jsonschema import argument_issues
else:
    argument_issues = LazyModule("portico.jsonschema.argument_issues")

P = ParamSpec("P")
S = TypeVar("S")
R = TypeVar("R")

_TEXTS = (str, bytes, bytearray)
# What can be looked into without using it up.
_HELD = (list, tuple, AbstractSet)
_VARIABLE = r"\$\{([^{}]*)(\}?)"
_SAID = {str: "a text", int: "a whole number", float: "a number", bool: "true or false", bytes: "bytes"}


class WrongOption(UsageError):
    """`option` is the name of the one that is wrong."""

    def __init__(self, message: str, option: str) -> None:
        super().__init__(message)
        self.option = option


def check_options(of: str, given: Mapping[str, Any], known: type) -> None:
    """Raises WrongOption for the first option that is not a key of the TypedDict `known`, or not of its type."""
    _check(of, given, known.__annotations__, partial(_kind, known))


def explained(init: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """A constructor or method that refuses unknown keywords, and values that are not what its annotations say."""
    return explained_like(init)(init)


def explained_like(
    model: Callable[Concatenate[Any, P], R],
) -> Callable[[Callable[..., R]], Callable[Concatenate[Any, P], R]]:
    """The same for a constructor that has `**options`, and passes them on to another one: the `model`."""
    written = inspect.unwrap(model)
    code = written.__code__
    # Its parameters by name; the first one is `self`.
    names = code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]
    known = {name: written.__annotations__.get(name, Any) for name in names}

    def decorate(init: Callable[..., R]) -> Callable[Concatenate[Any, P], R]:
        @wraps(model)
        def checked(self: Any, /, *args: P.args, **options: P.kwargs) -> R:
            given = {**dict(zip(names, args, strict=False)), **options}
            _check(type(self).__name__, given, known, lambda name: _resolved(known[name], written.__globals__))
            return init(self, *args, **options)

        return checked

    return decorate


def check_fields(struct: Any) -> None:
    """The same for the fields of a Struct, which does not look at them when it is made: for its `__post_init__`."""
    kind = type(struct)
    given = {name: getattr(struct, name) for name in kind.__struct_fields__}
    names = vars(sys.modules[kind.__module__])
    _check(kind.__name__, given, kind.__annotations__, lambda name: _resolved(kind.__annotations__[name], names))


def expand_paths(model: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Options that come from a file, with `~` and `${NAME}` replaced where their annotations allow a path.

    Raises WrongOption for a variable or a user that is not there: another path than the one that is meant is none.
    """
    written = inspect.unwrap(model)
    kinds = {name: _resolved(kind, written.__globals__) for name, kind in written.__annotations__.items()}
    return {name: _expanded(name, value, kinds.get(name, Any)) for name, value in given.items()}


_DURATION = r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)"
_UNIT_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def read_seconds(option: str, said: float | str, longest: float) -> float:
    """A time of a file: a number of seconds, or a text such as "90s", "10m" or "14d". Raises UsageError."""
    if isinstance(said, str):
        found = re.fullmatch(_DURATION, said.strip())
        if found is None:
            raise UsageError(f"{option} is {said!r}, and must be such as '90s', '10m' or '14d', or a number of seconds")
        said = float(found[1]) * _UNIT_SECONDS[found[2]]
    if not 0 < said < longest:
        raise UsageError(f"{option} is {said}, which is no time to wait")
    return float(said)


def _expanded(option: str, value: Any, kind: Any) -> Any:
    kinds = get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)
    if isinstance(value, str):
        is_path = any((get_origin(one) or one) is os.PathLike for one in kinds)
        return _path(option, value) if is_path else value
    # Of a table the values, of a list the members.
    within = next((get_args(one)[-1] for one in kinds if get_args(one)), Any)
    if isinstance(value, dict):
        return {name: _expanded(option, one, within) for name, one in value.items()}
    return [_expanded(option, one, within) for one in value] if isinstance(value, list) else value


def _path(option: str, text: str) -> str:
    def variable(found: re.Match[str]) -> str:
        if not found[2]:
            raise WrongOption(f"{option} is {text!r}, and its ${{ has no }}", option)
        if found[1] not in os.environ:
            raise WrongOption(f"{option} is {text!r}, and there is no variable {found[1]!r} in the environment", option)
        return os.environ[found[1]]

    home = os.path.expanduser(text)
    if text.startswith("~") and home == text:
        raise WrongOption(f"{option} is {text!r}, and there is no such user, or no home", option)
    return re.sub(_VARIABLE, variable, home)


def _check(of: str, given: Mapping[str, Any], known: Mapping[str, Any], kind_of: Callable[[str], Any]) -> None:
    for name, value in given.items():
        if name not in known:
            close = argument_issues.nearest(name, known)
            hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(sorted(known))}"
            raise WrongOption(f"{of} has no option {name!r}; {hint}", name)
        kind = kind_of(name)
        if not fits(value, kind):
            shown = repr(value)[:60]
            more = f": write [{shown}]" if isinstance(value, str) and fits([value], kind) else ""
            raise WrongOption(f"{of}: {name} is {shown}, and must be {_said(kind)}{more}", name)


@cache
def _kind(known: type, name: str) -> Any:
    """What an option must be. All tools of a server have the same ones."""
    return _resolved(known.__annotations__[name], vars(sys.modules[known.__module__]))


def _resolved(hint: Any, names: dict[str, Any]) -> Any:
    """The type that is meant. A name that is only there for type checkers may be anything."""
    if isinstance(hint, ForwardRef):
        hint = hint.__forward_arg__
    if not isinstance(hint, str):
        return hint
    try:
        return get_type_hints(type("_", (), {"__annotations__": {"it": hint}}), names)["it"]
    except NameError:
        return Any


def fits(value: Any, kind: Any) -> bool:
    """Whether a value is what a type hint says, as far as that can be told without using it up."""
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return any(fits(value, one) for one in args)
    if origin is Annotated:
        return fits(value, args[0])
    if origin is Literal:
        return any(type(value) is type(one) and value == one for one in args)
    if kind is None or kind is types.NoneType:
        return value is None
    if isinstance(value, bool) and kind in (int, float):
        return False
    if kind is float:
        return isinstance(value, int | float)
    found = kind if origin is None else origin
    if not isinstance(found, type):
        return True
    if issubclass(found, Mapping):
        return isinstance(value, Mapping) and (
            not args or all(fits(key, args[0]) and fits(one, args[1]) for key, one in value.items())
        )
    if _is_many(found):
        return _fits_many(value, args)
    try:
        return isinstance(value, found)
    except TypeError:  # a protocol, or a TypedDict
        return True


def _is_many(kind: type) -> bool:
    return kind is not type and issubclass(kind, Iterable) and not issubclass(kind, _TEXTS) and _is_container(kind)


def _is_container(kind: type) -> bool:
    return kind.__module__ in ("builtins", "collections.abc", "typing")


def _fits_many(value: Any, args: tuple[Any, ...]) -> bool:
    if isinstance(value, (*_TEXTS, Mapping)) or not isinstance(value, Iterable):
        return False
    return not args or not isinstance(value, _HELD) or all(fits(one, args[0]) for one in value)


def _said(kind: Any) -> str:
    """In words, for the person who wrote the option."""
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(_said(one) for one in args if one is not types.NoneType))
    if origin is Annotated:
        return _said(args[0])
    if origin is Literal:
        return "one of " + ", ".join(map(str, args))
    if kind in _SAID:
        return _SAID[kind]
    found = kind if origin is None else origin
    if isinstance(found, type) and issubclass(found, Mapping):
        return "a table"
    if isinstance(found, type) and _is_many(found):
        return "a list"
    return f"a {getattr(found, '__name__', str(kind))}"
