"""HTTP+SSE, the transport of 2024-11-05: one stream for all that the server says, and another URL for what we say."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

from portico.rpc.call import Handler
from portico.rpc.channel import Channel
from portico.transport.http_client.answers import gist
from portico.transport.http_client.connection import Answer
from portico.transport.http_client.events import Event, Events
from portico.transport.http_client.limits import limited
from portico.transport.http_client.pool import Headers, Place, Pool
from portico.transport.http_client.streamable import EVENTS, JSON, POST_SECONDS, Sender, checked
from portico.transport.link import LONGEST_ANSWER, Duplex
from portico.wire.errors import BadStatus, Closed, ConnectFailed, Error, ProtocolError

log = logging.getLogger("portico")

ENDPOINT_SECONDS = 10.0
MOST_WAITING = 1024


class HttpSse(Duplex):
    """A server whose stream is at a URL, and which says there where to post."""

    def __init__(
        self,
        url: str,
        handler: Handler,
        *,
        headers: Mapping[str, str] | None = None,
        auth: Sender | None = None,
        pool: Pool | None = None,
        longest: int = LONGEST_ANSWER,
    ) -> None:
        super().__init__()
        self._place = Place(url)
        self.name = self._place.shown
        self.channel = Channel(handler, self._say)
        self._pool = pool or Pool()
        self._own = checked(headers or {}, self._place)
        self._auth = auth
        self._longest = longest
        self._endpoint: Place | None = None
        # What we say keeps its order: each message is a request of its own, and they could overtake each other.
        self._outbox: asyncio.Queue[bytes] = asyncio.Queue(MOST_WAITING)
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        try:
            async with limited(ENDPOINT_SECONDS):
                await self._open()
        except TimeoutError:
            raise ConnectFailed(f"{self.name} did not say where to post, within {ENDPOINT_SECONDS:g} s") from None

    async def _open(self) -> None:
        answer = await self._send("GET", self._place, (("Accept", EVENTS), *self._own))
        events = Events(self._longest)
        try:
            if answer.status != 200 or answer.kind != EVENTS:
                raise BadStatus(f"{self.name} answers GET with the HTTP status {answer.status}", answer.status)
            rest = await self._find_endpoint(answer, events)
        except BaseException:
            self._pool.give_back(self._place, answer)
            raise
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._listen(answer, events, rest)), loop.create_task(self._speak())]

    async def _find_endpoint(self, answer: Answer, events: Events) -> list[Event]:
        while chunk := await answer.more():
            found = events.feed(chunk)
            for place, event in enumerate(found):
                if event.name == "endpoint":
                    self._endpoint = self._checked_endpoint(event.data.decode(errors="replace").strip())
                    return found[place + 1 :]
        raise Closed(f"{self.name} ended its stream before it said where to post")

    def _checked_endpoint(self, said: str) -> Place:
        there = self._place.neighbour(said)
        if there is None:
            raise ProtocolError(f"{self.name} wants us to post to another origin: {said[:200]!r}")
        return there

    async def _listen(self, answer: Answer, events: Events, rest: list[Event]) -> None:
        reason = f"{self.name} ended its stream"
        try:
            self._take(rest)
            while chunk := await answer.more():
                self._take(events.feed(chunk))
        except Error as failure:
            reason = f"{self.name}: {failure}"
        finally:
            self._pool.give_back(self._place, answer)
            if not self.closed:
                self.channel.close(Closed(reason))
                self.gap()

    def _take(self, events: list[Event]) -> None:
        for event in events:
            if event.name == "message" and event.data:
                self.take(event.data)

    def _say(self, message: bytes) -> None:
        if self._trace is not None:
            self._trace("sent", message)
        if self.closed:
            return
        try:
            self._outbox.put_nowait(message)
        except asyncio.QueueFull:
            self.channel.close(Closed(f"{self.name} takes nothing any more"))

    async def notify(self, method: str, params: Any = None) -> None:
        """Gone when it was taken, as on the other transports: what is done next may depend on it."""
        self.channel.emit(method, params)
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
        answer = await self._send("POST", self._endpoint, (("Content-Type", JSON), *self._own), message)
        try:
            # "Accepted", say most. Who does not listen to the end cannot use the connection again.
            data = await answer.read(64 * 1024) if answer.kind != EVENTS else b""
        finally:
            self._pool.give_back(self._endpoint, answer)
        if answer.status >= 300:
            what = f"answers with the HTTP status {answer.status}{gist(data)}"
            self.channel.fail(BadStatus(f"{self.name} {what}", answer.status))

    async def _send(self, method: str, place: Place, headers: Headers, body: bytes = b"") -> Answer:
        if self._auth is None:
            return await self._pool.send(method, place, headers, body)
        return await self._auth.send(self._pool, method, place, headers, body, method)

    async def close(self) -> None:
        self.channel.close(Closed("the client was closed"))
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=2.0)
        await self._pool.close()
