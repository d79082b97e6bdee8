"""Serialization of parameters in the styles of OpenAPI, which derive from RFC 6570."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import msgspec

from portico.protocol.errors import ToolError

# Characters that `allowReserved` leaves unescaped, except those that would end or split a query (RFC 3986, section
# 2.2).
_RESERVED_CHARS = ":/?[]@!$'()*,;"
# Limit for nested objects.
MAX_DEPTH = 16

QueryPair = tuple[str, str]


def format_value(value: Any) -> str:
    """Return a single value as text; arrays and objects as JSON."""
    if isinstance(value, str):
        return value
    return msgspec.json.encode(value).decode()


def percent_encode(text: str, *, reserved: bool = False) -> str:
    return quote(text, safe=_RESERVED_CHARS if reserved else "")


def _escape_plain(text: str) -> str:
    return text


def serialize_path(name: str, value: Any, style: str = "simple", explode: bool = False) -> str:
    """Return the path segment for a value. Raises ToolError for a value that would lead to another path."""
    for piece in _format_leaves(value):
        if not piece or {".", ".."} & set(piece.replace("\\", "/").split("/")):
            raise ToolError(
                (f"{name} must not be empty or contain '.' or '..' segments, got {piece[:100]!r}."),
                error_type="ValidationError",
            )
    if style == "matrix":
        return _matrix(name, value, explode)
    divider = "." if style == "label" and explode else ","
    text = divider.join(_simple(value, explode, percent_encode))
    return f".{text}" if style == "label" else text


def serialize_header(value: Any, explode: bool = False) -> str:
    return ",".join(_simple(value, explode, _escape_plain))


def serialize_query(
    name: str, value: Any, style: str = "form", explode: bool = True, reserved: bool = False
) -> list[QueryPair]:
    """Return the query pairs for a value, percent-encoded already, because some styles have their own delimiters."""

    def escape(text: str) -> str:
        return percent_encode(text, reserved=reserved)

    if style == "deepObject":
        return [(percent_encode_name(key), escape(format_value(item))) for key, item in _deep_object(name, value, 0)]
    if isinstance(value, dict):
        if explode:
            return [(percent_encode_name(key), escape(format_value(item))) for key, item in value.items()]
        items = [escape(part) for pair in value.items() for part in (pair[0], format_value(pair[1]))]
    elif isinstance(value, list):
        if explode:
            return [(percent_encode_name(name), escape(format_value(item))) for item in value]
        items = [escape(format_value(item)) for item in value]
    else:
        return [(percent_encode_name(name), escape(format_value(value)))]
    divider = {"spaceDelimited": "%20", "pipeDelimited": "|"}.get(style, ",")
    return [(percent_encode_name(name), divider.join(items))]


def percent_encode_name(name: str) -> str:
    # Servers expect unescaped brackets in the names of object members.
    return quote(name, safe="[]$")


def _deep_object(name: str, value: Any, level: int) -> Iterator[tuple[str, Any]]:
    if level > MAX_DEPTH:
        raise ToolError(f"{name[:100]} is nested too deeply.", error_type="ValidationError")
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _deep_object(f"{name}[{key}]", item, level + 1)
    elif isinstance(value, list):
        for position, item in enumerate(value):
            inner = f"{name}[{position}]" if isinstance(item, dict | list) else f"{name}[]"
            yield from _deep_object(inner, item, level + 1)
    else:
        yield name, value


def _format_leaves(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield from (format_value(part) for pair in value.items() for part in pair)
    elif isinstance(value, list):
        yield from map(format_value, value)
    else:
        yield format_value(value)


def _simple(value: Any, explode: bool, escape: Any) -> list[str]:
    if isinstance(value, list):
        return [escape(format_value(item)) for item in value]
    if isinstance(value, dict):
        pairs = [(escape(key), escape(format_value(item))) for key, item in value.items()]
        return [f"{key}={item}" for key, item in pairs] if explode else [part for pair in pairs for part in pair]
    return [escape(format_value(value))]


def _matrix(name: str, value: Any, explode: bool) -> str:
    key = percent_encode_name(name)
    if explode and isinstance(value, dict):
        return "".join(f";{percent_encode(part)}={percent_encode(format_value(item))}" for part, item in value.items())
    if explode and isinstance(value, list):
        return "".join(f";{key}={percent_encode(format_value(item))}" for item in value)
    return f";{key}={','.join(_simple(value, False, percent_encode))}"
