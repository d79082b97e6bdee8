"""Endpoint: one path of a server, with stateless requests and sessions, answered by one Handler.

The protocol version is determined before the method: a request with its own version in `_meta`, or with a header that
names a version without handshake, is stateless. All others belong to a session.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec import UNSET
from msgspec.structs import replace

from portico.protocol import jsonrpc
from portico.protocol.errors import ProtocolError
from portico.protocol.jsonrpc import JsonRpcMessage, MalformedMessage, RequestId
from portico.protocol.methods import METHODS, decode_tool_call
from portico.protocol.versions import ProtocolVersion
from portico.rpc.call import Handler, get_capabilities
from portico.rpc.channel import check_batch
from portico.rpc.dispatcher import Dispatcher, PeerInfo, has_protocol_version
from portico.rpc.identity import client_network, principal_id
from portico.rpc.metrics import Metrics
from portico.transports.http_server import error_responses, headers as http, sse
from portico.transports.http_server.cluster_hooks import ClusterHooks
from portico.transports.http_server.headers import Headers
from portico.transports.http_server.messages import (
    JSON_HEADERS,
    MAX_UNREAD_BYTES,
    TEXT_HEADERS,
    HeaderPairs,
    HttpRequest,
    HttpResponse,
    ResponseWriter,
    TrafficCounters,
)
from portico.transports.http_server.session import HttpSession
from portico.transports.http_server.session_manager import SessionManager
from portico.transports.http_server.session_snapshot import SessionSnapshot
from portico.transports.http_server.stateless import ScopeErrorFactory, StatelessRequestHandler
from portico.transports.http_server.stateless_sessions import StatelessSessionIds

if TYPE_CHECKING:
    from portico.transports.http_server.application import HttpServerSettings

RouteHandler = Callable[[HttpRequest, ResponseWriter], None]

RouteTable = dict[tuple[str, str], RouteHandler]
"Handlers by method and path."


class Endpoint:
    """Path with its Handler. Sessions belong to their path and are unknown at others."""

    def __init__(
        self,
        handler: Handler,
        settings: HttpServerSettings,
        metrics: Metrics,
        traffic: TrafficCounters,
        scope_error: ScopeErrorFactory | None = None,
    ) -> None:
        self.handler = handler
        self.settings = settings
        self.metrics = metrics
        self.traffic = traffic
        self.sessions = SessionManager(handler, settings.max_sessions, settings.max_sessions_per_client)
        self.stateless = StatelessRequestHandler(
            Dispatcher(handler, metrics=metrics), get_capabilities(handler).directory.header_params, traffic
        )
        self.stateless.scope_error = self.sessions.scope_error = scope_error
        self._sse_sessions: dict[str, _SseSession] = {}
        # Their number by client network.
        self._sse_by_network: dict[str, int] = {}
        # The other processes that serve the same clients.
        self.cluster: ClusterHooks | None = None
        self.stateless_session_ids = (
            StatelessSessionIds(settings.stateless_session_key) if settings.stateless_session_key is not None else None
        )

    def join_cluster(self, cluster: ClusterHooks) -> None:
        """Join a cluster of processes."""
        self.cluster = self.sessions.cluster = self.stateless.cluster = cluster

    def routes(self, path: str) -> RouteTable:
        """Return the routes of this endpoint at a path."""
        return {
            ("POST", path): self.handle_post,
            ("GET", path): self._handle_get,
            ("DELETE", path): self._handle_delete,
        }

    def sse_routes(self) -> RouteTable:
        """Return the routes of the two endpoints of 2024-11-05."""
        return {("GET", "/sse"): self._open_sse, ("POST", "/messages"): self._post_sse}

    def __len__(self) -> int:
        """Return the number of sessions."""
        return len(self.sessions) + len(self._sse_sessions)

    # 2026-07-28: stateless requests

    def handle_post(self, request: HttpRequest, writer: ResponseWriter) -> None:
        headers = request.headers
        version = headers.get(http.PROTOCOL_VERSION_HEADER)
        # An unknown version counts as modern too: the stateless handler rejects it with the list of supported
        # versions.
        modern = version is not None and version not in error_responses.SESSION_VERSIONS
        # The most frequent request has a specialized decoder.
        if modern and headers.get(http.METHOD_HEADER) == b"tools/call":
            call = decode_tool_call(request.body)
            if call is not None:
                self.stateless.handle_post(call, request, writer)
                return
        # The node limit bounds how long decoding may block the event loop.
        # times as large.
        frame = jsonrpc.decode_message(request.body, jsonrpc.MAX_JSON_NODES)
        if type(frame) is JsonRpcMessage and frame.method is not UNSET and (modern or has_protocol_version(frame)):
            self.stateless.handle_post(frame, request, writer)
        elif isinstance(frame, MalformedMessage):
            message = jsonrpc.encode_error(frame.id, frame.error, self._error_version(request))
            writer.respond(HttpResponse(400, (*JSON_HEADERS, *request.cors), message))
        else:
            self._post_in_session(frame, request, writer)

    def _error_version(self, request: HttpRequest) -> ProtocolVersion:
        """Return the protocol version for errors about unreadable messages."""
        name = request.headers.get(http.SESSION_ID_HEADER)
        session = None if name is None else self.sessions.find(name.decode("latin-1"), request.principal)
        return (
            None if session is None else session.channel.protocol_version
        ) or error_responses.requested_protocol_version(request)

    # 2025-03-26 to 2025-11-25: sessions

    def _post_in_session(
        self,
        frame: JsonRpcMessage | list[JsonRpcMessage | MalformedMessage],
        request: HttpRequest,
        writer: ResponseWriter,
    ) -> None:
        headers = request.cors
        if self.stateless_session_ids is not None:
            self._post_stateless_session(self.stateless_session_ids, frame, request, writer)
            return
        if isinstance(frame, JsonRpcMessage) and frame.method == "initialize":
            session = self._new_session(request)
            # The limit of sessions is reached and none of them is without a connected client.
            if not self.sessions.add(session):
                writer.respond(error_responses.overloaded_response(request))
                return
            headers = ((b"mcp-session-id", session.id.encode()), *headers)
        # Before the local lookup: a session that another process has taken over must not be answered here.
        elif self._route_to_owner(request, writer, self.handle_post):
            return
        else:
            result = self._find_session(
                request, frame.id if isinstance(frame, JsonRpcMessage) and frame.id is not UNSET else None
            )
            if isinstance(result, HttpResponse):
                writer.respond(result)
                return
            session = result
        self._accept(session, frame, request, writer, headers)

    def _post_stateless_session(
        self,
        carried: StatelessSessionIds,
        frame: JsonRpcMessage | list[JsonRpcMessage | MalformedMessage],
        request: HttpRequest,
        writer: ResponseWriter,
    ) -> None:
        """Serve a request of a session whose state is in its id."""
        session = self._new_session(request)
        owner = principal_id(request.principal)
        headers = request.cors
        if isinstance(frame, JsonRpcMessage) and frame.method == "initialize":
            session.load_state(None)
            # Invalid params are reported when the request is dispatched.
            with suppress(ProtocolError):
                id = carried.encode(METHODS["initialize"].decode(frame.params), owner)
                headers = ((b"mcp-session-id", id.encode()), *headers)
        else:
            # The signature covers the owner, so a session id stolen from another principal does not verify.
            facts = carried.decode(request.headers.get(http.SESSION_ID_HEADER, b"").decode("latin-1"), owner)
            if facts is None:
                id_of = frame.id if isinstance(frame, JsonRpcMessage) and frame.id is not UNSET else None
                writer.respond(error_responses.error_response(request, 404, "Session not found", request.cors, id_of))
                return
            session.load_state(facts)
        self._accept(session, frame, request, writer, headers)

    def _accept(
        self, session: HttpSession, frame: Any, request: HttpRequest, writer: ResponseWriter, headers: HeaderPairs
    ) -> None:
        refusal = check_batch(frame, session.channel.batching_enabled) if isinstance(frame, list) else None
        if refusal is not None:
            body = jsonrpc.encode_error(None, refusal, session.channel.protocol_version)
            writer.respond(HttpResponse(400, (*JSON_HEADERS, *headers), body))
            return
        id = frame.id if type(frame) is JsonRpcMessage and frame.id is not UNSET else None
        stream = session.open_post_stream(writer, headers, id)
        stream.asked = None if id is None else (request, id)
        # The specification requires clients to accept both media types, but some send only application/json.
        # They receive the response alone, without the notifications before it.
        stream.json_only = not http.accepts_event_stream(request.headers)
        # The principal of this request, not of the one that started the session: its scopes may have changed.
        reply = session.channel.receive_message(
            frame, stream, PeerInfo(request.principal, request.headers, request.peer)
        )
        if session.session.state == "CREATED":
            # The handshake failed, so there is no session id to return.
            stream.headers = request.cors
        if _expects_response(frame) and http.prefers_event_stream(request.headers):
            stream.start()
        if reply is not None:
            self._send_result(session, frame, request, partial(stream.finish, reply))
        elif not _expects_response(frame):
            stream.finish(None)
        if session.session.state == "CREATED":
            self.sessions.end(session)

    def _send_result(self, session: HttpSession, frame: Any, request: HttpRequest, finish: Callable[[], None]) -> None:
        """Send the response. That of a handshake waits until other processes can find the session."""
        opens = (
            type(frame) is JsonRpcMessage and frame.method == "initialize" and session.session.export_state is not None
        )
        if self.cluster is not None and opens:
            path = self.settings.path if request.path == "/" else request.path
            self.cluster.on_session_started(session, path, finish)
        else:
            finish()

    def _route_to_owner(
        self, request: HttpRequest, writer: ResponseWriter, again: Callable[[HttpRequest, ResponseWriter], None]
    ) -> bool:
        """Route a request to the process that owns its session. Return whether it was routed."""
        if self.cluster is None:
            return False
        name = request.headers.get(http.SESSION_ID_HEADER, b"").decode("latin-1")
        # A process whose lease expired may have lost the session to another one without knowing it yet
        # (fencing).
        is_ours = name in self.sessions and not self.cluster.is_lease_expired
        is_local = not name or is_ours or error_responses.is_modern_request(request)
        return not is_local and self.cluster.route_to_owner(self, name, request, writer, again)

    async def restore_session(self, id: str, snapshot: SessionSnapshot) -> bool:
        """Restore a session of another process. Return whether there was room for it."""
        sender = PeerInfo(snapshot.principal, None, snapshot.address)
        session = HttpSession(self.handler, sender, self.traffic, self.metrics, self.sessions, self.settings.lifecycle)
        await session.restore(id, snapshot)
        if not self.sessions.add(session):
            session.close()
            return False
        if self.cluster is not None:
            session.session.on_change = partial(self.cluster.on_session_changed, session)
        return True

    def _new_session(self, request: HttpRequest, headers: Headers | None = None) -> HttpSession:
        sender = PeerInfo(request.principal, headers, request.peer)
        return HttpSession(self.handler, sender, self.traffic, self.metrics, self.sessions, self.settings.lifecycle)

    def _find_session(self, request: HttpRequest, id: RequestId | None = None) -> HttpSession | HttpResponse:
        """Return the session of a request, or the error response. `id` is that of its message."""
        if error_responses.is_modern_request(request):
            if request.method != "POST":
                # 2026-07-28 has neither GET nor DELETE.
                return HttpResponse(405, (*TEXT_HEADERS, (b"allow", b"POST")), b"Method not allowed\n")
            reason = "Bad request: this MCP-Protocol-Version is not supported in a session"
            return error_responses.error_response(request, 400, reason, request.cors, id)
        name = request.headers.get(http.SESSION_ID_HEADER)
        if name is None and self.settings.default_protocol_version is not None:
            # The session exists for this request only.
            session = self._new_session(request)
            session.session.assume_protocol_version(self.settings.default_protocol_version)
            return session
        if name is None:
            reason = "Bad request: Mcp-Session-Id is missing; start a session with initialize"
            return error_responses.error_response(request, 400, reason, request.cors, id)
        # It must be 404: this is how a client learns that it has to initialize again.
        result = self.sessions.find(name.decode("latin-1"), request.principal)
        return result or error_responses.error_response(request, 404, "Session not found", request.cors, id)

    def _handle_get(self, request: HttpRequest, writer: ResponseWriter) -> None:
        # Without an Accept header every media type is acceptable (RFC 9110, section 12.5.1).
        takes = b"text/event-stream" in request.headers.get(b"accept", b"text/event-stream")
        if not takes and not error_responses.is_modern_request(request):
            writer.respond(
                error_responses.error_response(
                    request, 406, ("Not acceptable: this is an event stream (text/event-stream)")
                )
            )
            return
        if self.stateless_session_ids is not None:
            writer.respond(
                HttpResponse(405, (*TEXT_HEADERS, (b"allow", b"POST, DELETE")), b"Method not allowed: stateless\n")
            )
            return
        if self._route_to_owner(request, writer, self._handle_get):
            return
        session = self._find_session(request)
        last = request.headers.get(http.LAST_EVENT_ID_HEADER)
        if isinstance(session, HttpResponse):
            writer.respond(session)
        elif last is None:
            session.open_get_stream(request, writer)
        else:
            session.resume_stream(last.decode("latin-1"), request, writer)

    def _handle_delete(self, request: HttpRequest, writer: ResponseWriter) -> None:
        if self.stateless_session_ids is not None:
            writer.respond(HttpResponse(204, request.cors))
            return
        if self._route_to_owner(request, writer, self._handle_delete):
            return
        session = self._find_session(request)
        if isinstance(session, HttpResponse):
            writer.respond(session)
            return
        self.sessions.end(session)
        writer.respond(HttpResponse(204, request.cors))

    # 2024-11-05: one endpoint for events, and one for messages

    def _open_sse(self, request: HttpRequest, writer: ResponseWriter) -> None:
        # Sessions of 2024-11-05 live as long as their connection, so none of them is idle and can be evicted.
        network, by_network = client_network(request.peer), self._sse_by_network
        if (
            len(self._sse_sessions) >= self.settings.max_sessions
            or by_network.get(network, 0) >= self.settings.max_sessions_per_client
        ):
            writer.respond(error_responses.overloaded_response(request))
            return
        stream = _SseSession(self._new_session(request, request.headers), writer, request.until)
        self._sse_sessions[stream.session.id] = stream
        by_network[network] = by_network.get(network, 0) + 1

        def on_close() -> None:
            if self._sse_sessions.pop(stream.session.id, None) is not None:
                by_network[network] -= 1
                if not by_network[network]:
                    del by_network[network]
            stream.session.close()

        writer.on_close = on_close
        writer.start(200, (*sse.EVENT_STREAM_HEADERS, *request.cors))
        writer.write(
            # 2024-11-05 (basic/transports): the first event names the URI that the client must POST to.
            sse.encode_event(f"{request.root}/messages?session_id={stream.session.id}".encode(), name=b"endpoint")
        )

    def _post_sse(self, request: HttpRequest, writer: ResponseWriter) -> None:
        id = request.query.partition("session_id=")[2].partition("&")[0]
        stream = self._sse_sessions.get(id)
        if (
            stream is None
            and self.cluster is not None
            and self.cluster.route_to_owner(self, id, request, writer, self._post_sse)
        ):
            return
        # Both cases have the same response, so that a caller cannot probe for session ids of others.
        if stream is None or not stream.session.belongs_to(request.principal):
            writer.respond(error_responses.error_response(request, 404, "Session not found"))
            return
        # Accepted before the message is processed: results travel on the event stream, never in this response.
        writer.respond(HttpResponse(202, (*TEXT_HEADERS, *request.cors), b"Accepted\n"))
        sender = replace(stream.channel.peer, principal=request.principal)
        reply = stream.channel.receive(request.body, sender)
        if reply is not None:
            stream.send(reply)

    # Timers and shutdown

    def send_keep_alives(self) -> None:
        """Send a keep-alive on every open stream, so that proxies do not close it as idle."""
        self.stateless.send_keep_alives()
        self.sessions.send_keep_alives()
        now = time.time()
        for old in list(self._sse_sessions.values()):
            if old.token_expires_at is not None and now >= old.token_expires_at:
                old.writer.end()
            else:
                old.writer.write(sse.KEEP_ALIVE_COMMENT)

    def expire_sessions(self) -> None:
        self.sessions.expire(self.settings.session_idle_timeout)

    def end_streams(self) -> None:
        self.stateless.end_subscriptions()
        for session in self.sessions.values():
            session.end_get_streams()
        for old in list(self._sse_sessions.values()):
            old.writer.end()

    def end_streams_for(self, is_revoked: Callable[[Any], bool]) -> None:
        """End the streams of revoked principals. Calls continue."""
        self.stateless.end_subscriptions(is_revoked)
        self.sessions.end_get_streams(is_revoked)
        for old in [
            sse_session for sse_session in self._sse_sessions.values() if is_revoked(sse_session.session.principal)
        ]:
            old.writer.end()

    def begin_shutdown(self, timeout: float) -> list[Awaitable[Any]]:
        """End all streams. Return what is still running."""
        waiting = self.stateless.end_subscriptions()
        sessions = [*self.sessions.values(), *(old.session for old in self._sse_sessions.values())]
        return [*waiting, *(session.channel.shutdown(timeout) for session in sessions)]

    def close(self) -> None:
        self.stateless.close()
        self.sessions.close()
        for old in list(self._sse_sessions.values()):
            old.writer.end()
            old.session.close()
        self._sse_sessions.clear()
        self._sse_by_network.clear()


class _SseSession:
    """Session of 2024-11-05: all messages to the client use the one stream it opened."""

    def __init__(self, session: HttpSession, writer: ResponseWriter, token_expires_at: float | None) -> None:
        self.session = session
        self.writer = writer
        self.token_expires_at = token_expires_at
        self.traffic = session.traffic
        self.channel = session.channel
        self.channel.replace_stream(self.send, writer.drain, lambda: writer.buffered_bytes() > MAX_UNREAD_BYTES)
        session.session.set_reachable(True)

    def send(self, message: bytes) -> None:
        # A client that stopped reading would otherwise make the server buffer without limit.
        if self.writer.buffered_bytes() > 2 * MAX_UNREAD_BYTES:
            self.writer.abort()
        else:
            self.traffic.sent_bytes += len(message)
            self.writer.write(sse.encode_event(message, name=b"message"))


def _expects_response(frame: Any) -> bool:
    """Return whether a message expects a response."""
    if isinstance(frame, list):
        return any(_expects_response(item) for item in frame)
    return isinstance(frame, JsonRpcMessage) and frame.method is not UNSET and frame.id is not UNSET
