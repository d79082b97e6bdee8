"""The way to one server: found, greeted, and made again when it breaks."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable
from typing import Any

from msgspec import Raw

from portico.rpc.call import Handler
from portico.transport.greeting import ClientIdentity, Greeting, discover, initialize, is_modern, means_handshake_server
from portico.transport.http_client.pool import Pool
from portico.transport.http_client.sse import HttpSse
from portico.transport.http_client.streamable import Sender, StreamableHttp
from portico.transport.link import Link, Trace
from portico.transport.memory import Memory
from portico.transport.process import Process
from portico.transport.targets import Command, Here, Target, Url
from portico.wire.errors import (
    BadStatus,
    Closed,
    ConnectFailed,
    Error,
    InvalidRequest,
    ProtocolError,
    SessionLost,
    TimedOut,
    TransportError,
    UnsupportedVersion,
    UsageError,
    from_wire,
)
from portico.wire.revisions import HANDSHAKE, LATEST, MODERN, Revision

log = logging.getLogger("portico")

# How long a child that may never have heard of the newest revision is waited for.
PROBE_SECONDS = 10.0
# The pause before the first retry; it doubles each time.
PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.1, 5.0
# A server that is overwhelmed, or a proxy that cannot reach it.
_PASSING = frozenset({429, 502, 503, 504})
# What servers of the handshake say to a request without one.
_WITHOUT_SESSION = frozenset({InvalidRequest.code, -32000, -32001})

# Whether a server speaks the newest revision is a property of the server, so it is asked once in a process.
_remembered: dict[str, bool] = {}
_MOST_REMEMBERED = 256


class Upstream:
    """A Link that is opened again when the server has ended, was restarted, or has forgotten us."""

    def __init__(
        self,
        target: Target,
        answer: Handler,
        identity: ClientIdentity,
        *,
        revision: Revision | None,
        timeout: float | None,
        retries: int,
        auth: Sender | None = None,
        pool: Callable[[], Pool] = Pool,
        principal: Any = None,
        trace: Trace | None = None,
        reopened: Callable[[], Awaitable[None]],
        gap: Callable[[], None],
    ) -> None:
        self.greeting = Greeting(revision or LATEST)
        self._target = target
        self._answer = answer
        self._identity = identity
        self._pinned = revision
        self._timeout = timeout
        self._retries = retries
        self._auth = auth
        self._pool = pool
        self._principal = principal
        self._trace = trace
        self._reopened = reopened
        self._gap = gap
        self._link: Link | None = None
        self._mending = asyncio.Lock()
        # Set while nobody wants us to be open, whatever is under way.
        self._shut = asyncio.Event()
        self._shut.set()

    @property
    def link(self) -> Link:
        if self._link is None:
            raise UsageError("the client is not open: use it inside `async with`")
        return self._link

    @property
    def name(self) -> str:
        return Link.name if self._link is None else self._link.name

    @property
    def is_open(self) -> bool:
        return not self._shut.is_set()

    @property
    def modern(self) -> bool:
        return self.greeting.revision >= MODERN

    # Opening and closing

    async def open(self) -> None:
        self._shut.clear()
        try:
            async with self._mending:
                await self._establish()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        self._shut.set()
        link, self._link = self._link, None
        if link is not None:
            await link.close()
        if self._auth is not None:
            await self._auth.close()

    async def _establish(self) -> None:
        try:
            await self._connect()
            self.greeting = await self._greet()
        except Error:
            if self._shut.is_set():
                raise Closed("the client was closed") from None
            raise
        if self.modern:
            self.link.settle(self.greeting.revision)

    async def _connect(self, kind: type[StreamableHttp | HttpSse] = StreamableHttp) -> Link:
        target = self._target
        link: Link
        if isinstance(target, Here):
            link = Memory(target.handler, self._answer, principal=self._principal)
        elif isinstance(target, Command):
            link = Process(target.words, self._answer, env=target.env, cwd=target.cwd)
        else:
            kind = HttpSse if target.sse else kind
            link = kind(target.url, self._answer, headers=target.headers, auth=self._auth, pool=self._pool())
        if self._trace is not None:
            link.show(self._trace)
        link.gap = self._gap
        self._link = link
        await link.start()
        if self._shut.is_set():
            # Somebody closed us meanwhile, and may have found nothing to close yet.
            self._link = None
            await link.close()
            raise Closed("the client was closed")
        return link

    async def _replace(self, kind: type[StreamableHttp | HttpSse] = StreamableHttp) -> Link:
        if self._link is not None:
            await self._link.close()
        return await self._connect(kind)

    # Finding out which revision it is

    async def _greet(self) -> Greeting:
        if self._pinned in HANDSHAKE:
            return await self._shake_hands(self._pinned)
        known = _remembered.get(self._target.key) if self._pinned is None else None
        if known is not False:
            found = await self._discover()
            if found is not None:
                self._remember(modern=True)
                return found
            if self._pinned is not None:
                raise self._unspoken("")
        try:
            greeting = await self._shake_hands(None)
        except (ProtocolError, BadStatus):
            if known is not False:
                raise
            # It was restarted as something newer.
            self._remember(modern=None)
            if self.link.closed or isinstance(self.link, HttpSse):
                await self._replace()
            return await self._greet()
        self._remember(modern=False)
        return greeting

    async def _discover(self) -> Greeting | None:
        """None: it is a server of the handshake, and there is a connection to shake hands on."""
        if isinstance(self._target, Url) and self._target.sse:
            return None
        sure = self._pinned is not None or isinstance(self._target, Here)
        try:
            waits = PROBE_SECONDS if isinstance(self._target, Command) and not sure else self._timeout
            return await discover(self.link, self._identity, waits)
        except (ProtocolError, BadStatus) as failure:
            if self._pinned is not None and means_handshake_server(failure):
                raise self._unspoken(f": {failure}") from failure
            if sure or not means_handshake_server(failure):
                raise
        except (Closed, TimedOut):
            # Silence and a slammed door are answers only a child can give; elsewhere they say nothing.
            if sure or not isinstance(self._target, Command):
                raise
        if self.link.closed:
            await self._replace()
        return None

    def _unspoken(self, why: str) -> ProtocolError:
        """The revision that was asked for is spoken, or none is."""
        return from_wire(UnsupportedVersion.code, f"{self.link.name} does not speak {self._pinned}{why}")

    async def _shake_hands(self, revision: Revision | None) -> Greeting:
        try:
            return await initialize(self.link, self._identity, revision, self._timeout)
        except (ProtocolError, BadStatus) as failure:
            # 2025-03-26, basic/transports: only these say that the server may be of the transport before.
            if not isinstance(self.link, StreamableHttp) or failure.status not in (400, 404, 405):
                raise
            if is_modern(failure):
                raise
            try:
                await self._replace(HttpSse)
            except Error as other:
                log.debug("%s", other)
                raise failure from None
            return await initialize(self.link, self._identity, revision, self._timeout)

    def _remember(self, *, modern: bool | None) -> None:
        if isinstance(self._target, Here):
            return
        if len(_remembered) >= _MOST_REMEMBERED:
            _remembered.clear()
        if modern is None:
            _remembered.pop(self._target.key, None)
        else:
            _remembered[self._target.key] = modern

    # Asking, as often as it takes

    async def request(self, method: str, params: dict[str, Any], *, timeout: float | None, repeatable: bool) -> Raw:
        """Ask. `repeatable`: to be asked twice does the server no harm, so it is asked again when it was not heard."""
        clock = asyncio.get_running_loop().time
        until = None if timeout is None else clock() + timeout
        tries = 0
        while True:
            link: Link | None = None
            try:
                link = await self._alive_until(until, method)
                left = timeout if until is None or not tries else max(until - clock(), 0.0)
                return await link.request(method, self.dressed(params), timeout=left)
            except (TransportError, ProtocolError) as failure:
                if self._shut.is_set():
                    raise Closed(f"the client was closed ({method})") from None
                if link is not None and not tries and await self._has_changed(link, failure):
                    tries += 1
                    continue
                if link is not None and isinstance(failure, SessionLost):
                    link.channel.close(failure)
                if not _may_repeat(failure, repeatable or link is None):
                    raise _unrepeated(failure, method) from None
                reason = failure
            pause = min(LONGEST_PAUSE_SECONDS, PAUSE_SECONDS * 2**tries) * random.uniform(0.5, 1.0)
            tries += 1
            late = until is not None and clock() + pause >= until
            if tries > self._retries or late or isinstance(link, Memory):
                raise _about(reason, method)
            log.debug("%s; %s is asked again in %.2f s", reason, method, pause)
            await self._wait(pause)

    async def _wait(self, pause: float) -> None:
        """Unless somebody closes us: then there is nothing to wait for."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await self._shut.wait()
                raise Closed("the client was closed")

    async def alive(self) -> Link:
        """The link, made again first if it is broken. Nobody speaks before the two sides have greeted each other."""
        link = self.link
        return await self._reopen(link) if link.closed or self._mending.locked() else link

    async def _alive_until(self, until: float | None, method: str) -> Link:
        try:
            async with asyncio.timeout_at(until):
                return await self.alive()
        except TimeoutError:
            raise TimedOut(f"{self.name}: {method}: it could not be reached again in time") from None

    def dressed(self, params: dict[str, Any]) -> dict[str, Any]:
        """The params with what this revision wants in them."""
        if not self.modern:
            return params
        return {**params, "_meta": {**self._identity.meta(self.greeting.revision), **params.get("_meta", {})}}

    async def bears(self, link: Link | None, failure: Error, *, patient: bool) -> bool:
        """Whether it is worth asking again after this: the server is another one by now, or will be back."""
        if link is not None and await self._has_changed(link, failure):
            return True
        return patient and (_may_repeat(failure, True) or isinstance(failure, TimedOut))

    async def _has_changed(self, link: Link, failure: Error) -> bool:
        """Whether a server that refuses a request is another one by now: if so, it has been greeted anew."""
        return self._contradicts(failure) and await self._changed(link)

    def _contradicts(self, failure: Error) -> bool:
        """Whether this is how a server takes a request of the other era."""
        if self._pinned is not None or not isinstance(self._target, Url):
            return False
        if not self.modern:
            return isinstance(failure, ProtocolError) and failure.status in (400, 404)
        if isinstance(failure, BadStatus):
            return failure.status in (400, 404, 405, 406)
        return isinstance(failure, ProtocolError) and failure.status == 400 and failure.code in _WITHOUT_SESSION

    async def _changed(self, link: Link) -> bool:
        """Asked on the link there is: others may be in the middle of something on it."""
        try:
            modern = await discover(link, self._identity, self._timeout) is not None
        except (ProtocolError, BadStatus) as failure:
            modern = not means_handshake_server(failure)
        except TransportError:
            return False
        if modern == self.modern:
            return False
        self._remember(modern=None)
        await self._reopen(link, anyway=True)
        return True

    async def _reopen(self, broken: Link, *, anyway: bool = False) -> Link:
        async with self._mending:
            if self._shut.is_set():
                raise Closed("the client was closed")
            link = self.link
            # Somebody else may have mended it meanwhile; or tried, and given up.
            if not link.closed and not (anyway and link is broken):
                return link
            await link.close()
            try:
                await self._establish()
            except BaseException as failure:
                if self._link is not None:
                    self._link.channel.close(failure if isinstance(failure, Exception) else None)
                raise
        await self._reopened()
        return self.link


def _may_repeat(failure: Error, repeatable: bool) -> bool:
    # What was never sent, or turned away at the door, was not done.
    if isinstance(failure, ConnectFailed | SessionLost):
        return True
    if isinstance(failure, BadStatus):
        return repeatable and failure.status in _PASSING
    return repeatable and isinstance(failure, Closed)


def _about(failure: Error, method: str) -> Error:
    """Every failure says what it is the failure of."""
    if isinstance(failure, Closed | ConnectFailed) and method not in str(failure):
        return type(failure)(f"{method}: {failure}")
    return failure


def _unrepeated(failure: Error, method: str) -> Error:
    if not isinstance(failure, Closed):
        return failure
    return type(failure)(f"{method} was not repeated, for it may have been heard: {failure}")
