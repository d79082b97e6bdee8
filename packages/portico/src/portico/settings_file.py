"""Reader of settings files.

A file is read once, with `read_tables`. Each table becomes a Struct with `convert`. Every error has the form
`file:line: [table] key: expected …, got … (did you mean 'x'?)`: `convert` raises it without the file; `locate_errors`
adds the file and the line.
"""

from __future__ import annotations

import re
import types
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from portico.protocol.errors import UsageError

Table = dict[str, Any]
T = TypeVar("T")

# A message stays on one line of a terminal, and a pasted secret is not repeated in full.
MAX_VALUE_CHARS = 60
# The end of an msgspec message: `… - at `$.serve.workers``; `[...]` is a key of a table.
_LOCATION = re.compile(r" - at `(?:key in )?\$([^`]*)`$")
_STEP = re.compile(r"\.([^.\[]+)|\[(\.\.\.|\d+)\]")
_HEAD = re.compile(r"\s*\[+([^\[\]]+)\]+\s*(?:#.*)?$")
_PAIR = re.compile(r"\s*([A-Za-z0-9_.\"' -]+?)\s*=")
_QUOTES = re.compile(r"[\s\"']")
_NAMES = {
    str: "a string",
    int: "an integer",
    float: "a number",
    bool: "true or false",
    bytes: "bytes",
    dict: "a table",
    list: "a list",
    tuple: "a list",
}


class SettingsError(UsageError):
    """An invalid key or value in a settings file. `key` is its dotted name."""

    def __init__(self, message: str, key: str = "") -> None:
        super().__init__(message)
        self.key = key


def read_tables(path: str | Path, text: str | None = None) -> Table:
    """Return the tables of a TOML file, or of `text`. Raises UsageError if the file cannot be read or parsed."""
    # Imported lazily: only needed if there is a file.
    import tomllib

    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8") if text is None else text)
    except OSError as failure:
        raise UsageError(f"{path}: cannot read the file: {failure.strerror}") from None
    except (ValueError, RecursionError) as failure:
        at = re.search(r"\(at line (\d+), column \d+\)", str(failure))
        location = f"{path}:{at[1]}" if at else str(path)
        raise UsageError(f"{location}: invalid TOML: {re.sub(r' [(]at line.*', '', str(failure))}") from None


def read_json(path: str | Path) -> Any:
    """Return the contents of a JSON file such as an mcp.json. Raises UsageError if it cannot be read or parsed."""
    try:
        return msgspec.json.decode(Path(path).read_bytes())
    except OSError as failure:
        raise UsageError(f"{path}: cannot read the file: {failure.strerror}") from None
    except (ValueError, RecursionError) as failure:
        raise UsageError(f"{path}: invalid JSON: {failure}") from None


def convert(value: Any, kind: type[T], table: str = "") -> T:
    """Return a table as a Struct. Raises SettingsError. `table` is its dotted name in the file."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as mistake:
        raise _explain(str(mistake), value, kind, table) from None


@contextmanager
def locate_errors(path: str | Path) -> Iterator[None]:
    """Add the file, and the line if known, to errors raised in this context."""
    try:
        yield
    except SettingsError as mistake:
        raise UsageError(f"{locate(path, mistake.key)}: {mistake}") from None
    except UsageError as mistake:
        raise UsageError(f"{path}: {mistake}") from None


def dotted_name(table: str) -> str:
    """Return the dotted name of a table such as `[[rule]] 2`; a dotted name is returned unchanged."""
    return table.replace("[", "").replace("]", "").replace(" ", ".")


def unknown_key(table: str, name: str, keys: Iterable[str]) -> SettingsError:
    """Return the error for an unknown key of a table."""
    # Imported lazily: only needed for an error.
    from difflib import get_close_matches

    keys = list(keys)
    suggestions = get_close_matches(name, keys, n=1)
    hint = f"did you mean {suggestions[0]!r}?" if suggestions else f"expected one of {', '.join(keys)}"
    return SettingsError(f"{_heading(table)}{name}: unknown key ({hint})", f"{dotted_name(table)}.{name}".strip("."))


def wrong_value(table: str, name: str, expected: str, value: Any) -> SettingsError:
    """Return the error for an invalid value."""
    key = f"{dotted_name(table)}.{name}".strip(".")
    return SettingsError(f"{_heading(table)}{name}: expected {expected}, got {_format_value(value)}", key)


def describe(kind: Any) -> str:
    """Describe a type in the terms of a settings file: `an integer`, `one of a, b`."""
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(describe(arg) for arg in args if arg is not types.NoneType))
    if origin is Annotated:
        return describe(args[0])
    if origin is Literal:
        return "one of " + ", ".join(map(str, args))
    result = kind if origin is None else origin
    if isinstance(result, type) and issubclass(result, msgspec.Struct | Mapping):
        return "a table"
    if isinstance(result, type) and result not in _NAMES and (result is Iterable or issubclass(result, Collection)):
        return "a list"
    return _NAMES.get(result, f"a {getattr(result, '__name__', str(kind))}")


def locate(path: str | Path, key: str) -> str:
    """Return `file:line` of a dotted key or its table, or the file if neither occurs in it."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return str(path)
    table, nearest, number = "", "", None
    counts: Counter[str] = Counter()
    # tomllib reports no positions. This approximation may miss keys in multi-line values; the table is then named.
    for at, line in enumerate(lines, 1):
        head = _HEAD.match(line)
        name = _QUOTES.sub("", head[1]) if head else ""
        if head and line.lstrip().startswith("[["):
            # The tables of an array are numbered from 1.
            counts[name] += 1
            name = f"{name}.{counts[name]}"
        if head:
            table = name
        elif (pair := _PAIR.match(line)) is not None:
            name = f"{table}.{_QUOTES.sub('', pair[1])}".strip(".")
        if name and len(name) > len(nearest) and f"{key}.".startswith(f"{name}."):
            nearest, number = name, at
    return str(path) if number is None else f"{path}:{number}"


def _explain(text: str, value: Any, kind: Any, table: str) -> SettingsError:
    """Build the error from an msgspec message, which lacks the names of keys and the value."""
    match = _LOCATION.search(text)
    steps = [name or index for name, index in _STEP.findall(match[1])] if match else []
    names = [table] if table else []
    for step in steps:
        if step == "..." and isinstance(value, Mapping):
            kind = (_table_arguments(kind) or (Any, Any))[1]
            step, value = _wrong_entry(value, kind)
        elif step.isdecimal() and not isinstance(value, Mapping):
            kind, value = _element(kind), value[int(step)]
            if not isinstance(value, Mapping):
                continue
            step = str(int(step) + 1)
        else:
            kind, value = _field(kind, step), value.get(step) if isinstance(value, Mapping) else None
        names.append(step)
    problem = _LOCATION.sub("", text)
    if (unknown := re.search(r"unknown field `([^`]*)`", problem)) is not None:
        return unknown_key(".".join(names), unknown[1], _fields(kind))
    if (missing := re.search(r"missing required field `([^`]*)`", problem)) is not None:
        return SettingsError(f"{_heading('.'.join(names))}{missing[1]} is required", ".".join(names))
    # Only msgspec knows bounds such as `>= 1`.
    bound = re.search(r"((?:of length )?[<>]=? \S+)$", problem)
    expected = describe(kind) + (f" {bound[1]}" if bound else "")
    *tables, name = names or [""]
    return wrong_value(".".join(tables), name, expected, value)


def _wrong_entry(entries: Mapping[str, Any], kind: Any) -> tuple[str, Any]:
    """Return the first entry of a table of tables that does not match the type."""
    for name, entry in entries.items():
        try:
            msgspec.convert(entry, kind)
        except msgspec.ValidationError:
            return name, entry
    return next(iter(entries.items()))


def _members(kind: Any) -> tuple[Any, ...]:
    """Return the members of a union; a single type counts as a union of one."""
    if get_origin(kind) is Annotated:
        return _members(get_args(kind)[0])
    return get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)


def _struct(kind: Any) -> Any:
    return next(
        (member for member in _members(kind) if isinstance(member, type) and issubclass(member, msgspec.Struct)), None
    )


def _fields(kind: Any) -> tuple[str, ...]:
    struct = _struct(kind)
    return () if struct is None else struct.__struct_encode_fields__


def _field(kind: Any, name: str) -> Any:
    struct = _struct(kind)
    if struct is None:
        return (_table_arguments(kind) or (Any, Any))[1]
    hints = get_type_hints(struct, include_extras=True)
    # The file uses the encoded names, which differ from the attributes where a Struct renames fields.
    names = dict(zip(struct.__struct_encode_fields__, struct.__struct_fields__, strict=True))
    return hints.get(names.get(name, name), Any)


def _table_arguments(kind: Any) -> tuple[Any, ...]:
    return next((get_args(member) for member in _members(kind) if get_origin(member) is dict), ())


def _element(kind: Any) -> Any:
    return next((get_args(member)[0] for member in _members(kind) if get_origin(member) in (list, tuple)), Any)


def _heading(table: str) -> str:
    return "" if not table else f"{table} " if table.startswith("[") else f"[{table}] "


def _format_value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    text = repr(value)
    return text if len(text) <= MAX_VALUE_CHARS else f"{text[: MAX_VALUE_CHARS - 1]}…"
