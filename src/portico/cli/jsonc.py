"""Changing one value in a configuration file that belongs to somebody else.

Everything but that value stays as it was, byte for byte: comments, trailing commas, the order of the keys, the way the
lines are indented. What cannot be read is not changed; what has been changed is read again before anybody writes it.
"""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

from portico.wire.errors import UsageError

# Also Python's stack has an end.
DEEPEST = 200

_SPACE = re.compile(r"(?:[ \t\r\n]+|//[^\r\n]*|/\*.*?\*/)*", re.DOTALL)
_STRING = re.compile(r'"(?:[^"\\\x00-\x1f]|\\.)*"')
_SCALAR = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?|true|false|null")
_INDENT = re.compile(r"\n([ \t]+)\S")


class InvalidConfiguration(UsageError):
    """The text is not JSON, also not with comments in it."""


class JsonMember(NamedTuple):
    # Where its name begins.
    at: int
    node: JsonNode


class JsonNode(NamedTuple):
    """A value, and where it stands in the text."""

    start: int
    end: int
    value: Any
    members: dict[str, JsonMember]


def read(text: str) -> JsonNode:
    """The whole document. An empty one is an empty object."""
    start = _SPACE.match(text).end()  # type: ignore[union-attr]
    if start == len(text):
        return JsonNode(start, start, {}, {})
    node = _value(text, start, 0)
    end = _SPACE.match(text, node.end).end()  # type: ignore[union-attr]
    if end != len(text):
        raise _mistake(text, end, "nothing more is expected")
    if not isinstance(node.value, dict):
        raise _mistake(text, start, "an object is expected")
    return node


def put(text: str, path: tuple[str, ...], value: Any) -> str:
    """With the value at the end of the path; the objects on the way are made where they are missing."""
    root = read(text)
    unit = _unit(text)
    if root.start == root.end:
        return text + _written(_nested(path, value), unit, "") + "\n"
    node, depth = root, 0
    for name in path[:-1]:
        if name not in node.members:
            break
        node, depth = node.members[name].node, depth + 1
        if not isinstance(node.value, dict):
            raise _mistake(text, node.start, f"{name!r} should be an object")
    name, rest = path[depth], _nested(path[depth + 1 :], value)
    known = node.members.get(name)
    if known is not None:
        changed = text[: known.node.start] + _written(rest, unit, _indent_of(text, known.at)) + text[known.node.end :]
    else:
        changed = _appended(text, node, name, rest, unit)
    return _checked(changed, _with(root.value, path, value))


def drop(text: str, path: tuple[str, ...]) -> str:
    """Without the value at the end of the path, if there is one."""
    root = node = read(text)
    for name in path[:-1]:
        if name not in node.members:
            return text
        node = node.members[name].node
    if path[-1] not in node.members:
        return text
    known = node.members[path[-1]]
    start, end = len(text[: known.at].rstrip()), known.node.end
    following = _after(text, end)
    if text[following] == ",":
        end = following + 1
    elif text[start - 1] == ",":
        start -= 1
    return _checked(text[:start] + text[end:], _without(root.value, path))


# Reading


def _value(text: str, at: int, depth: int) -> JsonNode:
    if depth > DEEPEST:
        raise _mistake(text, at, "it is nested too deeply")
    first = text[at : at + 1]
    if first == "{":
        return _object(text, at, depth)
    if first == "[":
        return _array(text, at, depth)
    found = _STRING.match(text, at) if first == '"' else _SCALAR.match(text, at)
    if found is None:
        raise _mistake(text, at, "a value is expected")
    try:
        return JsonNode(at, found.end(), json.loads(found[0]), {})
    except ValueError:
        raise _mistake(text, at, "a value is expected") from None


def _object(text: str, start: int, depth: int) -> JsonNode:
    value: dict[str, Any] = {}
    members: dict[str, JsonMember] = {}
    at = _after(text, start + 1)
    while text[at : at + 1] != "}":
        found = _STRING.match(text, at)
        if found is None:
            raise _mistake(text, at, "a name in quotes, or }, is expected")
        name = json.loads(found[0], strict=False)
        if name in value:
            raise _mistake(text, at, f"{name!r} is there twice, and nobody knows which of them counts")
        colon = _after(text, found.end())
        if text[colon : colon + 1] != ":":
            raise _mistake(text, colon, ": is expected")
        node = _value(text, _after(text, colon + 1), depth + 1)
        value[name], members[name] = node.value, JsonMember(at, node)
        at = _next(text, node.end, "}")
    return JsonNode(start, at + 1, value, members)


def _array(text: str, start: int, depth: int) -> JsonNode:
    value = []
    at = _after(text, start + 1)
    while text[at : at + 1] != "]":
        node = _value(text, at, depth + 1)
        value.append(node.value)
        at = _next(text, node.end, "]")
    return JsonNode(start, at + 1, value, {})


def _next(text: str, end: int, closing: str) -> int:
    """Behind a value: the next one, or what closes all of them."""
    at = _after(text, end)
    if text[at : at + 1] == ",":
        return _after(text, at + 1)
    if text[at : at + 1] != closing:
        raise _mistake(text, at, f"a comma or {closing} is expected")
    return at


def _after(text: str, at: int) -> int:
    """Past what says nothing: spaces and comments."""
    return _SPACE.match(text, at).end()  # type: ignore[union-attr]


def _mistake(text: str, at: int, expected: str) -> InvalidConfiguration:
    line = text.count("\n", 0, at) + 1
    return InvalidConfiguration(f"line {line}, column {at - text.rfind(chr(10), 0, at)}: {expected}")


# Writing


def _appended(text: str, node: JsonNode, name: str, value: Any, unit: str) -> str:
    outer = _indent_of(text, node.start)
    last = max((member.node.end for member in node.members.values()), default=None)
    line = f"{json.dumps(name, ensure_ascii=False)}: "
    ending = _newline(text)
    if last is None:
        inner = f"{ending}{outer}{unit}{line}{_written(value, unit, outer + unit)}"
        # Comments may stand in an object that is otherwise empty.
        kept = text[node.start + 1 : node.end - 1].rstrip()
        return f"{text[: node.start + 1]}{kept}{inner}{ending}{outer}{text[node.end - 1 :]}"
    closing = node.end - 1
    kept = text[last:closing].rstrip()
    has_comma = text[_after(text, last)] == ","
    comma = "" if has_comma else ","
    first = next(iter(node.members.values()))
    if "\n" in text[node.start : node.end]:
        indent = _indent_of(text, first.at) if "\n" in text[node.start : first.at] else outer + unit
        added = f"{ending}{indent}{line}{_written(value, unit, indent)}{ending}{outer}"
    else:
        added = f" {line}{json.dumps(value, ensure_ascii=False)}"
    return f"{text[:last]}{comma}{kept}{added}{text[closing:]}"


def _written(value: Any, unit: str, indent: str) -> str:
    """Behind the first, each line as far in as the place where it goes."""
    lines = json.dumps(value, ensure_ascii=False, indent=unit).split("\n")
    return f"\n{indent}".join(lines)


def _nested(path: tuple[str, ...], value: Any) -> Any:
    for name in reversed(path):
        value = {name: value}
    return value


def _unit(text: str) -> str:
    found = _INDENT.search(text)
    return found[1] if found else "  "


def _newline(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def _indent_of(text: str, at: int) -> str:
    line = text[text.rfind("\n", 0, at) + 1 : at]
    return line[: len(line) - len(line.lstrip(" \t"))]


# Making sure


def _checked(text: str, expected: Any) -> str:
    if read(text).value != expected:
        raise InvalidConfiguration("this file is written in a way that we cannot change safely")
    return text


def _with(value: dict[str, Any], path: tuple[str, ...], new: Any) -> dict[str, Any]:
    name, *rest = path
    return {**value, name: _with(value.get(name, {}), tuple(rest), new) if rest else new}


def _without(value: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    name, *rest = path
    if rest:
        return {**value, name: _without(value[name], tuple(rest))}
    return {known: one for known, one in value.items() if known != name}
