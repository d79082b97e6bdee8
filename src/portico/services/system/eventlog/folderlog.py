"""A folder of log files, of whatever kinds, as one log: journals, Windows event logs, text that rotates."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from functools import partial

from portico.services.system.containment import AllowedRoots
from portico.services.system.errors import MachineError
from portico.services.system.eventlog.entries import Log, LogEntry, Position, Query
from portico.services.system.eventlog.evtx import EvtxLog
from portico.services.system.eventlog.journal.log import JournalLog, files
from portico.services.system.eventlog.merge import newest_first
from portico.services.system.eventlog.textlog import Chain, TextLog, chains

MOST_PARTS = 128

_NOW = 2**63


class FolderLog:
    def __init__(self, name: str, description: str, roots: AllowedRoots, path: str) -> None:
        self.name = name
        self.description = description
        self._roots = roots
        self._path = path

    def newest_first(self, query: Query, after: Position, problems: list[str]) -> Iterator[LogEntry | None]:
        latest, places = (None, {}) if after is None else (after[0], dict(after[1]))
        streams = [
            (_NOW, partial(self._part, part, mark, places.get(mark), latest, query, problems))
            for mark, part in self._parts(problems).items()
        ]
        for time, (mark, place, entry) in newest_first(streams):
            # Where the whole log is: what each of its parts has come to.
            places[mark] = place
            if entry is not None:
                entry.position = [time, places]
            yield entry

    def _part(
        self, part: Log, mark: str, place: Position, latest: int | None, query: Query, problems: list[str]
    ) -> Iterator[tuple[int, tuple[str, Position, LogEntry | None]]]:
        """The entries of one part, each with its time and with where it is."""
        # Of a part that is begun only now, what was written since the first page is passed over.
        since = latest if place is None else None
        time = _NOW if latest is None else latest
        try:
            for entry in part.newest_first(query, place, problems):
                if entry is not None:
                    place = entry.position
                    time = min(time, entry.time)
                    if since is not None and entry.time > since:
                        entry = None
                yield time, (mark, place, entry)
        except MachineError as failure:
            problems.append(str(failure))

    def entry(self, id: int) -> LogEntry | None:
        found = (part.entry(id) for part in self._parts([]).values())
        return next((entry for entry in found if entry is not None), None)

    def count(self) -> int | None:
        counts = [part.count() for part in self._parts([]).values()]
        return None if None in counts else sum(count or 0 for count in counts)

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
                found[f"{mark:x}"] = TextLog(self.name, "", self._roots, partial(_same, chain))
        except MachineError as failure:
            problems.append(str(failure))
        if len(found) > MOST_PARTS:
            problems.append(f"The folder has {len(found):,} logs; {MOST_PARTS} of them were read.")
        return dict(list(found.items())[:MOST_PARTS])


def _same(chain: Chain) -> Chain:
    return chain
