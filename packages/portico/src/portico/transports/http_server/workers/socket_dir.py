"""The folder by whose sockets the workers of one machine reach each other. Each has the name of its worker."""

from __future__ import annotations

import logging
import os
import re
import socket
import stat
import tempfile
from collections.abc import Iterator
from hashlib import sha256

from portico.store.data_directory import data_directory
from portico.transports.http_server.bind_address import BACKLOG
from portico.transports.http_server.workers import fd_passing

log = logging.getLogger("portico")

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
        return self.path(worker) + fd_passing.ENDING

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
    """Return a folder of this user alone, the same for all processes of this machine that share a store as one server.

    A folder that another user has made first, or can write to, is never used: then the next place is tried, and in the
    end a new folder, where no process finds the others.
    """
    name = f"portico-{os.getuid()}-{sha256(f'{store} {server}'.encode()).hexdigest()[:12]}"
    for parent in _parents():
        path = os.path.join(parent, name)
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:
            pass
        except OSError:
            continue
        if _is_private(path):
            return path
        log.warning("%s is not used: it must be a folder of this user, with mode 700", path)
    path = tempfile.mkdtemp(prefix="portico-")
    log.warning("other processes of this machine do not find this one: its sockets are in %s", path)
    return path


def _parents() -> Iterator[str]:
    """Yield the folders that are tried. In the first and the last no other user can make anything."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if os.path.isabs(runtime) and _is_private(runtime):
        yield runtime
    yield tempfile.gettempdir()
    yield str(data_directory())


def _is_private(path: str) -> bool:
    """Whether it is a folder that no other user can read or write. A link may lead elsewhere by the next moment."""
    try:
        about = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISDIR(about.st_mode) and about.st_uid == os.geteuid() and not about.st_mode & 0o077
