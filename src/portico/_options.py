"""Keyword options: an unknown one is answered with the nearest that there is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from portico.schema.problems import nearest
from portico.wire.errors import UsageError

P = ParamSpec("P")
S = TypeVar("S")


def check_options(of: str, given: Iterable[str], known: Mapping[str, Any]) -> None:
    """Raises UsageError for the first option that is not among the known ones."""
    for name in given:
        if name not in known:
            close = nearest(name, known)
            hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(sorted(known))}"
            raise UsageError(f"{of} has no option {name!r}; {hint}")


def explained(init: Callable[Concatenate[S, P], None]) -> Callable[Concatenate[S, P], None]:
    """A constructor that refuses unknown keywords with `check_options`, where Python would raise TypeError."""
    return explained_like(init)(init)


def explained_like(
    model: Callable[Concatenate[Any, P], None],
) -> Callable[[Callable[..., None]], Callable[Concatenate[Any, P], None]]:
    """The same for a constructor that has `**options`, and passes them on to another one: the `model`."""
    code = getattr(model, "__wrapped__", model).__code__
    # Its parameters by name; the first one is `self`.
    known = dict.fromkeys(code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount])

    def decorate(init: Callable[..., None]) -> Callable[Concatenate[Any, P], None]:
        @wraps(model)
        def checked(self: Any, /, *args: P.args, **options: P.kwargs) -> None:
            check_options(type(self).__name__, options, known)
            init(self, *args, **options)

        return checked

    return decorate
