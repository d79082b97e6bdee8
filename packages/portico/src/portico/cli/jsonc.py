"""Edit one value in a JSON file with comments, such as the configuration of an editor.

Everything else is preserved byte for byte: comments, trailing commas, key order, indentation. An invalid text is not
changed, and a changed text is parsed again before it is returned.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from portico.protocol.errors import UsageError

_STRING = r'"(?:[^"\\\n]|\\.)*"'
# Strings match first, so that the // in "https://…" is not taken for a comment.
_COMMENT = re.compile(rf"{_STRING}|//[^\r\n]*|/\*.*?\*/", re.DOTALL)
_TRAILING_COMMA = re.compile(rf"{_STRING}|,(?=\s*[}}\]])", re.DOTALL)
_VISIBLE = re.compile(r"[^\r\n]")
_SPACE = re.compile(r"\s*")
_INDENT = re.compile(r"\n([ \t]+)\S")
_DECODER = json.JSONDecoder()


class InvalidJsonc(UsageError):
    """The text is not JSON, even if comments and trailing commas are ignored."""


class JsoncDocument(NamedTuple):
    """A parsed text. `bare` has comments blanked out, `strict` also trailing commas; positions are the same in all."""

    value: dict[str, Any]
    bare: str
    strict: str


class JsonMember(NamedTuple):
    """The position of a member's name, and the start and end of its value."""

    at: int
    start: int
    end: int


def read(text: str) -> JsoncDocument:
    """Parse a document. An empty one is an empty object. Raises InvalidJsonc."""
    bare = _blank_out(_COMMENT, text)
    strict = _blank_out(_TRAILING_COMMA, bare)
    try:
        # Python accepts NaN and duplicate keys; the clients that read this file do not.
        value = json.loads(strict, object_pairs_hook=_unique, parse_constant=_reject_constant) if strict.strip() else {}
    except json.JSONDecodeError as failure:
        raise _error_at(text, failure.pos, failure.msg.lower()) from None
    # Raised by the C parser for deeply nested input, which is not a ValueError.
    except RecursionError:
        raise InvalidJsonc("nested too deeply") from None
    except ValueError as failure:
        raise InvalidJsonc(str(failure)) from None
    if not isinstance(value, dict):
        raise _error_at(text, _skip_space(bare, 0), "expected an object")
    return JsoncDocument(value, bare, strict)


def set_value(text: str, path: tuple[str, ...], value: Any) -> str:
    """Return the text with this value at the path. Missing objects on the path are created."""
    document, unit = read(text), _indent_unit(text)
    at, depth = _skip_space(document.bare, 0), 0
    if at == len(text):
        return text + _to_json(_nest_value(path, value), unit, "") + "\n"
    for name in path[:-1]:
        member = _members(document, at).get(name)
        if member is None:
            break
        at, depth = member.start, depth + 1
        if text[at] != "{":
            raise _error_at(text, at, f"{name!r} must be an object")
    name, rest = path[depth], _nest_value(path[depth + 1 :], value)
    members = _members(document, at)
    if name in members:
        existing = members[name]
        changed = text[: existing.start] + _to_json(rest, unit, _indent_of(text, existing.at)) + text[existing.end :]
    else:
        changed = _append_member(text, document, at, members, {name: rest})
    return _verify(changed, _replace_member(document.value, path, {path[-1]: value}))


def delete_value(text: str, path: tuple[str, ...]) -> str:
    """Return the text without the value at the path, if there is one."""
    document = read(text)
    at, member = _skip_space(document.bare, 0), None
    for name in path:
        member = _members(document, at).get(name) if document.strict[at : at + 1] == "{" else None
        if member is None:
            return text
        at = member.start
    assert member is not None
    start, end = len(text[: member.at].rstrip()), member.end
    following = _skip_space(document.bare, end)
    # Exactly one comma goes with the member: the one after it, or before it if it was the last.
    if document.bare[following] == ",":
        end = following + 1
    elif text[start - 1] == ",":
        start -= 1
    return _verify(text[:start] + text[end:], _replace_member(document.value, path, {}))


# Reading


def _blank_out(pattern: re.Pattern[str], text: str) -> str:
    """Replace each match that is not a string with spaces."""
    return pattern.sub(lambda match: match[0] if match[0][0] == '"' else _VISIBLE.sub(" ", match[0]), text)


def _unique(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    members: dict[str, Any] = {}
    for name, value in pairs:
        if name in members:
            # Clients differ in which of two equal keys they use.
            raise ValueError(f"duplicate key {name!r}")
        members[name] = value
    return members


def _reject_constant(word: str) -> Any:
    raise ValueError(f"{word} is not valid JSON")


def _members(document: JsoncDocument, start: int) -> dict[str, JsonMember]:
    """Return the members of the object at this position."""
    text, members = document.strict, {}
    at = _skip_space(text, start + 1)
    while text[at] != "}":
        name, end = _DECODER.raw_decode(text, at)
        value_at = _skip_space(text, _skip_space(text, end) + 1)
        _, end = _DECODER.raw_decode(text, value_at)
        members[name] = JsonMember(at, value_at, end)
        at = _skip_space(text, end)
        at = _skip_space(text, at + 1) if text[at] == "," else at
    return members


def _skip_space(text: str, at: int) -> int:
    """Return the position after the whitespace at `at`."""
    space = _SPACE.match(text, at)
    return space.end() if space is not None else at


def _error_at(text: str, at: int, problem: str) -> InvalidJsonc:
    line = text.count("\n", 0, at) + 1
    return InvalidJsonc(f"line {line}, column {at - text.rfind(chr(10), 0, at)}: {problem}")


# Writing


def _append_member(
    text: str, document: JsoncDocument, start: int, members: dict[str, JsonMember], added: dict[str, Any]
) -> str:
    """Return the text with a member added at the end of the object at `start`."""
    (name, value), unit, ending = *added.items(), _indent_unit(text), "\r\n" if "\r\n" in text else "\n"
    last = max((member.end for member in members.values()), default=start + 1)
    closing = _DECODER.raw_decode(document.strict, start)[1] - 1
    # Comments may follow the last member, or be the only content of an empty object.
    comments = text[last:closing].rstrip()
    # A trailing comma, which JSONC allows, already separates the new member.
    comma = "," if members and document.bare[_skip_space(document.bare, last)] != "," else ""
    key = f"{json.dumps(name, ensure_ascii=False)}: "
    if members and "\n" not in text[start:closing]:
        return f"{text[:last]}{comma}{comments} {key}{json.dumps(value, ensure_ascii=False)}{text[closing:]}"
    outer = _indent_of(text, start)
    first = next(iter(members.values()), None)
    indent = _indent_of(text, first.at) if first and "\n" in text[start : first.at] else outer + unit
    line = f"{ending}{indent}{key}{_to_json(value, unit, indent)}{ending}{outer}"
    return f"{text[:last]}{comma}{comments}{line}{text[closing:]}"


def _to_json(value: Any, unit: str, indent: str) -> str:
    """Return JSON whose lines, except the first, are indented for their place in the file."""
    return f"\n{indent}".join(json.dumps(value, ensure_ascii=False, indent=unit).split("\n"))


def _nest_value(path: tuple[str, ...], value: Any) -> Any:
    for name in reversed(path):
        value = {name: value}
    return value


def _indent_unit(text: str) -> str:
    indent = _INDENT.search(text)
    return indent[1] if indent else "  "


def _indent_of(text: str, at: int) -> str:
    line = text[text.rfind("\n", 0, at) + 1 : at]
    return line[: len(line) - len(line.lstrip(" \t"))]


# Verification


def _verify(text: str, expected: Any) -> str:
    # The file belongs to another program: an edit that went wrong must fail here, before anything is written.
    if read(text).value != expected:
        raise InvalidJsonc("the structure of this file does not allow a safe edit")
    return text


def _replace_member(value: dict[str, Any], path: tuple[str, ...], leaf: dict[str, Any]) -> dict[str, Any]:
    """Return the value with the member at the end of the path replaced by `leaf`."""
    name, *rest = path
    inner = {name: _replace_member(value.get(name, {}), tuple(rest), leaf)} if rest else leaf
    return {**{key: member for key, member in value.items() if key != name or name in inner}, **inner}
