"""Serialization of a session's names. Only workers do this, since unpickling can run arbitrary code.

Modules and imported objects are stored by name, functions and classes as source, patches as they were defined, and
everything else as pickles. Names that share objects are pickled together, so that they share them after restoring.
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

from portico_services.livepython.sandbox.display import truncate_line, type_name
from portico_services.livepython.sandbox.name_resolution import InspectionError
from portico_services.livepython.sandbox.source_tracking import defining_statements, find_origin

MAIN_MODULE = "__main__"
MAX_REPORTED_NAMES = 500
# Per value. A value that cannot be pickled and unpickled in this time is skipped.
PICKLE_TIMEOUT_SECONDS = 5.0
Reasons = dict[str, str]
# For these types, equal copies are as good as a shared object.
_IDENTITY_TYPES = (str, bytes, type, FunctionType, BuiltinFunctionType)


@contextmanager
def running_as_main(namespace: dict[str, Any]) -> Iterator[None]:
    """Make the namespace the `__main__` module, by which pickles refer to definitions of the session."""
    module = ModuleType(MAIN_MODULE)
    before = sys.modules.get(MAIN_MODULE)
    if before is None or vars(before) is not namespace:
        vars(module).update(namespace)
        sys.modules[MAIN_MODULE] = module
    try:
        yield
    finally:
        if before is not None:
            sys.modules[MAIN_MODULE] = before


class PickleTimeout(BaseException):
    """Not an Exception, which code of a session may catch."""


@contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """Raise PickleTimeout after `seconds`, where SIGALRM is available."""

    def stop(*_: Any) -> None:
        raise PickleTimeout(f"it takes more than {seconds:g} s")

    try:
        before = signal.signal(signal.SIGALRM, stop)
    # No SIGALRM on this platform, or not in the main thread: continue without a limit.
    except (AttributeError, ValueError):
        yield
        return
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


# Dump


def dump_session(
    namespace: dict[str, Any], changes: list[tuple[str, str]], seconds: float | None = None
) -> tuple[bytes, list[str], Reasons]:
    """Return the data, the names in it, and why other names were skipped. `seconds` is the time limit per name."""
    names = {name: value for name, value in list(namespace.items()) if _is_saveable(name)}
    texts = _source_statements(names)
    imports = {name: home for name, value in names.items() if (home := _import_origin(value)) is not None}
    defined = {name for name in names if name in texts and _is_definition(name, names[name])}
    pickles: dict[str, bytes] = {}
    shared: dict[str, dict[int, Any]] = {}
    left_out: Reasons = {}
    with running_as_main(namespace):
        for name in [item for item in names if item not in imports and item not in defined]:
            try:
                with _time_limit(seconds or PICKLE_TIMEOUT_SECONDS):
                    pickles[name], shared[name] = _pickle_value(names[name], defined)
            except KeyboardInterrupt:
                raise  # the request timed out
            except BaseException as reason:
                # A callable that cannot be pickled can still be restored from its source.
                if name in texts and callable(names[name]):
                    defined.add(name)
                else:
                    left_out[name] = _skip_reason(names[name], reason)
        parts = [(group, _pickle_group(group, names, pickles)) for group in _group_shared(shared)]
    head = {
        "imports": imports,
        "definitions": {name: text for name, text in texts.items() if name in defined},
        "changes": changes,
        "values": [[group, len(part)] for group, part in parts],
    }
    data = b"".join([json.dumps(head).encode(), b"\n", *(part for _, part in parts)])
    return data, sorted([*imports, *defined, *pickles]), left_out


def _source_statements(names: Mapping[str, Any]) -> dict[str, str]:
    """Return the source of the statement that defined each name, oldest first, so that dependencies come first."""
    statements = defining_statements()
    origins = {name: find_origin(value, statements[name]) for name, value in names.items() if name in statements}
    result = [(statement, name) for name, statement in origins.items() if statement is not None]
    return {name: statement.text for statement, name in sorted(result)}


def _is_saveable(name: Any) -> bool:
    return type(name) is str and not name.startswith("__") and name != "_"


def _import_origin(value: Any) -> tuple[str, str] | None:
    """Return the module that a value was imported from and its name there, or None."""
    if type(value) is ModuleType:
        return value.__name__, ""
    if not issubclass(type(value), type | FunctionType | BuiltinFunctionType):
        return None
    try:
        module, path = value.__module__, value.__qualname__
        result: Any = sys.modules[module]
        for part in path.split("."):
            result = getattr(result, part)
    except KeyboardInterrupt:
        raise  # the request timed out
    except BaseException:
        return None  # not found under its declared name, or it does not declare one
    return (module, path) if result is value and module != MAIN_MODULE else None


def _is_definition(name: str, value: Any) -> bool:
    """Return whether the value was created by the statement that defines the name."""
    try:
        home, own = value.__module__, value.__qualname__
    except KeyboardInterrupt:
        raise
    except BaseException:
        return False  # it has no such attributes, or they raise
    return callable(value) and home == MAIN_MODULE and own in (name, "<lambda>")


def _pickle_value(value: Any, defined: set[str]) -> tuple[bytes, dict[int, Any]]:
    """Return the pickle of a value, and the objects in it that other names may share.

    Raises whatever prevents pickling or unpickling.
    """
    file = io.BytesIO()
    pickler = pickle.Pickler(file, pickle.HIGHEST_PROTOCOL)
    pickler.dump(value)
    data = file.getvalue()
    # Unpickle it right away: a pickle that cannot be read would be noticed only after the session is gone.
    SessionUnpickler(data, defined).load()
    # Keep references to the objects, so that their ids are not reused before all names are processed.
    return data, {
        number: member for number, (_, member) in pickler.memo.copy().items() if type(member) not in _IDENTITY_TYPES
    }


def _group_shared(shared: Mapping[str, dict[int, Any]]) -> list[list[str]]:
    """Group the names that share objects."""
    # Union-find: each name points to another of its group, up to the representative.
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


def _pickle_group(group: list[str], names: Mapping[str, Any], pickles: Mapping[str, bytes]) -> bytes:
    if len(group) == 1:
        return pickles[group[0]]
    return pickle.dumps([names[name] for name in group], pickle.HIGHEST_PROTOCOL)


def _skip_reason(value: Any, reason: BaseException) -> str:
    return f"{type_name(value)}: {truncate_line(str(reason)) or type_name(reason)}"


def largest_names(data: bytes) -> str:
    """Describe the largest names in words."""
    values = json.loads(data.partition(b"\n")[0])["values"]
    largest = sorted(values, key=lambda entry: -entry[1])[:3]
    return ", ".join(f"{' with '.join(group[:5])} ({size:,} bytes)" for group, size in largest)


def names_report(names: list[str], failed: Reasons) -> dict[str, Any]:
    """Return the report about saved or restored names, limited in length."""
    reasons = [
        {"name": truncate_line(name), "reason": why} for name, why in sorted(failed.items())[:MAX_REPORTED_NAMES]
    ]
    return {
        "names": [truncate_line(name) for name in names[:MAX_REPORTED_NAMES]],
        "total": len(names),
        "failed": reasons,
    }


# Load


class SessionUnpickler(pickle.Unpickler):
    """Unpickler that resolves only those names of the session that are `defined` in it."""

    def __init__(self, data: bytes, defined: set[str]) -> None:
        super().__init__(io.BytesIO(data))
        self._defined = defined

    def find_class(self, module: str, name: str) -> Any:
        if module == MAIN_MODULE and name.partition(".")[0] not in self._defined:
            raise pickle.UnpicklingError(f"the text of {name} is not known")
        return super().find_class(module, name)


def load_session(
    data: bytes, namespace: dict[str, Any], run: Callable[[str], Any], change: Callable[[str, str], Any]
) -> tuple[list[str], Reasons]:
    """Restore saved names into the namespace. Return the restored names, and why others failed.

    `run` executes a statement, `change` patches a method.
    """
    line, _, rest = data.partition(b"\n")
    try:
        head = json.loads(line)
        imports, definitions, values = dict(head["imports"]), dict(head["definitions"]), list(head["values"])
    except (ValueError, KeyError, TypeError):
        raise InspectionError("The data is not a saved session.") from None
    steps: list[tuple[list[str], Callable[[], Any]]] = [
        *(([name], partial(_import, namespace, name, *home)) for name, home in imports.items()),
        *(([name], partial(run, text)) for name, text in definitions.items()),
        *(
            (group, partial(_unpickle, namespace, group, part, set(definitions)))
            for group, part in _split(rest, values)
        ),
        *(([name], partial(change, name, text)) for name, text in head.get("changes", ())),
    ]
    failed = _run_steps(steps)
    every = {name for group, _ in steps[: len(steps) - len(head.get("changes", ()))] for name in group}
    return sorted(every - failed.keys()), failed


def _run_steps(steps: list[tuple[list[str], Callable[[], Any]]]) -> Reasons:
    """Run the steps and return why some failed.

    Failed steps are retried while others succeed: a default or a base class may be one of the values, and a value an
    instance of a restored class.
    """
    while True:
        failed: Reasons = {}
        left = []
        for names, step in steps:
            try:
                step()
            except KeyboardInterrupt:
                raise  # the request timed out
            except BaseException as reason:
                failed |= dict.fromkeys(names, f"{type_name(reason)}: {truncate_line(str(reason))}")
                left.append((names, step))
        if not left or len(left) == len(steps):
            return failed
        steps = left


def _import(namespace: dict[str, Any], name: str, module: str, path: str) -> None:
    __import__(module)
    result: Any = sys.modules[module]
    for part in path.split(".") if path else ():
        result = getattr(result, part)
    namespace[name] = result


def _unpickle(namespace: dict[str, Any], group: list[str], data: bytes, defined: set[str]) -> None:
    with running_as_main(namespace):
        result = SessionUnpickler(data, defined).load()
    namespace |= {group[0]: result} if len(group) == 1 else dict(zip(group, result, strict=True))


def _split(data: bytes, values: list[tuple[list[str], int]]) -> Iterator[tuple[list[str], bytes]]:
    at = 0
    for group, size in values:
        yield group, data[at : at + size]
        at += size
