"""Registry values: types, binary encoding, and ranges of long values."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from msgspec import Struct

from portico_services.system.anonymizer import NameKind, names_in_field
from portico_services.system.errors import SystemToolError
from portico_services.system.results import RegistryValue

VALUE_TYPES = (
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
_STRING_TYPES = (1, 2, 6)
_LIST = 7
_BINARY = 3
# Characters after which a long text may be split, so that no name is cut; and the distance to search back for one.
_BETWEEN = frozenset(bytes([byte, 0]) for byte in b"\0\t\n\r ,/;\\")
_MAX_WORD_BYTES = 512
_MIN_TEXT_BYTES = 2 * _MAX_WORD_BYTES
_MAX_NUMBER_BYTES = 8


def type_name(number: int) -> str:
    """Return the name of a type. Windows also stores other numbers, whose meaning is up to their writer."""
    return VALUE_TYPES[number] if number < len(VALUE_TYPES) else f"REG_{number:#x}"


def type_number(name: str) -> int:
    if name not in VALUE_TYPES:
        raise SystemToolError(
            f"Unknown value type {name[:40]!r} (expected one of {', '.join(VALUE_TYPES)}).", outcome="invalid"
        )
    return VALUE_TYPES.index(name)


def decode_value(number: int, data: bytes) -> Any:
    """Decode a value to a string, list of strings or number; to its bytes if it has no other representation."""
    if number in _STRING_TYPES:
        # Strings end at the first NUL; the bytes after it are often left over from an earlier value.
        return _text(data).split("\0", 1)[0]
    if number == _LIST:
        return [part for part in _text(data).split("\0") if part]
    # Programs store values of any length under any type; a wrong length is returned as bytes.
    if number in (4, 11) and len(data) == (4 if number == 4 else 8):
        return int.from_bytes(data, "little")
    if number == 5 and len(data) == 4:
        return int.from_bytes(data, "big")
    return data


def _text(data: bytes) -> str:
    return data[: len(data) & ~1].decode("utf-16-le", "backslashreplace")


def encode_value(number: int, value: Any) -> bytes:
    """Encode a value as Windows stores it. Raises SystemToolError if it does not match the type."""
    name = type_name(number)
    if number in _STRING_TYPES and isinstance(value, str):
        return f"{value}\0".encode("utf-16-le")
    if number == _LIST and isinstance(value, list) and all(isinstance(item, str) and item for item in value):
        return "".join(f"{item}\0" for item in [*value, ""]).encode("utf-16-le")
    if number in (4, 5, 11):
        size = 8 if number == 11 else 4
        if type(value) is int and 0 <= value < 1 << 8 * size:
            return value.to_bytes(size, "big" if number == 5 else "little")
        raise SystemToolError(f"{name} must be an integer from 0 to {(1 << 8 * size) - 1}.", outcome="invalid")
    if number not in (*_STRING_TYPES, _LIST) and isinstance(value, str):
        try:
            return bytes.fromhex(value)
        except ValueError:
            raise SystemToolError(f"{name} must be hexadecimal digits, two for each byte.", outcome="invalid") from None
    expected = {_LIST: "a list of non-empty strings"}.get(number, "a text")
    raise SystemToolError(f"{name} must be {expected}.", outcome="invalid")


class StoredValue(Struct):
    """Stored value. `data` is complete, or in a listing at least its beginning."""

    name: str
    number: int
    data: bytes
    size: int
    # Number from another platform, which may not fit the nearest registry type.
    value: int | None = None


def make_value(name: str, number: int, value: Any) -> StoredValue:
    """Create a value from a number, string, list of strings or bytes."""
    if isinstance(value, int):
        return StoredValue(name, number, b"", 8 if number == 11 else 4, value)
    if isinstance(value, list):
        value = "".join(f"{item}\0" for item in value)
    data = value.encode("utf-16-le", "surrogatepass") if isinstance(value, str) else bytes(value or b"")
    return StoredValue(name, number, data, len(data))


def value_range(of: StoredValue, offset: int, length: int) -> RegistryValue:
    """Return a range of a value from an offset on. Numbers are never split; text is split between words if possible."""
    registry_value = RegistryValue(of.name, type_name(of.number), of.value, of.size)
    if of.value is not None:
        return registry_value
    is_text = of.number in (*_STRING_TYPES, _LIST)
    start = min(offset, of.size)
    # A minimum, so that a caller cannot read a name letter by letter past the anonymizer.
    end = min(start + max(length, _MIN_TEXT_BYTES if is_text else _MAX_NUMBER_BYTES), of.size)
    if is_text:
        start = _word_boundary(of.data, start & ~1, 0)
        end = end if end == of.size else _word_boundary(of.data, end & ~1, start)
    is_whole = (start, end) == (0, of.size)
    registry_value.value = decode_value(of.number if is_text or is_whole else _BINARY, of.data[start:end])
    registry_value.offset, registry_value.next_offset = start, None if end == of.size else end
    return registry_value


def _word_boundary(data: bytes, at: int, after: int) -> int:
    """Return the last word boundary up to an offset and after `after`; the offset itself if none is near."""
    for end in range(at, max(at - _MAX_WORD_BYTES, after), -2):
        if data[end - 2 : end] in _BETWEEN:
            return end
    # Do not split a surrogate pair.
    is_half = at > after + 2 and 0xD8 <= data[at - 1] <= 0xDB
    return at - 2 if is_half else at


# Registry values that contain the name of a user or host. The name of a value is not sufficient: `DisplayName` is the
# name of a program or service, and `Owner` is arbitrary. Windows and some programs store names in known places, so a
# value is anonymized by its key and name together. Addresses, SIDs, e-mail addresses, profile directories and the names
# of this machine are recognized everywhere.

# End of a key's path, and the names of its values by kind.
_PLACES: tuple[tuple[str, dict[NameKind, str]], ...] = (
    (r"Control\\ComputerName\\[^\\]+", {"host": r"ComputerName"}),
    (
        r"Services\\Tcpip6?\\Parameters(?:\\Interfaces\\[^\\]+|\\DNSRegisteredAdapters\\[^\\]+)?",
        {"host": r"(?:NV |Dhcp)?(?:Hostname|Domain)|PrimaryDomainName|AdapterDomainName|SearchList"},
    ),
    (
        r"Windows NT\\CurrentVersion\\Winlogon",
        {
            "user": r"(?:Alt)?DefaultUserName|LastUsedUsername",
            "host": r"(?:Alt)?DefaultDomainName|CachePrimaryDomain",
        },
    ),
    (
        r"Authentication\\LogonUI(?:\\SessionData\\[^\\]+)?",
        {"user": r"(?:LastLoggedOn|LoggedOn)(?:User(?:name)?|SAMUser|DisplayName)"},
    ),
    (r"Windows NT\\CurrentVersion", {"user": r"RegisteredOwner|RegisteredOrganization"}),
    (
        r"Volatile Environment(?:\\[^\\]+)?",
        {"user": r"USERNAME", "host": r"USERDOMAIN(?:_ROAMINGPROFILE)?|USERDNSDOMAIN|LOGONSERVER|CLIENTNAME"},
    ),
    (r"CurrentVersion\\Explorer", {"user": r"Logon User Name"}),
    (r"Common\\UserInfo", {"user": r"UserName|Company"}),
    (r"Microsoft\\OneDrive(?:\\Accounts\\[^\\]+)?", {"user": r"UserNameCollection|UserName|DisplayName"}),
    (r"Terminal Server Client\\Servers\\[^\\]+", {"user": r"UsernameHint"}),
    (r"Terminal Server Client\\Default", {"host": r"MRU\d+"}),
    # PuTTY, WinSCP and similar programs.
    (r"Sessions\\[^\\]+", {"user": r"UserName", "host": r"HostName|ProxyHost"}),
    (r"sysctl\\kernel", {"host": r"hostname|domainname"}),
)
_RULES = [
    (re.compile(rf"(?:.*\\)?{key}", re.IGNORECASE | re.DOTALL), kind, re.compile(values, re.IGNORECASE))
    for key, kinds in _PLACES
    for kind, values in kinds.items()
]


def names_in_values(path: str, values: Iterable[RegistryValue]) -> Iterator[tuple[NameKind, str]]:
    """Yield the user and host names that the values of a key contain, each with its kind."""
    # By key first: most keys have no rule, and their values are not checked at all.
    rules = [(kind, names) for key, kind, names in _RULES if key.fullmatch(path)]
    for value in values if rules else ():
        for kind, names in rules:
            if names.fullmatch(value.name):
                for text in _texts(value.value):
                    yield from names_in_field(kind, text)


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield from re.split(r"[,;]", value)
    elif isinstance(value, list):
        yield from (text for text in value if isinstance(text, str))
