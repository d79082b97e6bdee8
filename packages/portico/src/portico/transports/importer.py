"""Import of servers by name: `module:object` or `path/to/file.py:object`."""

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

from portico.protocol.errors import PorticoError, UsageError
from portico.rpc.tracebacks import package_folders

# Frames of user code that an error message shows.
MAX_FRAMES = 5
_PACKAGES = ("portico", "portico_gateway", "portico_services", "portico_console")
_EXPECTED = "expected path/to/file.py[:object] or module:object"
# Frameworks whose code `portico port` rewrites.
_PORTABLE = ("fastmcp", "mcp")


def is_import_string(target: str) -> bool:
    """Return whether a target names an object, as opposed to a command or a URL."""
    module_path, name = _split(target)
    return bool(name) or _is_file(module_path)


def is_command_line(target: str) -> bool:
    """Return whether a target has several words: it contains spaces and is not the path of a file."""
    return " " in target and not any(map(os.path.exists, (target, target.rpartition(":")[0])))


def import_server(target: str) -> Any:
    """Return the server that a target names. Without an object name: `server`, or the only server in the module."""
    module_path, name = _split(target)
    module = _from_file(module_path) if _is_file(module_path) else _from_name(module_path)
    return _object(module, name, target) if name else _find_only_server(module, target)


def import_function(target: str) -> Any:
    """Return the function that `module:function` names, without calling it. Raises `UsageError` if it is missing."""
    module_path, name = _split(target)
    result: Any = _from_file(module_path) if _is_file(module_path) else _from_name(module_path)
    for part in name.split("."):
        result = getattr(result, part, None)
    if not callable(result):
        raise UsageError(f"function {name!r} not found in {module_path}")
    return result


def is_server(value: Any) -> bool:
    """Return whether a value is a Server or another handler with a lifespan."""
    return callable(value) and hasattr(value, "lifespan") and not isinstance(value, type)


def _split(target: str) -> tuple[str, str]:
    module_path, mark, name = target.rpartition(":")
    # A Windows drive letter is followed by a colon, too.
    return (
        (module_path, name) if mark and name.replace(".", "_").isidentifier() and len(module_path) > 1 else (target, "")
    )


def _is_file(module_path: str) -> bool:
    return module_path.endswith(".py")


def _from_file(path: str) -> ModuleType:
    if not os.path.isfile(path):
        raise UsageError(f"file not found: {path}")
    name = os.path.splitext(os.path.basename(path))[0]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # As when the file is run as a script: modules in its folder can be imported.
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    # `setdefault`: a file named like an imported module, such as `json.py`, must not replace it.
    sys.modules.setdefault(name, module)
    with _explain_errors(path):
        spec.loader.exec_module(module)
    return module


class LoadFailed(UsageError):
    """An error was raised while the user's file was loaded. `__cause__` is that error."""


@contextmanager
def _explain_errors(module_path: str) -> Iterator[None]:
    """Convert an error in user code to one message with its location."""
    try:
        yield
    except LoadFailed:
        raise
    # Also SystemExit: a file that calls sys.exit() when it is imported would end the command without a message.
    except (Exception, SystemExit) as failure:
        raise LoadFailed(describe_failure(module_path, failure)) from failure


def describe_failure(module_path: str, failure: BaseException) -> str:
    """Return an error message with the lines of user code that led to the error.

    Frames of Portico, importlib and installed packages are omitted: the user cannot change them.
    """
    if isinstance(failure, SyntaxError) and failure.lineno is not None:
        *_, last = traceback.format_exception_only(failure)
        lines = [f"{failure.filename or module_path}, line {failure.lineno}: {last.strip()}"]
        if failure.text:
            lines.append(f"    {failure.text.strip()}")
        return "\n".join(lines)
    frames = [frame for frame in traceback.extract_tb(failure.__traceback__) if _is_users(frame.filename)]
    message = "".join(traceback.format_exception_only(failure)).strip()
    if isinstance(failure, PorticoError):
        # The class is Portico's own, and the message is complete.
        message = str(failure)
    lines = [f"{module_path} cannot be loaded: {message}"]
    for frame in frames[-MAX_FRAMES:]:
        lines.append(f"  {frame.filename}, line {frame.lineno}, in {frame.name}")
        lines += [f"    {frame.line}"] if frame.line else []
    if isinstance(failure, ModuleNotFoundError) and (failure.name or "").partition(".")[0] in _PORTABLE:
        lines.append(
            f"This is code for {failure.name}: install that package, or run `portico port {module_path}` to rewrite it"
        )
    return "\n".join(lines)


def _is_users(path: str) -> bool:
    """Return whether a file is user code: not part of Portico, Python or an installed package."""
    system_folders = (*package_folders(*_PACKAGES), os.path.dirname(os.__file__) + os.sep)
    return not (path.startswith(("<", *system_folders)) or "site-packages" in path or "dist-packages" in path)


def _from_name(name: str) -> ModuleType:
    if not all(part.isidentifier() for part in name.split(".")):
        raise UsageError(_describe_path(name) or f"{name!r} is neither a file nor a module: {_EXPECTED}")
    # Python would import it as a namespace package, which has no servers.
    if os.path.isdir(name) and not os.path.isfile(os.path.join(name, "__init__.py")):
        raise UsageError(_describe_path(name))
    # As `python -m` does: modules of the current directory can be imported.
    sys.path.insert(0, "")
    try:
        with _explain_errors(name):
            return importlib.import_module(name)
    except LoadFailed as failure:
        missing = failure.__cause__
        absent = missing.name if isinstance(missing, ModuleNotFoundError) else None
        if absent is not None and (name == absent or name.startswith(f"{absent}.")):
            raise UsageError(
                _describe_path(name) or f"module {name!r} not found (for a file, use path/to/file.py)"
            ) from None
        raise


def _describe_path(path: str) -> str:
    """Return why an existing path is not a target, or "" if nothing exists there."""
    if os.path.isdir(path):
        return f"{path!r} is a folder: {_EXPECTED}"
    return f"{path!r} is not a Python file: {_EXPECTED}" if os.path.exists(path) else ""


def _object(module: ModuleType, name: str, target: str) -> Any:
    result: Any = module
    for part in name.split("."):
        result = getattr(result, part, None)
    # A factory: `module:create_server`.
    if callable(result) and not is_server(result):
        result = result()
    if not is_server(result):
        raise UsageError(f"{target} is not a Server{_hint(module)}")
    return result


def _find_only_server(module: ModuleType, target: str) -> Any:
    preferred = getattr(module, "server", None)
    if is_server(preferred):
        return preferred
    # By identity, since a module may bind the same server to two names.
    servers = {id(var): var for var in vars(module).values() if is_server(var)}
    if len(servers) != 1:
        raise UsageError(f"{target} has {len(servers) or 'no'} Servers; name one as {target}:object{_hint(module)}")
    return next(iter(servers.values()))


def _hint(module: ModuleType) -> str:
    names = [name for name, value in vars(module).items() if is_server(value)]
    return f" (it has {', '.join(names)})" if names else ""
