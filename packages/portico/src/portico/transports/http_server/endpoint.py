"""One path of a server: requests that stand alone, and the sessions that began there, answered by one Handler.

The era is decided before the method is looked at: a request that carries its own revision in `_meta`, or names one in
its header that has no handshake, is judged alone; anything else belongs to a session.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec import UNSET
from msgspec.structs import replace

from portico.protocol import jsonrpc
from portico.protocol.errors import ProtocolError
from portico.protocol.jsonrpc import Frame, Malformed, RequestId
from portico.protocol.methods import METHODS, read_call
from portico.protocol.versions import Revision
from portico.rpc.call import Handler, members
from portico.rpc.channel import refuse_batch
from portico.rpc.dispatcher import Door, Sender, brings_revision
from portico.rpc.identity import identity_of
from portico.rpc.metrics import Metrics
from portico.transports.http_server import error_responses, sse
from portico.transports.http_server import headers as http
from portico.transports.http_server.cluster_hooks import Elsewhere
from portico.transports.http_server.headers import Headers
from portico.transports.http_server.messages import (
    JSON,
    MOST_UNREAD,
    TEXT,
    Answer,
    Pairs,
    Request,
    ResponseWriter,
    Traffic,
)
from portico.transports.http_server.session import HttpSession
from portico.transports.http_server.session_manager import Sessions
from portico.transports.http_server.session_snapshot import SessionMemo
from portico.transports.http_server.stateless import Forbidden, StatelessRequests
from portico.transports.http_server.stateless_sessions import CarriedSessions

if TYPE_CHECKING:
    from portico.transports.http_server.application import Settings

Route = Callable[[Request, ResponseWriter], None]

Routes = dict[tuple[str, str], Route]
"""What answers a method and a path."""


class Endpoint:
    """A path and its Handler. Sessions belong to their path: at another one they are not known."""

    def __init__(
        self,
        handler: Handler,
        settings: Settings,
        metrics: Metrics,
        traffic: Traffic,
        forbidden: Forbidden | None = None,
    ) -> None:
        self.handler = handler
        self.settings = settings
        self.metrics = metrics
        self.traffic = traffic
        self.sessions = Sessions(handler, settings.most_sessions, settings.most_sessions_per_client)
        self.stateless = StatelessRequests(Door(handler, metrics=metrics), members(handler).mirrored, traffic)
        self.stateless.forbidden = self.sessions.forbidden = forbidden
        self._old: dict[str, _OldStream] = {}
        # The other processes that serve the same clients.
        self.elsewhere: Elsewhere | None = None
        self.carried = CarriedSessions(settings.carried_key) if settings.carried_key is not None else None

    def join(self, elsewhere: Elsewhere) -> None:
        """Be one of several processes."""
        self.elsewhere = self.sessions.elsewhere = self.stateless.elsewhere = elsewhere

    def routes(self, path: str) -> Routes:
        """What answers at a path of the server."""
        return {("POST", path): self.post, ("GET", path): self._get, ("DELETE", path): self._delete}

    def old_routes(self) -> Routes:
        """The two endpoints of 2024-11-05."""
        return {("GET", "/sse"): self._open_old, ("POST", "/messages"): self._post_old}

    def __len__(self) -> int:
        """How many sessions there are."""
        return len(self.sessions) + len(self._old)

    # 2026-07-28: each request alone

    def post(self, request: Request, writer: ResponseWriter) -> None:
        headers = request.headers
        version = headers.get(http.VERSION)
        modern = version is not None and version not in error_responses.WITH_SESSIONS
        if modern and headers.get(http.METHOD) == b"tools/call":
            call = read_call(request.body)
            if call is not None:
                self.stateless.post(call, request, writer)
                return
        frame = jsonrpc.decode(request.body, jsonrpc.MOST_NODES)
        if type(frame) is Frame and frame.method is not UNSET and (modern or brings_revision(frame)):
            self.stateless.post(frame, request, writer)
        elif isinstance(frame, Malformed):
            message = jsonrpc.error(frame.id, frame.error, self._spoken(request))
            writer.answer(Answer(400, (*JSON, *request.cors), message))
        else:
            self._post_in_session(frame, request, writer)

    def _spoken(self, request: Request) -> Revision:
        """The revision in whose words a message is refused that cannot be read."""
        name = request.headers.get(http.SESSION)
        session = None if name is None else self.sessions.find(name.decode("latin-1"), request.principal)
        return (None if session is None else session.channel.revision) or error_responses.revision_of(request)

    # 2025-03-26 to 2025-11-25: in a session

    def _post_in_session(
        self, frame: Frame | list[Frame | Malformed], request: Request, writer: ResponseWriter
    ) -> None:
        headers = request.cors
        if self.carried is not None:
            self._post_carried(self.carried, frame, request, writer)
            return
        if isinstance(frame, Frame) and frame.method == "initialize":
            session = self._new_session(request)
            if not self.sessions.add(session):
                writer.answer(error_responses.busy(request))
                return
            headers = ((b"mcp-session-id", session.id.encode()), *headers)
        elif self._is_elsewhere(request, writer, self.post):
            return
        else:
            found = self._session(request, frame.id if isinstance(frame, Frame) and frame.id is not UNSET else None)
            if isinstance(found, Answer):
                writer.answer(found)
                return
            session = found
            refusal = refuse_batch(frame, session.channel.batches) if isinstance(frame, list) else None
            if refusal is not None:
                writer.answer(Answer(400, (*JSON, *headers), jsonrpc.error(None, refusal, session.channel.revision)))
                return
        self._accept(session, frame, request, writer, headers)

    def _post_carried(
        self,
        carried: CarriedSessions,
        frame: Frame | list[Frame | Malformed],
        request: Request,
        writer: ResponseWriter,
    ) -> None:
        """In a session that the client carries in its id."""
        session = self._new_session(request)
        owner = identity_of(request.principal)
        headers = request.cors
        if isinstance(frame, Frame) and frame.method == "initialize":
            session.carry(None)
            # What is wrong with it is said where it is read in earnest.
            with suppress(ProtocolError):
                id = carried.make(METHODS["initialize"].decode(frame.params), owner)
                headers = ((b"mcp-session-id", id.encode()), *headers)
        else:
            facts = carried.read(request.headers.get(http.SESSION, b"").decode("latin-1"), owner)
            if facts is None:
                id_of = frame.id if isinstance(frame, Frame) and frame.id is not UNSET else None
                writer.answer(error_responses.error(request, 404, "Session not found", request.cors, id_of))
                return
            session.carry(facts)
            refusal = refuse_batch(frame, session.channel.batches) if isinstance(frame, list) else None
            if refusal is not None:
                writer.answer(Answer(400, (*JSON, *headers), jsonrpc.error(None, refusal, session.channel.revision)))
                return
        self._accept(session, frame, request, writer, headers)

    def _accept(
        self, session: HttpSession, frame: Any, request: Request, writer: ResponseWriter, headers: Pairs
    ) -> None:
        id = frame.id if type(frame) is Frame and frame.id is not UNSET else None
        stream = session.open(writer, headers, id)
        stream.asked = None if id is None else (request, id)
        stream.plain = not http.takes_events(request.headers)
        # Not the principal that has begun the session: the same one may be allowed more by now, or less.
        reply = session.channel.accept(frame, stream, Sender(request.principal, request.headers, request.peer))
        if session.session.state == "CREATED":
            # The handshake failed, so there is no session to name, nor to come back to.
            stream.headers = request.cors
        if _expects(frame) and http.prefers_events(request.headers):
            stream.start()
        if reply is not None:
            self._answer(session, frame, request, partial(stream.finish, reply))
        elif not _expects(frame):
            stream.finish(None)
        if session.session.state == "CREATED":
            self.sessions.end(session)

    def _answer(self, session: HttpSession, frame: Any, request: Request, finish: Callable[[], None]) -> None:
        """Say the answer; that of a handshake when other processes can find the session."""
        opens = type(frame) is Frame and frame.method == "initialize" and session.session.facts is not None
        if self.elsewhere is not None and opens:
            path = self.settings.path if request.path == "/" else request.path
            self.elsewhere.began(session, path, finish)
        else:
            finish()

    def _is_elsewhere(
        self, request: Request, writer: ResponseWriter, again: Callable[[Request, ResponseWriter], None]
    ) -> bool:
        """Whether its session is in another process, or was, and that sees to it."""
        if self.elsewhere is None:
            return False
        name = request.headers.get(http.SESSION, b"").decode("latin-1")
        here = name in self.sessions and not self.elsewhere.is_doubtful
        known = not name or here or error_responses.is_modern(request)
        return not known and self.elsewhere.find(self, name, request, writer, again)

    async def restore(self, id: str, memo: SessionMemo) -> bool:
        """Go on with a session that another process has had. Whether there is room for it."""
        sender = Sender(memo.principal, None, memo.address)
        session = HttpSession(self.handler, sender, self.traffic, self.metrics, self.sessions, self.settings.lifecycle)
        await session.restore(id, memo)
        if not self.sessions.add(session):
            session.close()
            return False
        if self.elsewhere is not None:
            session.session.on_change = partial(self.elsewhere.changed, session)
        return True

    def _new_session(self, request: Request, headers: Headers | None = None) -> HttpSession:
        sender = Sender(request.principal, headers, request.peer)
        return HttpSession(self.handler, sender, self.traffic, self.metrics, self.sessions, self.settings.lifecycle)

    def _session(self, request: Request, id: RequestId | None = None) -> HttpSession | Answer:
        """The session that a request belongs to, or why it belongs to none; `id` is that of its message."""
        if error_responses.is_modern(request):
            if request.method != "POST":
                # GET and DELETE are not of that revision.
                return Answer(405, (*TEXT, (b"allow", b"POST")), b"Method not allowed\n")
            reason = "Bad request: this MCP-Protocol-Version is not supported in a session"
            return error_responses.error(request, 400, reason, request.cors, id)
        name = request.headers.get(http.SESSION)
        if name is None and self.settings.assume is not None:
            # No request can come back to this one.
            session = self._new_session(request)
            session.session.assume(self.settings.assume)
            return session
        if name is None:
            reason = "Bad request: Mcp-Session-Id is missing; initialize begins a session"
            return error_responses.error(request, 400, reason, request.cors, id)
        # 404 and nothing else: it is how a client knows that it must initialize again.
        found = self.sessions.find(name.decode("latin-1"), request.principal)
        return found or error_responses.error(request, 404, "Session not found", request.cors, id)

    def _get(self, request: Request, writer: ResponseWriter) -> None:
        takes = b"text/event-stream" in request.headers.get(b"accept", b"text/event-stream")
        if not takes and not error_responses.is_modern(request):
            writer.answer(error_responses.error(request, 406, "Not acceptable: this is a stream of events"))
            return
        if self.carried is not None:
            writer.answer(Answer(405, (*TEXT, (b"allow", b"POST, DELETE")), b"Method not allowed: stateless\n"))
            return
        if self._is_elsewhere(request, writer, self._get):
            return
        session = self._session(request)
        last = request.headers.get(http.LAST_EVENT)
        if isinstance(session, Answer):
            writer.answer(session)
        elif last is None:
            session.listen(request, writer)
        else:
            session.resume(last.decode("latin-1"), request, writer)

    def _delete(self, request: Request, writer: ResponseWriter) -> None:
        if self.carried is not None:
            writer.answer(Answer(204, request.cors))
            return
        if self._is_elsewhere(request, writer, self._delete):
            return
        session = self._session(request)
        if isinstance(session, Answer):
            writer.answer(session)
            return
        self.sessions.end(session)
        writer.answer(Answer(204, request.cors))

    # 2024-11-05: one endpoint to listen, one to speak

    def _open_old(self, request: Request, writer: ResponseWriter) -> None:
        if len(self._old) >= self.settings.most_sessions:
            writer.answer(error_responses.busy(request))
            return
        stream = _OldStream(self._new_session(request, request.headers), writer)
        self._old[stream.session.id] = stream

        def gone() -> None:
            self._old.pop(stream.session.id, None)
            stream.session.close()

        writer.on_close = gone
        writer.start(200, (*sse.HEADERS, *request.cors))
        writer.write(sse.event(f"{request.root}/messages?session_id={stream.session.id}".encode(), name=b"endpoint"))

    def _post_old(self, request: Request, writer: ResponseWriter) -> None:
        id = request.query.partition("session_id=")[2].partition("&")[0]
        stream = self._old.get(id)
        if (
            stream is None
            and self.elsewhere is not None
            and self.elsewhere.find(self, id, request, writer, self._post_old)
        ):
            return
        if stream is None or not stream.session.belongs_to(request.principal):
            writer.answer(error_responses.error(request, 404, "Session not found"))
            return
        writer.answer(Answer(202, (*TEXT, *request.cors), b"Accepted\n"))
        sender = replace(stream.channel.sender, principal=request.principal)
        reply = stream.channel.receive(request.body, sender)
        if reply is not None:
            stream.send(reply)

    # Time, and the end

    def keep_alive(self) -> None:
        """Say something on every open stream, so that whatever is in between does not think it is dead."""
        self.stateless.keep_alive()
        self.sessions.keep_alive()
        for old in list(self._old.values()):
            old.writer.write(sse.KEEP_ALIVE)

    def expire(self) -> None:
        self.sessions.expire(self.settings.idle_session)

    def end_streams(self) -> None:
        self.stateless.end_listening()
        for session in self.sessions.values():
            session.end_listening()
        for old in list(self._old.values()):
            old.writer.end()

    def end_streams_of(self, revoked: Callable[[Any], bool]) -> None:
        """End what such principals listen to; calls go on."""
        self.stateless.end_listening(revoked)
        self.sessions.end_listening(revoked)
        for old in [one for one in self._old.values() if revoked(one.session.principal)]:
            old.writer.end()

    def ending(self, grace: float) -> list[Awaitable[Any]]:
        """Streams are ended properly. Gives what is still running."""
        waiting = self.stateless.end_listening()
        sessions = [*self.sessions.values(), *(old.session for old in self._old.values())]
        return [*waiting, *(session.channel.end(grace) for session in sessions)]

    def close(self) -> None:
        self.stateless.close()
        self.sessions.close()
        for old in list(self._old.values()):
            old.writer.end()
            old.session.close()
        self._old.clear()


class _OldStream:
    """A session of 2024-11-05: everything for the client goes over the one stream it opened."""

    def __init__(self, session: HttpSession, writer: ResponseWriter) -> None:
        self.session = session
        self.writer = writer
        self.traffic = session.traffic
        self.channel = session.channel
        self.channel.use(self.send, writer.drain, lambda: writer.buffered() > MOST_UNREAD)
        session.session.reach(True)

    def send(self, message: bytes) -> None:
        if self.writer.buffered() > 2 * MOST_UNREAD:
            self.writer.abort()
        else:
            self.traffic.sent += len(message)
            self.writer.write(sse.event(message, name=b"message"))


def _expects(frame: Any) -> bool:
    """Whether an answer will follow."""
    if isinstance(frame, list):
        return any(_expects(one) for one in frame)
    return isinstance(frame, Frame) and frame.method is not UNSET and frame.id is not UNSET
