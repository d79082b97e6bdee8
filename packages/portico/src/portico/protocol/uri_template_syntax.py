"""Syntax of URI templates: character decoding, grammar and expansion (RFC 6570, level 4)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from msgspec import Struct

from portico.protocol.errors import UsageError

Scalar: TypeAlias = str | int | float | bool
TemplateValue: TypeAlias = Scalar | Sequence[str] | Mapping[str, str] | None


class Operator(Struct, frozen=True):
    """One column of the table in RFC 6570, appendix A. `stops` is an addition: where a value ends in matching."""

    first: str
    separator: str
    stops: str
    named: bool = False
    blank: str = ""  # text after the name of an empty value
    reserved: bool = False  # reserved characters and percent-encoded triplets are not encoded


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


class LiteralPart(Struct, frozen=True):
    text: str
    units: str


class Variable(Struct, frozen=True):
    name: str
    units: str  # the decoded name, for matching in a query
    exploded: bool
    prefix: int  # 0: the whole value


class Expression(Struct, frozen=True):
    operator: str
    variables: tuple[Variable, ...]


TemplatePart: TypeAlias = LiteralPart | Expression


# Characters. A URI is decoded into units, one per character. A percent-encoded reserved character is data while the raw
# one is a delimiter, so the encoded one is mapped to U+DC00 and above: surrogates never occur in valid text.

_ENCODED = r"[^A-Za-z0-9\-._~]+"
_ENCODED_IN_RESERVED = r"%(?![0-9A-Fa-f]{2})|[^A-Za-z0-9\-._~:/?#\[\]@!$&'()*+,;=%]+"
_ESCAPES = r"(?:%[0-9A-Fa-f]{2})+"
_INVALID_URI_CHARS = r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]|%(?![0-9A-Fa-f]{2})"
# Escaped control characters are rejected too: a handler that logs or opens the value would see the raw
# character.
_ESCAPED_CONTROL = r"[\x80-\x9f\udc00-\udc1f\udc7f]"
_ESCAPE_RESERVED = {code: 0xDC00 + code for code in range(128) if not (chr(code).isalnum() or chr(code) in "-._~")}
_UNESCAPE_RESERVED = {apart: code for code, apart in _ESCAPE_RESERVED.items()}


def decode_uri(uri: str) -> str | None:
    """Decode a URI into units; None for broken escapes, invalid UTF-8 or control characters."""
    if re.search(_INVALID_URI_CHARS, uri):
        return None
    if "%" not in uri:
        return uri
    try:
        units = re.sub(_ESCAPES, _unescape, uri)
    except UnicodeDecodeError:
        return None
    return None if re.search(_ESCAPED_CONTROL, units) else units


def _unescape(match: re.Match[str]) -> str:
    return bytes.fromhex(match[0].replace("%", "")).decode().translate(_ESCAPE_RESERVED)


def restore_reserved(units: str) -> str:
    """Return the text of decoded units."""
    # Mapped characters are not ASCII, so ASCII text contains none of them.
    return units if units.isascii() else units.translate(_UNESCAPE_RESERVED)


def percent_encode(text: str, *, reserved: bool) -> str:
    return re.sub(_ENCODED_IN_RESERVED if reserved else _ENCODED, _escape, text)


def _escape(match: re.Match[str]) -> str:
    try:
        return "".join(f"%{byte:02X}" for byte in match[0].encode())
    except UnicodeEncodeError:
        raise UsageError(f"{match[0]!r} contains a lone surrogate, which a URI cannot represent") from None


# Parsing: RFC 6570, section 2.

# The grammar also forbids "'", although expansion does not encode it; it is accepted here.
_NOT_LITERAL = r"[\x00-\x20\"<>\\^`{|}\x7f-\x9f\ud800-\udfff]|%(?![0-9A-Fa-f]{2})"
_NAME = r"(?:[A-Za-z0-9_]|%[0-9A-Fa-f]{2})+"
_VARIABLE = rf"({_NAME}(?:\.{_NAME})*)(?:(\*)|:([1-9][0-9]{{0,3}}))?"


def parse_template(text: str) -> tuple[TemplatePart, ...]:
    """Parse a template. Raises UsageError if it is malformed."""
    parts: list[TemplatePart] = []
    at = 0
    while at < len(text):
        if text[at] == "{":
            end = text.find("}", at) + 1
            if not end:
                raise _malformed_error(text, at, "this '{' is never closed")
            parts.append(_parse_expression(text, at + 1, end - 1))
        else:
            end = text.find("{", at)
            end = len(text) if end < 0 else end
            parts.append(_parse_literal(text, at, end))
        at = end
    return tuple(parts)


def _parse_literal(text: str, start: int, end: int) -> LiteralPart:
    if bad := re.compile(_NOT_LITERAL).search(text, start, end):
        reason = "this '}' closes nothing" if bad[0] == "}" else f"{bad[0]!r} must be percent-encoded"
        raise _malformed_error(text, bad.start(), reason)
    units = decode_uri(text[start:end])
    if units is None:
        raise _malformed_error(text, start, f"{text[start:end]!r} escapes a control character or invalid UTF-8")
    return LiteralPart(text[start:end], units)


def _parse_expression(text: str, start: int, end: int) -> Expression:
    if start == end:
        raise _malformed_error(text, start, "an expression needs a variable")
    if text[start] in "=,!@|":
        raise _malformed_error(text, start, f"the operator {text[start]!r} is reserved by RFC 6570")
    operator = text[start] if text[start] in OPERATORS else ""
    at = start + len(operator)
    variables = []
    for spec in text[at:end].split(","):
        match = re.fullmatch(_VARIABLE, spec)
        units = decode_uri(match[1]) if match else None
        if match is None or units is None:
            raise _malformed_error(
                text, at, f"{spec!r} is not a variable: a name, then nothing, '*' or ':1' to ':9999'"
            )
        variables.append(Variable(match[1], units, bool(match[2]), int(match[3] or 0)))
        at += len(spec) + 1
    return Expression(operator, tuple(variables))


def _malformed_error(text: str, position: int, reason: str) -> UsageError:
    return UsageError(f"malformed URI template {text!r}, position {position}: {reason}")


# Expansion: RFC 6570, section 3.


def expand_part(part: TemplatePart, values: Mapping[str, TemplateValue]) -> str:
    if isinstance(part, LiteralPart):
        return percent_encode(part.text, reserved=True)
    operator = OPERATORS[part.operator]
    pieces = [_expand_variable(variable, operator, values.get(variable.name)) for variable in part.variables]
    defined = [piece for piece in pieces if piece is not None]
    return operator.first + operator.separator.join(defined) if defined else ""


def _expand_variable(variable: Variable, operator: Operator, value: TemplateValue) -> str | None:
    if value is None:
        return None
    if isinstance(value, Mapping) or (isinstance(value, Sequence) and not isinstance(value, str | bytes)):
        return _expand_composite(variable, operator, value)
    text = _text(variable, value)[: variable.prefix or None]
    encoded = percent_encode(text, reserved=operator.reserved)
    return _assign(variable.name, encoded, operator) if operator.named else encoded


def _expand_composite(variable: Variable, operator: Operator, value: Sequence[str] | Mapping[str, str]) -> str | None:
    if variable.prefix:
        raise UsageError(
            f"{variable.name!r} has a prefix modifier of {variable.prefix} characters, so its value must be a string"
        )

    def encode_item(item: object) -> str:
        return percent_encode(_text(variable, item), reserved=operator.reserved)

    # RFC 6570, section 2.3: undefined members are omitted; a value without members is undefined.
    if isinstance(value, Mapping):
        pairs = [(encode_item(key), encode_item(item)) for key, item in value.items() if item is not None]  # type: ignore[redundant-expr]
        pieces = [piece for pair in pairs for piece in pair]
    else:
        pieces = [encode_item(item) for item in value if item is not None]  # type: ignore[redundant-expr]
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
    raise UsageError(f"{variable.name!r} must be a string, number, list or mapping, got {type(value).__name__}")
