"""The registry as one tree: branches by name, and below each whatever it is made of."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from heapq import nsmallest
from typing import Any, TypeVar

from msgspec import Struct

from portico_services.system.errors import Absent, Denied, InvalidArgument, MachineError
from portico_services.system.registry.values import TYPES, Datum, encoded, part, type_number
from portico_services.system.results import LARGEST_READ, MOST_LISTED, RegistryChange, RegistryValue

T = TypeVar("T")

# On a page: of each value so many bytes, and of all together.
LONGEST_LISTED = 4096
LARGEST_PAGE = 256 * 1024
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


# Behind which name a listing goes on, folded and as it is: [] is the beginning, None the end.
After = list[str] | None


class Content(Struct):
    """What a key has: names of subkeys, values, and when it was last written, in microseconds, if that is known.

    What is there is only looked at as it is gone through; `problems` then has what could not be read.
    """

    subkeys: Iterable[str]
    values: Iterable[Datum]
    written: int | None = None
    problems: list[str] = []


class KeyPage(Struct):
    """Some of a key, by name. `following` is where the next page begins, for subkeys and for values."""

    subkeys: list[str]
    values: list[RegistryValue]
    written: int | None
    problems: list[str]
    following: tuple[After, After] | None


class Branch(ABC):
    """A part of the registry that has a name. Most can only be read."""

    description: str
    writable = False

    def resolved(self, path: Path) -> Path:
        """The path of a key whose name on the way stands for another."""
        return path

    @abstractmethod
    def content(self, path: Path) -> Content | None:
        """What a key has, or None if there is no such key."""

    @abstractmethod
    def value(self, path: Path, name: str) -> Datum | None:
        """One value, or None."""

    def write(self, path: Path, name: str, number: int, value: Any) -> None:
        """Set a value; the keys on the way are made. Only called where `writable`."""
        raise Denied("This branch is read-only.")


class RegistryTree:
    def __init__(self, branches: Mapping[str, Branch], *, writable: bool = False) -> None:
        self.branches = branches
        self._writable = writable

    def content(
        self, path: str, start: tuple[After, After] = ([], []), limit: int = MOST_LISTED
    ) -> tuple[str, KeyPage]:
        """A page of a key by its path, as it is spelt in full; the empty path lists the branches."""
        if not path.strip("\\/ "):
            return "", KeyPage(list(self.branches), [], None, [], None)
        name, branch, below = self._branch(path)
        content = branch.content(below)
        real = "\\".join([name, *below])
        mounted = [one[len(real) + 1 :].partition("\\")[0] for one in self.branches if _is_below(one, real)]
        if content is None and not mounted:
            raise Absent(f"There is no key {path!r}.")
        content = content or Content([], [])
        if mounted:
            content.subkeys = _with(content.subkeys, mounted)
        return real, _page(content, start, limit)

    def value(self, path: str, name: str, offset: int = 0, length: int = LARGEST_READ) -> tuple[str, RegistryValue]:
        """Some of a value: so many bytes from this one on."""
        branch_name, branch, below = self._branch(path)
        found = branch.value(below, name)
        if found is None:
            if branch.content(below) is None:
                raise Absent(f"There is no key {path!r}.")
            raise Absent(
                f"The key {path!r} has no value {name!r}." if name else f"The key {path!r} has no default value."
            )
        return "\\".join([branch_name, *below]), part(found, offset, length)

    def has(self, path: str, name: str | None = None) -> bool:
        """Whether there is such a key, or with a name such a value in it; what is refused may be there."""
        try:
            _, branch, below = self._branch(path)
            found = branch.content(below) if name is None else branch.value(below, name)
            return found is not None
        except Absent:
            return False
        except MachineError:
            return True

    def write(self, path: str, name: str, value: Any, type: str | None, *, dry_run: bool) -> RegistryChange:
        branch_name, branch, below = self._branch(path)
        number = type_number(type) if type is not None else guessed(value)
        encoded(number, value)  # refuses what cannot be stored
        if not dry_run and not self._writable:
            raise Denied(
                "The registry is read-only here, and nothing was written. dry_run=true shows what would be; the "
                'operator of this server allows writing in its settings: under [services.system], reg = "read-write" '
                "in the table levels."
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
        was = None if before is None else part(before, 0, LONGEST_LISTED)
        return RegistryChange("\\".join([branch_name, *below]), name, TYPES[number], was, value, not dry_run)

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
        parts = full_path(parts)
        # The longest name: a hive may be a branch of its own below one of Windows', such as HKEY_LOCAL_MACHINE\\SYSTEM.
        for length in range(len(parts), 0, -1):
            wanted = "\\".join(parts[:length]).casefold()
            for name, branch in self.branches.items():
                if name.casefold() == wanted:
                    return name, branch, branch.resolved(parts[length:])
        raise Absent(f"There is no branch {first!r}. There are: {', '.join(self.branches)}.")


def full_path(parts: Path) -> Path:
    """Return a path without the abbreviation that it may begin with: HKLM is HKEY_LOCAL_MACHINE."""
    return [ABBREVIATIONS.get(parts[0].upper(), parts[0]), *parts[1:]] if parts else []


def _is_below(name: str, above: str) -> bool:
    return name.casefold().startswith(f"{above.casefold()}\\")


def _with(subkeys: Iterable[str], more: list[str]) -> list[str]:
    """Return names and some more, each once."""
    found = {name.casefold(): name for name in more}
    return list((found | {name.casefold(): name for name in subkeys}).values())


def guessed(value: Any) -> int:
    """The type that a value would have if nothing is said."""
    if isinstance(value, bool) or not isinstance(value, int | str | list):
        raise InvalidArgument("A value is a text, a whole number or a list of texts.")
    if isinstance(value, int):
        return type_number("REG_DWORD" if value < 2**32 else "REG_QWORD")
    return type_number("REG_SZ" if isinstance(value, str) else "REG_MULTI_SZ")


def shown(value: Any) -> Any:
    """A value as JSON has it: bytes as hexadecimal digits."""
    return value.hex() if isinstance(value, bytes) else value


def _page(content: Content, start: tuple[After, After], limit: int) -> KeyPage:
    """The next of a key's subkeys and values by name. A name that comes or goes meanwhile moves no other."""
    subkeys, more_keys = _following(content.subkeys, start[0], limit, _place)
    listed = (part(one, 0, LONGEST_LISTED) for one in content.values)
    values, more_values = _following(listed, start[1], limit, lambda one: _place(one.name))
    room = LARGEST_PAGE
    for at, one in enumerate(values[1:]):
        room -= one.size if one.next_offset is None else LONGEST_LISTED
        if room < 0:
            values, more_values = values[: at + 1], _place(values[at].name)
            break
    following = None if more_keys is None and more_values is None else (more_keys, more_values)
    return KeyPage(subkeys, values, content.written, content.problems, following)


def _following(items: Iterable[T], after: After, limit: int, place: Callable[[T], list[str]]) -> tuple[list[T], After]:
    if after is None:
        return [], None
    found = nsmallest(limit + 1, (one for one in items if place(one) > after), key=place)
    return found[:limit], place(found[limit - 1]) if len(found) > limit else None


def _place(name: str) -> list[str]:
    return [name.casefold(), name]
