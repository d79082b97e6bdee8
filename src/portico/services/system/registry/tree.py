"""The registry as one tree: branches by name, and below each whatever it is made of."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from itertools import islice
from typing import Any

from msgspec import Struct

from portico.services.system.errors import Absent, Denied, InvalidArgument
from portico.services.system.registry.values import TYPES, encoded, type_number

MOST_LISTED = 1000
LONGEST_BINARY = 4096
LONGEST_PATH = 4096
MOST_DEPTH = 512

ABBREVIATIONS = {
    "HKLM": "HKEY_LOCAL_MACHINE",
    "HKCU": "HKEY_CURRENT_USER",
    "HKCR": "HKEY_CLASSES_ROOT",
    "HKU": "HKEY_USERS",
    "HKCC": "HKEY_CURRENT_CONFIG",
}
# Passwords of this machine, and what belongs to other people.
_DENIED = re.compile(
    r"(?:HKEY_LOCAL_MACHINE\\(?:SAM|SECURITY)|HKEY_USERS\\S-1-5-21-[\d-]+(?:_Classes)?)(?:\\|$)", re.IGNORECASE
)

Path = list[str]


class Datum(Struct):
    """A value as it is: its name ("" is the default one), its type, and what it says."""

    name: str
    type: str
    value: Any


class Content(Struct):
    """What a key has: names of subkeys, values, and when it was last written, in microseconds, if that is known."""

    subkeys: list[str]
    values: list[Datum]
    written: int | None = None
    more: bool = False
    problems: list[str] = []


class Branch(ABC):
    """A part of the registry that has a name. Most can only be read."""

    description: str
    writable = False

    @abstractmethod
    def content(self, path: Path) -> Content | None:
        """What a key has, or None if there is no such key. At most MOST_LISTED of each."""

    @abstractmethod
    def value(self, path: Path, name: str) -> Datum | None:
        """One value, or None."""

    def write(self, path: Path, name: str, number: int, value: Any) -> None:
        """Set a value; the keys on the way are made. Only called where `writable`."""
        raise Denied("This branch is read-only.")


class ValueChange(Struct):
    """What writing has done, or would do."""

    path: str
    name: str
    type: str
    before: Datum | None
    after: Any
    written: bool


class RegistryTree:
    def __init__(self, branches: Mapping[str, Branch], *, writable: bool = False) -> None:
        self.branches = branches
        self._writable = writable

    def content(self, path: str) -> tuple[str, Content]:
        """A key by its path, as it is spelt in full; the empty path lists the branches."""
        if not path.strip("\\/ "):
            return "", Content(list(self.branches), [])
        name, branch, below = self._branch(path)
        content = branch.content(below)
        if content is None:
            raise Absent(f"There is no key {path!r}.")
        return "\\".join([name, *below]), content

    def value(self, path: str, name: str) -> tuple[str, Datum]:
        branch_name, branch, below = self._branch(path)
        found = branch.value(below, name)
        if found is None:
            raise Absent(
                f"The key {path!r} has no value {name!r}." if name else f"The key {path!r} has no default value."
            )
        return "\\".join([branch_name, *below]), found

    def write(self, path: str, name: str, value: Any, type: str | None, *, dry_run: bool) -> ValueChange:
        branch_name, branch, below = self._branch(path)
        number = type_number(type) if type is not None else guessed(value)
        encoded(number, value)  # refuses what cannot be stored
        if not dry_run and not self._writable:
            raise Denied(
                "The registry is read-only here, and nothing was written. dry_run=true shows what would be; the "
                "operator of this server allows writing with levels={'reg': 'read-write'}."
            )
        if not branch.writable:
            raise Denied(f"{branch_name} is read-only: {branch.description}.")
        if not below:
            raise InvalidArgument(
                "A value is written to a key below a branch, such as HKEY_CURRENT_USER\\Software\\Example."
            )
        before = branch.value(below, name)
        if not dry_run:
            branch.write(below, name, number, value)
        return ValueChange("\\".join([branch_name, *below]), name, TYPES[number], before, value, not dry_run)

    def _branch(self, path: str) -> tuple[str, Branch, Path]:
        if len(path) > LONGEST_PATH or "\0" in path:
            raise InvalidArgument(f"The path of a key has at most {LONGEST_PATH} characters, and no NUL among them.")
        # A name may contain a slash; so a slash divides only where there is no backslash at all.
        parts = [part for part in path.split("\\" if "\\" in path else "/") if part]
        first, *below = parts or [""]
        if len(below) > MOST_DEPTH:
            raise InvalidArgument(f"A key lies at most {MOST_DEPTH} keys deep.")
        if _DENIED.match("\\".join([ABBREVIATIONS.get(first.upper(), first), *below])):
            raise Denied(f"{path!r} is kept from everybody: it holds secrets, or belongs to another user.")
        wanted = ABBREVIATIONS.get(first.upper(), first).casefold()
        for name, branch in self.branches.items():
            if name.casefold() == wanted:
                return name, branch, below
        raise Absent(f"There is no branch {first!r}. There are: {', '.join(self.branches)}.")


def guessed(value: Any) -> int:
    """The type that a value would have if nothing is said."""
    if isinstance(value, bool) or not isinstance(value, int | str | list):
        raise InvalidArgument("A value is a text, a whole number or a list of texts.")
    if isinstance(value, int):
        return type_number("REG_DWORD" if value < 2**32 else "REG_QWORD")
    return type_number("REG_SZ" if isinstance(value, str) else "REG_MULTI_SZ")


def shown(value: Any) -> Any:
    """A value as JSON has it: bytes as hexadecimal digits, and of very many the first."""
    if isinstance(value, bytes | bytearray):
        digits = bytes(value[:LONGEST_BINARY]).hex()
        return digits if len(value) <= LONGEST_BINARY else f"{digits}… [{len(value):,} bytes in all]"
    return value


def first(items: Any) -> tuple[list[Any], bool]:
    """The first of many, and whether there are more."""
    found = list(islice(items, MOST_LISTED + 1))
    return found[:MOST_LISTED], len(found) > MOST_LISTED
