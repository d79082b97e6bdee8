"""Detection of lines that belong to the previous entry of a text log.

Indented lines do. So do the lines of a stack trace, although some are not indented: the header and last line of a
Python traceback, the exception that Java, Node and .NET loggers write below the message, `Caused by:`, and the
goroutines of a Go panic. A trace belongs to the line before it only if that line reports a problem. After any other
line it is a separate entry, so that an uncaught exception is not hidden behind `INFO started`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

# A line that starts with one of these continues an entry or is blank.
INDENTS = b" \t\r\n"
LINE_START = re.compile(rb"\n(?=[^ \t\r\n])")
# Lines that always start an entry: they begin with a number, a time, JSON, a priority or a level.
_SURE = rb"[\[({\"<*]?\d|[A-Z][a-z]{2} +\d|\{|\[(?!signal )|(?:DEBUG|INFO|NOTICE|WARN|ERROR|CRITICAL|FATAL|TRACE)\b"
SURE_START = re.compile(rb"\n(?=%b)" % _SURE)
_SURE_LINE = re.compile(_SURE)

# An unindented line belongs to a trace only near one of these.
_SIGN = re.compile(
    rb"\n(?:Traceback \(most|[ \t]+at |Caused by: |goroutine \d+ \[|Stack trace:|stack backtrace:"
    rb"|thread '[^'\n]*' (?:\(\d+\) )?pani|During handling of the above|The above exception was)"
)
_PYTHON = b"Traceback (most recent call last):"
_CHAINED = (b"During handling of the above exception", b"The above exception was the direct cause")
_LAST_LINE = re.compile(rb"[A-Za-z_][\w.]*(?:: |:?\s*\Z)")
_EXCEPTION = re.compile(rb"(?:Uncaught )?[A-Za-z_$][\w.$]*(?: \[[^\]]{1,64}\])?(?::|\s*\Z)")
_FRAME = re.compile(rb"[ \t]+at \S")
_GO_FRAME = re.compile(rb"\t\S.*\.go:\d+")
_GO = re.compile(rb"goroutine \d+ \[|created by |exit status \d|\[signal |\.\.\.additional frames elided")
_RUST = re.compile(rb".*\bthread '[^'\n]*' (?:\(\d+\) )?panicked at ")
_RUST_MORE = (b"note: ", b"stack backtrace:")
_PHP = re.compile(rb"#\d+ ")
_PROBLEM = re.compile(
    rb"\b(?:err|error|errors|fail|failed|failure|exception|warn|warning|crit|critical|fatal|panic|severe|alert|emerg|wrn"
    rb"|ftl|erro)\b|(?:\b|[\[/ ])[EWF](?:\b|\d)|Exception|Error",
    re.IGNORECASE,
)
# Trace headers are short; a long line is decided by its beginning.
_HEAD_BYTES = 512
# The last entry usually starts close to the end, so the end is searched first.
_NEAR_BYTES = 8 * 1024


def entry_starts(data: bytes, *, is_file_start: bool) -> list[int]:
    """Return the offsets where entries start in `data`, which begins at a line start, possibly within an entry."""
    first = data[:1]
    starts = [0] if first and (first not in INDENTS or (is_file_start and first not in b"\r\n")) else []
    starts += [match.end() for match in LINE_START.finditer(data)]
    if continued := set(continued_lines(data)):
        starts = [start for start in starts if start not in continued]
    return starts


def last_sure_start(data: bytes) -> int | None:
    """Return the last offset in a block, except 0, where an entry certainly starts."""
    for begin in (max(0, len(data) - _NEAR_BYTES), 0):
        matches = [match.end() for match in SURE_START.finditer(data, begin)]
        if matches:
            return matches[-1]
    return None


def continued_lines(data: bytes) -> Iterator[int]:
    """Yield the offsets of unindented lines that continue an entry, each once, in order."""
    last = 0
    sign_at = -1 if _SIGN.match(b"\n" + data[:_HEAD_BYTES]) else _next_sign(data, 0)
    while sign_at is not None:
        # The line above an indented frame names the exception, and the entry may start one line earlier.
        begin = max(last, _line_above(data, _line_above(data, sign_at + 1)))
        # Started a line above the sign, because whether a trace belongs to an entry depends on the entry's first line.
        trace = _TraceReader()
        for start, line, below in _lines(data, begin):
            last = start
            if trace.continues(line, below):
                yield start
            if start > sign_at + 1 and not trace.is_open and not _goes_on(data, start + len(line)):
                break
        else:
            return
        sign_at = _next_sign(data, last)


def _goes_on(data: bytes, end: int) -> bool:
    """Return whether a trace continues after the line that ends here, in the next line or after blank lines."""
    following = LINE_START.search(data, end)
    return bool(_SIGN.match(data, end) or (following is not None and _SIGN.match(data, following.start())))


def _next_sign(data: bytes, at: int) -> int | None:
    match = _SIGN.search(data, at)
    return None if match is None else match.start()


def _line_above(data: bytes, start: int) -> int:
    """Return the start of the last unindented line before `start`, or 0."""
    while start > 0:
        start = data.rfind(b"\n", 0, start - 1) + 1
        if data[start : start + 1] not in INDENTS:
            break
    return start


def _lines(data: bytes, begin: int) -> Iterator[tuple[int, bytes, bytes]]:
    """Yield the unindented lines from an offset on: offset, line, and the line below it."""
    while begin < len(data):
        end = data.find(b"\n", begin)
        end = len(data) if end < 0 else end
        line = data[begin : min(end, begin + _HEAD_BYTES)]
        if line and line[:1] not in INDENTS:
            yield begin, line, data[end + 1 : end + 1 + _HEAD_BYTES].partition(b"\n")[0]
        match = LINE_START.search(data, end)
        if match is None:
            return
        begin = match.end()


class _TraceReader:
    """Decides for each unindented line whether it continues the previous entry."""

    def __init__(self) -> None:
        self._head: bytes | None = None
        # Kind of trace that the last line belongs to, and whether the trace is expected to continue.
        self._kind = ""
        self.is_open = False

    def continues(self, line: bytes, below: bytes) -> bool:
        if self._head is None or _SURE_LINE.match(line) or not self._continues(line, below):
            self._start_trace(line, below)
            return False
        return True

    def _start_trace(self, line: bytes, below: bytes) -> None:
        self._head, self._kind, self.is_open = line, "", False
        if line.startswith(_PYTHON):
            self._kind, self.is_open = "python", True
        elif _GO.match(line) or line.startswith((b"panic: ", b"fatal error: ")):
            self._kind, self.is_open = "go", True
        elif _RUST.match(line):
            self._kind, self.is_open = "rust", True
        elif _FRAME.match(below):
            self._kind = "frames"

    def _continues(self, line: bytes, below: bytes) -> bool:
        if self._kind == "python":
            self._kind = "python end"
            self.is_open = False
            return _LAST_LINE.match(line) is not None
        if self._kind == "python end" and line.startswith(_CHAINED):
            self._kind, self.is_open = "chained", True
            return True
        if line.startswith(_PYTHON) and (self._kind == "chained" or self._may_have_trace()):
            self._kind, self.is_open = "python", True
            return True
        if self._kind == "go" or _GO.match(line):
            self.is_open = self._kind == "go" or self._may_have_trace()
            belongs = self.is_open and bool(_GO.match(line) or _GO_FRAME.match(below))
            self._kind = "go" if belongs else self._kind
            return belongs
        if line.startswith(b"Caused by: "):
            self._kind = "frames"
            return True
        if self._kind.startswith("rust"):
            is_message = self._kind == "rust" and (self._head or b"").rstrip().endswith(b":")
            self._kind, self.is_open = "rust end", is_message
            return is_message or line.startswith(_RUST_MORE)
        if line.startswith(b"Stack trace:") or (self._kind == "php" and _PHP.match(line)):
            self._kind, self.is_open = "php", True
            return True
        self.is_open = False
        if _FRAME.match(below) and _EXCEPTION.match(line) and self._may_have_trace():
            self._kind = "frames"
            return True
        return False

    def _may_have_trace(self) -> bool:
        """Return whether the entry's first line reports a problem and has no trace yet."""
        return self._kind == "" and _PROBLEM.search(self._head or b"") is not None
