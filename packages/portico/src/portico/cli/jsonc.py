"""Changes one value in a JSON file with comments, such as the configuration of an editor.

Everything but that value stays as it was, byte for byte: comments, trailing commas, the order of the keys, the
indentation. A text that cannot be read is not changed, and a changed text is read again before it is returned.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from portico.protocol.errors import UsageError

_STRING = r'"(?:[^"\\\n]|\\.)*"'
_COMMENT = re.compile(rf"{_STRING}|//[^\r\n]*|/\*.*?\*/", re.DOTALL)
_TRAILING_COMMA = re.compile(rf"{_STRING}|,(?=\s*[}}\]])", re.DOTALL)
_VISIBLE = re.compile(r"[^\r\n]")
_SPACE = re.compile(r"\s*")
_INDENT = re.compile(r"\n([ \t]+)\S")
_DECODER = json.JSONDecoder()


class InvalidConfiguration(UsageError):
    """The text is not JSON, even when comments and trailing commas are ignored."""


class Document(NamedTuple):
    """A text that was read. `bare` is the text with comments blanked out, `strict` also without trailing commas: a
    position in one of them is the same in all."""

    value: dict[str, Any]
    bare: str
    strict: str


class JsonMember(NamedTuple):
    """Where the name of a member begins, and where its value begins and ends."""

    at: int
    start: int
    end: int


def read(text: str) -> Document:
    """The whole document. An empty one is an empty object."""
    bare = _blanked(_COMMENT, text)
    strict = _blanked(_TRAILING_COMMA, bare)
    try:
        value = json.loads(strict, object_pairs_hook=_unique, parse_constant=_refuse) if strict.strip() else {}
    except json.JSONDecodeError as failure:
        raise _mistake(text, failure.pos, failure.msg.lower()) from None
    except RecursionError:
        raise InvalidConfiguration("it is nested too deeply") from None
    except ValueError as failure:
        raise InvalidConfiguration(str(failure)) from None
    if not isinstance(value, dict):
        raise _mistake(text, _after(bare, 0), "an object is expected")
    return Document(value, bare, strict)


def put(text: str, path: tuple[str, ...], value: Any) -> str:
    """The text with this value at the end of the path. Objects on the way are made where they are missing."""
    document, unit = read(text), _unit(text)
    at, depth = _after(document.bare, 0), 0
    if at == len(text):
        return text + _written(_nested(path, value), unit, "") + "\n"
    for name in path[:-1]:
        member = _members(document, at).get(name)
        if member is None:
            break
        at, depth = member.start, depth + 1
        if text[at] != "{":
            raise _mistake(text, at, f"{name!r} should be an object")
    name, rest = path[depth], _nested(path[depth + 1 :], value)
    members = _members(document, at)
    if name in members:
        known = members[name]
        changed = text[: known.start] + _written(rest, unit, _indent_of(text, known.at)) + text[known.end :]
    else:
        changed = _appended(text, document, at, members, {name: rest})
    return _checked(changed, _edited(document.value, path, {path[-1]: value}))


def drop(text: str, path: tuple[str, ...]) -> str:
    """The text without the value at the end of the path, if there is one."""
    document = read(text)
    at, known = _after(document.bare, 0), None
    for name in path:
        known = _members(document, at).get(name) if document.strict[at : at + 1] == "{" else None
        if known is None:
            return text
        at = known.start
    assert known is not None
    start, end = len(text[: known.at].rstrip()), known.end
    following = _after(document.bare, end)
    if document.bare[following] == ",":
        end = following + 1
    elif text[start - 1] == ",":
        start -= 1
    return _checked(text[:start] + text[end:], _edited(document.value, path, {}))


# Reading


def _blanked(pattern: re.Pattern[str], text: str) -> str:
    """The text with spaces in place of each match that is not a string."""
    return pattern.sub(lambda match: match[0] if match[0][0] == '"' else _VISIBLE.sub(" ", match[0]), text)


def _unique(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    members: dict[str, Any] = {}
    for name, value in pairs:
        if name in members:
            raise ValueError(f"{name!r} is there twice")
        members[name] = value
    return members


def _refuse(word: str) -> Any:
    raise ValueError(f"{word} is not JSON")


def _members(document: Document, start: int) -> dict[str, JsonMember]:
    """The members of the object that begins here."""
    text, members = document.strict, {}
    at = _after(text, start + 1)
    while text[at] != "}":
        name, end = _DECODER.raw_decode(text, at)
        value_at = _after(text, _after(text, end) + 1)
        _, end = _DECODER.raw_decode(text, value_at)
        members[name] = JsonMember(at, value_at, end)
        at = _after(text, end)
        at = _after(text, at + 1) if text[at] == "," else at
    return members


def _after(text: str, at: int) -> int:
    """The position behind the spaces that begin here."""
    space = _SPACE.match(text, at)
    return space.end() if space is not None else at


def _mistake(text: str, at: int, what: str) -> InvalidConfiguration:
    line = text.count("\n", 0, at) + 1
    return InvalidConfiguration(f"line {line}, column {at - text.rfind(chr(10), 0, at)}: {what}")


# Writing


def _appended(text: str, document: Document, start: int, members: dict[str, JsonMember], added: dict[str, Any]) -> str:
    """The text with one more member in the object that begins here, behind the others."""
    (name, value), unit, ending = *added.items(), _unit(text), "\r\n" if "\r\n" in text else "\n"
    last = max((member.end for member in members.values()), default=start + 1)
    closing = _DECODER.raw_decode(document.strict, start)[1] - 1
    # Comments may stand behind the last member, or in an object that is otherwise empty.
    comments = text[last:closing].rstrip()
    comma = "," if members and document.bare[_after(document.bare, last)] != "," else ""
    key = f"{json.dumps(name, ensure_ascii=False)}: "
    if members and "\n" not in text[start:closing]:
        return f"{text[:last]}{comma}{comments} {key}{json.dumps(value, ensure_ascii=False)}{text[closing:]}"
    outer = _indent_of(text, start)
    first = next(iter(members.values()), None)
    indent = _indent_of(text, first.at) if first and "\n" in text[start : first.at] else outer + unit
    line = f"{ending}{indent}{key}{_written(value, unit, indent)}{ending}{outer}"
    return f"{text[:last]}{comma}{comments}{line}{text[closing:]}"


def _written(value: Any, unit: str, indent: str) -> str:
    """JSON whose lines, except the first, are indented as the place that it goes to."""
    return f"\n{indent}".join(json.dumps(value, ensure_ascii=False, indent=unit).split("\n"))


def _nested(path: tuple[str, ...], value: Any) -> Any:
    for name in reversed(path):
        value = {name: value}
    return value


def _unit(text: str) -> str:
    indent = _INDENT.search(text)
    return indent[1] if indent else "  "


def _indent_of(text: str, at: int) -> str:
    line = text[text.rfind("\n", 0, at) + 1 : at]
    return line[: len(line) - len(line.lstrip(" \t"))]


# Making sure


def _checked(text: str, expected: Any) -> str:
    if read(text).value != expected:
        raise InvalidConfiguration("this file is written in a way that cannot be changed safely")
    return text


def _edited(value: dict[str, Any], path: tuple[str, ...], leaf: dict[str, Any]) -> dict[str, Any]:
    """The value with what is in `leaf` in place of the member at the end of the path."""
    name, *rest = path
    inner = {name: _edited(value.get(name, {}), tuple(rest), leaf)} if rest else leaf
    return {**{known: one for known, one in value.items() if known != name or name in inner}, **inner}
