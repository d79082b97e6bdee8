"""The folder by whose sockets the workers of one machine reach each other. Each has the name of its worker."""

from __future__ import annotations

import os
import re
import socket
import stat
import tempfile
from contextlib import suppress
from hashlib import sha256

from portico.fleet import handing
from portico.transport.http.place import BACKLOG
from portico.wire.errors import UsageError

LONGEST_PATH = 100

_WORKER = re.compile(r"[0-9a-f]{16}").fullmatch


class FleetFolder:
    """The folder, as one worker sees it."""

    def __init__(self, folder: str, worker: str) -> None:
        self._folder = self._near = folder
        self._worker = worker
        self._opened: int | None = None

    def open(self) -> None:
        """The address of a socket has room for a hundred characters; through a descriptor every folder is near."""
        if len(os.path.join(self._folder, self._worker).encode()) > LONGEST_PATH and os.path.isdir("/proc/self/fd"):
            self._opened = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
            self._near = f"/proc/self/fd/{self._opened}"

    def close(self) -> None:
        if self._opened is not None:
            os.close(self._opened)
            self._opened = None

    def path(self, worker: str) -> str:
        """Where a worker takes requests."""
        return os.path.join(self._near, worker)

    def path_for_connections(self, worker: str) -> str:
        """Where it takes whole connections."""
        return self.path(worker) + handing.ENDING

    def others(self) -> list[str]:
        """The workers of this machine, as far as their sockets say."""
        return [name for name in os.listdir(self._folder) if _WORKER(name) and name != self._worker]

    def listen(self) -> socket.socket:
        """Our own."""
        one = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            one.setblocking(False)
            one.bind(self.path(self._worker))
            one.listen(BACKLOG)
        except BaseException:
            one.close()
            raise
        return one

    def remove(self, worker: str) -> bool:
        """Whether there was something to remove."""
        try:
            os.unlink(self.path(worker))
        except OSError:
            return False
        return True


def shared_folder(store: str, server: str) -> str:
    """A folder of this user, the same for all processes of this machine that are one server by their store."""
    name = f"portico-{os.getuid()}-{sha256(f'{store} {server}'.encode()).hexdigest()[:12]}"
    path = os.path.join(tempfile.gettempdir(), name)
    with suppress(FileExistsError):
        os.mkdir(path, 0o700)
    about = os.lstat(path)
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid() or about.st_mode & 0o077:
        raise UsageError(f"{path} is to be a folder for this user alone, and is not")
    return path
