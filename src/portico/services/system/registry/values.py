"""Values of a registry: their types, and what their bytes mean."""

from __future__ import annotations

from typing import Any

from portico.services.system.errors import InvalidArgument

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
