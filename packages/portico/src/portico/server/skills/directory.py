"""Skills on disk: discovery below a directory, with their files and digests.

Security: every path from a client is resolved and must lie inside the directory, below a skill. The file is then opened
relative to the directory, so that a symlink that replaces a parent directory in the meantime cannot redirect it.
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
from portico.protocol.content import BlobResourceContents, TextResourceContents
from portico.protocol.errors import UsageError
from portico.protocol.resources import Resource as Definition
from portico.protocol.skills import MAX_SKILL_BYTES, MAX_SKILL_FILES, Skill, SkillFile

URI_SCHEME = "skill://"
MANIFEST = "SKILL.md"
DIRECTORY_MIME_TYPE = "inode/directory"
MAX_SKILL_NAME_CHARS = 64

_NAME = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
# Types that the system's tables lack or assign differently.
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


class _CachedFile(Struct):
    """Cached properties of a file, valid while its stamp is unchanged."""

    stamp: Stamp
    size: int
    digest: str
    frontmatter: dict[str, Any] | None


class SkillDirectory:
    """The skills below one directory. A URI is `skill://` followed by the path."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        try:
            self.root = Path(root).resolve(strict=True)
        except (OSError, RuntimeError, ValueError):
            raise UsageError(f"cannot serve skills from {os.fspath(root)!r}: folder not found") from None
        if not self.root.is_dir():
            raise UsageError(f"{self.root} is not a folder")
        if self._file(self.root / MANIFEST) is not None:
            raise UsageError(f"{self.root} is a skill itself: pass its parent folder")
        self._file_cache: dict[Path, _CachedFile] = {}

    # Discovery

    def skills(self) -> tuple[list[Skill], list[str]]:
        """Return all skills ordered by URI, and the problems of the omitted ones."""
        results: list[Skill] = []
        problems: list[str] = []
        for path, names in _walk(self.root, problems):
            if MANIFEST in names and self._file(path / MANIFEST) is not None:
                try:
                    results.append(self._skill(path))
                except UsageError as problem:
                    problems.append(str(problem))
        if len(self._file_cache) > 2 * sum(len(skill.resources) for skill in results):
            # Most cached entries belong to deleted files.
            self._file_cache.clear()
        return sorted(results, key=lambda skill: skill.uri), problems

    def skill(self, path: str) -> Skill:
        """Return one skill by the path of its SKILL.md. Raises FileNotFoundError."""
        skill_path = self._resolve_path(path)
        if skill_path.name != MANIFEST or skill_path.parent == self.root or self._file(skill_path) is None:
            raise FileNotFoundError(path)
        return self._skill(skill_path.parent)

    def _skill(self, path: Path) -> Skill:
        uri = self._uri(path / MANIFEST)
        try:
            files = self._files(path)
            size = sum(file.stat().st_size for file in files.values())
            if size > MAX_SKILL_BYTES:
                raise UsageError(f"{path}: a skill must have at most {MAX_SKILL_BYTES:,} bytes, got {size:,}")
            if uri not in files:
                raise UsageError(f"{path / MANIFEST}: deleted during the scan")
            seen = {name: self._read_file_info(file, complete=name == uri) for name, file in sorted(files.items())}
        except OSError as failure:
            raise UsageError(f"{failure.filename or path}: {failure.strerror or failure}") from None
        described = _validate_frontmatter(seen[uri].frontmatter or {}, path)
        return Skill(uri, described, [SkillFile(name, entry.digest, entry.size) for name, entry in seen.items()])

    def _files(self, path: Path) -> dict[str, Path]:
        """Return the URI and the real path of every served file of a skill."""
        problems: list[str] = []
        result: dict[str, Path] = {}
        for folder, names in _walk(path, problems):
            for name in names:
                # No directory on the way is a symlink, so only a symlinked file has to be resolved.
                is_regular = stat.S_ISREG(os.lstat(folder / name).st_mode)
                file = folder / name if is_regular else self._file(folder / name)
                if file is not None:
                    result[self._uri(folder / name)] = file
            if len(result) > MAX_SKILL_FILES:
                raise UsageError(f"{path}: a skill must have at most {MAX_SKILL_FILES} files")
        if problems:
            raise UsageError(problems[0])
        return result

    def _read_file_info(self, file: Path, *, complete: bool = False) -> _CachedFile:
        """Return size and digest of a file, and with `whole` its frontmatter. Reads it again only if it has changed."""
        seen = self._file_cache.get(file)
        if seen is not None and seen.stamp == _stamp(file.stat()) and (seen.frontmatter is not None or not complete):
            return seen
        data, stamp = self._bytes(file)
        described = None
        if complete:
            try:
                described = frontmatter.parse_frontmatter(data.decode())
            except UnicodeDecodeError:
                raise UsageError(f"{file}: must be UTF-8") from None
            except UsageError as problem:
                raise UsageError(f"{file}: {problem}") from None
        seen = _CachedFile(stamp, len(data), f"sha256:{sha256(data).hexdigest()}", described)
        self._file_cache[file] = seen
        return seen

    # Path validation

    def _file(self, path: Path) -> Path | None:
        """Return the real path of a file if it may be served, or None: a symlink must not leave the directory."""
        try:
            file = path.resolve(strict=True)
            inside = file.relative_to(self.root)
        except (OSError, RuntimeError, ValueError):
            return None
        return None if any(map(_is_hidden, inside.parts)) or not file.is_file() else file

    def _resolve_path(self, path: str) -> Path:
        """Return the location that a path names, below a skill and through no symlink. It need not exist."""
        try:
            names = [unquote(part, errors="strict") for part in path.split("/")]
            # Accept only the canonical encoding: reject names that decode to a separator or that could be written
            # differently.
            is_valid = _path(names) == path and not any(
                _is_hidden(name) or PurePath(name).parts != (name,) for name in names
            )
        except UnicodeError:
            is_valid = False
        if not is_valid:
            raise FileNotFoundError(path)
        resolved = self.root.joinpath(*names)
        try:
            real = resolved.parent.resolve(strict=True)
        except (OSError, RuntimeError, ValueError):
            raise FileNotFoundError(path) from None
        above = [resolved, *resolved.parents][: len(names)]
        if real != resolved.parent or all(self._file(item / MANIFEST) is None for item in above):
            raise FileNotFoundError(path)
        return resolved

    def _uri(self, path: Path) -> str:
        try:
            return URI_SCHEME + _path(path.relative_to(self.root).parts)
        except UnicodeEncodeError:
            raise UsageError(f"{os.fspath(path)!r}: a URI requires a UTF-8 name") from None

    # Reading

    def read(self, path: str) -> TextResourceContents | BlobResourceContents:
        """Return the current contents of a file. Raises FileNotFoundError."""
        file = self._file(self._resolve_path(path))
        if file is None:
            raise FileNotFoundError(path)
        try:
            data, _ = self._bytes(file)
        except OSError:
            raise FileNotFoundError(path) from None
        return _contents(data, URI_SCHEME + path, _type(PurePath(unquote(path)).name))

    def children(self, path: str) -> list[Definition]:
        """Return the entries of one directory, not recursively. Raises NotADirectoryError."""
        directory = self._resolve_path(path)
        if not _is_folder(directory):
            raise NotADirectoryError(path)
        results: list[Definition] = []
        for child in self._children(directory):
            if _is_hidden(child.name):
                continue
            if _is_folder(child):
                results.append(Definition(uri=self._uri(child), name=child.name, mime_type=DIRECTORY_MIME_TYPE))
            elif (file := self._file(child)) is not None:
                results.append(self._definition(child, file))
        return sorted(results, key=lambda entry: entry.uri)

    def _children(self, path: Path) -> list[Path]:
        if os.name == "nt":
            return list(path.iterdir())  # Windows cannot list a directory by descriptor
        try:
            with self._open_resolved(path) as fd:
                return [path / name for name in os.listdir(fd)]
        except OSError:
            raise NotADirectoryError(os.fspath(path)) from None

    @contextmanager
    def _open_resolved(self, path: Path) -> Iterator[int]:
        """Open a location that was resolved before. Raises FileNotFoundError if it has changed since."""
        pinned = safe_open.open_beneath(str(self.root), path.relative_to(self.root).as_posix())
        try:
            # A different path means that a symlink was put in place after the check.
            if Path(pinned.path) != path:
                raise FileNotFoundError(None, "No longer there", os.fspath(path))
            fd = pinned.open()
        finally:
            pinned.close()
        try:
            yield fd
        finally:
            os.close(fd)

    def _bytes(self, file: Path) -> tuple[bytes, Stamp]:
        with self._open_resolved(file) as fd:
            result = os.fstat(fd)
            if not stat.S_ISREG(result.st_mode):
                raise FileNotFoundError(None, "Not a file", os.fspath(file))
            with open(fd, "rb", closefd=False) as opened:
                data = opened.read(MAX_SKILL_BYTES + 1)
        if len(data) > MAX_SKILL_BYTES:
            raise OSError(None, f"more than {MAX_SKILL_BYTES:,} bytes", os.fspath(file))
        return data, _stamp(result)

    def _definition(self, path: Path, file: Path) -> Definition:
        name, described = path.name, None
        if name == MANIFEST:
            try:
                head = _validate_frontmatter(self._read_file_info(file, complete=True).frontmatter or {}, path.parent)
                name, described = head["name"], head["description"]
            except (OSError, UsageError):
                pass  # no longer a skill, but still a file
        size = file.stat().st_size
        return Definition(uri=self._uri(path), name=name, description=described, mime_type=_type(path.name), size=size)


def _walk(path: Path, problems: list[str]) -> Iterator[tuple[Path, list[str]]]:
    """Yield each directory with the names of its files.

    Symlinked directories are not followed: they can form cycles.
    """

    def record_problem(failure: OSError) -> None:
        # A file deleted during the scan is not a problem.
        if not isinstance(failure, FileNotFoundError):
            problems.append(f"{failure.filename}: {failure.strerror}")

    for folder, folders, names in os.walk(path, onerror=record_problem):
        folders[:] = sorted(name for name in folders if not _is_hidden(name))
        yield Path(folder), sorted(name for name in names if not _is_hidden(name))


def _is_hidden(name: str) -> bool:
    """Return whether a name is not part of a skill: dot files, which hold history and secrets, and Python's caches."""
    return name.startswith(".") or name == "__pycache__"


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _path(names: list[str] | tuple[str, ...]) -> str:
    """Return names as the path of a URI. `:` and `@` are escaped, because the first segment takes the place of the
    host.
    """
    return "/".join(quote(name, safe="!$&'()*+,;=") for name in names)


def _stamp(status: os.stat_result) -> Stamp:
    return status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino


def _validate_frontmatter(described: dict[str, Any], path: Path) -> dict[str, Any]:
    """Return the validated frontmatter of the skill in `place`. Raises UsageError if it violates the Agent Skills
    specification.
    """
    manifest = path / MANIFEST
    # The name defaults to that of the directory.
    described = {"name": path.name, **described}
    name, description = described["name"], described.get("description")
    if not isinstance(name, str) or len(name) > MAX_SKILL_NAME_CHARS or not _NAME.fullmatch(name):
        rule = f"1 to {MAX_SKILL_NAME_CHARS} of a-z, 0-9 and single hyphens between them"
        raise UsageError(f"{manifest}: name must be {rule}, got {name!r:.80}")
    if name != path.name:
        raise UsageError(f"{manifest}: name must be the same as that of the directory, {path.name!r}; got {name!r}")
    # Agent Skills allows 1,024 characters, but well-known skills exceed it and every host accepts them.
    if not isinstance(description, str) or not description.strip():
        raise UsageError(
            f"{manifest}: description must be a non-empty string that states what the skill does and when to use it"
        )
    return described


def _type(name: str) -> str | None:
    media_type = _TYPES.get(PurePath(name).suffix.lower())
    if media_type is not None:
        return media_type
    guessed, packed = mimetypes.guess_type(name)
    return guessed if packed is None else f"application/{packed}"


def _contents(data: bytes, uri: str, mime_type: str | None) -> TextResourceContents | BlobResourceContents:
    """Return text contents if the bytes are text, whatever the extension says, so that the listed digest matches."""
    try:
        if b"\0" not in data:
            return TextResourceContents(uri=uri, mime_type=mime_type or "text/plain", text=data.decode())
    except UnicodeDecodeError:
        pass
    return BlobResourceContents(
        uri=uri, mime_type=mime_type or "application/octet-stream", blob=b64encode(data).decode()
    )
