"""The side of the index of files that writes: what is there now, as rows. It belongs to one thread."""

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

from portico_services.system.errors import MachineError
from portico_services.system.files.walk import MOST_DEPTH, PSEUDO, kind_of
from portico_services.system.path_access import AllowedRoots, OpenFolder
from portico_services.system.text import meant_path, shown_path

MOST_FILES = 2_000_000
_BATCH = 2000

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

Found = tuple[str, int, int]
"""Of a file: type, size, time."""


def connect(file: str) -> sqlite3.Connection:
    """The index, made if it is not there. Raises sqlite3.Error where SQLite has no trigrams."""
    database = sqlite3.connect(file, check_same_thread=False, timeout=10)
    os.chmod(file, 0o600)
    database.executescript(_SCHEMA)
    return database


class IndexUpdater:
    def __init__(self, database: sqlite3.Connection, roots: AllowedRoots, watch: Watch) -> None:
        self._db = database
        self._roots = roots
        self._watch = watch
        [[self._count]] = self._db.execute("select count(*) from files")
        [[self._walk]] = self._db.execute("select coalesce(max(walk), 0) from folders")
        self._uncommitted = 0

    def walk(self, is_over: Callable[[], bool]) -> bool:
        """Everything, from the roots on; what is not met any more is forgotten. False if there is too much of it."""
        self._walk += 1
        walked = [self._below(root.path, is_over) for root in self._roots.all if not root.only]
        is_whole = all(walked)
        if is_whole and not is_over():
            self._db.execute("delete from files where folder in (select id from folders where walk < ?)", [self._walk])
            self._db.execute("delete from folders where walk < ?", [self._walk])
        self._commit()
        return is_whole

    def look_again(self, number: int, is_over: Callable[[], bool]) -> None:
        """One folder that has changed, and whatever is new below it."""
        row = self._db.execute("select path from folders where id = ?", [number]).fetchone()
        if row is not None:
            path = meant_path(row[0])
            try:
                with self._roots.folder(path) as folder:
                    below = self._take_in(folder)
            except (MachineError, OSError):
                self._forget(row[0])
                below = []
            for one in below:
                known = self._db.execute("select 1 from folders where path = ?", [shown_path(one)]).fetchone()
                if known is None:
                    self._below(one, is_over)
            self._commit()

    def _below(self, path: str, is_over: Callable[[], bool]) -> bool:
        waiting = [path]
        while waiting and not is_over():
            here = waiting.pop()
            if here.count(os.sep) > MOST_DEPTH:
                continue
            try:
                with self._roots.folder(here) as folder:
                    waiting += self._take_in(folder)
            except (MachineError, OSError):
                continue  # gone, or not ours to read
            if self._count > MOST_FILES:
                return False
            if self._uncommitted > _BATCH:
                self._commit()
        return True

    def _take_in(self, folder: OpenFolder) -> list[str]:
        """What a folder has now. Gives the folders in it."""
        number = self._number(folder.path)
        self._watch.add(folder.fd, number)
        there = _there(folder)
        rows = self._db.execute("select name, type, size, modified, id from files where folder = ?", [number])
        known = {name: (found, id) for name, *found, id in rows}
        gone = [name for name in known if name not in there]
        added = [(number, name, *found) for name, found in there.items() if name not in known]
        changed = [
            (*found, known[name][1]) for name, found in there.items() if name in known and known[name][0] != [*found]
        ]
        self._db.executemany("insert into files (folder, name, type, size, modified) values (?, ?, ?, ?, ?)", added)
        self._db.executemany("update files set type = ?, size = ?, modified = ? where id = ?", changed)
        for name in gone:
            self._db.execute("delete from files where id = ?", [known[name][1]])
            if known[name][0][0] == "directory":
                self._forget(f"{shown_path(folder.path)}/{name}")
        self._count += len(added) - len(gone)
        self._uncommitted += len(added) + len(changed) + len(gone) + 1
        below = [
            os.path.join(folder.path, meant_path(name)) for name, found in there.items() if found[0] == "directory"
        ]
        return [path for path in below if path not in PSEUDO]

    def _number(self, path: str) -> int:
        shown = shown_path(path)
        self._db.execute(
            "insert into folders (path, walk) values (?, ?) on conflict (path) do update set walk = excluded.walk",
            [shown, self._walk],
        )
        [[number]] = self._db.execute("select id from folders where path = ?", [shown])
        return int(number)

    def _forget(self, path: str) -> None:
        """A folder that is gone, and everything below it. "0" is what follows "/"."""
        below = [path, f"{path}/", f"{path}0"]
        where = "path = ? or (path >= ? and path < ?)"
        self._db.execute(f"delete from files where folder in (select id from folders where {where})", below)
        self._db.execute(f"delete from folders where {where}", below)

    def _commit(self) -> None:
        self._db.commit()
        self._uncommitted = 0


def _there(folder: OpenFolder) -> dict[str, Found]:
    found: dict[str, Found] = {}
    for entry in folder.scan():
        try:
            info = entry.stat(follow_symlinks=False)
        except OSError:
            continue
        found[shown_path(entry.name)] = (kind_of(entry), info.st_size, info.st_mtime_ns // 1000)
    return found


_CLOSE_WRITE, _MOVED, _CREATE, _DELETE = 0x8, 0x40 | 0x80, 0x100, 0x200
_DELETE_SELF, _MOVE_SELF, _IGNORED, _OVERFLOW, _ONLY_FOLDERS = 0x400, 0x800, 0x8000, 0x4000, 0x01000000
_MASK = _CLOSE_WRITE | _MOVED | _CREATE | _DELETE | _DELETE_SELF | _MOVE_SELF | _ONLY_FOLDERS
_EVENT = struct.Struct("iIII")


class Watch:
    """Folders that are watched, each under a number of the watcher's own choice."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
        self._fd = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC) if self._libc is not None else -1
        # A pair of sockets, since not every system can wait for a pipe.
        self._wake, self._waker = socket.socketpair()
        self._numbers: dict[int, int] = {}
        # Whether everything that was asked for is watched: the kernel may have no room for more.
        self.is_complete = self._fd >= 0
        # Whether all changes that were read have been taken in.
        self.is_idle = True

    def add(self, folder: int | None, number: int) -> None:
        """Watch an open folder, by its descriptor: its name may lead elsewhere by now."""
        if self._libc is None or self._fd < 0 or folder is None:
            return
        found = self._libc.inotify_add_watch(self._fd, f"/proc/self/fd/{folder}".encode(), ctypes.c_uint32(_MASK))
        if found >= 0:
            self._numbers[found] = number
        else:
            self.is_complete = False

    def wait(self, seconds: float) -> set[int] | None:
        """Return the numbers of folders that have changed, after at most this time; None if changes were missed."""
        watched: list[Any] = [self._wake] if self._fd < 0 else [self._wake, self._fd]
        ready, _, _ = select.select(watched, [], [], seconds)
        if self._fd not in ready:
            return set()
        # Before they are read: a change is waiting to be read, or was read and is not done, at every moment.
        self.is_idle = False
        return self._read()

    def has_news(self) -> bool:
        """Return whether changes wait to be read, or were read and are not done with. The kernel queues a change before
        the call that made it returns, so nothing is missed."""
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
                found, mask, _, length = _EVENT.unpack_from(data, at)
                at += _EVENT.size + length
                missed = missed or bool(mask & _OVERFLOW)
                if mask & _IGNORED:
                    self._numbers.pop(found, None)
                elif found in self._numbers:
                    changed.add(self._numbers[found])

    def stop(self) -> None:
        """End a wait that is going on, from any thread."""
        self._waker.send(b"x")

    @property
    def is_open(self) -> bool:
        return self._wake.fileno() >= 0

    def close(self) -> None:
        self._wake.close()
        self._waker.close()
        if self._fd >= 0:
            os.close(self._fd)
