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

from portico.protocol.errors import Error, UsageError
from portico.rpc.tracebacks import package_folders

# Of the user's frames that an error message shows.
MAX_FRAMES = 5
_PACKAGES = ("portico", "portico_gateway", "portico_services", "portico_console")


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
    with _explaining(path):
        spec.loader.exec_module(module)
    return module


class LoadFailed(UsageError):
    """The user's own file raised an error while it was loaded; `__cause__` is that error."""


@contextmanager
def _explaining(place: str) -> Iterator[None]:
    """Turn an error in the user's own file into one message with its place there."""
    try:
        yield
    except LoadFailed:
        raise
    except Exception as failure:
        raise LoadFailed(describe_failure(place, failure)) from failure


def describe_failure(place: str, failure: BaseException) -> str:
    """Return an error message with the lines of the user's own files that led to the error.

    Frames of Portico, of importlib and of installed packages are left out: the user cannot change them.
    """
    if isinstance(failure, SyntaxError) and failure.lineno is not None:
        *_, last = traceback.format_exception_only(failure)
        lines = [f"{failure.filename or place}, line {failure.lineno}: {last.strip()}"]
        if failure.text:
            lines.append(f"    {failure.text.strip()}")
        return "\n".join(lines)
    frames = [frame for frame in traceback.extract_tb(failure.__traceback__) if _is_users(frame.filename)]
    message = "".join(traceback.format_exception_only(failure)).strip()
    if isinstance(failure, Error):
        # Its class is ours, and the message says everything.
        message = str(failure)
    lines = [f"{place} cannot be loaded: {message}"]
    for frame in frames[-MAX_FRAMES:]:
        lines.append(f"  {frame.filename}, line {frame.lineno}, in {frame.name}")
        lines += [f"    {frame.line}"] if frame.line else []
    return "\n".join(lines)


def _is_users(path: str) -> bool:
    """Return whether a file is the user's own: neither Portico's, nor Python's, nor of an installed package."""
    places = (*package_folders(*_PACKAGES), os.path.dirname(os.__file__) + os.sep)
    return not (path.startswith(("<", *places)) or "site-packages" in path or "dist-packages" in path)


def _from_name(name: str) -> ModuleType:
    if not all(part.isidentifier() for part in name.split(".")):
        kind = "a folder" if os.path.isdir(name) else "neither a file nor a module"
        raise UsageError(f"{name!r} is {kind}: expected path/to/file.py[:object] or module:object")
    sys.path.insert(0, "")
    try:
        with _explaining(name):
            return importlib.import_module(name)
    except LoadFailed as failure:
        missing = failure.__cause__
        absent = missing.name if isinstance(missing, ModuleNotFoundError) else None
        if absent is not None and (name == absent or name.startswith(f"{absent}.")):
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
