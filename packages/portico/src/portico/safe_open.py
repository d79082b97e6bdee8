"""Opening files below a folder without escaping it, even if names change concurrently.

This takes two steps. First the file is *pinned*: there is a descriptor, but it is not opened, so devices are not
triggered and pipes do not block. Then, if it may be read, it is opened through the pin.

- Linux: `openat2` with RESOLVE_BENEATH; the kernel rejects links, `..` and races that lead outside.
- Other Unix, and older kernels: one component at a time, without following any link.
- Windows: the file is opened, and its final path must still be inside.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import sys
from collections.abc import Callable

from msgspec import Struct

# The same number on every architecture that Linux supports since 5.6; glibc has no wrapper.
_SYS_OPENAT2 = 437
# openat2(2). Magic links, such as /proc/PID/root, leave the folder without a path component that shows it.
_RESOLVE_NO_MAGICLINKS = 0x02
_RESOLVE_BENEATH = 0x08
# The kernel returns EAGAIN if something was renamed during the lookup; retry a limited number of times.
_MAX_OPEN_ATTEMPTS = 100

_O_CLOEXEC = getattr(os, "O_CLOEXEC", 0)
# Missing on some platforms, where the flag is then 0 and the stepwise variant is used.
_O_PATH = getattr(os, "O_PATH", 0)
_O_DIRECTORY = getattr(os, "O_DIRECTORY", 0)
_O_NOFOLLOW = getattr(os, "O_NOFOLLOW", 0)
# Never block: neither for the writer of a pipe nor for a modem.
READ_FLAGS = (
    os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0) | getattr(os, "O_BINARY", 0) | _O_CLOEXEC
)


class OpenedPath(Struct):
    """Pinned file below a folder, with its real path. `open` returns a readable descriptor."""

    info: os.stat_result
    path: str
    open: Callable[[], int]
    close: Callable[[], None]


class _OpenHow(ctypes.Structure):
    """`struct open_how` of openat2(2)."""

    _fields_ = [("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64)]


def open_beneath(root: str, relative: str) -> OpenedPath:
    """Pin the file at `relative`, which must not contain `..`, below the folder `root`. Raises OSError."""
    if os.name == "nt":
        return _open_by_final_path(root, relative)
    if _has_openat2():
        return _open_with_openat2(root, relative)
    return _open_stepwise(root, relative)


def open_subdirectory(directory_fd: int, name: str) -> int:
    """Open a direct subfolder of an open folder, unless it is a link."""
    return os.open(name, READ_FLAGS | _O_DIRECTORY | _O_NOFOLLOW, dir_fd=directory_fd)


# Linux


def _open_with_openat2(root: str, relative: str) -> OpenedPath:
    root_fd = os.open(root, _O_PATH | _O_DIRECTORY | _O_NOFOLLOW | _O_CLOEXEC)
    try:
        pinned = _openat2(root_fd, relative or ".")
    finally:
        os.close(root_fd)
    try:
        info = os.fstat(pinned)
        proc_path = f"/proc/self/fd/{pinned}"
        path = os.readlink(proc_path)
        if info.st_nlink == 0:
            # The path of a deleted file ends in " (deleted)" and would not match any name.
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    except BaseException:
        os.close(pinned)
        raise
    # Opening through /proc reaches the pinned inode, whatever its name refers to now.
    return OpenedPath(info, path, lambda: os.open(proc_path, READ_FLAGS), lambda: os.close(pinned))


def _openat2(directory_fd: int, relative: str) -> int:
    how = _OpenHow(_O_PATH | _O_CLOEXEC, 0, _RESOLVE_BENEATH | _RESOLVE_NO_MAGICLINKS)
    for _ in range(_MAX_OPEN_ATTEMPTS):
        fd = _libc().syscall(_SYS_OPENAT2, directory_fd, os.fsencode(relative), ctypes.byref(how), ctypes.sizeof(how))
        if fd >= 0:
            return int(fd)
        code = ctypes.get_errno()
        if code not in (errno.EAGAIN, errno.EINTR):
            break
    raise OSError(code, os.strerror(code))


_LIBC: ctypes.CDLL | None = None
_OPENAT2_AVAILABLE: bool | None = None


def _libc() -> ctypes.CDLL:
    global _LIBC
    if _LIBC is None:
        _LIBC = ctypes.CDLL(None, use_errno=True)
    return _LIBC


def _has_openat2() -> bool:
    """Return whether openat2 works, tested once. Kernels before 5.6 lack it, and containers may forbid it."""
    global _OPENAT2_AVAILABLE
    if _OPENAT2_AVAILABLE is None:
        _OPENAT2_AVAILABLE = False
        if sys.platform == "linux" and os.path.isdir("/proc/self/fd"):
            root_fd = os.open("/", _O_PATH | _O_DIRECTORY | _O_CLOEXEC)
            try:
                os.close(_openat2(root_fd, "."))
                _OPENAT2_AVAILABLE = True
            except OSError:
                pass
            finally:
                os.close(root_fd)
    return _OPENAT2_AVAILABLE


# Other Unix


def _open_stepwise(root: str, relative: str) -> OpenedPath:
    *folders, name = [part for part in relative.split("/") if part not in ("", ".")] or [""]
    directory_fd = os.open(root, READ_FLAGS | _O_DIRECTORY | _O_NOFOLLOW)
    try:
        for folder in folders:
            directory_fd, parent_fd = open_subdirectory(directory_fd, folder), directory_fd
            os.close(parent_fd)
        info = os.stat(name, dir_fd=directory_fd, follow_symlinks=False) if name else os.fstat(directory_fd)
    except BaseException:
        os.close(directory_fd)
        raise
    # A link is refused rather than followed, because its target may change before it is opened.
    if stat.S_ISLNK(info.st_mode):
        os.close(directory_fd)
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))

    def reopen() -> int:
        fd = os.open(name or ".", READ_FLAGS | _O_NOFOLLOW, dir_fd=directory_fd)
        # The name may have been replaced since it was pinned.
        if not os.path.samestat(os.fstat(fd), info):
            os.close(fd)
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        return fd

    return OpenedPath(info, os.path.join(root, relative) if relative else root, reopen, lambda: os.close(directory_fd))


# Windows


def _open_by_final_path(root: str, relative: str) -> OpenedPath:
    if any(
        part.rstrip(" .").split(".")[0].upper() in _WINDOWS_DEVICE_NAMES or ":" in part for part in relative.split("/")
    ):
        # CON and COM1 are devices in every folder, and a colon names an alternate stream of a file.
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
    path = os.path.realpath(os.path.join(root, relative))
    _check_inside(path, root)
    info = os.stat(path)

    def reopen() -> int:
        fd = os.open(path, READ_FLAGS | getattr(os, "O_NOINHERIT", 0))
        try:
            _check_inside(_final_path(fd), root)
        except BaseException:
            os.close(fd)
            raise
        return fd

    return OpenedPath(info, path, reopen, lambda: None)


_WINDOWS_DEVICE_NAMES = {
    "CON",
    "PRN",
    "AUX",
    "NUL",
    "CONIN$",
    "CONOUT$",
    *(f"{port}{n}" for port in ("COM", "LPT") for n in range(10)),
}


def _check_inside(path: str, root: str) -> None:
    normalized, prefix = os.path.normcase(path), os.path.normcase(root).rstrip("\\")
    if normalized != prefix and not normalized.startswith(f"{prefix}\\"):
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))


def _final_path(fd: int) -> str:
    if sys.platform == "win32":
        import msvcrt

        buffer = ctypes.create_unicode_buffer(32768)
        handle = ctypes.c_void_p(msvcrt.get_osfhandle(fd))
        if ctypes.windll.kernel32.GetFinalPathNameByHandleW(handle, buffer, len(buffer), 0):
            return buffer.value.removeprefix("\\\\?\\")
    raise OSError(errno.EACCES, os.strerror(errno.EACCES))
