"""Reverse proxy between workers: sends a request over HTTP, and relays the response as it arrives.

Each request uses its own connection. The other side may close a reused connection at the moment of reuse, and then it
would be unknown whether the request was received.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import ssl
import time
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Literal
from urllib.parse import quote

import httptools

from portico.transports.http_server.cluster_hooks import FORWARDED_HEADER
from portico.transports.http_server.messages import HeaderPairs, HttpRequest, HttpResponse, ResponseWriter

log = logging.getLogger("portico")

# Connection headers (RFC 9110, 7.6.1), and credentials, which only the first worker may see.
_DROPPED_REQUEST_HEADERS = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"transfer-encoding",
        b"te",
        b"upgrade",
        b"expect",
        b"content-length",
        FORWARDED_HEADER,
    }
    | {b"authorization", b"cookie", b"dpop", b"proxy-authorization"}
)
_HOP_BY_HOP_HEADERS = frozenset({b"connection", b"transfer-encoding", b"content-length", b"date"})
# Above this, reading from the other worker pauses until the client has read.
WRITE_HIGH_WATER_BYTES = 256 * 1024
MISDIRECTED_STATUS = 421
# A machine that is gone does not respond at all.
CONNECT_TIMEOUT_SECONDS = 3.0
# Delay before the next attempt if the accept queue is full.
CONNECT_RETRY_SECONDS = 0.02

ForwardOutcome = Literal["answered", "absent", "leaving", "gone", "lost"]
"""answered: the response was relayed; absent: the worker does not have the session; leaving: the session is being
released; gone: no such worker at this address; lost: the worker exited before it responded."""

NO_SESSION_RESPONSE = HttpResponse(MISDIRECTED_STATUS)
RETIRING_RESPONSE = HttpResponse(MISDIRECTED_STATUS, (), b"leaving")
GONE_RESPONSE = HttpResponse(MISDIRECTED_STATUS, (), b"gone")
_OUTCOME_BY_BODY: dict[bytes, ForwardOutcome] = {b"leaving": "leaving", b"gone": "gone"}


class WorkerUnreachable(Exception):
    """A running worker cannot be reached. Nothing was sent."""


class ProxiedRequest(asyncio.Protocol):
    """One request to another worker, with its response."""

    def __init__(self, writer: ResponseWriter, head: bytes, body: bytes) -> None:
        self.outcome: asyncio.Future[ForwardOutcome] = asyncio.get_running_loop().create_future()
        self._writer = writer
        self._sent = head + body
        self._parser: Any = httptools.HttpResponseParser(self)
        self._transport: Any = None
        self._headers: list[tuple[bytes, bytes]] = []
        self._body: list[bytes] = []
        self._streams = False
        self._resuming: asyncio.Task[None] | None = None

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._writer.on_close = self._on_client_disconnect
        transport.write(self._sent)
        self._sent = b""

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._transport.abort()

    # Parser callbacks

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:
            self._headers.clear()
            return
        self._streams = (b"transfer-encoding", b"chunked") in self._headers and status != MISDIRECTED_STATUS
        if self._streams:
            self._writer.start(status, self._response_headers())

    def on_body(self, data: bytes) -> None:
        if not self._streams:
            self._body.append(data)
            return
        self._writer.write(data)
        if self._resuming is None and self._writer.buffered_bytes() > WRITE_HIGH_WATER_BYTES:
            self._transport.pause_reading()
            self._resuming = asyncio.get_running_loop().create_task(self._resume())

    async def _resume(self) -> None:
        await self._writer.drain()
        self._resuming = None
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def on_message_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:
            return
        self._writer.on_close = None
        if status == MISDIRECTED_STATUS:
            self._finish(_OUTCOME_BY_BODY.get(b"".join(self._body), "absent"))
        else:
            if self._streams:
                self._writer.end()
            else:
                self._writer.respond(HttpResponse(status, self._response_headers(), b"".join(self._body)))
            self._finish("answered")
        self._transport.close()

    def _response_headers(self) -> HeaderPairs:
        return tuple(pair for pair in self._headers if pair[0] not in _HOP_BY_HOP_HEADERS)

    # Closing

    def connection_lost(self, failure: Exception | None) -> None:
        if self._resuming is not None:
            self._resuming.cancel()
        # The parser and this object reference each other: break the cycle.
        self._parser = None
        if self.outcome.done():
            return
        if self._streams:
            # The client has received a part of the stream, and resumes it.
            self._writer.on_close = None
            self._writer.abort()
            self._finish("answered")
        else:
            self._finish("lost")

    def end(self) -> None:
        """End the stream on both sides, if one has started."""
        if self._streams and not self.outcome.done():
            self._writer.on_close = None
            self._writer.end()
            self._on_client_disconnect()

    def _on_client_disconnect(self) -> None:
        self._finish("answered")
        if self._transport is not None:
            self._transport.abort()

    def _finish(self, outcome: ForwardOutcome) -> None:
        if not self.outcome.done():
            self.outcome.set_result(outcome)


def build_forward_head(request: HttpRequest, signed_claims: bytes, *, with_cookie: bool = False) -> bytes:
    """Return the request head for another worker, without the client's credentials."""
    target = quote(request.path) + (f"?{request.query}" if request.query else "")
    left_out = _DROPPED_REQUEST_HEADERS - {b"cookie"} if with_cookie else _DROPPED_REQUEST_HEADERS
    pairs = [pair for pair in request.headers.items() if pair[0] not in left_out]
    pairs += [
        (FORWARDED_HEADER, signed_claims),
        (b"content-length", b"%d" % len(request.body)),
        (b"connection", b"close"),
    ]
    if b"host" not in request.headers:
        pairs.append((b"host", b"localhost"))
    lines = b"".join([b"%b: %b\r\n" % pair for pair in pairs])
    return b"%b %b HTTP/1.1\r\n%b\r\n" % (request.method.encode(), target.encode("latin-1"), lines)


@lru_cache(1)
def _ssl_context() -> ssl.SSLContext:
    """Return the TLS context for other machines: trusts PORTICO_ADDRESS_CA, or the system's authorities."""
    return ssl.create_default_context(cafile=os.environ.get("PORTICO_ADDRESS_CA"))


async def _connect(protocol_factory: Callable[[], ProxiedRequest], target: str) -> tuple[Any, ProxiedRequest]:
    loop = asyncio.get_running_loop()
    if target.startswith("/"):
        return await loop.create_unix_connection(protocol_factory, target)
    scheme, _, address = target.rpartition("://")
    host, _, port = address.rpartition(":")
    context = _ssl_context() if scheme == "https" else None
    async with asyncio.timeout(CONNECT_TIMEOUT_SECONDS):
        return await loop.create_connection(protocol_factory, host.strip("[]"), int(port), ssl=context)


async def proxy_request(
    address: str,
    request: HttpRequest,
    writer: ResponseWriter,
    signed_claims: bytes,
    open_streams: set[ProxiedRequest] | None = None,
    *,
    with_cookie: bool = False,
) -> ForwardOutcome | None:
    """Send a request to a Unix socket path, to `host:port`, or to `https://host:port`.

    Returns None if no process accepts it. Raises `WorkerUnreachable` if a local process exists but cannot be reached. A
    GET request is in `open_streams` while it is active.
    """
    is_local = address.startswith("/")
    until = time.monotonic() + CONNECT_TIMEOUT_SECONDS

    def make_request() -> ProxiedRequest:
        return ProxiedRequest(writer, build_forward_head(request, signed_claims, with_cookie=with_cookie), request.body)

    try:
        while True:
            try:
                transport, sent = await _connect(make_request, address)
                break
            except BlockingIOError:
                # The accept queue of a Unix socket is full, and Linux does not block in that case: retry.
                if time.monotonic() > until:
                    raise
                await asyncio.sleep(CONNECT_RETRY_SECONDS * random.uniform(0.5, 1.5))
    except (FileNotFoundError, ConnectionRefusedError):
        return None
    except ssl.SSLError as failure:
        log.warning(
            ("the TLS certificate of the worker at %s is not trusted (see PORTICO_ADDRESS_CA): %s"), address, failure
        )
        return None
    except OSError as failure:
        if is_local:
            # The worker exists, but cannot be reached at the moment.
            raise WorkerUnreachable(str(failure)) from failure
        return None
    if open_streams is not None and request.method == "GET":
        open_streams.add(sent)
        sent.outcome.add_done_callback(lambda _: open_streams.discard(sent))
    try:
        return await sent.outcome
    except BaseException:
        transport.abort()
        raise
