"""Local tokens: created when a server first serves a port, and found again by commands of the same user.

Every user of a machine can reach its loopback addresses, but a file of mode 0600 can be read by one user only.
"""

from __future__ import annotations

import os
import secrets
import stat
from contextlib import suppress
from urllib.parse import urlsplit

from portico.auth.errors import UnsafeUrl
from portico.auth.url_policy import is_loopback_name, origin_of
from portico.store.data_directory import resolve_data_directory

_MAX_TOKEN_CHARS = 256


def find_token(port: int, data: str | None = None, role: str = "") -> str | None:
    """Return the token for a port, or None if there is none that only this user can read.

    `role`: a token other than the clients' token, such as the operator's.
    """
    try:
        # O_NOFOLLOW: a symbolic link could point to a file of another user.
        fd = os.open(_path(port, data, role), os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
    except OSError:
        return None
    with os.fdopen(fd, "rb") as file:
        # Of the open file rather than the path, which could be exchanged between the check and the read.
        info = os.fstat(fd)
        is_own = os.name == "nt" or (info.st_uid == os.geteuid() and not info.st_mode & 0o077)
        if not is_own or not stat.S_ISREG(info.st_mode):
            return None
        token = file.read(_MAX_TOKEN_CHARS).decode("ascii", "replace").strip()
    return token if token.isascii() and token.isprintable() and token else None


def token_for_url(url: str, data: str | None = None, role: str = "") -> str | None:
    """Return the token for a URL of this machine, or None without a token or if another user listens at its port.

    A token belongs to a port of this machine's loopback addresses. Another host with the same port never receives it.
    """
    try:
        _, host, port = origin_of(url)
    except UnsafeUrl:
        return None
    # Another user could listen at the same port after our server has ended, and collect the token.
    if not is_loopback_name(host) or not is_own_listener(port):
        return None
    return find_token(port, data, role)


def for_request(url: str, data: str | None = None) -> str | None:
    """Return the bearer token for requests to a URL: from the environment, or from this user's files."""
    return with_source(url, data)[0]


def with_source(url: str, data: str | None = None) -> tuple[str | None, str]:
    """Return the bearer token for requests to a URL, and the name of its variable or file; "" without a token.

    PORTICO_TOKEN protects a `portico serve`, so it is sent to this machine only. The same applies to the token that a
    `portico serve` of this user created for its port.
    """
    # An empty variable counts as unset, which is how shells and containers often clear one.
    # PORTICO_CLIENT_TOKEN is meant for any server that the user names.
    if own := os.environ.get("PORTICO_CLIENT_TOKEN"):
        return own, "PORTICO_CLIENT_TOKEN"
    if not is_loopback_name(_host_of(url)):
        return None, ""
    if token := os.environ.get("PORTICO_TOKEN"):
        return token, "PORTICO_TOKEN"
    token = token_for_url(url, data)
    return token, _path(origin_of(url)[2], data, "") if token else ""


def _host_of(url: str) -> str:
    """Return the host of a URL, or "" for an invalid URL, which raises an error on connecting."""
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def is_own_listener(port: int) -> bool:
    """Return whether only this user listens at a port of this machine, as far as that is known."""
    return _listeners(port) <= {str(os.geteuid()) if os.name != "nt" else ""}


def _listeners(port: int) -> set[str]:
    """Return the ids of the users that listen at a port; empty on systems other than Linux."""
    users: set[str] = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with suppress(OSError), open(table) as file:
            rows = [line.split() for line in file]
            # "0A" is the LISTEN state; column 7 is the user id.
            users |= {row[7] for row in rows if row[3] == "0A" and int(row[1].rpartition(":")[2], 16) == port}
    return users


def generate_token() -> str:
    """Generate a token. It never begins with a dash, which a shell command would parse as an option."""
    return secrets.token_hex(24)


def save_token(token: str, port: int, data: str | None = None, role: str = "") -> str:
    """Write the token to a file that only this user can read, and return the file's path."""
    path = _path(port, data, role)
    temporary = f"{path}.{os.getpid()}"
    # Left by a process with the same id that was killed; O_EXCL below would refuse to reuse it.
    with suppress(FileNotFoundError):
        os.unlink(temporary)
    # The mode is set on creation: chmod afterwards would leave a moment in which others can open the file.
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0), 0o600)
    with os.fdopen(fd, "w") as file:
        file.write(token + "\n")
    # A command that reads the token now gets the old one or the new one, never a part of it.
    os.replace(temporary, path)
    return path


def _path(port: int, data: str | None, role: str) -> str:
    return str(resolve_data_directory(data) / f"http-{port}{role and f'.{role}'}.token")
