"""Text log: a file with its rotated predecessors, read from the end."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from portico_services.system.errors import NotFound, SystemToolError
from portico_services.system.logs import tail
from portico_services.system.logs.continuations import last_sure_start
from portico_services.system.logs.entries import (
    COUNT_TIMEOUT_SECONDS,
    EventLog,
    LogEntry,
    LogPosition,
    LogQuery,
    ScanStep,
    TailResult,
    format_iso,
)
from portico_services.system.logs.level_search import LevelSearch
from portico_services.system.logs.line_counts import LINE_COUNTER
from portico_services.system.logs.literal_search import BLOCK_BYTES, EntrySearch, TextSearch, literal_part, matching
from portico_services.system.logs.text_file import (
    COMPRESSED_SUFFIXES,
    MAX_ENTRY_SCAN_BYTES,
    TextLogFile,
    find_entry,
    scan_entries,
)
from portico_services.system.logs.time_search import find_time_window
from portico_services.system.logs.timestamps import DAY_US
from portico_services.system.path_access import AllowedPaths, OpenFile

# `app.log`, `app.log.1`, `app.log-20260102`, `app.log.2.gz`: the stem identifies the chain.
_NAME = re.compile(r"(?P<stem>.+?)(?:[.-](?P<number>\d{1,8}))?(?P<packed>\.(?:gz|xz|zst|bz2))?$")
FIRST_STRETCH_BYTES = 64 * 1024
# Formats that other readers handle, or that are binary.
_NOT_TEXT = (".journal", ".journal~", ".evtx", ".db", ".sqlite", ".dat")


class RotatedFiles(Struct):
    """File with its rotated predecessors, newest first."""

    stem: str
    paths: list[str]


class TextLog(EventLog):
    """Log of one rotation chain.

    A file that is not text is reported as a problem, unless it was found in a directory, where such files are expected.
    """

    def __init__(
        self,
        name: str,
        description: str,
        roots: AllowedPaths,
        chain: Callable[[], RotatedFiles],
        *,
        is_found: bool = False,
    ) -> None:
        super().__init__(name, description)
        self._roots = roots
        self._chain = chain
        self._is_found = is_found

    def scan_newest_first(self, query: LogQuery, after: LogPosition, problems: list[str]) -> Iterator[ScanStep]:
        # Without years in its lines, the time of the last page bounds the times of all earlier lines.
        newest = None if after is None else after[2]
        for part in self._select_files(query, problems):
            if not part.contains(after):
                continue
            end, after = part.size if after is None else after[1], None
            newest = part.newest if newest is None else min(newest, part.newest)
            begin, is_last = 0, False
            if query.start is not None or query.end is not None:
                yield None
                if (window := find_time_window(part, query, end)) is not None:
                    begin, end = window
                    is_last = begin > 0
            steps = _scan_range(part, query, begin, end, newest)
            for step in steps:
                if isinstance(step, LogEntry):
                    newest = min(newest, step.time)
                yield step
            # The window begins inside this file, so all earlier files of the chain are older.
            if is_last:
                return  # Older files only contain older entries.
        if after is not None and (query.start is None or after[2] >= query.start):
            yield from self._read_older(query, after[2], problems)

    def _read_older(self, query: LogQuery, time: int, problems: list[str]) -> Iterator[ScanStep]:
        """Yield the entries older than the last page, if the file it ended in was truncated or removed."""
        problems.append(
            "The file that the previous page ended in was truncated or removed: its entries before "
            f"{format_iso(time)} are missing."
        )
        # One microsecond earlier: entries of that very time were on the previous page.
        until = time - 1 if query.end is None else min(time - 1, query.end)
        for step in self.scan_newest_first(replace(query, end=until), None, problems):
            yield None if isinstance(step, LogEntry) and step.time > until else step

    def oldest_first(self, query: LogQuery, after: LogPosition, problems: list[str]) -> Iterator[ScanStep]:
        is_found = after is None
        for part in self._select_files(query, problems, oldest=True):
            begin, end, passed = 0, part.size, -1
            if not is_found:
                if not part.contains(after):
                    continue
                begin = passed = after[1]
                is_found = True
            if (query.start is not None or query.end is not None) and (
                results := find_time_window(part, query, end)
            ) is not None:
                begin, end = max(begin, results[0]), results[1]
            for start, stop in _date_ranges(part, begin, end):
                found_here = [
                    step for step in _scan_range(part, query, start, stop, part.newest) if isinstance(step, LogEntry)
                ]
                # A range is scanned backwards as a whole, because times without a year depend on later lines.
                yield from (entry for entry in reversed(found_here) if entry.position[1] > passed)
                yield None
        if not is_found:
            problems.append(
                "The file that the previous page ended in was truncated or removed: entries may be missing."
            )
            start = after[2] + 1 if query.start is None else max(query.start, after[2] + 1)
            yield from self.oldest_first(replace(query, start=start), None, problems)

    def entry(self, id: int) -> LogEntry | None:
        result = (find_entry(part, id) for part in self._select_files(LogQuery(), []))
        return next((entry for entry in result if entry is not None), None)

    def count(self, seconds: float = COUNT_TIMEOUT_SECONDS) -> int | None:
        deadline = time.monotonic() + seconds
        total = 0
        for file in self._open_files([]):
            try:
                counted = LINE_COUNTER.count(file, deadline)
            except SystemToolError:
                continue  # A query reports it.
            if counted is None:
                return None
            total += counted
        return total

    def end_position(self) -> LogPosition:
        with ExitStack() as stack:
            newest = next(self._from_newest(stack, []), None)
            return None if newest is None else tail.end_position(newest)

    def read_since(self, position: LogPosition, limit: int, problems: list[str]) -> TailResult:
        with ExitStack() as stack:
            parts: list[TextLogFile] = []
            for part in self._from_newest(stack, problems):
                parts.append(part)
                # Files newer than the position were created by rotation since then, and are read in full.
                if position is None or tail.contains_position(part, position):
                    break
            else:
                if parts and _is_rotated_away(parts[0].base, os.path.basename(self._chain().stem)):
                    # The previous file is gone, and its successor does not exist yet.
                    return TailResult([], position, False)
            return tail.read_since(parts, position, limit, problems)

    def _from_newest(self, stack: ExitStack, problems: list[str]) -> Iterator[TextLogFile]:
        """Yield the newest files of the chain. They stay open when they are renamed."""
        for path in self._chain().paths[: tail.MAX_ROTATED_FILES]:
            try:
                part = TextLogFile(stack.enter_context(self._roots.open(path)))
            except NotFound:
                continue
            except SystemToolError as failure:
                problems.append(f"{os.path.basename(path)}: {failure}")
                continue
            if self._is_text(part, path, problems):
                yield part

    def _is_text(self, part: TextLogFile, path: str, problems: list[str]) -> bool:
        if not part.is_text and not self._is_found:
            problems.append(f"{os.path.basename(path)}: not a text file: it starts with NUL bytes.")
        return part.is_text

    def size(self) -> int | None:
        sizes = [info.st_size for info in self._stats(self._chain().paths)]
        if not sizes:
            raise self._missing_file_error()
        return sum(sizes)

    def change_stamp(self) -> object:
        # Only the current file: rotated ones no longer change.
        return [(info.st_ino, info.st_size, info.st_mtime_ns) for info in self._stats(self._chain().paths[:1])]

    def has_only_grown(self, before: object, now: object) -> bool:
        return bool(
            isinstance(before, list)
            and isinstance(now, list)
            and before
            and now
            # The same inode and not smaller: neither rotated nor truncated.
            and before[0][0] == now[0][0]
            and before[0][1] <= now[0][1]
        )

    def _select_files(self, query: LogQuery, problems: list[str], *, oldest: bool = False) -> Iterator[TextLogFile]:
        """Yield the text files of the chain that may contain entries of the queried time range, newest or
        oldest first.
        """
        for file in self._open_files(problems, oldest=oldest):
            if (
                query.start is not None
                and file.info.st_mtime_ns // 1000 < query.start - DAY_US
                and _is_outside_window(file, query)
            ):
                continue
            try:
                part = TextLogFile(file)
            except SystemToolError as failure:
                problems.append(f"{os.path.basename(file.path)}: {failure}")
                continue
            if self._is_text(part, file.path, problems):
                yield part

    def _open_files(self, problems: list[str], *, oldest: bool = False) -> Iterator[OpenFile]:
        """Yield the current files of the chain, each open until the next one is requested."""
        is_there = False
        paths = self._chain().paths
        for path in reversed(paths) if oldest else paths:
            try:
                with self._roots.open(path) as file:
                    is_there = True
                    yield file
            except NotFound:
                continue
            except SystemToolError as failure:
                is_there = True
                problems.append(f"{os.path.basename(path)}: {failure}")
        if not is_there:
            problems.append(str(self._missing_file_error()))

    def _missing_file_error(self) -> NotFound:
        return NotFound(f"File {os.path.basename(self._chain().stem)!r} does not exist, so the log has no entries.")

    def _stats(self, paths: list[str]) -> Iterator[os.stat_result]:
        for path in paths:
            try:
                yield self._roots.stat(path)[0]
            except SystemToolError:
                continue


def _date_ranges(part: TextLogFile, begin: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield independent ranges of a file in order. If lines do not state their year or day, it follows from later
    lines, so there is only one range.
    """
    length = FIRST_STRETCH_BYTES if part.time_guess not in ("year", "date") else end
    while begin < end:
        stop = end
        if end - begin > length:
            result = last_sure_start(part.read(begin, length))
            if result is None and length < MAX_ENTRY_SCAN_BYTES:
                length *= 4
                continue
            stop = begin + (result or length)
        yield begin, stop
        begin, length = stop, max(length, min(2 * length, BLOCK_BYTES))


def _scan_range(part: TextLogFile, query: LogQuery, begin: int, end: int, newest: int) -> Iterator[ScanStep]:
    """Yield the candidate entries of a range of a file, last one first."""
    search = _search(query)
    # A day that a line does not state depends on all later lines.
    if search is None or part.time_guess == "date":
        return scan_entries(part, end, newest, begin)
    return matching(part, end, newest, begin, search)


def _search(query: LogQuery) -> EntrySearch | None:
    """Return a byte search that finds every match of a query, or None."""
    # A text is usually rarer than a level, so it is searched first.
    if query.contains is not None and (text := literal_part(query.contains)) is not None:
        return TextSearch(text)
    return LevelSearch.at_least(query.min_level)


def _is_outside_window(file: OpenFile, query: LogQuery) -> bool:
    """Return whether a file that was last written long before the start of the query has no entries in its time range.
    For compressed files the modification time is trusted; otherwise the last line is checked.
    """
    return file.path.endswith(COMPRESSED_SUFFIXES) or TextLogFile(file).newest < (query.start or 0) - DAY_US


def find_rotated_files(roots: AllowedPaths, path: str) -> RotatedFiles:
    """Return a file with its rotated predecessors, or alone if its directory may not be read."""
    try:
        result = [chain for chain in group_rotated_files(roots, os.path.dirname(path)) if chain.stem == path]
    except SystemToolError:
        result = []
    return result[0] if result else RotatedFiles(path, [path])


def group_rotated_files(roots: AllowedPaths, path: str) -> list[RotatedFiles]:
    """Group the files of a directory into rotation chains."""
    with roots.open_directory(path) as folder:
        names = [entry.name for entry in folder.scan() if entry.is_file(follow_symlinks=False)]
    families: dict[str, list[tuple[Any, str]]] = {}
    for name in names:
        parts = _NAME.match(name)
        if parts is not None and not parts["stem"].endswith(_NOT_TEXT):
            families.setdefault(parts["stem"], []).append((_rotation_key(parts["number"]), f"{path}/{name}"))
    return [RotatedFiles(f"{path}/{stem}", [name for _, name in sorted(paths)]) for stem, paths in families.items()]


def _is_rotated_away(name: str, current: str) -> bool:
    """Return whether a file is no longer written to. A file with a date in its name may be the current one."""
    parts = _NAME.match(name)
    return name != current and (parts is None or bool(parts["packed"]) or len(parts["number"] or "") < 8)


def _rotation_key(number: str | None) -> tuple[int, int]:
    """Return a key that sorts rotated files newest first: `log`, `log.1`, `log.2`; or `log`, `log-20260102`,
    `log-20260101`.
    """
    if number is None:
        return 0, 0
    return (1, int(number)) if len(number) < 8 else (1, -int(number))
