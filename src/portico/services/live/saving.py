"""The names of a session as bytes, and back. Only a worker does this: reading a pickle runs whatever it says.

Modules are kept by their names, functions and classes by their text, what was changed in place as it was given, and
everything else as pickles that know of each other: two names for one object stay two names for one object.
"""

from __future__ import annotations

import io
import json
import pickle
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import accumulate
from types import ModuleType
from typing import Any

from portico.services.live.definitions import statements
from portico.services.live.display import kind_name, one_line
from portico.services.live.names import InspectionError

MAIN = "__main__"
MOST_TOLD = 500
# The last that numbers what it remembers: in later ones a part that fails would put all that follow out of count.
PROTOCOL = 3
Reasons = dict[str, str]


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


# Writing


def saved(namespace: dict[str, Any], changes: list[tuple[str, str]]) -> tuple[bytes, list[str], Reasons]:
    """The bytes, the names that are in them, and why the others are not."""
    texts = statements()
    names = {name: value for name, value in list(namespace.items()) if not name.startswith("__") and name != "_"}
    modules = {name: value.__name__ for name, value in names.items() if type(value) is ModuleType}
    defined = {name for name, value in names.items() if name in texts and _is_definition(name, value)}
    values, left_out = {}, {}
    with as_main(namespace):
        for name in names.keys() - modules.keys() - defined:
            try:
                _proven(names[name], defined)
                values[name] = names[name]
            except Exception as reason:
                if name in texts and callable(names[name]):
                    defined.add(name)
                else:
                    left_out[name] = _why(names[name], reason)
        parts = list(_parts(values))
    head = {
        "modules": modules,
        "definitions": [[name, text] for name, text in texts.items() if name in defined],
        "changes": changes,
        "values": [[name, len(part)] for name, part in parts],
    }
    data = b"".join([json.dumps(head).encode(), b"\n", *(part for _, part in parts)])
    return data, sorted([*modules, *defined, *values]), left_out


def _is_definition(name: str, value: Any) -> bool:
    """Whether a value is what the statement that defines the name has made."""
    home, own = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    return callable(value) and home == MAIN and own in (name, "<lambda>")


def _proven(value: Any, defined: set[str]) -> None:
    """Raises whatever keeps a value from being written, or from being read again."""
    ModuleUnpickler(io.BytesIO(pickle.dumps(value, PROTOCOL)), defined).load()


def _parts(values: Mapping[str, Any]) -> Iterator[tuple[str, bytes]]:
    file = io.BytesIO()
    pickler = pickle.Pickler(file, PROTOCOL)
    for name, value in values.items():
        file.seek(0)
        file.truncate()
        pickler.dump(value)
        yield name, file.getvalue()


def _why(value: Any, reason: Exception) -> str:
    return f"{kind_name(value)}: {one_line(str(reason)) or kind_name(reason)}"


def largest(data: bytes) -> str:
    """The names that take most, in words."""
    values = json.loads(data.partition(b"\n")[0])["values"]
    most = sorted(values, key=lambda one: -one[1])[:3]
    return ", ".join(f"{name} ({size:,} bytes)" for name, size in most)


def told(names: list[str], failed: Reasons) -> dict[str, Any]:
    """What became of the names, as far as it is told."""
    reasons = [{"name": one_line(name), "reason": why} for name, why in sorted(failed.items())[:MOST_TOLD]]
    return {"names": [one_line(name) for name in names[:MOST_TOLD]], "total": len(names), "failed": reasons}


# Reading


class ModuleUnpickler(pickle.Unpickler):
    """Reads pickles that name nothing of the session but what is `defined` in it."""

    def __init__(self, file: Any, defined: set[str]) -> None:
        super().__init__(file)
        self._defined = defined

    def find_class(self, module: str, name: str) -> Any:
        if module == MAIN and name.partition(".")[0] not in self._defined:
            raise pickle.UnpicklingError(f"the text of {name} is not known")
        return super().find_class(module, name)


class ValueReader:
    """Reads parts that were written one after the other: also again, and after one that failed.

    With this protocol, and from a file that cannot be peeked into, an unpickler reads no more than it needs; so it can
    go on anywhere, and knows what it has read before.
    """

    def __init__(self, data: bytes, sizes: list[tuple[str, int]], defined: set[str]) -> None:
        self._file = io.BytesIO(data)
        self._unpickler = ModuleUnpickler(self._file, defined)
        begins = accumulate((size for _, size in sizes), initial=0)
        self._begins = dict(zip((name for name, _ in sizes), begins, strict=False))

    def read(self, name: str) -> Any:
        self._file.seek(self._begins[name])
        return self._unpickler.load()


def restored(
    data: bytes, namespace: dict[str, Any], run: Callable[[str], Any], change: Callable[[str, str], Any]
) -> tuple[list[str], Reasons]:
    """Put what was saved among the names. `run` runs a statement, `change` gives a class a method. Gives the names that
    are there now, and why others are not."""
    line, _, rest = data.partition(b"\n")
    try:
        head = json.loads(line)
        modules, definitions, values = dict(head["modules"]), dict(head["definitions"]), list(head["values"])
    except (ValueError, KeyError, TypeError):
        raise InspectionError("This is no saved session.") from None
    absent: Reasons = {}
    for name, module in modules.items():
        namespace |= _tried(name, absent, _module, module)
    reader = ValueReader(rest, values, set(definitions))
    # A default or a base class may be one of the values, and a value an object of a class: until nothing more is found.
    pending = [*definitions, *(name for name, _ in values)]
    while True:
        failed: Reasons = {}
        for name in pending:
            if name in definitions:
                _tried(name, failed, run, definitions[name])
            else:
                with as_main(namespace):
                    namespace |= _tried(name, failed, reader.read, name)
        if not failed or len(failed) == len(pending):
            break
        pending = list(failed)
    failed |= absent
    for class_name, text in head.get("changes", ()):
        _tried(class_name, failed, change, class_name, text)
    every = [*modules, *definitions, *(name for name, _ in values)]
    return sorted(name for name in every if name not in failed), failed


def _module(name: str) -> ModuleType:
    __import__(name)
    return sys.modules[name]


def _tried(name: str, failed: Reasons, step: Callable[..., Any], *arguments: Any) -> dict[str, Any]:
    """What a step gives, under this name; nothing if it raised something, which is then a reason."""
    try:
        return {name: step(*arguments)}
    except Exception as reason:
        failed[name] = f"{kind_name(reason)}: {one_line(str(reason))}"
        return {}
