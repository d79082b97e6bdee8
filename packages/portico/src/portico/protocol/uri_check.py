"""Validation of URIs in requests, without I/O. `uri_forms.py` lists the readings of a valid URI."""

from __future__ import annotations

import re

# Compiled by `re` on first use: most URIs pass without them.
_ESCAPES = r"(?:%[0-9A-Fa-f]{2})+"
_BROKEN_ESCAPE = r"%(?![0-9A-Fa-f]{2})"
_CONTROL = r"[\x00-\x1f\x7f-\x9f]"
# Control characters, all white space (parsers trim it), lone surrogates, the byte order mark, and noncharacters, which
# RFC 3987 excludes and which serve as wildcards in access patterns.
_REFUSED = (
    "[\\x00-\\x20\\x7f-\\xa0\\u1680\\u180e\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000\\ufeff"
    "\\ud800-\\udfff\\ufdd0-\\ufdef\\\\"
    + "".join(f"\\U{plane << 16 | last:08x}" for plane in range(17) for last in (0xFFFE, 0xFFFF))
    + "]"
)


# Dot segments, and those with parameters, which some targets remove before they resolve the path.
_DOT_SEGMENT = r"(?<![^/\\])\.{1,2}(?![^/\\?#])"
_DISGUISED = r"(?<![^/\\])\.{1,2};"
# Characters that Windows maps to slashes in its legacy encodings.
SLASHES = str.maketrans(dict.fromkeys("\u2044\u2215\u2216\u29f5\u29f8\u29f9", "/"))
# A proxy, a framework and an application may each decode once; the result of the last one is checked as well.
_MAX_ROUNDS = 4


class InvalidUri(ValueError):
    """A URI that different parsers read differently."""


def check_uri(uri: str) -> None:
    """Raise InvalidUri for a URI that must not reach a parser.

    These contain control characters (raw or percent-encoded), white space, backslashes or broken percent-encoding. URI
    templates pass.
    """
    if uri.isascii() and uri.isprintable() and not any(char in uri for char in " \\%;"):
        return
    refused = re.search(_REFUSED, uri)
    if refused is not None:
        raise InvalidUri(f"a URI must not contain {_describe(refused[0])}, found at position {refused.start()}")
    broken = re.search(_BROKEN_ESCAPE, uri)
    if broken is not None:
        raise InvalidUri(
            f"'%' in a URI must be followed by two hexadecimal digits, found {uri[broken.start() :][:3]!r} at position "
            f"{broken.start()}; write '%25' for a percent sign"
        )
    for escapes in re.finditer(_ESCAPES, uri):
        _check_escapes(escapes)
    _check_dot_segments(uri)


def _check_dot_segments(uri: str) -> None:
    """Raise InvalidUri for a segment that only some parsers read as `.` or `..`.

    Those with parameters (`..;x`, which Java servers strip) and those of compatibility characters (U+FF0E). No access
    pattern can cover them: whether the path leaves a folder depends on the target.
    """
    if ";" not in uri and "%" not in uri and uri.isascii():
        return
    # Needed for unusual URIs only.
    import unicodedata
    from urllib.parse import unquote

    text = uri
    for _ in range(_MAX_ROUNDS):
        plain = unicodedata.normalize("NFKC", text).translate(SLASHES)
        if re.search(_DISGUISED, plain) or (plain != text and _count_dot_segments(plain) > _count_dot_segments(text)):
            raise InvalidUri("a URI must not contain a dot segment with parameters or compatibility characters")
        decoded = unquote(text)
        if decoded == text:
            return
        text = decoded


def _count_dot_segments(text: str) -> int:
    return len(re.findall(_DOT_SEGMENT, text))


def _check_escapes(escapes: re.Match[str]) -> None:
    position_text = f"found {escapes[0][:30]!r} at position {escapes.start()}"
    try:
        decoded = bytes.fromhex(escapes[0].replace("%", "")).decode()
    except UnicodeDecodeError:
        raise InvalidUri(f"percent-encoded bytes in a URI must be UTF-8, {position_text}") from None
    if re.search(_CONTROL, decoded):
        raise InvalidUri(f"a URI must not contain percent-encoded control characters, {position_text}")


def _describe(char: str) -> str:
    # Needed for errors only.
    import unicodedata

    code = f"U+{ord(char):04X}"
    if char == "\\":
        return "a backslash"
    if char == " ":
        return "a space"
    category = unicodedata.category(char)
    named = {"Cc": "a control character", "Cs": "half a surrogate pair", "Cn": "a noncharacter"}
    return f"{named.get(category, 'white space')} ({code})"
