"""The token of a server on this machine: made when it first serves a port, found again by commands of the same user.

Every user of a machine can reach its loopback addresses; what lies in a file of mode 0600 is for one of them.
"""

from __future__ import annotations

import os
import secrets
import stat
from contextlib import suppress
from urllib.parse import urlsplit

from portico.auth.errors import UnsafeAddress
from portico.auth.url_policy import names_loopback, origin_of
from portico.store.data_directory import data_directory

_LONGEST = 256


def find(port: int, data: str | None = None, of: str = "") -> str | None:
    """The token for a port, if there is one that only this user can read; `of`: whose, where it is not the clients'."""
    try:
        opened = os.open(_path(port, data, of), os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
    except OSError:
        return None
    with os.fdopen(opened, "rb") as file:
        about = os.fstat(opened)
        ours = os.name == "nt" or (about.st_uid == os.geteuid() and not about.st_mode & 0o077)
        if not ours or not stat.S_ISREG(about.st_mode):
            return None
        token = file.read(_LONGEST).decode("ascii", "replace").strip()
    return token if token.isascii() and token.isprintable() and token else None


def for_url(url: str, data: str | None = None, of: str = "") -> str | None:
    """Return the token for a URL of this machine, or None if there is none or another user listens at its port.

    The token belongs to a port of this machine's loopback addresses. Another host with the same port never gets it.
    """
    try:
        _, host, port = origin_of(url)
    except UnsafeAddress:
        return None
    if not names_loopback(host) or not is_listener_ours(port):
        return None
    return find(port, data, of)


def for_request(url: str, data: str | None = None) -> str | None:
    """Return the bearer token for requests to a URL: that of the environment, or the one in this user's files.

    PORTICO_TOKEN protects a `portico serve`, so it is sent to this machine only; and so is the token that a
    `portico serve` of this user has made for its port.
    """
    own = os.environ.get("PORTICO_CLIENT_TOKEN")
    if own or not names_loopback(_host_of(url)):
        return own or None
    return os.environ.get("PORTICO_TOKEN") or for_url(url, data)


def _host_of(url: str) -> str:
    """Return the host of a URL, or "" for an invalid URL: the error is raised where it is connected to."""
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def is_listener_ours(port: int) -> bool:
    """Whether none but this user listens at a port of this machine, as far as that can be known."""
    return _listeners(port) <= {str(os.geteuid()) if os.name != "nt" else ""}


def _listeners(port: int) -> set[str]:
    """The users who listen at a port of this machine, as Linux tells them; elsewhere none is known."""
    users: set[str] = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with suppress(OSError), open(table) as file:
            rows = [line.split() for line in file]
            users |= {row[7] for row in rows if row[3] == "0A" and int(row[1].rpartition(":")[2], 16) == port}
    return users


def make() -> str:
    """A new one. It never begins with a dash, which at a shell is an option."""
    return secrets.token_hex(24)


def keep(token: str, port: int, data: str | None = None, of: str = "") -> str:
    """Write it down for this user alone. Gives the file's path."""
    path = _path(port, data, of)
    fresh = f"{path}.{os.getpid()}"
    with suppress(FileNotFoundError):
        os.unlink(fresh)
    opened = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0), 0o600)
    with os.fdopen(opened, "w") as file:
        file.write(token + "\n")
    os.replace(fresh, path)
    return path


def _path(port: int, data: str | None, of: str) -> str:
    return str(data_directory(data) / f"http-{port}{of and f'.{of}'}.token")
