"""The side of the index of files that writes: what is there now, as rows. It belongs to one thread."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable

from portico.services.system.containment import AllowedRoots, OpenFolder
from portico.services.system.errors import MachineError
from portico.services.system.files.walk import MOST_DEPTH, PSEUDO, kind_of
from portico.services.system.files.watch import Watch
from portico.services.system.text import meant_path, shown_path

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
