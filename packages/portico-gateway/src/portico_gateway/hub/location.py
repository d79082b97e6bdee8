"""The hub's private directory, its socket, and starting the daemon.

The bridge imports this module, and a host starts one bridge per server: nothing here imports more than the interpreter
has loaded anyway, except for modules in C.
"""

from __future__ import annotations

import _socket
import fcntl
import os
import stat
import sys
import time

SOCKET_NAME = "hub.sock"
# Held by the daemon while it runs, and by anyone who starts it.
LOCK_NAME, START_LOCK_NAME = "hub.lock", "start.lock"
LOG_NAME = "hub.log"
STORE_NAME = "hub.db"
# Importing the daemon takes well below a second; a machine under load may need much longer.
START_TIMEOUT_SECONDS = 30.0
START_POLL_SECONDS = 0.01
# Variables that the daemon needs itself. The environments of the servers come from the hosts, one by one: a token in
# the environment of the host that happened to start the daemon must not reach the servers of another host.
_DAEMON_VARIABLES = frozenset(
    [
        "HOME",
        "LANG",
        "LC_ALL",
        "LOGNAME",
        "PATH",
        "SHELL",
        "TMPDIR",
        "TZ",
        "USER",
        "XDG_CONFIG_HOME",
        "XDG_DATA_HOME",
        "PORTICO_DATA",
        "PORTICO_HUB",
        "PYTHONDONTWRITEBYTECODE",
        "SSL_CERT_FILE",
        "SSL_CERT_DIR",
    ]
)


class HubError(Exception):
    """The hub cannot be used; the message says why and what to do."""


def hub_directory() -> str:
    """Return the path of the hub's directory: PORTICO_HUB, or `hub` in the data directory."""
    named = os.environ.get("PORTICO_HUB")
    if named:
        return os.path.abspath(os.path.expanduser(named))
    # The same places as `portico.store.data_directory`, which a bridge cannot afford to import.
    data = os.environ.get("PORTICO_DATA")
    if not data and sys.platform == "darwin":
        data = "~/Library/Application Support/portico"
    if not data:
        data = os.path.join(os.environ.get("XDG_DATA_HOME") or "~/.local/share", "portico")
    return os.path.join(os.path.abspath(os.path.expanduser(data)), "hub")


def open_directory() -> int:
    """Open the hub's directory, created if necessary, and return its descriptor.

    Raises HubError if it is not a directory that only this user can access: anyone who can enter it could answer in the
    name of the hub, or make the hub start commands.
    """
    path = hub_directory()
    try:
        os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
        # With the mode instead of a later chmod: at no time can another user enter the directory.
        os.mkdir(path, 0o700)
    except FileExistsError:
        pass
    except OSError as failure:
        raise HubError(f"cannot create {path}: {failure.strerror}") from None
    try:
        # Checked on the descriptor, so that the path cannot change between the check and the use. No symbolic links:
        # their target may belong to another user.
        directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as failure:
        raise HubError(f"cannot open {path}: {failure.strerror}; it must be a directory, not a link") from None
    about = os.fstat(directory)
    if about.st_uid != os.geteuid() or about.st_mode & 0o077:
        os.close(directory)
        raise HubError(
            f"{path} must be owned by this user and have mode 700 "
            f"(owner {about.st_uid}, mode {stat.S_IMODE(about.st_mode):o})"
        )
    return directory


def socket_path(directory: int) -> str:
    """Return a path of the socket for bind and connect, which accept about 100 characters."""
    # The descriptor's path is short, and it names the directory that was checked, whatever happens to its path.
    if os.path.isdir("/proc/self/fd"):
        return f"/proc/self/fd/{directory}/{SOCKET_NAME}"
    return os.path.join(hub_directory(), SOCKET_NAME)


def check_peer(connection: _socket.socket) -> None:
    """Raise HubError unless the other end of a connection is a process of this user."""
    if not hasattr(_socket, "SO_PEERCRED"):
        return  # elsewhere the mode of the directory is the only check
    credentials = connection.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, 12)
    user = int.from_bytes(credentials[4:8], sys.byteorder)
    if user != os.geteuid():
        raise HubError(f"the hub's socket belongs to user {user}, not to this user")


def connect(directory: int) -> _socket.socket | None:
    """Return a connection to the running hub, or None if no hub runs. Raises HubError."""
    try:
        about = os.stat(SOCKET_NAME, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return None
    if not stat.S_ISSOCK(about.st_mode) or about.st_uid != os.geteuid() or about.st_mode & 0o077:
        path = os.path.join(hub_directory(), SOCKET_NAME)
        raise HubError(f"{path} must be a socket owned by this user with mode 600; remove it to start again")
    connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    try:
        connection.connect(socket_path(directory))
        check_peer(connection)
    except (ConnectionRefusedError, FileNotFoundError):
        connection.close()
        return None
    except BaseException:
        connection.close()
        raise
    return connection


def connect_or_start(directory: int) -> _socket.socket:
    """Return a connection to the hub, started if none runs. Raises HubError."""
    connection = connect(directory)
    if connection is not None:
        return connection
    # One starter at a time: six hosts that start together must not start six daemons. The daemon's own lock makes
    # a second one harmless, but not free.
    lock = _open_file(directory, START_LOCK_NAME, os.O_RDWR)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        end = time.monotonic() + START_TIMEOUT_SECONDS
        spawned = False
        while True:
            connection = connect(directory)
            if connection is not None:
                return connection
            # An old daemon that is about to end still holds its lock; a new one would give up.
            if not spawned and not is_running(directory):
                _spawn_daemon(directory)
                spawned = True
            if time.monotonic() > end:
                log = os.path.join(hub_directory(), LOG_NAME)
                raise HubError(f"the hub did not start within {START_TIMEOUT_SECONDS:g} s; see {log}")
            time.sleep(START_POLL_SECONDS)
    finally:
        os.close(lock)


def is_running(directory: int) -> bool:
    """Return whether a daemon holds its lock."""
    lock = open_lock(directory)
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def open_lock(directory: int) -> int:
    """Open the daemon's lock file. Raises HubError."""
    return _open_file(directory, LOCK_NAME, os.O_RDWR)


def _open_file(directory: int, name: str, flags: int) -> int:
    """Open a file of the hub's directory, created if necessary. Raises HubError."""
    flags |= os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(name, flags, 0o600, dir_fd=directory)
    except OSError as failure:
        path = os.path.join(hub_directory(), name)
        raise HubError(f"cannot open {path}: {failure.strerror}; it must be a writable file, not a link") from None


def _spawn_daemon(directory: int) -> None:
    """Start the daemon in a separate session. The started process detaches itself and exits immediately."""
    environment = {name: value for name, value in os.environ.items() if name in _DAEMON_VARIABLES}
    environment["PORTICO_HUB"] = hub_directory()
    log = _open_file(directory, LOG_NAME, os.O_WRONLY | os.O_APPEND)
    actions = [
        (os.POSIX_SPAWN_DUP2, log, 2),
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
    ]
    # -P: a module in the working directory of the host must not be imported by the daemon.
    words = [sys.executable, "-P", "-m", "portico_gateway.hub.daemon"]
    try:
        process = os.posix_spawn(sys.executable, words, environment, file_actions=actions)
    finally:
        os.close(log)
    _, status = os.waitpid(process, 0)
    if status:
        path = os.path.join(hub_directory(), LOG_NAME)
        raise HubError(f"the hub did not start (status {os.waitstatus_to_exitcode(status)}); see {path}")
