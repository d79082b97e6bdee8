"""Content search: the lines of a file that contain a text or match a pattern."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from msgspec import Struct

from portico_services.system.anonymizer import NameIndex, decode_tokens, encode_tokens
from portico_services.system.errors import SystemToolError, require_package
from portico_services.system.files.line_ranges import redacted_blocks
from portico_services.system.path_access import READ_BLOCK_BYTES, OpenFile
from portico_services.system.results import LineMatch
from portico_services.system.text import CaseInsensitiveByteSearch, decode_lossy

MAX_PATTERN_CHARS = 500
MAX_EXCERPT_CHARS = 200
MAX_MATCHES_PER_FILE = 5
_OVERLAP_BYTES = 4096
_MAX_REGEX_BYTES = 8 * 2**20
_TRUNCATED_UTF8 = re.compile(rb"(?:[\xc0-\xdf]|[\xe0-\xef][\x80-\xbf]?|[\xf0-\xf7][\x80-\xbf]{0,2})\Z")

Search = Callable[[bytes, int], tuple[int, int] | None]
"""Find the first match in bytes from an offset on; return its start and end."""

FilePosition = tuple[int, int]
"""Byte offset in a file, and the number of the line it is in."""
FILE_START: FilePosition = (0, 1)


class ContentMatches(Struct):
    """First matching lines of a file; or the position to continue from, if time ran out before a match."""

    matches: list[LineMatch]
    rest: FilePosition | None = None


NO_MATCHES = ContentMatches([])

ContentSearch = Callable[[OpenFile, FilePosition, Callable[[], bool]], ContentMatches]
"""Search a file from a position on until time runs out; at least one block is always searched."""


def compile_search(pattern: str) -> Search:
    """Compile a case-insensitive text search, or between slashes a search for an RE2 pattern: `/fail(ed|ure)/`."""
    if not 0 < len(pattern) <= MAX_PATTERN_CHARS:
        raise SystemToolError(f"The search text must have 1 to {MAX_PATTERN_CHARS} characters.", outcome="invalid")
    if _is_pattern(pattern):
        return _regex_search(pattern[1:-1])
    text = CaseInsensitiveByteSearch(pattern)
    length = len(pattern.encode())

    def search(data: bytes, at: int) -> tuple[int, int] | None:
        result = text.find(data, at)
        return None if result < 0 else (result, result + length)

    return search


def _is_pattern(pattern: str) -> bool:
    return len(pattern) > 2 and pattern.startswith("/") and pattern.endswith("/")


def _regex_search(pattern: str) -> Search:
    re2: Any = require_package("re2", "Pattern search in file contents")
    # RE2 runs in linear time, so a hostile pattern cannot stall the server.
    options = re2.Options()
    options.max_mem = _MAX_REGEX_BYTES
    options.log_errors = False
    options.never_nl = False
    options.case_sensitive = False
    try:
        # Compile the bare pattern first, so that errors refer to the caller's text.
        re2.compile(pattern.encode(), options)
        compiled = re2.compile(f"(?m:{pattern})".encode(), options)
    except re2.error as error:
        # RE2 reports the reason, a colon, and the location, as bytes.
        reason, _, where = error.args[0].decode("utf-8", "replace").partition(": ")
        message = f"{reason}, at {where[:100]!r}" if where else reason
        raise SystemToolError(f"Invalid RE2 pattern: {message}.", outcome="invalid") from None

    def search(data: bytes, at: int) -> tuple[int, int] | None:
        match = compiled.search(data, at)
        return None if match is None else (match.start(), match.end())

    return search


class LineSearch:
    """Finds the first matching lines of a file."""

    def __init__(self, pattern: str) -> None:
        self._search = compile_search(pattern)

    def __call__(self, file: OpenFile, position: FilePosition, time_is_up: Callable[[], bool]) -> ContentMatches:
        if file.size <= READ_BLOCK_BYTES and self._rule_out(file):
            return NO_MATCHES
        blocks = BlockReader(file, position[0], time_is_up)
        matches, line = find_matching_lines(blocks, self._search, position[1])
        return ContentMatches(matches, None if matches else blocks.rest(line))

    def _rule_out(self, file: OpenFile) -> bool:
        """Return whether a small file has no match. Most files are small, and most have none."""
        # One read and one search, without splitting the file into blocks and lines.
        return self._search(file.read(0, file.size), 0) is None


class RedactedLineSearch:
    """Finds the first lines that match in their anonymized form."""

    def __init__(self, query: str, resolved: str, name_index: Callable[[], NameIndex]) -> None:
        self._search = compile_search(encode_tokens(query))
        # A file without the plain text cannot contain it in anonymized form either. Patterns allow no such conclusion.
        self._first = None if _is_pattern(query) else LineSearch(resolved)
        self._name_index = name_index

    def __call__(self, file: OpenFile, position: FilePosition, time_is_up: Callable[[], bool]) -> ContentMatches:
        if self._first is not None and not (first := self._first(file, position, time_is_up)).matches:
            return first
        blocks = BlockReader(file, position[0], time_is_up)
        matches, line = find_matching_lines(redacted_blocks(blocks, self._name_index()), self._search, position[1])
        redacted = [LineMatch(match.line, decode_tokens(match.text)) for match in matches]
        return ContentMatches(redacted, None if redacted else blocks.rest(line))


class BlockReader:
    """Reads a file in blocks from an offset on until time runs out; at least one block is always read.

    A file with NUL bytes at its start is not text and yields nothing.
    """

    def __init__(self, file: OpenFile, offset: int, time_is_up: Callable[[], bool]) -> None:
        self._file = file
        self._offset = offset
        self._time_is_up = time_is_up
        self._stopped: int | None = None
        self._last_part = b""

    def __iter__(self) -> Iterator[bytes]:
        for at in range(self._offset, self._file.size, READ_BLOCK_BYTES):
            if at > self._offset and self._time_is_up():
                self._stopped = at
                return
            self._last_part = self._file.read(at, min(READ_BLOCK_BYTES, self._file.size - at))
            # NUL bytes at the start mark binary files; their lines would be meaningless.
            if not self._last_part or (at == 0 and b"\0" in self._last_part[:1024]):
                return
            yield self._last_part

    def rest(self, line: int) -> FilePosition | None:
        """Return the position to continue from: slightly before the end of the searched part, because a match may span
        it.
        """
        if self._stopped is None:
            return None
        return self._stopped - _OVERLAP_BYTES, line - self._last_part.count(
            b"\n", len(self._last_part) - _OVERLAP_BYTES
        )


def find_matching_lines(blocks: Iterable[bytes], search: Search, line: int = 1) -> tuple[list[LineMatch], int]:
    """Return the first matching lines, and the number of the line that the last block ends in."""
    results: list[LineMatch] = []
    rest = b""
    following = iter(blocks)
    block = next(following, None)
    while block is not None and len(results) < MAX_MATCHES_PER_FILE:
        data, block = rest + block if rest else block, next(following, None)
        # A match may span two blocks, so the end of a block is searched again with the next one.
        keep = 0 if block is None else min(_OVERLAP_BYTES, len(data))
        line = _collect(data, len(data) - keep, search, line, results)
        rest = data[len(data) - keep :]
    return results[:MAX_MATCHES_PER_FILE], line


def _collect(data: bytes, until: int, search: Search, line: int, matches: list[LineMatch]) -> int:
    """Append the matches that start before `until`, one per line. Return the number of the line that contains
    `until`.
    """
    at = 0
    while (
        at < until and len(matches) < MAX_MATCHES_PER_FILE and (hit := search(data, at)) is not None and hit[0] < until
    ):
        start, stop = hit
        line += data.count(b"\n", at, start)
        begin = data.rfind(b"\n", 0, start) + 1
        end = data.find(b"\n", max(start, stop - 1))
        end = len(data) if end < 0 else end
        if not matches or matches[-1].line != line:
            matches.append(LineMatch(line, _cut_excerpt(data[begin:end], start - begin)))
        line += data.count(b"\n", start, min(end + 1, until))
        at = end + 1
    return line + (data.count(b"\n", at, until) if at < until else 0)


def _cut_excerpt(line: bytes, at: int) -> str:
    """Return a line, or the relevant part of a long one."""
    if len(line) > MAX_EXCERPT_CHARS:
        begin = max(0, at - MAX_EXCERPT_CHARS // 4)
        line = line[begin : begin + MAX_EXCERPT_CHARS]
        # Do not cut within a UTF-8 character.
        line = line[next((n for n, byte in enumerate(line[:4]) if byte & 0xC0 != 0x80), 0) :]
        line = _TRUNCATED_UTF8.sub(b"", line)
    return decode_lossy(line).strip()
