"""Tracebacks of a client's code: only its own lines, and no path of this machine."""

from __future__ import annotations

import linecache
import traceback
from types import TracebackType

from portico.services.live.display import one_line, shortened

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
