"""A hive file as a branch."""

from __future__ import annotations

from typing import Any

from portico.services.system.containment import AllowedRoots
from portico.services.system.errors import Denied
from portico.services.system.registry.hive.file import Hive, HiveValue
from portico.services.system.registry.hive.values import decoded, type_name
from portico.services.system.registry.tree import Content, Datum, Path, first


class HiveBranch:
    """The file is opened anew for each question: it may have been replaced."""

    writable = False

    def __init__(self, roots: AllowedRoots, path: str) -> None:
        self.description = "a hive in a file"
        self._roots = roots
        self._path = path

    def content(self, path: Path) -> Content | None:
        hive = self._open()
        key = hive.find(path)
        if key is None:
            return None
        subkeys, more_keys = first(sub.name for sub in key.subkeys())
        values, more_values = first(map(_datum, key.values()))
        return Content(subkeys, values, key.written, more_keys or more_values, hive.problems)

    def value(self, path: Path, name: str) -> Datum | None:
        key = self._open().find(path)
        wanted = name.casefold()
        found = key.values() if key is not None else ()
        return next((_datum(value) for value in found if value.name.casefold() == wanted), None)

    def write(self, path: Path, name: str, number: int, value: Any) -> None:
        raise Denied("A hive in a file is not written to.")

    def _open(self) -> Hive:
        with self._roots.open(self._path) as file:
            return Hive(file.image())


def _datum(value: HiveValue) -> Datum:
    return Datum(value.name, type_name(value.type), decoded(value.type, value.data))
