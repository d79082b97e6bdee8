"""The logs that there are, by name, and questions to them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from difflib import get_close_matches
from typing import Any

from msgspec import Struct

from portico.services.system.cursors import Cursors
from portico.services.system.errors import Absent, MachineError
from portico.services.system.eventlog.entries import LEVELS, EmptyStretch, Log, LogEntry, Query, Step, iso
from portico.services.system.results import LogStats
from portico.services.system.text import LONGEST_MESSAGE, plain

QUERY_SECONDS = 2.0
# How long, and over how many entries, what matches is counted beyond the page. The second is what mostly ends it, so
# that the same question gives the same number.
REST_SECONDS = 0.05
MOST_COUNTED = 2000
# Of a page: characters of all messages, and of what stands around them, some 256 for each entry.
LARGEST_PAGE = 2**20
LARGEST_AROUND = 1_536_000
_AROUND = 256
MOST_PROBLEMS = 10
MOST_SOURCES = 20
_STEPS = 64


class LogPage(Struct):
    """One page of what was asked for. `total` is what was counted, and exact only if `counted`."""

    entries: list[LogEntry]
    offset: int
    total: int
    counted: bool
    has_more: bool
    cursor: str | None
    problems: list[str]
    timed_out: bool


class FollowPage(Struct):
    """Entries that are new, oldest first, and the cursor for what follows them."""

    entries: list[LogEntry]
    cursor: str | None
    has_more: bool
    problems: list[str]


class Logs:
    """`make` gives the logs there are; it is asked again when one is not found, since logs come and go."""

    def __init__(
        self, make: Callable[[], Mapping[str, Log]], cursors: Cursors, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._make = make
        self._logs: Mapping[str, Log] | None = None
        self._cursors = cursors
        self._clock = clock

    @property
    def all(self) -> Mapping[str, Log]:
        if self._logs is None:
            self._logs = self._make()
        return self._logs

    def named(self, name: str) -> Log:
        """A log by its name, in whatever case."""
        for fresh in (False, True):
            if fresh:
                self._logs = None
            folded = {known.casefold(): log for known, log in self.all.items()}
            if name.casefold() in folded:
                return folded[name.casefold()]
        near = get_close_matches(name, self.all, 3, 0.5)
        words = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
        raise Absent(f"There is no log {name[:100]!r}.{words} There are: {', '.join(self.all)}.")

    def query(
        self,
        name: str,
        query: Query,
        *,
        limit: int,
        offset: int = 0,
        cursor: str | None = None,
        seconds: float = QUERY_SECONDS,
        fits: Callable[[LogEntry], bool] | None = None,
    ) -> LogPage:
        """A page of the entries that match, and that fit besides."""
        log = self.named(name)
        question = ["log", log.name, query]
        position = None
        if cursor is not None:
            # The offset in it is only for show; the position is where it goes on.
            position, offset = self._cursors.redeem(cursor, question)
        asked = _RunningQuery(log, query, position, self._clock, seconds, fits)
        with closing(asked):
            if cursor is None:
                asked.skip(offset)
            entries: list[LogEntry] = []
            room, around = LARGEST_PAGE, LARGEST_AROUND
            while len(entries) < limit and room > 0 and around > 0 and (entry := asked.next()) is not None:
                entries.append(entry)
                room -= min(len(entry.message), LONGEST_MESSAGE)
                around -= _AROUND
            seen = offset + len(entries)
            # A position holds until the next entry is asked for, so the cursor is made before there is any counting.
            position = asked.position
            missing: list[str] = []
            following = None if position is None else self._cursors.issue(question, [position, seen], missing)
            timed_out = asked.timed_out
            total, counted = self._total(asked, log, query, seen)
        # Where it was not looked to the end, there may be more.
        has_more = total > seen or not counted
        return LogPage(
            entries=entries,
            offset=offset,
            total=total,
            counted=counted,
            has_more=has_more,
            cursor=following if has_more else None,
            problems=[*asked.problems, *(missing if has_more else ())][:MOST_PROBLEMS],
            timed_out=timed_out,
        )

    def _total(self, asked: _RunningQuery, log: Log, query: Query, seen: int) -> tuple[int, bool]:
        """How many entries there are, at least, and whether they are all. Where the log does not know they are counted,
        but not for long."""
        asked.allow(REST_SECONDS, MOST_COUNTED)
        if asked.next() is None:
            return seen, not asked.timed_out
        if query.is_open and (known := log.count()) is not None:
            return max(seen + 1, known), True
        return seen + 1 + asked.skip(2**63), not asked.timed_out

    def follow(
        self,
        name: str,
        query: Query,
        *,
        limit: int,
        cursor: str | None = None,
        fits: Callable[[LogEntry], bool] | None = None,
        seconds: float = QUERY_SECONDS,
    ) -> FollowPage:
        """What matches of the entries since a cursor, oldest first; without a cursor, only one for from now on."""
        log = self.named(name)
        question = ["follow", log.name, query]
        problems: list[str] = []
        place, found, has_more = None, list[LogEntry](), cursor is not None
        if cursor is None:
            place = log.end()
        else:
            [place] = self._cursors.redeem(cursor, question)
        deadline = self._clock() + seconds
        while has_more and len(found) < limit:
            new = log.since(place, limit - len(found), problems)
            found += [entry for entry in new.entries if query.matches(entry) and (fits is None or fits(entry))]
            place, has_more = new.place, new.has_more
            if self._clock() > deadline:
                break
        following = self._cursors.issue(question, [place], problems)
        return FollowPage(found, following, has_more, problems[:MOST_PROBLEMS])

    def entry(self, name: str, id: int) -> LogEntry:
        entry = self.named(name).entry(id)
        if entry is None:
            raise Absent(f"The log {name!r} has no entry {id}. It may have been vacuumed away.")
        return entry

    def stats(self, name: str, query: Query, *, seconds: float = QUERY_SECONDS) -> LogStats:
        """What a log consists of. Where there is more of it than there is time, the newest part."""
        asked = _RunningQuery(self.named(name), query, None, self._clock, seconds)
        levels: Counter[int] = Counter()
        sources: Counter[str] = Counter()
        oldest = newest = None
        with closing(asked):
            while (entry := asked.next()) is not None:
                levels[entry.level] += 1
                sources[entry.source] += 1
                newest = entry.time if newest is None else max(newest, entry.time)
                oldest = entry.time if oldest is None else min(oldest, entry.time)
        return LogStats(
            log_name=name,
            total_count=levels.total(),
            total_is_exact=not asked.timed_out,
            by_level={LEVELS[level]: count for level, count in sorted(levels.items(), reverse=True)},
            by_source={plain(source): count for source, count in sources.most_common(MOST_SOURCES)},
            oldest=None if oldest is None else iso(oldest),
            newest=None if newest is None else iso(newest),
            problems=asked.problems[:MOST_PROBLEMS],
        )

    def stamps(self) -> dict[str, object]:
        """For each log something that changes when it grows."""
        found: dict[str, object] = {}
        for name, log in self.all.items():
            try:
                found[name] = log.stamp()
            except MachineError:
                found[name] = None
        return found


class _RunningQuery:
    """A question that is being answered: the next entry that matches, as long as there is time."""

    def __init__(
        self,
        log: Log,
        query: Query,
        position: Any,
        clock: Callable[[], float],
        seconds: float,
        fits: Callable[[LogEntry], bool] | None = None,
    ) -> None:
        self._fits = fits
        self.problems: list[str] = []
        self.timed_out = False
        self.position: Any = position
        self._clock = clock
        self._deadline = clock() + seconds
        self._query = query
        self._steps = 0
        self._most_steps = 2**63
        self._entries: Iterator[Step] = log.newest_first(query, position, self.problems)

    def next(self) -> LogEntry | None:
        """The next one, or None at the end, or when time is up: then `timed_out`."""
        if self.timed_out:
            return None
        for step in self._entries:
            self._steps += 1
            is_entry = isinstance(step, LogEntry)
            if self._steps > self._most_steps or self._is_late(is_entry):
                self.timed_out = True
            elif isinstance(step, LogEntry) and self._matches(step):
                self.position = step.position
                return step
            if isinstance(step, LogEntry | EmptyStretch) and not (self.timed_out and is_entry):
                self.position = step.position
            if self.timed_out:
                return None
        return None

    def _is_late(self, is_entry: bool) -> bool:
        """Whether time is up. It is looked at after a step without an entry, which may have taken long."""
        return (not is_entry or not self._steps % _STEPS) and self._clock() > self._deadline

    def _matches(self, entry: LogEntry) -> bool:
        return self._query.matches(entry) and (self._fits is None or self._fits(entry))

    def skip(self, most: int) -> int:
        """Pass over at most so many; gives how many there were."""
        passed = 0
        while passed < most and self.next() is not None:
            passed += 1
        return passed

    def allow(self, seconds: float, steps: int) -> None:
        """From here on no more than this time and so many steps."""
        self._deadline = min(self._deadline, self._clock() + seconds)
        self._most_steps = self._steps + steps

    def close(self) -> None:
        close = getattr(self._entries, "close", None)
        if close is not None:
            close()
