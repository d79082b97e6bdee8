"""The contents of files: which lines of a file have a text, or fit a pattern."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from msgspec import Struct

from portico_services.system.anonymizer import Learned, legible, opaque
from portico_services.system.byte_search import ByteSearch
from portico_services.system.errors import InvalidArgument, package
from portico_services.system.files.line_ranges import shown_blocks
from portico_services.system.path_access import BLOCK, OpenFile
from portico_services.system.results import TextMatch
from portico_services.system.text import decoded

LONGEST_PATTERN = 500
LONGEST_EXCERPT = 200
MOST_MATCHES = 5
_OVERLAP = 4096
_MEMORY = 8 * 2**20
_HALF_CHARACTER = re.compile(rb"(?:[\xc0-\xdf]|[\xe0-\xef][\x80-\xbf]?|[\xf0-\xf7][\x80-\xbf]{0,2})\Z")

Search = Callable[[bytes, int], tuple[int, int] | None]
"""The first place in some bytes, from an offset on: where it begins and ends."""

FilePlace = tuple[int, int]
"""A byte of a file, and the number of the line it is in."""
BEGINNING: FilePlace = (0, 1)


class Looked(Struct):
    """The first lines of a file that match; and where to go on, if there was no time for the rest and none matched."""

    matches: list[TextMatch]
    rest: FilePlace | None = None


NOTHING = Looked([])

ContentSearch = Callable[[OpenFile, FilePlace, Callable[[], bool]], Looked]
"""Looks at a file from a place on, as long as there is time; but at a part of it in any case."""


def searcher(what: str) -> Search:
    """For a text, in whatever case; or between slashes for a pattern in the syntax of RE2: `/fail(ed|ure)/`."""
    if not 0 < len(what) <= LONGEST_PATTERN:
        raise InvalidArgument(f"What to look for has 1 to {LONGEST_PATTERN} characters.")
    if _is_pattern(what):
        return _by_pattern(what[1:-1])
    text = ByteSearch(what)
    length = len(what.encode())

    def search(data: bytes, at: int) -> tuple[int, int] | None:
        found = text.find(data, at)
        return None if found < 0 else (found, found + length)

    return search


def _is_pattern(what: str) -> bool:
    return len(what) > 2 and what.startswith("/") and what.endswith("/")


def _by_pattern(pattern: str) -> Search:
    re2: Any = package("re2", "Looking for a pattern in the contents of files")
    options = re2.Options()
    options.max_mem = _MEMORY
    options.log_errors = False
    options.never_nl = False
    options.case_sensitive = False
    try:
        re2.compile(pattern.encode(), options)  # by itself, so that what is wrong is told of what was written
        compiled = re2.compile(f"(?m:{pattern})".encode(), options)
    except re2.error as error:
        # RE2 says what is wrong, a colon, and where; in bytes.
        what, _, where = error.args[0].decode("utf-8", "replace").partition(": ")
        said = f"{what}, at {where[:100]!r}" if where else what
        raise InvalidArgument(f"The pattern is not one that RE2 can read: {said}.") from None

    def search(data: bytes, at: int) -> tuple[int, int] | None:
        found = compiled.search(data, at)
        return None if found is None else (found.start(), found.end())

    return search


class LineSearch:
    """The first lines of a file that match."""

    def __init__(self, what: str) -> None:
        self._search = searcher(what)

    def __call__(self, file: OpenFile, place: FilePlace, time_is_up: Callable[[], bool]) -> Looked:
        if file.size <= BLOCK and self._lacks(file):
            return NOTHING
        blocks = TextBlocks(file, place[0], time_is_up)
        found, line = matches(blocks, self._search, place[1])
        return Looked(found, None if found else blocks.rest(line))

    def _lacks(self, file: OpenFile) -> bool:
        """Whether a small file, as most are, has nothing: that is found out without a detour."""
        return self._search(file.read(0, file.size), 0) is None


class ShownLineSearch:
    """The first lines that match as they would be shown, with tokens for names."""

    def __init__(self, asked: str, meant: str, learned: Callable[[], Learned]) -> None:
        self._search = searcher(opaque(asked))
        # A file that lacks a text lacks it however it is shown; of a pattern nothing of the kind can be said.
        self._first = None if _is_pattern(asked) else LineSearch(meant)
        self._learned = learned

    def __call__(self, file: OpenFile, place: FilePlace, time_is_up: Callable[[], bool]) -> Looked:
        if self._first is not None and not (first := self._first(file, place, time_is_up)).matches:
            return first
        blocks = TextBlocks(file, place[0], time_is_up)
        found, line = matches(shown_blocks(blocks, self._learned()), self._search, place[1])
        shown = [TextMatch(match.line, legible(match.text)) for match in found]
        return Looked(shown, None if shown else blocks.rest(line))


class TextBlocks:
    """A file bit by bit, from an offset on, as long as there is time; one block there is in any case.

    One with zero bytes in its beginning is no text and has nothing.
    """

    def __init__(self, file: OpenFile, offset: int, time_is_up: Callable[[], bool]) -> None:
        self._file = file
        self._offset = offset
        self._time_is_up = time_is_up
        self._stopped: int | None = None
        self._last = b""

    def __iter__(self) -> Iterator[bytes]:
        for at in range(self._offset, self._file.size, BLOCK):
            if at > self._offset and self._time_is_up():
                self._stopped = at
                return
            self._last = self._file.read(at, min(BLOCK, self._file.size - at))
            if not self._last or (at == 0 and b"\0" in self._last[:1024]):
                return
            yield self._last

    def rest(self, line: int) -> FilePlace | None:
        """Where to go on: a little before the end of what was looked at, for a match may lie across it."""
        if self._stopped is None:
            return None
        return self._stopped - _OVERLAP, line - self._last.count(b"\n", len(self._last) - _OVERLAP)


def matches(blocks: Iterable[bytes], search: Search, line: int = 1) -> tuple[list[TextMatch], int]:
    """The first lines that match, and the number of the line that the last block ends in."""
    found: list[TextMatch] = []
    rest = b""
    following = iter(blocks)
    block = next(following, None)
    while block is not None and len(found) < MOST_MATCHES:
        data, block = rest + block if rest else block, next(following, None)
        # A match may lie across two blocks, so the end of one is looked at again with the next.
        keep = 0 if block is None else min(_OVERLAP, len(data))
        line = _collect(data, len(data) - keep, search, line, found)
        rest = data[len(data) - keep :]
    return found[:MOST_MATCHES], line


def _collect(data: bytes, until: int, search: Search, line: int, found: list[TextMatch]) -> int:
    """Matches that begin before `until`, one for each line. Gives the number of the line that `until` is in."""
    at = 0
    while at < until and len(found) < MOST_MATCHES and (hit := search(data, at)) is not None and hit[0] < until:
        start, stop = hit
        line += data.count(b"\n", at, start)
        begin = data.rfind(b"\n", 0, start) + 1
        end = data.find(b"\n", max(start, stop - 1))
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
        # Not from the middle of a character, nor to there.
        line = line[next((n for n, byte in enumerate(line[:4]) if byte & 0xC0 != 0x80), 0) :]
        line = _HALF_CHARACTER.sub(b"", line)
    return decoded(line).strip()
