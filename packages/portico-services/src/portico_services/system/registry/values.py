"""Values of a registry: their types, their bytes as Windows stores them, and some of a long one."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from portico_services.system.errors import InvalidArgument
from portico_services.system.results import RegistryValue

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
_LIST = 7
_BINARY = 3
# What a long text may be divided behind, so that no name is; and how far back such a place is looked for.
_BETWEEN = frozenset(bytes([one, 0]) for one in b"\0\t\n\r ,/;\\")
_LONGEST_WORD = 512
_LEAST_TEXT = 2 * _LONGEST_WORD
_LONGEST_NUMBER = 8


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
    if number == _LIST:
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
    if number == _LIST and isinstance(value, list) and all(isinstance(one, str) and one for one in value):
        return "".join(f"{one}\0" for one in [*value, ""]).encode("utf-16-le")
    if number in (4, 5, 11):
        size = 8 if number == 11 else 4
        if type(value) is int and 0 <= value < 1 << 8 * size:
            return value.to_bytes(size, "big" if number == 5 else "little")
        raise InvalidArgument(f"A {name} is a whole number from 0 to {(1 << 8 * size) - 1}.")
    if number not in (*_TEXTS, _LIST) and isinstance(value, str):
        try:
            return bytes.fromhex(value)
        except ValueError:
            raise InvalidArgument(f"A {name} is given as hexadecimal digits, two for each byte.") from None
    wanted = {_LIST: "a list of texts, none of them empty"}.get(number, "a text")
    raise InvalidArgument(f"A {name} is {wanted}.")


class Datum(Struct):
    """A value as it is stored: `data` is all of it, or in a listing of a key at least its beginning."""

    name: str
    number: int
    data: bytes
    size: int
    # What other systems store as a number, which may not fit the type that is nearest.
    value: int | None = None


def datum(name: str, number: int, value: Any) -> Datum:
    """What is no longer, or never was, in the bytes of a registry: a number, a text, a list of texts, bytes."""
    if isinstance(value, int):
        return Datum(name, number, b"", 8 if number == 11 else 4, value)
    if isinstance(value, list):
        value = "".join(f"{one}\0" for one in value)
    data = value.encode("utf-16-le", "surrogatepass") if isinstance(value, str) else bytes(value or b"")
    return Datum(name, number, data, len(data))


def part(of: Datum, offset: int, length: int) -> RegistryValue:
    """Some of a value, from a byte on. A number is always whole; a text is divided between words where it can be."""
    found = RegistryValue(of.name, type_name(of.number), of.value, of.size)
    if of.value is not None:
        return found
    is_text = of.number in (*_TEXTS, _LIST)
    start = min(offset, of.size)
    end = min(start + max(length, _LEAST_TEXT if is_text else _LONGEST_NUMBER), of.size)
    if is_text:
        start = _between(of.data, start & ~1, 0)
        end = end if end == of.size else _between(of.data, end & ~1, start)
    is_whole = (start, end) == (0, of.size)
    found.value = decoded(of.number if is_text or is_whole else _BINARY, of.data[start:end])
    found.offset, found.next_offset = start, None if end == of.size else end
    return found


def _between(data: bytes, at: int, after: int) -> int:
    """The last place between words of a text up to here, but behind `after`; here, where there is none near."""
    for end in range(at, max(at - _LONGEST_WORD, after), -2):
        if data[end - 2 : end] in _BETWEEN:
            return end
    # Not between the halves of one character.
    is_half = at > after + 2 and 0xD8 <= data[at - 1] <= 0xDB
    return at - 2 if is_half else at
