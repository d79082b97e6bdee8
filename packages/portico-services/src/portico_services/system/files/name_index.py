"""An index of the names of files below some roots, so that looking for one does not mean walking.

It is SQLite's: names by their trigrams (FTS5), with sizes and times beside them. A thread of its own fills it, is told
of changes (`watch`), and walks everything again now and then, in case it was not told.
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
from portico_services.system.files.index_writer import IndexUpdater, Watch, connect
from portico_services.system.files.walk import FileCriteria, FileEntry
from portico_services.system.path_access import AllowedRoots
from portico_services.system.text import shown_path

log = logging.getLogger("portico")

REWALK_SECONDS = 600.0
UNWATCHED_SECONDS = 60.0
_SETTLING_SECONDS = 0.05
_SLICE_SECONDS = 0.01


class Index:
    """`start` begins to fill it; until it `is_ready`, one has to walk. A `file` is kept from one start to the next."""

    def __init__(self, roots: AllowedRoots, file: str | None = None, *, rewalk_seconds: float = REWALK_SECONDS) -> None:
        self._roots = roots
        self._file = file
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._rewalk_seconds = rewalk_seconds
        self._lock = threading.Lock()
        self._reading: sqlite3.Connection | None = None
        self._thread: threading.Thread | None = None
        self._watch: Watch | None = None
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
                self._watch = Watch()
                self._thread = run_in_thread("file index", self._run, self._stopping)

    def close(self) -> None:
        # A start in another thread has either happened, or will not.
        with self._lock:
            self._stopping.set()
        if self._thread is not None and self._watch is not None:
            self._watch.stop()
            self._thread.join()
            self._watch.close()
        with self._lock:
            if self._reading is not None:
                self._reading.close()
                self._reading = None
        if self._temporary is not None:
            self._temporary.cleanup()

    def wait(self, passes: int, seconds: float) -> bool:
        """Wait until it has been brought up to date so many times; False if the time was not enough."""
        with self._changed:
            return self._changed.wait_for(lambda: self._passes >= passes, seconds)

    @property
    def passes(self) -> int:
        return self._passes

    def catch_up(self, seconds: float) -> bool:
        """Wait until all changes up to now are in it. Return False if the time was not enough, or if that cannot be
        known: where not every folder can be watched."""
        watch = self._watch
        if watch is None or not watch.is_complete:
            return False
        if not watch.has_news():
            return True
        self._is_awaited = True
        try:
            with self._changed:
                return self._changed.wait_for(lambda: self._stopping.is_set() or not watch.has_news(), seconds)
        finally:
            self._is_awaited = False

    # Asking

    def search(self, wanted: FileCriteria, below: str, after: int, limit: int) -> list[FileEntry]:
        """What is wanted below a folder, in the order it was first seen, from behind a position."""
        rows = self._ask(*question(wanted, shown_path(below), after, limit))
        return [
            FileEntry(os.path.join(folder, name), name, kind, size, modified, number)
            for number, folder, name, kind, size, modified in rows
        ]

    def count(self) -> int:
        return int(self._ask("select count(*) from files", [])[0][0])

    def _ask(self, sql: str, values: list[Any]) -> list[Any]:
        with self._lock:
            if self._reading is None:
                assert self._file is not None
                self._reading = connect(self._file)
            return self._reading.execute(sql, values).fetchall()

    # Keeping it

    def _run(self) -> None:
        assert self._watch is not None
        assert self._file is not None
        try:
            database = connect(self._file)
        except sqlite3.Error:
            log.warning("no index of files: this SQLite has no FTS5 with trigrams; searching walks instead")
            return
        try:
            self._keep(IndexUpdater(database, self._roots, self._watch), self._watch)
        finally:
            # Until it is filled again, searching walks.
            self.is_ready = False
            database.close()

    def _keep(self, keeper: IndexUpdater, watch: Watch) -> None:
        due = 0.0
        while not self._stopping.is_set():
            left = due - time.monotonic()
            changed = watch.wait(left) if left > 0 else None
            if changed is None:
                # It is time, or changes were missed.
                self.is_ready = keeper.walk(self._is_over)
                due = time.monotonic() + min(
                    self._rewalk_seconds, self._rewalk_seconds if watch.is_complete else UNWATCHED_SECONDS
                )
            else:
                # More usually follows at once, and need not be taken in one by one.
                more = self._settled(watch) if changed else changed
                if more is None:
                    due = 0.0
                    continue
                for number in changed | more:
                    keeper.look_again(number, self._is_over)
            watch.is_idle = True
            with self._changed:
                self._passes += 1
                self._changed.notify_all()

    def _settled(self, watch: Watch) -> set[int] | None:
        """Return the changes that follow within a short time, unless a search waits for those that are known; None if
        some were missed."""
        changed: set[int] = set()
        quiet = 0.0
        while quiet < _SETTLING_SECONDS and not self._is_awaited and not self._stopping.is_set():
            more = watch.wait(_SLICE_SECONDS)
            if more is None:
                return None
            changed |= more
            quiet = 0.0 if more else quiet + _SLICE_SECONDS
        return changed

    def _is_over(self) -> bool:
        return self._stopping.is_set()


def question(wanted: FileCriteria, below: str, after: int, limit: int) -> tuple[str, list[Any]]:
    """A search in SQL. Everything that came from outside is a value, never a part of the text."""
    tables, tests = "files", ["files.id > ?"]
    values: list[Any] = [after]
    if found := _literals(wanted):
        # The trigrams lead, in the order of the numbers, so that the search ends with its limit.
        tables = "names cross join files on files.id = names.rowid"
        tests = ["names match ?", "names.rowid > ?"]
        values = [" AND ".join(f'"{text}"' for text in found), after]
    for test, more in (*_by_text(wanted, below), *_by_name(wanted), *_by_stat(wanted)):
        tests.append(test)
        values += more
    top = below.rstrip("/")
    tests.append("(folders.path = ? or (folders.path >= ? and folders.path < ?))")
    values += [below, f"{top}/", f"{top}0"]
    order = "names.rowid" if found else "files.id"
    return (
        "select files.id, folders.path, files.name, files.type, files.size, files.modified "
        f"from {tables} cross join folders on folders.id = files.folder where {' and '.join(tests)} "
        f"order by {order} limit ?"
    ), [*values, limit]


def _literals(wanted: FileCriteria) -> list[str]:
    """Texts of three characters and more that a name must contain: what the trigrams can be asked for."""
    found: list[str] = []
    if wanted.mode == "CONTAINS" and wanted.text is not None and "/" not in wanted.text:
        found.append(wanted.text)
    if len(wanted.names) == 1:
        found += re.split(r"\*|\?|\[.*?\]", wanted.names[0])
    return [text.replace('"', '""') for text in found if len(text) >= 3]


def _by_text(wanted: FileCriteria, below: str) -> list[tuple[str, list[Any]]]:
    if wanted.text is None:
        return []
    if wanted.mode == "CONTAINS" and "/" not in wanted.text:
        return [("files.name like ? escape '\\'", [_like(wanted.text)])]
    # In the path below the folder that is searched: its own names do not count.
    length = len(below.rstrip("/")) + 2
    return [
        ("substr(folders.path || '/' || files.name, ?) like ? escape '\\'", [length, _like(word)])
        for word in wanted.words
    ]


def _by_name(wanted: FileCriteria) -> list[tuple[str, list[Any]]]:
    found: list[tuple[str, list[Any]]] = []
    if wanted.names:
        any_of = " or ".join("lower(files.name) glob ?" for _ in wanted.names)
        found.append((f"({any_of})", [name.lower().replace("[!", "[^") for name in wanted.names]))
    if wanted.type in ("file", "directory", "link", "other"):
        found.append(("files.type = ?", [wanted.type]))
    elif wanted.type is not None:
        ending = wanted.type.lstrip(".")
        found.append(("files.type = 'file' and files.name like ? escape '\\'", [_like(f".{ending}")[:-1]]))
    return found


def _by_stat(wanted: FileCriteria) -> list[tuple[str, list[Any]]]:
    limits = (
        ("files.size >= ?", wanted.min_size),
        ("files.size <= ?", wanted.max_size),
        ("files.modified >= ?", wanted.after),
        ("files.modified <= ?", wanted.before),
    )
    return [(test, [value]) for test, value in limits if value is not None]


def _like(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    return f"%{escaped}%"
