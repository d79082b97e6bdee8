"""Event streams on the client: the stream of a response, and the GET stream for unsolicited messages.

A stream that breaks off is resumed after the last received event, where possible.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from typing import Any

from msgspec import UNSET, Raw

from portico.protocol import jsonrpc, notifications
from portico.protocol.errors import ConnectError, ConnectionClosed, PorticoError, ProtocolError, SessionExpired
from portico.protocol.jsonrpc import JsonRpcMessage, MalformedMessage
from portico.protocol.methods import LONG_LIVED_METHODS
from portico.protocol.versions import V2025_03_26, ProtocolVersion
from portico.rpc.call import Call
from portico.rpc.channel import Channel
from portico.rpc.supervision import BackgroundTasks
from portico.transports.base import ClientTransport, cancelled_subscription_id, in_request_stream, is_batch
from portico.transports.http_client.base import HttpTransportBase
from portico.transports.http_client.connection import HttpClientResponse
from portico.transports.http_client.responses import check_response_id, unwrap_result
from portico.transports.http_client.sse_decoder import SseDecoder

log = logging.getLogger("portico")

EVENT_STREAM_MEDIA_TYPE = "text/event-stream"
# Consecutive resumptions without a single event, and the backoff if the server does not specify one.
MAX_RESUMPTIONS = 5
INITIAL_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS = 0.5, 30.0
MIN_BACKOFF_SECONDS = 0.1
# Limits of the stream of one response: events, and bytes as a multiple of the response limit.
MAX_EVENTS_PER_RESPONSE = 1_000_000
MAX_STREAM_SIZE_FACTOR = 4
# Time for a server to open the GET stream before the client continues without it.
GET_STREAM_OPEN_TIMEOUT_SECONDS = 1.0


class EventStreamTransport(HttpTransportBase, ClientTransport):
    """Receiving side of event streams. Subclasses open the streams and send messages."""

    channel: Channel
    _session_id: str | None
    _protocol_version: ProtocolVersion | None
    # Tasks that run besides the calls.
    _background_tasks: BackgroundTasks

    async def _open_get_stream(self, last_id: str | None) -> HttpClientResponse:
        """Open a stream, after the event with this id if given."""
        raise NotImplementedError

    def _post_in_background(self, message: bytes) -> None:
        """Send the response to a server request without waiting."""
        raise NotImplementedError

    # Response streams

    async def _read_stream_result(self, response: HttpClientResponse, call: Call, *, modern: bool) -> Raw:
        """Return the result at the end of a stream. Resumes a stream that breaks off, where possible."""
        events = SseDecoder(self._max_response_bytes)
        method = call.method
        tries = 0
        while True:
            before = events.last_id
            reason = f"ended the stream of {method} without a response"
            try:
                frame = await self._receive_until_result(response, events, call, modern=modern)
                if frame is not None:
                    return unwrap_result(frame, 200)
            except ConnectionClosed:
                if self.closed:
                    raise
                reason = f"broke off its response to {method}"
            finally:
                self._pool.release(self._url, response)
            if modern or events.last_id is None:
                raise ConnectionClosed(f"{self.name} {reason}")
            tries = 0 if events.last_id != before else tries + 1
            response = await self._resume_stream(events, tries, method)

    async def _resume_stream(self, events: SseDecoder, tries: int, method: str) -> HttpClientResponse:
        """Resume a stream with GET and the last event id, not before the requested delay (2025-11-25,
        basic/transports).
        """
        while tries < MAX_RESUMPTIONS:
            await _resume_delay(events, tries)
            tries += 1
            try:
                response = await self._open_get_stream(events.last_id)
            except (ConnectionClosed, ConnectError) as failure:
                log.debug("%s: %s", self.name, failure)
                continue
            if response.status == 200 and response.media_type == EVENT_STREAM_MEDIA_TYPE:
                return response
            self._pool.release(self._url, response)
            if response.status < 500:
                raise ConnectionClosed(f"{self.name} broke off its response to {method} and does not resume it")
        raise ConnectionClosed(f"{self.name} broke off its response to {method} and cannot be reached to resume it")

    async def _receive_until_result(
        self, response: HttpClientResponse, events: SseDecoder, call: Call | None = None, *, modern: bool = False
    ) -> JsonRpcMessage | None:
        """Handle the messages of a stream until it ends or contains the response to this Call."""
        events.reset()
        while chunk := await response.read_chunk():
            for event in events.feed(chunk):
                # An event without data only provides an id for resumption.
                if event.data and event.name == "message":
                    result = None
                    for frame in self._decode_frames(event.data):
                        if call is not None and frame.method is UNSET:
                            result = check_response_id(frame, call.id)
                            call.reply.close()
                        elif (
                            call is not None
                            and call.method in LONG_LIVED_METHODS
                            and cancelled_subscription_id(frame) == call.id
                        ):
                            return None
                        else:
                            self._receive_frame(frame, call, modern=modern)
                    if result is not None:
                        return result
            if call is not None and call.method not in LONG_LIVED_METHODS:
                self._check_stream_size(events)
            if self.closed:
                raise ConnectionClosed(f"the stream of {self.name} was closed before it ended")
        return None

    def _check_stream_size(self, events: SseDecoder) -> None:
        """Raise `ProtocolError` if a stream exceeds its limits. A call without a timeout would otherwise never end."""
        if (
            events.event_count > MAX_EVENTS_PER_RESPONSE
            or events.total_bytes > MAX_STREAM_SIZE_FACTOR * self._max_response_bytes
        ):
            raise ProtocolError(f"no response within {events.event_count} events and {events.total_bytes} bytes")

    def _decode_frames(self, data: bytes) -> list[JsonRpcMessage]:
        if self._trace is not None:
            self._trace("received", data)
        if self._protocol_version != V2025_03_26 and is_batch(data):
            raise ProtocolError("a batch, which this protocol version does not support")
        frame = jsonrpc.decode_message(data)
        result = frame if isinstance(frame, list) else [frame]
        for item in result:
            if isinstance(item, MalformedMessage):
                raise ProtocolError(f"a malformed message: {item.error.message}")
        return result  # type: ignore[return-value]

    def _receive_frame(self, frame: JsonRpcMessage, call: Call | None, *, modern: bool) -> None:
        """Handle a message. `call` is the request on whose stream it arrived."""
        if modern and frame.id is not UNSET:
            self._reject_server_request()
            return
        if modern and call is not None and frame.method == notifications.LOG_MESSAGE:
            # 2026-07-28, basic/utilities/logging: log messages of a request arrive on its stream and carry no id.
            call.reply.notify(frame.method, frame.params)
            return
        before = in_request_stream.set(call is not None)
        try:
            reply = self.channel.receive_message(frame)
        finally:
            in_request_stream.reset(before)
        if reply is not None:
            self._post_in_background(reply)

    # Unsolicited messages

    async def _start_get_stream(self) -> None:
        """Open the GET stream before continuing: earlier unsolicited messages would be lost, and a result may depend on
        them.
        """
        started = asyncio.Event()

        async def run_stream() -> None:
            try:
                await self._run_get_stream(started)
            finally:
                started.set()

        self._start_background(run_stream())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GET_STREAM_OPEN_TIMEOUT_SECONDS):
                await started.wait()

    async def _run_get_stream(self, started: asyncio.Event) -> None:
        """Receive unsolicited messages. Not every server supports this."""
        events = SseDecoder(self._max_response_bytes)
        tries, attended = 0, False
        while tries < MAX_RESUMPTIONS and not self.closed:
            try:
                response = await self._open_get_stream(events.last_id)
                started.set()
                try:
                    if response.status == 404 and self._session_id is not None:
                        self.channel.close(SessionExpired(f"{self.name} no longer knows the session"))
                        self.on_missed_messages()
                    if response.status < 500 and (
                        response.status != 200 or response.media_type != EVENT_STREAM_MEDIA_TYPE
                    ):
                        return
                    if response.status == 200 and attended and events.last_id is None:
                        # Messages sent in between are not repeated.
                        self.on_missed_messages()
                    attended = attended or response.status == 200
                    before = events.last_id
                    lasted = response.status == 200 and await self._receive_all(response, events)
                    tries = 0 if lasted or events.last_id != before else tries + 1
                finally:
                    self._pool.release(self._url, response)
            except (ConnectionClosed, ConnectError, ProtocolError) as failure:
                log.debug("%s: %s", self.name, failure)
                tries += 1
            await _resume_delay(events, tries)

    async def _receive_all(self, response: HttpClientResponse, events: SseDecoder) -> bool:
        """Receive a stream to its end. Return whether it lasted: a stream that repeatedly ends at once is given up."""
        started_at = asyncio.get_running_loop().time()
        await self._receive_until_result(response, events)
        return asyncio.get_running_loop().time() - started_at > INITIAL_BACKOFF_SECONDS

    def _start_background(self, errand: Any) -> None:
        async def log_errors() -> None:
            try:
                await errand
            except PorticoError as failure:
                log.debug("%s: %s", self.name, failure)

        task = self._background_tasks.start(log_errors())
        # A task cancelled before its first step would leave its coroutine unawaited.
        task.add_done_callback(lambda _: errand.close())


async def _resume_delay(events: SseDecoder, tries: int) -> None:
    """Wait before resuming a stream, at least `MIN_BACKOFF_SECONDS` whatever the server requests."""
    await asyncio.sleep(
        max(events.retry_ms, MIN_BACKOFF_SECONDS) if events.retry_ms is not None else _backoff_delay(tries)
    )


def _backoff_delay(tries: int) -> float:
    """Return an exponential backoff with jitter."""
    return min(MAX_BACKOFF_SECONDS, INITIAL_BACKOFF_SECONDS * 2.0**tries) * random.uniform(0.5, 1.0)
