"""`FileSystemProvider`: a folder of Python files whose functions are tools, resources and prompts."""

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

from portico.protocol.errors import Error, UsageError
from portico.rpc.call import Call, Handler
from portico.server.components.prompts import Prompt
from portico.server.components.resources import Resource
from portico.server.components.tools import Tool
from portico.server.registry.service import Component, marks_of

log = logging.getLogger("portico")

MAX_FILES = 1_000


class FileSystemProvider:
    """A folder of Python files whose functions carry `@tool`, `@resource` or `@prompt` of `portico`.

    * **root** – the folder; files in folders below it count, and names that begin with `_` or `.` do not.
    * **reload** – whether it is looked at again before each request: for those who write such files.

    A file that cannot be imported is logged, and what the others have is there. The files are code of the server's own:
    a person who can write them can do all that it can.
    """

    def __init__(self, root: str | os.PathLike[str], reload: bool = False) -> None:
        self.root = Path(root).resolve()
        if not self.root.is_dir():
            log.warning("there is no folder %s, so nothing comes from it", self.root)
        self._reload = reload
        self._servers: list[Any] = []
        # By file: when it was last read, and what is in it.
        self._known: dict[Path, tuple[tuple[int, int], list[Component]]] = {}
        self._lock = Lock()

    def put_on(self, server: Any) -> None:
        self._scan()
        self._servers.append(server)
        for _, components in self._known.values():
            _offer(server, components)
        if self._reload:
            server.add_middleware(self._watching)

    def _watching(self, handler: Handler) -> Handler:
        async def watch(call: Call) -> Any:
            try:
                self._scan()
            except Error as mistake:
                log.error("a folder of tools stays as it was: %s", mistake)
            return await handler(call)

        return watch

    def _scan(self) -> None:
        """Read what is new or has changed, and take away what is gone."""
        with self._lock:
            found = {path: _stamp(path) for path in self._files()}
            for path in [path for path in self._known if path not in found]:
                self._withdraw(self._known.pop(path)[1])
            for path, stamp in found.items():
                if path not in self._known or self._known[path][0] != stamp:
                    self._read(path, stamp)

    def _read(self, path: Path, stamp: tuple[int, int]) -> None:
        try:
            components = list(_components(_load(path, self.root)))
        except (Exception, SystemExit):
            log.exception("%s cannot be imported; what it had before is gone", path)
            components = []
        if path in self._known:
            self._withdraw(self._known.pop(path)[1], components)
        self._known[path] = stamp, components
        for server in self._servers:
            _offer(server, [one for one in components if one not in server.disabled])

    def _withdraw(self, components: list[Component], instead: Sequence[Component] = ()) -> None:
        """Take components away. What was disabled stays so where there is another `instead`."""
        for server in self._servers:
            away = {_key(one) for one in components if one in server.disabled}
            kept = [one for one in server.disabled if one not in components]
            server.disabled = [*kept, *(one for one in instead if _key(one) in away)]
            for one in components:
                server.registry.remove(one)

    def _files(self) -> list[Path]:
        found: list[Path] = []
        for folder, folders, names in os.walk(self.root):
            folders[:] = sorted(name for name in folders if name[0] not in "._")
            found += [Path(folder, name) for name in sorted(names) if name.endswith(".py") and name[0] not in "._"]
            if len(found) > MAX_FILES:
                raise UsageError(f"there are more than {MAX_FILES:,} files below {self.root}")
        return found


def _offer(server: Any, components: list[Component]) -> None:
    try:
        server.add_components(components)
    except Error as mistake:
        log.error("a file of tools was left out: %s", mistake)


def _key(component: Any) -> tuple[type, str]:
    return type(component), getattr(component, "uri", None) or component.name


def _stamp(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except OSError:
        return (0, 0)
    return (found.st_mtime_ns, found.st_size)


def _load(path: Path, root: Path) -> Any:
    """The module of a file, under a name that no other has."""
    name = f"portico_files_{sha256(str(path).encode()).hexdigest()[:16]}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Annotations are looked up in the module of their function.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _components(module: Any) -> Iterator[Component]:
    for value in list(vars(module).values()):
        if getattr(value, "__module__", None) != module.__name__:
            continue
        marks = marks_of(value)
        yield from (make(value) for make in marks)
        theirs = getattr(value, "__fastmcp__", None)
        if theirs is not None and not marks:
            yield _foreign(value, theirs)


def _foreign(fn: Callable[..., Any], said: Any) -> Component:
    """A function with a decorator of FastMCP, told by what that leaves on it."""
    names = ("name", "title", "description", "tags", "meta")
    options = {name: value for name in names if (value := getattr(said, name, None)) is not None}
    kind = getattr(said, "type", "tool")
    if kind == "tool":
        return Tool(fn, version=said.version, annotations=_plain(said.annotations), timeout=said.timeout, **options)
    if kind == "resource":
        return Resource(fn, str(said.uri), mime_type=said.mime_type, **options)
    return Prompt(fn, **options)


def _plain(annotations: Any) -> Any:
    if hasattr(annotations, "model_dump"):
        return annotations.model_dump(by_alias=True, exclude_none=True)
    return annotations
