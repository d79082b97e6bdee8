"""Discovery of a machine's logs. The names are those of Windows on every platform: System, Application, Security,
Kernel.
"""

from __future__ import annotations

import os
import stat
import sys
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import islice

from portico_services.system import subprocesses
from portico_services.system.errors import SystemToolError
from portico_services.system.logs.entries import (
    COUNT_TIMEOUT_SECONDS,
    EventLog,
    LogEntry,
    LogPosition,
    LogQuery,
    ScanStep,
    SkippedRange,
    TailResult,
    merge_newest_first,
)
from portico_services.system.logs.evtx import EvtxLog
from portico_services.system.logs.journal.log import FieldFilter, JournalctlLog, JournalLog, find_journal_files
from portico_services.system.logs.platform_logs import MacOSLog, WindowsLog, list_channels
from portico_services.system.logs.text_log import RotatedFiles, TextLog, find_rotated_files, group_rotated_files
from portico_services.system.path_access import AllowedPaths

JOURNAL_DIRS = ("/var/log/journal", "/run/log/journal")
TEXT_LOG_DIR = "/var/log"
MAX_CHANNELS = 500

_DESCRIPTIONS = {
    "System": "All messages of this machine",
    "Application": "Messages of user programs",
    "Security": "Logins and authorization",
    "Kernel": "Kernel messages",
}
# Syslog facilities auth (4) and authpriv (10).
_JOURNAL_FILTERS: dict[str, FieldFilter] = {
    "System": {},
    "Security": {"SYSLOG_FACILITY": frozenset({"4", "10"})},
    "Kernel": {"_TRANSPORT": frozenset({"kernel"})},
}
_TEXT_LOG_NAMES = {
    "System": ("syslog", "messages", "system.log"),
    "Application": ("user.log", "daemon.log"),
    "Security": ("auth.log", "secure", "authlog"),
    "Kernel": ("kern.log", "kernel.log", "dmesg"),
}
_MACOS_PREDICATES = {
    "System": "",
    "Application": 'processImagePath BEGINSWITH "/Applications/"',
    "Security": 'process == "securityd" OR process == "sudo" OR process == "sshd" OR process == "loginwindow"',
    "Kernel": 'process == "kernel"',
}


class EmptyLog(EventLog):
    """Placeholder for a log that does not exist on this machine; queries return no entries and report the reason."""

    def __init__(self, name: str) -> None:
        super().__init__(name, f"{_DESCRIPTIONS.get(name, name)}: not available on this machine or not readable")

    def scan_newest_first(self, query: LogQuery, after: LogPosition, problems: list[str]) -> Iterator[ScanStep]:
        # A page without entries alone would look like a machine without errors.
        problems.append(f"{self.description}.")
        return iter(())

    def entry(self, id: int) -> LogEntry | None:
        return None

    def count(self, seconds: float = COUNT_TIMEOUT_SECONDS) -> int | None:
        return 0

    def size(self) -> int | None:
        return 0


def discover_logs(
    configured: Mapping[str, str | os.PathLike[str]], *, machine: bool = True, deny: Iterable[str] = ()
) -> dict[str, EventLog]:
    """Return the machine's own logs, unless `machine` is false, and the logs that are configured by path."""
    result: dict[str, EventLog] = {}
    if machine:
        result = dict(_windows() if sys.platform == "win32" else _macos() if sys.platform == "darwin" else _unix(deny))
    for name, path in configured.items():
        # A configured log replaces a machine log of the same name.
        result[name] = log_from_path(name, os.path.abspath(path), deny)
    return result


def log_from_path(name: str, path: str, deny: Iterable[str] = ()) -> EventLog:
    """Return the log at a configured path: a file with its rotated predecessors, or a directory of log files."""
    if os.path.isdir(path):
        return DirectoryLog(name, "Directory of log files", AllowedPaths([path], deny, reveal_paths=False), path)
    if path.lower().endswith(".evtx"):
        return EvtxLog(name, "Windows event log file", AllowedPaths([path], deny, reveal_paths=False), path)
    if path.endswith((".journal", ".journal~")):
        return JournalLog(name, "Journal file", AllowedPaths([path], deny, reveal_paths=False), [path])
    # The directory is allowed for the rotated files; nothing else in it is read.
    roots = AllowedPaths([os.path.dirname(path)], deny, reveal_paths=False)
    return TextLog(name, "Log file", roots, partial(find_rotated_files, roots, path))


def _windows() -> Iterator[tuple[str, EventLog]]:
    try:
        for name in ("System", "Application", "Security"):
            yield name, WindowsLog(name, _DESCRIPTIONS[name])
        # Windows has more than a thousand channels, most of them empty.
        for name in islice(list_channels(), MAX_CHANNELS):
            yield name, WindowsLog(name)
    except SystemToolError:
        yield from ((name, EmptyLog(name)) for name in _DESCRIPTIONS)


def _macos() -> Iterator[tuple[str, EventLog]]:
    for name, predicate in _MACOS_PREDICATES.items():
        yield name, MacOSLog(name, _DESCRIPTIONS[name], predicate)


def _unix(deny: Iterable[str]) -> Iterator[tuple[str, EventLog]]:
    folders = [path for path in JOURNAL_DIRS if os.path.isdir(path)]
    roots = AllowedPaths(folders, deny, reveal_paths=False)
    problems: list[str] = []
    paths = find_journal_files(roots, folders, problems)
    # Journal files may exist but be readable only for a group. Then journalctl may still have access.
    if any(_is_readable(roots, path) for path in paths):
        for name, where in _JOURNAL_FILTERS.items():
            yield name, JournalLog(name, _DESCRIPTIONS[name], roots, folders, field_filter=where)
        yield (
            "Application",
            JournalLog("Application", _DESCRIPTIONS["Application"], roots, folders, file_filter=_is_users),
        )
    elif (paths or problems) and subprocesses.find_command("journalctl") is not None:
        for name, where in _JOURNAL_FILTERS.items():
            yield name, JournalctlLog(name, _DESCRIPTIONS[name], field_filter=where)
        yield "Application", JournalctlLog("Application", _DESCRIPTIONS["Application"], ("--user",))
    else:
        yield from _text_logs(AllowedPaths([TEXT_LOG_DIR], deny, reveal_paths=False))


def _is_users(name: str) -> bool:
    return name.startswith("user-")


def _is_readable(roots: AllowedPaths, path: str) -> bool:
    try:
        with roots.open(path):
            return True
    except SystemToolError:
        return False


def _text_logs(roots: AllowedPaths) -> Iterator[tuple[str, EventLog]]:
    for name, candidates in _TEXT_LOG_NAMES.items():
        paths = [path for candidate in candidates if _is_file(roots, path := f"{TEXT_LOG_DIR}/{candidate}")]
        if paths:
            yield name, TextLog(name, _DESCRIPTIONS[name], roots, partial(find_rotated_files, roots, paths[0]))
        elif name == "System" and os.path.isdir(TEXT_LOG_DIR):
            yield name, DirectoryLog(name, _DESCRIPTIONS[name], roots, TEXT_LOG_DIR)
        else:
            yield name, EmptyLog(name)


def _is_file(roots: AllowedPaths, path: str) -> bool:
    try:
        return stat.S_ISREG(roots.stat(path)[0].st_mode)
    except SystemToolError:
        return False


# Every part is open during a query, and a process has a limited number of descriptors.
MAX_DIRECTORY_LOGS = 128

# Later than every entry, so that the merge asks each part for its first entry.
_NOW = 2**63


class DirectoryLog(EventLog):
    """Log files of a directory, merged by time."""

    def __init__(self, name: str, description: str, roots: AllowedPaths, path: str) -> None:
        super().__init__(name, description)
        self._roots = roots
        self._path = path

    def scan_newest_first(self, query: LogQuery, after: LogPosition, problems: list[str]) -> Iterator[ScanStep]:
        latest, positions = (None, {}) if after is None else (after[0], dict(after[1]))
        streams = [
            (_NOW, partial(self._part, part, mark, positions.get(mark), latest, query, problems))
            for mark, part in self._current_logs(problems).items()
        ]
        for when, (mark, position, step) in merge_newest_first(streams):
            # The position of the merged log consists of the positions of all its parts.
            positions[mark] = position
            if step is not None:
                step.position = [when, dict(positions)]
            yield step

    def _part(
        self, part: EventLog, mark: str, position: LogPosition, latest: int | None, query: LogQuery, problems: list[str]
    ) -> Iterator[tuple[int, tuple[str, LogPosition, ScanStep]]]:
        """Yield the entries of one part, each with its sort time and position."""
        # If the part is first read on a later page, skip what was written after the first page.
        since = latest if position is None else None
        when = _NOW if latest is None else latest
        try:
            for step in part.scan_newest_first(query, position, problems):
                if isinstance(step, LogEntry | SkippedRange):
                    position = step.position
                if isinstance(step, LogEntry):
                    # A part may be slightly out of order; its sort key never rises again, or the merge would have to go
                    # back.
                    when = min(when, step.time)
                    if since is not None and step.time > since:
                        yield when, (mark, position, None)
                        continue
                yield when, (mark, position, step)
        except SystemToolError as failure:
            problems.append(str(failure))

    def oldest_first(self, query: LogQuery, after: LogPosition, problems: list[str]) -> Iterator[ScanStep]:
        positions: dict[str, LogPosition] = {} if after is None else dict(after)
        streams = [
            (_NOW, partial(self._part_forwards, part, mark, positions.get(mark), query, problems))
            for mark, part in self._current_logs(problems).items()
        ]
        for _, (mark, position, step) in merge_newest_first(streams):
            positions[mark] = position
            if step is not None:
                step.position = dict(positions)
            yield step

    def _part_forwards(
        self, part: EventLog, mark: str, position: LogPosition, query: LogQuery, problems: list[str]
    ) -> Iterator[tuple[int, tuple[str, LogPosition, ScanStep]]]:
        """Yield the entries of one part, each with a key that is larger for older entries, and with its position."""
        latest = 0
        try:
            for step in part.oldest_first(query, position, problems):
                if isinstance(step, LogEntry | SkippedRange):
                    position = step.position
                if isinstance(step, LogEntry):
                    # As above: the key never goes back.
                    latest = max(latest, step.time)
                yield -latest, (mark, position, step)
        except SystemToolError as failure:
            problems.append(str(failure))

    def entry(self, id: int) -> LogEntry | None:
        result = (part.entry(id) for part in self._current_logs([]).values())
        return next((entry for entry in result if entry is not None), None)

    def count(self, seconds: float = COUNT_TIMEOUT_SECONDS) -> int | None:
        deadline = time.monotonic() + seconds
        total = 0
        for part in self._current_logs([]).values():
            # One deadline for all parts; a partial sum would be shown as the total.
            counted = part.count(deadline - time.monotonic())
            if counted is None:
                return None
            total += counted
        return total

    def end_position(self) -> LogPosition:
        return {mark: part.end_position() for mark, part in self._current_logs([]).items()}

    def read_since(self, position: LogPosition, limit: int, problems: list[str]) -> TailResult:
        """Return the new entries of each part, ordered by time; all entries of a new part."""
        positions, results, has_more = dict(position or {}), list[LogEntry](), False
        for mark, part in self._current_logs(problems).items():
            if len(results) >= limit:
                has_more = True
                break
            try:
                new = part.read_since(positions.get(mark), limit - len(results), problems)
            except SystemToolError as failure:
                problems.append(str(failure))
                continue
            results += new.entries
            positions[mark] = new.place
            has_more = has_more or new.has_more
        # Stable, so that entries of one part with the same time stay in their order.
        results.sort(key=lambda entry: entry.time)
        return TailResult(results, positions, has_more)

    def size(self) -> int | None:
        return sum(part.size() or 0 for part in self._current_logs([]).values())

    def change_stamp(self) -> object:
        return [part.change_stamp() for part in self._current_logs([]).values()]

    def _current_logs(self, problems: list[str]) -> dict[str, EventLog]:
        """Return the current parts of the directory by a checksum of their names, which keeps positions short."""
        result: dict[str, EventLog] = {}
        try:
            if find_journal_files(self._roots, [self._path], []):
                result["journal"] = JournalLog(self.name, "", self._roots, [self._path])
            with self._roots.open_directory(self._path) as folder:
                names = [entry.name for entry in folder.scan() if entry.name.lower().endswith(".evtx")]
            for name in names:
                mark = zlib.crc32(name.encode("utf-8", "surrogateescape"))
                result[f"{mark:x}"] = EvtxLog(name, "", self._roots, f"{self._path}/{name}", tag=mark & 0xFFFF)
            for chain in group_rotated_files(self._roots, self._path):
                mark = zlib.crc32(chain.stem.encode("utf-8", "surrogateescape"))
                result[f"{mark:x}"] = TextLog(self.name, "", self._roots, partial(_is_same_chain, chain), is_found=True)
        except SystemToolError as failure:
            problems.append(str(failure))
        if len(result) > MAX_DIRECTORY_LOGS:
            problems.append(f"The directory has {len(result):,} logs; only the first {MAX_DIRECTORY_LOGS} were read.")
        return dict(list(result.items())[:MAX_DIRECTORY_LOGS])


def _is_same_chain(chain: RotatedFiles) -> RotatedFiles:
    return chain
