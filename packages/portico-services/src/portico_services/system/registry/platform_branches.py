"""Read-only branches for the settings of other platforms: sysctl, gsettings, property lists."""

from __future__ import annotations

import os
import plistlib
import re
from contextlib import closing
from datetime import UTC, datetime
from typing import Any
from xml.parsers.expat import ExpatError

from portico_services.system import subprocesses
from portico_services.system.errors import CorruptData, NotFound, SystemToolError
from portico_services.system.path_access import AllowedPaths
from portico_services.system.registry.tree import KeyContent, KeyPath, RegistryBranch
from portico_services.system.registry.values import StoredValue, make_value, type_number
from portico_services.system.results import MAX_KEY_PAGE_ITEMS
from portico_services.system.text import decode_lossy

MAX_SETTING_BYTES = 64 * 1024
MAX_PLIST_BYTES = 8 * 2**20
_TEXT = type_number("REG_SZ")


class SysctlBranch(RegistryBranch):
    """Linux kernel settings: directories are keys, files are values."""

    description = "kernel settings"

    def __init__(self, top: str = "/proc/sys") -> None:
        self._top = top
        self._roots = AllowedPaths([top], reveal_paths=False)

    def content(self, path: KeyPath) -> KeyContent | None:
        try:
            with self._roots.open_directory(self._path(path)) as folder:
                entries = folder.scan()
        except NotFound:
            return None
        subkeys = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
        names = [entry.name for entry in entries if entry.is_file(follow_symlinks=False)]
        return KeyContent(subkeys, (result for name in names if (result := self.value(path, name)) is not None))

    def value(self, path: KeyPath, name: str) -> StoredValue | None:
        try:
            with self._roots.open(self._path([*path, name])) as file:
                text = decode_lossy(file.read(0, MAX_SETTING_BYTES)).removesuffix("\n")
        except (SystemToolError, OSError):
            return None  # Some settings are write-only.
        return make_value(name, _TEXT, text)

    def _path(self, path: KeyPath) -> str:
        # A key name is one path component; separators would address files elsewhere.
        if any("/" in part or part in (".", "..") for part in path):
            raise NotFound("The setting does not exist.")
        return "/".join([self._top, *path])


class GsettingsBranch(RegistryBranch):
    """Settings of GNOME programs: a schema is a key."""

    description = "settings of GNOME programs"
    _PASSED_ON = ("HOME", "XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS", "XDG_CONFIG_HOME", "XDG_DATA_DIRS")

    def content(self, path: KeyPath) -> KeyContent | None:
        if not path:
            return KeyContent(self._run_gsettings("list-schemas"), [])
        # The name becomes a command-line argument; this excludes options and everything unusual.
        if len(path) > 1 or not re.fullmatch(r"[A-Za-z0-9.-]{1,200}", path[0]):
            return None
        result = [line.split(" ", 2) for line in self._run_gsettings("list-recursively", path[0])]
        values = [make_value(parts[1], _TEXT, parts[2]) for parts in result if len(parts) == 3]
        return KeyContent([], values) if values else None

    def value(self, path: KeyPath, name: str) -> StoredValue | None:
        content = self.content(path)
        return next((value for value in content.values if value.name == name), None) if content is not None else None

    def _run_gsettings(self, *arguments: str) -> list[str]:
        # Only the variables that gsettings needs to find the session; the rest of the environment may contain secrets.
        env = {name: os.environ[name] for name in self._PASSED_ON if name in os.environ}
        with closing(subprocesses.run_lines(["gsettings", *arguments], env=env)) as lines:
            return [decode_lossy(line).rstrip("\n") for line in lines]


class PlistBranch(RegistryBranch):
    """Property lists in preference directories: a file is a key, and so is a dictionary in it."""

    description = "macOS preferences"

    def __init__(self, folders: tuple[str, ...] = ("/Library/Preferences", "~/Library/Preferences")) -> None:
        self._folders = [path for path in map(os.path.expanduser, folders) if os.path.isdir(path)]
        self._roots = AllowedPaths(self._folders, reveal_paths=False)

    def content(self, path: KeyPath) -> KeyContent | None:
        if not path:
            return KeyContent(set(self._names()), [])
        result = self._find(path)
        if not isinstance(result, dict):
            return None
        subkeys = (str(name) for name, value in result.items() if isinstance(value, dict))
        return KeyContent(
            subkeys, (_to_value(str(name), entry) for name, entry in result.items() if not isinstance(entry, dict))
        )

    def value(self, path: KeyPath, name: str) -> StoredValue | None:
        result = self._find(path) if path else None
        if not isinstance(result, dict) or name not in result or isinstance(result[name], dict):
            return None
        return _to_value(name, result[name])

    def _names(self) -> list[str]:
        results: list[str] = []
        for path in self._folders:
            try:
                with self._roots.open_directory(path) as folder:
                    results += [
                        entry.name.removesuffix(".plist") for entry in folder.scan() if entry.name.endswith(".plist")
                    ]
            except SystemToolError:
                continue
        return results

    def _find(self, path: KeyPath) -> Any:
        name, *below = path
        if "/" in name:
            return None
        plist: Any = None
        for folder in self._folders:
            try:
                with self._roots.open(f"{folder}/{name}.plist") as file:
                    # One byte more than allowed, to notice a longer file without reading it.
                    plist = _load_plist(file.read(0, MAX_PLIST_BYTES + 1))
                    break
            except NotFound:
                continue
        for part in below:
            plist = plist.get(part) if isinstance(plist, dict) else None
        return plist


def _load_plist(data: bytes) -> Any:
    if len(data) > MAX_PLIST_BYTES:
        raise CorruptData(f"The property list exceeds {MAX_PLIST_BYTES:,} bytes.")
    try:
        return plistlib.loads(data)
    except (
        plistlib.InvalidFileException,
        ExpatError,
        ValueError,
        TypeError,
        AttributeError,
        # Raised for deeply nested or self-referential binary lists.
        RecursionError,
        MemoryError,
    ):
        raise CorruptData("The property list is corrupt.") from None


def _to_value(name: str, value: Any) -> StoredValue:
    """Convert a value of a property list to the nearest registry type."""
    if isinstance(value, bool):
        return make_value(name, type_number("REG_DWORD"), int(value))
    if isinstance(value, int):
        return make_value(name, type_number("REG_QWORD"), value)
    if isinstance(value, bytes):
        return make_value(name, type_number("REG_BINARY"), value)
    if isinstance(value, datetime):
        return make_value(name, _TEXT, value.replace(tzinfo=UTC).isoformat())
    if isinstance(value, list):
        return make_value(name, type_number("REG_MULTI_SZ"), [_summarize(item) for item in value[:MAX_KEY_PAGE_ITEMS]])
    return make_value(name, _TEXT, _summarize(value))


def _summarize(value: Any) -> str:
    """Return a list item as text. Containers are only summarized: they may contain themselves many times."""
    if isinstance(value, dict | list):
        return f"({type(value).__name__} of {len(value)})"
    return str(value)[:MAX_SETTING_BYTES]
