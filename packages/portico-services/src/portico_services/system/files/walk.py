"""Looking for files by walking: through open folders, in the order of names, and no further than it must."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator
from fnmatch import translate
from functools import cached_property

from msgspec import Struct

from portico_services.system.path_access import OpenFolder
from portico_services.system.results import Mode

MOST_DEPTH = 100
# Not files, but the kernel's own view of itself. One can begin there, but does not come by.
PSEUDO = frozenset({"/proc", "/sys", "/dev"})
_ONE_OF = re.compile(r"\?|\[!?\]?[^\]]*\]")


class FileEntry(Struct):
    """A file, a folder or a link. `modified` is in microseconds; what was not looked up is None."""

    path: str
    name: str
    type: str
    size: int | None = None
    modified: int | None = None
    # How to go on after it.
    position: list[str] | int = 0


class FileCriteria(Struct, frozen=True, dict=True):
    """Which files are wanted. Texts are compared without regard to case."""

    text: str | None = None
    mode: Mode = "CONTAINS"
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
        return not (self.min_size is self.max_size is self.after is self.before is None)

    def by_name(self, name: str, relative: str) -> bool:
        """Whether its name fits: a text is looked for in the name, or if it has a slash, and for free text, in the path
        below the root."""
        if self._pattern is not None and self._pattern.match(name) is None:
            return False
        if self.text is None:
            return True
        where = (relative if self.mode == "FREETEXT" or "/" in self.text else name).casefold()
        return all(word in where for word in self.words)

    def by_type(self, kind: str, name: str) -> bool:
        """`file`, `directory` and `link` are types, and anything else is the ending of a file's name."""
        if self.type is None or self.type == kind:
            return True
        return kind == "file" and name.lower().endswith(f".{self.type.lower().lstrip('.')}")

    def by_stat(self, size: int, modified: int) -> bool:
        return (
            (self.min_size is None or size >= self.min_size)
            and (self.max_size is None or size <= self.max_size)
            and (self.after is None or modified >= self.after)
            and (self.before is None or modified <= self.before)
        )


def loosened(glob: str, meant: Callable[[str], str]) -> str:
    """A glob that lets pass whatever this one does, with names for the tokens in it."""
    return meant(_ONE_OF.sub("*", glob)).replace("[", "?")


def walk(
    top: OpenFolder, wanted: FileCriteria, after: list[str], failed: Callable[[str], None]
) -> Iterator[FileEntry | None]:
    """What is below a folder and wanted, from behind a position; None is a step without any.

    A link is never followed, and a file is not looked at any closer than a filter asks for.
    """
    stack: list[tuple[OpenFolder, list[os.DirEntry[str]], list[str]]] = []
    try:
        stack.append(_begun(top, [], after))
        while stack:
            folder, entries, place = stack[-1]
            if not entries:
                stack.pop()[0].close()
                continue
            entry = entries.pop()
            here = [*place, entry.name]
            kind = kind_of(entry)
            resuming = here == after[: len(here)]
            yield None if resuming else _row(folder, entry, kind, here, wanted)
            if kind == "directory" and len(here) < MOST_DEPTH and os.path.join(folder.path, entry.name) not in PSEUDO:
                try:
                    stack.append(_begun(folder.child(entry.name), here, after if resuming else []))
                except OSError as error:
                    # Gone, or a link by now, or not ours to read.
                    failed(os.strerror(error.errno or 0))
    finally:
        for folder, *_ in stack:
            folder.close()


def _begun(
    folder: OpenFolder, place: list[str], after: list[str]
) -> tuple[OpenFolder, list[os.DirEntry[str]], list[str]]:
    """A folder, its entries with the next one last, and where it is. Names before the position have been."""
    try:
        entries = folder.scan()
    except BaseException:
        folder.close()
        raise
    if len(after) > len(place) and after[: len(place)] == place:
        entries = [entry for entry in entries if entry.name >= after[len(place)]]
    entries.reverse()
    return folder, entries, place


def _row(
    folder: OpenFolder, entry: os.DirEntry[str], kind: str, here: list[str], wanted: FileCriteria
) -> FileEntry | None:
    if not wanted.by_type(kind, entry.name) or not wanted.by_name(entry.name, "/".join(here)):
        return None
    row = FileEntry(os.path.join(folder.path, entry.name), entry.name, kind, position=here)
    if wanted.needs_stat:
        if not look(row, entry):
            return None
        if not wanted.by_stat(row.size or 0, row.modified or 0):
            return None
    return row


def look(row: FileEntry, entry: os.DirEntry[str]) -> bool:
    """Fill in size and time; False if it is gone."""
    try:
        info = entry.stat(follow_symlinks=False)
    except OSError:
        return False
    row.size, row.modified = info.st_size, info.st_mtime_ns // 1000
    return True


def kind_of(entry: os.DirEntry[str]) -> str:
    try:
        if entry.is_file(follow_symlinks=False):
            return "file"
        if entry.is_dir(follow_symlinks=False):
            return "directory"
        return "link" if entry.is_symlink() else "other"
    except OSError:
        return "other"


def kind_of_mode(mode: int) -> str:
    return (
        "file"
        if stat.S_ISREG(mode)
        else "directory"
        if stat.S_ISDIR(mode)
        else "link"
        if stat.S_ISLNK(mode)
        else "other"
    )
