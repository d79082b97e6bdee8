"""Log composed of the journal files of one machine, including rotated ones.

Entries with the same `seqnum_id` were numbered by one counter, regardless of the file, and are ordered by number;
entries of different counters are ordered by time.
"""

from __future__ import annotations

import zlib
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from functools import partial
from struct import unpack_from
from typing import Any

import msgspec

from portico.extend import decode_bounded
from portico_services.system import subprocesses
from portico_services.system.errors import CorruptData, SystemToolError
from portico_services.system.logs.entries import (
    COUNT_TIMEOUT_SECONDS,
    INFORMATION,
    LEVEL_BY_SYSLOG_SEVERITY,
    WARNING,
    EventLog,
    LogEntry,
    LogPosition,
    LogQuery,
    merge_newest_first,
)
from portico_services.system.logs.journal.file import EntryHeader, FieldPair, JournalFile
from portico_services.system.path_access import AllowedPaths, OpenFile
from portico_services.system.text import decode_lossy

MAX_FILES = 512
SEQNUM_SPAN = 1 << 36
SOURCE_FIELDS = ("SYSLOG_IDENTIFIER", "_SYSTEMD_UNIT", "_COMM", "_SYSTEMD_USER_UNIT")

FieldFilter = Mapping[str, frozenset[str]]
"""Allowed values for each of these fields."""


class JournalLog(EventLog):
    """Log of journal files. `paths` are files, directories of files, or directories of such directories."""

    def __init__(
        self,
        name: str,
        description: str,
        roots: AllowedPaths,
        paths: list[str],
        *,
        file_filter: Callable[[str], bool] = lambda name: True,
        field_filter: FieldFilter | None = None,
    ) -> None:
        super().__init__(name, description)
        self._roots = roots
        self._paths = paths
        self._file_filter = file_filter
        self._field_filter = field_filter or {}

    def scan_newest_first(self, query: LogQuery, after: LogPosition, problems: list[str]) -> Iterator[LogEntry | None]:
        with ExitStack() as stack:
            # Files with the same sequence number id were written by one daemon, so their numbers order them exactly.
            # Between families only the time is comparable.
            families: dict[bytes, list[_OpenJournal]] = {}
            for file in self._open_files(stack, problems):
                families.setdefault(file.seqnum_id, []).append(file)
            streams = [
                (
                    (max(file.newest for file in files), seqnum_id),
                    partial(self._scan_files, files, query, after, problems),
                )
                for seqnum_id, files in families.items()
            ]
            for _, entry in merge_newest_first(streams):
                yield entry

    def _scan_files(
        self, files: list[_OpenJournal], query: LogQuery, after: LogPosition, problems: list[str]
    ) -> Iterator[tuple[Any, LogEntry | None]]:
        streams = [(file.newest_seqnum, partial(self._read_file, file, query, after, problems)) for file in files]
        latest = (2**64, files[0].seqnum_id)
        for _, entry in merge_newest_first(streams):
            if entry is not None:
                # The clock may have been set back; the order of the sequence numbers takes precedence.
                latest = min(latest, (entry.time, files[0].seqnum_id))
            yield latest, entry

    def _read_file(
        self, opened: _OpenJournal, query: LogQuery, after: LogPosition, problems: list[str]
    ) -> Iterator[tuple[int, LogEntry | None]]:
        """Yield the entries of one file, each with its sequence number."""
        try:
            file = JournalFile(opened.file.map())
        except SystemToolError as failure:
            problems.append(f"{opened.name}: {failure}")
            return
        stop = _stop(file, query, after)
        chosen = self._select_offsets(file, query)
        offsets = file.entries.backwards(stop) if chosen is None else reversed(_offsets_before(file, chosen, stop))
        number = 2**64
        for offset in offsets:
            try:
                head = file.entry_header(offset)
                # Entries of one file are in the order of time, apart from clock corrections.
                if query.start is not None and head[3] < query.start:
                    break
                number = head[2]
                yield number, read_entry(file, head)
            except CorruptData as damage:
                file.problems.add(str(damage)) if len(file.problems) < 5 else None
                yield number, None
        problems.extend(f"{opened.name}: {problem}" for problem in sorted(file.problems))

    def _select_offsets(self, file: JournalFile, query: LogQuery) -> list[int] | None:
        """Return the offsets of the entries that the index selects for a query, oldest first; None if the index does
        not apply.
        """
        lists = [_entries_matching(file, (field,), values.__contains__) for field, values in self._field_filter.items()]
        if query.min_level >= WARNING:
            # Entries without a priority count as information, so for higher levels the index is complete.
            # The index holds values as text, as journald stores them.
            severe = {str(n) for n, level in enumerate(LEVEL_BY_SYSLOG_SEVERITY) if level >= query.min_level}
            lists.append(_entries_matching(file, ("PRIORITY",), severe.__contains__))
        if query.source is not None:
            lists.append(_entries_matching(file, SOURCE_FIELDS, query.matches_source))
        if not lists:
            return None
        # Entries are appended, so the order of offsets is that of their sequence numbers.
        return sorted(set.intersection(*lists))

    def entry(self, id: int) -> LogEntry | None:
        with ExitStack() as stack:
            for opened in self._open_files(stack, []):
                seqnum = id % SEQNUM_SPAN
                # Ids contain a hash of the counter, so files of other machines or boots are skipped.
                if entry_id(opened.seqnum_id, seqnum) != id:
                    continue
                try:
                    file = JournalFile(opened.file.map())
                    # Binary search: entries are ordered by sequence number within a file.
                    number = file.before_seqnum(seqnum)
                    if number < len(file.entries):
                        head = file.entry_header(file.entries[number])
                        if head[2] == seqnum:
                            return self._if_matching(read_entry(file, head))
                except SystemToolError:
                    continue
        return None

    def _if_matching(self, entry: LogEntry) -> LogEntry | None:
        return entry if all(entry.fields.get(field) in values for field, values in self._field_filter.items()) else None

    def count(self, seconds: float = COUNT_TIMEOUT_SECONDS) -> int | None:
        # The header counts all entries, not those of the filter.
        if self._field_filter:
            return None
        with ExitStack() as stack:
            return sum(file.count for file in self._open_files(stack, []))

    def size(self) -> int | None:
        with ExitStack() as stack:
            return sum(file.file.size for file in self._open_files(stack, []))

    def change_stamp(self) -> object:
        with ExitStack() as stack:
            return tuple((file.seqnum_id, file.newest_seqnum) for file in self._open_files(stack, [], archived=False))

    def _open_files(self, stack: ExitStack, problems: list[str], *, archived: bool = True) -> Iterator[_OpenJournal]:
        """Open the current files. An open file stays readable when it is renamed or removed."""
        for path in find_journal_files(self._roots, self._paths, problems):
            name = path.rsplit("/", 1)[-1]
            if self._file_filter(name) and (archived or "@" not in name):
                try:
                    yield _OpenJournal(stack.enter_context(self._roots.open(path)), name)
                except SystemToolError as failure:
                    problems.append(f"{name}: {failure}")


class _OpenJournal:
    """Open journal file with the header values that are needed before parsing it."""

    def __init__(self, file: OpenFile, name: str) -> None:
        # Enough for the sort keys; a file is only mapped when the merge reaches it.
        head = file.read(0, 208)
        if len(head) < 208:
            raise CorruptData("not a journal file: too short")
        self.file = file
        self.name = name
        self.seqnum_id = head[72:88]
        self.count: int
        self.count, self.newest_seqnum = unpack_from("<QQ", head, 152)
        [self.newest] = unpack_from("<Q", head, 192)


def find_journal_files(roots: AllowedPaths, paths: list[str], problems: list[str]) -> list[str]:
    """Return the journal files at these paths, and in directories up to one level below."""
    results: list[str] = []
    for path in paths:
        try:
            info, _ = roots.stat(path)
            if info.st_mode & 0o170000 == 0o040000:
                results += _find_journals(roots, path, 1)
            else:
                results.append(path)
        except SystemToolError as failure:
            problems.append(str(failure))
    # Names of archived files contain their first number and time, so the last names are the newest.
    return results if len(results) <= MAX_FILES else sorted(results, reverse=True)[:MAX_FILES]


def _find_journals(roots: AllowedPaths, path: str, depth: int) -> Iterator[str]:
    with roots.open_directory(path) as folder:
        entries = folder.scan()
    for entry in entries:
        below = f"{path}/{entry.name}"
        if entry.name.endswith((".journal", ".journal~")) and not entry.is_symlink():
            yield below
        elif depth and entry.is_dir(follow_symlinks=False):
            yield from _find_journals(roots, below, depth - 1)


def _stop(file: JournalFile, query: LogQuery, after: LogPosition) -> int:
    """Return the number of entries that may match: those up to the end of the query and before the last page."""
    stop = len(file.entries)
    if query.end is not None:
        stop = min(stop, file.before_time(query.end + 1))
    if after is not None:
        seqnum_id, seqnum, time = bytes.fromhex(after[0]), after[1], after[2]
        if file.seqnum_id == seqnum_id:
            stop = min(stop, file.before_seqnum(seqnum))
        else:
            # Another family: continue by time. Entries of the same microsecond are ordered by family id, as in the
            # merge.
            stop = min(stop, file.before_time(time + (file.seqnum_id < seqnum_id)))
    return stop


def _offsets_before(file: JournalFile, offsets: list[int], stop: int) -> list[int]:
    """Return the offsets that are among the first `stop` entries. Entries are only ever appended."""
    if stop >= len(file.entries):
        return offsets
    return offsets[: bisect_left(offsets, file.entries[stop])]


def _entries_matching(file: JournalFile, fields: tuple[str, ...], predicate: Callable[[str], bool]) -> set[int]:
    result: set[int] = set()
    for field in fields:
        for value, data in file.values(field):
            if isinstance(value, str) and predicate(value):
                try:
                    result.update(file.entries_with(data))
                except CorruptData as damage:
                    file.problems.add(str(damage))
    return result


def read_entry(file: JournalFile, head: EntryHeader) -> LogEntry:
    pairs = file.fields(head)
    fields: dict[str, Any] = dict(pairs)
    if len(fields) < len(pairs):
        fields = _group_fields(pairs)
    return to_entry(
        fields, id=entry_id(file.seqnum_id, head[2]), time=head[3], position=[file.seqnum_id.hex(), *head[2:4]]
    )


def entry_id(seqnum_id: bytes, seqnum: int) -> int:
    """Return an entry id that is unique in the log: the sequence number and 16 bits of a hash of its counter."""
    return (zlib.crc32(seqnum_id) & 0xFFFF) * SEQNUM_SPAN + seqnum % SEQNUM_SPAN


def to_entry(fields: dict[str, Any], *, id: int, time: int, position: LogPosition) -> LogEntry:
    """Convert journal fields to an entry."""
    priority = fields.get("PRIORITY")
    severity = int(priority) if isinstance(priority, str) and priority in "01234567" and priority else None
    names = [name for field in SOURCE_FIELDS if type(name := fields.get(field)) is str]
    return LogEntry(
        id=id,
        time=time,
        level=INFORMATION if severity is None else LEVEL_BY_SYSLOG_SEVERITY[severity],
        source=names[0] if names else "journal",
        message=_text(fields.get("MESSAGE", "")),
        computer=_text(fields.get("_HOSTNAME", "")),
        position=position,
        also=tuple(names[1:]),
        fields=fields,
    )


def _group_fields(pairs: list[FieldPair]) -> dict[str, Any]:
    """Group fields by name; a repeated field becomes a list of values."""
    fields: dict[str, Any] = {}
    for name, value in pairs:
        if name not in fields:
            fields[name] = value
        elif isinstance(fields[name], list):
            fields[name].append(value)
        else:
            fields[name] = [fields[name], value]
    return fields


def _text(value: Any) -> str:
    if isinstance(value, list):
        value = value[0]
    return decode_lossy(value) if isinstance(value, bytes) else str(value)


# Access through `journalctl`, if the journal files are not readable


class JournalctlLog(EventLog):
    """Log read through journalctl. `arguments` select the journal: `--system`, `--user`, `--directory=…`."""

    def __init__(
        self, name: str, description: str, arguments: tuple[str, ...] = (), *, field_filter: FieldFilter | None = None
    ) -> None:
        super().__init__(name, description)
        self._arguments = arguments
        # As here, journalctl combines matches of the same field with OR and of different fields with AND.
        self._matches = [
            f"{field}={value}" for field, values in (field_filter or {}).items() for value in sorted(values)
        ]

    def scan_newest_first(self, query: LogQuery, after: LogPosition, problems: list[str]) -> Iterator[LogEntry | None]:
        options = ["--reverse"]
        if query.min_level >= WARNING:
            options.append(
                f"--priority={max(n for n, level in enumerate(LEVEL_BY_SYSLOG_SEVERITY) if level >= query.min_level)}"
            )
        if query.start is not None:
            options.append(f"--since=@{query.start // 1_000_000}")
        if query.end is not None:
            options.append(f"--until=@{query.end // 1_000_000 + 1}")
        if after is not None:
            options.append(f"--after-cursor={after}")
        yield from self._run(options, problems)

    def _run(self, options: list[str], problems: list[str]) -> Iterator[LogEntry | None]:
        # `--all` includes long and binary fields, which are otherwise replaced by null.
        argv = ["journalctl", "--output=json", "--all", "--no-pager", "--quiet", *self._arguments, *options]
        with closing(subprocesses.run_lines([*argv, *self._matches])) as lines:
            try:
                for line in lines:
                    yield _parse_export_entry(line)
            except SystemToolError as failure:
                problems.append(str(failure))

    def entry(self, id: int) -> LogEntry | None:
        """Return an entry by scanning the latest ones: journalctl cannot look up sequence numbers."""
        result = (entry for entry in self._run(["--reverse", "--lines=10000"], []) if entry is not None)
        return next((entry for entry in result if entry.id == id), None)

    def change_stamp(self) -> object:
        newest = next(iter(self._run(["--lines=1"], [])), None)
        return None if newest is None else newest.position


def _parse_export_entry(line: bytes) -> LogEntry | None:
    try:
        fields: dict[str, Any] = decode_bounded(line, type=dict[str, Any])
        cursor, time = fields.pop("__CURSOR"), int(fields.pop("__REALTIME_TIMESTAMP"))
    except (msgspec.DecodeError, KeyError, ValueError):
        return None
    parts = dict(part.split("=", 1) for part in cursor.split(";") if "=" in part)
    fields = {name: _decode_export_value(value) for name, value in fields.items() if not name.startswith("__")}
    return to_entry(fields, id=_id(parts), time=time, position=cursor)


def _id(parts: dict[str, str]) -> int:
    """Return the same id that reading the files gives: a hash of the counter, and the number."""
    try:
        return entry_id(bytes.fromhex(parts["s"]), int(parts["i"], 16))
    except (KeyError, ValueError):
        return 0


def _decode_export_value(value: Any) -> Any:
    """Decode a value of the JSON export: binary data is a list of numbers, repeated fields are lists of strings."""
    if isinstance(value, list) and value and all(type(item) is int and 0 <= item < 256 for item in value):
        return bytes(value)
    return [_decode_export_value(item) for item in value] if isinstance(value, list) else value
