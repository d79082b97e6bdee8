"""Rendering of values as text, JSON, tables and images. It runs in the sandbox."""

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

from portico_services.livepython.sandbox.limits import SandboxLimits

MAX_ROWS = 60
MAX_COLUMNS = 30
MAX_CELL_CHARS = 200
MAX_JSON_DEPTH = 32
# Integers beyond 64 bits do not survive every JSON parser.
_INTEGERS = range(-(2**63), 2**64)

PNG, JPEG = b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff"


def replace_surrogates(text: str) -> str:
    """Escape lone surrogates, which cannot be encoded as UTF-8."""
    return text.encode("utf-8", "backslashreplace").decode()


def truncate(text: str, limit: int) -> str:
    if len(text) <= limit:
        return replace_surrogates(text)
    return replace_surrogates(text[:limit]) + f"\n[… {len(text) - limit:,} more characters]"


def truncate_line(text: str, limit: int = MAX_CELL_CHARS) -> str:
    text = " ".join(text.split())
    return replace_surrogates(text if len(text) <= limit else text[: limit - 1] + "…")


# Attributes read directly from the type, since a metaclass could run code on attribute access.
_CLASS_GETTERS = {
    name: vars(type)[name].__get__
    for name in ("__name__", "__qualname__", "__module__", "__base__", "__bases__", "__mro__", "__dict__")
}


def class_attribute(cls: type, name: str) -> Any:
    """Return an attribute that every class has, bypassing the metaclass."""
    return _CLASS_GETTERS[name](cls)


def type_name(value: Any) -> str:
    """Return the class name of a value."""
    return str(class_attribute(type(value), "__name__"))


def safe_repr(value: Any) -> str:
    """Return the repr of a value, or a placeholder if that raises."""
    try:
        text = repr(value)
        return text if type(text) is str else str.__str__(text)
    except Exception as failure:
        return f"<{type_name(value)} object, and its repr failed: {type_name(failure)}>"


def to_text(value: Any, limits: SandboxLimits) -> str:
    table = to_table(value)
    return truncate(table_to_markdown(*table) if table is not None else safe_repr(value), limits.max_text_chars)


# JSON


def to_json_or_none(value: Any, limit: int) -> str | None:
    """Return the value as JSON text, or None if it is not entirely JSON or too long.

    Tuples become lists, and numpy scalars numbers.
    """
    try:
        if type(value).__module__ == "numpy" and getattr(value, "ndim", None) == 0:
            value = value.item()
        if not _is_json(value, MAX_JSON_DEPTH, [limit]):
            return None
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        return text if len(text.encode()) <= limit else None
    except (ValueError, RecursionError, MemoryError):
        return None


def _is_json(value: Any, depth: int, left: list[int]) -> bool:
    """Return whether a value is JSON. `left` is the remaining budget: each member takes at least two bytes."""
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
        return all(_is_json(item, depth - 1, left) for item in value)
    if kind is dict:
        return all(type(key) is str and _is_json(item, depth - 1, left) for key, item in value.items())
    return False


# Tables

Table = tuple[list[str], list[list[Any]], int]


def to_table(value: Any) -> Table | None:
    """Return columns, rows and the total row count of a pandas or polars data frame, or None for other values."""
    kind = type(value)
    if kind.__name__ != "DataFrame" or kind.__module__.partition(".")[0] not in ("pandas", "polars"):
        return None
    try:
        columns = [str(name) for name in value.columns[:MAX_COLUMNS]]
        # Include the index as the first column, unless it is the default 0-based range.
        named = hasattr(value, "index") and type(value.index).__name__ != "RangeIndex"
        rows = value.itertuples(index=named) if hasattr(value, "itertuples") else value.iter_rows()
        limit = MAX_COLUMNS + named
        cells = [[_to_plain_value(cell) for cell in islice(row, limit)] for row in islice(rows, MAX_ROWS)]
        return [str(value.index.name or ""), *columns] if named else columns, cells, len(value)
    except Exception:
        return None  # an unexpected kind of frame: fall back to its repr


def _to_plain_value(cell: Any) -> Any:
    item = getattr(cell, "item", None)
    value = item() if callable(item) else cell
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if type(value) in (int, float, str, bool, type(None)) else truncate_line(str(value))


def table_to_markdown(columns: list[str], rows: list[list[Any]], total: int) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    text = "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines)
    return text if total <= len(rows) else f"{text}\n[{len(rows)} of {total:,} rows]"


def _cell(value: Any) -> str:
    return "" if value is None else truncate_line(str(value)).replace("|", "\\|")


# Pictures


def render_images(value: Any, limits: SandboxLimits, *, figures: bool = True) -> list[dict[str, str]]:
    """Return images of the value, if it can render itself, and of every open pyplot figure, which is then closed."""
    results: list[dict[str, str]] = []
    drawn = (data for data in _collect_figures(value, figures) if data is not None)
    for data in islice(drawn, limits.max_images):
        kind = "image/png" if data.startswith(PNG) else "image/jpeg" if data.startswith(JPEG) else None
        if kind is not None and len(data) <= limits.max_image_bytes:
            results.append({"mimeType": kind, "data": base64.b64encode(data).decode()})
    return results


def _collect_figures(value: Any, figures: bool) -> Iterator[bytes | None]:
    pyplot = sys.modules.get("matplotlib.pyplot") if figures else None
    open_figures = [pyplot.figure(number) for number in pyplot.get_fignums()] if pyplot is not None else []
    if type(value).__module__.startswith("matplotlib") and hasattr(value, "savefig") and value not in open_figures:
        open_figures.append(value)
    for figure in open_figures:
        yield _figure_to_png(figure)
    if pyplot is not None:
        pyplot.close("all")
    methods = [name for name in ("_repr_png_", "_repr_jpeg_") if hasattr(type(value), name)]
    yield next((data for data in (_call_repr_method(value, name) for name in methods) if data is not None), None)


def _figure_to_png(figure: Any) -> bytes | None:
    try:
        file = io.BytesIO()
        figure.savefig(file, format="png", bbox_inches="tight")
        return file.getvalue()
    except Exception:
        return None  # no image; the text of the value is still shown


def _call_repr_method(value: Any, name: str) -> bytes | None:
    try:
        rendered = getattr(value, name)()
        data = rendered[0] if isinstance(rendered, tuple) else rendered
        return data if isinstance(data, bytes) else None
    except Exception:
        return None


# Tracebacks of client code: only its own lines, and no paths of this machine


MAX_TRACEBACK_FRAMES = 8
MAX_MESSAGE_CHARS = 2000
MAX_CHAINED_EXCEPTIONS = 5

# File name of evaluated code, followed by a number.
EVALUATION_FILENAME_PREFIX = "<evaluate "


def format_exception(failure: BaseException) -> str:
    """Format an exception with its location in the user's code."""
    if isinstance(failure, SyntaxError) and (failure.filename or "").startswith(EVALUATION_FILENAME_PREFIX):
        return _syntax(failure)
    lines = [_name(failure), *_frames(failure.__traceback__)]
    if isinstance(failure, BaseExceptionGroup):
        lines += [f"  - {_name(part)}" for part in failure.exceptions[:MAX_CHAINED_EXCEPTIONS]]
    cause = failure.__cause__
    if cause is not None and cause is not failure:
        lines.append(f"  because of {_name(cause)}")
    return "\n".join(lines)


def _name(failure: BaseException) -> str:
    try:
        message = str(failure)
    except Exception:
        message = ""  # its `__str__` raises
    name = type(failure).__name__
    return truncate(f"{name}: {message}" if message else name, MAX_MESSAGE_CHARS)


def _frames(trace: TracebackType | None) -> list[str]:
    own = []
    for frame, line in traceback.walk_tb(trace):
        code = frame.f_code
        if code.co_filename.startswith(EVALUATION_FILENAME_PREFIX):
            own.append((code.co_filename, line, code.co_name))
    visible = (
        own
        if len(own) <= MAX_TRACEBACK_FRAMES
        else [*own[: MAX_TRACEBACK_FRAMES // 2], None, *own[-MAX_TRACEBACK_FRAMES // 2 :]]
    )
    last = own[-1][0] if own else ""
    lines: list[str] = []
    for item in visible:
        if item is None:
            lines.append(f"  … {len(own) - MAX_TRACEBACK_FRAMES:,} more")
            continue
        name, number, function = item
        where = f"  line {number}" + ("" if function == "<module>" else f", in {function}")
        # Name the evaluation only if it differs from the current one.
        lines.append(where if name == last else f"{where} ({name.strip('<>')})")
        source = linecache.getline(name, number).strip()
        if source:
            lines.append(f"    {truncate_line(source)}")
    return lines


def _syntax(failure: SyntaxError) -> str:
    lines = [f"{type(failure).__name__}: {truncate_line(failure.msg or 'invalid syntax')} (line {failure.lineno})"]
    if failure.text:
        text = failure.text.rstrip("\n")
        stripped = text.lstrip()
        lines.append(f"    {truncate_line(stripped)}")
        if failure.offset and len(stripped) < 150:
            lines.append("    " + " " * max(0, failure.offset - 1 - (len(text) - len(stripped))) + "^")
    return "\n".join(lines)
