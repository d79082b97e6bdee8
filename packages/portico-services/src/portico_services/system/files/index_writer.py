"""Writer of the file name index. Used by a single thread."""

from __future__ import annotations

import ctypes
import os
import select
import socket
import sqlite3
import struct
import sys
from collections.abc import Callable
from typing import Any

from portico_services.system.errors import SystemToolError
from portico_services.system.files.walk import MAX_DEPTH, entry_type
from portico_services.system.path_access import PSEUDO_FILESYSTEMS, AllowedPaths, OpenDirectory
from portico_services.system.text import path_from_text, path_to_text

# Beyond this number the index is not used, and a search walks the directories.
MAX_INDEXED_FILES = 2_000_000
# Readers see the index grow during the first walk, and a commit per file would be slow.
_COMMIT_BATCH_SIZE = 2000

_SCHEMA = """
pragma journal_mode = wal;
pragma synchronous = off;
create table if not exists folders (
    id integer primary key,
    path text not null unique,
    walk integer not null
);
create table if not exists files (
    id integer primary key,
    folder integer not null,
    name text not null,
    type text not null,
    size integer not null,
    modified integer not null,
    unique (folder, name)
);
create virtual table if not exists names
    using fts5 (name, tokenize = 'trigram', content = 'files', content_rowid = 'id');
create trigger if not exists added after insert on files begin
    insert into names (rowid, name) values (new.id, new.name);
end;
create trigger if not exists removed after delete on files begin
    insert into names (names, rowid, name) values ('delete', old.id, old.name);
end;
"""

DirectoryEntry = tuple[str, int, int]
"""Type, size and modification time of a file."""


def open_index(file: str) -> sqlite3.Connection:
    """Open the index and create it if needed. Raises sqlite3.Error if SQLite lacks the trigram tokenizer."""
    database = sqlite3.connect(file, check_same_thread=False, timeout=10)
    # File names are private: other users of the machine must not read them from the index.
    os.chmod(file, 0o600)
    database.executescript(_SCHEMA)
    return database


class IndexWriter:
    """Synchronizes the index with the file system."""

    def __init__(self, database: sqlite3.Connection, roots: AllowedPaths, watch: DirectoryWatcher) -> None:
        self._db = database
        self._roots = roots
        self._watch = watch
        [[self._count]] = self._db.execute("select count(*) from files")
        [[self._walk]] = self._db.execute("select coalesce(max(walk), 0) from folders")
        self._uncommitted = 0

    def walk(self, is_over: Callable[[], bool]) -> bool:
        """Scan all allowed paths and remove entries that no longer exist. Return False if there are too many files."""
        self._walk += 1
        walked = [self._index_below(root.path, is_over) for root in self._roots.all if not root.only]
        is_whole = all(walked)
        # Only a complete walk may delete: an interrupted one has not seen everything.
        if is_whole and not is_over():
            self._db.execute("delete from files where folder in (select id from folders where walk < ?)", [self._walk])
            self._db.execute("delete from folders where walk < ?", [self._walk])
        self._commit()
        return is_whole

    def rescan(self, number: int, is_over: Callable[[], bool]) -> None:
        """Update one changed directory and everything new below it."""
        row = self._db.execute("select path from folders where id = ?", [number]).fetchone()
        if row is not None:
            path = path_from_text(row[0])
            try:
                with self._roots.open_directory(path) as folder:
                    below = self._update_directory(folder)
            except (SystemToolError, OSError):
                self._forget(row[0])
                below = []
            for item in below:
                indexed_row = self._db.execute("select 1 from folders where path = ?", [path_to_text(item)]).fetchone()
                if indexed_row is None:
                    self._index_below(item, is_over)
            self._commit()

    def _index_below(self, path: str, is_over: Callable[[], bool]) -> bool:
        waiting = [path]
        while waiting and not is_over():
            directory = waiting.pop()
            if directory.count(os.sep) > MAX_DEPTH:
                continue
            try:
                with self._roots.open_directory(directory) as folder:
                    waiting += self._update_directory(folder)
            except (SystemToolError, OSError):
                continue  # Removed, or not readable by this process.
            if self._count > MAX_INDEXED_FILES:
                return False
            if self._uncommitted > _COMMIT_BATCH_SIZE:
                self._commit()
        return True

    def _update_directory(self, folder: OpenDirectory) -> list[str]:
        """Update the rows of a directory and return its subdirectories."""
        number = self._number(folder.path)
        self._watch.add(folder.fd, number)
        entries = _scan_directory(folder)
        rows = self._db.execute("select name, type, size, modified, id from files where folder = ?", [number])
        indexed = {name: (columns, id) for name, *columns, id in rows}
        removed = [name for name in indexed if name not in entries]
        added = [(number, name, *columns) for name, columns in entries.items() if name not in indexed]
        changed = [
            (*columns, indexed[name][1])
            for name, columns in entries.items()
            if name in indexed and indexed[name][0] != [*columns]
        ]
        self._db.executemany("insert into files (folder, name, type, size, modified) values (?, ?, ?, ?, ?)", added)
        self._db.executemany("update files set type = ?, size = ?, modified = ? where id = ?", changed)
        for name in removed:
            self._db.execute("delete from files where id = ?", [indexed[name][1]])
            if indexed[name][0][0] == "directory":
                self._forget(f"{path_to_text(folder.path)}/{name}")
        self._count += len(added) - len(removed)
        self._uncommitted += len(added) + len(changed) + len(removed) + 1
        below = [
            os.path.join(folder.path, path_from_text(name))
            for name, columns in entries.items()
            if columns[0] == "directory"
        ]
        return [path for path in below if path not in PSEUDO_FILESYSTEMS]

    def _number(self, path: str) -> int:
        text = path_to_text(path)
        self._db.execute(
            "insert into folders (path, walk) values (?, ?) on conflict (path) do update set walk = excluded.walk",
            [text, self._walk],
        )
        [[number]] = self._db.execute("select id from folders where path = ?", [text])
        return int(number)

    def _forget(self, path: str) -> None:
        """Remove a directory and everything below it. "0" is the character after "/", so the range covers all
        subpaths.
        """
        below = [path, f"{path}/", f"{path}0"]
        where = "path = ? or (path >= ? and path < ?)"
        self._db.execute(f"delete from files where folder in (select id from folders where {where})", below)
        self._db.execute(f"delete from folders where {where}", below)

    def _commit(self) -> None:
        self._db.commit()
        self._uncommitted = 0


def _scan_directory(folder: OpenDirectory) -> dict[str, DirectoryEntry]:
    result: dict[str, DirectoryEntry] = {}
    for entry in folder.scan():
        try:
            # A link is listed as a link: its target may be outside the allowed paths.
            info = entry.stat(follow_symlinks=False)
        except OSError:
            continue
        result[path_to_text(entry.name)] = (entry_type(entry), info.st_size, info.st_mtime_ns // 1000)
    return result


_CLOSE_WRITE, _MOVED, _CREATE, _DELETE = 0x8, 0x40 | 0x80, 0x100, 0x200
_DELETE_SELF, _MOVE_SELF, _IGNORED, _OVERFLOW, _ONLY_FOLDERS = 0x400, 0x800, 0x8000, 0x4000, 0x01000000
_MASK = _CLOSE_WRITE | _MOVED | _CREATE | _DELETE | _DELETE_SELF | _MOVE_SELF | _ONLY_FOLDERS
_EVENT = struct.Struct("iIII")


class DirectoryWatcher:
    """Inotify watcher of directories. The caller chooses the number that identifies each directory."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
        self._fd = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC) if self._libc is not None else -1
        # A socket pair, because not every platform can select on a pipe.
        self._wake, self._waker = socket.socketpair()
        self._numbers: dict[int, int] = {}
        # Whether all requested directories are watched: the kernel limits the number of watches.
        self.is_complete = self._fd >= 0
        # Whether all changes that were read have been processed.
        self.is_idle = True

    def add(self, folder: int | None, number: int) -> None:
        """Watch an open directory by its descriptor: its path may refer to another directory by now."""
        # Other platforms have no inotify; there the periodic rescan finds the changes.
        if self._libc is None or self._fd < 0 or folder is None:
            return
        result = self._libc.inotify_add_watch(self._fd, f"/proc/self/fd/{folder}".encode(), ctypes.c_uint32(_MASK))
        if result >= 0:
            self._numbers[result] = number
        else:
            self.is_complete = False

    def wait(self, seconds: float) -> set[int] | None:
        """Wait up to `seconds` and return the numbers of changed directories; None if changes were missed."""
        watched: list[Any] = [self._wake] if self._fd < 0 else [self._wake, self._fd]
        ready, _, _ = select.select(watched, [], [], seconds)
        if self._fd not in ready:
            return set()
        # Set before reading: every change must be either unread or marked as pending at any moment.
        self.is_idle = False
        return self._read()

    def has_news(self) -> bool:
        """Return whether there are unread or unprocessed changes. The kernel queues a change before the system call
        that made it returns, so none is missed.
        """
        return (self._fd >= 0 and bool(select.select([self._fd], [], [], 0)[0])) or not self.is_idle

    def _read(self) -> set[int] | None:
        changed: set[int] = set()
        missed = False
        while True:
            try:
                data = os.read(self._fd, 64 * 1024)
            except BlockingIOError:
                return None if missed else changed
            at = 0
            while at < len(data):
                watch, mask, _, length = _EVENT.unpack_from(data, at)
                at += _EVENT.size + length
                missed = missed or bool(mask & _OVERFLOW)
                if mask & _IGNORED:
                    self._numbers.pop(watch, None)
                elif watch in self._numbers:
                    changed.add(self._numbers[watch])

    def stop(self) -> None:
        """Interrupt a wait, from any thread."""
        self._waker.send(b"x")

    @property
    def is_open(self) -> bool:
        return self._wake.fileno() >= 0

    def close(self) -> None:
        self._wake.close()
        self._waker.close()
        if self._fd >= 0:
            os.close(self._fd)
