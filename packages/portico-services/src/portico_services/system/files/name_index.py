"""Index of file names below the allowed paths, so that a search does not have to walk them.

A SQLite database with an FTS5 trigram index of the names, plus sizes and times. A dedicated thread fills it, processes
file system notifications, and periodically rescans everything in case notifications were missed.
"""

from __future__ import annotations

import logging
import os
import re
import sqlite3
import tempfile
import threading
import time
from typing import Any

from portico.extend import run_in_thread
from portico_services.system.files.index_writer import DirectoryWatcher, IndexWriter, open_index
from portico_services.system.files.walk import FileCriteria, FileEntry
from portico_services.system.path_access import AllowedPaths
from portico_services.system.text import path_to_text

log = logging.getLogger("portico")

# Notifications can be lost without a sign, e.g. on network file systems.
RESCAN_INTERVAL_SECONDS = 600.0
UNWATCHED_RESCAN_SECONDS = 60.0
# An unpacked archive changes thousands of files; its directories are rescanned once.
_DEBOUNCE_SECONDS = 0.05
_SLICE_SECONDS = 0.01


class FileNameIndex:
    """File name index. `start` begins filling it; until `is_ready`, searches walk the directories. A `file` persists
    across restarts.
    """

    def __init__(
        self, roots: AllowedPaths, file: str | None = None, *, rewalk_seconds: float = RESCAN_INTERVAL_SECONDS
    ) -> None:
        self._roots = roots
        self._file = file
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._rewalk_seconds = rewalk_seconds
        self._lock = threading.Lock()
        self._reading: sqlite3.Connection | None = None
        self._thread: threading.Thread | None = None
        self._watch: DirectoryWatcher | None = None
        self._stopping = threading.Event()
        self._changed = threading.Condition()
        self._passes = 0
        self._is_awaited = False
        self.is_ready = False

    def start(self) -> None:
        with self._lock:
            if self._thread is None and not self._stopping.is_set():
                if self._file is None:
                    self._temporary = tempfile.TemporaryDirectory(prefix="portico-")
                    self._file = os.path.join(self._temporary.name, "files.sqlite")
                self._watch = DirectoryWatcher()
                self._thread = run_in_thread("file index", self._run, self._stopping)

    def close(self) -> None:
        # A start in another thread has either completed or will not happen.
        with self._lock:
            self._stopping.set()
        if self._thread is not None and self._watch is not None:
            self._watch.stop()
            # The thread owns its connection, so the directory may be removed only after it has ended.
            self._thread.join()
            self._watch.close()
        with self._lock:
            if self._reading is not None:
                self._reading.close()
                self._reading = None
        if self._temporary is not None:
            self._temporary.cleanup()

    def wait(self, passes: int, seconds: float) -> bool:
        """Wait until the index has been updated `passes` times. Return False on timeout."""
        with self._changed:
            return self._changed.wait_for(lambda: self._passes >= passes, seconds)

    @property
    def passes(self) -> int:
        return self._passes

    def catch_up(self, seconds: float) -> bool:
        """Wait until all changes so far are indexed. Return False on timeout, or if not every directory can be
        watched.
        """
        watch = self._watch
        if watch is None or not watch.is_complete:
            return False
        # Every change until now is in the index.
        if not watch.has_news():
            return True
        # Ends the collection of a burst early, because a search waits for it.
        self._is_awaited = True
        try:
            with self._changed:
                return self._changed.wait_for(lambda: self._stopping.is_set() or not watch.has_news(), seconds)
        finally:
            self._is_awaited = False

    # Queries

    def search(self, criteria: FileCriteria, below: str, after: int, limit: int) -> list[FileEntry]:
        """Return the matching files below a directory, in index order, after a position."""
        rows = self._query(*search_sql(criteria, path_to_text(below), after, limit))
        return [
            FileEntry(os.path.join(folder, name), name, kind, size, modified, number)
            for number, folder, name, kind, size, modified in rows
        ]

    def count(self) -> int:
        return int(self._query("select count(*) from files", [])[0][0])

    def _query(self, sql: str, values: list[Any]) -> list[Any]:
        with self._lock:
            if self._reading is None:
                assert self._file is not None
                self._reading = open_index(self._file)
            return self._reading.execute(sql, values).fetchall()

    # Maintenance

    def _run(self) -> None:
        assert self._watch is not None
        assert self._file is not None
        try:
            database = open_index(self._file)
        except sqlite3.Error:
            log.warning(
                "file name index disabled: this SQLite has no FTS5 trigram tokenizer; searches walk the directories"
            )
            return
        try:
            self._maintain(IndexWriter(database, self._roots, self._watch), self._watch)
        finally:
            # Searches walk the directories until the index is filled again.
            self.is_ready = False
            database.close()

    def _maintain(self, keeper: IndexWriter, watch: DirectoryWatcher) -> None:
        due = 0.0
        while not self._stopping.is_set():
            left = due - time.monotonic()
            changed = watch.wait(left) if left > 0 else None
            if changed is None:
                # A rescan is due, or changes were missed.
                self.is_ready = keeper.walk(self._is_over)
                due = time.monotonic() + min(
                    self._rewalk_seconds, self._rewalk_seconds if watch.is_complete else UNWATCHED_RESCAN_SECONDS
                )
            else:
                # Changes come in bursts; process them together.
                more = self._collect_burst(watch) if changed else changed
                if more is None:
                    due = 0.0
                    continue
                for number in changed | more:
                    keeper.rescan(number, self._is_over)
            # After the changes are committed: a search that waits for them may read the index now.
            watch.is_idle = True
            with self._changed:
                self._passes += 1
                self._changed.notify_all()

    def _collect_burst(self, watch: DirectoryWatcher) -> set[int] | None:
        """Collect the changes of a burst, unless a search is waiting for them. Return None if some were missed."""
        changed: set[int] = set()
        quiet = 0.0
        while quiet < _DEBOUNCE_SECONDS and not self._is_awaited and not self._stopping.is_set():
            more = watch.wait(_SLICE_SECONDS)
            if more is None:
                return None
            changed |= more
            quiet = 0.0 if more else quiet + _SLICE_SECONDS
        return changed

    def _is_over(self) -> bool:
        return self._stopping.is_set()


def search_sql(criteria: FileCriteria, below: str, after: int, limit: int) -> tuple[str, list[Any]]:
    """Build the SQL query of a search. All external input is bound as parameters, never part of the SQL text."""
    tables, tests = "files", ["files.id > ?"]
    values: list[Any] = [after]
    if result := _trigram_literals(criteria):
        # The trigram index drives the join, in row order, so that the query ends at its limit.
        tables = "names cross join files on files.id = names.rowid"
        tests = ["names match ?", "names.rowid > ?"]
        values = [" AND ".join(f'"{text}"' for text in result), after]
    for test, more in (*_text_condition(criteria, below), *_name_condition(criteria), *_stat_condition(criteria)):
        tests.append(test)
        values += more
    # A range instead of LIKE: it uses the unique index on paths, and no character needs escaping.
    top = below.rstrip("/")
    tests.append("(folders.path = ? or (folders.path >= ? and folders.path < ?))")
    values += [below, f"{top}/", f"{top}0"]
    order = "names.rowid" if result else "files.id"
    return (
        "select files.id, folders.path, files.name, files.type, files.size, files.modified "
        f"from {tables} cross join folders on folders.id = files.folder where {' and '.join(tests)} "
        f"order by {order} limit ?"
    ), [*values, limit]


def _trigram_literals(criteria: FileCriteria) -> list[str]:
    """Return the substrings of three or more characters that a name must contain, for the trigram index."""
    results: list[str] = []
    if criteria.mode == "CONTAINS" and criteria.text is not None and "/" not in criteria.text:
        results.append(criteria.text)
    if len(criteria.names) == 1:
        results += re.split(r"\*|\?|\[.*?\]", criteria.names[0])
    return [text.replace('"', '""') for text in results if len(text) >= 3]


def _text_condition(criteria: FileCriteria, below: str) -> list[tuple[str, list[Any]]]:
    if criteria.text is None:
        return []
    if criteria.mode == "CONTAINS" and "/" not in criteria.text:
        return [("files.name like ? escape '\\'", [_escape_like(criteria.text)])]
    # Match the path below the searched directory: its own path does not count.
    length = len(below.rstrip("/")) + 2
    return [
        ("substr(folders.path || '/' || files.name, ?) like ? escape '\\'", [length, _escape_like(word)])
        for word in criteria.words
    ]


def _name_condition(criteria: FileCriteria) -> list[tuple[str, list[Any]]]:
    results: list[tuple[str, list[Any]]] = []
    if criteria.names:
        # GLOB is case-sensitive in SQLite, and writes negated sets as `[^…]` instead of `[!…]`.
        any_of = " or ".join("lower(files.name) glob ?" for _ in criteria.names)
        results.append((f"({any_of})", [name.lower().replace("[!", "[^") for name in criteria.names]))
    if criteria.type in ("file", "directory", "link", "other"):
        results.append(("files.type = ?", [criteria.type]))
    elif criteria.type is not None:
        ending = criteria.type.lstrip(".")
        results.append(("files.type = 'file' and files.name like ? escape '\\'", [_escape_like(f".{ending}")[:-1]]))
    return results


def _stat_condition(criteria: FileCriteria) -> list[tuple[str, list[Any]]]:
    limits = (
        ("files.size >= ?", criteria.min_size),
        ("files.size <= ?", criteria.max_size),
        ("files.modified >= ?", criteria.after),
        ("files.modified <= ?", criteria.before),
    )
    return [(test, [value]) for test, value in limits if value is not None]


def _escape_like(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    return f"%{escaped}%"
