"""Skills on disk: which there are below a folder, their files and digests, and nothing outside of it.

No path is ever made of what a client says without being resolved and found inside the folder again, below a directory
that is a skill. What was found is then opened beneath the folder, so that a link which takes the place of a directory
in between leads nowhere.
"""

from __future__ import annotations

import mimetypes
import os
import re
import stat
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path, PurePath
from typing import Any
from urllib.parse import quote, unquote

from msgspec import Struct

from portico import frontmatter, safe_open
from portico.protocol.content import BlobContents, TextContents
from portico.protocol.errors import UsageError
from portico.protocol.resources import Resource as Definition
from portico.protocol.skills import MOST_BYTES, MOST_FILES, Skill, SkillFile

SCHEME = "skill://"
MANIFEST = "SKILL.md"
DIRECTORY = "inode/directory"
LONGEST_NAME = 64

_NAME = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
# What the system's tables do not know, or take for something else.
_TYPES = {
    ".md": "text/markdown",
    ".markdown": "text/markdown",
    ".txt": "text/plain",
    ".py": "text/x-python",
    ".sh": "text/x-shellscript",
    ".js": "text/javascript",
    ".mjs": "text/javascript",
    ".ts": "text/x-typescript",
    ".sql": "text/x-sql",
    ".toml": "application/toml",
    ".yaml": "application/yaml",
    ".yml": "application/yaml",
}

Stamp = tuple[int, int, int, int]


class _Seen(Struct):
    """What was found in a file, as long as its stamp is the same."""

    stamp: Stamp
    size: int
    digest: str
    frontmatter: dict[str, Any] | None


class SkillDirectory:
    """The skills on disk below one directory. Paths are those of the URIs: `skill://` and then the path."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        try:
            self.root = Path(folder).resolve(strict=True)
        except (OSError, RuntimeError, ValueError):
            raise UsageError(f"there is no folder {os.fspath(folder)!r} to serve skills from") from None
        if not self.root.is_dir():
            raise UsageError(f"{self.root} is not a folder")
        if self._file(self.root / MANIFEST) is not None:
            raise UsageError(f"{self.root} is a skill itself: give the folder above it, where its name is seen")
        self._seen: dict[Path, _Seen] = {}

    # Finding

    def skills(self) -> tuple[list[Skill], list[str]]:
        """All skills in the order of their URIs, and what is wrong with those that are left out."""
        found: list[Skill] = []
        problems: list[str] = []
        for place, names in _walk(self.root, problems):
            if MANIFEST in names and self._file(place / MANIFEST) is not None:
                try:
                    found.append(self._skill(place))
                except UsageError as problem:
                    problems.append(str(problem))
        if len(self._seen) > 2 * sum(len(skill.resources) for skill in found):
            # More is remembered of what is gone than of what is there.
            self._seen.clear()
        return sorted(found, key=lambda skill: skill.uri), problems

    def skill(self, path: str) -> Skill:
        """One skill by the path of its SKILL.md."""
        place = self._place(path)
        if place.name != MANIFEST or place.parent == self.root or self._file(place) is None:
            raise FileNotFoundError(path)
        return self._skill(place.parent)

    def _skill(self, place: Path) -> Skill:
        uri = self._uri(place / MANIFEST)
        try:
            files = self._files(place)
            size = sum(file.stat().st_size for file in files.values())
            if size > MOST_BYTES:
                raise UsageError(f"{place}: {size:,} bytes, and a skill may have {MOST_BYTES:,}")
            if uri not in files:
                raise UsageError(f"{place / MANIFEST}: gone while it was looked at")
            seen = {name: self._look(file, whole=name == uri) for name, file in sorted(files.items())}
        except OSError as failure:
            raise UsageError(f"{failure.filename or place}: {failure.strerror or failure}") from None
        described = _checked(seen[uri].frontmatter or {}, place)
        return Skill(uri, described, [SkillFile(name, one.digest, one.size) for name, one in seen.items()])

    def _files(self, place: Path) -> dict[str, Path]:
        """Every file of a skill that is served: its URI, and where it really is."""
        problems: list[str] = []
        found: dict[str, Path] = {}
        for folder, names in _walk(place, problems):
            for name in names:
                # Of the directories we came by none is a link, so only a link needs to be resolved.
                known = stat.S_ISREG(os.lstat(folder / name).st_mode)
                file = folder / name if known else self._file(folder / name)
                if file is not None:
                    found[self._uri(folder / name)] = file
            if len(found) > MOST_FILES:
                raise UsageError(f"{place}: more than {MOST_FILES} files, and a skill may not have more")
        if problems:
            raise UsageError(problems[0])
        return found

    def _look(self, file: Path, *, whole: bool = False) -> _Seen:
        """Size and digest of a file, and with `whole` its frontmatter. Read again only when it has changed."""
        seen = self._seen.get(file)
        if seen is not None and seen.stamp == _stamp(file.stat()) and (seen.frontmatter is not None or not whole):
            return seen
        data, stamp = self._bytes(file)
        described = None
        if whole:
            try:
                described = frontmatter.parse(data.decode())
            except UnicodeDecodeError:
                raise UsageError(f"{file}: not UTF-8") from None
            except UsageError as problem:
                raise UsageError(f"{file}: {problem}") from None
        seen = _Seen(stamp, len(data), f"sha256:{sha256(data).hexdigest()}", described)
        self._seen[file] = seen
        return seen

    # Safety

    def _file(self, place: Path) -> Path | None:
        """Where a file really is, if it is one that may be served: a link must not leave the folder."""
        try:
            file = place.resolve(strict=True)
            inside = file.relative_to(self.root)
        except (OSError, RuntimeError, ValueError):
            return None
        return None if any(map(_hidden, inside.parts)) or not file.is_file() else file

    def _place(self, path: str) -> Path:
        """The place that a path names, below a skill and through no link. There need not be anything."""
        try:
            names = [unquote(part, errors="strict") for part in path.split("/")]
            # One way to write each: what decodes to a separator, or to a name that is written otherwise, is no name.
            known = _path(names) == path and not any(_hidden(name) or PurePath(name).parts != (name,) for name in names)
        except UnicodeError:
            known = False
        if not known:
            raise FileNotFoundError(path)
        place = self.root.joinpath(*names)
        try:
            real = place.parent.resolve(strict=True)
        except (OSError, RuntimeError, ValueError):
            raise FileNotFoundError(path) from None
        above = [place, *place.parents][: len(names)]
        if real != place.parent or all(self._file(one / MANIFEST) is None for one in above):
            raise FileNotFoundError(path)
        return place

    def _uri(self, place: Path) -> str:
        try:
            return SCHEME + _path(place.relative_to(self.root).parts)
        except UnicodeEncodeError:
            raise UsageError(f"{os.fspath(place)!r}: a name that is not UTF-8 cannot stand in a URI") from None

    # Reading

    def read(self, path: str) -> TextContents | BlobContents:
        """The contents of one file, as they are now."""
        file = self._file(self._place(path))
        if file is None:
            raise FileNotFoundError(path)
        try:
            data, _ = self._bytes(file)
        except OSError:
            raise FileNotFoundError(path) from None
        return _contents(data, SCHEME + path, _type(PurePath(unquote(path)).name))

    def children(self, path: str) -> list[Definition]:
        """What stands in one directory, not deeper."""
        place = self._place(path)
        if not _is_folder(place):
            raise NotADirectoryError(path)
        found: list[Definition] = []
        for child in self._children(place):
            if _hidden(child.name):
                continue
            if _is_folder(child):
                found.append(Definition(uri=self._uri(child), name=child.name, mime_type=DIRECTORY))
            elif (file := self._file(child)) is not None:
                found.append(self._definition(child, file))
        return sorted(found, key=lambda one: one.uri)

    def _children(self, place: Path) -> list[Path]:
        if os.name == "nt":
            return list(place.iterdir())  # there a folder has no descriptor to read it by
        try:
            with self._open(place) as fd:
                return [place / name for name in os.listdir(fd)]
        except OSError:
            raise NotADirectoryError(os.fspath(place)) from None

    @contextmanager
    def _open(self, place: Path) -> Iterator[int]:
        """A descriptor of what is at a place that was resolved before, if it is still there."""
        pinned = safe_open.pin(str(self.root), place.relative_to(self.root).as_posix())
        try:
            if Path(pinned.path) != place:
                raise FileNotFoundError(None, "Not there any more", os.fspath(place))
            fd = pinned.open()
        finally:
            pinned.close()
        try:
            yield fd
        finally:
            os.close(fd)

    def _bytes(self, file: Path) -> tuple[bytes, Stamp]:
        with self._open(file) as fd:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode):
                raise FileNotFoundError(None, "Not a file", os.fspath(file))
            with open(fd, "rb", closefd=False) as opened:
                data = opened.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            raise OSError(None, f"more than {MOST_BYTES:,} bytes", os.fspath(file))
        return data, _stamp(found)

    def _definition(self, place: Path, file: Path) -> Definition:
        name, described = place.name, None
        if name == MANIFEST:
            try:
                head = _checked(self._look(file, whole=True).frontmatter or {}, place.parent)
                name, described = head["name"], head["description"]
            except (OSError, UsageError):
                pass  # no skill any more, but still a file
        size = file.stat().st_size
        return Definition(
            uri=self._uri(place), name=name, description=described, mime_type=_type(place.name), size=size
        )


def _walk(place: Path, problems: list[str]) -> Iterator[tuple[Path, list[str]]]:
    """Each directory with the names of its files. Links to directories are not followed: they can go in circles."""

    def note(failure: OSError) -> None:
        # What is gone by the time we look is no problem.
        if not isinstance(failure, FileNotFoundError):
            problems.append(f"{failure.filename}: {failure.strerror}")

    for folder, folders, names in os.walk(place, onerror=note):
        folders[:] = sorted(name for name in folders if not _hidden(name))
        yield Path(folder), sorted(name for name in names if not _hidden(name))


def _hidden(name: str) -> bool:
    """What is no part of a skill: dot files, which hold histories and secrets, and what Python leaves behind."""
    return name.startswith(".") or name == "__pycache__"


def _is_folder(place: Path) -> bool:
    return place.is_dir() and not place.is_symlink()


def _path(names: list[str] | tuple[str, ...]) -> str:
    """Names as the path of a URI. No `:` and `@`, because the first one stands where URIs have a host."""
    return "/".join(quote(name, safe="!$&'()*+,;=") for name in names)


def _stamp(found: os.stat_result) -> Stamp:
    return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino


def _checked(described: dict[str, Any], place: Path) -> dict[str, Any]:
    """The frontmatter of the skill in `place`, if it has what the Agent Skills specification asks of it."""
    manifest = place / MANIFEST
    # Without a name in it, a skill is called as its folder is.
    described = {"name": place.name, **described}
    name, description = described["name"], described.get("description")
    if not isinstance(name, str) or len(name) > LONGEST_NAME or not _NAME.fullmatch(name):
        rule = f"1 to {LONGEST_NAME} of a-z, 0-9 and single hyphens between them"
        raise UsageError(f"{manifest}: name must be {rule}, not {name!r:.80}")
    if name != place.name:
        raise UsageError(f"{manifest}: the name is {name!r}, but the directory {place.name!r}; they must be the same")
    # Agent Skills allows 1,024 characters, but well-known skills have more and every host takes them.
    if not isinstance(description, str) or not description.strip():
        raise UsageError(f"{manifest}: description must be a text that says what the skill does and when to use it")
    return described


def _type(name: str) -> str | None:
    known = _TYPES.get(PurePath(name).suffix.lower())
    if known is not None:
        return known
    guessed, packed = mimetypes.guess_type(name)
    return guessed if packed is None else f"application/{packed}"


def _contents(data: bytes, uri: str, mime_type: str | None) -> TextContents | BlobContents:
    """Text where the bytes are text, whatever the name says: what is read must give the digest that was promised."""
    try:
        if b"\0" not in data:
            return TextContents(uri=uri, mime_type=mime_type or "text/plain", text=data.decode())
    except UnicodeDecodeError:
        pass
    return BlobContents(uri=uri, mime_type=mime_type or "application/octet-stream", blob=b64encode(data).decode())
