"""Listening sockets of an HTTP endpoint: at an address, at a path (Unix socket), or inherited."""

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

# Length of the accept queue: after a deployment all clients reconnect at the same time. The system may have a lower
# limit.
LISTEN_BACKLOG = 4096
# First descriptor passed by systemd: sd_listen_fds(3).
_SD_LISTEN_FDS_START = 3
# Accessible to the owner only.
# Other users of this machine must not be able to connect; the socket has no other protection.
_UNIX_SOCKET_MODE = 0o600


class BindAddress(Struct, kw_only=True):
    """Address to listen at, with TLS and socket options."""

    host: str = "127.0.0.1"
    port: int = 8080
    # Path of a Unix socket, instead of an address.
    unix_socket: str | None = None
    # Descriptor of an inherited socket, or "systemd" for socket activation.
    fd: int | Literal["systemd"] | None = None
    ssl_certfile: str | None = None
    ssl_keyfile: str | None = None
    reuse_port: bool = False
    # Time for active requests after the process was asked to stop.
    shutdown_timeout: float = 10.0

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            # A larger number would be truncated to 16 bits.
            raise UsageError(f"port must be between 0 and 65535, got {self.port}")
        if self.unix_socket is not None and self.fd is not None:
            raise UsageError("unix_socket and fd cannot be combined")
        if self.ssl_keyfile is not None and self.ssl_certfile is None:
            # The server would speak plain HTTP.
            raise UsageError("ssl_keyfile requires ssl_certfile, the file with the certificate")

    def ssl_context(self) -> ssl.SSLContext | None:
        if self.ssl_certfile is None:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        # RFC 8996 deprecates TLS 1.0 and 1.1.
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(self.ssl_certfile, self.ssl_keyfile)
        except (OSError, ssl.SSLError) as failure:
            files = " and ".join(repr(path) for path in (self.ssl_certfile, self.ssl_keyfile) if path)
            problem = failure.strerror if isinstance(failure, FileNotFoundError) else failure
            raise UsageError(f"cannot use the certificate {files}: {problem}; expected PEM files") from None
        return context

    def url(self, sockets: socket.socket, path: str) -> str:
        """Return the URL of a listening socket."""
        scheme = "https" if self.ssl_certfile else "http"
        address = sockets.getsockname()
        if not isinstance(address, tuple):
            return f"{scheme}+unix://{address}:{path}"
        host, port = address[:2]
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}{path}"

    # Internal addresses

    def open_internal(self, listening: socket.socket | None) -> list[socket.socket]:
        """Open the sockets for workers of other machines.

        They use PORTICO_ADVERTISED_ADDRESS, or a free port of the host that clients use. They are separate from the
        sockets of clients, which must not be able to reach them.
        """
        stated = _stated_address()
        bound = None if listening is None else listening.getsockname()
        if stated is None:
            if not isinstance(bound, tuple):
                return []
            return BindAddress(host=str(bound[0]), port=0).open_sockets()[0]
        scheme, host, port = stated
        if scheme == "https" and self.ssl_certfile is None:
            raise UsageError(
                "PORTICO_ADVERTISED_ADDRESS=https://… requires a certificate: portico serve --ssl-certfile FILE"
            )
        if isinstance(bound, tuple) and port == bound[1]:
            raise UsageError(
                f"PORTICO_ADVERTISED_ADDRESS is for workers of other machines, but port {port} is used by "
                "clients: choose another port, and block it for clients"
            )
        # Behind address translation (NAT), the advertised address does not exist on this machine.
        return BindAddress(host=host if _is_own(host) else "", port=port, reuse_port=True).open_sockets()[0]

    def internal_address(self, listening: socket.socket) -> str | None:
        """Return the address for workers of other machines: `host:port`, or `https://host:port` with a certificate."""
        stated = os.environ.get("PORTICO_ADVERTISED_ADDRESS") or self._bound_address(listening)
        return stated if stated is None or "://" in stated or not self.ssl_certfile else f"https://{stated}"

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

    def open_sockets(self, workers: int = 1) -> list[list[socket.socket]]:
        """Open listening sockets for `workers` processes, one list for each.

        On Linux, where the kernel balances connections between sockets of one address, each process has its own
        sockets; otherwise all processes share them.
        """
        if self.unix_socket is not None:
            return [[_bind_unix(self.unix_socket)]] * workers
        if self.fd is not None:
            return [_inherited_sockets(self.fd)] * workers
        spread = workers > 1 and sys.platform == "linux"
        first = self._at_address(self.port, shared=self.reuse_port or spread)
        if not spread:
            return [first] * workers
        return [first, *([_duplicate_bind(item) for item in first] for _ in range(workers - 1))]

    def is_local(self) -> bool:
        """Return whether the address is unreachable from other machines."""
        if self.unix_socket is not None:
            return True
        if self.fd is None:
            return is_loopback(self.host)
        return all(_is_local(number) for number in _inherited_fds(self.fd))

    def has_address(self) -> bool:
        """Return whether a URL can name the address. Unix sockets have no such address."""
        if self.unix_socket is not None:
            return False
        return self.fd is None or all(_has_address(number) for number in _inherited_fds(self.fd))

    def unlink_socket(self) -> None:
        """Remove the Unix socket if no process listens at it."""
        if self.unix_socket is not None:
            with suppress(OSError, UsageError):
                _remove_stale_socket(self.unix_socket)

    def _at_address(self, port: int, *, shared: bool) -> list[socket.socket]:
        try:
            result = socket.getaddrinfo(
                self.host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE | socket.AI_ADDRCONFIG
            )
        except socket.gaierror as failure:
            raise UsageError(f"cannot listen on {self.host}:{port}: {failure.strerror}") from None
        sockets: list[socket.socket] = []
        missing: OSError | None = None
        try:
            for family, kind, protocol, _, address in dict.fromkeys(result):
                try:
                    # With SO_REUSEPORT, a second server could bind the same address. Binding exclusively first detects
                    # it.
                    if shared and not self.reuse_port:
                        _bind_socket(family, kind, protocol, address, shared=False).close()
                    sockets.append(_bind_socket(family, kind, protocol, address, shared=shared))
                except OSError as failure:
                    if failure.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                        raise
                    missing = failure
            if not sockets and missing is not None:
                raise missing
        except OSError as failure:
            for item in sockets:
                item.close()
            hint = "; choose another port with --port, or a free one with --port 0"
            hint = hint if failure.errno == errno.EADDRINUSE else ""
            raise UsageError(f"cannot listen on {self.host}:{port}: {failure.strerror or failure}{hint}") from None
        for item in sockets:
            item.listen(LISTEN_BACKLOG)
        return sockets


def _stated_address() -> tuple[str, str, int] | None:
    """Return the scheme, host and port of PORTICO_ADVERTISED_ADDRESS."""
    text = os.environ.get("PORTICO_ADVERTISED_ADDRESS")
    if not text:
        return None
    scheme, _, address = text.rpartition("://")
    host, _, port = address.rpartition(":")
    if scheme not in ("", "http", "https") or not host or not port.isdecimal() or not 0 < int(port) <= 65535:
        raise UsageError(f"PORTICO_ADVERTISED_ADDRESS must be host:port or https://host:port, got {text!r}")
    return scheme, host.strip("[]"), int(port)


def _is_own(host: str) -> bool:
    """Return whether an address belongs to this machine."""
    try:
        for family, kind, protocol, _, address in socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM):
            with socket.socket(family, kind, protocol) as probe:
                probe.bind(address)
    except OSError:
        return False
    return True


def origins_of(sockets: Sequence[socket.socket], *, secure: bool) -> list[str]:
    """Return the origins by which clients reach these sockets, without a DNS lookup. Unix sockets have none.

    A socket at a loopback address has the address itself and `localhost`. Another server may be bound to the same port
    of the other loopback address, so that address is not included.
    """
    scheme, default = ("https", 443) if secure else ("http", 80)
    origins: dict[str, None] = {}
    for item in sockets:
        bound = item.getsockname()
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
    """Return whether an address is unreachable from other machines."""
    try:
        result = socket.getaddrinfo(host, None)
    except OSError:
        return False
    return all(str(address[4][0]).startswith("127.") or address[4][0] == "::1" for address in result)


def _bind_socket(family: int, kind: int, protocol: int, address: object, *, shared: bool) -> socket.socket:
    listener = socket.socket(family, kind, protocol)
    try:
        if os.name == "posix":
            # Only on POSIX: on Windows the option would let another process take over the port.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared and hasattr(socket, "SO_REUSEPORT"):
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        # Without it, Linux binds IPv4 as well, and the separate IPv4 socket for the same name would fail.
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.setblocking(False)
        listener.bind(address)  # type: ignore[arg-type]
    except BaseException:
        listener.close()
        raise
    return listener


def _duplicate_bind(item: socket.socket) -> socket.socket:
    """Open another socket at the same address."""
    twin = _bind_socket(item.family, item.type, item.proto, item.getsockname(), shared=True)
    twin.listen(LISTEN_BACKLOG)
    return twin


def _bind_unix(path: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.setblocking(False)
    # The umask applies from the moment of `bind`. A later chmod would leave a moment in which others could
    # connect.
    before = os.umask(0o777 & ~_UNIX_SOCKET_MODE)
    try:
        _remove_stale_socket(path)
        listener.bind(path)
        listener.listen(LISTEN_BACKLOG)
    except OSError as failure:
        listener.close()
        raise UsageError(f"cannot listen at {path}: {failure.strerror or failure}") from None
    except BaseException:
        listener.close()
        raise
    finally:
        os.umask(before)
    return listener


def _remove_stale_socket(path: str) -> None:
    """Remove a socket left behind by a dead process. A socket in use, or any other file, is not removed."""
    try:
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            raise UsageError(f"cannot listen at {path}: the file exists and is not a socket")
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
        else:
            raise UsageError(f"cannot listen at {path}: another process is already listening there")


def _inherited_sockets(fd: int | Literal["systemd"]) -> list[socket.socket]:
    numbers = _inherited_fds(fd)
    if fd == "systemd":
        # The variables are for this process only, not for its children.
        for name in ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"):
            os.environ.pop(name, None)
    return [_listening_socket(number) for number in numbers]


def _inherited_fds(fd: int | Literal["systemd"]) -> list[int]:
    """Return the inherited descriptors. systemd passes theirs in the environment: sd_listen_fds(3)."""
    if fd != "systemd":
        return [fd]
    count = os.environ.get("LISTEN_FDS", "")
    if os.environ.get("LISTEN_PID") != str(os.getpid()) or not count.isdecimal() or not int(count):
        raise UsageError("no socket was passed to this process: LISTEN_PID and LISTEN_FDS must be set by systemd")
    return list(range(_SD_LISTEN_FDS_START, _SD_LISTEN_FDS_START + int(count)))


def _socket_from_fd(number: int) -> socket.socket:
    """Return a copy of an inherited socket."""
    try:
        sock = socket.socket(fileno=os.dup(number))
    except OSError:
        raise UsageError(f"descriptor {number} is not a socket") from None
    if sock.type != socket.SOCK_STREAM:
        sock.close()
        raise UsageError(f"descriptor {number} is not a stream socket")
    return sock


def _has_address(number: int) -> bool:
    with _socket_from_fd(number) as sock:
        return isinstance(sock.getsockname(), tuple)


def _is_local(number: int) -> bool:
    with _socket_from_fd(number) as sock:
        address = sock.getsockname()
    return not isinstance(address, tuple) or is_loopback(str(address[0]))


def _listening_socket(number: int) -> socket.socket:
    sock = _socket_from_fd(number)
    os.close(number)
    sock.setblocking(False)
    sock.listen(LISTEN_BACKLOG)
    return sock
