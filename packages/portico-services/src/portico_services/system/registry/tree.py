"""Registry as one tree of named branches."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from heapq import nsmallest
from typing import Any, TypeVar

from msgspec import Struct

from portico_services.system.errors import NotFound, SystemToolError
from portico_services.system.registry.values import VALUE_TYPES, StoredValue, encode_value, type_number, value_range
from portico_services.system.results import MAX_KEY_PAGE_ITEMS, MAX_READ_BYTES, RegistryValue, RegistryWriteResult

T = TypeVar("T")

# Limits of a page: bytes per value, and bytes of all values.
MAX_LISTED_VALUE_BYTES = 4096
MAX_PAGE_BYTES = 256 * 1024
MAX_PATH_CHARS = 4096
MAX_DEPTH = 512

ABBREVIATIONS = {
    "HKLM": "HKEY_LOCAL_MACHINE",
    "HKCU": "HKEY_CURRENT_USER",
    "HKCR": "HKEY_CLASSES_ROOT",
    "HKU": "HKEY_USERS",
    "HKCC": "HKEY_CURRENT_CONFIG",
}
# Password databases of this machine, and keys of other users.
_DENIED_KEYS = re.compile(
    r"(?:HKEY_LOCAL_MACHINE\\(?:SAM|SECURITY)|HKEY_USERS\\S-1-5-21-[\d-]+(?:_Classes)?)(?:\\|$)", re.IGNORECASE
)

KeyPath = list[str]


# Name after which a listing continues, case-folded and original: [] is the start, None the end.
PageStart = list[str] | None


class KeyContent(Struct):
    """Content of a key: names of subkeys, values, and the time of the last write in microseconds, if known.

    Subkeys and values are read while iterating; `problems` then lists what could not be read.
    """

    subkeys: Iterable[str]
    values: Iterable[StoredValue]
    written: int | None = None
    problems: list[str] = []


class KeyPage(Struct):
    """Page of a key, sorted by name. `following` is the start of the next page, for subkeys and for values."""

    subkeys: list[str]
    values: list[RegistryValue]
    written: int | None
    problems: list[str]
    following: tuple[PageStart, PageStart] | None


class RegistryBranch(ABC):
    """Named part of the registry. Most branches are read-only."""

    description: str
    writable = False

    def resolve(self, path: KeyPath) -> KeyPath:
        """Return the actual path of a key, if a part of its path is an alias."""
        return path

    @abstractmethod
    def content(self, path: KeyPath) -> KeyContent | None:
        """Return the content of a key, or None if it does not exist."""

    @abstractmethod
    def value(self, path: KeyPath, name: str) -> StoredValue | None:
        """Return one value, or None."""

    def write(self, path: KeyPath, name: str, number: int, value: Any) -> None:
        """Set a value and create missing keys. Only called if `writable`."""
        raise SystemToolError("This branch is read-only.", outcome="denied")


class RegistryTree:
    """All branches of the registry."""

    def __init__(self, branches: Mapping[str, RegistryBranch], *, writable: bool = False) -> None:
        self.branches = branches
        self._writable = writable

    def content(
        self, path: str, start: tuple[PageStart, PageStart] = ([], []), limit: int = MAX_KEY_PAGE_ITEMS
    ) -> tuple[str, KeyPage]:
        """Return the full path and a page of a key; the empty path lists the branches."""
        if not path.strip("\\/ "):
            return "", KeyPage(list(self.branches), [], None, [], None)
        name, branch, below = self._branch(path)
        content = branch.content(below)
        real = "\\".join([name, *below])
        # A configured hive such as HKLM\SYSTEM appears below its parent key like a mounted file system.
        mounted = [item[len(real) + 1 :].partition("\\")[0] for item in self.branches if _is_below(item, real)]
        if content is None and not mounted:
            raise NotFound(f"Registry key {path!r} does not exist.")
        content = content or KeyContent([], [])
        if mounted:
            content.subkeys = _merge_names(content.subkeys, mounted)
        return real, _page(content, start, limit)

    def value(self, path: str, name: str, offset: int = 0, length: int = MAX_READ_BYTES) -> tuple[str, RegistryValue]:
        """Return the full path of a key and a range of one of its values."""
        branch_name, branch, below = self._branch(path)
        result = branch.value(below, name)
        if result is None:
            if branch.content(below) is None:
                raise NotFound(f"Registry key {path!r} does not exist.")
            raise NotFound(
                f"The key {path!r} has no value {name!r}." if name else f"The key {path!r} has no default value."
            )
        return "\\".join([branch_name, *below]), value_range(result, offset, length)

    def has(self, path: str, name: str | None = None) -> bool:
        """Return whether a key, or with `name` a value in it, exists. Denied keys count as existing."""
        try:
            _, branch, below = self._branch(path)
            result = branch.content(below) if name is None else branch.value(below, name)
            return result is not None
        except NotFound:
            return False
        except SystemToolError:
            return True

    def write(self, path: str, name: str, value: Any, type: str | None, *, dry_run: bool) -> RegistryWriteResult:
        branch_name, branch, below = self._branch(path)
        number = type_number(type) if type is not None else infer_type(value)
        encode_value(number, value)  # Rejects values that cannot be stored.
        if not dry_run and not self._writable:
            raise SystemToolError(
                "The registry is read-only here; nothing was written. Use dry_run=true to preview the change. "
                "The operator can allow writing in the settings of this server: under [services.system], registry = "
                '"read-write" in access_levels.',
                outcome="denied",
            )
        if not branch.writable:
            raise SystemToolError(f"{branch_name} is read-only: {branch.description}.", outcome="denied")
        if not below:
            raise SystemToolError(
                "A value must be written to a key below a branch, such as HKEY_CURRENT_USER\\Software\\Example.",
                outcome="invalid",
            )
        before = branch.value(below, name)
        if not dry_run:
            branch.write(below, name, number, value)
        previous = None if before is None else value_range(before, 0, MAX_LISTED_VALUE_BYTES)
        return RegistryWriteResult(
            "\\".join([branch_name, *below]), name, VALUE_TYPES[number], previous, value, not dry_run
        )

    def _branch(self, path: str) -> tuple[str, RegistryBranch, KeyPath]:
        if len(path) > MAX_PATH_CHARS or "\0" in path:
            raise SystemToolError(
                f"The path of a key may have up to {MAX_PATH_CHARS} characters and no NUL.", outcome="invalid"
            )
        # Names may contain slashes, so a slash is a separator only if the path has no backslash.
        parts = [part for part in path.split("\\" if "\\" in path else "/") if part]
        first, *below = parts or [""]
        if len(below) > MAX_DEPTH:
            raise SystemToolError(f"A key may be nested up to {MAX_DEPTH} levels.", outcome="invalid")
        if _DENIED_KEYS.match("\\".join([ABBREVIATIONS.get(first.upper(), first), *below])):
            raise SystemToolError(
                f"Access to {path!r} is denied: it contains secrets or belongs to another user.", outcome="denied"
            )
        parts = full_path(parts)
        # The longest match wins: a hive may be a separate branch below a Windows branch, such as
        # HKEY_LOCAL_MACHINE\\SYSTEM.
        for length in range(len(parts), 0, -1):
            folded_path = "\\".join(parts[:length]).casefold()
            for name, branch in self.branches.items():
                if name.casefold() == folded_path:
                    return name, branch, branch.resolve(parts[length:])
        raise NotFound(f"Unknown branch {first!r} (expected one of {', '.join(self.branches)}).")


def full_path(parts: KeyPath) -> KeyPath:
    """Return a path with a leading abbreviation expanded: HKLM is HKEY_LOCAL_MACHINE."""
    return [ABBREVIATIONS.get(parts[0].upper(), parts[0]), *parts[1:]] if parts else []


def _is_below(name: str, above: str) -> bool:
    return name.casefold().startswith(f"{above.casefold()}\\")


def _merge_names(subkeys: Iterable[str], more: list[str]) -> list[str]:
    """Return the names and additional ones without duplicates, ignoring case."""
    result = {name.casefold(): name for name in more}
    return list((result | {name.casefold(): name for name in subkeys}).values())


def infer_type(value: Any) -> int:
    """Return the default type for a value."""
    if isinstance(value, bool) or not isinstance(value, int | str | list):
        raise SystemToolError("A value must be a string, an integer or a list of strings.", outcome="invalid")
    if isinstance(value, int):
        return type_number("REG_DWORD" if value < 2**32 else "REG_QWORD")
    return type_number("REG_SZ" if isinstance(value, str) else "REG_MULTI_SZ")


def to_json(value: Any) -> Any:
    """Return a value as JSON: bytes as hexadecimal digits."""
    return value.hex() if isinstance(value, bytes) else value


def _page(content: KeyContent, start: tuple[PageStart, PageStart], limit: int) -> KeyPage:
    """Return the next subkeys and values by name. Names that appear or disappear do not shift the others."""
    subkeys, more_keys = _next_page_start(content.subkeys, start[0], limit, _name_sort_key)
    listed = (value_range(value, 0, MAX_LISTED_VALUE_BYTES) for value in content.values)
    values, more_values = _next_page_start(listed, start[1], limit, lambda value: _name_sort_key(value.name))
    room = MAX_PAGE_BYTES
    for at, value in enumerate(values[1:]):
        room -= value.size if value.next_offset is None else MAX_LISTED_VALUE_BYTES
        if room < 0:
            values, more_values = values[: at + 1], _name_sort_key(values[at].name)
            break
    following = None if more_keys is None and more_values is None else (more_keys, more_values)
    return KeyPage(subkeys, values, content.written, content.problems, following)


def _next_page_start(
    items: Iterable[T], after: PageStart, limit: int, get_position: Callable[[T], list[str]]
) -> tuple[list[T], PageStart]:
    if after is None:
        return [], None
    result = nsmallest(limit + 1, (item for item in items if get_position(item) > after), key=get_position)
    return result[:limit], get_position(result[limit - 1]) if len(result) > limit else None


def _name_sort_key(name: str) -> list[str]:
    return [name.casefold(), name]
