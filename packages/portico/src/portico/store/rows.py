"""Rows to typed values, and values to JSON.

A row becomes a Struct by the names of its columns, a tuple by their order, or anything else when there is one column. A
bare `tuple` is what the driver gives, which is quicker where there are very many; so are the plain values of a tuple
that has JSON too.
What is not a plain value is JSON in its column; `msgspec.Raw` is JSON that is kept as it is, and empty for null.
"""

from __future__ import annotations

import enum
import types
from collections.abc import Callable
from datetime import datetime
from functools import lru_cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec
from msgspec import Raw, Struct

from portico.protocol.errors import UsageError
from portico.store.errors import UnfitRow

Row = tuple[Any, ...]

_PLAIN = (str, int, float, bytes, datetime, types.NoneType, enum.Enum)


def json_column(value: Any) -> str:
    """A value for a column that holds JSON."""
    return msgspec.json.encode(value).decode()


def decode(kind: Any, columns: tuple[str, ...], rows: list[Row], *, nullable: bool = False) -> list[Any]:
    try:
        return _reader(kind, columns, nullable)(rows)
    except msgspec.DecodeError as failure:
        raise UnfitRow(f"A row ({', '.join(columns)}) does not fit {_name(kind)}: {failure}") from failure


@lru_cache(1024)
def _reader(kind: Any, columns: tuple[str, ...], nullable: bool) -> Callable[[list[Row]], list[Any]]:
    if isinstance(kind, type) and issubclass(kind, Struct):
        return _struct_reader(kind, columns)
    if kind is tuple:
        return lambda rows: rows
    if get_origin(kind) is tuple:
        return _tuple_reader(kind)
    if len(columns) != 1:
        raise UsageError(
            f"The statement gives {len(columns)} columns ({', '.join(columns)}), and one is a {_name(kind)}."
        )
    open_column = _opener(kind)
    many = list[kind | None] if nullable else list[kind]
    if open_column is None:
        return lambda rows: msgspec.convert([value for (value,) in rows], many, strict=False)
    return lambda rows: [open_column(value) for (value,) in rows]


def _tuple_reader(kind: Any) -> Callable[[list[Row]], list[Any]]:
    parts = get_args(kind)
    openers = [] if ... in parts else [_opener(one) for one in parts]
    if not any(openers):
        return lambda rows: msgspec.convert(rows, list[kind], strict=False)

    def read(rows: list[Row]) -> list[Any]:
        # What was JSON fits already, and to look at long lists once more would take as long again.
        return [
            tuple([value if opener is None else opener(value) for opener, value in zip(openers, row, strict=True)])
            for row in rows
        ]

    return read


def _struct_reader(kind: type[Struct], columns: tuple[str, ...]) -> Callable[[list[Row]], list[Any]]:
    fields = {field.name: field for field in msgspec.structs.fields(kind)}
    unknown = [column for column in columns if column not in fields]
    if unknown:
        raise UsageError(f"The statement gives {', '.join(unknown)}, and {_name(kind)} has no such field.")
    names = [fields[column].encode_name for column in columns]
    openers = [(name, _opener(fields[column].type)) for name, column in zip(names, columns, strict=True)]
    closed = [(name, opener) for name, opener in openers if opener is not None]
    many = list[kind]  # type: ignore[valid-type]

    def read(rows: list[Row]) -> list[Any]:
        found = [dict(zip(names, row, strict=True)) for row in rows]
        for values in found if closed else ():
            for name, opener in closed:
                values[name] = opener(values[name])
        return msgspec.convert(found, many, strict=False)

    return read


def _opener(kind: Any) -> Callable[[Any], Any] | None:
    """What reads a column of JSON; None for plain values."""
    if kind is Raw:
        return lambda text: Raw() if text is None else Raw(text.encode())
    if _is_plain(kind):
        return None
    decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(kind)
    return lambda text: None if text is None else decoder.decode(text)


def _is_plain(kind: Any) -> bool:
    origin = get_origin(kind)
    if origin is Annotated:
        return _is_plain(get_args(kind)[0])
    if origin is Union or origin is types.UnionType:
        return all(map(_is_plain, get_args(kind)))
    return origin is Literal or kind is None or (isinstance(kind, type) and issubclass(kind, _PLAIN))


def _name(kind: Any) -> str:
    return getattr(kind, "__name__", None) or str(kind)
