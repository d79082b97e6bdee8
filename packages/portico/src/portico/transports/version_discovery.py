"""Finding out which revision a server speaks: what is asked, in which order, and what an odd answer means."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from msgspec import Raw

from portico.protocol.errors import BadStatus, Closed, Error, ProtocolError, TimedOut, UnsupportedVersion, from_wire
from portico.protocol.versions import HANDSHAKE, MODERN, Revision
from portico.transports.base import Link
from portico.transports.handshake import (
    ClientIdentity,
    Greeting,
    accept_handshake,
    ask_for_handshake,
    discover,
    initialize,
    is_modern,
    means_handshake_server,
)
from portico.transports.http_client.sse import HttpSse
from portico.transports.http_client.streamable_http import StreamableHttp
from portico.transports.targets import Command, Here, Target, Url

log = logging.getLogger("portico")

# How long a child process that may never have heard of the newest revision may take to answer the first question.
PROBE_SECONDS = 10.0

# Whether a server speaks the newest revision is a property of the server, so it is asked once in a process.
_remembered: dict[str, bool] = {}
_MOST_REMEMBERED = 256


class Introduction:
    """Greets one server, in the newest revision first unless one was asked for.

    `link` gives the connection there is, and `replace` makes another, perhaps by the older transport.
    """

    def __init__(
        self,
        target: Target,
        identity: ClientIdentity,
        pinned: Revision | None,
        timeout: float | None,
        link: Callable[[], Link],
        replace: Callable[..., Awaitable[Link]],
    ) -> None:
        self._target = target
        self._identity = identity
        self._pinned = pinned
        self._timeout = timeout
        self._link = link
        self._replace = replace

    async def greet(self) -> Greeting:
        if self._pinned in HANDSHAKE:
            return await self._shake_hands(self._pinned)
        known = _remembered.get(self._target.key) if self._pinned is None else None
        if known is not False:
            greeting = await self._discover()
            if greeting is not None:
                remember(self._target, modern=greeting.revision >= MODERN)
                return greeting
            if self._pinned is not None:
                raise self._not_spoken("")
        try:
            greeting = await self._shake_hands(None)
        except (ProtocolError, BadStatus) as failure:
            if known is not False:
                return await self._greet_late(failure)
            # It was restarted as something newer.
            remember(self._target, modern=None)
            if self._link().closed or isinstance(self._link(), HttpSse):
                await self._replace()
            return await self.greet()
        remember(self._target, modern=False)
        return greeting

    async def _greet_late(self, failure: ProtocolError | BadStatus) -> Greeting:
        """A program that was slow to start has heard the first question by now, and may be of the newest revision."""
        if not isinstance(self._target, Command) or self._link().closed:
            raise failure
        try:
            greeting = await discover(self._link(), self._identity, self._timeout)
        except Error:
            greeting = None
        if greeting is None:
            raise failure
        remember(self._target, modern=True)
        return greeting

    async def _discover(self) -> Greeting | None:
        """Return what the server answers, or None for a server of the handshake: then there is a connection for it."""
        if isinstance(self._target, Url) and self._target.sse:
            return None
        sure = self._pinned is not None or isinstance(self._target, Here)
        try:
            if not isinstance(self._target, Command) or sure:
                return await discover(self._link(), self._identity, self._timeout)
            result = await self._probe_child()
            if not isinstance(result, asyncio.Future):
                return result
        except (ProtocolError, BadStatus) as failure:
            if self._pinned is not None and means_handshake_server(failure):
                raise self._not_spoken(f": {failure}") from failure
            if sure or not means_handshake_server(failure):
                raise
        except (Closed, TimedOut):
            # Silence and an exit are answers only a child process can give; elsewhere they say nothing.
            if sure or not isinstance(self._target, Command):
                raise
        else:
            return await self._accept(result)
        if self._link().closed:
            await self._replace()
        return None

    async def _accept(self, handshake: asyncio.Future[Raw]) -> Greeting:
        try:
            return await accept_handshake(self._link(), await handshake)
        except ProtocolError as failure:
            return await self._greet_late(failure)

    async def _probe_child(self) -> Greeting | asyncio.Future[Raw] | None:
        """Ask a child process, which may be slow to start, or may ignore a request that it does not know.

        After PROBE_SECONDS of silence `initialize` is sent as well. A process that only started late answers both in
        their order, so it is spoken to in the newest revision. If it ignores the first request, what the second comes
        to is returned.
        """
        link = self._link()
        probe = asyncio.ensure_future(discover(link, self._identity, self._timeout))
        handshake: asyncio.Future[Raw] | None = None
        try:
            await asyncio.wait({probe}, timeout=PROBE_SECONDS)
            if not probe.done():
                handshake = asyncio.ensure_future(ask_for_handshake(link, self._identity, None, self._timeout))
                # 2025-11-25, basic/utilities/cancellation: `initialize` must not be cancelled, so it may outlive us.
                handshake.add_done_callback(_ignore_result)
                await asyncio.wait({probe, handshake}, return_when=asyncio.FIRST_COMPLETED)
            if handshake is not None and (not probe.done() or probe.exception() or probe.result() is None):
                return handshake
            return await probe
        except asyncio.CancelledError:
            if handshake is not None:
                handshake.cancel()
            raise
        finally:
            probe.add_done_callback(_ignore_result)
            probe.cancel()

    def _not_spoken(self, why: str) -> ProtocolError:
        """The revision that was asked for is spoken, or none is."""
        return from_wire(UnsupportedVersion.code, f"{self._link().name} does not speak {self._pinned}{why}")

    async def _shake_hands(self, revision: Revision | None) -> Greeting:
        try:
            return await initialize(self._link(), self._identity, revision, self._timeout)
        except (ProtocolError, BadStatus) as failure:
            # 2025-03-26, basic/transports: only these say that the server may be of the transport before.
            if not isinstance(self._link(), StreamableHttp) or failure.status not in (400, 404, 405):
                raise
            if is_modern(failure):
                raise
            try:
                await self._replace(HttpSse)
            except Error as other:
                log.debug("%s", other)
                raise failure from None
            return await initialize(self._link(), self._identity, revision, self._timeout)


def _ignore_result(task: asyncio.Future[Any]) -> None:
    if not task.cancelled():
        task.exception()


def remember(target: Target, *, modern: bool | None) -> None:
    """Whether a server speaks the newest revision; None: it has to be asked again."""
    if isinstance(target, Here):
        return
    if len(_remembered) >= _MOST_REMEMBERED:
        _remembered.clear()
    if modern is None:
        _remembered.pop(target.key, None)
    else:
        _remembered[target.key] = modern
