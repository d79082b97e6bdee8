"""Stateless requests of 2026-07-28 over HTTP. The response is JSON unless notifications precede it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import ceil
from time import time
from typing import Any

from msgspec import UNSET

from portico.protocol import jsonrpc, notifications
from portico.protocol.errors import HeaderMismatch
from portico.protocol.header_params import HeaderParam
from portico.protocol.jsonrpc import JsonRpcMessage, RequestId
from portico.protocol.methods import LONG_LIVED_METHODS, METHODS
from portico.protocol.versions import MODERN_VERSIONS
from portico.rpc.call import Call, Reply, cancel_request_task, get_capabilities
from portico.rpc.channel import subscription_ended_params
from portico.rpc.dispatcher import Dispatcher, PeerInfo
from portico.rpc.identity import client_network
from portico.transports.http_server import headers as http, sse
from portico.transports.http_server.cluster_hooks import ClusterHooks
from portico.transports.http_server.messages import (
    JSON_HEADERS,
    MAX_UNREAD_BYTES,
    HttpRequest,
    HttpResponse,
    ResponseWriter,
    TrafficCounters,
)

# Error codes with a specific HTTP status. Other errors of a handler are sent with status 200.
HTTP_STATUS_BY_CODE = {-32700: 400, -32600: 400, -32601: 404, -32020: 400, -32021: 400, -32022: 400}


ScopeErrorFactory = Callable[[HttpRequest, frozenset[str], RequestId], HttpResponse | None]


class StatelessRequestHandler:
    """Serves stateless requests, and tracks the active ones."""

    def __init__(
        self, dispatcher: Dispatcher, header_params: Mapping[str, Sequence[HeaderParam]], traffic: TrafficCounters
    ) -> None:
        self.dispatcher = dispatcher
        self.traffic = traffic
        self.replies: set[HttpReply] = set()
        self._mirrored = header_params
        # Creates the response for a client that lacks scopes.
        self.scope_error: ScopeErrorFactory | None = None
        self._hides = get_capabilities(dispatcher.handler).directory.is_hidden
        self.in_flight_by_client = traffic.in_flight_by_client
        # The other processes that serve the same clients.
        self.cluster: ClusterHooks | None = None

    def handle_post(
        self, frame: JsonRpcMessage, request: HttpRequest, writer: ResponseWriter, located: bool = False
    ) -> None:
        if (
            self.cluster is not None
            and not located
            and (b'"requestState"' in request.body or b'"taskId"' in request.body)
        ):
            # Another process may hold the suspended call or task.
            again = partial(self.handle_post, frame, request, writer, located=True)
            if self.cluster.route_to_suspended_call(bytes(frame.params), request, writer, again):
                return
        if frame.id is UNSET:
            # 2026-07-28 has no client notifications over HTTP, but the specification requires accepting them.
            writer.respond(HttpResponse(202, request.cors))
            return
        reply = HttpReply(self, writer, request, frame.id)  # type: ignore[arg-type]
        sender = PeerInfo(request.principal, request.headers, request.peer)
        message = self.dispatcher.dispatch(frame, reply, sender, True, self._validate_headers)
        if message is not None:
            reply.send(message)

    def _validate_headers(self, call: Call) -> None:
        """Check that the headers match the body."""
        # Invalid params are reported by the method itself.
        name = None if call.read is None else METHODS[call.method].get_name(call.read[1])
        headers = call.headers
        # Clients repeat the same head, mostly with the same values.
        if headers.validated_body != (call.protocol_version, call.method, name):  # type: ignore[union-attr]
            http.validate_request_headers(call, name)
        if self._mirrored and call.method == "tools/call" and call.protocol_version in MODERN_VERSIONS:
            mirrored = self._mirrored.get(name or "")
            if mirrored is not None:
                self._validate_param_headers(call, name or "", mirrored)

    def _validate_param_headers(self, call: Call, name: str, mirrored: Sequence[HeaderParam]) -> None:
        try:
            http.validate_param_headers(call, mirrored)
        except HeaderMismatch:
            # The caller must not learn of a hidden tool: let the handler report it as unknown.
            if not self._hides(call, "tool", name):
                raise

    def send_keep_alives(self) -> None:
        now = time()
        for reply in list(self.replies):
            if reply.is_token_expired(now):
                # The token has expired. A client with a new token can subscribe again.
                reply.end_subscription()
            else:
                reply.send_keep_alive()

    def end_subscriptions(self, matches: Callable[[Any], bool] = lambda principal: True) -> list[asyncio.Task[Any]]:
        """End all subscriptions, which never end by themselves. Return all active tasks."""
        for reply in self.replies:
            if not reply.is_active_call and matches(reply.principal):
                reply.end_subscription()
        return [reply.task for reply in self.replies]

    def close(self) -> None:
        for reply in list(self.replies):
            reply.on_disconnect()


class HttpReply(Reply):
    """Reply of one request: JSON, or events once a notification was sent."""

    task: asyncio.Task[Any]

    def __init__(
        self, requests: StatelessRequestHandler, writer: ResponseWriter, request: HttpRequest, id: RequestId
    ) -> None:
        self.id = id
        self._requests = requests
        self._writer = writer
        self._request = request
        # Whether it is active work. A subscription only waits.
        self.is_active_call = True
        # Set on the instance, not on the class: attribute lookup is faster, and this is the hot path.
        self._started = self.closed = self.cancelled = False
        self.error_code = self.response_bytes = 0
        self.missing_scopes = self.retry_after = None

    def attach_task(self, call: Call, task: asyncio.Task[Any]) -> None:
        """Count the request, and cancel it if the client disconnects."""
        # The Call is not stored: it references its Reply, and the cycle would have to wait for the garbage collector.
        self.task = task
        self._writer.on_close = self.on_disconnect
        requests = self._requests
        requests.replies.add(self)
        if call.method in LONG_LIVED_METHODS:
            self.is_active_call = False
        else:
            network = self._network = client_network(self._request.peer)
            requests.in_flight_by_client[network] = requests.in_flight_by_client.get(network, 0) + 1

    @property
    def principal(self) -> Any:
        return self._request.principal

    def is_token_expired(self, now: float) -> bool:
        """Return whether this is a subscription whose token has expired."""
        until = self._request.until
        return not self.is_active_call and until is not None and now >= until

    def end_subscription(self) -> None:
        # The specification is inconsistent: one page requires a cancellation, another a result. Send both; the result
        # comes last because it ends the stream.
        self.notify(notifications.CANCELLED, subscription_ended_params(self.id))
        cancel_request_task(self, self.task)

    def on_disconnect(self) -> None:
        """Cancel the request: closing the connection is a cancellation (basic/transports)."""
        self.cancel()
        cancel_request_task(self, self.task)

    def _notify(self, method: str, params: Any) -> None:
        writer = self._writer
        if not self._started:
            if method in notifications.DROPPABLE and not http.accepts_event_stream(self._request.headers):
                return
            self._started = True
            writer.start(200, (*sse.EVENT_STREAM_HEADERS, *self._request.cors))
        unread = writer.buffered_bytes()
        if unread > MAX_UNREAD_BYTES and method in notifications.DROPPABLE:
            return
        if unread > 2 * MAX_UNREAD_BYTES:
            writer.abort()
            return
        writer.write(sse.encode_event(jsonrpc.encode_notification(method, params)))

    async def drain(self) -> None:
        await self._writer.drain()

    def finish(self, message: bytes | None) -> None:
        self.closed = True
        # The task's context may reference the Call, and thereby this Reply: break the cycle.
        del self.task
        requests = self._requests
        requests.replies.discard(self)
        if self.is_active_call:
            network, by_client = self._network, requests.in_flight_by_client
            left = by_client[network] - 1
            if left:
                by_client[network] = left
            else:
                del by_client[network]
        if message is None:
            self._writer.on_close = None
        else:
            self.send(message)

    def send(self, message: bytes) -> None:
        """Write the response."""
        self._requests.traffic.sent_bytes += len(message)
        writer = self._writer
        writer.on_close = None
        if self._started:
            writer.write(sse.encode_event(message))
            writer.end()
        elif self.missing_scopes is not None and (answer := self._send_scope_error(self.missing_scopes)) is not None:
            writer.respond(answer)
        else:
            status = HTTP_STATUS_BY_CODE.get(self.error_code, 400 if self.rejected else 200) if self.error_code else 200
            headers = (*JSON_HEADERS, *self._request.cors) if self._request.cors else JSON_HEADERS
            if self.retry_after is not None:
                status, headers = 429, (*headers, (b"retry-after", b"%d" % ceil(self.retry_after)))
            writer.respond(HttpResponse(status, headers, message))

    def _send_scope_error(self, lacking: frozenset[str]) -> HttpResponse | None:
        forbidden = self._requests.scope_error
        return None if forbidden is None else forbidden(self._request, lacking, self.id)

    def send_keep_alive(self) -> None:
        if self._started:
            self._writer.write(sse.KEEP_ALIVE_COMMENT)
