"""The branches of the registry that a machine has: Windows' own or a portable one, other settings, hive files."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from portico.services.system import programs
from portico.services.system.containment import AllowedRoots
from portico.services.system.errors import Denied, MachineError, Unreadable, package
from portico.services.system.registry.hive.file import Hive, HiveValue
from portico.services.system.registry.hive.values import decoded, type_name
from portico.services.system.registry.portable import PortableRegistry
from portico.services.system.registry.settings import GsettingsBranch, PlistBranch, SysctlBranch
from portico.services.system.registry.tree import Branch, Content, Datum, Path, first

BRANCHES = ("HKEY_LOCAL_MACHINE", "HKEY_CURRENT_USER", "HKEY_CLASSES_ROOT", "HKEY_USERS", "HKEY_CURRENT_CONFIG")

_EPOCH = 11_644_473_600_000_000


def branches(hives: Mapping[str, str | os.PathLike[str]], portable: PortableRegistry) -> dict[str, Branch]:
    """The branches of Windows, live or portable; what else this system has; and the configured hive files."""
    found: dict[str, Branch] = {}
    for name in BRANCHES:
        try:
            found[name] = WindowsBranch(name) if sys.platform == "win32" else portable.branch(name)
        except MachineError:
            found[name] = portable.branch(name)
    if os.path.isdir("/proc/sys"):
        found["sysctl"] = SysctlBranch()
    if programs.find("gsettings") is not None:
        found["gsettings"] = GsettingsBranch()
    if sys.platform == "darwin":
        found["plists"] = PlistBranch()
    for name, path in hives.items():
        where = os.path.abspath(path)
        found[name] = HiveBranch(AllowedRoots([where], tells_paths=False), where)
    return found


class HiveBranch:
    """A hive in a file. It is opened anew for each query: it may have been replaced."""

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
        values, more_values = first(map(_hive_datum, key.values()))
        return Content(subkeys, values, key.written, more_keys or more_values, hive.problems)

    def value(self, path: Path, name: str) -> Datum | None:
        key = self._open().find(path)
        wanted = name.casefold()
        found = key.values() if key is not None else ()
        return next((_hive_datum(value) for value in found if value.name.casefold() == wanted), None)

    def write(self, path: Path, name: str, number: int, value: Any) -> None:
        raise Denied("A hive in a file is not written to.")

    def _open(self) -> Hive:
        with self._roots.open(self._path) as file:
            return Hive(file.image())


def _hive_datum(value: HiveValue) -> Datum:
    return Datum(value.name, type_name(value.type), decoded(value.type, value.data))


class WindowsBranch:
    """The live registry of Windows, through `winreg`."""

    description = "the registry of this machine"
    writable = True

    def __init__(self, name: str) -> None:
        self._api = package("winreg", "Reading the registry of Windows")
        self._top = getattr(self._api, name)

    def content(self, path: Path) -> Content | None:
        try:
            with self._api.OpenKey(self._top, "\\".join(path), 0, self._api.KEY_READ) as key:
                _, _, written = self._api.QueryInfoKey(key)
                subkeys, more_keys = first(self._each(self._api.EnumKey, key))
                values, more = first(_windows_datum(*row) for row in self._each(self._api.EnumValue, key))
                return Content(subkeys, values, max(0, written // 10 - _EPOCH), more or more_keys)
        except FileNotFoundError:
            return None
        except OSError:
            raise Unreadable("This key is not for this user to read.") from None

    def value(self, path: Path, name: str) -> Datum | None:
        try:
            with self._api.OpenKey(self._top, "\\".join(path), 0, self._api.KEY_READ) as key:
                value, number = self._api.QueryValueEx(key, name)
                return _windows_datum(name, value, number)
        except FileNotFoundError:
            return None
        except OSError:
            raise Unreadable("This value is not for this user to read.") from None

    def write(self, path: Path, name: str, number: int, value: Any) -> None:
        # Bytes are given as hexadecimal digits; winreg wants them as bytes.
        stored = bytes.fromhex(value) if number in (0, 3) or (number > 7 and number != 11) else value
        try:
            with self._api.CreateKeyEx(self._top, "\\".join(path), 0, self._api.KEY_WRITE) as key:
                self._api.SetValueEx(key, name, 0, number, stored)
        except OSError:
            raise Unreadable("This key is not for this user to write.") from None

    def _each(self, get: Any, key: Any) -> Iterator[Any]:
        number = 0
        while True:
            try:
                yield get(key, number)
            except OSError:
                return
            number += 1


def _windows_datum(name: str, value: Any, number: int) -> Datum:
    return Datum(name, type_name(number), b"" if value is None else value)
