"""The branches of the registry that a machine has: Windows' own or a portable one, other settings, hive files."""

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
from portico_services.system.errors import DamagedData, InvalidArgument, MachineError, Unreadable, package
from portico_services.system.path_access import AllowedRoots
from portico_services.system.registry.hive import Hive, HiveValue
from portico_services.system.registry.platform_branches import GsettingsBranch, PlistBranch, SysctlBranch
from portico_services.system.registry.tree import LONGEST_LISTED, Branch, Content, Path, full_path
from portico_services.system.registry.values import Datum, datum, encoded

BRANCHES = ("HKEY_LOCAL_MACHINE", "HKEY_CURRENT_USER", "HKEY_CLASSES_ROOT", "HKEY_USERS", "HKEY_CURRENT_CONFIG")

_EPOCH = 11_644_473_600_000_000
# Of each value in a listing: what is shown, and some bytes to see where a word ends.
LONGEST_HEAD = LONGEST_LISTED + 4


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
    if subprocesses.find("gsettings") is not None:
        found["gsettings"] = GsettingsBranch()
    if sys.platform == "darwin":
        found["plists"] = PlistBranch()
    for name, path in hives.items():
        where = os.path.abspath(path)
        found[_branch_name(name)] = HiveBranch(AllowedRoots([where], tells_paths=False), where)
    return found


def _branch_name(name: str) -> str:
    """Return the name that a configured hive has in paths: HKLM\\SYSTEM is HKEY_LOCAL_MACHINE\\SYSTEM."""
    parts = [part for part in re.split(r"[\\\\/]", name) if part]
    if not parts:
        raise InvalidArgument(f"invalid name of a hive: expected a name such as SYSTEM or HKLM\\\\SYSTEM, got {name!r}")
    return "\\".join(full_path(parts))


class HiveBranch(Branch):
    """A hive in a file. It is opened anew for each query: it may have been replaced."""

    description = "a hive in a file"

    def __init__(self, roots: AllowedRoots, path: str) -> None:
        self._roots = roots
        self._path = path

    def resolved(self, path: Path) -> Path:
        """`CurrentControlSet` is made when Windows starts. In a file it is the set that Select\\Current gives."""
        if not path or path[0].casefold() != "currentcontrolset":
            return path
        hive = self._open()
        select = hive.find(["Select"])
        if select is None or hive.find(path[:1]) is not None:
            return path
        found = next(select.values(named="current"), None)
        number = int.from_bytes(found.data, "little") if found is not None else 0
        return [f"ControlSet{number:03}", *path[1:]] if number else path

    def content(self, path: Path) -> Content | None:
        hive = self._open()
        key = hive.find(path)
        if key is None:
            return None
        if hive.missing:
            hive.mention(DamagedData(f"the file ends {hive.missing:,} bytes before the hive does"))
        values = map(_hive_datum, key.values(LONGEST_HEAD))
        return Content((sub.name for sub in key.subkeys()), values, key.written, hive.problems)

    def value(self, path: Path, name: str) -> Datum | None:
        hive = self._open()
        key = hive.find(path)
        found = next(key.values(named=name.casefold()), None) if key is not None else None
        if found is None and key is not None and hive.problems:
            raise DamagedData(f"No value {name!r} could be read in this key: {'; '.join(hive.problems)}.")
        return None if found is None else _hive_datum(found)

    def _open(self) -> Hive:
        with self._roots.open(self._path) as file:
            return Hive(file.image())


def _hive_datum(value: HiveValue) -> Datum:
    return Datum(value.name, value.type, value.data, value.size)


class WindowsBranch(Branch):
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
                subkeys = list(self._each(self._api.EnumKey, key))
                values = [datum(name, number, value) for name, value, number in self._each(self._api.EnumValue, key)]
                return Content(subkeys, values, max(0, written // 10 - _EPOCH))
        except FileNotFoundError:
            return None
        except OSError:
            raise Unreadable("This key is not for this user to read.") from None

    def value(self, path: Path, name: str) -> Datum | None:
        try:
            with self._api.OpenKey(self._top, "\\".join(path), 0, self._api.KEY_READ) as key:
                value, number = self._api.QueryValueEx(key, name)
                return datum(name, number, value)
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


MOST_BYTES = 2**20
LONGEST_NAME = 255

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
_HEADS = "select name, type, substr(bytes, 1, ?), length(bytes) from data"


class PortableRegistry:
    """All branches of it are in one file, or without one in memory, as long as the process lives."""

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
                # A thread that ends without closing it has it closed all the same.
                weakref.finalize(self, self._database.close)
            return self._database.execute(sql, values).fetchall()

    def close(self) -> None:
        with self._lock:
            if self._database is not None:
                self._database.close()
                self._database = None


class PortableBranch(Branch):
    description = "a registry of this server's own"
    writable = True

    def __init__(self, portable: PortableRegistry, name: str) -> None:
        self._portable = portable
        self._name = name

    def content(self, path: Path) -> Content | None:
        key = self._find(path)
        if key is None:
            # A branch is there, even before anything has been written to it.
            return None if path else Content([], [])
        run = self._portable.run
        names = run("select name from keys where parent = ? and id", key)
        rows = run(f"{_HEADS} where key = ?", LONGEST_HEAD, key)
        [[written]] = run("select written from keys where id = ?", key)
        return Content((name for [name] in names), (Datum(*row) for row in rows), written)

    def value(self, path: Path, name: str) -> Datum | None:
        key = self._find(path)
        rows = self._portable.run(f"{_HEADS} where key = ? and folded = ?", MOST_BYTES, key, name.casefold())
        return Datum(*rows[0]) if rows else None

    def write(self, path: Path, name: str, number: int, value: Any) -> None:
        data = encoded(number, value)
        if len(data) > MOST_BYTES or any(len(one) > LONGEST_NAME for one in (*path, name)):
            raise InvalidArgument(f"A name has at most {LONGEST_NAME} characters, and a value {MOST_BYTES:,} bytes.")
        key = self._make(path)
        self._portable.run(
            "insert or replace into data values (?, ?, ?, ?, ?)", key, name, name.casefold(), number, data
        )
        self._portable.run("update keys set written = ? where id = ?", _now(), key)

    def _find(self, path: Path) -> int | None:
        key = 0
        for name in (self._name, *path):
            sql = "select id from keys where parent = ? and folded = ? and id"
            rows = self._portable.run(sql, key, name.casefold())
            if not rows:
                return None
            key = rows[0][0]
        return key

    def _make(self, path: Path) -> int:
        key = 0
        for name in (self._name, *path):
            row = (key, name, name.casefold(), _now())
            self._portable.run("insert or ignore into keys (parent, name, folded, written) values (?, ?, ?, ?)", *row)
            [[key]] = self._portable.run("select id from keys where parent = ? and folded = ? and id", *row[::2])
        return key


def _now() -> int:
    return time.time_ns() // 1000
