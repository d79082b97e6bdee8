"""A request that another worker has to answer: it is sent on over HTTP, and what comes back is passed on as it comes.

Each has a connection of its own, because one that was used before may be closed by the other side at the moment in
which it is used again, and then it could not be told whether the request was taken.
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

from portico.transports.http_server.cluster_hooks import SENT_ON
from portico.transports.http_server.messages import Answer, Pairs, Request, ResponseWriter

log = logging.getLogger("portico")

# Of the connection, and not of the request (RFC 9110, 7.6.1); and what only the first worker may see.
_LEFT_OUT = frozenset(
    {b"connection", b"keep-alive", b"transfer-encoding", b"te", b"upgrade", b"expect", b"content-length", SENT_ON}
    | {b"authorization", b"cookie", b"dpop", b"proxy-authorization"}
)
_OF_CONNECTION = frozenset({b"connection", b"transfer-encoding", b"content-length", b"date"})
# Beyond this the other worker waits for the client to read.
MOST_WAITING = 256 * 1024
MISDIRECTED = 421
# A machine that is gone answers nothing at all.
CONNECT_SECONDS = 3.0
# Before another try where too many want to be let in.
FULL_SECONDS = 0.02

Outcome = Literal["answered", "absent", "leaving", "gone", "lost"]
"""Whether it was answered; or its session is not there; or is being left to others; or there is no such worker where it
should be; or the other worker went away before it said anything."""

ABSENT = Answer(MISDIRECTED)
LEAVING = Answer(MISDIRECTED, (), b"leaving")
GONE = Answer(MISDIRECTED, (), b"gone")
_SAID: dict[bytes, Outcome] = {b"leaving": "leaving", b"gone": "gone"}


class Unreachable(Exception):
    """A worker lives, and is not reached: nothing was sent."""


class SentRequest(asyncio.Protocol):
    """One request on its way to another worker, and the answer on its way back."""

    def __init__(self, writer: ResponseWriter, head: bytes, body: bytes) -> None:
        self.outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
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
        self._writer.on_close = self._client_gone
        transport.write(self._sent)
        self._sent = b""

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._transport.abort()

    # What the parser finds

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:
            self._headers.clear()
            return
        self._streams = (b"transfer-encoding", b"chunked") in self._headers and status != MISDIRECTED
        if self._streams:
            self._writer.start(status, self._kept())

    def on_body(self, data: bytes) -> None:
        if not self._streams:
            self._body.append(data)
            return
        self._writer.write(data)
        if self._resuming is None and self._writer.buffered() > MOST_WAITING:
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
        if status == MISDIRECTED:
            self._settle(_SAID.get(b"".join(self._body), "absent"))
        else:
            if self._streams:
                self._writer.end()
            else:
                self._writer.answer(Answer(status, self._kept(), b"".join(self._body)))
            self._settle("answered")
        self._transport.close()

    def _kept(self) -> Pairs:
        return tuple(pair for pair in self._headers if pair[0] not in _OF_CONNECTION)

    # The end

    def connection_lost(self, failure: Exception | None) -> None:
        if self._resuming is not None:
            self._resuming.cancel()
        # The two know each other: only the collector of cycles would find them.
        self._parser = None
        if self.outcome.done():
            return
        if self._streams:
            # The client has seen some of it, and comes back for the rest.
            self._writer.on_close = None
            self._writer.abort()
            self._settle("answered")
        else:
            self._settle("lost")

    def end(self) -> None:
        """End the stream, if it is one by now, on both sides."""
        if self._streams and not self.outcome.done():
            self._writer.on_close = None
            self._writer.end()
            self._client_gone()

    def _client_gone(self) -> None:
        self._settle("answered")
        if self._transport is not None:
            self._transport.abort()

    def _settle(self, outcome: Outcome) -> None:
        if not self.outcome.done():
            self.outcome.set_result(outcome)


def head_of(request: Request, envelope: bytes, *, with_cookie: bool = False) -> bytes:
    """Return the head of the same request for another worker, without the credentials of the client."""
    target = quote(request.path) + (f"?{request.query}" if request.query else "")
    left_out = _LEFT_OUT - {b"cookie"} if with_cookie else _LEFT_OUT
    pairs = [pair for pair in request.headers.items() if pair[0] not in left_out]
    pairs += [(SENT_ON, envelope), (b"content-length", b"%d" % len(request.body)), (b"connection", b"close")]
    if b"host" not in request.headers:
        pairs.append((b"host", b"localhost"))
    lines = b"".join([b"%b: %b\r\n" % pair for pair in pairs])
    return b"%b %b HTTP/1.1\r\n%b\r\n" % (request.method.encode(), target.encode("latin-1"), lines)


@lru_cache(1)
def _trusting() -> ssl.SSLContext:
    """Whom to believe that it is who it says: PORTICO_ADDRESS_CA, or those whom this machine believes."""
    return ssl.create_default_context(cafile=os.environ.get("PORTICO_ADDRESS_CA"))


async def _connect(made: Callable[[], SentRequest], place: str) -> tuple[Any, SentRequest]:
    loop = asyncio.get_running_loop()
    if place.startswith("/"):
        return await loop.create_unix_connection(made, place)
    scheme, _, address = place.rpartition("://")
    host, _, port = address.rpartition(":")
    context = _trusting() if scheme == "https" else None
    async with asyncio.timeout(CONNECT_SECONDS):
        return await loop.create_connection(made, host.strip("[]"), int(port), ssl=context)


async def send(
    place: str,
    request: Request,
    writer: ResponseWriter,
    envelope: bytes,
    listening: set[SentRequest] | None = None,
    *,
    with_cookie: bool = False,
) -> Outcome | None:
    """Send it to a Unix socket by its path, to `host:port`, or to `https://host:port`. None: there is no process to
    take it. Raises Unreachable where there is one, on this machine.

    A GET is among those that are `listening` while it lasts.
    """
    near = place.startswith("/")
    until = time.monotonic() + CONNECT_SECONDS

    def made() -> SentRequest:
        return SentRequest(writer, head_of(request, envelope, with_cookie=with_cookie), request.body)

    try:
        while True:
            try:
                transport, sent = await _connect(made, place)
                break
            except BlockingIOError:
                # A Unix socket has a line of those who wait to be let in, and Linux has no waiting to get into that.
                if time.monotonic() > until:
                    raise
                await asyncio.sleep(FULL_SECONDS * random.uniform(0.5, 1.5))
    except (FileNotFoundError, ConnectionRefusedError):
        return None
    except ssl.SSLError as failure:
        log.warning("%s is not believed to be one of us (PORTICO_ADDRESS_CA says who is): %s", place, failure)
        return None
    except OSError as failure:
        if near:
            # It is there, and cannot be reached just now.
            raise Unreachable(str(failure)) from failure
        return None
    if listening is not None and request.method == "GET":
        listening.add(sent)
        sent.outcome.add_done_callback(lambda _: listening.discard(sent))
    try:
        return await sent.outcome
    except BaseException:
        transport.abort()
        raise
