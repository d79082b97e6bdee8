"""Registry of logs by name, and queries on them."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from difflib import get_close_matches
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from portico.caching import LruCache
from portico_services.system.cursors import EncryptedCursorCodec
from portico_services.system.errors import NotFound, SystemToolError
from portico_services.system.logs.entries import (
    LEVELS,
    EventLog,
    LogEntry,
    LogQuery,
    ScanStep,
    SkippedRange,
    format_iso,
)
from portico_services.system.results import MAX_PAGE_ENTRIES, LogStats
from portico_services.system.text import MAX_MESSAGE_CHARS, escape_controls

# A model waits for the response: a partial page with a cursor is more useful than a complete one much later.
QUERY_TIMEOUT_SECONDS = 2.0
# Limits for counting matches beyond the page in one call: it should return within 100 ms.
COUNT_GRACE_SECONDS = 0.08
MAX_COUNTED_ENTRIES = 5000
# Limits of a page: total message characters, and entries, which have about 256 characters besides the message.
MAX_PAGE_MESSAGE_CHARS = 2**20
# Counts and page numbers are only hints, so the oldest may be dropped at any time.
MAX_COUNTS = 1024
MAX_PAGE_NUMBERS = 4096
MAX_REPORTED_PROBLEMS = 10
MAX_COUNTED_SOURCES = 20
# Reading the clock for every entry would cost more than skipping it.
_CLOCK_CHECK_INTERVAL = 64


class EntryPage(Struct):
    """Page of a query. `total` is the count so far; it is exact only if `counted`."""

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
    """Additional test for entries, such as one on their anonymized form."""

    # Distinguishes different tests of the same query.
    key: object

    def __call__(self, entry: LogEntry) -> bool: ...


class CountedPart(Struct):
    """Number of matching entries from the newest one down to a position, for a change stamp of the log."""

    stamp: object
    total: int
    position: Any
    is_exact: bool


class PageNumbers:
    """Page numbers of queries by offset: a page may have fewer entries than its limit."""

    def __init__(self) -> None:
        self._numbers: LruCache[bytes, int] = LruCache(MAX_PAGE_NUMBERS)
        self._lock = threading.Lock()

    def number(self, question: Any, offset: int, size: int) -> int:
        with self._lock:
            return self._numbers.get(_key(question, offset)) or -(-offset // size) + 1

    def note(self, question: Any, offset: int, number: int) -> None:
        with self._lock:
            self._numbers[_key(question, offset)] = number


def _key(*parts: Any) -> bytes:
    return msgspec.json.encode(parts, enc_hook=str)


class FollowPage(Struct):
    """New entries, oldest first, and the cursor to continue with."""

    entries: list[LogEntry]
    cursor: str | None
    has_more: bool
    problems: list[str]


class LogRegistry:
    """Logs by name. `make` returns the existing logs; it is called again for an unknown name, because logs come
    and go.
    """

    def __init__(
        self,
        make: Callable[[], Mapping[str, EventLog]],
        cursors: EncryptedCursorCodec,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._make = make
        self._logs: Mapping[str, EventLog] | None = None
        self._cursors = cursors
        self.clock = clock
        self._pages = PageNumbers()
        self.counts: LruCache[bytes, CountedPart] = LruCache(MAX_COUNTS)

    @property
    def list(self) -> Mapping[str, EventLog]:
        if self._logs is None:
            self._logs = self._make()
        return self._logs

    def get(self, name: str) -> EventLog:
        """Return a log by name, ignoring case. Raises NotFound."""
        # Discovery lists directories, so it is repeated only if the name is unknown.
        for fresh in (False, True):
            if fresh:
                self._logs = None
            folded = {log_name.casefold(): log for log_name, log in self.list.items()}
            if name.casefold() in folded:
                return folded[name.casefold()]
        suggestions = get_close_matches(name, self.list, 3, 0.5)
        words = f" Did you mean {' or '.join(map(repr, suggestions))}?" if suggestions else ""
        raise NotFound(f"Unknown log {name[:100]!r}.{words} Available logs: {', '.join(self.list)}.")

    def query(
        self,
        name: str,
        query: LogQuery,
        *,
        limit: int,
        offset: int = 0,
        cursor: str | None = None,
        seconds: float = QUERY_TIMEOUT_SECONDS,
        fits: EntryTest | None = None,
        oldest_first: bool = False,
    ) -> EntryPage:
        """Return a page of the entries that match the query and pass `fits`."""
        log = self.get(name)
        question = ["log", log.name, query, *(["oldest first"] if oldest_first else [])]
        position, page, before, to_skip = None, None, 0, offset
        if cursor is not None:
            # Offset and page number of a cursor are informational; the position determines where to continue. A
            # cursor also states how many matches are still to be skipped, because time may run out while skipping.
            # Tolerates cursors without these numbers.
            position, before, *numbers = self._cursors.decode(cursor, question)
            page = numbers[0] if numbers else None
            to_skip = numbers[1] if len(numbers) > 1 else 0
            offset = before + to_skip
        size = min(limit, MAX_PAGE_ENTRIES)
        page = page or self._pages.number(question, offset, size)
        counting = _LineCounter(self, log, query, fits, is_first=cursor is None)
        scan = _QueryScan(log, query, position, self.clock, seconds, fits, oldest_first=oldest_first)
        with closing(scan):
            skipped = scan.skip(to_skip)
            # If all matches are counted, the log need not be searched beyond the last one.
            left = counting.left(offset)
            entries = _page(scan, size if left is None else min(size, left))
            # An offset may be beyond the last match, which must not count as matches.
            seen = before + skipped + len(entries)
            still_to_skip = to_skip - skipped
            # The position is only valid until the next entry is read, so encode the cursor before counting.
            position = scan.position
            missing: list[str] = []
            following = (
                None
                if position is None
                else self._cursors.encode(
                    question, [position, seen, page if still_to_skip else page + 1, still_to_skip], missing
                )
            )
            timed_out = scan.timed_out
            if left is None:
                scan.allow(COUNT_GRACE_SECONDS, MAX_COUNTED_ENTRIES)
                is_end = scan.next() is None and not scan.timed_out
            else:
                is_end = len(entries) >= left
            total, counted = counting.total(scan, seen, is_end=is_end, oldest_first=oldest_first)
        # If the scan did not reach the end, there may be more.
        has_more = not is_end and (total > seen or not counted or oldest_first)
        if has_more and not still_to_skip:
            self._pages.note(question, seen, page + 1)
        # A page ended by the message limit is reported with its real size, so that clients that compute offsets stay
        # right.
        is_short = has_more and not timed_out and len(entries) < size
        return EntryPage(
            entries=entries,
            offset=offset,
            total=total,
            counted=counted,
            has_more=has_more,
            cursor=following if has_more else None,
            problems=[*scan.problems, *(missing if has_more else ())][:MAX_REPORTED_PROBLEMS],
            timed_out=timed_out,
            page=page,
            page_size=len(entries) if is_short and entries else size,
        )

    def follow(
        self,
        name: str,
        query: LogQuery,
        *,
        limit: int,
        cursor: str | None = None,
        fits: EntryTest | None = None,
        seconds: float = QUERY_TIMEOUT_SECONDS,
    ) -> FollowPage:
        """Return the matching entries since a cursor, oldest first; without a cursor, only a cursor for the current
        end.
        """
        log = self.get(name)
        question = ["follow", log.name, query]
        problems: list[str] = []
        position, entries, has_more = None, list[LogEntry](), cursor is not None
        if cursor is None:
            position = log.end_position()
        else:
            [position] = self._cursors.decode(cursor, question)
        deadline = self.clock() + seconds
        while has_more and len(entries) < limit:
            # The limit counts matches, so reading continues until enough entries match or the log ends.
            new = log.read_since(position, limit - len(entries), problems)
            entries += [entry for entry in new.entries if query.matches(entry) and (fits is None or fits(entry))]
            position, has_more = new.place, new.has_more
            if self.clock() > deadline:
                break
        # Encoded even if nothing is new: the caller continues from here.
        following = self._cursors.encode(question, [position], problems)
        return FollowPage(entries, following, has_more, problems[:MAX_REPORTED_PROBLEMS])

    def entry(self, name: str, id: int) -> LogEntry:
        entry = self.get(name).entry(id)
        if entry is None:
            raise NotFound(f"The log {name!r} has no entry {id}. It may have been removed by log rotation.")
        return entry

    def stats(self, name: str, query: LogQuery, *, seconds: float = QUERY_TIMEOUT_SECONDS) -> LogStats:
        """Return statistics of a log, limited to its newest part if time runs out."""
        scan = _QueryScan(self.get(name), query, None, self.clock, seconds)
        levels: Counter[int] = Counter()
        sources: Counter[str] = Counter()
        oldest = newest = None
        with closing(scan):
            while (entry := scan.next()) is not None:
                levels[entry.level] += 1
                sources[entry.source] += 1
                newest = entry.time if newest is None else max(newest, entry.time)
                oldest = entry.time if oldest is None else min(oldest, entry.time)
        return LogStats(
            log_name=name,
            total_count=levels.total(),
            total_is_exact=not scan.timed_out,
            by_level={LEVELS[level]: count for level, count in sorted(levels.items(), reverse=True)},
            by_source={escape_controls(source): count for source, count in sources.most_common(MAX_COUNTED_SOURCES)},
            oldest=None if oldest is None else format_iso(oldest),
            newest=None if newest is None else format_iso(newest),
            problems=scan.problems[:MAX_REPORTED_PROBLEMS],
        )

    def change_stamps(self) -> dict[str, object]:
        """Return a change stamp for each log."""
        result: dict[str, object] = {}
        for name, log in self.list.items():
            try:
                result[name] = log.change_stamp()
            except SystemToolError:
                result[name] = None
        return result


def _page(scan: _QueryScan, size: int) -> list[LogEntry]:
    """Return the next entries, up to `size` or the message limit of a page."""
    entries: list[LogEntry] = []
    room = MAX_PAGE_MESSAGE_CHARS
    while len(entries) < size and room > 0 and (entry := scan.next()) is not None:
        entries.append(entry)
        # Messages are truncated later, so only the returned part counts.
        room -= min(len(entry.message), MAX_MESSAGE_CHARS)
    return entries


class _LineCounter:
    """Counts matches beyond the page. The count is cached while the log does not change, and the next call continues
    it: a total never decreases, and becomes exact after some calls.
    """

    def __init__(
        self, logs: LogRegistry, log: EventLog, query: LogQuery, fits: EntryTest | None, *, is_first: bool
    ) -> None:
        self._logs = logs
        # A page with a cursor is counted from the start of the query, and the log may have grown since.
        self._stores = is_first
        self._log = log
        self._query = query
        self._fits = fits
        try:
            self._stamp = log.change_stamp()
        except SystemToolError:
            self._stamp = None
        self._name = _key(log.name, query, None if fits is None else fits.key)

    def left(self, offset: int) -> int | None:
        """Return the number of matches after an offset if it is known; not for pages with a cursor."""
        cached = self._get_cached()
        return max(0, cached.total - offset) if self._stores and cached is not None and cached.is_exact else None

    def total(self, scan: _QueryScan, seen: int, *, is_end: bool, oldest_first: bool) -> tuple[int, bool]:
        """Return the minimum number of matches, and whether it is exact. `scan` is one entry beyond the page, unless
        it reached the end.
        """
        cached = self._get_cached()
        if cached is not None and cached.is_exact:
            return max(cached.total, seen), True
        if is_end:
            return self._store(seen, None, is_exact=True)
        if self._query.is_unfiltered and not scan.timed_out and (count := self._log.count()) is not None:
            return max(seen + 1, count), True
        minimum = seen if scan.timed_out else seen + 1
        if oldest_first or (cached is not None and cached.total >= seen):
            base, position = (0, None) if cached is None else (cached.total, cached.position)
            rest = _QueryScan(self._log, self._query, position, self._logs.clock, COUNT_GRACE_SECONDS, self._fits)
            with closing(rest):
                rest.allow(COUNT_GRACE_SECONDS, MAX_COUNTED_ENTRIES)
                total, is_exact = self._count(rest, base)
            return max(total, minimum), is_exact
        return self._count(scan, minimum)

    def _count(self, scan: _QueryScan, base: int) -> tuple[int, bool]:
        total = base + scan.skip(2**63)
        return self._store(total, scan.position, is_exact=not scan.timed_out)

    def _get_cached(self) -> CountedPart | None:
        cached = self._logs.counts.get(self._name)
        return cached if cached is not None and self._stamp is not None and cached.stamp == self._stamp else None

    def _store(self, total: int, position: Any, *, is_exact: bool) -> tuple[int, bool]:
        # Without a stamp nothing would invalidate the count.
        if self._stamp is None or not self._stores:
            return total, is_exact
        counts = self._logs.counts
        before = counts.get(self._name)
        counts[self._name] = CountedPart(self._stamp, total, position, is_exact)
        # A log that has only grown has at least as many matches as before: the total shown never decreases.
        if before is not None and not is_exact and self._log.has_only_grown(before.stamp, self._stamp):
            return max(total, before.total), False
        return total, is_exact


class _QueryScan:
    """Running query: yields matching entries until time runs out."""

    def __init__(
        self,
        log: EventLog,
        query: LogQuery,
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
        read = log.oldest_first if oldest_first else log.scan_newest_first
        self._entries: Iterator[ScanStep] = read(query, position, self.problems)

    def next(self) -> LogEntry | None:
        """Return the next match, or None at the end or on timeout; `timed_out` tells which."""
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
            if isinstance(step, LogEntry | SkippedRange) and not (self.timed_out and is_entry):
                self.position = step.position
            if self.timed_out:
                return None
        return None

    def _is_late(self, is_entry: bool) -> bool:
        """Return whether time is up. Checked after steps without an entry, which may take long."""
        return (not is_entry or not self._steps % _CLOCK_CHECK_INTERVAL) and self._clock() > self._deadline

    def _matches(self, entry: LogEntry) -> bool:
        return self._query.matches(entry) and (self._fits is None or self._fits(entry))

    def skip(self, limit: int) -> int:
        """Skip up to `limit` matches and return how many were skipped."""
        passed = 0
        while passed < limit and self.next() is not None:
            passed += 1
        return passed

    def allow(self, seconds: float, steps: int) -> None:
        """Continue for at most this time and number of steps."""
        self._deadline = self._clock() + seconds
        self._most_steps = self._steps + steps

    def close(self) -> None:
        close = getattr(self._entries, "close", None)
        if close is not None:
            close()
