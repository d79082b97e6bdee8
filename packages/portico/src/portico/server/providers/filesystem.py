"""`FileSystemProvider`: tools, resources and prompts from a directory of Python files."""

from __future__ import annotations

import importlib.util
import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from threading import Lock
from typing import Any

from portico.protocol.errors import PorticoError, UsageError
from portico.rpc.call import Call, Handler
from portico.server.components.prompts import Prompt
from portico.server.components.resources import Resource
from portico.server.components.tools import Tool
from portico.server.registry.service import Component, component_factories

log = logging.getLogger("portico")

# Protects against a root such as `/` by mistake; every request scans the tree when `reload` is set.
MAX_FILES = 1_000


class FileSystemProvider:
    """A directory of Python files whose functions are decorated with `@tool`, `@resource` or `@prompt` of `portico`.

    * **root** – the directory. Subdirectories are included, names that begin with `_` or `.` are not.
    * **reload** – scan the directory again before each request, for development.

    A file that cannot be imported is logged and skipped. The files run with the server's privileges: anyone who can
    write them can do everything that the server can.
    """

    def __init__(self, root: str | os.PathLike[str], reload: bool = False) -> None:
        self.root = Path(root).resolve()
        if not self.root.is_dir():
            log.warning("the folder %s does not exist; no components are loaded from it", self.root)
        self._reload = reload
        self._servers: list[Any] = []
        # By file: its last modification and its components.
        self._loaded_files: dict[Path, tuple[tuple[int, int], list[Component]]] = {}
        self._lock = Lock()

    def attach(self, server: Any) -> None:
        """Add the components to a server, and watch the directory if `reload` is set."""
        self._scan()
        self._servers.append(server)
        for _, components in self._loaded_files.values():
            _add_components(server, components)
        if self._reload:
            server.add_middleware(self._watching)

    def _watching(self, handler: Handler) -> Handler:
        async def watch(call: Call) -> Any:
            try:
                self._scan()
            except PorticoError as mistake:
                log.error("failed to rescan a folder of tools; its components are unchanged: %s", mistake)
            return await handler(call)

        return watch

    def _scan(self) -> None:
        """Load new and changed files, and remove the components of deleted ones."""
        with self._lock:
            result = {path: _stamp(path) for path in self._files()}
            for path in [path for path in self._loaded_files if path not in result]:
                self._withdraw(self._loaded_files.pop(path)[1])
            for path, stamp in result.items():
                if path not in self._loaded_files or self._loaded_files[path][0] != stamp:
                    self._read(path, stamp)

    def _read(self, path: Path, stamp: tuple[int, int]) -> None:
        try:
            components = list(_components(_load(path, self.root)))
        # A script that calls sys.exit() when imported must not end the server.
        except (Exception, SystemExit):
            log.exception("cannot import %s; its components were removed", path)
            components = []
        if path in self._loaded_files:
            self._withdraw(self._loaded_files.pop(path)[1], components)
        self._loaded_files[path] = stamp, components
        for server in self._servers:
            _add_components(server, [component for component in components if component not in server.disabled])

    def _withdraw(self, components: list[Component], instead: Sequence[Component] = ()) -> None:
        """Remove components. Disabled ones stay disabled if `instead` has a component of the same name."""
        for server in self._servers:
            away = {_key(component) for component in components if component in server.disabled}
            remaining = [component for component in server.disabled if component not in components]
            server.disabled = [*remaining, *(component for component in instead if _key(component) in away)]
            for component in components:
                server.registry.remove(component)

    def _files(self) -> list[Path]:
        results: list[Path] = []
        for folder, folders, names in os.walk(self.root):
            folders[:] = sorted(name for name in folders if name[0] not in "._")
            results += [Path(folder, name) for name in sorted(names) if name.endswith(".py") and name[0] not in "._"]
            if len(results) > MAX_FILES:
                raise UsageError(f"more than {MAX_FILES:,} files below {self.root}")
        return results


def _add_components(server: Any, components: list[Component]) -> None:
    try:
        server.add_components(components)
    except PorticoError as mistake:
        log.error("the components of a file were not added: %s", mistake)


def _key(component: Any) -> tuple[type, str]:
    return type(component), getattr(component, "uri", None) or component.name


def _stamp(path: Path) -> tuple[int, int]:
    try:
        result = path.stat()
    except OSError:
        return (0, 0)
    # The size as well: editors that preserve the time, and coarse file systems, would hide a
    # change.
    return (result.st_mtime_ns, result.st_size)


def _load(path: Path, root: Path) -> Any:
    """Import a file as a module with a unique name."""
    name = f"portico_files_{sha256(str(path).encode()).hexdigest()[:16]}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Annotations are resolved in the module of their function.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _components(module: Any) -> Iterator[Component]:
    for value in list(vars(module).values()):
        # A file may import a decorated function from another one, where it is registered already.
        if getattr(value, "__module__", None) != module.__name__:
            continue
        marks = component_factories(value)
        yield from (make(value) for make in marks)
        theirs = getattr(value, "__fastmcp__", None)
        if theirs is not None and not marks:
            yield _from_fastmcp(value, theirs)


def _from_fastmcp(fn: Callable[..., Any], marker: Any) -> Component:
    """Return the component for a function decorated by FastMCP, recognized by the attribute that its decorator sets."""
    names = ("name", "title", "description", "tags", "meta")
    options = {name: value for name in names if (value := getattr(marker, name, None)) is not None}
    kind = getattr(marker, "type", "tool")
    if kind == "tool":
        return Tool(
            fn, version=marker.version, annotations=_to_jsonable(marker.annotations), timeout=marker.timeout, **options
        )
    if kind == "resource":
        return Resource(fn, str(marker.uri), mime_type=marker.mime_type, **options)
    return Prompt(fn, **options)


def _to_jsonable(annotations: Any) -> Any:
    if hasattr(annotations, "model_dump"):
        return annotations.model_dump(by_alias=True, exclude_none=True)
    return annotations
