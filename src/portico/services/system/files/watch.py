"""Notices when a folder changes: inotify on Linux; elsewhere the index is refreshed now and then."""

from __future__ import annotations

import ctypes
import os
import select
import socket
import struct
import sys
from typing import Any

_CLOSE_WRITE, _MOVED, _CREATE, _DELETE = 0x8, 0x40 | 0x80, 0x100, 0x200
_DELETE_SELF, _MOVE_SELF, _IGNORED, _OVERFLOW, _ONLY_FOLDERS = 0x400, 0x800, 0x8000, 0x4000, 0x01000000
_MASK = _CLOSE_WRITE | _MOVED | _CREATE | _DELETE | _DELETE_SELF | _MOVE_SELF | _ONLY_FOLDERS
_EVENT = struct.Struct("iIII")


class Watch:
    """Folders that are watched, each under a number of the watcher's own choice."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
        self._fd = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC) if self._libc is not None else -1
        # A pair of sockets, since not every system can wait for a pipe.
        self._wake, self._waker = socket.socketpair()
        self._numbers: dict[int, int] = {}
        # Whether everything that was asked for is watched: the kernel may have no room for more.
        self.is_complete = self._fd >= 0

    def add(self, folder: int | None, number: int) -> None:
        """Watch an open folder, by its descriptor: its name may lead elsewhere by now."""
        if self._libc is None or self._fd < 0 or folder is None:
            return
        found = self._libc.inotify_add_watch(self._fd, f"/proc/self/fd/{folder}".encode(), ctypes.c_uint32(_MASK))
        if found >= 0:
            self._numbers[found] = number
        else:
            self.is_complete = False

    def wait(self, seconds: float) -> set[int] | None:
        """The numbers of folders that have changed, after at most this time; None if some changes were missed."""
        watched: list[Any] = [self._wake] if self._fd < 0 else [self._wake, self._fd]
        ready, _, _ = select.select(watched, [], [], seconds)
        return self._read() if self._fd in ready else set()

    def _read(self) -> set[int] | None:
        changed: set[int] = set()
        missed = False
        while True:
            try:
                data = os.read(self._fd, 64 * 1024)
            except BlockingIOError:
                return None if missed else changed
            at = 0
            while at < len(data):
                found, mask, _, length = _EVENT.unpack_from(data, at)
                at += _EVENT.size + length
                missed = missed or bool(mask & _OVERFLOW)
                if mask & _IGNORED:
                    self._numbers.pop(found, None)
                elif found in self._numbers:
                    changed.add(self._numbers[found])

    def stop(self) -> None:
        """End a wait that is going on, from any thread."""
        self._waker.send(b"x")

    def close(self) -> None:
        self._wake.close()
        self._waker.close()
        if self._fd >= 0:
            os.close(self._fd)
