"""File search by walking open directories in name order."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator
from fnmatch import translate
from functools import cached_property

from msgspec import Struct

from portico_services.system.path_access import PSEUDO_FILESYSTEMS, OpenDirectory
from portico_services.system.results import SearchMode

MAX_DEPTH = 100
# Patterns for one character: a character of a token may correspond to any part of the real name.
_ONE_OF = re.compile(r"\?|\[!?\]?[^\]]*\]")


class FileEntry(Struct):
    """File, directory or link. `modified` is in microseconds; values that were not read are None."""

    path: str
    name: str
    type: str
    size: int | None = None
    modified: int | None = None
    # Position for continuing after this entry.
    position: list[str] | int = 0


class FileCriteria(Struct, frozen=True, dict=True):
    """Search criteria. Text comparison ignores case."""

    text: str | None = None
    mode: SearchMode = "CONTAINS"
    names: tuple[str, ...] = ()
    type: str | None = None
    min_size: int | None = None
    max_size: int | None = None
    after: int | None = None
    before: int | None = None

    @cached_property
    def words(self) -> list[str]:
        if self.text is None:
            return []
        return self.text.casefold().split() if self.mode == "FREETEXT" else [self.text.casefold()]

    @cached_property
    def _pattern(self) -> re.Pattern[str] | None:
        return re.compile("|".join(map(translate, self.names)), re.IGNORECASE) if self.names else None

    @property
    def needs_stat(self) -> bool:
        """Return whether the criteria need size or modification time."""
        return not (self.min_size is self.max_size is self.after is self.before is None)

    def matches_name(self, name: str, relative: str) -> bool:
        """Return whether the name matches. Text with a slash, and free text, is matched against the path below the
        root.
        """
        if self._pattern is not None and self._pattern.match(name) is None:
            return False
        if self.text is None:
            return True
        where = (relative if self.mode == "FREETEXT" or "/" in self.text else name).casefold()
        return all(word in where for word in self.words)

    def matches_type(self, kind: str, name: str) -> bool:
        """Return whether the type matches. `file`, `directory` and `link` are types; anything else is a file
        extension.
        """
        if self.type is None or self.type == kind:
            return True
        return kind == "file" and name.lower().endswith(f".{self.type.lower().lstrip('.')}")

    def matches_stat(self, size: int, modified: int) -> bool:
        return (
            (self.min_size is None or size >= self.min_size)
            and (self.max_size is None or size <= self.max_size)
            and (self.after is None or modified >= self.after)
            and (self.before is None or modified <= self.before)
        )


def relax_glob(glob: str, replacement: Callable[[str], str]) -> str:
    """Return a glob that matches everything this one does after its tokens are replaced by names."""
    return replacement(_ONE_OF.sub("*", glob)).replace("[", "?")


def walk(
    top: OpenDirectory, criteria: FileCriteria, after: list[str], on_error: Callable[[str], None]
) -> Iterator[FileEntry | None]:
    """Yield the matching entries below a directory, after a position; None for a step without a match.

    Links are never followed, and a file is only stat'ed if a criterion needs it.
    """
    # An explicit stack: recursion would be limited, and the position must be resumable.
    stack: list[tuple[OpenDirectory, list[os.DirEntry[str]], list[str]]] = []
    try:
        stack.append(_open_directory(top, [], after))
        while stack:
            folder, entries, parent_path = stack[-1]
            if not entries:
                stack.pop()[0].close()
                continue
            entry = entries.pop()
            path = [*parent_path, entry.name]
            kind = entry_type(entry)
            # Directories on the path to the position were already reported by the previous page.
            resuming = path == after[: len(path)]
            yield None if resuming else _row(folder, entry, kind, path, criteria)
            if (
                kind == "directory"
                and len(path) < MAX_DEPTH
                # Pseudo file systems hold no stored data, and some of their files are endless.
                and os.path.join(folder.path, entry.name) not in PSEUDO_FILESYSTEMS
            ):
                try:
                    stack.append(_open_directory(folder.open_subdirectory(entry.name), path, after if resuming else []))
                except OSError as error:
                    # Removed, replaced by a link, or not readable by this process.
                    on_error(os.strerror(error.errno or 0))
    finally:
        for folder, *_ in stack:
            folder.close()


def _open_directory(
    folder: OpenDirectory, path: list[str], after: list[str]
) -> tuple[OpenDirectory, list[os.DirEntry[str]], list[str]]:
    """Return a directory, its entries in reverse order, and its position. Names before the position are skipped."""
    try:
        entries = folder.scan()
    except BaseException:
        folder.close()
        raise
    if len(after) > len(path) and after[: len(path)] == path:
        # Entries are sorted by name, so a position is the path of the last entry.
        entries = [entry for entry in entries if entry.name >= after[len(path)]]
    entries.reverse()
    return folder, entries, path


def _row(
    folder: OpenDirectory, entry: os.DirEntry[str], kind: str, path: list[str], criteria: FileCriteria
) -> FileEntry | None:
    if not criteria.matches_type(kind, entry.name) or not criteria.matches_name(entry.name, "/".join(path)):
        return None
    row = FileEntry(os.path.join(folder.path, entry.name), entry.name, kind, position=path)
    # One system call per file, which is most of the time of a walk.
    if criteria.needs_stat:
        if not fill_stat(row, entry):
            return None
        if not criteria.matches_stat(row.size or 0, row.modified or 0):
            return None
    return row


def fill_stat(row: FileEntry, entry: os.DirEntry[str]) -> bool:
    """Fill in size and modification time. Return False if the file no longer exists."""
    try:
        info = entry.stat(follow_symlinks=False)
    except OSError:
        return False
    row.size, row.modified = info.st_size, info.st_mtime_ns // 1000
    return True


def entry_type(entry: os.DirEntry[str]) -> str:
    try:
        if entry.is_file(follow_symlinks=False):
            return "file"
        if entry.is_dir(follow_symlinks=False):
            return "directory"
        return "link" if entry.is_symlink() else "other"
    except OSError:
        return "other"


def mode_type(mode: int) -> str:
    return {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "link"}.get(stat.S_IFMT(mode), "other")
