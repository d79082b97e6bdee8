"""Parameters that stand in an HTTP header too: `x-mcp-header` in a tool's schema (2026-07-28, basic/transports)."""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

KEYWORD = "x-mcp-header"
PREFIX = "Mcp-Param-"

_TOKEN = r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_KINDS = ("string", "integer", "boolean")
_LARGEST = 2**53 - 1
_OPENING, _CLOSING = "=?base64?", "?="


class Mirror(Struct, frozen=True):
    """One parameter, where it stands in the arguments, and the header that repeats it."""

    header: str
    path: tuple[str, ...]
    kind: str


def mirrors(schema: Mapping[str, Any]) -> tuple[Mirror, ...]:
    """The mirrored parameters of a tool. Raises ValueError when an annotation breaks the rules."""
    found = tuple(_walk(schema, ()))
    names = [mirror.header.lower() for mirror in found]
    if len(set(names)) < len(names):
        raise ValueError(f"two parameters have the same {KEYWORD}")
    if _mentions(schema) != len(found):
        raise ValueError(f"{KEYWORD} stands where no parameter is: only `properties` may lead to it")
    return found


def _walk(schema: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[Mirror]:
    for name, one in _properties(schema).items():
        if not isinstance(one, Mapping):
            continue
        if KEYWORD in one:
            yield _mirror(one, (*path, name))
        yield from _walk(one, (*path, name))


def _properties(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    found = schema.get("properties")
    return found if isinstance(found, Mapping) else {}


def _mirror(schema: Mapping[str, Any], path: tuple[str, ...]) -> Mirror:
    name, kind = schema[KEYWORD], schema.get("type")
    if not isinstance(name, str) or not re.fullmatch(_TOKEN, name):
        raise ValueError(f"{KEYWORD} of {path[-1]!r} is no header name")
    if kind not in _KINDS:
        raise ValueError(f"{KEYWORD} of {path[-1]!r}: only strings, integers and booleans can be mirrored")
    return Mirror(PREFIX + name, path, kind)


def _mentions(schema: Any, *, is_schema: bool = True) -> int:
    """How often the keyword stands anywhere, also where it must not. A property may have that name; it is none."""
    if isinstance(schema, list):
        return sum(_mentions(one) for one in schema)
    if not isinstance(schema, Mapping):
        return 0
    own = 1 if is_schema and KEYWORD in schema else 0
    return own + sum(
        _mentions(one, is_schema=not (is_schema and name in ("properties", "$defs", "patternProperties")))
        for name, one in schema.items()
        if name not in ("enum", "const", "default", "examples") or not is_schema
    )


def value_at(arguments: Any, path: tuple[str, ...]) -> Any:
    """What stands there, or None."""
    for name in path:
        if not isinstance(arguments, Mapping):
            return None
        arguments = arguments.get(name)
    return arguments


def agrees(mirror: Mirror, value: Any, said: str) -> bool:
    """Whether a header says the same as the body."""
    if mirror.kind == "boolean":
        return isinstance(value, bool) and said == ("true" if value else "false")
    if mirror.kind == "integer" and isinstance(value, int | float) and not isinstance(value, bool):
        return abs(value) <= _LARGEST and _number(said) == value
    return isinstance(value, str) and said == value


def _number(said: str) -> float | None:
    """`42` and `42.0` are the same integer; `1e3`, `0x2a`, `+42` and ` 42` are not how one is written."""
    return float(said) if re.fullmatch(r"-?[0-9]{1,16}(\.0+)?", said) else None


def encode(value: str) -> str:
    """A header's value: plain where a header can carry it, base64 of its UTF-8 where not."""
    plain = value.isascii() and value.isprintable() and value == value.strip() and not _is_wrapped(value)
    return value if plain else f"{_OPENING}{b64encode(value.encode()).decode()}{_CLOSING}"


def decode(value: str) -> str:
    """The way back. Raises ValueError for something that claims to be base64 and is not."""
    if not _is_wrapped(value):
        return value
    return b64decode(value[len(_OPENING) : -len(_CLOSING)], validate=True).decode()


def _is_wrapped(value: str) -> bool:
    return value.startswith(_OPENING) and value.endswith(_CLOSING) and len(value) >= len(_OPENING) + len(_CLOSING)


def spelled(value: Any) -> str:
    """A parameter as a header says it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return encode(str(value))
