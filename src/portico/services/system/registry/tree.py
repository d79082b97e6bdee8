"""The registry as one tree: branches by name, and below each whatever it is made of."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from itertools import islice
from typing import Any

from msgspec import Struct

from portico.services.system.errors import Absent, Denied, InvalidArgument, MachineError
from portico.services.system.results import RegistryChange, RegistryValue

TYPES = (
    "REG_NONE",
    "REG_SZ",
    "REG_EXPAND_SZ",
    "REG_BINARY",
    "REG_DWORD",
    "REG_DWORD_BIG_ENDIAN",
    "REG_LINK",
    "REG_MULTI_SZ",
    "REG_RESOURCE_LIST",
    "REG_FULL_RESOURCE_DESCRIPTOR",
    "REG_RESOURCE_REQUIREMENTS_LIST",
    "REG_QWORD",
)
_TEXTS = (1, 2, 6)


def type_name(number: int) -> str:
    """The name of a type. Windows itself stores other numbers, and they mean what their writer says."""
    return TYPES[number] if number < len(TYPES) else f"REG_{number:#x}"


def type_number(name: str) -> int:
    if name not in TYPES:
        raise InvalidArgument(f"{name[:40]!r} is no type of a value. There are: {', '.join(TYPES)}.")
    return TYPES.index(name)


def decoded(number: int, data: bytes) -> Any:
    """What a value says: text, a list of texts, a number; or its bytes, where that is all that can be said."""
    if number in _TEXTS:
        return _text(data).split("\0", 1)[0]
    if number == 7:
        return [part for part in _text(data).split("\0") if part]
    if number in (4, 11) and len(data) == (4 if number == 4 else 8):
        return int.from_bytes(data, "little")
    if number == 5 and len(data) == 4:
        return int.from_bytes(data, "big")
    return data


def _text(data: bytes) -> str:
    return data[: len(data) & ~1].decode("utf-16-le", "backslashreplace")


def encoded(number: int, value: Any) -> bytes:
    """The bytes of a value as Windows would store it; Invalid if it is none of this type."""
    name = type_name(number)
    if number in _TEXTS and isinstance(value, str):
        return f"{value}\0".encode("utf-16-le")
    if number == 7 and isinstance(value, list) and all(isinstance(one, str) and one for one in value):
        return "".join(f"{one}\0" for one in [*value, ""]).encode("utf-16-le")
    if number in (4, 5, 11):
        size = 8 if number == 11 else 4
        if type(value) is int and 0 <= value < 1 << 8 * size:
            return value.to_bytes(size, "big" if number == 5 else "little")
        raise InvalidArgument(f"A {name} is a whole number from 0 to {(1 << 8 * size) - 1}.")
    if number not in (*_TEXTS, 7) and isinstance(value, str):
        try:
            return bytes.fromhex(value)
        except ValueError:
            raise InvalidArgument(f"A {name} is given as hexadecimal digits, two for each byte.") from None
    wanted = {7: "a list of texts, none of them empty"}.get(number, "a text")
    raise InvalidArgument(f"A {name} is {wanted}.")


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


class Content(Struct):
    """What a key has: names of subkeys, values, and when it was last written, in microseconds, if that is known."""

    subkeys: list[str]
    values: list[RegistryValue]
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
    def value(self, path: Path, name: str) -> RegistryValue | None:
        """One value, or None."""

    def write(self, path: Path, name: str, number: int, value: Any) -> None:
        """Set a value; the keys on the way are made. Only called where `writable`."""
        raise Denied("This branch is read-only.")


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

    def value(self, path: str, name: str) -> tuple[str, RegistryValue]:
        branch_name, branch, below = self._branch(path)
        found = branch.value(below, name)
        if found is None:
            raise Absent(
                f"The key {path!r} has no value {name!r}." if name else f"The key {path!r} has no default value."
            )
        return "\\".join([branch_name, *below]), found

    def has(self, path: str, name: str | None = None) -> bool:
        """Whether there is such a key, or with a name such a value in it; what is refused may be there."""
        try:
            if name is None:
                self.content(path)
            else:
                self.value(path, name)
        except Absent:
            return False
        except MachineError:
            pass
        return True

    def write(self, path: str, name: str, value: Any, type: str | None, *, dry_run: bool) -> RegistryChange:
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
        return RegistryChange("\\".join([branch_name, *below]), name, TYPES[number], before, value, not dry_run)

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
