"""HTTP+SSE, the transport of 2024-11-05: one stream for all that the server says, and another URL for what we say."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from msgspec import Raw

from portico.protocol.errors import BadStatus, Closed, Error, ProtocolError, TimedOut, TransportError
from portico.rpc.call import Handler
from portico.rpc.channel import Channel
from portico.transports.base import Duplex, Trace
from portico.transports.http_client.base import HttpSide
from portico.transports.http_client.connection import Response
from portico.transports.http_client.event_streams import EVENTS
from portico.transports.http_client.pool import Location
from portico.transports.http_client.responses import gist
from portico.transports.http_client.sse_decoder import EventReader, ServerSentEvent
from portico.transports.http_client.streamable_http import JSON, POST_SECONDS
from portico.transports.http_client.timeouts import limited

log = logging.getLogger("portico")

ENDPOINT_SECONDS = 10.0
MOST_WAITING = 1024


class HttpSse(HttpSide, Duplex):
    """A server whose stream is at a URL, and which says there where to post. Options: those of `HttpSide._set_up`."""

    def __init__(self, url: str, handler: Handler, *, trace: Trace | None = None, **options: Any) -> None:
        super().__init__(trace)
        self._set_up(url, **options)
        self.channel = Channel(handler, self._enqueue)
        self._endpoint: Location | None = None
        # What we say keeps its order: each message is a request of its own, and they could overtake each other.
        self._outbox: asyncio.Queue[bytes] = asyncio.Queue(MOST_WAITING)
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        try:
            async with limited(ENDPOINT_SECONDS):
                await self._open()
        except TransportError:
            raise
        except TimeoutError:
            raise TimedOut(f"{self.name} did not say where to post, within {ENDPOINT_SECONDS:g} s") from None

    async def _open(self) -> None:
        response = await self._dispatch("GET", self._location, (("Accept", EVENTS), *self._own))
        events = EventReader(self._longest)
        try:
            if response.status != 200 or response.kind != EVENTS:
                raise BadStatus(f"{self.name} answers GET with the HTTP status {response.status}", response.status)
            rest = await self._find_endpoint(response, events)
        except BaseException:
            self._pool.give_back(self._location, response)
            raise
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._listen(response, events, rest)), loop.create_task(self._speak())]

    async def _find_endpoint(self, response: Response, events: EventReader) -> list[ServerSentEvent]:
        while chunk := await response.more():
            found = events.feed(chunk)
            for at, event in enumerate(found):
                if event.name == "endpoint":
                    self._endpoint = self._checked_endpoint(event.data.decode(errors="replace").strip())
                    return found[at + 1 :]
        raise Closed(f"{self.name} ended its stream before it said where to post")

    def _checked_endpoint(self, said: str) -> Location:
        there = self._location.neighbour(said)
        if there is None:
            # The address is for the log alone: behind a gateway clients read the error.
            log.warning("%s wants us to post to another origin: %r", self.name, said[:200])
            raise ProtocolError(f"{self.name} wants us to post to another origin")
        return there

    async def _listen(self, response: Response, events: EventReader, rest: list[ServerSentEvent]) -> None:
        reason = f"{self.name} ended its stream"
        try:
            self._take(rest)
            while chunk := await response.more():
                self._take(events.feed(chunk))
        except Error as failure:
            reason = f"{self.name}: {failure}"
        finally:
            self._pool.give_back(self._location, response)
            if not self.closed:
                self.channel.close(Closed(reason))
                self.on_gap()

    def _take(self, events: list[ServerSentEvent]) -> None:
        for event in events:
            if event.name == "message" and event.data:
                self.take(event.data)

    def _enqueue(self, message: bytes) -> None:
        if self._trace is not None:
            self._trace("sent", message)
        if self.closed:
            return
        try:
            self._outbox.put_nowait(message)
        except asyncio.QueueFull:
            self.channel.close(Closed(f"{self.name} takes nothing any more"))

    async def _notify(self, method: str, params: Raw) -> None:
        """Returns when it was taken, as on the other transports: what is done next may depend on it."""
        await super()._notify(method, params)
        await self._outbox.join()

    async def _speak(self) -> None:
        try:
            while True:
                message = await self._outbox.get()
                try:
                    async with limited(POST_SECONDS):
                        await self._post(message)
                finally:
                    self._outbox.task_done()
        except (Error, TimeoutError) as failure:
            self.channel.close(Closed(f"{self.name} takes nothing any more: {failure}".removesuffix(": ")))
        finally:
            while not self._outbox.empty():
                self._outbox.get_nowait()
                self._outbox.task_done()

    async def _post(self, message: bytes) -> None:
        assert self._endpoint is not None
        response = await self._dispatch("POST", self._endpoint, (("Content-Type", JSON), *self._own), message)
        try:
            # "Accepted", say most. Who does not listen to the end cannot use the connection again.
            data = await response.read(64 * 1024) if response.kind != EVENTS else b""
        finally:
            self._pool.give_back(self._endpoint, response)
        if response.status >= 300:
            what = f"answers with the HTTP status {response.status}{gist(data)}"
            self.channel.fail(BadStatus(f"{self.name} {what}", response.status))

    async def close(self) -> None:
        self.channel.close(Closed("the client was closed"))
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=2.0)
        await self._pool.close()
