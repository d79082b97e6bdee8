"""Conversion of rows to typed values, and of values to JSON.

A row becomes a Struct by column name, a tuple by position, or any other type if there is one column. A bare `tuple` is
the driver's row, unchecked, which is faster for many rows; so are the plain values of a tuple that also contains JSON.
Values that are not plain are JSON in their column; `msgspec.Raw` is JSON that is not decoded, and empty for null.
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
from portico.store.errors import RowMismatch

Row = tuple[Any, ...]

_PLAIN_TYPES = (str, int, float, bytes, datetime, types.NoneType, enum.Enum)


def encode_json_column(value: Any) -> str:
    """Encode a value for a JSON column."""
    return msgspec.json.encode(value).decode()


def decode_rows(kind: Any, columns: tuple[str, ...], rows: list[Row], *, nullable: bool = False) -> list[Any]:
    """Convert rows to a type. Raises RowMismatch."""
    try:
        return _reader(kind, columns, nullable)(rows)
    except (msgspec.DecodeError, RecursionError) as failure:
        raise RowMismatch(f"A row ({', '.join(columns)}) does not match {_name(kind)}: {failure}") from failure


# Reading a type takes longer than converting a row; statements and types are fixed by the code.
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
            f"The statement returns {len(columns)} columns ({', '.join(columns)}), but {_name(kind)} needs exactly one."
        )
    decode = _column_decoder(kind)
    list_type = list[kind | None] if nullable else list[kind]
    if decode is None:
        # strict=False: SQLite has no booleans and stores them as 0 and 1.
        return lambda rows: msgspec.convert([value for (value,) in rows], list_type, strict=False)
    return lambda rows: [decode(value) for (value,) in rows]


def _tuple_reader(kind: Any) -> Callable[[list[Row]], list[Any]]:
    element_types = get_args(kind)
    decoders = [] if ... in element_types else [_column_decoder(part) for part in element_types]
    if not any(decoders):
        return lambda rows: msgspec.convert(rows, list[kind], strict=False)

    def read(rows: list[Row]) -> list[Any]:
        # Decoded JSON is already valid, and checking long lists again would double the time.
        return [
            tuple([value if decoder is None else decoder(value) for decoder, value in zip(decoders, row, strict=True)])
            for row in rows
        ]

    return read


def _struct_reader(kind: type[Struct], columns: tuple[str, ...]) -> Callable[[list[Row]], list[Any]]:
    fields = {field.name: field for field in msgspec.structs.fields(kind)}
    unknown = [column for column in columns if column not in fields]
    if unknown:
        raise UsageError(f"The statement returns {', '.join(unknown)}, which {_name(kind)} does not have.")
    # msgspec converts by encoded names, which differ where a Struct renames its fields.
    names = [fields[column].encode_name for column in columns]
    decoders = [(name, _column_decoder(fields[column].type)) for name, column in zip(names, columns, strict=True)]
    json_columns = [(name, decoder) for name, decoder in decoders if decoder is not None]
    list_type = list[kind]  # type: ignore[valid-type]

    def read(rows: list[Row]) -> list[Any]:
        result = [dict(zip(names, row, strict=True)) for row in rows]
        for values in result if json_columns else ():
            for name, decoder in json_columns:
                values[name] = decoder(values[name])
        return msgspec.convert(result, list_type, strict=False)

    return read


def _column_decoder(kind: Any) -> Callable[[Any], Any] | None:
    """Return the decoder of a JSON column, or None for plain values."""
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
    return origin is Literal or kind is None or (isinstance(kind, type) and issubclass(kind, _PLAIN_TYPES))


def _name(kind: Any) -> str:
    return getattr(kind, "__name__", None) or str(kind)
