"""A log made of journal files: those of one machine, with the ones that have rotated away.

Entries with the same `seqnum_id` were numbered by one counter, whatever file they are in, so they are put in order by
their numbers; what was numbered by different counters, by time.
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
from portico_services.system.errors import DamagedData, MachineError
from portico_services.system.logs.entries import (
    COUNTING_SECONDS,
    INFORMATION,
    OF_SEVERITY,
    WARNING,
    Log,
    LogEntry,
    Position,
    Query,
    newest_first,
)
from portico_services.system.logs.journal.file import Head, JournalFile, Pair
from portico_services.system.path_access import AllowedRoots, OpenFile
from portico_services.system.text import decoded

MOST_FILES = 512
SEQNUMS = 1 << 36
SOURCES = ("SYSLOG_IDENTIFIER", "_SYSTEMD_UNIT", "_COMM", "_SYSTEMD_USER_UNIT")

Where = Mapping[str, frozenset[str]]
"""Of each of these fields, one of these values."""


class JournalLog(Log):
    """`paths` are journal files, or folders that have some, or folders of such folders."""

    def __init__(
        self,
        name: str,
        description: str,
        roots: AllowedRoots,
        paths: list[str],
        *,
        wanted: Callable[[str], bool] = lambda name: True,
        where: Where | None = None,
    ) -> None:
        super().__init__(name, description)
        self._roots = roots
        self._paths = paths
        self._wanted = wanted
        self._where = where or {}

    def newest_first(self, query: Query, after: Position, problems: list[str]) -> Iterator[LogEntry | None]:
        with ExitStack() as stack:
            families: dict[bytes, list[_OpenJournal]] = {}
            for file in self._open(stack, problems):
                families.setdefault(file.seqnum_id, []).append(file)
            streams = [
                ((max(file.newest for file in files), seqnum_id), partial(self._family, files, query, after, problems))
                for seqnum_id, files in families.items()
            ]
            for _, entry in newest_first(streams):
                yield entry

    def _family(
        self, files: list[_OpenJournal], query: Query, after: Position, problems: list[str]
    ) -> Iterator[tuple[Any, LogEntry | None]]:
        streams = [(file.newest_seqnum, partial(self._one, file, query, after, problems)) for file in files]
        latest = (2**64, files[0].seqnum_id)
        for _, entry in newest_first(streams):
            if entry is not None:
                # The clock may have been put back; the order of numbers stands.
                latest = min(latest, (entry.time, files[0].seqnum_id))
            yield latest, entry

    def _one(
        self, opened: _OpenJournal, query: Query, after: Position, problems: list[str]
    ) -> Iterator[tuple[int, LogEntry | None]]:
        """The entries of one file, each with its number."""
        try:
            file = JournalFile(opened.file.image())
        except MachineError as failure:
            problems.append(f"{opened.name}: {failure}")
            return
        stop = _stop(file, query, after)
        chosen = self._chosen(file, query)
        offsets = file.entries.backwards(stop) if chosen is None else reversed(_before(file, chosen, stop))
        number = 2**64
        for offset in offsets:
            try:
                head = file.head(offset)
                if query.start is not None and head[3] < query.start:
                    break
                number = head[2]
                yield number, entry_of(file, head)
            except DamagedData as damage:
                file.problems.add(str(damage)) if len(file.problems) < 5 else None
                yield number, None
        problems.extend(f"{opened.name}: {problem}" for problem in sorted(file.problems))

    def _chosen(self, file: JournalFile, query: Query) -> list[int] | None:
        """The entries that the index has for a query, oldest first; None where the index cannot help."""
        lists = [_having(file, (field,), values.__contains__) for field, values in self._where.items()]
        if query.min_level >= WARNING:
            # What has no priority counts as information, so above that the index knows them all.
            severe = {str(n) for n, level in enumerate(OF_SEVERITY) if level >= query.min_level}
            lists.append(_having(file, ("PRIORITY",), severe.__contains__))
        if query.source is not None:
            lists.append(_having(file, SOURCES, query.names))
        if not lists:
            return None
        return sorted(set.intersection(*lists))

    def entry(self, id: int) -> LogEntry | None:
        with ExitStack() as stack:
            for opened in self._open(stack, []):
                seqnum = id % SEQNUMS
                if entry_id(opened.seqnum_id, seqnum) != id:
                    continue
                try:
                    file = JournalFile(opened.file.image())
                    number = file.before_seqnum(seqnum)
                    if number < len(file.entries):
                        head = file.head(file.entries[number])
                        if head[2] == seqnum:
                            return self._if_ours(entry_of(file, head))
                except MachineError:
                    continue
        return None

    def _if_ours(self, entry: LogEntry) -> LogEntry | None:
        return entry if all(entry.fields.get(field) in values for field, values in self._where.items()) else None

    def count(self, seconds: float = COUNTING_SECONDS) -> int | None:
        if self._where:
            return None
        with ExitStack() as stack:
            return sum(file.count for file in self._open(stack, []))

    def size(self) -> int | None:
        with ExitStack() as stack:
            return sum(file.file.size for file in self._open(stack, []))

    def stamp(self) -> object:
        with ExitStack() as stack:
            return tuple((file.seqnum_id, file.newest_seqnum) for file in self._open(stack, [], archived=False))

    def _open(self, stack: ExitStack, problems: list[str], *, archived: bool = True) -> Iterator[_OpenJournal]:
        """The files as they are now. Once open, it does not matter that one is renamed or vacuumed away."""
        for path in files(self._roots, self._paths, problems):
            name = path.rsplit("/", 1)[-1]
            if self._wanted(name) and (archived or "@" not in name):
                try:
                    yield _OpenJournal(stack.enter_context(self._roots.open(path)), name)
                except MachineError as failure:
                    problems.append(f"{name}: {failure}")


class _OpenJournal:
    """A journal file that has been opened, but not read: what its header says."""

    def __init__(self, file: OpenFile, name: str) -> None:
        head = file.read(0, 208)
        if len(head) < 208:
            raise DamagedData("no journal: it is too short for one")
        self.file = file
        self.name = name
        self.seqnum_id = head[72:88]
        self.count: int
        self.count, self.newest_seqnum = unpack_from("<QQ", head, 152)
        [self.newest] = unpack_from("<Q", head, 192)


def files(roots: AllowedRoots, paths: list[str], problems: list[str]) -> list[str]:
    """The journal files at these paths, and in folders up to one level below."""
    found: list[str] = []
    for path in paths:
        try:
            info, _ = roots.stat(path)
            if info.st_mode & 0o170000 == 0o040000:
                found += _below(roots, path, 1)
            else:
                found.append(path)
        except MachineError as failure:
            problems.append(str(failure))
    # Names of archived files hold their first number and time, so the last names are the newest.
    return found if len(found) <= MOST_FILES else sorted(found, reverse=True)[:MOST_FILES]


def _below(roots: AllowedRoots, path: str, depth: int) -> Iterator[str]:
    with roots.folder(path) as folder:
        entries = folder.scan()
    for entry in entries:
        below = f"{path}/{entry.name}"
        if entry.name.endswith((".journal", ".journal~")) and not entry.is_symlink():
            yield below
        elif depth and entry.is_dir(follow_symlinks=False):
            yield from _below(roots, below, depth - 1)


def _stop(file: JournalFile, query: Query, after: Position) -> int:
    """How many of a file's entries may be wanted: those up to the end of the query and behind the last page."""
    stop = len(file.entries)
    if query.end is not None:
        stop = min(stop, file.before_time(query.end + 1))
    if after is not None:
        seqnum_id, seqnum, time = bytes.fromhex(after[0]), after[1], after[2]
        if file.seqnum_id == seqnum_id:
            stop = min(stop, file.before_seqnum(seqnum))
        else:
            stop = min(stop, file.before_time(time + (file.seqnum_id < seqnum_id)))
    return stop


def _before(file: JournalFile, offsets: list[int], stop: int) -> list[int]:
    """Those of these entries that are among the first `stop`. Entries are only ever appended."""
    if stop >= len(file.entries):
        return offsets
    return offsets[: bisect_left(offsets, file.entries[stop])]


def _having(file: JournalFile, fields: tuple[str, ...], wanted: Callable[[str], bool]) -> set[int]:
    found: set[int] = set()
    for field in fields:
        for value, data in file.values(field):
            if isinstance(value, str) and wanted(value):
                try:
                    found.update(file.having(data))
                except DamagedData as damage:
                    file.problems.add(str(damage))
    return found


def entry_of(file: JournalFile, head: Head) -> LogEntry:
    pairs = file.fields(head)
    fields: dict[str, Any] = dict(pairs)
    if len(fields) < len(pairs):
        fields = _several(pairs)
    return made(fields, id=entry_id(file.seqnum_id, head[2]), time=head[3], position=[file.seqnum_id.hex(), *head[2:4]])


def entry_id(seqnum_id: bytes, seqnum: int) -> int:
    """A number for an entry that holds for the whole log: its own, and sixteen bits of whose counter it is from."""
    return (zlib.crc32(seqnum_id) & 0xFFFF) * SEQNUMS + seqnum % SEQNUMS


def made(fields: dict[str, Any], *, id: int, time: int, position: Position) -> LogEntry:
    """An entry of the fields that journald gives one."""
    priority = fields.get("PRIORITY")
    severity = int(priority) if isinstance(priority, str) and priority in "01234567" and priority else None
    names = [name for field in SOURCES if type(name := fields.get(field)) is str]
    return LogEntry(
        id=id,
        time=time,
        level=INFORMATION if severity is None else OF_SEVERITY[severity],
        source=names[0] if names else "journal",
        message=_text(fields.get("MESSAGE", "")),
        computer=_text(fields.get("_HOSTNAME", "")),
        position=position,
        also=tuple(names[1:]),
        fields=fields,
    )


def _several(pairs: list[Pair]) -> dict[str, Any]:
    """A field may be there more than once, and then has a list of values."""
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
    return decoded(value) if isinstance(value, bytes) else str(value)


# The journal by way of `journalctl`, where its files are not ours to read


class JournalctlLog(Log):
    """`arguments` say which journal: `--system`, `--user`, `--directory=…`."""

    def __init__(
        self, name: str, description: str, arguments: tuple[str, ...] = (), *, where: Where | None = None
    ) -> None:
        super().__init__(name, description)
        self._arguments = arguments
        # Matches of one field are alternatives to journalctl, and matches of different ones must all hold: as here.
        self._matches = [f"{field}={value}" for field, values in (where or {}).items() for value in sorted(values)]

    def newest_first(self, query: Query, after: Position, problems: list[str]) -> Iterator[LogEntry | None]:
        wanted = ["--reverse"]
        if query.min_level >= WARNING:
            wanted.append(f"--priority={max(n for n, level in enumerate(OF_SEVERITY) if level >= query.min_level)}")
        if query.start is not None:
            wanted.append(f"--since=@{query.start // 1_000_000}")
        if query.end is not None:
            wanted.append(f"--until=@{query.end // 1_000_000 + 1}")
        if after is not None:
            wanted.append(f"--after-cursor={after}")
        yield from self._run(wanted, problems)

    def _run(self, wanted: list[str], problems: list[str]) -> Iterator[LogEntry | None]:
        argv = ["journalctl", "--output=json", "--all", "--no-pager", "--quiet", *self._arguments, *wanted]
        with closing(subprocesses.lines([*argv, *self._matches])) as lines:
            try:
                for line in lines:
                    yield _printed_entry(line)
            except MachineError as failure:
                problems.append(str(failure))

    def entry(self, id: int) -> LogEntry | None:
        """Its number is not something journalctl can be asked for, so the latest are looked through."""
        found = (entry for entry in self._run(["--reverse", "--lines=10000"], []) if entry is not None)
        return next((entry for entry in found if entry.id == id), None)

    def stamp(self) -> object:
        newest = next(iter(self._run(["--lines=1"], [])), None)
        return None if newest is None else newest.position


def _printed_entry(line: bytes) -> LogEntry | None:
    try:
        fields: dict[str, Any] = decode_bounded(line, type=dict[str, Any])
        cursor, time = fields.pop("__CURSOR"), int(fields.pop("__REALTIME_TIMESTAMP"))
    except (msgspec.DecodeError, KeyError, ValueError):
        return None
    parts = dict(part.split("=", 1) for part in cursor.split(";") if "=" in part)
    fields = {name: _printed_value(value) for name, value in fields.items() if not name.startswith("__")}
    return made(fields, id=_id(parts), time=time, position=cursor)


def _id(parts: dict[str, str]) -> int:
    """The same that the files give: whose counter it is from, and the number."""
    try:
        return entry_id(bytes.fromhex(parts["s"]), int(parts["i"], 16))
    except (KeyError, ValueError):
        return 0


def _printed_value(value: Any) -> Any:
    """What is no text is written as a list of numbers, and a field that is there twice as a list of texts."""
    if isinstance(value, list) and value and all(type(one) is int and 0 <= one < 256 for one in value):
        return bytes(value)
    return [_printed_value(one) for one in value] if isinstance(value, list) else value
