"""HTTP+SSE, the transport of 2024-11-05: one event stream for server messages, and another URL for client messages."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from msgspec import Raw

from portico.protocol.errors import (
    ConnectionClosed,
    HttpStatusError,
    PorticoError,
    ProtocolError,
    RequestTimeout,
    TransportError,
)
from portico.rpc.call import Handler
from portico.rpc.channel import Channel
from portico.transports.base import DuplexTransport, TraceCallback
from portico.transports.http_client.base import HttpTransportBase
from portico.transports.http_client.connection import HttpClientResponse
from portico.transports.http_client.event_streams import EVENT_STREAM_MEDIA_TYPE
from portico.transports.http_client.pool import HttpUrl
from portico.transports.http_client.responses import summarize_body
from portico.transports.http_client.sse_decoder import ServerSentEvent, SseDecoder
from portico.transports.http_client.streamable_http import JSON_MEDIA_TYPE, POST_TIMEOUT_SECONDS
from portico.transports.http_client.timeouts import suspendable_timeout

log = logging.getLogger("portico")

# The event is the first one on the stream, so a server that speaks this transport sends it immediately.
ENDPOINT_EVENT_TIMEOUT_SECONDS = 10.0
MAX_QUEUED_MESSAGES = 1024


class SseTransport(HttpTransportBase, DuplexTransport):
    """Connection to an HTTP+SSE server, whose stream announces the URL for messages. Options: see
    `HttpTransportBase._configure`.
    """

    def __init__(self, url: str, handler: Handler, *, trace: TraceCallback | None = None, **options: Any) -> None:
        super().__init__(trace)
        self._configure(url, **options)
        self.channel = Channel(handler, self._enqueue)
        self._endpoint: HttpUrl | None = None
        # A queue preserves the order of messages: each is a separate HTTP request, and they could overtake each other.
        self._outbox: asyncio.Queue[bytes] = asyncio.Queue(MAX_QUEUED_MESSAGES)
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        try:
            async with suspendable_timeout(ENDPOINT_EVENT_TIMEOUT_SECONDS):
                await self._open_stream()
        except TransportError:
            raise
        except TimeoutError:
            raise RequestTimeout(
                f"{self.name} did not announce its message endpoint within {ENDPOINT_EVENT_TIMEOUT_SECONDS:g} s"
            ) from None

    async def _open_stream(self) -> None:
        response = await self._send_http_request(
            "GET", self._url, (("Accept", EVENT_STREAM_MEDIA_TYPE), *self._custom_headers)
        )
        events = SseDecoder(self._max_response_bytes)
        try:
            if response.status != 200 or response.media_type != EVENT_STREAM_MEDIA_TYPE:
                raise HttpStatusError(
                    f"{self.name} responded to GET with HTTP status {response.status}", response.status
                )
            rest = await self._wait_endpoint_event(response, events)
        except BaseException:
            self._pool.release(self._url, response)
            raise
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._listen(response, events, rest)), loop.create_task(self._send_queued())]

    async def _wait_endpoint_event(self, response: HttpClientResponse, events: SseDecoder) -> list[ServerSentEvent]:
        while chunk := await response.read_chunk():
            result = events.feed(chunk)
            for at, event in enumerate(result):
                if event.name == "endpoint":
                    self._endpoint = self._validate_endpoint(event.data.decode(errors="replace").strip())
                    return result[at + 1 :]
        raise ConnectionClosed(f"{self.name} ended its stream without announcing a message endpoint")

    def _validate_endpoint(self, endpoint: str) -> HttpUrl:
        # Messages carry the token. An endpoint of another origin would send it to a third party, as the
        # specification warns.
        target = self._url.resolve_same_origin(endpoint)
        if target is None:
            # The URL is only logged: behind a gateway, clients read the error.
            log.warning("%s announced a message endpoint of another origin: %r", self.name, endpoint[:200])
            raise ProtocolError(f"{self.name} announced a message endpoint of another origin")
        return target

    async def _listen(self, response: HttpClientResponse, events: SseDecoder, rest: list[ServerSentEvent]) -> None:
        reason = f"{self.name} ended its stream"
        try:
            self._receive_events(rest)
            while chunk := await response.read_chunk():
                self._receive_events(events.feed(chunk))
        except PorticoError as failure:
            reason = f"{self.name}: {failure}"
        finally:
            self._pool.release(self._url, response)
            if not self.closed:
                self.channel.close(ConnectionClosed(reason))
                self.on_missed_messages()

    def _receive_events(self, events: list[ServerSentEvent]) -> None:
        for event in events:
            if event.name == "message" and event.data:
                self.receive(event.data)

    def _enqueue(self, message: bytes) -> None:
        if self._trace is not None:
            self._trace("sent", message)
        if self.closed:
            return
        try:
            self._outbox.put_nowait(message)
        except asyncio.QueueFull:
            # Messages must not be dropped silently: a lost response would leave the server waiting.
            self.channel.close(ConnectionClosed(f"{self.name} no longer accepts messages"))

    async def _notify(self, method: str, params: Raw) -> None:
        """Send a notification and wait until the server accepted it, as on other transports: later calls may depend on
        it.
        """
        await super()._notify(method, params)
        await self._outbox.join()

    async def _send_queued(self) -> None:
        try:
            while True:
                message = await self._outbox.get()
                try:
                    async with suspendable_timeout(POST_TIMEOUT_SECONDS):
                        await self._post(message)
                finally:
                    self._outbox.task_done()
        except (PorticoError, TimeoutError) as failure:
            self.channel.close(
                ConnectionClosed((f"{self.name} no longer accepts messages: {failure}").removesuffix(": "))
            )
        finally:
            # Marks the rest as done, otherwise `join` in `_notify` would wait forever.
            while not self._outbox.empty():
                self._outbox.get_nowait()
                self._outbox.task_done()

    async def _post(self, message: bytes) -> None:
        assert self._endpoint is not None
        response = await self._send_http_request(
            "POST", self._endpoint, (("Content-Type", JSON_MEDIA_TYPE), *self._custom_headers), message
        )
        try:
            # Most servers send "Accepted". An unread body would make the connection unusable.
            data = await response.read(64 * 1024) if response.media_type != EVENT_STREAM_MEDIA_TYPE else b""
        finally:
            self._pool.release(self._endpoint, response)
        if response.status >= 300:
            reason = f"responded with HTTP status {response.status}{summarize_body(data)}"
            self.channel.fail_pending(HttpStatusError(f"{self.name} {reason}", response.status))

    async def close(self) -> None:
        self.channel.close(ConnectionClosed("the client was closed"))
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=2.0)
        await self._pool.close()
