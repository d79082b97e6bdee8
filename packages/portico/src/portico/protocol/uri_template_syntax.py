"""What a URI template says: the characters of a URI, the grammar of templates, and expansion (RFC 6570, level 4)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from msgspec import Struct

from portico.protocol.errors import UsageError

Scalar: TypeAlias = str | int | float | bool
Given: TypeAlias = Scalar | Sequence[str] | Mapping[str, str] | None


class Operator(Struct, frozen=True):
    """One column of the table in RFC 6570, appendix A; `stops` is ours, and says where a value ends when matching."""

    first: str
    separator: str
    stops: str
    named: bool = False
    blank: str = ""  # what follows the name of an empty value
    reserved: bool = False  # reserved characters and percent triplets pass unencoded


OPERATORS = {
    "": Operator("", ",", "/?#"),
    "+": Operator("", ",", "", reserved=True),
    "#": Operator("#", ",", "", reserved=True),
    ".": Operator(".", ".", "/?#"),
    "/": Operator("/", "/", "/?#"),
    ";": Operator(";", ";", "/?#", named=True),
    "?": Operator("?", "&", "#", named=True, blank="="),
    "&": Operator("&", "&", "#", named=True, blank="="),
}


class Literal(Struct, frozen=True):
    text: str
    units: str


class Variable(Struct, frozen=True):
    name: str
    units: str  # of the name, to find it in a query
    exploded: bool
    prefix: int  # 0: the whole value


class Expression(Struct, frozen=True):
    operator: str
    variables: tuple[Variable, ...]


Part: TypeAlias = Literal | Expression


# Characters. A URI is decoded into units, one per character. A reserved character that was percent-encoded is data
# and its raw twin a delimiter, so the encoded one moves to U+DC00 and above: surrogates occur in no valid text.

_ENCODED = r"[^A-Za-z0-9\-._~]+"
_ENCODED_IN_RESERVED = r"%(?![0-9A-Fa-f]{2})|[^A-Za-z0-9\-._~:/?#\[\]@!$&'()*+,;=%]+"
_ESCAPES = r"(?:%[0-9A-Fa-f]{2})+"
_UNREADABLE = r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]|%(?![0-9A-Fa-f]{2})"
_ESCAPED_CONTROL = r"[\x80-\x9f\udc00-\udc1f\udc7f]"
_SET_APART = {code: 0xDC00 + code for code in range(128) if not (chr(code).isalnum() or chr(code) in "-._~")}
_BROUGHT_BACK = {apart: code for code, apart in _SET_APART.items()}


def decode(uri: str) -> str | None:
    """The units of a URI; None for a broken escape, escaped bytes that are not UTF-8, or a control character."""
    if re.search(_UNREADABLE, uri):
        return None
    if "%" not in uri:
        return uri
    try:
        units = re.sub(_ESCAPES, _unescape, uri)
    except UnicodeDecodeError:
        return None
    return None if re.search(_ESCAPED_CONTROL, units) else units


def _unescape(found: re.Match[str]) -> str:
    return bytes.fromhex(found[0].replace("%", "")).decode().translate(_SET_APART)


def plain(units: str) -> str:
    """The text that units stand for."""
    return units if units.isascii() else units.translate(_BROUGHT_BACK)


def encode(text: str, *, reserved: bool) -> str:
    return re.sub(_ENCODED_IN_RESERVED if reserved else _ENCODED, _escape, text)


def _escape(found: re.Match[str]) -> str:
    try:
        return "".join(f"%{byte:02X}" for byte in found[0].encode())
    except UnicodeEncodeError:
        raise UsageError(f"{found[0]!r} has half a surrogate pair, which no URI can hold") from None


# Parsing: RFC 6570, section 2.

# The grammar forbids "'" as well, although it is a reserved character that expansion lets pass; we let it pass too.
_NOT_LITERAL = r"[\x00-\x20\"<>\\^`{|}\x7f-\x9f\ud800-\udfff]|%(?![0-9A-Fa-f]{2})"
_NAME = r"(?:[A-Za-z0-9_]|%[0-9A-Fa-f]{2})+"
_VARIABLE = rf"({_NAME}(?:\.{_NAME})*)(?:(\*)|:([1-9][0-9]{{0,3}}))?"


def parse(text: str) -> tuple[Part, ...]:
    parts: list[Part] = []
    at = 0
    while at < len(text):
        if text[at] == "{":
            end = text.find("}", at) + 1
            if not end:
                raise _malformed(text, at, "this '{' is never closed")
            parts.append(_parse_expression(text, at + 1, end - 1))
        else:
            end = text.find("{", at)
            end = len(text) if end < 0 else end
            parts.append(_parse_literal(text, at, end))
        at = end
    return tuple(parts)


def _parse_literal(text: str, start: int, end: int) -> Literal:
    if bad := re.compile(_NOT_LITERAL).search(text, start, end):
        reason = "this '}' closes nothing" if bad[0] == "}" else f"{bad[0]!r} must be percent-encoded"
        raise _malformed(text, bad.start(), reason)
    units = decode(text[start:end])
    if units is None:
        raise _malformed(text, start, f"{text[start:end]!r} escapes a control character or invalid UTF-8")
    return Literal(text[start:end], units)


def _parse_expression(text: str, start: int, end: int) -> Expression:
    if start == end:
        raise _malformed(text, start, "an expression needs a variable")
    if text[start] in "=,!@|":
        raise _malformed(text, start, f"the operator {text[start]!r} is reserved by RFC 6570")
    operator = text[start] if text[start] in OPERATORS else ""
    at = start + len(operator)
    variables = []
    for spec in text[at:end].split(","):
        found = re.fullmatch(_VARIABLE, spec)
        units = decode(found[1]) if found else None
        if found is None or units is None:
            raise _malformed(text, at, f"{spec!r} is not a variable: a name, then nothing, '*' or ':1' to ':9999'")
        variables.append(Variable(found[1], units, bool(found[2]), int(found[3] or 0)))
        at += len(spec) + 1
    return Expression(operator, tuple(variables))


def _malformed(text: str, position: int, reason: str) -> UsageError:
    return UsageError(f"malformed URI template {text!r}, position {position}: {reason}")


# Expansion: RFC 6570, section 3.


def expand(part: Part, values: Mapping[str, Given]) -> str:
    if isinstance(part, Literal):
        return encode(part.text, reserved=True)
    operator = OPERATORS[part.operator]
    pieces = [_expand_variable(variable, operator, values.get(variable.name)) for variable in part.variables]
    defined = [piece for piece in pieces if piece is not None]
    return operator.first + operator.separator.join(defined) if defined else ""


def _expand_variable(variable: Variable, operator: Operator, value: Given) -> str | None:
    if value is None:
        return None
    if isinstance(value, Mapping) or (isinstance(value, Sequence) and not isinstance(value, str | bytes)):
        return _expand_composite(variable, operator, value)
    text = _text(variable, value)[: variable.prefix or None]
    encoded = encode(text, reserved=operator.reserved)
    return _assign(variable.name, encoded, operator) if operator.named else encoded


def _expand_composite(variable: Variable, operator: Operator, value: Sequence[str] | Mapping[str, str]) -> str | None:
    if variable.prefix:
        raise UsageError(f"{variable.name!r} is cut to {variable.prefix} characters, so it must be a single value")

    def encoded(item: object) -> str:
        return encode(_text(variable, item), reserved=operator.reserved)

    # RFC 6570, section 2.3: undefined members are left out, and without members the whole is undefined.
    if isinstance(value, Mapping):
        pairs = [(encoded(key), encoded(item)) for key, item in value.items() if item is not None]  # type: ignore[redundant-expr]
        pieces = [piece for pair in pairs for piece in pair]
    else:
        pieces = [encoded(item) for item in value if item is not None]  # type: ignore[redundant-expr]
        pairs = [(variable.name, piece) for piece in pieces]
    if not pieces:
        return None
    if not variable.exploded:
        joined = ",".join(pieces)
        return _assign(variable.name, joined, operator) if operator.named else joined
    if operator.named:
        pieces = [_assign(name, piece, operator) for name, piece in pairs]
    elif isinstance(value, Mapping):
        pieces = [f"{name}={piece}" for name, piece in pairs]
    return operator.separator.join(pieces)


def _assign(name: str, encoded: str, operator: Operator) -> str:
    return f"{name}={encoded}" if encoded else name + operator.blank


def _text(variable: Variable, value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float):
        return str(value)
    raise UsageError(f"{variable.name!r} cannot hold {type(value).__name__}: give strings, numbers, lists or mappings")
