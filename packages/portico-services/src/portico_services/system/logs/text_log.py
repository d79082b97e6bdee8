"""A log made of text files: one file, with those it has rotated to, read from the end."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from portico_services.system.errors import Absent, MachineError
from portico_services.system.logs import tail
from portico_services.system.logs.continuations import last_sure_start
from portico_services.system.logs.entries import (
    COUNTING_SECONDS,
    Log,
    LogEntry,
    NewEntries,
    Position,
    Query,
    Step,
    iso,
)
from portico_services.system.logs.level_search import LevelSearch
from portico_services.system.logs.line_counts import COUNTS
from portico_services.system.logs.literal_search import BLOCK, EntrySearch, TextSearch, matching, searchable
from portico_services.system.logs.text_file import LONGEST_BLOCK, PACKED, LogFile, entries, entry_by_id
from portico_services.system.logs.time_search import window
from portico_services.system.logs.timestamps import DAY
from portico_services.system.path_access import AllowedRoots, OpenFile

_NAME = re.compile(r"(?P<stem>.+?)(?:[.-](?P<number>\d{1,8}))?(?P<packed>\.(?:gz|xz|zst|bz2))?$")
FIRST_STRETCH_BYTES = 64 * 1024
_NOT_TEXT = (".journal", ".journal~", ".evtx", ".db", ".sqlite", ".dat")


class Chain(Struct):
    """One file and what it has rotated to, newest first."""

    stem: str
    paths: list[str]


class TextLog(Log):
    """One chain of files.

    That a file is no text is a problem, unless it was only found in a folder: there others are to be expected.
    """

    def __init__(
        self, name: str, description: str, roots: AllowedRoots, chain: Callable[[], Chain], *, is_found: bool = False
    ) -> None:
        super().__init__(name, description)
        self._roots = roots
        self._chain = chain
        self._is_found = is_found

    def newest_first(self, query: Query, after: Position, problems: list[str]) -> Iterator[Step]:
        newest = None if after is None else after[2]
        for part in self._parts(query, problems):
            if not part.has(after):
                continue
            end, after = part.size if after is None else after[1], None
            newest = part.newest if newest is None else min(newest, part.newest)
            begin, is_last = 0, False
            if query.start is not None or query.end is not None:
                yield None
                if (found := window(part, query, end)) is not None:
                    begin, end = found
                    is_last = begin > 0
            steps = _steps(part, query, begin, end, newest)
            for step in steps:
                if isinstance(step, LogEntry):
                    newest = min(newest, step.time)
                yield step
            if is_last:
                return  # what is in older files is older still
        if after is not None and (query.start is None or after[2] >= query.start):
            yield from self._older(query, after[2], problems)

    def _older(self, query: Query, time: int, problems: list[str]) -> Iterator[Step]:
        """What is older than the last page, where the file is cut or gone that this ended in."""
        problems.append(
            f"The file that the page before ended in was cut or is gone: what was in it before {iso(time)} is missing."
        )
        until = time - 1 if query.end is None else min(time - 1, query.end)
        for step in self.newest_first(replace(query, end=until), None, problems):
            yield None if isinstance(step, LogEntry) and step.time > until else step

    def oldest_first(self, query: Query, after: Position, problems: list[str]) -> Iterator[Step]:
        is_found = after is None
        for part in self._parts(query, problems, oldest=True):
            begin, end, passed = 0, part.size, -1
            if not is_found:
                if not part.has(after):
                    continue
                begin = passed = after[1]
                is_found = True
            if (query.start is not None or query.end is not None) and (found := window(part, query, end)) is not None:
                begin, end = max(begin, found[0]), found[1]
            for start, stop in _stretches(part, begin, end):
                found_here = [
                    step for step in _steps(part, query, start, stop, part.newest) if isinstance(step, LogEntry)
                ]
                yield from (entry for entry in reversed(found_here) if entry.position[1] > passed)
                yield None
        if not is_found:
            problems.append("The file that the page before ended in was cut or is gone: entries may be missing.")
            start = after[2] + 1 if query.start is None else max(query.start, after[2] + 1)
            yield from self.oldest_first(replace(query, start=start), None, problems)

    def entry(self, id: int) -> LogEntry | None:
        found = (entry_by_id(part, id) for part in self._parts(Query(), []))
        return next((entry for entry in found if entry is not None), None)

    def count(self, seconds: float = COUNTING_SECONDS) -> int | None:
        deadline = time.monotonic() + seconds
        total = 0
        for file in self._open([]):
            try:
                counted = COUNTS.count(file, deadline)
            except MachineError:
                continue  # a query says so
            if counted is None:
                return None
            total += counted
        return total

    def end(self) -> Position:
        with ExitStack() as stack:
            newest = next(self._from_newest(stack, []), None)
            return None if newest is None else tail.end_of(newest)

    def since(self, place: Position, most: int, problems: list[str]) -> NewEntries:
        with ExitStack() as stack:
            parts: list[LogFile] = []
            for part in self._from_newest(stack, problems):
                parts.append(part)
                if place is None or tail.holds(part, place):
                    break
            else:
                if parts and _is_put_aside(parts[0].base, os.path.basename(self._chain().stem)):
                    # What it was read from is gone, and nothing is there yet in its place.
                    return NewEntries([], place, False)
            return tail.since(parts, place, most, problems)

    def _from_newest(self, stack: ExitStack, problems: list[str]) -> Iterator[LogFile]:
        """The newest files of the chain. They stay open, whatever they are renamed to meanwhile."""
        for path in self._chain().paths[: tail.MOST_ROTATED]:
            try:
                part = LogFile(stack.enter_context(self._roots.open(path)))
            except Absent:
                continue
            except MachineError as failure:
                problems.append(f"{os.path.basename(path)}: {failure}")
                continue
            if self._is_text(part, path, problems):
                yield part

    def _is_text(self, part: LogFile, path: str, problems: list[str]) -> bool:
        if not part.is_text and not self._is_found:
            problems.append(f"{os.path.basename(path)}: it has zero bytes in its beginning, so it is not read as text.")
        return part.is_text

    def size(self) -> int | None:
        sizes = [info.st_size for info in self._stats(self._chain().paths)]
        if not sizes:
            raise self._absent()
        return sum(sizes)

    def stamp(self) -> object:
        return [(info.st_ino, info.st_size, info.st_mtime_ns) for info in self._stats(self._chain().paths[:1])]

    def has_only_grown(self, before: object, now: object) -> bool:
        return bool(
            isinstance(before, list)
            and isinstance(now, list)
            and before
            and now
            and before[0][0] == now[0][0]
            and before[0][1] <= now[0][1]
        )

    def _parts(self, query: Query, problems: list[str], *, oldest: bool = False) -> Iterator[LogFile]:
        """Yield the text files of the chain that may have something of the times asked for, the newest or the oldest
        first."""
        for file in self._open(problems, oldest=oldest):
            if query.start is not None and file.info.st_mtime_ns // 1000 < query.start - DAY and _is_old(file, query):
                continue
            try:
                part = LogFile(file)
            except MachineError as failure:
                problems.append(f"{os.path.basename(file.path)}: {failure}")
                continue
            if self._is_text(part, file.path, problems):
                yield part

    def _open(self, problems: list[str], *, oldest: bool = False) -> Iterator[OpenFile]:
        """Yield the files of the chain as they are now, each open until the next is asked for."""
        is_there = False
        paths = self._chain().paths
        for path in reversed(paths) if oldest else paths:
            try:
                with self._roots.open(path) as file:
                    is_there = True
                    yield file
            except Absent:
                continue
            except MachineError as failure:
                is_there = True
                problems.append(f"{os.path.basename(path)}: {failure}")
        if not is_there:
            problems.append(str(self._absent()))

    def _absent(self) -> Absent:
        return Absent(f"There is no file {os.path.basename(self._chain().stem)!r}, so the log has no entries.")

    def _stats(self, paths: list[str]) -> Iterator[os.stat_result]:
        for path in paths:
            try:
                yield self._roots.stat(path)[0]
            except MachineError:
                continue


def _stretches(part: LogFile, begin: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield parts of a file in their order, each of which can be read by itself. Where lines do not state their year or
    day, that follows from the lines behind them, so there is one part."""
    length = FIRST_STRETCH_BYTES if part.time_guess not in ("year", "date") else end
    while begin < end:
        stop = end
        if end - begin > length:
            found = last_sure_start(part.read(begin, length))
            if found is None and length < LONGEST_BLOCK:
                length *= 4
                continue
            stop = begin + (found or length)
        yield begin, stop
        begin, length = stop, max(length, min(2 * length, BLOCK))


def _steps(part: LogFile, query: Query, begin: int, end: int, newest: int) -> Iterator[Step]:
    """Yield what a stretch of a file has that may be wanted, last one first."""
    search = _search(query)
    # Where a line does not state its day, that depends on all the lines behind it.
    if search is None or part.time_guess == "date":
        return entries(part, end, newest, begin)
    return matching(part, end, newest, begin, search)


def _search(query: Query) -> EntrySearch | None:
    """Return a search in bytes that finds every entry that a query matches, if there is one."""
    if query.contains is not None and (text := searchable(query.contains)) is not None:
        return TextSearch(text)
    return LevelSearch.at_least(query.min_level)


def _is_old(file: OpenFile, query: Query) -> bool:
    """Whether nothing of a file that was last written long before a time is of that time. Of one that is packed this
    is believed; of another the last line is looked at."""
    return file.path.endswith(PACKED) or LogFile(file).newest < (query.start or 0) - DAY


def rotated(roots: AllowedRoots, path: str) -> Chain:
    """A file and its rotated forms. Where only the file itself may be read, it stands alone."""
    try:
        found = [chain for chain in chains(roots, os.path.dirname(path)) if chain.stem == path]
    except MachineError:
        found = []
    return found[0] if found else Chain(path, [path])


def chains(roots: AllowedRoots, path: str) -> list[Chain]:
    """The files of a folder, those together that one has rotated to."""
    with roots.folder(path) as folder:
        names = [entry.name for entry in folder.scan() if entry.is_file(follow_symlinks=False)]
    families: dict[str, list[tuple[Any, str]]] = {}
    for name in names:
        parts = _NAME.match(name)
        if parts is not None and not parts["stem"].endswith(_NOT_TEXT):
            families.setdefault(parts["stem"], []).append((_age(parts["number"]), f"{path}/{name}"))
    return [Chain(f"{path}/{stem}", [name for _, name in sorted(paths)]) for stem, paths in families.items()]


def _is_put_aside(name: str, current: str) -> bool:
    """Whether nothing is written to a file any more. One with a date may be the newest that its log has."""
    parts = _NAME.match(name)
    return name != current and (parts is None or bool(parts["packed"]) or len(parts["number"] or "") < 8)


def _age(number: str | None) -> tuple[int, int]:
    """What sorts rotated files newest first: `log`, `log.1`, `log.2`; or `log`, `log-20260102`, `log-20260101`."""
    if number is None:
        return 0, 0
    return (1, int(number)) if len(number) < 8 else (1, -int(number))
