"""Edit one entry in a TOML or YAML file and preserve every other line, including comments.

The text is edited line by line and then parsed again: if the result is not exactly as intended, the edit is rejected
and the file stays unchanged. An entry is a mapping two levels down, such as `[mcp_servers.NAME]` or `extensions:
NAME:`.
"""

from __future__ import annotations

import importlib
import json
import re
import tomllib
from collections.abc import Iterator
from typing import Any

from portico.cli.jsonc import InvalidJsonc
from portico.protocol.errors import UsageError

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_UNSAFE = "the structure of this file does not allow a safe edit"
Path = tuple[str, str]


# TOML


def read_toml(text: str) -> dict[str, Any]:
    """Parse TOML. Raises InvalidJsonc."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as failure:
        raise InvalidJsonc(str(failure)) from None


def put_toml(text: str, path: Path, value: dict[str, Any]) -> str:
    """Return the text with this entry as a table at its end, replacing an existing one."""
    before = read_toml(text)
    _check_mapping(before, path[0])
    # Removed first: TOML rejects a table that is defined twice.
    rest = drop_toml(text, path) if path[1] in before.get(path[0], {}) else text
    gap = "" if not rest.strip() else "\n" if rest.endswith("\n") else "\n\n"
    changed = f"{rest}{gap}{_to_toml(path, value)}"
    return _verify(changed, read_toml(changed), _with_entry(before, path, value))


def drop_toml(text: str, path: Path) -> str:
    """Return the text without this entry."""
    before = read_toml(text)
    _check_mapping(before, path[0])
    if path[1] not in before.get(path[0], {}):
        return text
    # `splitlines` splits at more characters than TOML's line ends.
    lines = re.split(r"(?<=\n)", text)
    remaining: list[str] = []
    for header, part in _toml_tables(lines):
        if header is None or header[:2] != list(path):
            remaining += part
        else:
            # Comments and blank lines at the end of a table belong to the next one.
            last = max(at for at, line in enumerate(part) if line.strip() and not line.lstrip().startswith("#"))
            remaining += part[last + 1 :]
    changed = "".join(remaining)
    if not changed.strip():
        changed = ""
    # Removing the last server may also remove the implicit table around it.
    after, expected = read_toml(changed), _with_entry(before, path, None)
    if after != expected and not expected[path[0]]:
        expected.pop(path[0])
    return _verify(_trim_end(changed), after, expected)


def _trim_end(text: str) -> str:
    return text.rstrip("\n") + "\n" if text.strip() else text


def _toml_tables(lines: list[str]) -> Iterator[tuple[list[str] | None, list[str]]]:
    """Split a file at its table headers, yielding the keys of each header and its lines."""
    keys: list[str] | None = None
    part: list[str] = []
    for line in lines:
        header = _header_keys(line)
        if header is not None:
            yield keys, part
            keys, part = header, []
        part.append(line)
    yield keys, part


def _header_keys(line: str) -> list[str] | None:
    if not line.lstrip().startswith("["):
        return None
    try:
        # The parser decides whether a line is a header: it may also continue an array.
        table: Any = tomllib.loads(line)
    except tomllib.TOMLDecodeError:
        return None
    keys: list[str] = []
    while isinstance(table, dict) and table:
        name = next(iter(table))
        keys.append(name)
        table = table[name]
    return keys


def _to_toml(path: Path, value: dict[str, Any]) -> str:
    tables = {key: member for key, member in value.items() if isinstance(member, dict)}
    lines = [f"[{_toml_key(path[0])}.{_toml_key(path[1])}]"]
    lines += [f"{_toml_key(key)} = {_toml_value(member)}" for key, member in value.items() if key not in tables]
    for key, table in tables.items():
        lines += ["", f"[{_toml_key(path[0])}.{_toml_key(path[1])}.{_toml_key(key)}]"]
        lines += [f"{_toml_key(name)} = {_toml_value(member)}" for name, member in table.items()]
    return "\n".join(lines) + "\n"


def _toml_key(name: str) -> str:
    return name if _BARE_KEY.fullmatch(name) else _toml_value(name)


def _toml_value(value: Any) -> str:
    """Return a TOML value: JSON strings, numbers and lists are valid TOML, except for the character DEL."""
    if isinstance(value, list):
        return f"[{', '.join(map(_toml_value, value))}]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


# YAML


def read_yaml(text: str) -> dict[str, Any]:
    """Parse YAML. Raises InvalidJsonc."""
    yaml = _yaml()
    try:
        # `load` would construct arbitrary Python objects from tags in the file.
        value = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError) as failure:
        raise InvalidJsonc(" ".join(str(failure).split())[:300]) from None
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InvalidJsonc("expected a mapping")
    return value


def _yaml() -> Any:
    try:
        # Optional: only Goose uses YAML, and the standard library has no parser for it.
        return importlib.import_module("yaml")
    except ModuleNotFoundError:
        raise UsageError(
            "editing a YAML file requires PyYAML: pip install 'portico[openapi]'. `portico install json` "
            "prints the entry for pasting"
        ) from None


def put_yaml(text: str, path: Path, value: dict[str, Any]) -> str:
    """Return the text with this entry at the end of its section, replacing an existing one."""
    before = read_yaml(text)
    _check_mapping(before, path[0])
    lines = _lines(drop_yaml(text, path) if path[1] in (before.get(path[0]) or {}) else text)
    section = _yaml_section(lines, path[0])
    if section is None:
        lines = [*lines, f"{path[0]}:"]
        section = len(lines) - 1, len(lines)
    start, end = section
    # An empty section may be written as `{}` or null, to which no child can be added.
    lines[start] = re.sub(r":\s*(\{\s*\}|null|~)(?=\s*(#|$))", ":", lines[start])
    indent = _child_indent(lines[start + 1 : end]) or "  "
    lines[end:end] = _to_yaml(path[1], value, indent)
    changed = "\n".join(lines) + "\n"
    return _verify(changed, read_yaml(changed), _with_entry(before, path, value))


def drop_yaml(text: str, path: Path) -> str:
    """Return the text without this entry."""
    before = read_yaml(text)
    _check_mapping(before, path[0])
    if path[1] not in (before.get(path[0]) or {}):
        return text
    lines = _lines(text)
    section = _yaml_section(lines, path[0])
    if section is None:
        raise InvalidJsonc(_UNSAFE)
    start, end = section
    indent = _child_indent(lines[start + 1 : end])
    first = next((at for at in range(start + 1, end) if _yaml_key(lines[at], indent) == path[1]), None)
    if first is None:
        raise InvalidJsonc(_UNSAFE)
    last = first + 1
    while last < end and (not lines[last].strip() or _indent_of(lines[last]) > len(indent)):
        last += 1
    # Blank lines separate the next entry, and stay with it.
    while not lines[last - 1].strip():
        last -= 1
    del lines[first:last]
    changed = "\n".join(lines) + "\n"
    expected = _with_entry(before, path, None)
    after = read_yaml(changed)
    # A key without children is null in YAML, not an empty mapping.
    if not expected[path[0]] and after.get(path[0], 0) is None:
        expected[path[0]] = None
    return _verify(changed, after, expected)


def _lines(text: str) -> list[str]:
    return text.removesuffix("\n").split("\n") if text else []


def _yaml_section(lines: list[str], name: str) -> tuple[int, int] | None:
    """Return the line of a top-level key, and the line after its last child."""
    start = next((at for at, line in enumerate(lines) if _yaml_key(line, "") == name), None)
    if start is None:
        return None
    end = start + 1
    for at in range(start + 1, len(lines)):
        line = lines[at]
        if line.strip() and not line.startswith((" ", "\t", "#")):
            break
        if line.strip() and not line.startswith("#"):
            end = at + 1
    return start, end


def _child_indent(lines: list[str]) -> str:
    line = next((item for item in lines if item.strip() and not item.lstrip().startswith("#")), "")
    return line[: _indent_of(line)]


def _indent_of(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _yaml_key(line: str, indent: str) -> str | None:
    """Return the key of a line at this indentation, or None."""
    match = re.match(rf"{indent}(\"(?:[^\"\\]|\\.)*\"|'(?:[^']|'')*'|[^\s#'\"][^:#]*?)\s*:(?=\s|$)", line)
    if match is None:
        return None
    key = _yaml().safe_load(match[1])
    return str(key)


def _to_yaml(name: str, value: dict[str, Any], indent: str) -> list[str]:
    lines = [f"{indent}{_yaml_value(name)}:"]
    lines += [f"{indent}  {key}: {_yaml_value(member)}" for key, member in value.items()]
    return lines


def _yaml_value(value: Any) -> str:
    """Return the value as JSON, which is valid YAML; a plain word is not quoted."""
    if (
        isinstance(value, str)
        and re.fullmatch(r"[A-Za-z_][A-Za-z0-9_-]*", value)
        and read_yaml(f"x: {value}")["x"] == value
    ):
        return value
    return json.dumps(value, ensure_ascii=False)


# TOML and YAML


def _check_mapping(document: dict[str, Any], key: str) -> None:
    if not isinstance(document.get(key) or {}, dict):
        raise InvalidJsonc(f"{key!r} must be a mapping, got {type(document[key]).__name__}")


def _with_entry(document: dict[str, Any], path: Path, value: dict[str, Any] | None) -> dict[str, Any]:
    entries = {name: entry for name, entry in (document.get(path[0]) or {}).items() if name != path[1]}
    if value is not None:
        entries[path[1]] = value
    return {**document, path[0]: entries}


def _verify(text: str, value: dict[str, Any], expected: dict[str, Any]) -> str:
    # The last line of defence: whatever the line-based edit did, a wrong result is never written.
    if value != expected:
        raise InvalidJsonc(_UNSAFE)
    return text
