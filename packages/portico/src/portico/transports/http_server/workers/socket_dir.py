"""Folder of the Unix sockets through which the workers of one machine reach each other."""

from __future__ import annotations

import logging
import os
import re
import socket
import stat
import tempfile
from collections.abc import Iterator
from hashlib import sha256

from portico.store.data_directory import resolve_data_directory
from portico.transports.http_server.bind_address import LISTEN_BACKLOG

log = logging.getLogger("portico")

MAX_SOCKET_PATH_CHARS = 100

# Names that are not worker ids, such as a file of an editor, are never connected to.
_WORKER_ID = re.compile(r"[0-9a-f]{16}").fullmatch


class WorkerSocketDir:
    """The socket folder, as used by one worker."""

    def __init__(self, path: str, worker: str) -> None:
        self._path = self._fd_path = path
        self._worker = worker
        self._opened: int | None = None

    def open(self) -> None:
        """Open the folder if its path is long. Socket addresses are limited to about 100 characters; a descriptor path
        is short.
        """
        if len(os.path.join(self._path, self._worker).encode()) > MAX_SOCKET_PATH_CHARS and os.path.isdir(
            "/proc/self/fd"
        ):
            self._opened = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY)
            self._fd_path = f"/proc/self/fd/{self._opened}"

    def close(self) -> None:
        if self._opened is not None:
            os.close(self._opened)
            self._opened = None

    def request_socket_path(self, worker: str) -> str:
        """Return the path of a worker's socket."""
        return os.path.join(self._fd_path, worker)

    def list_other_workers(self) -> list[str]:
        """Return the other workers of this machine that have a socket."""
        return [name for name in os.listdir(self._path) if _WORKER_ID(name) and name != self._worker]

    def bind(self) -> socket.socket:
        """Bind the socket of this worker."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listener.setblocking(False)
            listener.bind(self.request_socket_path(self._worker))
            listener.listen(LISTEN_BACKLOG)
        except BaseException:
            listener.close()
            raise
        return listener

    def remove(self, worker: str) -> bool:
        """Remove the socket of a worker. Return whether it existed."""
        try:
            os.unlink(self.request_socket_path(worker))
        except OSError:
            return False
        return True


def default_socket_dir(store: str, server: str, fallback: str | None = None) -> str:
    """Return a private folder of this user, the same for all local processes that share a store as one server.

    A folder that another user created or can write to is never used. The next location is tried then, and finally
    `fallback`, or a new folder, in which processes do not find each other. Workers pass the private folder of their
    supervisor, so that another user who occupies every shared location cannot separate them.
    """
    name = f"portico-{os.getuid()}-{sha256(f'{store} {server}'.encode()).hexdigest()[:12]}"
    for parent in _parents():
        path = os.path.join(parent, name)
        try:
            # The data directory may not exist yet.
            os.makedirs(parent, 0o700, exist_ok=True)
            # `mkdir` with the mode instead of a later chmod: at no time can another user enter the folder.
            os.mkdir(path, 0o700)
        except FileExistsError:
            pass
        except OSError:
            continue
        # In a shared /tmp another user may have created the name first, to receive the forwarded requests of
        # this one.
        if _is_private(path):
            return path
        log.warning("not using %s: it must be a folder owned by this user, with mode 700", path)
    if fallback is not None:
        return fallback
    path = tempfile.mkdtemp(prefix="portico-")
    log.warning("other processes of this machine cannot find this one: its sockets are in %s", path)
    return path


def _parents() -> Iterator[str]:
    """Yield the candidate locations. Other users cannot create files in the first and the last."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if os.path.isabs(runtime) and _is_private(runtime):
        yield runtime
    yield tempfile.gettempdir()
    yield str(resolve_data_directory())


def _is_private(path: str) -> bool:
    """Return whether a path is a folder that no other user can read or write. Links are rejected, because their target
    may change.
    """
    try:
        about = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISDIR(about.st_mode) and about.st_uid == os.geteuid() and not about.st_mode & 0o077
