"""Single entry point for opening files: below the allowed paths, without following links out of them, and subject to
the deny list.
"""

from __future__ import annotations

import errno
import mmap
import os
import re
import stat
import threading
import time
import tomllib
from collections.abc import Iterable, Iterator
from fnmatch import translate
from pathlib import Path
from typing import Any

from msgspec import Struct

from portico import safe_open
from portico_services.system.errors import (
    NotFound,
    PathNotAllowed,
    SystemToolError,
)

_DENY_RULES = tomllib.loads(Path(__file__).with_name("denied.toml").read_text(encoding="utf-8"))
DENIED_DIRS, DENIED_SUFFIXES = frozenset(_DENY_RULES["folders"]), tuple(_DENY_RULES["suffixes"])
_DOCUMENTS = _DENY_RULES["documents"]
DENIED_NAMES = frozenset(_DENY_RULES["names"]) | {
    name + suffix for name in _DOCUMENTS["names"] for suffix in _DOCUMENTS["suffixes"]
}
DENIED_PREFIXES: tuple[str, ...] = tuple(_DENY_RULES["beginnings"])
BETWEEN: dict[str, str] = _DENY_RULES["between"]
_BETWEEN_STARTS = tuple(BETWEEN)
DENIED_NAMES_BY_DIR: dict[str, frozenset[str]] = {
    folder: frozenset(names) for folder, names in _DENY_RULES["names_in"].items()
}
# A copy of a secret is a secret: `.env.bak`, `id_rsa~`, `.netrc.old.gz`, `.#credentials.json`, `.id_rsa.swp`.
_BACKUP_SUFFIX = re.compile(
    r"(?:\.(?:bak|backup|bkp|copy|old|orig|save|saved|sav|tmp|sw[a-p]|\d{1,10}|gz|bz2|xz|zst|zip)|~)+\Z"
)
DENIED_PATHS = re.compile(
    r"/(?:"
    r"proc/(?:[^/]+/(?:task/[^/]+/)?(?:environ|mem|maps|smaps|auxv|root|cwd|exe|fd|fdinfo|map_files|stack|syscall)(?:/|$)"
    r"|kcore|kmem|keys|key-users|kallsyms|vmcore)"
    r"|etc/(?:shadow|gshadow|sudoers|krb5\.keytab|security/opasswd|ssh/ssh_host_|ssl/private|wireguard|ppp/.*-secrets"
    r"|NetworkManager/system-connections)"
    r"|var/(?:lib/(?:sss|private|docker|containerd|NetworkManager)|backups/(?:shadow|gshadow)|spool/cron)"
    r"|run/(?:secrets|credentials|user/[^/]+/keyring)"
    r"|dev/|sys/(?:kernel/(?:debug|tracing|security)|firmware)"
    r"|private/(?:etc/master\.passwd|var/db/(?:dslocal|shadow))"
    r")"
)


def _is_secret(name: str, folder: str) -> bool:
    """Return whether a file name denotes a secret."""
    if name in DENIED_NAMES or name in DENIED_DIRS or name.endswith(DENIED_SUFFIXES):
        return True
    if name.startswith(DENIED_PREFIXES):
        return not name.endswith(".pub")
    if name.startswith(_BETWEEN_STARTS):
        return any(name.startswith(start) and name.endswith(end) for start, end in BETWEEN.items())
    return folder in DENIED_NAMES_BY_DIR and name in DENIED_NAMES_BY_DIR[folder]


_PATH_RULE_ROOTS = ("/proc", "/etc", "/var", "/run", "/dev", "/sys", "/private")


class DenyList:
    """Files that are never readable, even below an allowed path: keys, passwords, and the internals of processes.

    An operator can add patterns such as `*.sqlite` or `/srv/payroll/*`. Names are looked up in sets rather than matched
    by patterns, which keeps walks over many files fast.
    """

    def __init__(self, more: Iterable[str] = ()) -> None:
        patterns = [pattern if "/" in pattern else f"*/{pattern}" for pattern in more]
        self._extra_patterns = re.compile("|".join(map(translate, patterns)), re.IGNORECASE) if patterns else None

    def denies_path(self, path: str) -> bool:
        """Return whether a resolved path is denied."""
        parts = path.replace("\\", "/").split("/")
        folder = parts[-2] if len(parts) > 1 else ""
        inside = any(part.lower() in DENIED_DIRS for part in parts)
        return inside or self.denies_name(parts[-1], folder) or self.path_rule_prefix(path)

    def denies_name(self, name: str, folder: str) -> bool:
        """Return whether a file or directory of this name is denied, regardless of its location."""
        low, within = name.lower(), folder.lower()
        if _is_secret(low, within):
            return True
        copied = _BACKUP_SUFFIX.search(low)
        if copied is None and not low.startswith((".#", "#")):
            return False
        original = (low if copied is None else low[: copied.start()]).removeprefix(".#").strip("#")
        # Editors put a dot before the name of their swap files.
        return _is_secret(original, within) or _is_secret(original.removeprefix("."), within)

    def path_rule_prefix(self, path: str) -> bool:
        """Return whether a path is denied because of its location."""
        return DENIED_PATHS.match(path) is not None or (
            self._extra_patterns is not None and self._extra_patterns.match(path) is not None
        )

    def denies_by_path(self, folder: str) -> bool:
        """Return whether entries of a directory may be denied because of their location; usually they are not."""
        return self._extra_patterns is not None or folder == "/" or folder.startswith(_PATH_RULE_ROOTS)


MAX_COPY_BYTES = 256 * 2**20
MAX_PATH_CHARS = 4096
READ_BLOCK_BYTES = 2**20
# Time limit of a scan for denied files, and how long its result is valid.
LINK_SCAN_TIMEOUT_SECONDS = 5.0
LINK_SCAN_TTL_SECONDS = 60.0
# Kernel pseudo file systems. A walk may start in one but does not descend into it.
PSEUDO_FILESYSTEMS = frozenset({"/proc", "/sys", "/dev"})

FileImage = bytes | mmap.mmap
"""Bytes of a file, mapped or copied."""


class AllowedPath(Struct, frozen=True):
    """Allowed directory, or with `only` a single file in it."""

    configured: str
    path: str
    only: str = ""


class RequestedPath(Struct, frozen=True):
    """Requested path, resolved to an allowed path and the part below it."""

    root: AllowedPath
    relative: str
    requested: str


class OpenFile:
    """Regular file open for reading. Renaming or replacing it has no effect."""

    def __init__(self, fd: int, path: str) -> None:
        self.fd = fd
        self.path = path
        self.info = os.fstat(fd)

    def __enter__(self) -> OpenFile:
        return self

    def __exit__(self, *raised: object) -> None:
        os.close(self.fd)

    @property
    def size(self) -> int:
        return self.info.st_size

    def read(self, offset: int, length: int) -> bytes:
        """Read at most this many bytes at an offset; fewer at the end of the file."""
        parts: list[bytes] = []
        while length > 0:
            try:
                part = _pread(self.fd, min(length, READ_BLOCK_BYTES), offset)
            except OSError as error:
                raise SystemToolError(
                    f"The file cannot be read: {os.strerror(error.errno or errno.EIO)}.", outcome="unreadable"
                ) from None
            if not part:
                break
            parts.append(part)
            offset += len(part)
            length -= len(part)
        return b"".join(parts)

    def blocks(self) -> Iterator[bytes]:
        """Yield the whole file in blocks. A growing file is read up to its size at opening."""
        for offset in range(0, self.size, READ_BLOCK_BYTES):
            block = self.read(offset, min(READ_BLOCK_BYTES, self.size - offset))
            if not block:
                return
            yield block

    def map(self) -> FileImage:
        """Return all bytes of the file: mapped, if no other user can truncate it, or else copied. Truncating a mapped
        file would crash this process.
        """
        if self.size == 0:
            return b""
        if self._is_unchanging():
            return mmap.mmap(self.fd, self.size, access=mmap.ACCESS_READ)
        if self.size > MAX_COPY_BYTES:
            raise SystemToolError(
                f"The file has {self.size:,} bytes. The limit for files that other users can write is "
                f"{MAX_COPY_BYTES:,} bytes.",
                outcome="unreadable",
            )
        return self.read(0, self.size)

    def _is_unchanging(self) -> bool:
        if os.name == "nt":
            return True  # Windows does not allow truncating a mapped file.
        is_own = self.info.st_uid in (0, os.geteuid())
        return is_own and not self.info.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


class OpenDirectory:
    """Open directory. Its entries are accessed through its descriptor and not by path, so replacing the path has no
    effect.
    """

    def __init__(self, fd: int | None, path: str, denials: DenyList, linked: HardLinkGuard) -> None:
        self.fd = fd
        self.path = path
        self._denials = denials
        self._linked = linked
        self._name = os.path.basename(path)
        self._by_place = denials.denies_by_path(path)

    def __enter__(self) -> OpenDirectory:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        if self.fd is not None:
            os.close(self.fd)

    def scan(self) -> list[os.DirEntry[str]]:
        """Return the entries that are not denied, sorted by name."""
        with os.scandir(self.path if self.fd is None else self.fd) as entries:
            seen = [entry for entry in entries if not self.is_denied(entry.name)]
        seen.sort(key=_name)
        return seen

    def is_denied(self, name: str) -> bool:
        if self._denials.denies_name(name, self._name):
            return True
        return self._by_place and self._denials.path_rule_prefix(os.path.join(self.path, name))

    def open_subdirectory(self, name: str) -> OpenDirectory:
        """Open a subdirectory that is not a link. Raises OSError."""
        path = os.path.join(self.path, name)
        if self.fd is not None:
            return OpenDirectory(safe_open.open_subdirectory(self.fd, name), path, self._denials, self._linked)
        if os.path.realpath(path) != path:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        return OpenDirectory(None, path, self._denials, self._linked)

    def open(self, name: str) -> OpenFile:
        """Open a regular file in this directory that is neither a link nor denied. Raises OSError. Requires `fd`."""
        if "/" in name or self.is_denied(name):
            raise OSError(errno.EACCES, os.strerror(errno.EACCES))
        # Relative to the open directory and without following links: neither can be exchanged in between. O_NONBLOCK,
        # because opening a named pipe would wait for a writer.
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=self.fd)
        file = OpenFile(fd, f"{self.path}/{name}")
        if not stat.S_ISREG(file.info.st_mode) or self._linked.is_linked_secret(file.info):
            os.close(fd)
            raise OSError(errno.EACCES, os.strerror(errno.EACCES))
        return file


class HardLinkGuard:
    """Detects files with a second name that is denied: a hard link to a secret is that secret.

    Only files with several names are checked, against all denied files below the allowed paths and in the user's home
    directory. Creating a link changes the file's ctime, so a scan result stays valid for files that have not changed
    since.
    """

    def __init__(self, roots: Iterable[str], denials: DenyList) -> None:
        self._roots = list(roots)
        self._denials = denials
        self._lock = threading.Lock()
        self._checked_ids: set[tuple[int, int]] = set()
        self._is_whole = True
        self._as_of = float("-inf")

    def is_linked_secret(self, info: os.stat_result) -> bool:
        # Almost every file has one name only, so the scan rarely happens.
        if not stat.S_ISREG(info.st_mode) or info.st_nlink < 2:
            return False
        with self._lock:
            # File system timestamps are coarser than the clock.
            # A link created after the scan changes the ctime of its file, which triggers a new scan.
            if info.st_ctime > self._as_of - 2.0 or time.time() - self._as_of > LINK_SCAN_TTL_SECONDS:
                self._scan()
            # An incomplete scan denies every file with several names: fail closed.
            return not self._is_whole or (info.st_dev, info.st_ino) in self._checked_ids

    def _scan(self) -> None:
        self._as_of, self._is_whole, self._checked_ids = time.time(), True, set()
        self._until = time.monotonic() + LINK_SCAN_TIMEOUT_SECONDS
        home = os.path.expanduser("~")
        for top in self._roots:
            self._walk(top, is_denied=False)
        if os.path.isabs(home):
            # Only the denied directories of the home, such as `.ssh`: a full walk would take too long.
            self._walk(home, is_denied=False, deep=False)

    def _walk(self, top: str, *, is_denied: bool, deep: bool = True) -> None:
        waiting = [(top, is_denied)]
        while waiting and self._is_whole:
            path, within = waiting.pop()
            try:
                with os.scandir(path) as entries:
                    result = [(entry, within or self._is_denied(path, entry.name)) for entry in entries]
            except OSError:
                continue  # Not readable by this process, so neither is a link to it.
            for entry, denied in result:
                if entry.is_dir(follow_symlinks=False):
                    if (deep or denied) and entry.path not in PSEUDO_FILESYSTEMS:
                        waiting.append((entry.path, denied))
                elif denied:
                    self._add(entry)
            self._is_whole = time.monotonic() < self._until

    def _is_denied(self, folder: str, name: str) -> bool:
        return self._denials.denies_name(name, os.path.basename(folder)) or (
            self._denials.denies_by_path(folder) and self._denials.path_rule_prefix(os.path.join(folder, name))
        )

    def _add(self, entry: os.DirEntry[str]) -> None:
        try:
            info = entry.stat(follow_symlinks=False)
        except OSError:
            return
        self._checked_ids.add((info.st_dev, info.st_ino))


NO_ALLOWED_PATHS_HELP = (
    "The operator of this server can allow directories: portico serve --allow-path PATH, or allowed_paths in its "
    "settings."
)


class AllowedPaths:
    """Directories and files that may be read. Everything else is outside."""

    def __init__(
        self, paths: Iterable[str | os.PathLike[str]], deny: Iterable[str] = (), *, reveal_paths: bool = True
    ) -> None:
        self.denials = DenyList(deny)
        # A caller that accesses a log by name need not learn its path.
        self._reveal_paths = reveal_paths
        self.all = [_root(os.path.abspath(path)) for path in paths]
        self._linked = HardLinkGuard([root.path for root in self.all if not root.only], self.denials)

    def __bool__(self) -> bool:
        return bool(self.all)

    def open(self, path: str) -> OpenFile:
        """Open a regular file."""
        fd, real = self._open(path, stat.S_ISREG, "a file")
        return OpenFile(fd, real)

    def open_directory(self, path: str) -> OpenDirectory:
        fd, real = self._open(path, stat.S_ISDIR, "a directory", by_path=os.name == "nt")
        return OpenDirectory(fd if fd >= 0 else None, real, self.denials, self._linked)

    def stat(self, path: str) -> tuple[os.stat_result, str]:
        """Return the stat result and the real path of a file of any type."""
        requested = self.resolve(path)
        try:
            pinned = safe_open.open_beneath(requested.root.path, requested.relative)
        except OSError as error:
            raise _to_error(error, self._display_path(path)) from None
        pinned.close()
        self._check_allowed(pinned.path, pinned.info, requested)
        return pinned.info, pinned.path

    def resolve(self, path: str) -> RequestedPath:
        """Return the allowed path that contains a path. This check is only lexical; opening it verifies the
        location.
        """
        if not path or len(path) > MAX_PATH_CHARS or "\0" in path:
            raise SystemToolError(f"A path must have 1 to {MAX_PATH_CHARS} characters and no NUL.", outcome="invalid")
        slashed = path.replace("\\", "/") if os.name == "nt" else path
        # Rejected rather than resolved: after a symbolic link, `..` leads elsewhere than the text suggests.
        if ".." in slashed.split("/") or (os.name == "nt" and slashed.startswith("//")):
            raise PathNotAllowed(f"{path!r} is not allowed: a path must not contain '..' or name another machine.")
        normalized = os.path.normpath(slashed if os.path.isabs(slashed) else self._relative_to_single_path(slashed))
        for root in self.all:
            for top in (root.configured, root.path):
                relative = _relative_path(normalized, top)
                if relative is not None and relative in ((root.only,) if root.only else (relative,)):
                    return RequestedPath(root, relative, path)
        raise PathNotAllowed(f"{path!r} is outside the directories that may be read here{self._describe_allowed()}")

    def _relative_to_single_path(self, path: str) -> str:
        if len(self.all) > 1:
            raise PathNotAllowed(
                f"{path!r} is relative, and there is more than one allowed directory{self._describe_allowed()}"
            )
        return os.path.join(self.all[0].path if self.all else os.sep, path)

    def _describe_allowed(self) -> str:
        if not self.all:
            return f": none. {NO_ALLOWED_PATHS_HELP}"
        return ": " + ", ".join(root.configured + (root.only and f"/{root.only}") for root in self.all[:10]) + "."

    def _open(self, path: str, kind: Any, noun: str, *, by_path: bool = False) -> tuple[int, str]:
        requested = self.resolve(path)
        try:
            pinned = safe_open.open_beneath(requested.root.path, requested.relative)
        except OSError as error:
            raise _to_error(error, self._display_path(path)) from None
        try:
            self._check_allowed(pinned.path, pinned.info, requested)
            if not kind(pinned.info.st_mode):
                raise SystemToolError(
                    f"{self._display_path(path)} is {_kind(pinned.info.st_mode)}, not {noun}.", outcome="unreadable"
                )
            return (-1 if by_path else pinned.open()), pinned.path
        except OSError as error:
            raise _to_error(error, self._display_path(path)) from None
        finally:
            pinned.close()

    def _check_allowed(self, real: str, info: os.stat_result, path: RequestedPath) -> None:
        """Raise SystemToolError for a denied file, unless the operator allowed that very file."""
        if path.root.only != path.relative or not path.root.only:
            top = path.root.path.rstrip("/")
            # The allowed directory itself was chosen by the operator: only its location is checked, everything below it
            # by name as well.
            if (
                self.denials.denies_path(real[len(top) :])
                or self.denials.path_rule_prefix(real)
                or self._linked.is_linked_secret(info)
            ):
                raise SystemToolError(
                    f"Access to {self._display_path(path.requested)} is denied: it may contain keys or other secrets.",
                    outcome="denied",
                )

    def _display_path(self, path: str) -> str:
        return repr(path) if self._reveal_paths else repr(os.path.basename(path))


def _pread(fd: int, length: int, offset: int) -> bytes:
    if hasattr(os, "pread"):
        return os.pread(fd, length, offset)
    os.lseek(fd, offset, os.SEEK_SET)
    return os.read(fd, length)


def _name(entry: os.DirEntry[str]) -> str:
    return entry.name


def _root(path: str) -> AllowedPath:
    # The real path is compared with that of opened files; the configured one is accepted in requests and shown.
    real = os.path.realpath(path)
    if os.path.isfile(real):
        return AllowedPath(os.path.dirname(path), os.path.dirname(real), os.path.basename(real))
    return AllowedPath(path, real)


def _relative_path(path: str, top: str) -> str | None:
    """Return the part of a path below a directory: "" for the directory itself, None if it is not below."""
    if os.path.normcase(path) == os.path.normcase(top):
        return ""
    prefix = top if top.endswith(os.sep) else top + os.sep
    return (
        path[len(prefix) :].replace(os.sep, "/")
        if os.path.normcase(path).startswith(os.path.normcase(prefix))
        else None
    )


def _kind(mode: int) -> str:
    return next((noun for test, noun in _KINDS if test(mode)), "something else")


_KINDS = (
    (stat.S_ISREG, "a file"),
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISLNK, "a link"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISCHR, "a device"),
)


def _to_error(error: OSError, called: str) -> SystemToolError:
    # The errors of `openat2` with RESOLVE_BENEATH: the path, or a link on it, leads outside.
    if error.errno in (errno.EXDEV, errno.ELOOP, errno.EAGAIN):
        return PathNotAllowed(f"{called} leads outside the directories that may be read here.")
    if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG):
        return NotFound(f"{called} does not exist.")
    return SystemToolError(f"{called} cannot be read: {os.strerror(error.errno or errno.EIO)}.", outcome="unreadable")
