"""The live registry of Windows, through `winreg`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from portico.services.system.errors import Unreadable, package
from portico.services.system.registry.hive.values import type_name
from portico.services.system.registry.tree import Content, Datum, Path, first

BRANCHES = ("HKEY_LOCAL_MACHINE", "HKEY_CURRENT_USER", "HKEY_CLASSES_ROOT", "HKEY_USERS", "HKEY_CURRENT_CONFIG")

_EPOCH = 11_644_473_600_000_000


class WindowsBranch:
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
                values, more = first(_datum(*row) for row in self._each(self._api.EnumValue, key))
                return Content(subkeys, values, max(0, written // 10 - _EPOCH), more or more_keys)
        except FileNotFoundError:
            return None
        except OSError:
            raise Unreadable("This key is not for this user to read.") from None

    def value(self, path: Path, name: str) -> Datum | None:
        try:
            with self._api.OpenKey(self._top, "\\".join(path), 0, self._api.KEY_READ) as key:
                value, number = self._api.QueryValueEx(key, name)
                return _datum(name, value, number)
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


def _datum(name: str, value: Any, number: int) -> Datum:
    return Datum(name, type_name(number), b"" if value is None else value)
