"""Sinks: destinations of audit records in addition to the store.

    file:/var/log/portico/audit.jsonl?format=ocsf
    syslog://siem:601?format=cef             over TCP (RFC 5424 in the framing of RFC 6587)
    syslog+tls://siem:6514?format=cef        the same over TLS
    syslog+udp://siem:514

Records that cannot be sent wait and are eventually dropped: the store is authoritative. A thread writes to the sinks.
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
from portico_gateway.audit.formats import FORMATS, Format, format_timestamp

log = logging.getLogger("portico")

# Lines that may wait for a sink that is unavailable.
MAX_PENDING_LINES = 20_000
SEND_TIMEOUT_SECONDS = 5.0
MIN_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS = 1.0, 60.0
_PORTS = {"syslog": 601, "syslog+tls": 6514, "syslog+udp": 514}
# Datagrams up to this size are usually accepted (RFC 5426).
_MAX_DATAGRAM_BYTES = 65_000
# Facility log audit, severity informational (RFC 5424, section 6.2.1).
_SYSLOG_PRIORITY = 13 * 8 + 6

Scheme = Literal["file", "syslog", "syslog+tls", "syslog+udp"]


class SinkAddress(Struct, frozen=True):
    scheme: Scheme
    format: Format
    path: str = ""
    host: str = ""
    port: int = 0


def parse_sink(text: str) -> SinkAddress:
    """Parse the URL of a sink. Raises UsageError if it is invalid."""
    parts = urlsplit(text)
    query = parse_qs(parts.query)
    unknown = sorted(set(query) - {"format"})
    if unknown:
        raise UsageError(f"unknown option {unknown[0]!r} in the sink {text[:200]!r} (expected format)")
    form = query.get("format", ["cef" if parts.scheme.startswith("syslog") else "jsonl"])[0]
    if form not in FORMATS:
        raise UsageError(f"unknown format {form!r} in the sink {text[:200]!r} (expected one of {', '.join(FORMATS)})")
    if parts.scheme == "file":
        path = unquote(parts.path)
        if parts.netloc or not path:
            raise UsageError(f"the sink {text[:200]!r} needs a path: file:/var/log/audit.jsonl")
        return SinkAddress("file", form, path=path)
    if parts.scheme in _PORTS and parts.hostname:
        try:
            port = parts.port or _PORTS[parts.scheme]
        except ValueError:
            raise UsageError(f"invalid port in the sink {text[:200]!r}") from None
        return SinkAddress(cast("Scheme", parts.scheme), form, host=parts.hostname, port=port)
    raise UsageError(
        f"invalid sink {text[:200]!r}: expected file:/path, syslog://host:port, syslog+tls:// or syslog+udp://"
    )


class _SinkTransport(Protocol):
    def send(self, lines: list[str]) -> None:
        """Send lines. Raises OSError."""

    def close(self) -> None: ...


class AuditSink:
    """A sink with its queue."""

    def __init__(self, address: SinkAddress) -> None:
        self.address = address
        self.dropped_lines = 0
        self._outlet: _SinkTransport = _FileSink(address) if address.scheme == "file" else _SyslogSink(address)
        self._pending: deque[str] = deque()
        self._pause_seconds = MIN_BACKOFF_SECONDS
        self._not_before = 0.0

    def write(self, lines: list[str]) -> None:
        """Queue lines and send the queue. Never raises."""
        self._pending.extend(lines)
        # The oldest lines go first: the store still has them, and a monitoring system needs the present.
        while len(self._pending) > MAX_PENDING_LINES:
            self._pending.popleft()
            self.dropped_lines += 1
        if time.monotonic() >= self._not_before:
            self.flush()

    @property
    def is_full(self) -> bool:
        return len(self._pending) >= MAX_PENDING_LINES

    def flush(self) -> None:
        """Send the queue in batches. After a failure, back off."""
        while self._pending:
            # Removed only after they were sent. A failure in the middle of a batch may duplicate lines, which a
            # reader recognizes by their hashes; it never loses one.
            some = [self._pending[at] for at in range(min(500, len(self._pending)))]
            try:
                self._outlet.send(some)
            except OSError as failure:
                self._not_before = time.monotonic() + self._pause_seconds
                # Log the beginning of an outage, not every attempt.
                if self._pause_seconds == MIN_BACKOFF_SECONDS:
                    log.warning("audit sink %s is unavailable: %s", self._name, failure)
                self._pause_seconds = min(self._pause_seconds * 2, MAX_BACKOFF_SECONDS)
                return
            for _ in some:
                self._pending.popleft()
            if self._pause_seconds != MIN_BACKOFF_SECONDS:
                log.warning("audit sink %s is available again; %d records were dropped", self._name, self.dropped_lines)
                self._pause_seconds, self.dropped_lines = MIN_BACKOFF_SECONDS, 0

    def close(self) -> None:
        self.flush()
        if self._pending:
            log.error("%d records were not delivered to the audit sink %s", len(self._pending), self._name)
        self._outlet.close()

    @property
    def _name(self) -> str:
        return self.address.path or f"{self.address.host}:{self.address.port}"


class _FileSink:
    """File sink. The file is opened for each batch, since a log rotation may move it at any time."""

    def __init__(self, address: SinkAddress) -> None:
        self._path = Path(address.path)

    def send(self, lines: list[str]) -> None:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # O_APPEND lets several processes write to one file; O_NOFOLLOW keeps a symbolic link in a shared directory
        # from redirecting the log.
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0)
        with open(os.open(self._path, flags, 0o600), "ab", buffering=0) as opened:
            opened.write("".join(f"{line}\n" for line in lines).encode())

    def close(self) -> None: ...


class _SyslogSink:
    def __init__(self, address: SinkAddress) -> None:
        self._address = address
        self._socket: socket.socket | None = None
        self._head = f"{_syslog_token(socket.gethostname())} portico {os.getpid()} audit"

    def send(self, lines: list[str]) -> None:
        if self._socket is None:
            self._socket = self._connect()
        try:
            if self._address.scheme == "syslog+udp":
                for line in lines:
                    self._socket.send(self._frame(line)[:_MAX_DATAGRAM_BYTES])
            else:
                # Octet counting (RFC 6587, section 3.4.1): a line break in a message cannot start a forged one.
                framed = [self._frame(line) for line in lines]
                self._socket.sendall(b"".join(b"%d %s" % (len(item), item) for item in framed))
        except OSError:
            self.close()
            raise

    def _frame(self, line: str) -> bytes:
        return f"<{_SYSLOG_PRIORITY}>1 {format_timestamp(time.time_ns() // 1000)} {self._head} - {line}".encode()

    def _connect(self) -> socket.socket:
        where = (self._address.host, self._address.port)
        if self._address.scheme == "syslog+udp":
            family, kind, protocol, _, address = socket.getaddrinfo(*where, type=socket.SOCK_DGRAM)[0]
            connected = socket.socket(family, kind, protocol)
            connected.connect(address)
            return connected
        plain = socket.create_connection(where, timeout=SEND_TIMEOUT_SECONDS)
        if self._address.scheme == "syslog":
            return plain
        try:
            return _tls_context().wrap_socket(plain, server_hostname=self._address.host)
        except BaseException:
            plain.close()
            raise

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def _tls_context() -> ssl.SSLContext:
    """Return a TLS context. SSL_CERT_FILE replaces the system's certificate authorities, as usual."""
    return ssl.create_default_context()


def _syslog_token(text: str) -> str:
    """Return a text as a syslog header field: printable ASCII without spaces."""
    return "".join(item if "!" <= item <= "~" else "-" for item in text)[:255] or "-"
