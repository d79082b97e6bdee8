"""Connection to one server, as a Handler: opened, negotiated, and reopened when it breaks.

Both the client, which wraps it, and the server, which mounts it, build on this module.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial
from types import CoroutineType
from typing import Any, cast

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from portico.caching import LruCache
from portico.protocol import jsonrpc, meta as metas, notifications
from portico.protocol.capabilities import unsupported_methods as undeclared_by
from portico.protocol.content import EmptyResult
from portico.protocol.errors import (
    ConnectionClosed,
    HeaderMismatch,
    HttpStatusError,
    InvalidRequest,
    MethodNotFound,
    PorticoError,
    ProtocolError,
    RequestTimeout,
    SessionExpired,
    TransportError,
    UsageError,
)
from portico.protocol.jsonrpc import object_decoder
from portico.protocol.meta import NO_CAPABILITIES, ClientCapabilities, Implementation, ProgressToken
from portico.protocol.methods import LONG_LIVED_METHODS
from portico.protocol.subscriptions import (
    SubscriptionFilter,
    SubscriptionsAcknowledgedParams,
    SubscriptionsListenParams,
)
from portico.protocol.tools import ListToolsResult
from portico.protocol.versions import FIRST_MODERN_VERSION, LATEST_PROTOCOL_VERSION, ProtocolVersion
from portico.rpc.call import Call, CallbackReply, get_capabilities
from portico.rpc.observers import OBSERVERS, notify_session_closed, send_observed
from portico.rpc.trace_context import propagate_trace_context
from portico.telemetry import start_telemetry
from portico.transports.base import ClientTransport, InMemoryTransport, TraceCallback
from portico.transports.deadlines import Deadline, DeadlineScheduler
from portico.transports.event_loop import LifespanTask
from portico.transports.handshake import ClientIdentity, ServerHandshake, discover, indicates_handshake_server
from portico.transports.http_client.base import AuthenticatedTransport
from portico.transports.http_client.pool import HttpConnectionPool
from portico.transports.http_client.sse import SseTransport
from portico.transports.http_client.streamable_http import PendingHttpCall, StreamableHttpTransport
from portico.transports.http_client.timeouts import make_suspendable
from portico.transports.notification_router import NotificationRouter
from portico.transports.process import ProcessTransport
from portico.transports.retry import add_method_context, is_retryable, not_retried_error
from portico.transports.targets import CommandTarget, InProcessTarget, Target, UrlTarget
from portico.transports.version_discovery import VersionDiscovery, cache_server_kind

log = logging.getLogger("portico")

DEFAULT_TIMEOUT_SECONDS = 60.0
DEFAULT_RETRIES = 4
# Exponential backoff between retries.
INITIAL_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS = 0.1, 5.0
# Longest delay requested by a server (Retry-After) that is honored.
MAX_RETRY_AFTER_SECONDS = 60.0
# Codes with which handshake servers answer a request without a session.
_MISSING_SESSION_CODES = frozenset({InvalidRequest.code, -32000, -32001})

# `_meta` values that are cached, and the size of one.
_MAX_CACHED_METAS = 256
_MAX_CACHED_META_BYTES = 4096

_CONNECTION_META_KEYS = frozenset(
    {
        metas.PROTOCOL_VERSION_META_KEY,
        metas.CLIENT_CAPABILITIES_META_KEY,
        metas.CLIENT_INFO_META_KEY,
        metas.LOG_LEVEL_META_KEY,
        "progressToken",
    }
)


def _answer_ping(call: Call) -> Any:
    """Answer `ping`, as a client without handlers does. Reject all other requests."""
    if call.id is None:
        return None
    if call.method == "ping":
        return EmptyResult()
    raise MethodNotFound.of(call.method)


def fill_missing_uri(call: Call, result: Raw) -> Raw:
    """Return the result of `resources/read` with the requested URI in contents that lack one.

    Every protocol version requires a `uri`, but some servers omit it. The requested URI is correct in that case, and
    clients reject the contents without it.
    """
    if b'"uri"' in bytes(result):
        return result
    try:
        inside: dict[str, Any] = msgspec.json.decode(result)
        params = msgspec.json.decode(call.params)
        contents = [{"uri": params["uri"], **item} for item in inside["contents"]]
    except (ValueError, TypeError, KeyError, RecursionError):
        return result  # not a valid result; it is rejected later
    return Raw(jsonrpc.encode({**inside, "contents": contents}))


class RequestMetaEncoder:
    """Encoder of the `_meta` of one connection's requests. Encodes the constant part once."""

    def __init__(self, identity: ClientIdentity, protocol_version: ProtocolVersion) -> None:
        self._identity = identity
        self._revision = protocol_version
        self._modern = protocol_version >= FIRST_MODERN_VERSION
        self._own = jsonrpc.encode(identity.build_meta(protocol_version)) if self._modern else b"{}"
        self._others: LruCache[int, tuple[ClientCapabilities, str | None, bytes]] = LruCache(_MAX_CACHED_METAS)

    def encode_for(self, call: Call) -> bytes:
        """Return the `_meta` of a Call. A forwarded Call declares the capabilities of its original client; these are
        cached.
        """
        able, level = call.capabilities, call.log_level
        if not self._modern or (able is NO_CAPABILITIES and level is None):
            return self._own
        level = level or self._identity.log_level
        cached = self._others.peek(id(able))
        if cached is not None and cached[0] is able and cached[1] == level:
            return cached[2]
        own = able
        if able is NO_CAPABILITIES:
            own = self._identity.capabilities
        elif self._identity.capabilities.experimental:
            # What the forwarding side does itself, whatever its client supports.
            experimental = {**(able.experimental or {}), **self._identity.capabilities.experimental}
            own = replace(able, experimental=experimental)
        identity = ClientIdentity(self._identity.info, own, level)  # type: ignore[arg-type]
        meta = jsonrpc.encode(identity.build_meta(self._revision))
        self._others[id(able)] = able, level, meta
        return meta

    def add_to_params(self, call: Call, progress_token: ProgressToken | None) -> Raw:
        """Return the params with the `_meta` of this protocol version. Members of the Call's own `_meta` take
        precedence.
        """
        if not self._modern and progress_token is None:
            return call.params
        params, meta = bytes(call.params) or b"{}", self.encode_for(call)
        if progress_token is not None:
            meta = (
                meta[:-1] + (b"," if len(meta) > 2 else b"") + b'"progressToken":%b}' % jsonrpc.encode(progress_token)
            )
        # JSON allows escapes in keys. `find` is cheaper than `in`, which tries to convert bytes to an integer first.
        if params.find(b'"_meta"') >= 0 or params.find(b"\\u") >= 0:
            members: dict[str, Any] = dict(object_decoder.decode(params))
            members["_meta"] = {**object_decoder.decode(meta), **object_decoder.decode(members.get("_meta", b"{}"))}
            return Raw(jsonrpc.encode(members))
        return Raw(params[:-1] + (b"," if len(params) > 2 else b"") + b'"_meta":' + meta + b"}")


# `_meta` values that only contain connection data. Bounded, and never with a progress token.
_connection_metas: LruCache[bytes, None] = LruCache(_MAX_CACHED_METAS)


def is_connection_meta(meta: bytes, *, cache: bool) -> bool:
    """Return whether a `_meta` contains only data that each connection sets itself."""
    if meta in _connection_metas:
        return True
    if not meta or not object_decoder.decode(meta).keys() <= _CONNECTION_META_KEYS:
        return False
    if cache and len(meta) <= _MAX_CACHED_META_BYTES:
        _connection_metas[meta] = None
    return True


def strip_connection_meta(call: Call) -> Call:
    """Return a forwarded Call without the `_meta` of its original connection: version, client, progress token."""
    params = bytes(call.params)
    if params.find(b'"_meta"') < 0 and params.find(b"\\u") < 0:
        return call
    members: dict[str, Any] = dict(object_decoder.decode(call.params))
    meta = object_decoder.decode(members.pop("_meta", b"{}"))
    own = {name: value for name, value in meta.items() if name not in _CONNECTION_META_KEYS}
    return replace(call, params=Raw(jsonrpc.encode({**members, "_meta": own} if own else members)))


async def _noop() -> None:
    """Do nothing after a reconnect."""


class _IncomingHandler:
    """Handler of the messages that a server sends besides results. Notifications are handled immediately, in order."""

    def __init__(self, start: Callable[[Call], Any]) -> None:
        self.start = start

    async def __call__(self, call: Call) -> Any:
        result = self.start(call)
        return await result if type(result) is CoroutineType else result


class Upstream:
    """Handler that forwards calls to a server and reconnects when the server exited, restarted, or lost the session.

    `client_handler` receives the server's requests, and notifications that belong to no Call. It returns a result or a
    coroutine.
    """

    def __init__(
        self,
        target: Target,
        client_handler: Callable[[Call], Any] = _answer_ping,
        identity: ClientIdentity | None = None,
        *,
        protocol_version: ProtocolVersion | None = None,
        ignore_capabilities: bool = False,
        timeout: float | None = DEFAULT_TIMEOUT_SECONDS,
        retries: int = DEFAULT_RETRIES,
        max_retry_after: float = MAX_RETRY_AFTER_SECONDS,
        auth: AuthenticatedTransport | None = None,
        pool_factory: Callable[[], HttpConnectionPool] = HttpConnectionPool,
        principal: Any = None,
        trace: TraceCallback | None = None,
        on_reconnected: Callable[[], Awaitable[None]] = _noop,
        on_missed_messages: Callable[[], None] = lambda: None,
        shown_as: str | None = None,
    ) -> None:
        self.target = target
        # Name of the server in error messages, if its address must not appear in them.
        self._display_name = shown_as
        self.client_identity = identity or ClientIdentity(Implementation("portico", "0"))
        self._protocol_version = protocol_version
        self._ignore_capabilities = ignore_capabilities
        self._timeout = timeout
        self._retries = retries
        self._max_retry_after = max_retry_after
        self._client_handler = client_handler
        self._incoming = _IncomingHandler(self._receive)
        self._auth = auth
        # Creates the connection pool of an HTTP transport.
        self.pool_factory = pool_factory
        self._principal = principal
        self._trace = trace
        self._notify_reconnected = on_reconnected
        self._on_gap = on_missed_messages
        self._link: ClientTransport | None = None
        # Why the last connection may have left requests unanswered.
        self.timeout_hint = ""
        self.name = ClientTransport.name
        self._reconnect_lock = asyncio.Lock()
        # Set unless the connection is meant to be open.
        self._closing = asyncio.Event()
        # When the connection was opened.
        self._opened: float | None = None
        self._closing.set()
        self._notification_router = NotificationRouter()
        # Set when a session has ended: a Call that listens in it has to subscribe again.
        self._session_over = asyncio.Event()
        # Deadlines of the active calls, and the number of active pauses.
        self._deadlines = DeadlineScheduler()
        self._timeout_pauses = 0
        # Lifespan of the server, if it runs in this process.
        self._host: LifespanTask | None = None
        self._version_discovery = VersionDiscovery(
            target, self.client_identity, protocol_version, timeout, lambda: self.transport, self._replace
        )
        self._set_handshake(ServerHandshake(protocol_version or LATEST_PROTOCOL_VERSION))

    def _set_handshake(self, greeting: ServerHandshake) -> None:
        self.handshake = greeting
        self.modern = greeting.protocol_version >= FIRST_MODERN_VERSION
        # Methods that are not sent because the server does not declare the capability they need, with that capability.
        self._unsupported_methods = (
            {} if self._ignore_capabilities else undeclared_by(greeting.capabilities, greeting.protocol_version)
        )
        self._request_meta = RequestMetaEncoder(self.client_identity, greeting.protocol_version)

    def set_log_level(self, level: Any) -> None:
        self.client_identity.log_level = level
        self._request_meta = RequestMetaEncoder(self.client_identity, self.handshake.protocol_version)

    def set_trace(self, trace: TraceCallback | None) -> None:
        """Pass every message to another function from now on, or to none."""
        self._trace = trace
        if self._link is not None:
            self._link.set_trace(trace)

    @property
    def transport(self) -> ClientTransport:
        if self._link is None:
            raise UsageError("the client is not open: use it inside `async with`")
        return self._link

    @property
    def is_open(self) -> bool:
        return not self._closing.is_set()

    # Opening and closing. Both may be called from any task.

    @contextlib.asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        """Open the connection for the lifespan of a server that mounts it."""
        await self.open()
        try:
            yield
        finally:
            await self.close()

    async def open(self) -> None:
        start_telemetry(self.client_identity.info.name)
        await self._enter_lifespan()
        self._closing.clear()
        try:
            async with self._reconnect_lock:
                await self._connect_and_negotiate()
        except BaseException:
            await self.close()
            raise
        self._opened = time.monotonic()

    async def close(self) -> None:
        self._closing.set()
        opened, self._opened = self._opened, None
        if OBSERVERS and opened is not None:
            over_http = isinstance(self.target, UrlTarget)
            notify_session_closed(self.name, self.handshake.protocol_version, over_http, time.monotonic() - opened)
        self._end_session()
        transport, self._link = self._link, None
        if transport is not None:
            self.timeout_hint = transport.timeout_hint
            await transport.close()
        if self._auth is not None:
            await self._auth.close()
        host, self._host = self._host, None
        if host is not None:
            await host.exit()
        self._deadlines.close()

    async def _enter_lifespan(self) -> None:
        """Enter the lifespan of a server in this process. It ends with the connection."""
        if not isinstance(self.target, InProcessTarget):
            return
        self._host = LifespanTask(get_capabilities(self.target.handler).lifespan)
        try:
            await self._host.entered
        except BaseException:
            self._host = None
            raise

    async def _connect_and_negotiate(self) -> None:
        try:
            await self._connect()
            self._set_handshake(await self._version_discovery.negotiate())
        except PorticoError:
            if self._closing.is_set():
                raise ConnectionClosed("the client was closed") from None
            raise
        if self.modern:
            self.transport.set_protocol_version(self.handshake.protocol_version)

    async def _connect(
        self, kind: type[StreamableHttpTransport | SseTransport] = StreamableHttpTransport
    ) -> ClientTransport:
        target, trace = self.target, self._trace
        transport: ClientTransport
        if isinstance(target, InProcessTarget):
            transport = InMemoryTransport(target.handler, self._incoming, principal=self._principal, trace=trace)
        elif isinstance(target, CommandTarget):
            transport = ProcessTransport(target.words, self._incoming, env=target.env, cwd=target.cwd, trace=trace)
        else:
            kind = SseTransport if target.sse else kind
            options: dict[str, Any] = {"headers": target.headers, "auth": self._auth, "pool": self.pool_factory()}
            transport = kind(target.url, self._incoming, trace=trace, **options)
        transport.on_missed_messages = self._on_missed_messages
        self._link, self.name = transport, transport.name
        if self._display_name is not None:
            transport.name = self._display_name
        await transport.start()
        if self._closing.is_set():
            # `close` was called while the transport started, when there was nothing to close yet.
            self._link = None
            await transport.close()
            raise ConnectionClosed("the client was closed")
        return transport

    def _on_missed_messages(self) -> None:
        if self._link is not None and self._link.closed:
            self._end_session()
        self._on_gap()

    def _end_session(self) -> None:
        self._session_over.set()
        self._session_over = asyncio.Event()

    async def _replace(
        self, kind: type[StreamableHttpTransport | SseTransport] = StreamableHttpTransport
    ) -> ClientTransport:
        if self._link is not None:
            await self._link.close()
        return await self._connect(kind)

    # Handling calls, as a Handler and for the client

    async def __call__(self, call: Call) -> Any:
        """Return the result of a Call, as the server sent it. `tools/call` is not repeated if the connection breaks."""
        if call.id is None:
            return await (await self.ensure_connected())(call)
        call = propagate_trace_context(strip_connection_meta(call))
        if call.method in LONG_LIVED_METHODS:
            return await self._listen(call)
        if call.method == "tools/list":
            return await self._list_tools(call)
        try:
            # `tasks/result` waits for the end of a task, however long that takes.
            seconds = self._timeout if call.method != "tasks/result" else None
            return await self.request(call, seconds, call.method != "tools/call")
        except HeaderMismatch:
            if call.method != "tools/call":
                raise
            # The headers depend on the tools' schemas, so the tools have to be listed first (2026-07-28,
            # basic/transports).
            await self._list_tools(Call(method="tools/list", params=Raw(b"{}"), id=0))
            return await self.request(call, self._timeout, False)

    def begin_tool_call(self, call: Call, name: str, params: bytes) -> PendingHttpCall | None:
        """Send a tool call on the fast path. Return None if the fast path is not available.

        Intended for gateways that forward many calls. `params` must not contain `_meta`. The caller has to await
        `finish_tool_call`.
        """
        transport = self._link
        if type(transport) is not StreamableHttpTransport or not self.modern or self._auth is not None:
            return None
        # A call with a progress token needs an entry in the notification router, which the regular path makes.
        if transport.channel.closed or self._reconnect_lock.locked() or call.progress_token is not None:
            return None
        return transport.begin_tool_call(
            call, name, b'%b,"_meta":%b}' % (params[:-1], self._request_meta.encode_for(call))
        )

    async def finish_tool_call(self, pending: PendingHttpCall, params: Raw) -> Raw:
        """Return the result of a call that `begin_tool_call` sent with these params."""
        transport, response = pending.transport, None
        try:
            with Deadline(self._deadlines, self._timeout):
                response = await pending.response
                result = transport.result_if_complete(pending, response)
                return await transport.wait_result(pending, response) if result is None else result
        except HeaderMismatch:
            pass
        except (TransportError, ProtocolError) as failure:
            # Raises unless the server was renegotiated: the tool may have run, so the call is never repeated
            # otherwise.
            await self._check_retry(transport, pending.call.method, transport.add_server_context(failure), 0, False)
        except TimeoutError:
            raise RequestTimeout(
                f"{self.name}: tools/call was not answered within {self._timeout:g} s{transport.timeout_hint}"
            ) from None
        finally:
            # Also when this task is cancelled: the connection has an unread response and must not return to the
            # pool.
            if response is None:
                transport.abandon(pending)
        # The server rejected the request before executing it, so repeat it on the regular path.
        return await self.__call__(replace(pending.call, params=params, read=None))  # type: ignore[no-any-return]

    async def _list_tools(self, call: Call) -> Raw:
        """Return a page of tools, without those that cannot be called over this transport."""
        result = await self.request(call, self._timeout, True)
        try:
            page = msgspec.json.decode(result, type=ListToolsResult)
        except (msgspec.DecodeError, RecursionError):
            return result
        usable = self.transport.filter_callable_tools(page.tools)
        if len(usable) == len(page.tools):
            return result
        return Raw(jsonrpc.encode({**object_decoder.decode(result), "tools": usable}))

    async def request(self, call: Call, timeout: float | None, idempotent: bool, *, observed: bool = False) -> Raw:
        """Send a request and return its result.

        An `idempotent` request is repeated if the connection breaks, even though the server may have received it.
        """
        if OBSERVERS and not observed:
            ask = partial(self.request, timeout=timeout, idempotent=idempotent, observed=True)
            return cast("Raw", await send_observed(call, self.name, ask))
        reached = False
        tries = 0
        try:
            # A deadline without an end cannot be paused, so it is not registered.
            limit = Deadline(self._deadlines if timeout is not None else DeadlineScheduler(), timeout)
            with limit if self._auth is None else make_suspendable(limit):
                while True:
                    transport = self._link
                    try:
                        # While another request reconnects, this one has to wait: the new connection is not
                        # negotiated yet.
                        if transport is None or transport.channel.closed or self._reconnect_lock.locked():
                            transport = None
                            transport = await self.ensure_connected()
                        reached = True
                        result = await self.send(transport, call)
                        return result if call.method != "resources/read" else fill_missing_uri(call, result)
                    except (TransportError, ProtocolError) as failure:
                        reason = await self._check_retry(transport, call.method, failure, tries, idempotent)
                        reached = False
                    tries += 1
                    if reason is not None:
                        await self._back_off(transport, call.method, reason, tries, limit)
        except TransportError:
            raise
        except TimeoutError:
            message = f"{call.method}: could not reconnect in time"
            if reached and self._link is not None:
                message = f"{call.method} was not answered within {timeout:g} s{self._link.timeout_hint}"
            raise RequestTimeout(f"{self.name}: {message}") from None

    @contextlib.contextmanager
    def pause_timeouts(self) -> Iterator[None]:
        """Pause the timeouts of all active calls while a user answers a request of the server, then restart them."""
        self._timeout_pauses += 1
        self._reschedule_deadlines(None)
        try:
            yield
        finally:
            self._timeout_pauses -= 1
            if not self._timeout_pauses and self._timeout is not None:
                self._reschedule_deadlines(asyncio.get_running_loop().time() + self._timeout)

    def _reschedule_deadlines(self, when: float | None) -> None:
        for limit in list(self._deadlines.deadlines):
            limit.reschedule(when)

    def send(self, transport: ClientTransport, call: Call) -> Awaitable[Raw]:
        """Send one Call over one transport. Raises `MethodNotFound` for capabilities that the server does not declare
        (basic/lifecycle, Operation).
        """
        if call.method in self._unsupported_methods:
            raise MethodNotFound(
                f"{transport.name} does not declare {self._unsupported_methods[call.method]}, which {call.method} "
                "requires; pass ignore_capabilities=True to send it anyway"
            )
        id, token = transport.new_id(), call.progress_token
        if token in self._notification_router.by_progress_token:
            # Two callers chose the same token; make it unique for the server.
            token = f"{token}-{id}"
        revision = self.handshake.protocol_version if self.modern else None
        sent = Call(
            method=call.method,
            params=self._request_meta.add_to_params(call, token),
            id=id,
            protocol_version=revision,
            progress_token=call.progress_token,
            # The original Call may continue after this response: in another round, or at the server that received it.
            reply=CallbackReply(call.reply.notify),
        )
        if token is None and call.method not in LONG_LIVED_METHODS:
            return transport(sent)
        notified = self._notification_router
        registry, key = (notified.by_progress_token, token) if token is not None else (notified.by_subscription_id, id)
        return self._send_with_notifications(transport, sent, registry, key)

    async def _send_with_notifications(
        self, transport: ClientTransport, sent: Call, registry: dict[Any, Call], key: Any
    ) -> Raw:
        """Send a request that receives notifications before its result."""
        registry[key] = sent
        try:
            return await transport(sent)  # type: ignore[no-any-return]
        finally:
            del registry[key]

    async def _check_retry(
        self, transport: ClientTransport | None, method: str, failure: PorticoError, tries: int, repeatable: bool
    ) -> PorticoError | None:
        """Raise the failure if it is final. Return None if the server was renegotiated and can be retried now."""
        if self._closing.is_set():
            raise ConnectionClosed(f"the client was closed ({method})") from None
        if transport is not None and not tries and await self._renegotiate_after(transport, failure):
            return None
        if transport is not None and isinstance(failure, SessionExpired):
            transport.channel.close(failure)
        if not is_retryable(failure, repeatable or transport is None):
            raise not_retried_error(failure, method) from None
        return failure

    async def _back_off(
        self, transport: ClientTransport | None, method: str, reason: PorticoError, tries: int, limit: Deadline
    ) -> None:
        """Wait before the next attempt. Raises `reason` if there is none."""
        seconds = min(MAX_BACKOFF_SECONDS, INITIAL_BACKOFF_SECONDS * 2 ** (tries - 1)) * random.uniform(0.5, 1.0)
        # Jitter spreads the retries of many clients after an outage.
        wish: float = getattr(reason, "retry_after", None) or 0.0
        seconds = max(seconds, wish)
        until = limit.expires_at
        late = wish > self._max_retry_after or (
            until is not None and asyncio.get_running_loop().time() + seconds >= until
        )
        # A server in this process does not recover by waiting.
        if tries > self._retries or late or isinstance(transport, InMemoryTransport):
            raise add_method_context(reason, method)
        log.debug("%s; retrying %s in %.2f s", reason, method, seconds)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._closing.wait()
                raise ConnectionClosed("the client was closed")

    async def ensure_connected(self) -> ClientTransport:
        """Return the transport, reconnecting first if it is broken. Nothing is sent before negotiation completes."""
        transport = self.transport
        return await self._reconnect(transport) if transport.closed or self._reconnect_lock.locked() else transport

    async def should_retry(
        self, transport: ClientTransport | None, failure: PorticoError, *, retry_temporary: bool
    ) -> bool:
        """Return whether to retry after `failure`: the server changed its protocol version, or the failure is
        temporary.
        """
        if transport is not None and await self._renegotiate_after(transport, failure):
            return True
        return retry_temporary and (is_retryable(failure, True) or isinstance(failure, RequestTimeout))

    async def _renegotiate_after(self, transport: ClientTransport, failure: PorticoError) -> bool:
        """Renegotiate if the failure suggests a changed protocol version. Return whether the version changed."""
        return self._suggests_version_change(failure) and await self._renegotiate(transport)

    def _suggests_version_change(self, failure: PorticoError) -> bool:
        """Return whether a failure is typical of a server with another kind of protocol version."""
        # A pinned version is never changed, and a process cannot be upgraded while its pipe is open.
        if self._protocol_version is not None or not isinstance(self.target, UrlTarget):
            return False
        if not self.modern:
            return isinstance(failure, ProtocolError) and failure.http_status in (400, 404)
        if isinstance(failure, HttpStatusError):
            return failure.http_status in (400, 404, 405, 406)
        return (
            isinstance(failure, ProtocolError) and failure.http_status == 400 and failure.code in _MISSING_SESSION_CODES
        )

    async def _renegotiate(self, transport: ClientTransport) -> bool:
        """Query the server's protocol version on the existing connection, on which other requests may be active."""
        try:
            modern = await discover(transport, self.client_identity, self._timeout) is not None
        except (ProtocolError, HttpStatusError) as failure:
            modern = not indicates_handshake_server(failure)
        except TransportError:
            return False
        if modern == self.modern:
            return False
        # The cached kind of this server was wrong, and the negotiation below must not use it.
        cache_server_kind(self.target, modern=None)
        await self._reconnect(transport, force=True)
        return True

    async def _reconnect(self, broken: ClientTransport, *, force: bool = False) -> ClientTransport:
        async with self._reconnect_lock:
            if self._closing.is_set():
                raise ConnectionClosed("the client was closed")
            transport = self.transport
            # Another request may have reconnected in the meantime.
            if not transport.closed and not (force and transport is broken):
                return transport
            await transport.close()
            try:
                await self._connect_and_negotiate()
            except BaseException as failure:
                if self._link is not None:
                    self._link.channel.close(failure if isinstance(failure, Exception) else None)
                raise
        self._end_session()
        await self._notify_reconnected()
        return self.transport

    # Server messages other than results

    def _receive(self, notice: Call) -> Any:
        if notice.id is None and self._notification_router.dispatch(notice):
            return None
        return self._client_handler(notice)

    async def _listen(self, call: Call) -> Any:
        """Implement `subscriptions/listen` for every version. In a handshake session, the Call receives all
        notifications.
        """
        transport = await self.ensure_connected()
        if self.modern:
            return await self.send(transport, call)
        over = self._session_over
        listen_filter = msgspec.json.decode(call.params, type=SubscriptionsListenParams).notifications
        uris = listen_filter.resource_subscriptions or []
        if "resources/subscribe" in self._unsupported_methods:
            uris = []
        # Before the subscriptions are sent: the first notification may arrive together with a response.
        self._notification_router.session_listeners.append(call)
        try:
            for uri in uris:
                await self.request(_subscription("resources/subscribe", uri), self._timeout, True)
            honoured = SubscriptionFilter(
                listen_filter.tools_list_changed,
                listen_filter.prompts_list_changed,
                listen_filter.resources_list_changed,
                uris or None,
            )
            call.reply.notify(
                notifications.SUBSCRIPTIONS_ACKNOWLEDGED, SubscriptionsAcknowledgedParams(notifications=honoured)
            )
            await over.wait()
        finally:
            self._notification_router.session_listeners.remove(call)
            # Unsubscribe only on the connection that subscribed; a new session does not know these
            # subscriptions.
            for uri in uris if self.is_open and not transport.closed and transport is self._link else ():
                with contextlib.suppress(PorticoError):
                    await self.request(_subscription("resources/unsubscribe", uri), self._timeout, False)
        raise ConnectionClosed("the client was closed" if self._closing.is_set() else f"{self.name} ended the session")


def _subscription(method: str, uri: str) -> Call:
    return Call(method=method, params=Raw(jsonrpc.encode({"uri": uri})), id=0)
