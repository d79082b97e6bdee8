"""A Handler by its name: `module:object` or `path/to/file.py:object`."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from portico.wire.errors import Error, UsageError


def is_named(target: str) -> bool:
    """Whether this is how an object is named, and not a command or a URL."""
    place, name = _split(target)
    return bool(name) or _is_file(place)


def load(target: str) -> Any:
    """The server a target names. Without an object it is `server`, or the only server in the module."""
    place, name = _split(target)
    module = _from_file(place) if _is_file(place) else _from_name(place)
    return _object(module, name, target) if name else _only(module, target)


def function(target: str) -> Any:
    """The function that `module:function` names, not called. Raises UsageError if there is none."""
    place, name = _split(target)
    found: Any = _from_file(place) if _is_file(place) else _from_name(place)
    for part in name.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        raise UsageError(f"there is no function {name!r} in {place}")
    return found


def is_server(found: Any) -> bool:
    """A Server, or anything else that answers Calls and has a beginning and an end."""
    return callable(found) and hasattr(found, "lifespan") and not isinstance(found, type)


def _split(target: str) -> tuple[str, str]:
    place, mark, name = target.rpartition(":")
    # A Windows drive has a colon too.
    return (place, name) if mark and name.replace(".", "_").isidentifier() and len(place) > 1 else (target, "")


def _is_file(place: str) -> bool:
    return place.endswith(".py")


def _from_file(path: str) -> ModuleType:
    if not os.path.isfile(path):
        raise UsageError(f"there is no file {path}")
    name = os.path.splitext(os.path.basename(path))[0]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # As when the file is run by itself: what lies beside it can be imported.
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    sys.modules.setdefault(name, module)
    with _showing_where():
        spec.loader.exec_module(module)
    return module


@contextmanager
def _showing_where() -> Iterator[None]:
    """A mistake in the user's own file is shown with its place there."""
    try:
        yield
    except Error:
        traceback.print_exc()
        raise SystemExit(1) from None


def _from_name(name: str) -> ModuleType:
    sys.path.insert(0, "")
    try:
        with _showing_where():
            return importlib.import_module(name)
    except ModuleNotFoundError as missing:
        if missing.name is not None and (name == missing.name or name.startswith(f"{missing.name}.")):
            raise UsageError(f"there is no module {name!r}; a file is given as path/to/file.py") from None
        raise


def _object(module: ModuleType, name: str, target: str) -> Any:
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
    if callable(found) and not is_server(found):
        found = found()
    if not is_server(found):
        raise UsageError(f"{target} is not a Server{_hint(module)}")
    return found


def _only(module: ModuleType, target: str) -> Any:
    preferred = getattr(module, "server", None)
    if is_server(preferred):
        return preferred
    servers = {id(one): one for one in vars(module).values() if is_server(one)}
    if len(servers) != 1:
        raise UsageError(f"{target} has {len(servers) or 'no'} Servers; name one as {target}:object{_hint(module)}")
    return next(iter(servers.values()))


def _hint(module: ModuleType) -> str:
    names = [name for name, one in vars(module).items() if is_server(one)]
    return f" (there is {', '.join(names)})" if names else ""
