"""Streams of events, as a client hears them: that of an answer, and the one for what a server says unasked.

A stream that breaks off is taken up again after the last event that came, where it can be.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from typing import Any

from msgspec import UNSET, Raw

from portico.protocol import jsonrpc, notifications
from portico.protocol.errors import Closed, ConnectFailed, Error, ProtocolError, SessionLost
from portico.protocol.jsonrpc import Frame, Malformed
from portico.protocol.methods import LASTING
from portico.protocol.versions import V2025_03_26, Revision
from portico.rpc.call import Call
from portico.rpc.channel import Channel
from portico.transports.base import Link, ended_subscription, is_batch, on_own_stream
from portico.transports.http_client.base import HttpSide
from portico.transports.http_client.connection import Response
from portico.transports.http_client.responses import expected, result_of
from portico.transports.http_client.sse_decoder import EventReader

log = logging.getLogger("portico")

EVENTS = "text/event-stream"
# How often a stream is taken up again without a single event in between, and the first pause when none is asked for.
RESUMPTIONS = 5
PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.5, 30.0
SHORTEST_PAUSE_SECONDS = 0.1
# What may come on the way to one answer, and how many times the longest answer that may be in bytes.
MOST_EVENTS = 1_000_000
MOST_ANSWERS_LONG = 4
# How long a server may take to open the stream for what it says unasked, before we go on without.
ATTEND_SECONDS = 1.0


class HttpStreams(HttpSide, Link):
    """What is heard on them. Who opens them, and what is asked, is for those to say that are one."""

    channel: Channel
    _session: str | None
    _revision: Revision | None
    # What is done beside the calls.
    _errands: set[asyncio.Task[None]]

    async def _get(self, last_id: str | None) -> Response:
        """Open a stream; after the event with this id, if there is one."""
        raise NotImplementedError

    def _post_aside(self, message: bytes) -> None:
        """Answer what was asked on a stream."""
        raise NotImplementedError

    # The answer to a call

    async def _follow(self, response: Response, call: Call, *, modern: bool) -> Raw:
        """The result at the end of a stream. A stream that breaks off is resumed where it can be."""
        events = EventReader(self._longest)
        method = call.method
        tries = 0
        while True:
            before = events.last_id
            what = f"ended its answer to {method} before there was one"
            try:
                frame = await self._hear(response, events, call, modern=modern)
                if frame is not None:
                    return result_of(frame, 200)
            except Closed:
                if self.closed:
                    raise
                what = f"broke off its answer to {method}"
            finally:
                self._pool.give_back(self._location, response)
            if modern or events.last_id is None:
                raise Closed(f"{self.name} {what}")
            tries = 0 if events.last_id != before else tries + 1
            response = await self._resume(events, tries, method)

    async def _resume(self, events: EventReader, tries: int, method: str) -> Response:
        """2025-11-25, basic/transports: GET, with the last id, and not before the server said."""
        while tries < RESUMPTIONS:
            await _before_coming_back(events, tries)
            tries += 1
            try:
                response = await self._get(events.last_id)
            except (Closed, ConnectFailed) as failure:
                log.debug("%s: %s", self.name, failure)
                continue
            if response.status == 200 and response.kind == EVENTS:
                return response
            self._pool.give_back(self._location, response)
            if response.status < 500:
                raise Closed(f"{self.name} broke off its answer to {method}, and does not resume it")
        raise Closed(f"{self.name} broke off its answer to {method}, and cannot be reached to resume it")

    async def _hear(
        self, response: Response, events: EventReader, call: Call | None = None, *, modern: bool = False
    ) -> Frame | None:
        """Take what comes on a stream, until it ends or has the answer to this Call."""
        events.restart()
        while chunk := await response.more():
            for event in events.feed(chunk):
                # An event without data only brings an id to come back with.
                if event.data and event.name == "message":
                    found = None
                    for frame in self._frames(event.data):
                        if call is not None and frame.method is UNSET:
                            found = expected(frame, call.id)
                            call.reply.close()
                        elif call is not None and call.method in LASTING and ended_subscription(frame) == call.id:
                            return None
                        else:
                            self._take(frame, call, modern=modern)
                    if found is not None:
                        return found
            if call is not None and call.method not in LASTING:
                self._check_length(events)
            if self.closed:
                raise Closed(f"{self.name} was left in the middle of what it said")
        return None

    def _check_length(self, events: EventReader) -> None:
        """A call without a time limit would hear for ever what a server says that never comes to its answer."""
        if events.count > MOST_EVENTS or events.bytes > MOST_ANSWERS_LONG * self._longest:
            raise ProtocolError(f"no answer within {events.count} events and {events.bytes} bytes")

    def _frames(self, data: bytes) -> list[Frame]:
        if self._trace is not None:
            self._trace("received", data)
        if self._revision != V2025_03_26 and is_batch(data):
            raise ProtocolError("a batch, where there are none")
        frame = jsonrpc.decode(data)
        found = frame if isinstance(frame, list) else [frame]
        for one in found:
            if isinstance(one, Malformed):
                raise ProtocolError(f"a malformed message: {one.error.message}")
        return found  # type: ignore[return-value]

    def _take(self, frame: Frame, call: Call | None, *, modern: bool) -> None:
        """`call`: the one whose own stream it came on."""
        if modern and frame.id is not UNSET:
            self._refuse_question()
            return
        if modern and call is not None and frame.method == notifications.MESSAGE:
            # 2026-07-28, basic/utilities/logging: what a request logs comes on its stream, and carries no id.
            call.reply.emit(frame.method, frame.params)
            return
        before = on_own_stream.set(call is not None)
        try:
            reply = self.channel.accept(frame)
        finally:
            on_own_stream.reset(before)
        if reply is not None:
            self._post_aside(reply)

    # What is said unasked

    async def _begin_to_attend(self) -> None:
        """Open the stream of unasked messages first: what is sent before that is lost, and a result may need it."""
        begun = asyncio.Event()

        async def attend() -> None:
            try:
                await self._attend(begun)
            finally:
                begun.set()

        self._run(attend())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ATTEND_SECONDS):
                await begun.wait()

    async def _attend(self, begun: asyncio.Event) -> None:
        """The stream for what the server says unasked. Not every server has one."""
        events = EventReader(self._longest)
        tries, attended = 0, False
        while tries < RESUMPTIONS and not self.closed:
            try:
                response = await self._get(events.last_id)
                begun.set()
                try:
                    if response.status == 404 and self._session is not None:
                        self.channel.close(SessionLost(f"{self.name} no longer knows our session"))
                        self.on_gap()
                    if response.status < 500 and (response.status != 200 or response.kind != EVENTS):
                        return
                    if response.status == 200 and attended and events.last_id is None:
                        # What was said meanwhile is not said again.
                        self.on_gap()
                    attended = attended or response.status == 200
                    before = events.last_id
                    lasted = response.status == 200 and await self._hear_all(response, events)
                    tries = 0 if lasted or events.last_id != before else tries + 1
                finally:
                    self._pool.give_back(self._location, response)
            except (Closed, ConnectFailed, ProtocolError) as failure:
                log.debug("%s: %s", self.name, failure)
                tries += 1
            await _before_coming_back(events, tries)

    async def _hear_all(self, response: Response, events: EventReader) -> bool:
        """Whether the stream lasted; one that ends at once again and again is not asked for again."""
        begun = asyncio.get_running_loop().time()
        await self._hear(response, events)
        return asyncio.get_running_loop().time() - begun > PAUSE_SECONDS

    def _run(self, errand: Any) -> None:
        async def quietly() -> None:
            try:
                await errand
            except Error as failure:
                log.debug("%s: %s", self.name, failure)

        task = asyncio.get_running_loop().create_task(quietly())
        self._errands.add(task)
        task.add_done_callback(self._errands.discard)
        # Or else one that was stopped before it began would never have been waited for.
        task.add_done_callback(lambda _: errand.close())


async def _before_coming_back(events: EventReader, tries: int) -> None:
    """A server that lets us go at once each time is not hurried back to, whatever it says."""
    await asyncio.sleep(max(events.retry, SHORTEST_PAUSE_SECONDS) if events.retry is not None else _pause(tries))


def _pause(tries: int) -> float:
    """Longer each time, and never the same for two clients."""
    return min(LONGEST_PAUSE_SECONDS, PAUSE_SECONDS * 2.0**tries) * random.uniform(0.5, 1.0)
