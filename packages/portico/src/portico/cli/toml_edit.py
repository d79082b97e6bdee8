"""Changes one entry in a TOML or YAML file and leaves every other line as it was, comments included.

The text is edited by lines and then parsed again: where the result is not exactly what was meant, the file is refused
and stays as it is. An entry is a mapping two levels down, such as `[mcp_servers.NAME]` or `extensions: NAME:`.
"""

from __future__ import annotations

import importlib
import json
import re
import tomllib
from collections.abc import Iterator
from typing import Any

from portico.cli.jsonc import InvalidConfiguration
from portico.protocol.errors import UsageError

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_UNSAFE = "this file is written in a way that cannot be changed safely"
Path = tuple[str, str]


# TOML


def read_toml(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as failure:
        raise InvalidConfiguration(str(failure)) from None


def put_toml(text: str, path: Path, value: dict[str, Any]) -> str:
    """Return the text with this entry as a table at its end, instead of the one it has."""
    before = read_toml(text)
    _check_mapping(before, path[0])
    rest = drop_toml(text, path) if path[1] in before.get(path[0], {}) else text
    gap = "" if not rest.strip() else "\n" if rest.endswith("\n") else "\n\n"
    changed = f"{rest}{gap}{_written_toml(path, value)}"
    return _verified(changed, read_toml(changed), _with_entry(before, path, value))


def drop_toml(text: str, path: Path) -> str:
    before = read_toml(text)
    _check_mapping(before, path[0])
    if path[1] not in before.get(path[0], {}):
        return text
    # Not by `splitlines`, which knows more line ends than TOML.
    lines = re.split(r"(?<=\n)", text)
    kept: list[str] = []
    for header, part in _toml_tables(lines):
        if header is None or header[:2] != list(path):
            kept += part
        else:
            # Comments and blank lines at the end of a table belong to the next one.
            last = max(at for at, line in enumerate(part) if line.strip() and not line.lstrip().startswith("#"))
            kept += part[last + 1 :]
    changed = "".join(kept)
    if not changed.strip():
        changed = ""
    # The last server may have been the only reason for the table around it.
    after, expected = read_toml(changed), _with_entry(before, path, None)
    if after != expected and not expected[path[0]]:
        expected.pop(path[0])
    return _verified(_without_gap(changed), after, expected)


def _without_gap(text: str) -> str:
    return text.rstrip("\n") + "\n" if text.strip() else text


def _toml_tables(lines: list[str]) -> Iterator[tuple[list[str] | None, list[str]]]:
    """Split a file at its table headers: the keys of each header, and its lines."""
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
        table: Any = tomllib.loads(line)
    except tomllib.TOMLDecodeError:
        return None
    keys: list[str] = []
    while isinstance(table, dict) and table:
        name = next(iter(table))
        keys.append(name)
        table = table[name]
    return keys


def _written_toml(path: Path, value: dict[str, Any]) -> str:
    tables = {key: one for key, one in value.items() if isinstance(one, dict)}
    lines = [f"[{_toml_key(path[0])}.{_toml_key(path[1])}]"]
    lines += [f"{_toml_key(key)} = {_toml_value(one)}" for key, one in value.items() if key not in tables]
    for key, table in tables.items():
        lines += ["", f"[{_toml_key(path[0])}.{_toml_key(path[1])}.{_toml_key(key)}]"]
        lines += [f"{_toml_key(name)} = {_toml_value(one)}" for name, one in table.items()]
    return "\n".join(lines) + "\n"


def _toml_key(name: str) -> str:
    return name if _BARE_KEY.fullmatch(name) else _toml_value(name)


def _toml_value(value: Any) -> str:
    """JSON's texts, numbers and lists are TOML's, but for the character DEL."""
    if isinstance(value, list):
        return f"[{', '.join(map(_toml_value, value))}]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


# YAML


def read_yaml(text: str) -> dict[str, Any]:
    yaml = _yaml()
    try:
        value = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError) as failure:
        raise InvalidConfiguration(" ".join(str(failure).split())[:300]) from None
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InvalidConfiguration("a mapping is expected")
    return value


def _yaml() -> Any:
    try:
        return importlib.import_module("yaml")
    except ModuleNotFoundError:
        raise UsageError(
            "a YAML file is changed with PyYAML, which is not installed: pip install 'portico[openapi]'. "
            "`portico install json` prints the entry for pasting"
        ) from None


def put_yaml(text: str, path: Path, value: dict[str, Any]) -> str:
    """Return the text with this entry as the last one of its section, instead of the one it has."""
    before = read_yaml(text)
    _check_mapping(before, path[0])
    lines = _lines(drop_yaml(text, path) if path[1] in (before.get(path[0]) or {}) else text)
    section = _yaml_section(lines, path[0])
    if section is None:
        lines = [*lines, f"{path[0]}:"]
        section = len(lines) - 1, len(lines)
    start, end = section
    lines[start] = re.sub(r":\s*(\{\s*\}|null|~)(?=\s*(#|$))", ":", lines[start])
    indent = _child_indent(lines[start + 1 : end]) or "  "
    lines[end:end] = _written_yaml(path[1], value, indent)
    changed = "\n".join(lines) + "\n"
    return _verified(changed, read_yaml(changed), _with_entry(before, path, value))


def drop_yaml(text: str, path: Path) -> str:
    before = read_yaml(text)
    _check_mapping(before, path[0])
    if path[1] not in (before.get(path[0]) or {}):
        return text
    lines = _lines(text)
    section = _yaml_section(lines, path[0])
    if section is None:
        raise InvalidConfiguration(_UNSAFE)
    start, end = section
    indent = _child_indent(lines[start + 1 : end])
    first = next((at for at in range(start + 1, end) if _yaml_key(lines[at], indent) == path[1]), None)
    if first is None:
        raise InvalidConfiguration(_UNSAFE)
    last = first + 1
    while last < end and (not lines[last].strip() or _indent_of(lines[last]) > len(indent)):
        last += 1
    while not lines[last - 1].strip():
        last -= 1
    del lines[first:last]
    changed = "\n".join(lines) + "\n"
    expected = _with_entry(before, path, None)
    after = read_yaml(changed)
    if not expected[path[0]] and after.get(path[0], 0) is None:
        expected[path[0]] = None
    return _verified(changed, after, expected)


def _lines(text: str) -> list[str]:
    return text.removesuffix("\n").split("\n") if text else []


def _yaml_section(lines: list[str], name: str) -> tuple[int, int] | None:
    """Return the line of a top-level key, and the line behind its last child."""
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
    line = next((one for one in lines if one.strip() and not one.lstrip().startswith("#")), "")
    return line[: _indent_of(line)]


def _indent_of(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _yaml_key(line: str, indent: str) -> str | None:
    """Return the key of a line at this indentation."""
    found = re.match(rf"{indent}(\"(?:[^\"\\]|\\.)*\"|'(?:[^']|'')*'|[^\s#'\"][^:#]*?)\s*:(?=\s|$)", line)
    if found is None:
        return None
    key = _yaml().safe_load(found[1])
    return str(key)


def _written_yaml(name: str, value: dict[str, Any], indent: str) -> list[str]:
    lines = [f"{indent}{_yaml_value(name)}:"]
    lines += [f"{indent}  {key}: {_yaml_value(one)}" for key, one in value.items()]
    return lines


def _yaml_value(value: Any) -> str:
    """Return JSON, which is YAML; a plain word is written without quotation marks."""
    if (
        isinstance(value, str)
        and re.fullmatch(r"[A-Za-z_][A-Za-z0-9_-]*", value)
        and read_yaml(f"x: {value}")["x"] == value
    ):
        return value
    return json.dumps(value, ensure_ascii=False)


# Both


def _check_mapping(document: dict[str, Any], key: str) -> None:
    if not isinstance(document.get(key) or {}, dict):
        raise InvalidConfiguration(f"{key!r} should hold named entries, and is a {type(document[key]).__name__}")


def _with_entry(document: dict[str, Any], path: Path, value: dict[str, Any] | None) -> dict[str, Any]:
    entries = {name: one for name, one in (document.get(path[0]) or {}).items() if name != path[1]}
    if value is not None:
        entries[path[1]] = value
    return {**document, path[0]: entries}


def _verified(text: str, value: dict[str, Any], expected: dict[str, Any]) -> str:
    if value != expected:
        raise InvalidConfiguration(_UNSAFE)
    return text
