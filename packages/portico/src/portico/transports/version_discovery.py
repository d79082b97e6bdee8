"""Discovery of the protocol version of a server: the order of the requests, and the meaning of unusual responses."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from msgspec import Raw

from portico.caching import LruCache
from portico.protocol.errors import (
    ConnectionClosed,
    HttpStatusError,
    MethodNotFound,
    PorticoError,
    ProtocolError,
    RequestTimeout,
    UnsupportedProtocolVersion,
    error_from_response,
)
from portico.protocol.versions import FIRST_MODERN_VERSION, HANDSHAKE_VERSIONS, ProtocolVersion
from portico.transports.base import ClientTransport
from portico.transports.handshake import (
    ClientIdentity,
    ServerHandshake,
    accept_handshake,
    ask_for_handshake,
    discover,
    indicates_handshake_server,
    indicates_modern_server,
    initialize,
)
from portico.transports.http_client.sse import SseTransport
from portico.transports.http_client.streamable_http import StreamableHttpTransport
from portico.transports.targets import CommandTarget, InProcessTarget, Target, UrlTarget

log = logging.getLogger("portico")

# Time for a child process, which may not know `server/discover`, to respond before `initialize` is sent as well.
DISCOVER_TIMEOUT_SECONDS = 10.0

# Whether a server supports 2026-07-28 does not depend on the connection, so it is cached per process.
_modern_by_target: LruCache[str, bool] = LruCache(256)


class VersionDiscovery:
    """Negotiates with one server, with the newest version first unless a version is pinned.

    `get_transport` returns the current connection, and `reconnect` opens another one, possibly with the older
    transport.
    """

    def __init__(
        self,
        target: Target,
        identity: ClientIdentity,
        protocol_version: ProtocolVersion | None,
        timeout: float | None,
        get_transport: Callable[[], ClientTransport],
        reconnect: Callable[..., Awaitable[ClientTransport]],
    ) -> None:
        self._target = target
        self._identity = identity
        self._pinned = protocol_version
        self._timeout = timeout
        self._link = get_transport
        self._replace = reconnect

    async def negotiate(self) -> ServerHandshake:
        if self._pinned in HANDSHAKE_VERSIONS:
            return await self._initialize(self._pinned)
        is_modern = _modern_by_target.get(self._target.cache_key) if self._pinned is None else None
        if is_modern is not False:
            greeting = await self._discover()
            if greeting is not None:
                cache_server_kind(self._target, modern=greeting.protocol_version >= FIRST_MODERN_VERSION)
                return greeting
            if self._pinned is not None:
                raise self._unsupported_version_error("")
        try:
            greeting = await self._initialize(None)
        except (ProtocolError, HttpStatusError) as failure:
            if is_modern is not False:
                return await self._retry_discover(failure)
            # The server was replaced by a newer version.
            cache_server_kind(self._target, modern=None)
            if self._link().closed or isinstance(self._link(), SseTransport):
                await self._replace()
            return await self.negotiate()
        cache_server_kind(self._target, modern=False)
        return greeting

    async def _retry_discover(self, failure: ProtocolError | HttpStatusError) -> ServerHandshake:
        """Repeat `server/discover`: a slow child process has started by now and may support the newest version."""
        if not isinstance(self._target, CommandTarget) or self._link().closed:
            raise failure
        try:
            greeting = await discover(self._link(), self._identity, self._timeout)
        except PorticoError:
            greeting = None
        if greeting is None:
            raise failure
        cache_server_kind(self._target, modern=True)
        return greeting

    async def _discover(self) -> ServerHandshake | None:
        """Send `server/discover`. Return None for a handshake server; a connection for the handshake is then open."""
        if isinstance(self._target, UrlTarget) and self._target.sse:
            return None
        sure = self._pinned is not None or isinstance(self._target, InProcessTarget)
        try:
            if not isinstance(self._target, CommandTarget) or sure:
                return await discover(self._link(), self._identity, self._timeout)
            result = await self._probe_child()
            if not isinstance(result, asyncio.Future):
                return result
        except (ProtocolError, HttpStatusError) as failure:
            if self._pinned is not None and indicates_handshake_server(failure):
                raise self._unsupported_version_error(f": {failure}") from failure
            if sure or not indicates_handshake_server(failure):
                raise
        except (ConnectionClosed, RequestTimeout):
            # Silence or an exit is only conclusive for a child process. Over a network it may be a failure.
            if sure or not isinstance(self._target, CommandTarget):
                raise
        else:
            return await self._accept(result)
        if self._link().closed:
            await self._replace()
        return None

    async def _accept(self, handshake: asyncio.Future[Raw]) -> ServerHandshake:
        try:
            return await accept_handshake(self._link(), await handshake)
        except ProtocolError as failure:
            return await self._retry_discover(failure)

    async def _probe_child(self) -> ServerHandshake | asyncio.Future[Raw] | None:
        """Probe a child process, which may start slowly or ignore unknown requests.

        After `DISCOVER_TIMEOUT_SECONDS` of silence `initialize` is sent as well. A process that only started slowly
        answers both in order, so the newest version is used. If it ignores the first request, the pending handshake is
        returned.
        """
        transport = self._link()
        probe = asyncio.ensure_future(discover(transport, self._identity, self._timeout))
        handshake: asyncio.Future[Raw] | None = None
        try:
            await asyncio.wait({probe}, timeout=DISCOVER_TIMEOUT_SECONDS)
            if not probe.done():
                handshake = asyncio.ensure_future(ask_for_handshake(transport, self._identity, None, self._timeout))
                # 2025-11-25, basic/utilities/cancellation: `initialize` must not be cancelled, so it may outlive this
                # coroutine.
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

    def _unsupported_version_error(self, why: str) -> ProtocolError:
        """Return the error for a pinned version that the server does not support."""
        return error_from_response(
            UnsupportedProtocolVersion.code,
            (f"{self._link().name} does not support the protocol version {self._pinned}{why}"),
        )

    async def _initialize(self, revision: ProtocolVersion | None) -> ServerHandshake:
        try:
            return await initialize(self._link(), self._identity, revision, self._timeout)
        except (ProtocolError, HttpStatusError) as failure:
            if isinstance(failure, MethodNotFound) and isinstance(self._target, CommandTarget):
                # Every MCP server knows one of the two. `cat` and language servers, for example, do not.
                message = f"{self._link().name} is not an MCP server: it rejects server/discover and initialize"
                raise error_from_response(failure.code, message) from None
            # 2025-03-26, basic/transports: only these statuses indicate a server with the HTTP+SSE transport.
            if not isinstance(self._link(), StreamableHttpTransport) or failure.http_status not in (400, 404, 405):
                raise
            if indicates_modern_server(failure):
                raise
            try:
                await self._replace(SseTransport)
            except PorticoError as other:
                log.debug("%s", other)
                raise failure from None
            return await initialize(self._link(), self._identity, revision, self._timeout)


def _ignore_result(task: asyncio.Future[Any]) -> None:
    if not task.cancelled():
        task.exception()


def cache_server_kind(target: Target, *, modern: bool | None) -> None:
    """Cache whether a server supports the newest version. None clears the entry."""
    if isinstance(target, InProcessTarget):
        return
    if modern is None:
        _modern_by_target.pop(target.cache_key, None)
    else:
        _modern_by_target[target.cache_key] = modern
