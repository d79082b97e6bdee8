"""The logs that there are, by name, and questions to them."""

from __future__ import annotations

import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from difflib import get_close_matches
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from portico_services.system.cursors import Cursors
from portico_services.system.errors import Absent, MachineError
from portico_services.system.logs.entries import LEVELS, EmptyStretch, Log, LogEntry, Query, Step, iso
from portico_services.system.results import MAX_PAGE_ENTRIES, LogStats
from portico_services.system.text import LONGEST_MESSAGE, plain

QUERY_SECONDS = 2.0
# How long, and over how many entries, matches beyond the page are counted in one call: it should answer in 100 ms.
REST_SECONDS = 0.08
MOST_COUNTED = 5000
# Of a page: characters of all messages, and entries, which have some 256 characters around their messages.
LARGEST_PAGE = 2**20
MAX_COUNTS = 1024
MAX_PAGE_NUMBERS = 4096
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
    page: int = 1
    page_size: int = 0


class EntryTest(Protocol):
    """A test that entries must pass besides the query, such as that of what is shown of them."""

    # Tells it from other tests of the same query.
    key: object

    def __call__(self, entry: LogEntry) -> bool: ...


class CountedPart(Struct):
    """How many entries match from the newest one down to a position, when the log had this stamp."""

    stamp: object
    total: int
    position: Any
    is_exact: bool


class PageNumbers:
    """The numbers of pages that are asked for by offset: a page may have had fewer entries than its limit."""

    def __init__(self) -> None:
        self._numbers: OrderedDict[bytes, int] = OrderedDict()
        self._lock = threading.Lock()

    def number(self, question: Any, offset: int, size: int) -> int:
        with self._lock:
            return self._numbers.get(_key(question, offset)) or -(-offset // size) + 1

    def note(self, question: Any, offset: int, number: int) -> None:
        with self._lock:
            self._numbers[_key(question, offset)] = number
            while len(self._numbers) > MAX_PAGE_NUMBERS:
                self._numbers.popitem(last=False)


def _key(*parts: Any) -> bytes:
    return msgspec.json.encode(parts, enc_hook=str)


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
        self.clock = clock
        self._pages = PageNumbers()
        self.counts: OrderedDict[bytes, CountedPart] = OrderedDict()

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
        fits: EntryTest | None = None,
        oldest_first: bool = False,
    ) -> LogPage:
        """Return a page of the entries that match and that pass the test `fits`."""
        log = self.named(name)
        question = ["log", log.name, query, *(["oldest first"] if oldest_first else [])]
        position, page = None, None
        if cursor is not None:
            # The offset and the page number in it are only shown; the position is where it goes on.
            position, offset, *numbers = self._cursors.redeem(cursor, question)
            page = numbers[0] if numbers else None
        size = min(limit, MAX_PAGE_ENTRIES)
        page = page or self._pages.number(question, offset, size)
        counting = _Counting(self, log, query, fits, is_first=cursor is None)
        asked = _RunningQuery(log, query, position, self.clock, seconds, fits, oldest_first=oldest_first)
        with closing(asked):
            if cursor is None:
                asked.skip(offset)
            # Where all matches are known, the log need not be searched behind the last of them.
            left = counting.left(offset)
            entries = _page(asked, size if left is None else min(size, left))
            seen = offset + len(entries)
            # A position holds until the next entry is asked for, so the cursor is made before there is any counting.
            position = asked.position
            missing: list[str] = []
            following = None if position is None else self._cursors.issue(question, [position, seen, page + 1], missing)
            timed_out = asked.timed_out
            if left is None:
                asked.allow(REST_SECONDS, MOST_COUNTED)
                is_end = asked.next() is None and not asked.timed_out
            else:
                is_end = len(entries) >= left
            total, counted = counting.total(asked, seen, is_end=is_end, oldest_first=oldest_first)
        # Where it was not looked to the end, there may be more.
        has_more = not is_end and (total > seen or not counted or oldest_first)
        if has_more:
            self._pages.note(question, seen, page + 1)
        is_short = has_more and not timed_out and len(entries) < size
        return LogPage(
            entries=entries,
            offset=offset,
            total=total,
            counted=counted,
            has_more=has_more,
            cursor=following if has_more else None,
            problems=[*asked.problems, *(missing if has_more else ())][:MOST_PROBLEMS],
            timed_out=timed_out,
            page=page,
            page_size=len(entries) if is_short and entries else size,
        )

    def follow(
        self,
        name: str,
        query: Query,
        *,
        limit: int,
        cursor: str | None = None,
        fits: EntryTest | None = None,
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
        deadline = self.clock() + seconds
        while has_more and len(found) < limit:
            new = log.since(place, limit - len(found), problems)
            found += [entry for entry in new.entries if query.matches(entry) and (fits is None or fits(entry))]
            place, has_more = new.place, new.has_more
            if self.clock() > deadline:
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
        asked = _RunningQuery(self.named(name), query, None, self.clock, seconds)
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


def _page(asked: _RunningQuery, size: int) -> list[LogEntry]:
    """Return the next entries: so many, or as many as a page has room for."""
    entries: list[LogEntry] = []
    room = LARGEST_PAGE
    while len(entries) < size and room > 0 and (entry := asked.next()) is not None:
        entries.append(entry)
        room -= min(len(entry.message), LONGEST_MESSAGE)
    return entries


class _Counting:
    """Counts what matches a query, beyond the page. What was counted is remembered for as long as the log does not
    change, and the next call goes on from there: so a total never gets smaller, and becomes exact after some calls."""

    def __init__(self, logs: Logs, log: Log, query: Query, fits: EntryTest | None, *, is_first: bool) -> None:
        self._logs = logs
        # A page behind a cursor is counted from where that began, and the log may have grown since.
        self._stores = is_first
        self._log = log
        self._query = query
        self._fits = fits
        try:
            self._stamp = log.stamp()
        except MachineError:
            self._stamp = None
        self._name = _key(log.name, query, None if fits is None else fits.key)

    def left(self, offset: int) -> int | None:
        """Return how many entries match behind an offset, if that is known; not for a page behind a cursor."""
        known = self._known()
        return max(0, known.total - offset) if self._stores and known is not None and known.is_exact else None

    def total(self, asked: _RunningQuery, seen: int, *, is_end: bool, oldest_first: bool) -> tuple[int, bool]:
        """Return how many entries match, at least, and whether these are all. `asked` has gone one entry beyond the
        page, unless it was at its end."""
        known = self._known()
        if known is not None and known.is_exact:
            return max(known.total, seen), True
        if is_end:
            return self._store(seen, None, is_exact=True)
        if self._query.is_open and not asked.timed_out and (count := self._log.count()) is not None:
            return max(seen + 1, count), True
        least = seen if asked.timed_out else seen + 1
        if oldest_first or (known is not None and known.total >= seen):
            base, position = (0, None) if known is None else (known.total, known.position)
            rest = _RunningQuery(self._log, self._query, position, self._logs.clock, REST_SECONDS, self._fits)
            with closing(rest):
                rest.allow(REST_SECONDS, MOST_COUNTED)
                total, is_exact = self._count(rest, base)
            return max(total, least), is_exact
        return self._count(asked, least)

    def _count(self, asked: _RunningQuery, base: int) -> tuple[int, bool]:
        total = base + asked.skip(2**63)
        return self._store(total, asked.position, is_exact=not asked.timed_out)

    def _known(self) -> CountedPart | None:
        known = self._logs.counts.get(self._name)
        return known if known is not None and self._stamp is not None and known.stamp == self._stamp else None

    def _store(self, total: int, position: Any, *, is_exact: bool) -> tuple[int, bool]:
        if self._stamp is None or not self._stores:
            return total, is_exact
        counts = self._logs.counts
        before = counts.get(self._name)
        counts[self._name] = CountedPart(self._stamp, total, position, is_exact)
        counts.move_to_end(self._name)
        while len(counts) > MAX_COUNTS:
            counts.popitem(last=False)
        if before is not None and not is_exact and self._log.has_only_grown(before.stamp, self._stamp):
            return max(total, before.total), False
        return total, is_exact


class _RunningQuery:
    """A question that is being answered: the next entry that matches, as long as there is time."""

    def __init__(
        self,
        log: Log,
        query: Query,
        position: Any,
        clock: Callable[[], float],
        seconds: float,
        fits: EntryTest | None = None,
        *,
        oldest_first: bool = False,
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
        read = log.oldest_first if oldest_first else log.newest_first
        self._entries: Iterator[Step] = read(query, position, self.problems)

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
        """Go on for no more than this time and so many steps."""
        self._deadline = self._clock() + seconds
        self._most_steps = self._steps + steps

    def close(self) -> None:
        close = getattr(self._entries, "close", None)
        if close is not None:
            close()
