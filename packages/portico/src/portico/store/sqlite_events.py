"""The bus between processes that share an SQLite file: a datagram socket each, in a folder beside the file.

A process that subscribes binds one; a process that publishes sends to all that are there. Nothing is polled. The socket
of a process that was killed is removed by the next one that gets no answer from it.

The folder is for one user alone, who can write to the database file as well, so packets need no signature. A folder
that another user has made, or can write to, is not used.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import stat
from collections import deque
from collections.abc import Callable

log = logging.getLogger("portico")

_LONGEST = 65536
_MOST_AT_ONCE = 64
_MOST_OWED = 256
_PATIENCE_SECONDS = 1.0
_PAUSE_SECONDS = 0.005


class SqliteBus:
    """A Route. Where sockets cannot be had, other processes find changes when they look."""

    def __init__(self, path: str) -> None:
        parent, name = os.path.split(os.path.abspath(path))
        self._folder = os.path.join(parent, f"{name}-bus")
        self._name = secrets.token_hex(8)
        self._ours: socket.socket | None = None
        self._out = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._out.setblocking(False)
        self._owed: dict[str, deque[bytes]] = {}
        # The address of a socket has room for a hundred characters; through a descriptor every folder is near.
        self._near = self._folder
        self._parent: int | None = None
        if os.path.isdir("/proc/self/fd"):
            self._parent = os.open(parent, os.O_RDONLY | os.O_DIRECTORY)
            self._near = f"/proc/self/fd/{self._parent}/{name}-bus"

    async def listen(self, hear: Callable[[bytes], None], missed: Callable[[], None]) -> None:
        try:
            self._bind()
        except OSError as failure:
            log.warning("changes by other processes are not heard at once: %s: %s", self._folder, failure)
            return
        assert self._ours is not None
        asyncio.get_running_loop().add_reader(self._ours, self._receive, self._ours, hear)

    def _bind(self) -> None:
        ours = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        ours.setblocking(False)
        try:
            # The last process to leave removes the folder, which may be just now.
            for last in (False, False, True):
                os.makedirs(self._folder, 0o700, exist_ok=True)
                if not _is_private(self._folder):
                    raise PermissionError("it must be a folder of this user, with mode 700")
                try:
                    ours.bind(f"{self._near}/{self._name}")
                    break
                except FileNotFoundError:
                    if last:
                        raise
        except BaseException:
            ours.close()
            raise
        self._ours = ours

    def _receive(self, ours: socket.socket, hear: Callable[[bytes], None]) -> None:
        for _ in range(_MOST_AT_ONCE):
            try:
                data = ours.recv(_LONGEST)
            except OSError:
                return
            hear(data)

    def send(self, packets: list[bytes]) -> None:
        try:
            others = os.listdir(self._folder)
            if others and not _is_private(self._folder):
                return
        except OSError:
            return  # no process listens
        for other in others:
            if other in self._owed:
                self._owed[other].extend(packets)
            elif other != self._name:
                self._post(other, deque(packets, _MOST_OWED), asyncio.get_running_loop().time() + _PATIENCE_SECONDS)

    def _post(self, other: str, owed: deque[bytes], until: float) -> None:
        loop = asyncio.get_running_loop()
        self._owed[other] = owed
        try:
            while owed:
                self._out.sendto(owed[0], f"{self._near}/{other}")
                owed.popleft()
        except BlockingIOError:  # it has not read the last ones yet
            if loop.time() < until:
                loop.call_later(_PAUSE_SECONDS, self._post, other, owed, until)
                return
        except ConnectionRefusedError:  # it was killed
            _remove(f"{self._folder}/{other}")
        except OSError as failure:
            log.debug("%s: %s", other, failure)
        del self._owed[other]

    async def close(self) -> None:
        if self._ours is not None:
            asyncio.get_running_loop().remove_reader(self._ours)
            self._ours.close()
            _remove(f"{self._folder}/{self._name}")
            try:
                os.rmdir(self._folder)
            except OSError:
                pass  # another process is there
        self._out.close()
        if self._parent is not None:
            os.close(self._parent)


def _is_private(folder: str) -> bool:
    """Whether no other user can read or write it. A link is none: it may lead to another place by the next moment."""
    found = os.lstat(folder)
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass
