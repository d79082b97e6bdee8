"""Registry branches of a machine: the Windows registry or a portable one, platform settings and hive files."""

from __future__ import annotations

import os
import re
import sqlite3
import sys
import threading
import time
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

from portico_services.system import subprocesses
from portico_services.system.errors import CorruptData, SystemToolError, require_package
from portico_services.system.path_access import AllowedPaths
from portico_services.system.registry.hive import Hive
from portico_services.system.registry.platform_branches import GsettingsBranch, PlistBranch, SysctlBranch
from portico_services.system.registry.tree import MAX_LISTED_VALUE_BYTES, KeyContent, KeyPath, RegistryBranch, full_path
from portico_services.system.registry.values import StoredValue, encode_value, make_value

WINDOWS_BRANCHES = ("HKEY_LOCAL_MACHINE", "HKEY_CURRENT_USER", "HKEY_CLASSES_ROOT", "HKEY_USERS", "HKEY_CURRENT_CONFIG")

_FILETIME_EPOCH_US = 11_644_473_600_000_000
# Bytes read of each value in a listing: the displayed part, and a few more to find the end of a word.
MAX_PREVIEW_BYTES = MAX_LISTED_VALUE_BYTES + 4


def list_branches(hives: Mapping[str, str | os.PathLike[str]], portable: PortableRegistry) -> dict[str, RegistryBranch]:
    """Return the Windows branches, live or portable, the platform's settings, and the configured hive files."""
    result: dict[str, RegistryBranch] = {}
    for name in WINDOWS_BRANCHES:
        try:
            # Without Windows the same paths work on a registry of this server, so that a client can be tested anywhere.
            result[name] = WindowsBranch(name) if sys.platform == "win32" else portable.branch(name)
        except SystemToolError:
            result[name] = portable.branch(name)
    if os.path.isdir("/proc/sys"):
        result["sysctl"] = SysctlBranch()
    if subprocesses.find_command("gsettings") is not None:
        result["gsettings"] = GsettingsBranch()
    if sys.platform == "darwin":
        result["plists"] = PlistBranch()
    for name, path in hives.items():
        where = os.path.abspath(path)
        result[_branch_name(name)] = HiveBranch(AllowedPaths([where], reveal_paths=False), where)
    return result


def _branch_name(name: str) -> str:
    r"""Return the full name of a configured hive: HKLM\\SYSTEM is HKEY_LOCAL_MACHINE\\SYSTEM."""
    parts = [part for part in re.split(r"[\\\\/]", name) if part]
    if not parts:
        raise SystemToolError(
            f"invalid name of a hive: expected a name such as SYSTEM or HKLM\\\\SYSTEM, got {name!r}", outcome="invalid"
        )
    return "\\".join(full_path(parts))


class HiveBranch(RegistryBranch):
    """Hive file. It is opened for each query, because it may have been replaced."""

    description = "hive file"

    def __init__(self, roots: AllowedPaths, path: str) -> None:
        self._roots = roots
        self._path = path

    def resolve(self, path: KeyPath) -> KeyPath:
        r"""Resolve `CurrentControlSet`, which only exists while Windows runs, to the set that Select\\Current names."""
        if not path or path[0].casefold() != "currentcontrolset":
            return path
        hive = self._open_hive()
        select = hive.find(["Select"])
        # A hive that was exported from a running system may contain the key itself.
        if select is None or hive.find(path[:1]) is not None:
            return path
        result = next(select.values(named="current"), None)
        number = int.from_bytes(result.data, "little") if result is not None else 0
        return [f"ControlSet{number:03}", *path[1:]] if number else path

    def content(self, path: KeyPath) -> KeyContent | None:
        hive = self._open_hive()
        key = hive.find(path)
        if key is None:
            return None
        if hive.missing:
            hive.report_damage(CorruptData(f"the file is truncated: {hive.missing:,} bytes are missing"))
        return KeyContent(
            (sub.name for sub in key.subkeys()), key.values(MAX_PREVIEW_BYTES), key.written, hive.problems
        )

    def value(self, path: KeyPath, name: str) -> StoredValue | None:
        hive = self._open_hive()
        key = hive.find(path)
        result = next(key.values(named=name.casefold()), None) if key is not None else None
        # In a damaged hive, a value that was not found may still exist; `not found` would be misleading.
        if result is None and key is not None and hive.problems:
            raise CorruptData(f"The value {name!r} could not be read: {'; '.join(hive.problems)}.")
        return result

    def _open_hive(self) -> Hive:
        with self._roots.open(self._path) as file:
            return Hive(file.map())


class WindowsBranch(RegistryBranch):
    """Live Windows registry, accessed through `winreg`."""

    description = "registry of this machine"
    writable = True

    def __init__(self, name: str) -> None:
        self._api = require_package("winreg", "Reading the Windows registry")
        self._top = getattr(self._api, name)

    def content(self, path: KeyPath) -> KeyContent | None:
        try:
            with self._api.OpenKey(self._top, "\\".join(path), 0, self._api.KEY_READ) as key:
                _, _, written = self._api.QueryInfoKey(key)
                subkeys = list(self._enumerate(self._api.EnumKey, key))
                values = [
                    make_value(name, number, value) for name, value, number in self._enumerate(self._api.EnumValue, key)
                ]
                return KeyContent(subkeys, values, max(0, written // 10 - _FILETIME_EPOCH_US))
        except FileNotFoundError:
            return None
        except OSError:
            raise SystemToolError("Access to the key was denied.", outcome="unreadable") from None

    def value(self, path: KeyPath, name: str) -> StoredValue | None:
        try:
            with self._api.OpenKey(self._top, "\\".join(path), 0, self._api.KEY_READ) as key:
                value, number = self._api.QueryValueEx(key, name)
                return make_value(name, number, value)
        except FileNotFoundError:
            return None
        except OSError:
            raise SystemToolError("Access to the value was denied.", outcome="unreadable") from None

    def write(self, path: KeyPath, name: str, number: int, value: Any) -> None:
        # Binary values are passed as hexadecimal digits; winreg expects bytes.
        stored = bytes.fromhex(value) if number in (0, 3) or (number > 7 and number != 11) else value
        try:
            with self._api.CreateKeyEx(self._top, "\\".join(path), 0, self._api.KEY_WRITE) as key:
                self._api.SetValueEx(key, name, 0, number, stored)
        except OSError:
            raise SystemToolError("Write access to the key was denied.", outcome="unreadable") from None

    def _enumerate(self, get: Any, key: Any) -> Iterator[Any]:
        number = 0
        while True:
            try:
                yield get(key, number)
            except OSError:
                return
            number += 1


MAX_VALUE_BYTES = 2**20
MAX_NAME_CHARS = 255

_SCHEMA = """
create table if not exists keys (
    id integer primary key,
    parent integer not null references keys (id),
    name text not null,
    folded text not null,
    written integer not null,
    unique (parent, folded)
);
create table if not exists data (
    key integer not null references keys (id),
    name text not null,
    folded text not null,
    type integer not null,
    bytes blob not null,
    primary key (key, folded)
) without rowid;
insert or ignore into keys values (0, 0, '', '', 0);
"""
_PREVIEWS_SQL = "select name, type, substr(bytes, 1, ?), length(bytes) from data"


class PortableRegistry:
    """Portable registry in one SQLite file, or in memory for the lifetime of the process."""

    def __init__(self, file: str = ":memory:") -> None:
        self._file = file
        self._lock = threading.Lock()
        self._database: sqlite3.Connection | None = None

    def branch(self, name: str) -> PortableBranch:
        return PortableBranch(self, name)

    def run(self, sql: str, *values: Any) -> list[Any]:
        with self._lock:
            if self._database is None:
                self._database = sqlite3.connect(self._file, check_same_thread=False, isolation_level=None, timeout=10)
                self._database.executescript(_SCHEMA)
                # Closes the database even if the owner does not call close().
                weakref.finalize(self, self._database.close)
            return self._database.execute(sql, values).fetchall()

    def close(self) -> None:
        with self._lock:
            if self._database is not None:
                self._database.close()
                self._database = None


class PortableBranch(RegistryBranch):
    description = "registry of this server"
    writable = True

    def __init__(self, portable: PortableRegistry, name: str) -> None:
        self._portable = portable
        self._name = name

    def content(self, path: KeyPath) -> KeyContent | None:
        key = self._find(path)
        if key is None:
            # A branch exists even before anything has been written to it.
            return None if path else KeyContent([], [])
        run = self._portable.run
        names = run("select name from keys where parent = ? and id", key)
        # Only the beginning of each value: a key may hold many megabytes.
        rows = run(f"{_PREVIEWS_SQL} where key = ?", MAX_PREVIEW_BYTES, key)
        [[written]] = run("select written from keys where id = ?", key)
        return KeyContent((name for [name] in names), (StoredValue(*row) for row in rows), written)

    def value(self, path: KeyPath, name: str) -> StoredValue | None:
        key = self._find(path)
        rows = self._portable.run(
            f"{_PREVIEWS_SQL} where key = ? and folded = ?", MAX_VALUE_BYTES, key, name.casefold()
        )
        return StoredValue(*rows[0]) if rows else None

    def write(self, path: KeyPath, name: str, number: int, value: Any) -> None:
        data = encode_value(number, value)
        if len(data) > MAX_VALUE_BYTES or any(len(item) > MAX_NAME_CHARS for item in (*path, name)):
            raise SystemToolError(
                f"A name may have up to {MAX_NAME_CHARS} characters, and a value up to {MAX_VALUE_BYTES:,} bytes.",
                outcome="invalid",
            )
        key = self._create_key(path)
        self._portable.run(
            "insert or replace into data values (?, ?, ?, ?, ?)", key, name, name.casefold(), number, data
        )
        self._portable.run("update keys set written = ? where id = ?", _now_us(), key)

    def _find(self, path: KeyPath) -> int | None:
        key = 0
        for name in (self._name, *path):
            # `and id` excludes the root, which is its own parent.
            sql = "select id from keys where parent = ? and folded = ? and id"
            rows = self._portable.run(sql, key, name.casefold())
            if not rows:
                return None
            key = rows[0][0]
        return key

    def _create_key(self, path: KeyPath) -> int:
        key = 0
        for name in (self._name, *path):
            row = (key, name, name.casefold(), _now_us())
            self._portable.run("insert or ignore into keys (parent, name, folded, written) values (?, ?, ?, ?)", *row)
            [[key]] = self._portable.run("select id from keys where parent = ? and folded = ? and id", *row[::2])
        return key


def _now_us() -> int:
    return time.time_ns() // 1000
