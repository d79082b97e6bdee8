"""The one door through which files are opened: below allowed roots, by `beneath`, and past the list of denials."""

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
from portico_services.system.errors import Absent, Denied, InvalidArgument, MachineError, Outside, Unreadable

_DENIED = tomllib.loads(Path(__file__).with_name("denied.toml").read_text(encoding="utf-8"))
FOLDERS, SUFFIXES = frozenset(_DENIED["folders"]), tuple(_DENIED["suffixes"])
_DOCUMENTS = _DENIED["documents"]
NAMES = frozenset(_DENIED["names"]) | {
    name + suffix for name in _DOCUMENTS["names"] for suffix in _DOCUMENTS["suffixes"]
}
BEGINNINGS: tuple[str, ...] = tuple(_DENIED["beginnings"])
BETWEEN: dict[str, str] = _DENIED["between"]
_BETWEEN_STARTS = tuple(BETWEEN)
NAMES_IN: dict[str, frozenset[str]] = {folder: frozenset(names) for folder, names in _DENIED["names_in"].items()}
# A copy of a secret is one: `.env.bak`, `id_rsa~`, `.netrc.old.gz`, `.#credentials.json`, `.id_rsa.swp`.
_COPY = re.compile(r"(?:\.(?:bak|backup|bkp|copy|old|orig|save|saved|sav|tmp|sw[a-p]|\d{1,10}|gz|bz2|xz|zst|zip)|~)+\Z")
PATHS = re.compile(
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
    if name in NAMES or name in FOLDERS or name.endswith(SUFFIXES):
        return True
    if name.startswith(BEGINNINGS):
        return not name.endswith(".pub")
    if name.startswith(_BETWEEN_STARTS):
        return any(name.startswith(start) and name.endswith(end) for start, end in BETWEEN.items())
    return folder in NAMES_IN and name in NAMES_IN[folder]


_TOPS = ("/proc", "/etc", "/var", "/run", "/dev", "/sys", "/private")


class Denials:
    """What is never shown, even below an allowed root: keys, passwords, and the insides of processes.

    An operator adds patterns such as `*.sqlite` or `/srv/payroll/*`. A name is looked up rather than matched, so that
    a walk over a hundred thousand files hardly notices.
    """

    def __init__(self, more: Iterable[str] = ()) -> None:
        patterns = [pattern if "/" in pattern else f"*/{pattern}" for pattern in more]
        self._more = re.compile("|".join(map(translate, patterns)), re.IGNORECASE) if patterns else None

    def path(self, path: str) -> bool:
        """Whether this path, resolved, is kept from everybody."""
        parts = path.replace("\\", "/").split("/")
        folder = parts[-2] if len(parts) > 1 else ""
        inside = any(part.lower() in FOLDERS for part in parts)
        return inside or self.name(parts[-1], folder) or self.place(path)

    def name(self, name: str, folder: str) -> bool:
        """Whether a file or folder of this name is, whichever way leads to it."""
        low, within = name.lower(), folder.lower()
        if _is_secret(low, within):
            return True
        copied = _COPY.search(low)
        if copied is None and not low.startswith((".#", "#")):
            return False
        original = (low if copied is None else low[: copied.start()]).removeprefix(".#").strip("#")
        # An editor puts a dot before the name of what it is at.
        return _is_secret(original, within) or _is_secret(original.removeprefix("."), within)

    def place(self, path: str) -> bool:
        """Whether it is because of where it lies."""
        return PATHS.match(path) is not None or (self._more is not None and self._more.match(path) is not None)

    def by_place(self, folder: str) -> bool:
        """Whether anything right in a folder may be denied because of where it lies; it mostly is not."""
        return self._more is not None or folder == "/" or folder.startswith(_TOPS)


LARGEST_COPY = 256 * 2**20
LONGEST_PATH = 4096
BLOCK = 2**20
# How long to look for what is denied, and for how long what was found holds.
LINKS_SECONDS = 5.0
LINKS_HOLD_SECONDS = 60.0
_NO_FILES = frozenset({"/proc", "/sys", "/dev"})

Image = bytes | mmap.mmap
"""The bytes of a file, all of them there without being read."""


class AllowedRoot(Struct, frozen=True):
    """A folder that may be looked into; or with `only`, one file of it."""

    given: str
    path: str
    only: str = ""


class RequestedPath(Struct, frozen=True):
    """A path that was asked for, taken apart."""

    root: AllowedRoot
    relative: str
    asked: str


class OpenFile:
    """A regular file, open for reading. What happens to its name no longer matters."""

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
        """At most this many bytes from here on; fewer at the end."""
        parts: list[bytes] = []
        while length > 0:
            try:
                part = _pread(self.fd, min(length, BLOCK), offset)
            except OSError as error:
                raise Unreadable(f"It cannot be read: {os.strerror(error.errno or errno.EIO)}.") from None
            if not part:
                break
            parts.append(part)
            offset += len(part)
            length -= len(part)
        return b"".join(parts)

    def blocks(self) -> Iterator[bytes]:
        """The whole file, bit by bit. A file that grows is read to where it ended when it was opened."""
        for offset in range(0, self.size, BLOCK):
            block = self.read(offset, min(BLOCK, self.size - offset))
            if not block:
                return
            yield block

    def image(self) -> Image:
        """All bytes. They are mapped if no other user can cut the file short meanwhile, which would end this process;
        otherwise they are copied."""
        if self.size == 0:
            return b""
        if self._is_steady():
            return mmap.mmap(self.fd, self.size, access=mmap.ACCESS_READ)
        if self.size > LARGEST_COPY:
            raise Unreadable(
                f"The file has {self.size:,} bytes. Where others may write to a file, {LARGEST_COPY:,} is the most."
            )
        return self.read(0, self.size)

    def _is_steady(self) -> bool:
        if os.name == "nt":
            return True  # there a file that is mapped cannot be cut
        mine = self.info.st_uid in (0, os.geteuid())
        return mine and not self.info.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


class OpenFolder:
    """A folder, open. Its entries, and the folders in it, are reached through its descriptor and not by its name."""

    def __init__(self, fd: int | None, path: str, denials: Denials, linked: LinkedSecrets) -> None:
        self.fd = fd
        self.path = path
        self._denials = denials
        self._linked = linked
        self._name = os.path.basename(path)
        self._by_place = denials.by_place(path)

    def __enter__(self) -> OpenFolder:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        if self.fd is not None:
            os.close(self.fd)

    def scan(self) -> list[os.DirEntry[str]]:
        """What is in it and may be seen, by name."""
        with os.scandir(self.path if self.fd is None else self.fd) as found:
            seen = [entry for entry in found if not self.hides(entry.name)]
        seen.sort(key=_name)
        return seen

    def hides(self, name: str) -> bool:
        if self._denials.name(name, self._name):
            return True
        return self._by_place and self._denials.place(os.path.join(self.path, name))

    def child(self, name: str) -> OpenFolder:
        """A folder in this one, unless it is a link. Raises OSError."""
        path = os.path.join(self.path, name)
        if self.fd is not None:
            return OpenFolder(safe_open.child(self.fd, name), path, self._denials, self._linked)
        if os.path.realpath(path) != path:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        return OpenFolder(None, path, self._denials, self._linked)

    def open(self, name: str) -> OpenFile:
        """A regular file in this one, unless it is a link or denied. Raises OSError; not where folders have no `fd`."""
        if "/" in name or self.hides(name):
            raise OSError(errno.EACCES, os.strerror(errno.EACCES))
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=self.fd)
        file = OpenFile(fd, f"{self.path}/{name}")
        if not stat.S_ISREG(file.info.st_mode) or self._linked.has(file.info):
            os.close(fd)
            raise OSError(errno.EACCES, os.strerror(errno.EACCES))
        return file


class LinkedSecrets:
    """Which files have a second name that is denied: a hard link to a secret is that secret.

    Only a file with several names is looked for, among all that is denied below the roots and in the home of the user.
    Making such a link changes the file, so what was found holds for files that have not changed since.
    """

    def __init__(self, roots: Iterable[str], denials: Denials) -> None:
        self._roots = list(roots)
        self._denials = denials
        self._lock = threading.Lock()
        self._found: set[tuple[int, int]] = set()
        self._is_whole = True
        self._as_of = float("-inf")

    def has(self, info: os.stat_result) -> bool:
        if not stat.S_ISREG(info.st_mode) or info.st_nlink < 2:
            return False
        with self._lock:
            # A clock of a file system is not as fine as ours.
            if info.st_ctime > self._as_of - 2.0 or time.time() - self._as_of > LINKS_HOLD_SECONDS:
                self._look()
            return not self._is_whole or (info.st_dev, info.st_ino) in self._found

    def _look(self) -> None:
        self._as_of, self._is_whole, self._found = time.time(), True, set()
        self._until = time.monotonic() + LINKS_SECONDS
        home = os.path.expanduser("~")
        for top in self._roots:
            self._walk(top, is_denied=False)
        if os.path.isabs(home):
            self._walk(home, is_denied=False, deep=False)

    def _walk(self, top: str, *, is_denied: bool, deep: bool = True) -> None:
        waiting = [(top, is_denied)]
        while waiting and self._is_whole:
            path, within = waiting.pop()
            try:
                with os.scandir(path) as entries:
                    found = [(entry, within or self._is_denied(path, entry.name)) for entry in entries]
            except OSError:
                continue  # not ours to read, so a link to it is not either
            for entry, denied in found:
                if entry.is_dir(follow_symlinks=False):
                    if (deep or denied) and entry.path not in _NO_FILES:
                        waiting.append((entry.path, denied))
                elif denied:
                    self._add(entry)
            self._is_whole = time.monotonic() < self._until

    def _is_denied(self, folder: str, name: str) -> bool:
        return self._denials.name(name, os.path.basename(folder)) or (
            self._denials.by_place(folder) and self._denials.place(os.path.join(folder, name))
        )

    def _add(self, entry: os.DirEntry[str]) -> None:
        try:
            info = entry.stat(follow_symlinks=False)
        except OSError:
            return
        self._found.add((info.st_dev, info.st_ino))


HOW_TO_ALLOW = "The operator of this server names some: portico serve --root PATH, or roots in its settings."


class AllowedRoots:
    """The folders (and files) that may be looked into. Everything else is outside."""

    def __init__(
        self, paths: Iterable[str | os.PathLike[str]], deny: Iterable[str] = (), *, tells_paths: bool = True
    ) -> None:
        self.denials = Denials(deny)
        # A caller that asks for a log by its name need not hear where it lies.
        self._tells_paths = tells_paths
        self.all = [_root(os.path.abspath(path)) for path in paths]
        self._linked = LinkedSecrets([root.path for root in self.all if not root.only], self.denials)

    def __bool__(self) -> bool:
        return bool(self.all)

    def open(self, path: str) -> OpenFile:
        """A regular file, and nothing else."""
        fd, real = self._open(path, stat.S_ISREG, "a file")
        return OpenFile(fd, real)

    def folder(self, path: str) -> OpenFolder:
        fd, real = self._open(path, stat.S_ISDIR, "a folder", by_path=os.name == "nt")
        return OpenFolder(fd if fd >= 0 else None, real, self.denials, self._linked)

    def stat(self, path: str) -> tuple[os.stat_result, str]:
        """What it is, of whatever kind, and where it really is."""
        place = self.locate(path)
        try:
            pinned = safe_open.pin(place.root.path, place.relative)
        except OSError as error:
            raise _refusal(error, self._called(path)) from None
        pinned.close()
        self._permit(pinned.path, pinned.info, place)
        return pinned.info, pinned.path

    def locate(self, path: str) -> RequestedPath:
        """Which root a path is below, if any. It decides nothing yet: names are only names."""
        if not path or len(path) > LONGEST_PATH or "\0" in path:
            raise InvalidArgument(f"A path has 1 to {LONGEST_PATH} characters, and no NUL among them.")
        slashed = path.replace("\\", "/") if os.name == "nt" else path
        if ".." in slashed.split("/") or (os.name == "nt" and slashed.startswith("//")):
            raise Outside(f"{path!r} is refused: a path must not contain '..' or name another machine.")
        whole = os.path.normpath(slashed if os.path.isabs(slashed) else self._below_the_only_root(slashed))
        for root in self.all:
            for top in (root.given, root.path):
                relative = _below(whole, top)
                if relative is not None and relative in ((root.only,) if root.only else (relative,)):
                    return RequestedPath(root, relative, path)
        raise Outside(f"{path!r} is outside the folders that may be read here{self._which()}")

    def _below_the_only_root(self, path: str) -> str:
        if len(self.all) > 1:
            raise Outside(f"{path!r} is not absolute, and there is more than one folder it could be in{self._which()}")
        return os.path.join(self.all[0].path if self.all else os.sep, path)

    def _which(self) -> str:
        if not self.all:
            return f": none. {HOW_TO_ALLOW}"
        return ": " + ", ".join(root.given + (root.only and f"/{root.only}") for root in self.all[:10]) + "."

    def _open(self, path: str, kind: Any, noun: str, *, by_path: bool = False) -> tuple[int, str]:
        place = self.locate(path)
        try:
            pinned = safe_open.pin(place.root.path, place.relative)
        except OSError as error:
            raise _refusal(error, self._called(path)) from None
        try:
            self._permit(pinned.path, pinned.info, place)
            if not kind(pinned.info.st_mode):
                raise Unreadable(f"{self._called(path)} is {_kind(pinned.info.st_mode)}, not {noun}.")
            return (-1 if by_path else pinned.open()), pinned.path
        except OSError as error:
            raise _refusal(error, self._called(path)) from None
        finally:
            pinned.close()

    def _permit(self, real: str, info: os.stat_result, place: RequestedPath) -> None:
        """A file that the operator has named by itself is meant, whatever it is called."""
        if place.root.only != place.relative or not place.root.only:
            top = place.root.path.rstrip("/")
            # The root itself was chosen; it is judged by where it lies, and what is below it by name as well.
            if self.denials.path(real[len(top) :]) or self.denials.place(real) or self._linked.has(info):
                raise Denied(f"{self._called(place.asked)} is kept from everybody: it may hold keys or other secrets.")

    def _called(self, path: str) -> str:
        return repr(path) if self._tells_paths else repr(os.path.basename(path))


def _pread(fd: int, length: int, offset: int) -> bytes:
    if hasattr(os, "pread"):
        return os.pread(fd, length, offset)
    os.lseek(fd, offset, os.SEEK_SET)
    return os.read(fd, length)


def _name(entry: os.DirEntry[str]) -> str:
    return entry.name


def _root(given: str) -> AllowedRoot:
    real = os.path.realpath(given)
    if os.path.isfile(real):
        return AllowedRoot(os.path.dirname(given), os.path.dirname(real), os.path.basename(real))
    return AllowedRoot(given, real)


def _below(path: str, top: str) -> str | None:
    """The rest of a path below a folder: "" for the folder itself, None where it is not below."""
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
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISLNK, "a link"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISCHR, "a device"),
)


def _refusal(error: OSError, called: str) -> MachineError:
    if error.errno in (errno.EXDEV, errno.ELOOP, errno.EAGAIN):
        return Outside(f"{called} leads outside the folders that may be read here.")
    if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG):
        return Absent(f"There is no {called}.")
    return Unreadable(f"{called} cannot be read: {os.strerror(error.errno or errno.EIO)}.")
