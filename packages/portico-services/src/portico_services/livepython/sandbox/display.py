"""How a value is shown: as text, as JSON if it is that, as a table, as pictures. Code in the jail uses this."""

from __future__ import annotations

import base64
import io
import json
import linecache
import math
import sys
import traceback
from collections.abc import Iterator
from itertools import islice
from types import TracebackType
from typing import Any

from portico_services.livepython.sandbox.limits import Limits

MOST_ROWS = 60
MOST_COLUMNS = 30
LONGEST_CELL = 200
DEEPEST = 32
# Beyond these an integer is not the same in every JSON reader.
_INTEGERS = range(-(2**63), 2**64)

PNG, JPEG = b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff"


def clean(text: str) -> str:
    """Text that can be sent: half a surrogate pair cannot."""
    return text.encode("utf-8", "backslashreplace").decode()


def shortened(text: str, most: int) -> str:
    if len(text) <= most:
        return clean(text)
    return clean(text[:most]) + f"\n[… {len(text) - most:,} more characters]"


def one_line(text: str, most: int = LONGEST_CELL) -> str:
    text = " ".join(text.split())
    return clean(text if len(text) <= most else text[: most - 1] + "…")


# What a class has, past a metaclass that would run code when it is asked.
_OF_CLASS = {
    name: vars(type)[name].__get__
    for name in ("__name__", "__qualname__", "__module__", "__base__", "__bases__", "__mro__", "__dict__")
}


def of_class(cls: type, name: str) -> Any:
    """A member that every class has, as Python itself keeps it."""
    return _OF_CLASS[name](cls)


def kind_name(value: Any) -> str:
    """The name of the class of a value."""
    return str(of_class(type(value), "__name__"))


def repr_of(value: Any) -> str:
    """What the value says of itself, also if it will not."""
    try:
        said = repr(value)
        return said if type(said) is str else str.__str__(said)
    except Exception as failure:
        return f"<{kind_name(value)} object, and its repr failed: {kind_name(failure)}>"


def text_of(value: Any, limits: Limits) -> str:
    table = table_of(value)
    return shortened(markdown(*table) if table is not None else repr_of(value), limits.text)


# JSON


def json_of(value: Any, most: int) -> str | None:
    """The value as JSON, if it is JSON, all of it, and not too long. A tuple is a list, a number of numpy a number."""
    try:
        if type(value).__module__ == "numpy" and getattr(value, "ndim", None) == 0:
            value = value.item()
        if not _is_json(value, DEEPEST, [most]):
            return None
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        return text if len(text.encode()) <= most else None
    except (ValueError, RecursionError, MemoryError):
        return None


def _is_json(value: Any, depth: int, left: list[int]) -> bool:
    """`left` is how many more members are looked at: each takes two bytes at least."""
    left[0] -= 2
    if left[0] < 0 or depth < 0:
        return False
    kind = type(value)
    if value is None or kind is bool or kind is str:
        return True
    if kind is int:
        return value in _INTEGERS
    if kind is float:
        return math.isfinite(value)
    if kind is list or kind is tuple:
        return all(_is_json(one, depth - 1, left) for one in value)
    if kind is dict:
        return all(type(key) is str and _is_json(one, depth - 1, left) for key, one in value.items())
    return False


# Tables

Table = tuple[list[str], list[list[Any]], int]


def table_of(value: Any) -> Table | None:
    """Columns, rows and how many rows there are in all, of what pandas and polars call a frame."""
    kind = type(value)
    if kind.__name__ != "DataFrame" or kind.__module__.partition(".")[0] not in ("pandas", "polars"):
        return None
    try:
        columns = [str(name) for name in value.columns[:MOST_COLUMNS]]
        # Rows that have names begin with them; those that have numbers from 0 on need not.
        named = hasattr(value, "index") and type(value.index).__name__ != "RangeIndex"
        rows = value.itertuples(index=named) if hasattr(value, "itertuples") else value.iter_rows()
        most = MOST_COLUMNS + named
        shown = [[_plain(cell) for cell in islice(row, most)] for row in islice(rows, MOST_ROWS)]
        return [str(value.index.name or ""), *columns] if named else columns, shown, len(value)
    except Exception:
        return None  # a frame of another kind than we know: its repr is still there


def _plain(cell: Any) -> Any:
    item = getattr(cell, "item", None)
    value = item() if callable(item) else cell
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if type(value) in (int, float, str, bool, type(None)) else one_line(str(value))


def markdown(columns: list[str], rows: list[list[Any]], total: int) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    text = "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines)
    return text if total <= len(rows) else f"{text}\n[{len(rows)} of {total:,} rows]"


def _cell(value: Any) -> str:
    return "" if value is None else one_line(str(value)).replace("|", "\\|")


# Pictures


def pictures_of(value: Any, limits: Limits, *, figures: bool = True) -> list[dict[str, str]]:
    """The value as a picture, if it can draw itself, and every figure that pyplot has open, which is then closed."""
    found: list[dict[str, str]] = []
    drawn = (data for data in _drawn(value, figures) if data is not None)
    for data in islice(drawn, limits.pictures):
        kind = "image/png" if data.startswith(PNG) else "image/jpeg" if data.startswith(JPEG) else None
        if kind is not None and len(data) <= limits.picture:
            found.append({"mimeType": kind, "data": base64.b64encode(data).decode()})
    return found


def _drawn(value: Any, figures: bool) -> Iterator[bytes | None]:
    pyplot = sys.modules.get("matplotlib.pyplot") if figures else None
    shown = [pyplot.figure(number) for number in pyplot.get_fignums()] if pyplot is not None else []
    if type(value).__module__.startswith("matplotlib") and hasattr(value, "savefig") and value not in shown:
        shown.append(value)
    for figure in shown:
        yield _saved(figure)
    if pyplot is not None:
        pyplot.close("all")
    ways = [name for name in ("_repr_png_", "_repr_jpeg_") if hasattr(type(value), name)]
    yield next((data for data in (_asked(value, name) for name in ways) if data is not None), None)


def _saved(figure: Any) -> bytes | None:
    try:
        file = io.BytesIO()
        figure.savefig(file, format="png", bbox_inches="tight")
        return file.getvalue()
    except Exception:
        return None  # no picture; the text of the value is shown all the same


def _asked(value: Any, name: str) -> bytes | None:
    try:
        said = getattr(value, name)()
        data = said[0] if isinstance(said, tuple) else said
        return data if isinstance(data, bytes) else None
    except Exception:
        return None


# Tracebacks of a client's code: only its own lines, and no path of this machine


MOST_FRAMES = 8
LONGEST_MESSAGE = 2000
MOST_PARTS = 5

# Code that was given to us has this for a file name, and a number behind it.
OWN = "<evaluate "


def told(failure: BaseException) -> str:
    """The exception, and where it came from in the user's own code."""
    if isinstance(failure, SyntaxError) and (failure.filename or "").startswith(OWN):
        return _syntax(failure)
    lines = [_name(failure), *_frames(failure.__traceback__)]
    if isinstance(failure, BaseExceptionGroup):
        lines += [f"  - {_name(part)}" for part in failure.exceptions[:MOST_PARTS]]
    cause = failure.__cause__
    if cause is not None and cause is not failure:
        lines.append(f"  because of {_name(cause)}")
    return "\n".join(lines)


def _name(failure: BaseException) -> str:
    try:
        message = str(failure)
    except Exception:
        message = ""  # an exception that cannot say what it is
    name = type(failure).__name__
    return shortened(f"{name}: {message}" if message else name, LONGEST_MESSAGE)


def _frames(trace: TracebackType | None) -> list[str]:
    own = []
    for frame, line in traceback.walk_tb(trace):
        code = frame.f_code
        if code.co_filename.startswith(OWN):
            own.append((code.co_filename, line, code.co_name))
    shown = own if len(own) <= MOST_FRAMES else [*own[: MOST_FRAMES // 2], None, *own[-MOST_FRAMES // 2 :]]
    last = own[-1][0] if own else ""
    lines: list[str] = []
    for one in shown:
        if one is None:
            lines.append(f"  … {len(own) - MOST_FRAMES:,} more")
            continue
        name, number, function = one
        where = f"  line {number}" + ("" if function == "<module>" else f", in {function}")
        # Which evaluation it was is only worth a word if it was another one.
        lines.append(where if name == last else f"{where} ({name.strip('<>')})")
        source = linecache.getline(name, number).strip()
        if source:
            lines.append(f"    {one_line(source)}")
    return lines


def _syntax(failure: SyntaxError) -> str:
    lines = [f"{type(failure).__name__}: {one_line(failure.msg or 'invalid syntax')} (line {failure.lineno})"]
    if failure.text:
        text = failure.text.rstrip("\n")
        stripped = text.lstrip()
        lines.append(f"    {one_line(stripped)}")
        if failure.offset and len(stripped) < 150:
            lines.append("    " + " " * max(0, failure.offset - 1 - (len(text) - len(stripped))) + "^")
    return "\n".join(lines)
