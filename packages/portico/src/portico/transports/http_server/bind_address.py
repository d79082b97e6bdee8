"""Where an HTTP endpoint listens: at an address, at a path of the file system, or on sockets that were given to us."""

from __future__ import annotations

import errno
import os
import socket
import ssl
import stat
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Literal

from msgspec import Struct

from portico.protocol.errors import UsageError

# Those who wait to be let in: after a deploy all clients come back at once. The system may have a lower limit.
BACKLOG = 4096
# systemd's first descriptor: sd_listen_fds(3).
_FIRST_GIVEN = 3
# For its user alone, as a file of that mode would be.
_MODE = 0o600


class Place(Struct, kw_only=True):
    """Where to listen, and how."""

    host: str = "127.0.0.1"
    port: int = 8080
    # A Unix socket in place of an address.
    unix: str | None = None
    # A socket that is open already, or those that systemd has opened for us.
    fd: int | Literal["systemd"] | None = None
    certificate: str | None = None
    key: str | None = None
    reuse_port: bool = False
    grace: float = 10.0

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            # What is above would be cut to sixteen bits.
            raise UsageError(f"{self.port} is no port: there are 0 to 65535")
        if self.unix is not None and self.fd is not None:
            raise UsageError("a path to listen at and a socket that is open already: one of the two")

    def tls(self) -> ssl.SSLContext | None:
        if self.certificate is None:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(self.certificate, self.key)
        except (OSError, ssl.SSLError) as failure:
            raise UsageError(f"cannot use the certificate: {failure}") from None
        return context

    def url(self, listening: socket.socket, path: str) -> str:
        """What clients are told."""
        scheme = "https" if self.certificate else "http"
        address = listening.getsockname()
        if not isinstance(address, tuple):
            return f"{scheme}+unix://{address}:{path}"
        host, port = address[:2]
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}{path}"

    # Between machines

    def open_internal(self, listening: socket.socket | None) -> list[socket.socket]:
        """Open the sockets that workers of other machines send requests to: at PORTICO_ADDRESS, or at any free port of
        the host that clients use. They are never those that clients use, who must not be able to reach them."""
        stated = _stated_address()
        bound = None if listening is None else listening.getsockname()
        if stated is None:
            if not isinstance(bound, tuple):
                return []
            return Place(host=str(bound[0]), port=0).open()[0]
        scheme, host, port = stated
        if scheme == "https" and self.certificate is None:
            raise UsageError("PORTICO_ADDRESS=https://… needs a certificate: portico serve --certificate FILE")
        if isinstance(bound, tuple) and port == bound[1]:
            raise UsageError(
                f"PORTICO_ADDRESS is where workers of other machines reach this one, and {port} is the port for "
                "clients: choose another port, and keep it closed to clients"
            )
        # Where an address is translated on the way, this machine has another one.
        return Place(host=host if _is_own(host) else "", port=port, reuse_port=True).open()[0]

    def internal_address(self, listening: socket.socket) -> str | None:
        """Return what workers of other machines are told: `host:port`, or `https://host:port` with a certificate."""
        stated = os.environ.get("PORTICO_ADDRESS") or self._bound_address(listening)
        return stated if stated is None or "://" in stated or not self.certificate else f"https://{stated}"

    def _bound_address(self, listening: socket.socket) -> str | None:
        bound = listening.getsockname()
        if not isinstance(bound, tuple):
            return None
        host, port = bound[:2]
        if host in ("0.0.0.0", "::"):
            try:
                host = socket.gethostbyname(socket.gethostname())
            except OSError:
                return None
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def open(self, processes: int = 1) -> list[list[socket.socket]]:
        """Listening sockets for so many processes: a list for each.

        Where the kernel spreads connections over sockets of one address, each process has its own; otherwise all have
        the same.
        """
        if self.unix is not None:
            return [[_at_path(self.unix)]] * processes
        if self.fd is not None:
            return [_given(self.fd)] * processes
        spread = processes > 1 and sys.platform == "linux"
        first = self._at_address(self.port, shared=self.reuse_port or spread)
        if not spread:
            return [first] * processes
        return [first, *([_twin(one) for one in first] for _ in range(processes - 1))]

    def is_local(self) -> bool:
        """Whether it cannot be reached from other machines."""
        if self.unix is not None:
            return True
        if self.fd is None:
            return is_loopback(self.host)
        return all(_is_local(number) for number in _numbers(self.fd))

    def has_address(self) -> bool:
        """Whether it has an address that a URL can name. A Unix socket has none."""
        if self.unix is not None:
            return False
        return self.fd is None or all(_has_address(number) for number in _numbers(self.fd))

    def leave(self) -> None:
        """Remove the path, if no process listens at it any more."""
        if self.unix is not None:
            with suppress(OSError, UsageError):
                _clear(self.unix)

    def _at_address(self, port: int, *, shared: bool) -> list[socket.socket]:
        try:
            found = socket.getaddrinfo(
                self.host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE | socket.AI_ADDRCONFIG
            )
        except socket.gaierror as failure:
            raise UsageError(f"cannot listen on {self.host}:{port}: {failure.strerror}") from None
        sockets: list[socket.socket] = []
        missing: OSError | None = None
        try:
            for family, kind, protocol, _, address in dict.fromkeys(found):
                try:
                    # Others are refused the address, unless they were meant to have it too: so it is asked for alone.
                    if shared and not self.reuse_port:
                        _bound(family, kind, protocol, address, shared=False).close()
                    sockets.append(_bound(family, kind, protocol, address, shared=shared))
                except OSError as failure:
                    if failure.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                        raise
                    missing = failure
            if not sockets and missing is not None:
                raise missing
        except OSError as failure:
            for one in sockets:
                one.close()
            hint = "; choose another with --port, or any free one with --port 0"
            hint = hint if failure.errno == errno.EADDRINUSE else ""
            raise UsageError(f"cannot listen on {self.host}:{port}: {failure.strerror or failure}{hint}") from None
        for one in sockets:
            one.listen(BACKLOG)
        return sockets


def _stated_address() -> tuple[str, str, int] | None:
    """Return scheme, host and port of PORTICO_ADDRESS."""
    text = os.environ.get("PORTICO_ADDRESS")
    if not text:
        return None
    scheme, _, address = text.rpartition("://")
    host, _, port = address.rpartition(":")
    if scheme not in ("", "http", "https") or not host or not port.isdecimal() or not 0 < int(port) <= 65535:
        raise UsageError(f"PORTICO_ADDRESS must be host:port or https://host:port, got {text!r}")
    return scheme, host.strip("[]"), int(port)


def _is_own(host: str) -> bool:
    """Whether an address is one of this machine."""
    try:
        for family, kind, protocol, _, address in socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM):
            with socket.socket(family, kind, protocol) as probe:
                probe.bind(address)
    except OSError:
        return False
    return True


def origins_of(sockets: Sequence[socket.socket], *, secure: bool) -> list[str]:
    """Return the origins by which clients reach these sockets, without asking any name server. A Unix socket has none.
    Of a socket at a loopback address these are the address and `localhost`. Another server may be bound to the same
    port of the other loopback address, so that one is not included.
    """
    scheme, default = ("https", 443) if secure else ("http", 80)
    origins: dict[str, None] = {}
    for one in sockets:
        bound = one.getsockname()
        if not isinstance(bound, tuple):
            continue
        host, port = str(bound[0]).partition("%")[0], int(bound[1])
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
        names = [f"[{host}]" if ":" in host else host]
        if host.startswith("127.") or host == "::1":
            names.append("localhost")
        for name in names:
            origins[f"{scheme}://{name}:{port}"] = None
            if port == default:
                origins[f"{scheme}://{name}"] = None
    return list(origins)


def is_loopback(host: str) -> bool:
    """Whether an address cannot be reached from other machines."""
    try:
        found = socket.getaddrinfo(host, None)
    except OSError:
        return False
    return all(str(address[4][0]).startswith("127.") or address[4][0] == "::1" for address in found)


def _bound(family: int, kind: int, protocol: int, address: object, *, shared: bool) -> socket.socket:
    one = socket.socket(family, kind, protocol)
    try:
        if os.name == "posix":
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared and hasattr(socket, "SO_REUSEPORT"):
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        one.setblocking(False)
        one.bind(address)  # type: ignore[arg-type]
    except BaseException:
        one.close()
        raise
    return one


def _twin(one: socket.socket) -> socket.socket:
    """Another socket at the same address."""
    twin = _bound(one.family, one.type, one.proto, one.getsockname(), shared=True)
    twin.listen(BACKLOG)
    return twin


def _at_path(path: str) -> socket.socket:
    one = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    one.setblocking(False)
    before = os.umask(0o777 & ~_MODE)
    try:
        _clear(path)
        one.bind(path)
        one.listen(BACKLOG)
    except OSError as failure:
        one.close()
        raise UsageError(f"cannot listen at {path}: {failure.strerror or failure}") from None
    except BaseException:
        one.close()
        raise
    finally:
        os.umask(before)
    return one


def _clear(path: str) -> None:
    """Remove what a process has left that is gone. One that listens there stays, and so does any other file."""
    try:
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            raise UsageError(f"cannot listen at {path}: there is a file that is no socket")
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
        else:
            raise UsageError(f"cannot listen at {path}: another process does already")


def _given(fd: int | Literal["systemd"]) -> list[socket.socket]:
    numbers = _numbers(fd)
    if fd == "systemd":
        # They are for one process, and not for what it starts.
        for name in ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"):
            os.environ.pop(name, None)
    return [_listening(number) for number in numbers]


def _numbers(fd: int | Literal["systemd"]) -> list[int]:
    """The descriptors that are meant; systemd's are named in the environment: sd_listen_fds(3)."""
    if fd != "systemd":
        return [fd]
    count = os.environ.get("LISTEN_FDS", "")
    if os.environ.get("LISTEN_PID") != str(os.getpid()) or not count.isdecimal() or not int(count):
        raise UsageError("no socket was given to this process: systemd names them in LISTEN_PID and LISTEN_FDS")
    return list(range(_FIRST_GIVEN, _FIRST_GIVEN + int(count)))


def _opened(number: int) -> socket.socket:
    """A copy of a socket that was given to us."""
    try:
        one = socket.socket(fileno=os.dup(number))
    except OSError:
        raise UsageError(f"{number} is no socket that was given to this process") from None
    if one.type != socket.SOCK_STREAM:
        one.close()
        raise UsageError(f"{number} is a socket, and none for connections")
    return one


def _has_address(number: int) -> bool:
    with _opened(number) as one:
        return isinstance(one.getsockname(), tuple)


def _is_local(number: int) -> bool:
    with _opened(number) as one:
        address = one.getsockname()
    return not isinstance(address, tuple) or is_loopback(str(address[0]))


def _listening(number: int) -> socket.socket:
    one = _opened(number)
    os.close(number)
    one.setblocking(False)
    one.listen(BACKLOG)
    return one
