"""Where records are sent besides the store: a file, or a syslog server.

    file:/var/log/portico/audit.jsonl?format=ocsf
    syslog://siem:601?format=cef             over TCP (RFC 5424 in the framing of RFC 6587)
    syslog+tls://siem:6514?format=cef        the same over TLS
    syslog+udp://siem:514

What cannot be sent waits, and is dropped in the end: the store is what counts. Sinks are written to by a thread.
"""

from __future__ import annotations

import logging
import os
import socket
import ssl
import time
from collections import deque
from pathlib import Path
from typing import Literal, Protocol, cast
from urllib.parse import parse_qs, unquote, urlsplit

from msgspec import Struct

from portico.protocol.errors import UsageError
from portico_gateway.audit.formats import FORMATS, Format, moment

log = logging.getLogger("portico")

# Lines that wait for a sink that does not take them.
MOST_LINES = 20_000
SEND_SECONDS = 5.0
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 60.0
_PORTS = {"syslog": 601, "syslog+tls": 6514, "syslog+udp": 514}
# RFC 5426: what every receiver takes at least, and most do.
_LONGEST_DATAGRAM = 65_000
# Log audit, informational (RFC 5424, 6.2.1).
_PRIORITY = 13 * 8 + 6

Scheme = Literal["file", "syslog", "syslog+tls", "syslog+udp"]


class SinkAddress(Struct, frozen=True):
    scheme: Scheme
    format: Format
    path: str = ""
    host: str = ""
    port: int = 0


def parse_sink(text: str) -> SinkAddress:
    """Raises UsageError."""
    parts = urlsplit(text)
    query = parse_qs(parts.query)
    unknown = sorted(set(query) - {"format"})
    if unknown:
        raise UsageError(f"the sink {text[:200]!r} has the option {unknown[0]!r}; there is format")
    form = query.get("format", ["cef" if parts.scheme.startswith("syslog") else "jsonl"])[0]
    if form not in FORMATS:
        raise UsageError(f"the sink {text[:200]!r} has the format {form!r}; there are {', '.join(FORMATS)}")
    if parts.scheme == "file":
        path = unquote(parts.path)
        if parts.netloc or not path:
            raise UsageError(f"the sink {text[:200]!r} needs a path: file:/var/log/audit.jsonl")
        return SinkAddress("file", form, path=path)
    if parts.scheme in _PORTS and parts.hostname:
        try:
            port = parts.port or _PORTS[parts.scheme]
        except ValueError:
            raise UsageError(f"the sink {text[:200]!r} has no port that could be one") from None
        return SinkAddress(cast("Scheme", parts.scheme), form, host=parts.hostname, port=port)
    raise UsageError(f"{text[:200]!r} is no sink: there are file:/path, syslog://host:port, syslog+tls:// and +udp://")


class _Outlet(Protocol):
    def send(self, lines: list[str]) -> None:
        """Raises OSError."""

    def close(self) -> None: ...


class Sink:
    """One address, and what waits for it."""

    def __init__(self, address: SinkAddress) -> None:
        self.address = address
        self.dropped = 0
        self._outlet: _Outlet = _FileOutlet(address) if address.scheme == "file" else _SyslogOutlet(address)
        self._waiting: deque[str] = deque()
        self._pause_seconds = FIRST_PAUSE_SECONDS
        self._not_before = 0.0

    def write(self, lines: list[str]) -> None:
        """Send these lines behind those that wait. Never raises."""
        self._waiting.extend(lines)
        while len(self._waiting) > MOST_LINES:
            self._waiting.popleft()
            self.dropped += 1
        if time.monotonic() >= self._not_before:
            self.flush()

    @property
    def is_full(self) -> bool:
        return len(self._waiting) >= MOST_LINES

    def flush(self) -> None:
        while self._waiting:
            some = [self._waiting[at] for at in range(min(500, len(self._waiting)))]
            try:
                self._outlet.send(some)
            except OSError as failure:
                self._not_before = time.monotonic() + self._pause_seconds
                if self._pause_seconds == FIRST_PAUSE_SECONDS:
                    log.warning("the audit's sink %s does not take records: %s", self._name, failure)
                self._pause_seconds = min(self._pause_seconds * 2, LONGEST_PAUSE_SECONDS)
                return
            for _ in some:
                self._waiting.popleft()
            if self._pause_seconds != FIRST_PAUSE_SECONDS:
                log.warning("the audit's sink %s takes records again; %d were dropped", self._name, self.dropped)
                self._pause_seconds, self.dropped = FIRST_PAUSE_SECONDS, 0

    def close(self) -> None:
        self.flush()
        if self._waiting:
            log.error("%d records did not reach the audit's sink %s", len(self._waiting), self._name)
        self._outlet.close()

    @property
    def _name(self) -> str:
        return self.address.path or f"{self.address.host}:{self.address.port}"


class _FileOutlet:
    """Opened for each group: the program that rotates files may move it away at any time."""

    def __init__(self, address: SinkAddress) -> None:
        self._path = Path(address.path)

    def send(self, lines: list[str]) -> None:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0)
        with open(os.open(self._path, flags, 0o600), "ab", buffering=0) as opened:
            opened.write("".join(f"{line}\n" for line in lines).encode())

    def close(self) -> None: ...


class _SyslogOutlet:
    def __init__(self, address: SinkAddress) -> None:
        self._address = address
        self._socket: socket.socket | None = None
        self._head = f"{_word(socket.gethostname())} portico {os.getpid()} audit"

    def send(self, lines: list[str]) -> None:
        if self._socket is None:
            self._socket = self._connect()
        try:
            if self._address.scheme == "syslog+udp":
                for line in lines:
                    self._socket.send(self._framed(line)[:_LONGEST_DATAGRAM])
            else:
                framed = [self._framed(line) for line in lines]
                self._socket.sendall(b"".join(b"%d %s" % (len(one), one) for one in framed))
        except OSError:
            self.close()
            raise

    def _framed(self, line: str) -> bytes:
        return f"<{_PRIORITY}>1 {moment(time.time_ns() // 1000)} {self._head} - {line}".encode()

    def _connect(self) -> socket.socket:
        where = (self._address.host, self._address.port)
        if self._address.scheme == "syslog+udp":
            family, kind, protocol, _, found = socket.getaddrinfo(*where, type=socket.SOCK_DGRAM)[0]
            connected = socket.socket(family, kind, protocol)
            connected.connect(found)
            return connected
        plain = socket.create_connection(where, timeout=SEND_SECONDS)
        if self._address.scheme == "syslog":
            return plain
        try:
            return _context().wrap_socket(plain, server_hostname=self._address.host)
        except BaseException:
            plain.close()
            raise

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def _context() -> ssl.SSLContext:
    """SSL_CERT_FILE names other authorities than the system's, as everywhere."""
    return ssl.create_default_context()


def _word(text: str) -> str:
    """As a header of syslog has it: printable ASCII without spaces."""
    return "".join(one if "!" <= one <= "~" else "-" for one in text)[:255] or "-"
