"""Reaching something below a folder, and nothing else, whatever others do to the names meanwhile.

It is done in two steps. First the thing is *pinned*: there is a descriptor for it, but it has not been opened, so a
device has not noticed and a pipe does not wait. Then, if what was pinned may be read, it is opened through the pin.

- Linux: `openat2` with RESOLVE_BENEATH; the kernel itself refuses links, `..` and races that lead out.
- Elsewhere on Unix, and on kernels without it: one component at a time, no link is followed at all.
- Windows: opened, and then asked for its final path, which must still be below.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import sys
from collections.abc import Callable

from msgspec import Struct

_SYS_OPENAT2 = 437
_NO_MAGIC_LINKS = 0x02
_BENEATH = 0x08
# The kernel gives up with EAGAIN when something was renamed while it looked; so do we, after a while.
_MOST_TRIES = 100

_CLOSE = getattr(os, "O_CLOEXEC", 0)
_PATH = getattr(os, "O_PATH", 0)
_FOLDER = getattr(os, "O_DIRECTORY", 0)
_NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)
# Nothing is ever waited for: not a writer of a pipe, not a modem.
READING = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0) | getattr(os, "O_BINARY", 0) | _CLOSE


class Pin(Struct):
    """Something below a folder: what it is and where it really is. `open` gives a descriptor to read it by."""

    info: os.stat_result
    path: str
    open: Callable[[], int]
    close: Callable[[], None]


class _How(ctypes.Structure):
    """`struct open_how`"""

    _fields_ = [("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64)]


def pin(root: str, relative: str) -> Pin:
    """What is at `relative`, which has no `..` in it, below the folder `root`. Raises OSError."""
    if os.name == "nt":
        return _pin_by_final_path(root, relative)
    if _has_openat2():
        return _pin_by_kernel(root, relative)
    return _pin_by_steps(root, relative)


def child(folder: int, name: str) -> int:
    """A folder right below an open one, unless it is a link to one."""
    return os.open(name, READING | _FOLDER | _NO_FOLLOW, dir_fd=folder)


# Linux


def _pin_by_kernel(root: str, relative: str) -> Pin:
    top = os.open(root, _PATH | _FOLDER | _NO_FOLLOW | _CLOSE)
    try:
        pinned = _openat2(top, relative or ".")
    finally:
        os.close(top)
    try:
        info = os.fstat(pinned)
        door = f"/proc/self/fd/{pinned}"
        path = os.readlink(door)
        if info.st_nlink == 0:
            # Its path would now end in " (deleted)", and no name could be recognised by it.
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    except BaseException:
        os.close(pinned)
        raise
    return Pin(info, path, lambda: os.open(door, READING), lambda: os.close(pinned))


def _openat2(folder: int, relative: str) -> int:
    how = _How(_PATH | _CLOSE, 0, _BENEATH | _NO_MAGIC_LINKS)
    for _ in range(_MOST_TRIES):
        fd = _libc().syscall(_SYS_OPENAT2, folder, os.fsencode(relative), ctypes.byref(how), ctypes.sizeof(how))
        if fd >= 0:
            return int(fd)
        code = ctypes.get_errno()
        if code not in (errno.EAGAIN, errno.EINTR):
            break
    raise OSError(code, os.strerror(code))


_LIBC: ctypes.CDLL | None = None
_KERNEL_HAS_IT: bool | None = None


def _libc() -> ctypes.CDLL:
    global _LIBC
    if _LIBC is None:
        _LIBC = ctypes.CDLL(None, use_errno=True)
    return _LIBC


def _has_openat2() -> bool:
    """Asked once. A kernel before 5.6 does not have it, and a container may forbid it."""
    global _KERNEL_HAS_IT
    if _KERNEL_HAS_IT is None:
        _KERNEL_HAS_IT = False
        if sys.platform == "linux" and os.path.isdir("/proc/self/fd"):
            top = os.open("/", _PATH | _FOLDER | _CLOSE)
            try:
                os.close(_openat2(top, "."))
                _KERNEL_HAS_IT = True
            except OSError:
                pass
            finally:
                os.close(top)
    return _KERNEL_HAS_IT


# Other Unix


def _pin_by_steps(root: str, relative: str) -> Pin:
    *folders, name = [part for part in relative.split("/") if part not in ("", ".")] or [""]
    here = os.open(root, READING | _FOLDER | _NO_FOLLOW)
    try:
        for folder in folders:
            here, above = child(here, folder), here
            os.close(above)
        info = os.stat(name, dir_fd=here, follow_symlinks=False) if name else os.fstat(here)
    except BaseException:
        os.close(here)
        raise
    if stat.S_ISLNK(info.st_mode):
        os.close(here)
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))

    def reopen() -> int:
        fd = os.open(name or ".", READING | _NO_FOLLOW, dir_fd=here)
        if not os.path.samestat(os.fstat(fd), info):
            os.close(fd)
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        return fd

    return Pin(info, os.path.join(root, relative) if relative else root, reopen, lambda: os.close(here))


# Windows


def _pin_by_final_path(root: str, relative: str) -> Pin:
    if any(part.rstrip(" .").split(".")[0].upper() in _DEVICES or ":" in part for part in relative.split("/")):
        # CON and COM1 are devices in every folder, and a colon is a second stream of the same file.
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
    path = os.path.realpath(os.path.join(root, relative))
    _beneath(path, root)
    info = os.stat(path)

    def reopen() -> int:
        fd = os.open(path, READING | getattr(os, "O_NOINHERIT", 0))
        try:
            _beneath(_final_path(fd), root)
        except BaseException:
            os.close(fd)
            raise
        return fd

    return Pin(info, path, reopen, lambda: None)


_DEVICES = {
    "CON",
    "PRN",
    "AUX",
    "NUL",
    "CONIN$",
    "CONOUT$",
    *(f"{port}{n}" for port in ("COM", "LPT") for n in range(10)),
}


def _beneath(path: str, root: str) -> None:
    inside, top = os.path.normcase(path), os.path.normcase(root).rstrip("\\")
    if inside != top and not inside.startswith(f"{top}\\"):
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))


def _final_path(fd: int) -> str:
    if sys.platform == "win32":
        import msvcrt

        room = ctypes.create_unicode_buffer(32768)
        handle = ctypes.c_void_p(msvcrt.get_osfhandle(fd))
        if ctypes.windll.kernel32.GetFinalPathNameByHandleW(handle, room, len(room), 0):
            return room.value.removeprefix("\\\\?\\")
    raise OSError(errno.EACCES, os.strerror(errno.EACCES))
