"""How the values of parameters are written: the styles of OpenAPI, which come from RFC 6570."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import msgspec

from portico.protocol.errors import ToolError

# What `allowReserved` leaves as it is, but for what would end or divide a query (RFC 3986, section 2.2).
_RESERVED = ":/?[]@!$'()*,;"
# In objects within objects within objects.
MOST_LEVELS = 16

Pair = tuple[str, str]


def written(value: Any) -> str:
    """A single value as a text; what has members of its own as JSON."""
    if isinstance(value, str):
        return value
    return msgspec.json.encode(value).decode()


def escaped(text: str, *, reserved: bool = False) -> str:
    return quote(text, safe=_RESERVED if reserved else "")


def _plain(text: str) -> str:
    return text


def in_path(name: str, value: Any, style: str = "simple", explode: bool = False) -> str:
    """The piece of a path that a value comes to. Raises ToolError for one that would lead to another place."""
    for piece in _leaves(value):
        if not piece or {".", ".."} & set(piece.replace("\\", "/").split("/")):
            raise ToolError(f"{name} is {piece[:100]!r}, which cannot be part of a path.", kind="ValidationError")
    if style == "matrix":
        return _matrix(name, value, explode)
    divider = "." if style == "label" and explode else ","
    text = divider.join(_simple(value, explode, escaped))
    return f".{text}" if style == "label" else text


def in_header(value: Any, explode: bool = False) -> str:
    return ",".join(_simple(value, explode, _plain))


def in_query(name: str, value: Any, style: str = "form", explode: bool = True, reserved: bool = False) -> list[Pair]:
    """The pairs of a query that a value comes to: escaped already, for some styles have dividers of their own."""

    def escape(text: str) -> str:
        return escaped(text, reserved=reserved)

    if style == "deepObject":
        return [(escape_name(key), escape(written(one))) for key, one in _deep(name, value, 0)]
    if isinstance(value, dict):
        if explode:
            return [(escape_name(key), escape(written(one))) for key, one in value.items()]
        items = [escape(part) for pair in value.items() for part in (pair[0], written(pair[1]))]
    elif isinstance(value, list):
        if explode:
            return [(escape_name(name), escape(written(one))) for one in value]
        items = [escape(written(one)) for one in value]
    else:
        return [(escape_name(name), escape(written(value)))]
    divider = {"spaceDelimited": "%20", "pipeDelimited": "|"}.get(style, ",")
    return [(escape_name(name), divider.join(items))]


def escape_name(name: str) -> str:
    # Brackets are what servers look for in the names of objects' members.
    return quote(name, safe="[]$")


def _deep(name: str, value: Any, level: int) -> Iterator[tuple[str, Any]]:
    if level > MOST_LEVELS:
        raise ToolError(f"{name[:100]} has too many levels.", kind="ValidationError")
    if isinstance(value, dict):
        for key, one in value.items():
            yield from _deep(f"{name}[{key}]", one, level + 1)
    elif isinstance(value, list):
        for place, one in enumerate(value):
            inner = f"{name}[{place}]" if isinstance(one, dict | list) else f"{name}[]"
            yield from _deep(inner, one, level + 1)
    else:
        yield name, value


def _leaves(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield from (written(part) for pair in value.items() for part in pair)
    elif isinstance(value, list):
        yield from map(written, value)
    else:
        yield written(value)


def _simple(value: Any, explode: bool, escape: Any) -> list[str]:
    if isinstance(value, list):
        return [escape(written(one)) for one in value]
    if isinstance(value, dict):
        pairs = [(escape(key), escape(written(one))) for key, one in value.items()]
        return [f"{key}={one}" for key, one in pairs] if explode else [part for pair in pairs for part in pair]
    return [escape(written(value))]


def _matrix(name: str, value: Any, explode: bool) -> str:
    key = escape_name(name)
    if explode and isinstance(value, dict):
        return "".join(f";{escaped(part)}={escaped(written(one))}" for part, one in value.items())
    if explode and isinstance(value, list):
        return "".join(f";{key}={escaped(written(one))}" for one in value)
    return f";{key}={','.join(_simple(value, False, escaped))}"
