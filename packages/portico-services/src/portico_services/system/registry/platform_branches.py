"""What other systems have instead of a registry, as branches that can be read: sysctl, gsettings, property lists."""

from __future__ import annotations

import os
import plistlib
import re
from contextlib import closing
from datetime import UTC, datetime
from typing import Any
from xml.parsers.expat import ExpatError

from portico_services.system import subprocesses
from portico_services.system.errors import Absent, DamagedData, MachineError
from portico_services.system.path_access import AllowedRoots
from portico_services.system.registry.tree import Branch, Content, Path
from portico_services.system.registry.values import Datum, datum, type_number
from portico_services.system.results import MOST_LISTED
from portico_services.system.text import decoded

LARGEST_SETTING = 64 * 1024
LARGEST_PLIST = 8 * 2**20
_TEXT = type_number("REG_SZ")


class SysctlBranch(Branch):
    """The settings of the kernel of Linux: a folder is a key, a file a value."""

    description = "the settings of the kernel"

    def __init__(self, top: str = "/proc/sys") -> None:
        self._top = top
        self._roots = AllowedRoots([top], tells_paths=False)

    def content(self, path: Path) -> Content | None:
        try:
            with self._roots.folder(self._path(path)) as folder:
                entries = folder.scan()
        except Absent:
            return None
        subkeys = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
        names = [entry.name for entry in entries if entry.is_file(follow_symlinks=False)]
        return Content(subkeys, (found for name in names if (found := self.value(path, name)) is not None))

    def value(self, path: Path, name: str) -> Datum | None:
        try:
            with self._roots.open(self._path([*path, name])) as file:
                text = decoded(file.read(0, LARGEST_SETTING)).removesuffix("\n")
        except (MachineError, OSError):
            return None  # some can only be written
        return datum(name, _TEXT, text)

    def _path(self, path: Path) -> str:
        if any("/" in part or part in (".", "..") for part in path):
            raise Absent("There is no such setting.")
        return "/".join([self._top, *path])


class GsettingsBranch(Branch):
    """The settings of GNOME's programs: a schema is a key."""

    description = "the settings of GNOME's programs"
    _PASSED_ON = ("HOME", "XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS", "XDG_CONFIG_HOME", "XDG_DATA_DIRS")

    def content(self, path: Path) -> Content | None:
        if not path:
            return Content(self._ask("list-schemas"), [])
        if len(path) > 1 or not re.fullmatch(r"[A-Za-z0-9.-]{1,200}", path[0]):
            return None
        found = [line.split(" ", 2) for line in self._ask("list-recursively", path[0])]
        values = [datum(parts[1], _TEXT, parts[2]) for parts in found if len(parts) == 3]
        return Content([], values) if values else None

    def value(self, path: Path, name: str) -> Datum | None:
        content = self.content(path)
        return next((one for one in content.values if one.name == name), None) if content is not None else None

    def _ask(self, *arguments: str) -> list[str]:
        env = {name: os.environ[name] for name in self._PASSED_ON if name in os.environ}
        with closing(subprocesses.lines(["gsettings", *arguments], env=env)) as lines:
            return [decoded(line).rstrip("\n") for line in lines]


class PlistBranch(Branch):
    """Property lists below some folders: a file is a key, and so is a dictionary in it."""

    description = "the preferences of macOS"

    def __init__(self, folders: tuple[str, ...] = ("/Library/Preferences", "~/Library/Preferences")) -> None:
        self._folders = [path for path in map(os.path.expanduser, folders) if os.path.isdir(path)]
        self._roots = AllowedRoots(self._folders, tells_paths=False)

    def content(self, path: Path) -> Content | None:
        if not path:
            return Content(set(self._names()), [])
        found = self._find(path)
        if not isinstance(found, dict):
            return None
        subkeys = (str(name) for name, value in found.items() if isinstance(value, dict))
        return Content(subkeys, (_datum(str(name), one) for name, one in found.items() if not isinstance(one, dict)))

    def value(self, path: Path, name: str) -> Datum | None:
        found = self._find(path) if path else None
        if not isinstance(found, dict) or name not in found or isinstance(found[name], dict):
            return None
        return _datum(name, found[name])

    def _names(self) -> list[str]:
        found: list[str] = []
        for path in self._folders:
            try:
                with self._roots.folder(path) as folder:
                    found += [
                        entry.name.removesuffix(".plist") for entry in folder.scan() if entry.name.endswith(".plist")
                    ]
            except MachineError:
                continue
        return found

    def _find(self, path: Path) -> Any:
        name, *below = path
        if "/" in name:
            return None
        found: Any = None
        for folder in self._folders:
            try:
                with self._roots.open(f"{folder}/{name}.plist") as file:
                    found = _loaded(file.read(0, LARGEST_PLIST + 1))
                    break
            except Absent:
                continue
        for part in below:
            found = found.get(part) if isinstance(found, dict) else None
        return found


def _loaded(data: bytes) -> Any:
    if len(data) > LARGEST_PLIST:
        raise DamagedData(f"The property list has more than {LARGEST_PLIST:,} bytes.")
    try:
        return plistlib.loads(data)
    except (
        plistlib.InvalidFileException,
        ExpatError,
        ValueError,
        TypeError,
        AttributeError,
        RecursionError,
        MemoryError,
    ):
        raise DamagedData("The property list cannot be read: it is damaged.") from None


def _datum(name: str, value: Any) -> Datum:
    """A value of a property list with the nearest type that a registry has."""
    if isinstance(value, bool):
        return datum(name, type_number("REG_DWORD"), int(value))
    if isinstance(value, int):
        return datum(name, type_number("REG_QWORD"), value)
    if isinstance(value, bytes):
        return datum(name, type_number("REG_BINARY"), value)
    if isinstance(value, datetime):
        return datum(name, _TEXT, value.replace(tzinfo=UTC).isoformat())
    if isinstance(value, list):
        return datum(name, type_number("REG_MULTI_SZ"), [_short(one) for one in value[:MOST_LISTED]])
    return datum(name, _TEXT, _short(value))


def _short(value: Any) -> str:
    """A member of a list in words. What it contains is not spelt out: it may contain itself many times over."""
    if isinstance(value, dict | list):
        return f"({type(value).__name__} of {len(value)})"
    return str(value)[:LARGEST_SETTING]
