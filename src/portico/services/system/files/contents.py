"""Looking into files: for a text, or for a pattern with an engine whose time is linear in the text."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Protocol

from portico.services.system.containment import BLOCK, OpenFile
from portico.services.system.errors import InvalidArgument, package
from portico.services.system.results import TextMatch
from portico.services.system.text import decoded

LARGEST_FILE = 64 * 2**20
LONGEST_PATTERN = 500
LONGEST_EXCERPT = 200
MOST_MATCHES = 5
_OVERLAP = 4096
_MEMORY = 8 * 2**20


class _Found(Protocol):
    def start(self) -> int: ...
    def end(self) -> int: ...


Search = Callable[[bytes, int], _Found | None]
"""The first place in some bytes, from an offset on."""


def searcher(what: str) -> Search:
    """For a text, in whatever case; or between slashes for a pattern in the syntax of RE2: `/fail(ed|ure)/`."""
    if not 0 < len(what) <= LONGEST_PATTERN:
        raise InvalidArgument(f"What to look for has 1 to {LONGEST_PATTERN} characters.")
    if len(what) > 2 and what.startswith("/") and what.endswith("/"):
        return _by_pattern(what[1:-1])
    # A literal text: there is nothing in it for `re` to go back for.
    literal = re.compile(re.escape(what.encode()), re.IGNORECASE)
    return literal.search


def _by_pattern(pattern: str) -> Search:
    re2: Any = package("re2", "Looking for a pattern in the contents of files")
    options = re2.Options()
    options.max_mem = _MEMORY
    options.log_errors = False
    options.never_nl = False
    options.case_sensitive = False
    try:
        compiled = re2.compile(f"(?m:{pattern})".encode(), options)
    except re2.error as error:
        raise InvalidArgument(f"The pattern cannot be used: {str(error)[:200]}.") from None
    return lambda data, at: compiled.search(data, at)


def matches(file: OpenFile, search: Search, time_is_up: Callable[[], bool]) -> list[TextMatch]:
    """The first lines that match. A file with zero bytes in its beginning is no text and has none."""
    found: list[TextMatch] = []
    lines = 1
    rest = b""
    for number, block in enumerate(file.blocks()):
        if (number == 0 and b"\0" in block[:1024]) or number * BLOCK >= LARGEST_FILE or time_is_up():
            break
        last = (number + 1) * BLOCK >= file.size
        data = rest + block
        # A match may lie across two blocks, so the end of one is looked at again with the next.
        keep = 0 if last else min(_OVERLAP, len(data))
        lines = _collect(data, len(data) - keep, search, lines, found)
        if len(found) >= MOST_MATCHES:
            break
        rest = data[len(data) - keep :]
    return found[:MOST_MATCHES]


def _collect(data: bytes, until: int, search: Search, line: int, found: list[TextMatch]) -> int:
    """Matches that begin before `until`, one for each line. Gives the number of the line that `until` is in."""
    at = 0
    while at < until and len(found) < MOST_MATCHES and (hit := search(data, at)) is not None and hit.start() < until:
        start = hit.start()
        line += data.count(b"\n", at, start)
        begin = data.rfind(b"\n", 0, start) + 1
        end = data.find(b"\n", max(start, hit.end() - 1))
        end = len(data) if end < 0 else end
        if not found or found[-1].line != line:
            found.append(TextMatch(line, _excerpt(data[begin:end], start - begin)))
        line += data.count(b"\n", start, min(end + 1, until))
        at = end + 1
    return line + (data.count(b"\n", at, until) if at < until else 0)


def _excerpt(line: bytes, at: int) -> str:
    """A line, or the part of a long one that matters."""
    if len(line) > LONGEST_EXCERPT:
        begin = max(0, at - LONGEST_EXCERPT // 4)
        line = line[begin : begin + LONGEST_EXCERPT]
    return decoded(line).strip()
