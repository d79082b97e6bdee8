"""Streamable HTTP client transport, for every protocol version.

2026-07-28: requests are stateless, headers repeat parts of the body, and closing a stream cancels its request. Earlier
versions: a session with an id, a GET stream for unsolicited messages, and resumable streams.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET, Raw, Struct

from portico.auth.errors import AuthorizationError
from portico.caching import LruCache
from portico.protocol import header_params, jsonrpc, notifications
from portico.protocol.errors import (
    ConnectError,
    ConnectionClosed,
    HttpStatusError,
    PorticoError,
    ProtocolError,
    RequestTimeout,
    SessionExpired,
    TransportError,
)
from portico.protocol.header_params import HeaderParam
from portico.protocol.jsonrpc import EMPTY_RAW, JsonRpcMessage, MalformedMessage, RequestId, object_decoder
from portico.protocol.methods import METHODS
from portico.protocol.tools import Tool
from portico.protocol.versions import FIRST_MODERN_VERSION, V2025_06_18, ProtocolVersion
from portico.rpc.call import Call, CallbackReply, Handler
from portico.rpc.channel import Channel
from portico.rpc.supervision import BackgroundTasks
from portico.transports.base import TraceCallback
from portico.transports.deadlines import closing_seconds
from portico.transports.http_client.connection import HttpClientConnection, HttpClientResponse
from portico.transports.http_client.event_streams import EVENT_STREAM_MEDIA_TYPE, EventStreamTransport
from portico.transports.http_client.pool import HeaderItems, build_post_head
from portico.transports.http_client.responses import (
    add_server_context,
    format_auth_error,
    format_id,
    is_same_id,
    is_session_lost,
    parse_retry_after,
    parse_session_id,
    reject_content_encoding,
    summarize_body,
    unwrap_result,
)
from portico.transports.http_client.timeouts import suspendable_timeout

log = logging.getLogger("portico")

JSON_MEDIA_TYPE = "application/json"
# Limit of concurrent background posts, such as responses to server requests. Each uses its own connection.
MAX_BACKGROUND_POSTS = 256
# Redirects only move a path within one origin (see `_follow_redirect`), so a longer chain is a loop.
MAX_REDIRECTS = 3
MAX_CACHED_HEADS = 1000
# Time for a server to accept a message that needs no response.
POST_TIMEOUT_SECONDS = 30.0
SESSION_DELETE_TIMEOUT_SECONDS = 2.0

# 301, 302 and 303 are not followed: clients may change POST to GET for them (RFC 9110, section 15.4), which
# would drop the message.
_REDIRECT_STATUSES = frozenset({307, 308})


class _ToolNameParams(Struct):
    name: str


_tool_name_decoder = msgspec.json.Decoder(_ToolNameParams)


class PendingHttpCall(NamedTuple):
    """Request that was sent, with the future of its response head."""

    transport: StreamableHttpTransport
    connection: HttpClientConnection
    response: asyncio.Future[HttpClientResponse]
    id: int
    body: bytes
    # The original Call, and the params that were sent.
    params: bytes
    call: Call


class StreamableHttpTransport(EventStreamTransport):
    """Connection to a server at a URL. Options: see `HttpTransportBase._configure`."""

    def __init__(self, url: str, handler: Handler, *, trace: TraceCallback | None = None, **options: Any) -> None:
        super().__init__(trace)
        self._configure(url, **options)
        self.channel = Channel(handler, self._post_in_background)
        self._session_id: str | None = None
        self._protocol_version: ProtocolVersion | None = None
        self._header_params: dict[str, tuple[HeaderParam, ...]] = {}
        self._background_tasks = BackgroundTasks()
        # Request heads of 2026-07-28 tool calls up to the length, by tool.
        self._head_cache: LruCache[str, bytes] = LruCache(MAX_CACHED_HEADS)
        self._common_headers = (
            ("Content-Type", JSON_MEDIA_TYPE),
            ("Accept", f"{JSON_MEDIA_TYPE}, {EVENT_STREAM_MEDIA_TYPE}"),
            *self._custom_headers,
        )

    @property
    def auth_generation(self) -> int:  # type: ignore[override]
        return 0 if self._auth is None else self._auth.auth_generation

    def set_protocol_version(self, protocol_version: ProtocolVersion) -> None:
        self._protocol_version = protocol_version
        self._head_cache.clear()

    def filter_callable_tools(self, tools: list[Tool]) -> list[Tool]:
        """Leave out tools with invalid header annotations, and only those (2026-07-28, basic/transports)."""
        if self._protocol_version is not None and self._protocol_version < FIRST_MODERN_VERSION:
            return tools
        sound = []
        for tool in tools:
            try:
                mirrored = header_params.parse_header_params(tool.input_schema)
            # RecursionError: a schema of a remote server may be nested arbitrarily deep, and one tool must not
            # break the list.
            except (ValueError, RecursionError) as why:
                log.warning("leaving out the tool %r of %s: %s", tool.name[:128], self.name, str(why)[:200])
                continue
            sound.append(tool)
            if mirrored:
                self._header_params[tool.name] = mirrored
            else:
                self._header_params.pop(tool.name, None)
        return sound

    # Requests

    async def __call__(self, call: Call) -> Any:
        if self.channel.closed:
            raise ConnectionClosed(f"{self.name}: the connection is closed")
        id = call.id
        if id is None:
            return await self._notify(call)
        assert isinstance(id, int)
        method = call.method
        # Params are already encoded, so the frame is assembled from bytes instead of encoding the whole message
        # again.
        body = b'{"jsonrpc":"2.0","id":%d,"method":"%b","params":%b}' % (
            id,
            method.encode(),
            bytes(call.params) or b"{}",
        )
        if self._trace is not None:
            self._trace("sent", body)
        try:
            response = await self._send_call(call, body)
        except (ProtocolError, ConnectionClosed, ConnectError) as failure:
            raise add_server_context(failure, self.name, method) from None
        except asyncio.CancelledError:
            self._cancel(call)
            raise
        return await self._read_result(response, call, body)

    def _cancel(self, call: Call) -> None:
        """Cancel a request. On 2026-07-28 closing the stream is enough; earlier versions need a notification."""
        if call.protocol_version is None and call.method != "initialize" and not self.closed:
            params = notifications.CancelledParams(request_id=call.id, reason="no longer waiting")
            self.channel.notify(notifications.CANCELLED, params)

    async def _read_result(self, response: HttpClientResponse, call: Call, body: bytes) -> Raw:
        """Return the result of a response, or of the stream it starts."""
        method, id = call.method, call.id
        assert id is not None
        try:
            if response.status in _REDIRECT_STATUSES:
                headers, about = self._headers(call)
                response = await self._follow_redirect(response, headers, body, f"{method} {about}".rstrip())
            try:
                if "content-encoding" in response.headers:
                    reject_content_encoding(response.headers["content-encoding"])
                if response.status == 200:
                    # Only `initialize` may assign a session id. A header on another response must not switch
                    # the session.
                    if method == "initialize":
                        self._session_id = parse_session_id(response)
                    if (
                        response.headers.get("content-type") != JSON_MEDIA_TYPE
                        and response.media_type == EVENT_STREAM_MEDIA_TYPE
                    ):
                        return await self._read_stream_result(response, call, modern=call.protocol_version is not None)
                data = response.body_if_complete(self._max_response_bytes)
                if data is None:
                    data = await response.read(self._max_response_bytes)
            finally:
                self._pool.release(self._url, response)
        except (ProtocolError, ConnectionClosed, ConnectError) as failure:
            raise add_server_context(failure, self.name, method) from None
        except asyncio.CancelledError:
            self._cancel(call)
            raise
        return self._result(response, data, id, method)

    # Fast path for repeated tool calls

    def begin_tool_call(self, call: Call, name: str, params: bytes) -> PendingHttpCall | None:
        """Send a 2026-07-28 tool call if its head is cached and a connection is idle. Otherwise return None."""
        head = self._head_cache.peek(name)
        # Tools with mirrored parameters have different headers per call, and a trace needs the frame before it
        # is sent.
        if head is None or name in self._header_params or self._trace is not None:
            return None
        connection = self._pool.acquire(self._url)
        if connection is None:
            return None
        id = self.new_id()
        body = b'{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":%b}' % (id, params)
        answer = connection.send_request(b"%b%d\r\n\r\n%b" % (head, len(body), body))
        return PendingHttpCall(self, connection, answer, id, body, params, call)

    def result_if_complete(self, pending: PendingHttpCall, response: HttpClientResponse) -> Raw | None:
        """Return the result of a pending call if the response is plain JSON and complete, else None."""
        headers = response.headers
        if response.status != 200 or headers.get("content-type") != JSON_MEDIA_TYPE or "content-encoding" in headers:
            return None
        try:
            data = response.body_if_complete(self._max_response_bytes)
        except ProtocolError as failure:
            self._pool.discard(pending.connection)
            raise self.add_server_context(failure) from None
        if data is None:
            return None
        self._pool.release(self._url, response)
        return self._result(response, data, pending.id, "tools/call")

    def wait_result(self, pending: PendingHttpCall, response: HttpClientResponse) -> Awaitable[Raw]:
        """Wait for the result of a pending call, whatever its response."""
        return self._read_result(response, self._to_call(pending), pending.body)

    def abandon(self, pending: PendingHttpCall) -> None:
        """Give up a pending call. Closing the stream cancels it."""
        self._pool.discard(pending.connection)

    def add_server_context(self, failure: ProtocolError | TransportError) -> PorticoError:
        return add_server_context(failure, self.name, "tools/call")

    def _to_call(self, pending_call: PendingHttpCall) -> Call:
        """Return the Call as it was sent."""
        reply = CallbackReply(pending_call.call.reply.notify)
        return Call(
            method="tools/call",
            params=Raw(pending_call.params),
            id=pending_call.id,
            protocol_version=pending_call.call.protocol_version,
            reply=reply,
        )

    def _send_call(self, call: Call, body: bytes) -> Awaitable[HttpClientResponse]:
        """Send a call. Tool calls of 2026-07-28 reuse the head of the previous call of the tool."""
        about = None
        if (
            call.method == "tools/call"
            and call.protocol_version is not None
            # With authorization each request may have another token (DPoP proofs are bound to the request), so
            # its head cannot be reused. Proxies need a head of another form.
            and self._auth is None
            and self._pool.is_direct
        ):
            with contextlib.suppress(msgspec.DecodeError):
                about = _tool_name_decoder.decode(call.params).name
        if about is None or about in self._header_params:
            headers, name = self._headers(call)
            return self._send_http_request("POST", self._url, headers, body, f"{call.method} {name}".rstrip())
        head = self._head_cache.peek(about)
        if head is None:
            head = self._head_cache[about] = build_post_head(self._url, self._headers(call)[0])
        return self._pool.post(self._url, head, body)

    def _headers(self, call: Call) -> tuple[list[tuple[str, str]], str]:
        """Return the headers of a request or notification, and the name of its tool, prompt or resource, or ""."""
        headers = list(self._common_headers)
        if call.protocol_version is None:
            return headers + self._session_headers(call.method), ""
        headers.append(("MCP-Protocol-Version", call.protocol_version))
        headers.append(("Mcp-Method", call.method))
        row = METHODS.get(call.method)
        if row is None or not row.name_param:
            return headers, ""
        members = object_decoder.decode(call.params)
        about = msgspec.json.decode(members.get(row.name_param, b"null"))
        if not isinstance(about, str):
            return headers, ""
        headers.append(("Mcp-Name", header_params.encode_header_value(about)))
        if call.method == "tools/call" and about in self._header_params:
            arguments = msgspec.json.decode(members.get("arguments", b"null"))
            for mirror in self._header_params[about]:
                value = header_params.get_argument(arguments, mirror.path)
                # Absent and null arguments have no header; `bool` is an `int`.
                if isinstance(value, str | int | float):
                    headers.append((mirror.header, header_params.format_header_value(value)))
        return headers, about

    def _session_headers(self, method: str = "") -> list[tuple[str, str]]:
        if method == "initialize":
            return []
        headers = []
        if self._session_id is not None:
            headers.append(("Mcp-Session-Id", self._session_id))
        # The header was introduced with 2025-06-18; earlier servers may reject unknown versions of it.
        if self._protocol_version is not None and self._protocol_version >= V2025_06_18:
            headers.append(("MCP-Protocol-Version", self._protocol_version))
        return headers

    async def _send(
        self, method: str, headers: HeaderItems, body: bytes = b"", operation: str = ""
    ) -> HttpClientResponse:
        if self._trace is not None and body:
            self._trace("sent", body)
        response = await self._send_http_request(method, self._url, headers, body, operation)
        return await self._follow_redirect(response, headers, body, operation, method)

    async def _follow_redirect(
        self, response: HttpClientResponse, headers: HeaderItems, body: bytes, operation: str, method: str = "POST"
    ) -> HttpClientResponse:
        """Follow redirects within the same origin only: the body may be secret, and the token is for this server."""
        for _ in range(MAX_REDIRECTS):
            if response.status not in _REDIRECT_STATUSES:
                return response
            self._pool.release(self._url, response)
            to = response.headers.get("location", "")
            target = self._url.resolve_same_origin(to)
            if target is None:
                raise HttpStatusError(
                    f"{self.name} redirects to {to[:200]!r}; if this is correct, use that URL", response.status
                )
            # Later requests use the new path immediately. The cached heads contain the old one.
            self._url = target
            self._head_cache.clear()
            response = await self._send_http_request(method, target, headers, body, operation)
        raise HttpStatusError(f"{self.name} redirects too often", response.status)

    def _result(self, response: HttpClientResponse, data: bytes, id: RequestId, method: str) -> Raw:
        status = response.status
        if self._trace is not None:
            self._trace("received", data)
        frame = jsonrpc.decode_message(data) if data.lstrip()[:1] == b"{" else None
        if status == 200 and type(frame) is JsonRpcMessage and frame.id == id and frame.result is not EMPTY_RAW:
            return frame.result
        # Checked before other errors, because 404 has this meaning only for clients that have a session.
        if self._session_id is not None and method != "initialize" and is_session_lost(status, frame, id, data):
            raise SessionExpired(f"{self.name} no longer knows the session ({method})")
        # An error response with our id comes from the MCP server itself, and says more than the status.
        if status in (401, 403) and not (isinstance(frame, JsonRpcMessage) and frame.id == id):
            raise AuthorizationError(format_auth_error(self.name, method, response, data, with_token=self._sends_token))
        if isinstance(frame, JsonRpcMessage) and frame.method is UNSET:
            # If a request could not be parsed, or was rejected earlier, its id is not in the response.
            nameless = frame.error is not UNSET and (status >= 400 or not isinstance(frame.id, int | str))
            if not is_same_id(frame.id, id) and not nameless:
                raise ProtocolError(f"{self.name} answered {method} (id {id!r}) with the id {format_id(frame.id)}")
            return unwrap_result(frame, status, parse_retry_after(response))
        if status >= 300:
            reason = f"{self.name} responded to {method} with HTTP status {status}{summarize_body(data)}"
            if status == 404 and b"endpoint" not in data:
                reason += " (is this the path of its endpoint? It is usually /mcp)"
            raise HttpStatusError(reason, status, parse_retry_after(response))
        if isinstance(frame, MalformedMessage):
            raise ProtocolError(f"{self.name} answered {method} with a malformed message: {frame.error.message}")
        reason = f"{response.media_type[:100] or 'nothing'}" if data else "no content"
        hint = (
            "; is this the URL of an MCP endpoint? Its path is usually /mcp"
            if response.media_type == "text/html"
            else ""
        )
        raise ProtocolError(
            f"{self.name} answered {method} with {reason} instead of a message (HTTP status {status}){hint}"
        )

    # Other messages

    async def _open_get_stream(self, last_id: str | None) -> HttpClientResponse:
        headers = [("Accept", EVENT_STREAM_MEDIA_TYPE), *self._custom_headers, *self._session_headers()]
        if last_id is not None:
            headers.append(("Last-Event-ID", last_id))
        return await self._send("GET", headers, operation="GET")

    async def _notify(self, call: Call) -> None:
        headers = [*self._common_headers, *self._session_headers(call.method)]
        if self._protocol_version is not None and self._protocol_version >= FIRST_MODERN_VERSION:
            headers.append(("Mcp-Method", call.method))
        await self._post(jsonrpc.encode_notification(call.method, call.params or None), headers, call.method)
        # Not earlier: before `initialized` the server has no session to open the stream for.
        if call.method == notifications.INITIALIZED:
            await self._start_get_stream()

    def _post_in_background(self, message: bytes) -> None:
        """Post a response to a server request, or a cancellation, without waiting."""
        if len(self._background_tasks) >= MAX_BACKGROUND_POSTS:
            self.channel.close(ConnectionClosed(f"{self.name} sends more requests than can be answered"))
            return
        self._start_background(self._post(message, [*self._common_headers, *self._session_headers()], "an answer"))

    async def _post(self, message: bytes, headers: HeaderItems, reason: str) -> None:
        try:
            async with suspendable_timeout(POST_TIMEOUT_SECONDS):
                response = await self._send("POST", headers, message, reason)
                try:
                    data = await response.read(64 * 1024) if response.media_type != EVENT_STREAM_MEDIA_TYPE else b""
                finally:
                    self._pool.release(self._url, response)
        except (ProtocolError, ConnectionClosed, ConnectError) as failure:
            raise add_server_context(failure, self.name, reason) from None
        except TransportError:
            raise
        except TimeoutError:
            raise RequestTimeout(f"{self.name} did not accept {reason} within {POST_TIMEOUT_SECONDS:g} s") from None
        if response.status >= 300:
            reason = f"{self.name} responded to {reason} with HTTP status {response.status}{summarize_body(data)}"
            raise HttpStatusError(reason, response.status, parse_retry_after(response))

    # Shutdown

    async def close(self) -> None:
        try:
            # "Clients that no longer need a particular session SHOULD send an HTTP DELETE" (2025-11-25,
            # basic/transports).
            if self._session_id is not None and not self.closed:
                with contextlib.suppress(PorticoError, TimeoutError):
                    async with asyncio.timeout(closing_seconds(SESSION_DELETE_TIMEOUT_SECONDS)):
                        response = await self._send("DELETE", [*self._custom_headers, *self._session_headers()])
                        self._pool.release(self._url, response)
        finally:
            self.channel.close(ConnectionClosed("the client was closed"))
            tasks = list(self._background_tasks)
            for task in tasks:
                task.cancel()
            await self._pool.close()
            if tasks:
                await asyncio.wait(tasks, timeout=closing_seconds(SESSION_DELETE_TIMEOUT_SECONDS))
