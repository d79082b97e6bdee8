"""File queries: search, metadata, directory listings, content and checksums."""

from __future__ import annotations

import hashlib
import os
import stat
import time
from base64 import b64encode
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from typing import Any, Literal, Protocol

from portico_services.system.cursors import EncryptedCursorCodec
from portico_services.system.errors import PathNotAllowed, SystemToolError
from portico_services.system.files.content_search import FILE_START, ContentSearch, FilePosition, LineSearch
from portico_services.system.files.line_ranges import LineBoundaries, read_context
from portico_services.system.files.name_index import FileNameIndex
from portico_services.system.files.walk import FileCriteria, FileEntry, entry_type, fill_stat, mode_type, walk
from portico_services.system.logs.entries import format_iso
from portico_services.system.path_access import NO_ALLOWED_PATHS_HELP, AllowedPaths, OpenDirectory, OpenFile
from portico_services.system.results import (
    MAX_READ_BYTES,
    Checksum,
    FileInfo,
    FilePage,
    FileRange,
    FileRow,
    HashAlgorithm,
    LineMatch,
)
from portico_services.system.text import escape_controls, path_from_text, path_to_text

QUERY_TIMEOUT_SECONDS = 5.0
# A client could otherwise occupy a thread for hours.
MAX_HASHED_BYTES = 16 * 2**30
HASH_TIMEOUT_SECONDS = 60.0
MAX_REPORTED_PROBLEMS = 10
# How long a search waits for the index to process pending changes.
CATCH_UP_SECONDS = 0.25
_CLOCK_CHECK_INTERVAL = 64
_INDEX_PAGE_SIZE = 256


class FileVisibility(Protocol):
    """View of files for a caller with anonymized results."""

    @property
    def search(self) -> ContentSearch | None:
        """Return the content search in anonymized form, or None if contents are not searched."""

    def matches(self, entry: FileEntry, top: str) -> bool:
        """Return whether the anonymized form of a file below a directory matches the criteria."""


class FileQueries:
    """Queries on the allowed paths."""

    def __init__(
        self,
        roots: AllowedPaths,
        cursors: EncryptedCursorCodec,
        index: FileNameIndex | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.roots = roots
        self.index = index
        self._cursors = cursors
        self._clock = clock

    # Search

    def search(
        self,
        criteria: FileCriteria,
        path: str | None,
        within: str | None,
        limit: int,
        cursor: str | None,
        seconds: float = QUERY_TIMEOUT_SECONDS,
        view: FileVisibility | None = None,
    ) -> FilePage:
        """Search files by name, size, time and content, until the time limit."""
        # Single allowed files are not searched: they can be read directly by their path.
        tops = [self._top(path)] if path is not None else [root.path for root in self.roots.all if not root.only]
        if not tops:
            raise PathNotAllowed(f"No directory may be searched here. {NO_ALLOWED_PATHS_HELP}")
        # The real paths: a cursor becomes invalid if an allowed path is replaced by another directory.
        question = ["files", criteria, tops, within]
        problems: list[str] = []
        start = self._cursors.decode(cursor, question) if cursor is not None else [0, self._start_position(problems)]
        deadline = self._clock() + seconds
        search = None if within is None else view.search if view is not None else LineSearch(within)
        scan = _FileScan(self, criteria, tops, start[:2], deadline, self._clock)
        contents = _ContentScan(self.roots, search, start[2:], scan)
        rows: list[FileRow] = []
        with closing(scan), closing(contents):
            while len(rows) < limit and not contents.is_unfinished and (entry := scan.next()) is not None:
                # Searching the content is faster than computing the anonymized name.
                if not contents.fits(entry) or (view is not None and not view.matches(entry, scan.top)):
                    continue
                rows.append(_row(entry, contents.matches))
            position = contents.position
            timed_out = scan.timed_out or contents.is_unfinished
            # Only if the page is full does it take another step to know.
            has_more = timed_out or (len(rows) == limit and scan.next() is not None)
        if scan.unread:
            scan.problems.append(f"{scan.unread:,} files could not be read: they were removed or access was denied.")
        return FilePage(
            files=rows,
            count=len(rows),
            has_more=has_more,
            next_cursor=self._cursors.encode(question, position, scan.problems) if has_more else None,
            timed_out=timed_out,
            used_index=isinstance(start[1], int),
            problems=[*problems, *scan.problems][:MAX_REPORTED_PROBLEMS],
        )

    def _start_position(self, problems: list[str]) -> Any:
        """Return the start position of a search: an index row id, or path components for a walk."""
        if self.index is not None:
            self.index.start()
            if self.index.is_ready:
                if not self.index.catch_up(CATCH_UP_SECONDS):
                    problems.append(
                        "The index may lack the latest changes: files created or removed within the last "
                        "minute may be missing or still listed."
                    )
                return 0
        return []

    def _top(self, path: str) -> str:
        with self.roots.open_directory(path_from_text(path)) as folder:
            return folder.path

    # Metadata and content

    def stat(self, path: str) -> FileInfo:
        info, real = self.roots.stat(path_from_text(path))
        # Only some platforms record the creation time.
        created = getattr(info, "st_birthtime_ns", None)
        return FileInfo(
            path=path_to_text(real),
            name=path_to_text(os.path.basename(real)),
            type=mode_type(info.st_mode),
            size=info.st_size,
            mode=stat.filemode(info.st_mode),
            uid=info.st_uid,
            gid=info.st_gid,
            owner=_owner(info.st_uid),
            inode=info.st_ino,
            hard_links=info.st_nlink,
            accessed=format_iso(info.st_atime_ns // 1000),
            modified=format_iso(info.st_mtime_ns // 1000),
            changed=format_iso(info.st_ctime_ns // 1000),
            created=None if created is None else format_iso(created // 1000),
        )

    def list_directory(self, path: str, limit: int, cursor: str | None) -> FilePage:
        """Return a page of a directory's entries, sorted by name."""
        with self.roots.open_directory(path_from_text(path)) as folder:
            entries, question = folder.scan(), ["folder", folder.path]
            after = self._cursors.decode(cursor, question) if cursor is not None else ""
            # By name instead of offset, so that files created in between shift nothing.
            left = [entry for entry in entries if path_to_text(entry.name) > after] if after else entries
            rows = [
                FileEntry(os.path.join(folder.path, entry.name), entry.name, entry_type(entry))
                for entry in left[:limit]
            ]
            for row, entry in zip(rows, left, strict=False):
                fill_stat(row, entry)
            more = len(left) > limit
            problems: list[str] = []
            following = self._cursors.encode(question, path_to_text(rows[-1].name), problems) if more else None
        return FilePage([_row(row) for row in rows], len(rows), more, following, len(entries), problems=problems)

    def read(self, path: str, offset: int, length: int) -> FileRange:
        with self.roots.open(path_from_text(path)) as file:
            return _read_range(file, offset, min(length, MAX_READ_BYTES))

    def read_lines(self, path: str, offset: int, length: int) -> tuple[FileRange, str]:
        """Return the whole lines that contain these bytes, and the text around them."""
        with self.roots.open(path_from_text(path)) as file:
            begin, end = LineBoundaries(file).expand(offset, min(length, MAX_READ_BYTES))
            return _read_range(file, begin, end - begin), read_context(file, begin, end)

    def checksum(self, path: str, algorithm: HashAlgorithm) -> Checksum:
        """Return the digest of a whole file."""
        deadline = self._clock() + HASH_TIMEOUT_SECONDS
        # MD5 and SHA-1 are offered for comparison with published checksums; FIPS builds reject them otherwise.
        digest = hashlib.new(algorithm, usedforsecurity=False)
        with self.roots.open(path_from_text(path)) as file:
            if file.size > MAX_HASHED_BYTES:
                raise SystemToolError(
                    f"The file has {file.size:,} bytes; the limit is {MAX_HASHED_BYTES:,} bytes.", outcome="invalid"
                )
            for block in file.blocks():
                digest.update(block)
                if self._clock() > deadline:
                    raise SystemToolError(
                        f"The file could not be read within {HASH_TIMEOUT_SECONDS:g} s.", outcome="invalid"
                    )
            return Checksum(path_to_text(file.path), algorithm, digest.hexdigest(), file.size)


class _ContentScan:
    """Content filter of a search. Without a search text every file matches.

    The directory of the last file stays open, because the next file is usually in it too.
    """

    def __init__(self, roots: AllowedPaths, search: ContentSearch | None, rest: list[Any], scan: _FileScan) -> None:
        self.matches: list[LineMatch] = []
        # Whether time ran out within a file.
        self.is_unfinished = False
        self._roots = roots
        self._search = search
        self._scan = scan
        # File that the previous page did not finish, and the position in it.
        self._unfinished: str | None = rest[0] if rest else None
        self._rest: FilePosition = (rest[1][0], rest[1][1]) if rest else FILE_START
        self._previous_position = scan.position
        self._position: list[Any] | None = None
        self._folder: OpenDirectory | None = None

    @property
    def position(self) -> list[Any]:
        return self._position or self._scan.position

    def fits(self, entry: FileEntry) -> bool:
        """Return whether a file contains a match; the lines are then in `matches`."""
        if self._search is None:
            return True
        before, self._previous_position = self._previous_position, self._scan.position
        if entry.type != "file":
            return False
        begin = self._rest if self._unfinished == entry.path else FILE_START
        try:
            with self._open_file(path_from_text(entry.path)) as file:
                result = self._search(file, begin, self._scan.time_is_up)
        except (SystemToolError, OSError):
            self._scan.unread += 1
            return False
        self.matches = result.matches
        if result.rest is not None:
            self.is_unfinished = True
            # Before this file: the next page starts with it again, at the place where time ran out.
            self._position = [*before, entry.path, result.rest]
        return bool(result.matches)

    def _open_file(self, path: str) -> OpenFile:
        folder, _, name = path.rpartition("/")
        if self._folder is None or self._folder.path != folder:
            self.close()
            self._folder = self._roots.open_directory(folder)
        # Without descriptors (Windows), or if the directory was replaced by a link, open by path with all checks.
        if self._folder.fd is None or self._folder.path != folder:
            return self._roots.open(path)
        return self._folder.open(name)

    def close(self) -> None:
        if self._folder is not None:
            self._folder.close()
            self._folder = None


class _FileScan:
    """Running search by name: yields matching files until time runs out."""

    def __init__(
        self,
        files: FileQueries,
        criteria: FileCriteria,
        tops: list[str],
        start: Any,
        deadline: float,
        clock: Callable[[], float],
    ) -> None:
        self.problems: list[str] = []
        self.timed_out = False
        # Number of files that could not be read.
        self.unread = 0
        # Index of the directory, and the position in it.
        self.position: list[Any] = start
        self._files = files
        self._criteria = criteria
        self._tops = tops
        self._deadline = deadline
        self._clock = clock
        self._steps = 0
        self._rows = self._iterate_entries()

    def next(self) -> FileEntry | None:
        """Return the next file, or None at the end or on timeout; `timed_out` tells which."""
        if self.timed_out:
            return None
        for number, row in self._rows:
            self._steps += 1
            if row is not None:
                self.position = [number, row.position]
                if self.time_is_up():
                    self.timed_out = True
                return row
            if not self._steps % _CLOCK_CHECK_INTERVAL and self.time_is_up():
                self.timed_out = True
                return None
        return None

    @property
    def top(self) -> str:
        """Return the directory below which the last file was found."""
        return path_to_text(self._tops[self.position[0]])

    def time_is_up(self) -> bool:
        return self._clock() > self._deadline

    def close(self) -> None:
        self._rows.close()

    def _iterate_entries(self) -> Generator[tuple[int, FileEntry | None], None, None]:
        first, position = self.position
        for number, top in enumerate(self._tops):
            if number >= first:
                # An index position is a number, that of a walk a list; the empty value starts the next directory.
                begin = position if number == first else type(position)()
                rows = self._scan_index(top, begin) if isinstance(begin, int) else self._walk_directory(top, begin)
                for row in rows:
                    yield number, row

    def _scan_index(self, top: str, after: int) -> Iterator[FileEntry]:
        assert self._files.index is not None
        while rows := self._files.index.search(self._criteria, top, after, _INDEX_PAGE_SIZE):
            yield from rows
            after = int(rows[-1].position)  # type: ignore[arg-type]  # in the index it is a number

    def _walk_directory(self, top: str, after: list[str]) -> Iterator[FileEntry | None]:
        try:
            folder = self._files.roots.open_directory(top)
            for row in walk(folder, self._criteria, list(map(path_from_text, after)), self._report_unreadable):
                if row is not None:
                    row.path, row.name = path_to_text(row.path), path_to_text(row.name)
                    row.position = list(map(path_to_text, row.position))  # type: ignore[arg-type]  # here it is names
                yield row
        except (SystemToolError, OSError) as failure:
            self.problems.append(
                str(failure) if isinstance(failure, SystemToolError) else "A directory could not be read."
            )

    def _report_unreadable(self, why: str) -> None:
        if len(self.problems) < MAX_REPORTED_PROBLEMS:
            self.problems.append(f"A directory could not be read: {why}.")


def _owner(uid: int) -> str:
    try:
        import pwd  # not on Windows
    except ImportError:
        return ""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return ""


def _read_range(file: OpenFile, offset: int, length: int) -> FileRange:
    encoding, text, used = _decode(file, offset, file.read(offset, length))
    end = offset + used
    following = end if used and end < file.size else None
    return FileRange(path_to_text(file.path), offset, used, file.size, encoding, text, following)


def _decode(file: OpenFile, offset: int, data: bytes) -> tuple[Literal["utf-8", "utf-16", "base64"], str, int]:
    """Decode bytes as text and return the number of bytes used: a character cut off at the end is left for the next
    read.
    """
    mark = file.read(0, 2)
    if mark in (b"\xff\xfe", b"\xfe\xff"):
        even_data = data[: len(data) & ~1]
        order = "utf-16-le" if mark == b"\xff\xfe" else "utf-16-be"
        return "utf-16", even_data.decode(order, "backslashreplace").removeprefix("\ufeff"), len(even_data)
    if b"\0" not in data:
        # A UTF-8 character has up to four bytes, so up to three may be cut off at the end of a range.
        for cut in range(min(4, len(data)) if offset + len(data) < file.size else 1):
            try:
                return "utf-8", data[: len(data) - cut].decode(), len(data) - cut
            except UnicodeDecodeError:
                continue
    return "base64", b64encode(data).decode(), len(data)


def _row(entry: FileEntry, matches: Sequence[LineMatch] = ()) -> FileRow:
    modified = None if entry.modified is None else format_iso(entry.modified)
    result = [LineMatch(match.line, escape_controls(match.text)) for match in matches]
    return FileRow(escape_controls(entry.path), escape_controls(entry.name), entry.type, entry.size, modified, result)
