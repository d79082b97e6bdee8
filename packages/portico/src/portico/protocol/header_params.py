"""Tool parameters that are repeated in HTTP headers: `x-mcp-header` (2026-07-28, basic/transports)."""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

HEADER_KEYWORD = "x-mcp-header"
HEADER_PREFIX = "Mcp-Param-"

# RFC 9110, section 5.6.2: the name of a header, or of an authentication scheme.
TOKEN_PATTERN = r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
# Numbers are excluded by the specification: their text form differs between languages.
_ALLOWED_TYPES = ("string", "integer", "boolean")
# JavaScript clients cannot represent larger integers exactly, so header and body could differ silently.
_MAX_SAFE_INTEGER = 2**53 - 1
_BASE64_PREFIX, _BASE64_SUFFIX = "=?base64?", "?="


class HeaderParam(Struct, frozen=True):
    """One mirrored parameter: its header and its path in the arguments."""

    header: str
    path: tuple[str, ...]
    kind: str


def parse_header_params(schema: Mapping[str, Any]) -> tuple[HeaderParam, ...]:
    """Return the mirrored parameters of a tool schema. Raises ValueError for an invalid annotation."""
    result = tuple(_walk(schema, ()))
    # Header names are case-insensitive, so `Region` and `region` would be the same header.
    names = [mirror.header.lower() for mirror in result]
    if len(set(names)) < len(names):
        raise ValueError(f"two parameters have the same {HEADER_KEYWORD}")
    # An annotation below `anyOf`, `items` or `$ref` has no single path in the arguments. Ignoring it would let
    # a proxy route by a header that nobody compares with the body.
    if _count_keyword(schema) != len(result):
        raise ValueError(f"{HEADER_KEYWORD} is only allowed on properties reached through `properties`")
    return result


def _walk(schema: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[HeaderParam]:
    for name, subschema in _properties(schema).items():
        if not isinstance(subschema, Mapping):
            continue
        if HEADER_KEYWORD in subschema:
            yield _mirror(subschema, (*path, name))
        yield from _walk(subschema, (*path, name))


def _properties(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    result = schema.get("properties")
    return result if isinstance(result, Mapping) else {}


def _mirror(schema: Mapping[str, Any], path: tuple[str, ...]) -> HeaderParam:
    name, kind = schema[HEADER_KEYWORD], schema.get("type")
    if not isinstance(name, str) or not re.fullmatch(TOKEN_PATTERN, name):
        raise ValueError(f"{HEADER_KEYWORD} of {path[-1]!r} must be a valid header name")
    if kind not in _ALLOWED_TYPES:
        raise ValueError(f"{HEADER_KEYWORD} of {path[-1]!r}: only strings, integers and booleans can be mirrored")
    return HeaderParam(HEADER_PREFIX + name, path, kind)


def _count_keyword(schema: Any, *, is_schema: bool = True) -> int:
    """Count the occurrences of the keyword, valid or not. A property with that name does not count."""
    if isinstance(schema, list):
        return sum(_count_keyword(item) for item in schema)
    if not isinstance(schema, Mapping):
        return 0
    own = 1 if is_schema and HEADER_KEYWORD in schema else 0
    return own + sum(
        _count_keyword(item, is_schema=not (is_schema and name in ("properties", "$defs", "patternProperties")))
        for name, item in schema.items()
        if name not in ("enum", "const", "default", "examples") or not is_schema
    )


def get_argument(arguments: Any, path: tuple[str, ...]) -> Any:
    """Return the argument at a path, or None."""
    for name in path:
        if not isinstance(arguments, Mapping):
            return None
        arguments = arguments.get(name)
    return arguments


def matches_header(param: HeaderParam, value: Any, header_value: str) -> bool:
    """Return whether a header has the same value as the body."""
    if param.kind == "boolean":
        return isinstance(value, bool) and header_value == ("true" if value else "false")
    if param.kind == "integer" and isinstance(value, int | float) and not isinstance(value, bool):
        return abs(value) <= _MAX_SAFE_INTEGER and _number(header_value) == value
    return isinstance(value, str) and header_value == value


def _number(text: str) -> float | None:
    """Parse an integer: `42` and `42.0` are equal; `1e3`, `0x2a`, `+42` and ` 42` are invalid."""
    return float(text) if re.fullmatch(r"-?[0-9]{1,16}(\.0+)?", text) else None


def encode_header_value(value: str) -> str:
    """Encode a header value: as is if possible, else as base64 of its UTF-8."""
    # Control characters would allow header injection, and HTTP implementations strip surrounding spaces. A
    # value that looks encoded is encoded as well, so that decoding is unambiguous.
    plain = value.isascii() and value.isprintable() and value == value.strip() and not _is_wrapped(value)
    return value if plain else f"{_BASE64_PREFIX}{b64encode(value.encode()).decode()}{_BASE64_SUFFIX}"


def decode_header_value(value: str) -> str:
    """Decode a header value. Raises ValueError for invalid base64."""
    if not _is_wrapped(value):
        return value
    return b64decode(value[len(_BASE64_PREFIX) : -len(_BASE64_SUFFIX)], validate=True).decode()


def _is_wrapped(value: str) -> bool:
    return (
        value.startswith(_BASE64_PREFIX)
        and value.endswith(_BASE64_SUFFIX)
        and len(value) >= len(_BASE64_PREFIX) + len(_BASE64_SUFFIX)
    )


def format_header_value(value: Any) -> str:
    """Format an argument as a header value."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return encode_header_value(str(value))
