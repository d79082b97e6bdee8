"""Questions about files: what is there, what is in it, where something is."""

from __future__ import annotations

import hashlib
import os
import stat
import time
from base64 import b64encode
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from typing import Any, Literal, Protocol

from portico_services.system.cursors import Cursors
from portico_services.system.errors import InvalidArgument, MachineError, Outside
from portico_services.system.files.content_search import BEGINNING, ContentSearch, FilePlace, LineSearch
from portico_services.system.files.line_ranges import WholeLines, context
from portico_services.system.files.name_index import Index
from portico_services.system.files.walk import FileCriteria, FileEntry, kind_of, kind_of_mode, look, walk
from portico_services.system.logs.entries import iso
from portico_services.system.path_access import HOW_TO_ALLOW, AllowedRoots, OpenFile, OpenFolder
from portico_services.system.results import (
    LARGEST_READ,
    Algorithm,
    Checksum,
    FileInfo,
    FilePage,
    FilePart,
    FileRow,
    TextMatch,
)
from portico_services.system.text import meant_path, plain, shown_path

QUERY_SECONDS = 5.0
LARGEST_HASHED = 16 * 2**30
HASHING_SECONDS = 60.0
MOST_PROBLEMS = 10
# How long a search waits for the index to take in the changes that are known.
CATCH_UP_SECONDS = 0.25
_STEPS = 64
_PAGE = 256


class View(Protocol):
    """Files as a caller sees them who is not shown everything."""

    @property
    def search(self) -> ContentSearch | None:
        """The lines that match as they are shown, if contents are looked into."""

    def fits(self, entry: FileEntry, top: str) -> bool:
        """Whether what is shown of a file below a folder fits the criteria."""


class FileQueries:
    def __init__(
        self,
        roots: AllowedRoots,
        cursors: Cursors,
        index: Index | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.roots = roots
        self.index = index
        self._cursors = cursors
        self._clock = clock

    # Finding

    def search(
        self,
        wanted: FileCriteria,
        path: str | None,
        within: str | None,
        limit: int,
        cursor: str | None,
        seconds: float = QUERY_SECONDS,
        view: View | None = None,
    ) -> FilePage:
        """Files by name, size, time and what they contain. As far as it comes in the time it has."""
        tops = [self._top(path)] if path is not None else [root.path for root in self.roots.all if not root.only]
        if not tops:
            raise Outside(f"No folder may be searched here. {HOW_TO_ALLOW}")
        question = ["files", wanted, tops, within]
        problems: list[str] = []
        start = self._cursors.redeem(cursor, question) if cursor is not None else [0, self._fresh(problems)]
        deadline = self._clock() + seconds
        search = None if within is None else view.search if view is not None else LineSearch(within)
        looking = _Looking(self, wanted, tops, start[:2], deadline, self._clock)
        contents = _LookingInside(self.roots, search, start[2:], looking)
        rows: list[FileRow] = []
        with closing(looking), closing(contents):
            while len(rows) < limit and not contents.is_unfinished and (entry := looking.next()) is not None:
                # Looking into a file is quicker than finding out how its name would be shown.
                if not contents.fits(entry) or (view is not None and not view.fits(entry, looking.top)):
                    continue
                rows.append(_row(entry, contents.matches))
            position = contents.position
            timed_out = looking.timed_out or contents.is_unfinished
            has_more = timed_out or (len(rows) == limit and looking.next() is not None)
        if looking.unread:
            looking.problems.append(f"{looking.unread:,} files could not be looked into: they are gone, or not for us.")
        return FilePage(
            files=rows,
            count=len(rows),
            has_more=has_more,
            next_cursor=self._cursors.issue(question, position, looking.problems) if has_more else None,
            timed_out=timed_out,
            used_index=isinstance(start[1], int),
            problems=[*problems, *looking.problems][:MOST_PROBLEMS],
        )

    def _fresh(self, problems: list[str]) -> Any:
        """Where a search begins: with a number in the index, or with names to walk by."""
        if self.index is not None:
            self.index.start()
            if self.index.is_ready:
                if not self.index.catch_up(CATCH_UP_SECONDS):
                    problems.append(
                        "The index may lack the latest changes: files that were made or removed within the last minute "
                        "may be missing or still be listed."
                    )
                return 0
        return []

    def _top(self, path: str) -> str:
        with self.roots.folder(meant_path(path)) as folder:
            return folder.path

    # Looking

    def about(self, path: str) -> FileInfo:
        info, real = self.roots.stat(meant_path(path))
        created = getattr(info, "st_birthtime_ns", None)
        return FileInfo(
            path=shown_path(real),
            name=shown_path(os.path.basename(real)),
            type=kind_of_mode(info.st_mode),
            size=info.st_size,
            mode=stat.filemode(info.st_mode),
            uid=info.st_uid,
            gid=info.st_gid,
            owner=_owner(info.st_uid),
            inode=info.st_ino,
            hard_links=info.st_nlink,
            accessed=iso(info.st_atime_ns // 1000),
            modified=iso(info.st_mtime_ns // 1000),
            changed=iso(info.st_ctime_ns // 1000),
            created=None if created is None else iso(created // 1000),
        )

    def listing(self, path: str, limit: int, cursor: str | None) -> FilePage:
        """A page of what is in a folder, by name."""
        with self.roots.folder(meant_path(path)) as folder:
            entries, question = folder.scan(), ["folder", folder.path]
            after = self._cursors.redeem(cursor, question) if cursor is not None else ""
            left = [entry for entry in entries if shown_path(entry.name) > after] if after else entries
            rows = [
                FileEntry(os.path.join(folder.path, entry.name), entry.name, kind_of(entry)) for entry in left[:limit]
            ]
            for row, entry in zip(rows, left, strict=False):
                look(row, entry)
            more = len(left) > limit
            problems: list[str] = []
            following = self._cursors.issue(question, shown_path(rows[-1].name), problems) if more else None
        return FilePage([_row(row) for row in rows], len(rows), more, following, len(entries), problems=problems)

    def read(self, path: str, offset: int, length: int) -> FilePart:
        with self.roots.open(meant_path(path)) as file:
            return _part(file, offset, min(length, LARGEST_READ))

    def read_lines(self, path: str, offset: int, length: int) -> tuple[FilePart, str]:
        """The whole lines that have these bytes, and what stands around them."""
        with self.roots.open(meant_path(path)) as file:
            begin, end = WholeLines(file).around(offset, min(length, LARGEST_READ))
            return _part(file, begin, end - begin), context(file, begin, end)

    def checksum(self, path: str, algorithm: Algorithm) -> Checksum:
        """The digest of a whole file."""
        deadline = self._clock() + HASHING_SECONDS
        digest = hashlib.new(algorithm, usedforsecurity=False)
        with self.roots.open(meant_path(path)) as file:
            if file.size > LARGEST_HASHED:
                raise InvalidArgument(f"The file has {file.size:,} bytes; {LARGEST_HASHED:,} is the most.")
            for block in file.blocks():
                digest.update(block)
                if self._clock() > deadline:
                    raise InvalidArgument(f"The file could not be read within {HASHING_SECONDS:g} s.")
            return Checksum(shown_path(file.path), algorithm, digest.hexdigest(), file.size)


class _LookingInside:
    """What is in the files that a search comes to. Without anything to look for in them, every file fits.

    The folder of the last file is kept open: the next one mostly is in it, too.
    """

    def __init__(self, roots: AllowedRoots, search: ContentSearch | None, rest: list[Any], looking: _Looking) -> None:
        self.matches: list[TextMatch] = []
        # Whether time was up in the midst of a file.
        self.is_unfinished = False
        self._roots = roots
        self._search = search
        self._looking = looking
        # The file that the page before did not finish, and where it was there.
        self._unfinished: str | None = rest[0] if rest else None
        self._rest: FilePlace = (rest[1][0], rest[1][1]) if rest else BEGINNING
        self._before = looking.position
        self._position: list[Any] | None = None
        self._folder: OpenFolder | None = None

    @property
    def position(self) -> list[Any]:
        return self._position or self._looking.position

    def fits(self, entry: FileEntry) -> bool:
        """Whether a file has what is looked for; its lines are then `matches`."""
        if self._search is None:
            return True
        before, self._before = self._before, self._looking.position
        if entry.type != "file":
            return False
        begin = self._rest if self._unfinished == entry.path else BEGINNING
        try:
            with self._open(meant_path(entry.path)) as file:
                looked = self._search(file, begin, self._looking.time_is_up)
        except (MachineError, OSError):
            self._looking.unread += 1
            return False
        self.matches = looked.matches
        if looked.rest is not None:
            self.is_unfinished = True
            self._position = [*before, entry.path, looked.rest]
        return bool(looked.matches)

    def _open(self, path: str) -> OpenFile:
        folder, _, name = path.rpartition("/")
        if self._folder is None or self._folder.path != folder:
            self.close()
            self._folder = self._roots.folder(folder)
        if self._folder.fd is None or self._folder.path != folder:
            return self._roots.open(path)
        return self._folder.open(name)

    def close(self) -> None:
        if self._folder is not None:
            self._folder.close()
            self._folder = None


class _Looking:
    """A search that is going on: the next file by name, as long as there is time."""

    def __init__(
        self,
        files: FileQueries,
        wanted: FileCriteria,
        tops: list[str],
        start: Any,
        deadline: float,
        clock: Callable[[], float],
    ) -> None:
        self.problems: list[str] = []
        self.timed_out = False
        # How many files could not be looked into.
        self.unread = 0
        # Which of the folders, and where in it.
        self.position: list[Any] = start
        self._files = files
        self._wanted = wanted
        self._tops = tops
        self._deadline = deadline
        self._clock = clock
        self._steps = 0
        self._rows = self._all()

    def next(self) -> FileEntry | None:
        """The next one, or None at the end, or when time is up: then `timed_out`."""
        if self.timed_out:
            return None
        for number, row in self._rows:
            self._steps += 1
            if row is not None:
                self.position = [number, row.position]
                if self.time_is_up():
                    self.timed_out = True
                return row
            if not self._steps % _STEPS and self.time_is_up():
                self.timed_out = True
                return None
        return None

    @property
    def top(self) -> str:
        """The folder below which the last one was found."""
        return shown_path(self._tops[self.position[0]])

    def time_is_up(self) -> bool:
        return self._clock() > self._deadline

    def close(self) -> None:
        self._rows.close()

    def _all(self) -> Generator[tuple[int, FileEntry | None], None, None]:
        first, place = self.position
        for number, top in enumerate(self._tops):
            if number >= first:
                begin = place if number == first else type(place)()
                rows = self._indexed(top, begin) if isinstance(begin, int) else self._walked(top, begin)
                for row in rows:
                    yield number, row

    def _indexed(self, top: str, after: int) -> Iterator[FileEntry]:
        assert self._files.index is not None
        while rows := self._files.index.search(self._wanted, top, after, _PAGE):
            yield from rows
            after = int(rows[-1].position)  # type: ignore[arg-type]  # in the index it is a number

    def _walked(self, top: str, after: list[str]) -> Iterator[FileEntry | None]:
        try:
            folder = self._files.roots.folder(top)
            for row in walk(folder, self._wanted, list(map(meant_path, after)), self._failed):
                if row is not None:
                    row.path, row.name = shown_path(row.path), shown_path(row.name)
                    row.position = list(map(shown_path, row.position))  # type: ignore[arg-type]  # here it is names
                yield row
        except (MachineError, OSError) as failure:
            self.problems.append(str(failure) if isinstance(failure, MachineError) else "A folder could not be read.")

    def _failed(self, why: str) -> None:
        if len(self.problems) < MOST_PROBLEMS:
            self.problems.append(f"A folder could not be read: {why}.")


def _owner(uid: int) -> str:
    try:
        import pwd  # not on Windows
    except ImportError:
        return ""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return ""


def _part(file: OpenFile, offset: int, length: int) -> FilePart:
    encoding, text, used = _decoded(file, offset, file.read(offset, length))
    end = offset + used
    following = end if used and end < file.size else None
    return FilePart(shown_path(file.path), offset, used, file.size, encoding, text, following)


def _decoded(file: OpenFile, offset: int, data: bytes) -> tuple[Literal["utf-8", "utf-16", "base64"], str, int]:
    """Bytes as text, and how many of them it took: a character that was cut at the end is left for the next read."""
    mark = file.read(0, 2)
    if mark in (b"\xff\xfe", b"\xfe\xff"):
        whole = data[: len(data) & ~1]
        order = "utf-16-le" if mark == b"\xff\xfe" else "utf-16-be"
        return "utf-16", whole.decode(order, "backslashreplace").removeprefix("\ufeff"), len(whole)
    if b"\0" not in data:
        for cut in range(min(4, len(data)) if offset + len(data) < file.size else 1):
            try:
                return "utf-8", data[: len(data) - cut].decode(), len(data) - cut
            except UnicodeDecodeError:
                continue
    return "base64", b64encode(data).decode(), len(data)


def _row(entry: FileEntry, matches: Sequence[TextMatch] = ()) -> FileRow:
    modified = None if entry.modified is None else iso(entry.modified)
    found = [TextMatch(match.line, plain(match.text)) for match in matches]
    return FileRow(plain(entry.path), plain(entry.name), entry.type, entry.size, modified, found)
