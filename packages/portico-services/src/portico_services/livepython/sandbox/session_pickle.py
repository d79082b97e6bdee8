"""The names of a session as bytes, and back. Only a worker does this: reading a pickle runs whatever it says.

Modules and what was imported from them are kept by name, functions and classes by their text, what was changed in
place as it was given, and everything else as pickles. Names that share objects stand in one, and share them when they
are back.
"""

from __future__ import annotations

import io
import json
import pickle
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

from portico_services.livepython.sandbox.display import kind_name, one_line
from portico_services.livepython.sandbox.name_resolution import InspectionError
from portico_services.livepython.sandbox.source_tracking import origin, statements

MAIN = "__main__"
MOST_TOLD = 500
# For one value. One that cannot be written in it, or be read again, is left out, and the others are not.
SECONDS = 5.0
Reasons = dict[str, str]
# Of these two that are equal are as good as one.
_EQUALS = (str, bytes, type, FunctionType, BuiltinFunctionType)


@contextmanager
def as_main(namespace: dict[str, Any]) -> Iterator[None]:
    """Pickles name what a session has defined by its module, which is the one they are read and written in."""
    module = ModuleType(MAIN)
    before = sys.modules.get(MAIN)
    if before is None or vars(before) is not namespace:
        vars(module).update(namespace)
        sys.modules[MAIN] = module
    try:
        yield
    finally:
        if before is not None:
            sys.modules[MAIN] = before


class TooSlow(BaseException):
    """Not an Exception, which code of a session may well catch."""


@contextmanager
def _limited(seconds: float) -> Iterator[None]:
    """Raises TooSlow when time is up, where there are such signals."""

    def stop(*_: Any) -> None:
        raise TooSlow(f"it takes more than {seconds:g} s")

    try:
        before = signal.signal(signal.SIGALRM, stop)
    except (AttributeError, ValueError):
        yield
        return
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


# Writing


def saved(
    namespace: dict[str, Any], changes: list[tuple[str, str]], seconds: float | None = None
) -> tuple[bytes, list[str], Reasons]:
    """The bytes, the names that are in them, and why the others are not. `seconds` for each, if not the usual."""
    names = {name: value for name, value in list(namespace.items()) if _is_kept(name)}
    texts = _texts(names)
    imports = {name: home for name, value in names.items() if (home := _home(value)) is not None}
    defined = {name for name in names if name in texts and _is_definition(name, names[name])}
    pickles: dict[str, bytes] = {}
    shared: dict[str, dict[int, Any]] = {}
    left_out: Reasons = {}
    with as_main(namespace):
        for name in [one for one in names if one not in imports and one not in defined]:
            try:
                with _limited(seconds or SECONDS):
                    pickles[name], shared[name] = _pickled(names[name], defined)
            except KeyboardInterrupt:
                raise  # time is up
            except BaseException as reason:
                if name in texts and callable(names[name]):
                    defined.add(name)
                else:
                    left_out[name] = _why(names[name], reason)
        parts = [(group, _together(group, names, pickles)) for group in _groups(shared)]
    head = {
        "imports": imports,
        "definitions": {name: text for name, text in texts.items() if name in defined},
        "changes": changes,
        "values": [[group, len(part)] for group, part in parts],
    }
    data = b"".join([json.dumps(head).encode(), b"\n", *(part for _, part in parts)])
    return data, sorted([*imports, *defined, *pickles]), left_out


def _texts(names: Mapping[str, Any]) -> dict[str, str]:
    """The statement that made each name, oldest first: what one needs stands before it."""
    known = statements()
    made = {name: origin(value, known[name]) for name, value in names.items() if name in known}
    found = [(one, name) for name, one in made.items() if one is not None]
    return {name: one.text for one, name in sorted(found)}


def _is_kept(name: Any) -> bool:
    return type(name) is str and not name.startswith("__") and name != "_"


def _home(value: Any) -> tuple[str, str] | None:
    """The module that a name was imported from, and what it is called there, if it was."""
    if type(value) is ModuleType:
        return value.__name__, ""
    if not issubclass(type(value), type | FunctionType | BuiltinFunctionType):
        return None
    try:
        module, path = value.__module__, value.__qualname__
        found: Any = sys.modules[module]
        for part in path.split("."):
            found = getattr(found, part)
    except KeyboardInterrupt:
        raise  # time is up
    except BaseException:
        return None  # it is not where it says, or does not say where it is
    return (module, path) if found is value and module != MAIN else None


def _is_definition(name: str, value: Any) -> bool:
    """Whether a value is what the statement that defines the name has made."""
    try:
        home, own = value.__module__, value.__qualname__
    except KeyboardInterrupt:
        raise
    except BaseException:
        return False  # it has none, or will not say
    return callable(value) and home == MAIN and own in (name, "<lambda>")


def _pickled(value: Any, defined: set[str]) -> tuple[bytes, dict[int, Any]]:
    """The pickle of a value, and the objects in it that others may share. Raises whatever keeps it from being written,
    or from being read again."""
    file = io.BytesIO()
    pickler = pickle.Pickler(file, pickle.HIGHEST_PROTOCOL)
    pickler.dump(value)
    data = file.getvalue()
    ModuleUnpickler(data, defined).load()
    # With the objects, so that none of them is gone, and its number another's, before all have been looked at.
    return data, {number: one for number, (_, one) in pickler.memo.copy().items() if type(one) not in _EQUALS}


def _groups(shared: Mapping[str, dict[int, Any]]) -> list[list[str]]:
    """The names, those together that share an object."""
    # Of each name another of its group, and in the end the one that stands for all of them.
    leads = {name: name for name in shared}

    def leader(name: str) -> str:
        while leads[name] != name:
            leads[name] = leads[leads[name]]
            name = leads[name]
        return name

    first: dict[int, str] = {}
    for name, objects in shared.items():
        for number in objects:
            leads[leader(name)] = leader(first.setdefault(number, name))
    groups: dict[str, list[str]] = {}
    for name in shared:
        groups.setdefault(leader(name), []).append(name)
    return list(groups.values())


def _together(group: list[str], names: Mapping[str, Any], pickles: Mapping[str, bytes]) -> bytes:
    if len(group) == 1:
        return pickles[group[0]]
    return pickle.dumps([names[name] for name in group], pickle.HIGHEST_PROTOCOL)


def _why(value: Any, reason: BaseException) -> str:
    return f"{kind_name(value)}: {one_line(str(reason)) or kind_name(reason)}"


def largest(data: bytes) -> str:
    """The names that take most, in words."""
    values = json.loads(data.partition(b"\n")[0])["values"]
    most = sorted(values, key=lambda one: -one[1])[:3]
    return ", ".join(f"{' with '.join(group[:5])} ({size:,} bytes)" for group, size in most)


def told(names: list[str], failed: Reasons) -> dict[str, Any]:
    """What became of the names, as far as it is told."""
    reasons = [{"name": one_line(name), "reason": why} for name, why in sorted(failed.items())[:MOST_TOLD]]
    return {"names": [one_line(name) for name in names[:MOST_TOLD]], "total": len(names), "failed": reasons}


# Reading


class ModuleUnpickler(pickle.Unpickler):
    """Reads pickles that name nothing of the session but what is `defined` in it."""

    def __init__(self, data: bytes, defined: set[str]) -> None:
        super().__init__(io.BytesIO(data))
        self._defined = defined

    def find_class(self, module: str, name: str) -> Any:
        if module == MAIN and name.partition(".")[0] not in self._defined:
            raise pickle.UnpicklingError(f"the text of {name} is not known")
        return super().find_class(module, name)


def restored(
    data: bytes, namespace: dict[str, Any], run: Callable[[str], Any], change: Callable[[str, str], Any]
) -> tuple[list[str], Reasons]:
    """Put what was saved among the names. `run` runs a statement, `change` gives a class a method. Gives the names that
    are there now, and why others are not."""
    line, _, rest = data.partition(b"\n")
    try:
        head = json.loads(line)
        imports, definitions, values = dict(head["imports"]), dict(head["definitions"]), list(head["values"])
    except (ValueError, KeyError, TypeError):
        raise InspectionError("This is no saved session.") from None
    steps: list[tuple[list[str], Callable[[], Any]]] = [
        *(([name], partial(_import, namespace, name, *home)) for name, home in imports.items()),
        *(([name], partial(run, text)) for name, text in definitions.items()),
        *(
            (group, partial(_unpickle, namespace, group, part, set(definitions)))
            for group, part in _split(rest, values)
        ),
        *(([name], partial(change, name, text)) for name, text in head.get("changes", ())),
    ]
    failed = _taken(steps)
    every = {name for group, _ in steps[: len(steps) - len(head.get("changes", ()))] for name in group}
    return sorted(every - failed.keys()), failed


def _taken(steps: list[tuple[list[str], Callable[[], Any]]]) -> Reasons:
    """Why some of the steps could not be taken. Each is tried as long as others make it possible: a default or a base
    class may be one of the values, and a value an object of a class."""
    while True:
        failed: Reasons = {}
        left = []
        for names, step in steps:
            try:
                step()
            except KeyboardInterrupt:
                raise  # time is up
            except BaseException as reason:
                failed |= dict.fromkeys(names, f"{kind_name(reason)}: {one_line(str(reason))}")
                left.append((names, step))
        if not left or len(left) == len(steps):
            return failed
        steps = left


def _import(namespace: dict[str, Any], name: str, module: str, path: str) -> None:
    __import__(module)
    found: Any = sys.modules[module]
    for part in path.split(".") if path else ():
        found = getattr(found, part)
    namespace[name] = found


def _unpickle(namespace: dict[str, Any], group: list[str], data: bytes, defined: set[str]) -> None:
    with as_main(namespace):
        found = ModuleUnpickler(data, defined).load()
    namespace |= {group[0]: found} if len(group) == 1 else dict(zip(group, found, strict=True))


def _split(data: bytes, values: list[tuple[list[str], int]]) -> Iterator[tuple[list[str], bytes]]:
    at = 0
    for group, size in values:
        yield group, data[at : at + size]
        at += size
