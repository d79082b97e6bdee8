"""Which logs a machine has. The names are those of Windows, wherever one is: System, Application, Security, Kernel."""

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
from portico_services.system.errors import MachineError
from portico_services.system.logs.entries import (
    COUNTING_SECONDS,
    EmptyStretch,
    Log,
    LogEntry,
    NewEntries,
    Position,
    Query,
    Step,
    newest_first,
)
from portico_services.system.logs.evtx import EvtxLog
from portico_services.system.logs.journal.log import JournalctlLog, JournalLog, Where, files
from portico_services.system.logs.platform_logs import MacLog, WindowsLog, channels
from portico_services.system.logs.text_log import Chain, TextLog, chains, rotated
from portico_services.system.path_access import AllowedRoots

JOURNALS = ("/var/log/journal", "/run/log/journal")
TEXTS = "/var/log"
MOST_CHANNELS = 500

_WORDS = {
    "System": "Everything that this machine logs",
    "Application": "What programs of users log",
    "Security": "Logins and what concerns rights",
    "Kernel": "What the kernel says",
}
# Facilities auth (4) and authpriv (10) of syslog.
_OF_JOURNAL: dict[str, Where] = {
    "System": {},
    "Security": {"SYSLOG_FACILITY": frozenset({"4", "10"})},
    "Kernel": {"_TRANSPORT": frozenset({"kernel"})},
}
_OF_TEXT = {
    "System": ("syslog", "messages", "system.log"),
    "Application": ("user.log", "daemon.log"),
    "Security": ("auth.log", "secure", "authlog"),
    "Kernel": ("kern.log", "kernel.log", "dmesg"),
}
_OF_MACOS = {
    "System": "",
    "Application": 'processImagePath BEGINSWITH "/Applications/"',
    "Security": 'process == "securityd" OR process == "sudo" OR process == "sshd" OR process == "loginwindow"',
    "Kernel": 'process == "kernel"',
}


class NoLog(Log):
    """A log of a machine that keeps none: it can be asked, and says so."""

    def __init__(self, name: str) -> None:
        super().__init__(name, f"{_WORDS.get(name, name)}: this machine keeps no such log, or not where it can be read")

    def newest_first(self, query: Query, after: Position, problems: list[str]) -> Iterator[Step]:
        problems.append(f"{self.description}.")
        return iter(())

    def entry(self, id: int) -> LogEntry | None:
        return None

    def count(self, seconds: float = COUNTING_SECONDS) -> int | None:
        return 0

    def size(self) -> int | None:
        return 0


def logs(
    configured: Mapping[str, str | os.PathLike[str]], *, machine: bool = True, deny: Iterable[str] = ()
) -> dict[str, Log]:
    """The machine's own logs, unless they are not wanted, and those that are configured by a path."""
    found: dict[str, Log] = {}
    if machine:
        found = dict(_windows() if sys.platform == "win32" else _macos() if sys.platform == "darwin" else _unix(deny))
    for name, path in configured.items():
        found[name] = at_path(name, os.path.abspath(path), deny)
    return found


def at_path(name: str, path: str, deny: Iterable[str] = ()) -> Log:
    """A log that an operator has named: a file with its rotated forms, or a folder of files of any kind."""
    if os.path.isdir(path):
        return FolderLog(name, "A folder of log files", AllowedRoots([path], deny, tells_paths=False), path)
    if path.lower().endswith(".evtx"):
        return EvtxLog(name, "A Windows event log in a file", AllowedRoots([path], deny, tells_paths=False), path)
    if path.endswith((".journal", ".journal~")):
        return JournalLog(name, "A journal file", AllowedRoots([path], deny, tells_paths=False), [path])
    # The folder is allowed for the sake of the rotated forms; nothing else in it is asked for.
    roots = AllowedRoots([os.path.dirname(path)], deny, tells_paths=False)
    return TextLog(name, "A log file", roots, partial(rotated, roots, path))


def _windows() -> Iterator[tuple[str, Log]]:
    try:
        for name in ("System", "Application", "Security"):
            yield name, WindowsLog(name, _WORDS[name])
        for name in islice(channels(), MOST_CHANNELS):
            yield name, WindowsLog(name)
    except MachineError:
        yield from ((name, NoLog(name)) for name in _WORDS)


def _macos() -> Iterator[tuple[str, Log]]:
    for name, predicate in _OF_MACOS.items():
        yield name, MacLog(name, _WORDS[name], predicate)


def _unix(deny: Iterable[str]) -> Iterator[tuple[str, Log]]:
    folders = [path for path in JOURNALS if os.path.isdir(path)]
    roots = AllowedRoots(folders, deny, tells_paths=False)
    problems: list[str] = []
    paths = files(roots, folders, problems)
    if any(_is_readable(roots, path) for path in paths):
        for name, where in _OF_JOURNAL.items():
            yield name, JournalLog(name, _WORDS[name], roots, folders, where=where)
        yield "Application", JournalLog("Application", _WORDS["Application"], roots, folders, wanted=_is_users)
    elif (paths or problems) and subprocesses.find("journalctl") is not None:
        for name, where in _OF_JOURNAL.items():
            yield name, JournalctlLog(name, _WORDS[name], where=where)
        yield "Application", JournalctlLog("Application", _WORDS["Application"], ("--user",))
    else:
        yield from _texts(AllowedRoots([TEXTS], deny, tells_paths=False))


def _is_users(name: str) -> bool:
    return name.startswith("user-")


def _is_readable(roots: AllowedRoots, path: str) -> bool:
    try:
        with roots.open(path):
            return True
    except MachineError:
        return False


def _texts(roots: AllowedRoots) -> Iterator[tuple[str, Log]]:
    for name, candidates in _OF_TEXT.items():
        paths = [path for candidate in candidates if _is_file(roots, path := f"{TEXTS}/{candidate}")]
        if paths:
            yield name, TextLog(name, _WORDS[name], roots, partial(rotated, roots, paths[0]))
        elif name == "System" and os.path.isdir(TEXTS):
            yield name, FolderLog(name, _WORDS[name], roots, TEXTS)
        else:
            yield name, NoLog(name)


def _is_file(roots: AllowedRoots, path: str) -> bool:
    try:
        return stat.S_ISREG(roots.stat(path)[0].st_mode)
    except MachineError:
        return False


MOST_PARTS = 128

_NOW = 2**63


class FolderLog(Log):
    def __init__(self, name: str, description: str, roots: AllowedRoots, path: str) -> None:
        super().__init__(name, description)
        self._roots = roots
        self._path = path

    def newest_first(self, query: Query, after: Position, problems: list[str]) -> Iterator[Step]:
        latest, places = (None, {}) if after is None else (after[0], dict(after[1]))
        streams = [
            (_NOW, partial(self._part, part, mark, places.get(mark), latest, query, problems))
            for mark, part in self._parts(problems).items()
        ]
        for when, (mark, place, step) in newest_first(streams):
            # Where the whole log is: what each of its parts has come to.
            places[mark] = place
            if step is not None:
                step.position = [when, dict(places)]
            yield step

    def _part(
        self, part: Log, mark: str, place: Position, latest: int | None, query: Query, problems: list[str]
    ) -> Iterator[tuple[int, tuple[str, Position, Step]]]:
        """The entries of one part, each with its time and with where it is."""
        # Of a part that is begun only now, what was written since the first page is passed over.
        since = latest if place is None else None
        when = _NOW if latest is None else latest
        try:
            for step in part.newest_first(query, place, problems):
                if isinstance(step, LogEntry | EmptyStretch):
                    place = step.position
                if isinstance(step, LogEntry):
                    when = min(when, step.time)
                    if since is not None and step.time > since:
                        yield when, (mark, place, None)
                        continue
                yield when, (mark, place, step)
        except MachineError as failure:
            problems.append(str(failure))

    def oldest_first(self, query: Query, after: Position, problems: list[str]) -> Iterator[Step]:
        places: dict[str, Position] = {} if after is None else dict(after)
        streams = [
            (_NOW, partial(self._part_forwards, part, mark, places.get(mark), query, problems))
            for mark, part in self._parts(problems).items()
        ]
        for _, (mark, place, step) in newest_first(streams):
            places[mark] = place
            if step is not None:
                step.position = dict(places)
            yield step

    def _part_forwards(
        self, part: Log, mark: str, place: Position, query: Query, problems: list[str]
    ) -> Iterator[tuple[int, tuple[str, Position, Step]]]:
        """Yield the entries of one part, each with a key that is larger for an older entry, and with its position."""
        latest = 0
        try:
            for step in part.oldest_first(query, place, problems):
                if isinstance(step, LogEntry | EmptyStretch):
                    place = step.position
                if isinstance(step, LogEntry):
                    latest = max(latest, step.time)
                yield -latest, (mark, place, step)
        except MachineError as failure:
            problems.append(str(failure))

    def entry(self, id: int) -> LogEntry | None:
        found = (part.entry(id) for part in self._parts([]).values())
        return next((entry for entry in found if entry is not None), None)

    def count(self, seconds: float = COUNTING_SECONDS) -> int | None:
        deadline = time.monotonic() + seconds
        total = 0
        for part in self._parts([]).values():
            counted = part.count(deadline - time.monotonic())
            if counted is None:
                return None
            total += counted
        return total

    def end(self) -> Position:
        return {mark: part.end() for mark, part in self._parts([]).items()}

    def since(self, place: Position, most: int, problems: list[str]) -> NewEntries:
        """Of each part what is new in it, by time; of a part that is new itself, everything."""
        places, found, has_more = dict(place or {}), list[LogEntry](), False
        for mark, part in self._parts(problems).items():
            if len(found) >= most:
                has_more = True
                break
            try:
                new = part.since(places.get(mark), most - len(found), problems)
            except MachineError as failure:
                problems.append(str(failure))
                continue
            found += new.entries
            places[mark] = new.place
            has_more = has_more or new.has_more
        found.sort(key=lambda entry: entry.time)
        return NewEntries(found, places, has_more)

    def size(self) -> int | None:
        return sum(part.size() or 0 for part in self._parts([]).values())

    def stamp(self) -> object:
        return [part.stamp() for part in self._parts([]).values()]

    def _parts(self, problems: list[str]) -> dict[str, Log]:
        """The parts that the folder has now, by a digest of their names, which keeps positions short."""
        found: dict[str, Log] = {}
        try:
            if files(self._roots, [self._path], []):
                found["journal"] = JournalLog(self.name, "", self._roots, [self._path])
            with self._roots.folder(self._path) as folder:
                names = [entry.name for entry in folder.scan() if entry.name.lower().endswith(".evtx")]
            for name in names:
                mark = zlib.crc32(name.encode("utf-8", "surrogateescape"))
                found[f"{mark:x}"] = EvtxLog(name, "", self._roots, f"{self._path}/{name}", tag=mark & 0xFFFF)
            for chain in chains(self._roots, self._path):
                mark = zlib.crc32(chain.stem.encode("utf-8", "surrogateescape"))
                found[f"{mark:x}"] = TextLog(self.name, "", self._roots, partial(_same, chain), is_found=True)
        except MachineError as failure:
            problems.append(str(failure))
        if len(found) > MOST_PARTS:
            problems.append(f"The folder has {len(found):,} logs; {MOST_PARTS} of them were read.")
        return dict(list(found.items())[:MOST_PARTS])


def _same(chain: Chain) -> Chain:
    return chain
