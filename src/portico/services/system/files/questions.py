"""Questions about files: what is there, what is in it, where something is."""

from __future__ import annotations

import hashlib
import os
import re
import stat
import time
from base64 import b64encode
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from typing import Any, Literal, Protocol

from portico.services.system.containment import BLOCK, HOW_TO_ALLOW, AllowedRoots, OpenFile
from portico.services.system.cursors import Cursors
from portico.services.system.errors import InvalidArgument, MachineError, Outside, package
from portico.services.system.eventlog.entries import iso
from portico.services.system.files.index import Index
from portico.services.system.files.lines import WholeLines, context, shown_blocks
from portico.services.system.files.walk import FileCriteria, FileEntry, kind_of, kind_of_mode, look, walk
from portico.services.system.privacy import Learned, legible, opaque
from portico.services.system.results import (
    LARGEST_READ,
    Algorithm,
    Checksum,
    FileInfo,
    FilePage,
    FilePart,
    FileRow,
    TextMatch,
)
from portico.services.system.text import decoded, meant_path, plain, shown_path

QUERY_SECONDS = 5.0
LARGEST_HASHED = 16 * 2**30
HASHING_SECONDS = 60.0
MOST_PROBLEMS = 10
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
        start = self._cursors.redeem(cursor, question) if cursor is not None else [0, self._fresh()]
        deadline = self._clock() + seconds
        search = None if within is None else view.search if view is not None else LineSearch(within)
        looking = _Looking(self, wanted, tops, start, deadline, self._clock)
        rows: list[FileRow] = []
        with closing(looking):
            while len(rows) < limit and (entry := looking.next()) is not None:
                if view is not None and not view.fits(entry, looking.top):
                    continue
                matches = self._matches(entry, search, looking) if search is not None else []
                if search is None or matches:
                    rows.append(_row(entry, matches))
            position = looking.position
            has_more = looking.timed_out or (len(rows) == limit and looking.next() is not None)
        return FilePage(
            files=rows,
            count=len(rows),
            has_more=has_more,
            next_cursor=self._cursors.issue(question, position, looking.problems) if has_more else None,
            timed_out=looking.timed_out,
            used_index=isinstance(start[1], int),
            problems=looking.problems[:MOST_PROBLEMS],
        )

    def _fresh(self) -> Any:
        """Where a search begins: with a number in the index, or with names to walk by."""
        if self.index is not None:
            self.index.start()
            if self.index.is_ready:
                return 0
        return []

    def _top(self, path: str) -> str:
        with self.roots.folder(meant_path(path)) as folder:
            return folder.path

    def _matches(self, entry: FileEntry, search: ContentSearch, looking: _Looking) -> list[TextMatch]:
        """The lines of a file that have what is searched for; none of what is no file, or cannot be read."""
        if entry.type != "file":
            return []
        try:
            with self.roots.open(meant_path(entry.path)) as file:
                return search(file, looking.time_is_up)
        except (MachineError, OSError):
            return []

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


# The contents of files


LARGEST_FILE = 64 * 2**20
LONGEST_PATTERN = 500
LONGEST_EXCERPT = 200
MOST_MATCHES = 5
_OVERLAP = 4096
_MEMORY = 8 * 2**20
_HALF_CHARACTER = re.compile(rb"(?:[\xc0-\xdf]|[\xe0-\xef][\x80-\xbf]?|[\xf0-\xf7][\x80-\xbf]{0,2})\Z")


class _Found(Protocol):
    def start(self) -> int: ...
    def end(self) -> int: ...


Search = Callable[[bytes, int], _Found | None]
"""The first place in some bytes, from an offset on."""

ContentSearch = Callable[[OpenFile, Callable[[], bool]], list[TextMatch]]
"""The lines of a file that match, as far as there is time."""


def searcher(what: str) -> Search:
    """For a text, in whatever case; or between slashes for a pattern in the syntax of RE2: `/fail(ed|ure)/`."""
    if not 0 < len(what) <= LONGEST_PATTERN:
        raise InvalidArgument(f"What to look for has 1 to {LONGEST_PATTERN} characters.")
    if _is_pattern(what):
        return _by_pattern(what[1:-1])
    # A literal text: there is nothing in it for `re` to go back for.
    literal = re.compile(re.escape(what.encode()), re.IGNORECASE)
    return literal.search


def _is_pattern(what: str) -> bool:
    return len(what) > 2 and what.startswith("/") and what.endswith("/")


def _by_pattern(pattern: str) -> Search:
    re2: Any = package("re2", "Looking for a pattern in the contents of files")
    options = re2.Options()
    options.max_mem = _MEMORY
    options.log_errors = False
    options.never_nl = False
    options.case_sensitive = False
    try:
        re2.compile(pattern.encode(), options)  # by itself, so that what is wrong is told of what was written
        compiled = re2.compile(f"(?m:{pattern})".encode(), options)
    except re2.error as error:
        # RE2 says what is wrong, a colon, and where; in bytes.
        what, _, where = error.args[0].decode("utf-8", "replace").partition(": ")
        said = f"{what}, at {where[:100]!r}" if where else what
        raise InvalidArgument(f"The pattern is not one that RE2 can read: {said}.") from None
    return lambda data, at: compiled.search(data, at)


class LineSearch:
    """The first lines of a file that match."""

    def __init__(self, what: str) -> None:
        self._search = searcher(what)

    def __call__(self, file: OpenFile, time_is_up: Callable[[], bool]) -> list[TextMatch]:
        return matches(text_blocks(file, time_is_up), self._search)


class ShownLineSearch:
    """The first lines that match as they would be shown, with tokens for names."""

    def __init__(self, asked: str, meant: str, learned: Callable[[], Learned]) -> None:
        self._search = searcher(opaque(asked))
        # A file that lacks a text lacks it however it is shown; of a pattern nothing of the kind can be said.
        self._first = None if _is_pattern(asked) else searcher(meant)
        self._learned = learned

    def __call__(self, file: OpenFile, time_is_up: Callable[[], bool]) -> list[TextMatch]:
        if self._first is not None and not matches(text_blocks(file, time_is_up), self._first):
            return []
        found = matches(shown_blocks(text_blocks(file, time_is_up), self._learned()), self._search)
        return [TextMatch(match.line, legible(match.text)) for match in found]


def text_blocks(file: OpenFile, time_is_up: Callable[[], bool]) -> Iterator[bytes]:
    """What is looked at of a file. One with zero bytes in its beginning is no text and has nothing."""
    for number, block in enumerate(file.blocks()):
        if (number == 0 and b"\0" in block[:1024]) or number * BLOCK >= LARGEST_FILE or time_is_up():
            return
        yield block


def matches(blocks: Iterable[bytes], search: Search) -> list[TextMatch]:
    """The first lines that match."""
    found: list[TextMatch] = []
    lines = 1
    rest = b""
    following = iter(blocks)
    block = next(following, None)
    while block is not None and len(found) < MOST_MATCHES:
        data, block = rest + block, next(following, None)
        # A match may lie across two blocks, so the end of one is looked at again with the next.
        keep = 0 if block is None else min(_OVERLAP, len(data))
        lines = _collect(data, len(data) - keep, search, lines, found)
        rest = data[len(data) - keep :]
    return found[:MOST_MATCHES]


def _collect(data: bytes, until: int, search: Search, line: int, found: list[TextMatch]) -> int:
    """Matches that begin before `until`, one for each line. Gives the number of the line that `until` is in."""
    at = 0
    while at < until and len(found) < MOST_MATCHES and (hit := search(data, at)) is not None and hit.start() < until:
        start = hit.start()
        line += data.count(b"\n", at, start)
        begin = data.rfind(b"\n", 0, start) + 1
        end = data.find(b"\n", max(start, hit.end() - 1))
        end = len(data) if end < 0 else end
        if not found or found[-1].line != line:
            found.append(TextMatch(line, _excerpt(data[begin:end], start - begin)))
        line += data.count(b"\n", start, min(end + 1, until))
        at = end + 1
    return line + (data.count(b"\n", at, until) if at < until else 0)


def _excerpt(line: bytes, at: int) -> str:
    """A line, or the part of a long one that matters."""
    if len(line) > LONGEST_EXCERPT:
        begin = max(0, at - LONGEST_EXCERPT // 4)
        line = line[begin : begin + LONGEST_EXCERPT]
        # Not from the middle of a character, nor to there.
        line = line[next((n for n, byte in enumerate(line[:4]) if byte & 0xC0 != 0x80), 0) :]
        line = _HALF_CHARACTER.sub(b"", line)
    return decoded(line).strip()
