"""One endpoint for every revision: a request and a way back in, JSON or events out. No sockets here.

The era is decided before the method is looked at: a request that carries its own revision in `_meta`, or names one in
its header that has no handshake, is judged alone; anything else belongs to a session.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from msgspec import UNSET, Struct
from msgspec.structs import replace

from portico.auth.principal import BearerTokens
from portico.auth.resource import ResourceServer
from portico.legacy.session import Lifecycle
from portico.rpc.call import Handler, members
from portico.rpc.channel import refuse_batch
from portico.rpc.door import Door, Sender, brings_revision
from portico.rpc.metrics import Metrics
from portico.transport.http import headers as http
from portico.transport.http import sse
from portico.transport.http.admission import Admission, Needs, Waiting, with_cors
from portico.transport.http.headers import Gate, Headers, Proxies
from portico.transport.http.pages import PageRoute, WebPages
from portico.transport.http.refusals import busy, is_modern, named_revision, refusal
from portico.transport.http.response import JSON, MOST_UNREAD, TEXT, Answer, Pairs, Request, ResponseWriter, Traffic
from portico.transport.http.sessions import IDLE_SECONDS, HttpSession, Sessions
from portico.transport.http.stateless import StatelessRequests
from portico.wire import jsonrpc
from portico.wire.jsonrpc import Frame, Malformed, RequestId
from portico.wire.revisions import HANDSHAKE, REVISIONS, Revision

log = logging.getLogger("portico")

LONGEST_BODY = 4 * 1024 * 1024
MOST_BODY_BYTES = 256 * 1024 * 1024
KEEP_ALIVE_SECONDS = 15.0
_ACCEPTED = re.compile(rb"json|\*/\*|event-stream|application/\*").search
_HEALTH = frozenset({"/health", "/healthz"})
_HANDSHAKE = frozenset(revision.encode() for revision in HANDSHAKE)


Route = Callable[[Request, ResponseWriter], None]


class Settings(Struct, kw_only=True):
    """How an endpoint behaves."""

    path: str = "/mcp"
    allow_hosts: Sequence[str] = ()
    allow_origins: Sequence[str] = ()
    # Names of this machine are allowed without being listed; a server for others lists its own.
    loopback: bool = True
    token: str | None = None
    # Who shows this one has the scope `operator`, and no other.
    operator_token: str | None = None
    # Addresses and networks of proxies that say where a request comes from (X-Forwarded-For, Forwarded).
    trusted_proxies: Sequence[str] = ()
    # Whether requests from other machines are refused, whatever they name and however they reach us.
    local_only: bool = False
    # 2024-11-05's two endpoints, /sse and /messages.
    sse: bool = False
    # Who belongs to no session and is not modern is spoken to as at this revision, in place of being refused.
    assume: Revision | None = None
    # "strict": sessions wait for `initialized`, although POSTs may overtake each other.
    lifecycle: Lifecycle = "auto"
    longest_body: int = LONGEST_BODY
    # How much the bodies of all requests may have together, from their first byte to their answers.
    most_body_bytes: int = MOST_BODY_BYTES
    most_in_flight: int = 10_000
    most_in_flight_per_client: int = 1000
    most_sessions: int = 100_000
    most_sessions_per_client: int = 10_000
    idle_session: float = IDLE_SECONDS


class Exchange:
    """Answers HTTP requests with a Handler."""

    def __init__(
        self,
        handler: Handler,
        settings: Settings,
        describe: Callable[[], dict[str, Any]],
        pages: Iterable[PageRoute] = (),
        auth: ResourceServer | None = None,
    ) -> None:
        self.settings = settings
        self.metrics = Metrics()
        self.handler = handler
        self.sessions = Sessions(handler, settings.most_sessions, settings.most_sessions_per_client)
        self.draining = False
        self._describe = describe
        self._gate = Gate(settings.allow_hosts, settings.allow_origins, loopback=settings.loopback)
        self._admission = _admission(settings, auth, members(handler).needs)
        self.proxies = Proxies(settings.trusted_proxies)
        self._began = time.monotonic()
        self._old: dict[str, _OldStream] = {}
        self.traffic = Traffic()
        self.stateless = StatelessRequests(Door(handler, metrics=self.metrics), members(handler).mirrored, self.traffic)
        self._waiting: set[asyncio.Task[None]] = set()
        if self._admission is not None:
            self.stateless.forbidden = self.sessions.forbidden = self._admission.forbidden
        self._routes: dict[tuple[str, str], Route] = {
            ("GET", "/health"): self._health,
            ("GET", "/healthz"): self._health,
            ("GET", "/metrics"): self._show_metrics,
            ("POST", "/"): self._post,
            ("POST", settings.path): self._post,
            ("GET", settings.path): self._get,
            ("DELETE", settings.path): self._delete,
        }
        if settings.sse:
            self._routes |= {("GET", "/sse"): self._open_old, ("POST", "/messages"): self._post_old}
        own = self._admission.pages() if self._admission is not None else ()
        self.pages = WebPages((*own, *pages), {path for _, path in self._routes if path != "/"})

    # Coming in

    def refuse(self, request: Request) -> Answer | None:
        """What is wrong with a request before its body matters. The order is that of the ladder."""
        # A probe knows an address, and no name.
        gate = self._gate.refuse_origin if self._is_probe(request) else self._gate.refusal
        reason = gate(request.headers)
        if reason is not None:
            return refusal(request, 403, f"Forbidden: {reason}")
        if b"origin" in request.headers:
            request.cors = _cors(request.headers)
        answer = self._refuse(request)
        if answer is not None and request.cors:
            answer.headers = (*answer.headers, *request.cors)
        return answer

    def _refuse(self, request: Request) -> Answer | None:
        if request.headers.repeated and request.headers.ambiguous():
            return refusal(request, 400, "Bad request: a header that must stand once stands twice")
        if request.method == "OPTIONS":
            return _preflight(request.headers)
        if (request.method, request.path) not in self._routes:
            return self._refuse_page(request)
        if self._is_probe(request):
            return None
        if self._admission is not None:
            unknown = self._admission.refuse(request)
            if unknown is not None:
                return unknown
        if request.method == "POST":
            return self._refuse_kind(request) or self.refuse_now(request)
        return self._refuse_far(request)

    def _refuse_page(self, request: Request) -> Answer | None:
        route = self.pages.find(request.method, request.path)
        if route is None:
            return self._nowhere(request)
        if self.draining:
            return busy(request)
        if route.guarded and self._admission is not None:
            return self._admission.refuse(request) or self._refuse_far(request)
        return self._refuse_far(request)

    def _is_probe(self, request: Request) -> bool:
        """Whether it only asks if we are well, which is no secret."""
        return request.path in _HEALTH and request.path != self.settings.path and request.method == "GET"

    def _refuse_far(self, request: Request) -> Answer | None:
        if self.settings.local_only and not is_near(request.peer):
            return refusal(request, 403, "Forbidden: this server has a service that is for its own machine alone")
        return None

    def refuse_now(self, request: Request) -> Answer | None:
        """The part of it that depends on the moment, and not on what the request says."""
        if self.draining or self.metrics.in_flight >= self.settings.most_in_flight:
            return busy(request)
        if self.settings.local_only and not is_near(request.peer):
            return self._refuse_far(request)
        by_client = self.stateless.by_client
        if by_client and by_client.get(request.peer, 0) >= self.settings.most_in_flight_per_client:
            return busy(request)
        return None

    def _refuse_kind(self, request: Request) -> Answer | None:
        kind = request.headers.get(b"content-type", b"")
        if kind != b"application/json" and kind.partition(b";")[0].strip().lower() != b"application/json":
            return refusal(request, 415, "Unsupported media type: the body must be application/json")
        accept = request.headers.get(b"accept")
        if accept is None or _ACCEPTED(accept) is not None:
            return None
        return refusal(request, 406, "Not acceptable: application/json and text/event-stream are what we have")

    def _nowhere(self, request: Request) -> Answer:
        known = {method for method, path in self._routes if path == request.path}
        allowed = sorted(known | self.pages.methods(request.path))
        if not allowed:
            return Answer(404, TEXT, b"Not found\n")
        return Answer(405, (*TEXT, (b"allow", ", ".join(allowed).encode())), b"Method not allowed\n")

    def handle(self, request: Request, writer: ResponseWriter) -> None:
        """Answer a request that was not refused."""
        self.traffic.received += len(request.body)
        route = self._routes.get((request.method, request.path))
        if route is None:
            self._show_page(request, writer)
            return
        if self._admission is None or self._is_probe(request):
            route(request, writer)
        else:
            self._admit(self._admission, route, request, writer)

    def _show_page(self, request: Request, writer: ResponseWriter) -> None:
        found = self.pages.find(request.method, request.path)
        if found is None:
            writer.answer(self._nowhere(request))
            return
        show = partial(self.pages.answer, found)
        if found.guarded and self._admission is not None:
            self._admit(self._admission, show, request, writer)
        else:
            show(request, writer)

    def _admit(self, admission: Admission, route: Route, request: Request, writer: ResponseWriter) -> None:
        """It was let in before its body was read, but what it shows may be good no longer, or wait to be verified."""
        refused = admission.admit(request)
        if refused is None:
            route(request, writer)
        elif isinstance(refused, Answer):
            writer.answer(with_cors(refused, request))
        else:
            task = asyncio.get_running_loop().create_task(self._admit_later(refused, route, request, writer))
            self._waiting.add(task)
            task.add_done_callback(self._waiting.discard)
            writer.on_close = task.cancel  # type: ignore[assignment]

    async def _admit_later(self, verifying: Waiting, route: Route, request: Request, writer: ResponseWriter) -> None:
        try:
            refused = await verifying
            writer.on_close = None
            if refused is None:
                route(request, writer)
            else:
                writer.answer(with_cors(refused, request))
        except Exception:
            log.exception("error while answering %s %s", request.method, request.path)
            writer.answer(Answer(500, TEXT, b"Internal error\n"))

    # 2026-07-28: each request alone

    def _post(self, request: Request, writer: ResponseWriter) -> None:
        frame = jsonrpc.decode(request.body, jsonrpc.MOST_NODES)
        version = request.headers.get(http.VERSION)
        modern = version is not None and version not in _HANDSHAKE
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
        return (None if session is None else session.channel.revision) or named_revision(request)

    # 2025-03-26 to 2025-11-25: in a session

    def _post_in_session(
        self, frame: Frame | list[Frame | Malformed], request: Request, writer: ResponseWriter
    ) -> None:
        headers = request.cors
        if isinstance(frame, Frame) and frame.method == "initialize":
            session = self._new_session(request)
            if not self.sessions.add(session):
                writer.answer(busy(request))
                return
            headers = ((b"mcp-session-id", session.id.encode()), *headers)
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

    def _accept(
        self, session: HttpSession, frame: Any, request: Request, writer: ResponseWriter, headers: Pairs
    ) -> None:
        stream = session.open(writer, headers)
        if isinstance(frame, Frame) and isinstance(frame.id, int | str):
            stream.asked = (request, frame.id)
        stream.plain = not http.takes_events(request.headers)
        # Not the principal that has begun the session: the same one may be allowed more by now, or less.
        reply = session.channel.accept(frame, stream, Sender(request.principal, request.headers, request.peer))
        if session.session.state == "CREATED":
            # The handshake failed, so there is no session to name, nor to come back to.
            stream.headers = request.cors
        if _expects(frame) and http.prefers_events(request.headers):
            stream.start()
        if reply is not None:
            stream.finish(reply)
        elif not _expects(frame):
            stream.finish(None)
        if session.session.state == "CREATED":
            self.sessions.end(session)

    def _new_session(self, request: Request, headers: Headers | None = None) -> HttpSession:
        sender = Sender(request.principal, headers, request.peer)
        return HttpSession(self.handler, sender, self.traffic, self.metrics, self.sessions, self.settings.lifecycle)

    def _session(self, request: Request, id: RequestId | None = None) -> HttpSession | Answer:
        """The session that a request belongs to, or why it belongs to none; `id` is that of its message."""
        if is_modern(request):
            if request.method != "POST":
                # GET and DELETE are not of that revision.
                return Answer(405, (*TEXT, (b"allow", b"POST")), b"Method not allowed\n")
            reason = "Bad request: this MCP-Protocol-Version is not supported in a session"
            return refusal(request, 400, reason, request.cors, id)
        name = request.headers.get(http.SESSION)
        if name is None and self.settings.assume is not None:
            # No request can come back to this one.
            session = self._new_session(request)
            session.session.assume(self.settings.assume)
            return session
        if name is None:
            reason = "Bad request: Mcp-Session-Id is missing; initialize begins a session"
            return refusal(request, 400, reason, request.cors, id)
        # 404 and nothing else: it is how a client knows that it must initialize again.
        found = self.sessions.find(name.decode("latin-1"), request.principal)
        return found or refusal(request, 404, "Session not found", request.cors, id)

    def _get(self, request: Request, writer: ResponseWriter) -> None:
        takes = b"text/event-stream" in request.headers.get(b"accept", b"text/event-stream")
        if not takes and not is_modern(request):
            writer.answer(refusal(request, 406, "Not acceptable: this is a stream of events"))
            return
        session = self._session(request)
        last = request.headers.get(http.LAST_EVENT)
        if isinstance(session, Answer):
            writer.answer(session)
        elif last is None:
            session.listen(writer, request.cors)
        else:
            session.resume(last.decode("latin-1"), writer, request.cors)

    def _delete(self, request: Request, writer: ResponseWriter) -> None:
        session = self._session(request)
        if isinstance(session, Answer):
            writer.answer(session)
            return
        self.sessions.end(session)
        writer.answer(Answer(204, request.cors))

    # 2024-11-05: one endpoint to listen, one to speak

    def _open_old(self, request: Request, writer: ResponseWriter) -> None:
        if len(self._old) >= self.settings.most_sessions:
            writer.answer(busy(request))
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
        if stream is None or not stream.session.belongs_to(request.principal):
            writer.answer(refusal(request, 404, "Session not found"))
            return
        writer.answer(Answer(202, (*TEXT, *request.cors), b"Accepted\n"))
        sender = replace(stream.channel.sender, principal=request.principal)
        reply = stream.channel.receive(request.body, sender)
        if reply is not None:
            stream.send(reply)

    # Looking in

    def _health(self, request: Request, writer: ResponseWriter) -> None:
        health = {
            "status": "draining" if self.draining else "ok",
            **self._describe(),
            "revisions": list(REVISIONS),
            "uptime": round(time.monotonic() - self._began, 3),
        }
        writer.answer(Answer(200, (*JSON, *request.cors), jsonrpc.encode(health)))

    def _show_metrics(self, request: Request, writer: ResponseWriter) -> None:
        gauges = {
            "mcp_server_sessions": len(self.sessions) + len(self._old),
            "mcp_server_streams": len(self.stateless.replies),
            "mcp_server_uptime_seconds": time.monotonic() - self._began,
            "mcp_server_received_bytes_total": self.traffic.received,
            "mcp_server_sent_bytes_total": self.traffic.sent,
        }
        kind = ((b"content-type", b"text/plain; version=0.0.4; charset=utf-8"),)
        writer.answer(Answer(200, kind, self.metrics.text(gauges).encode()))

    # Time, and the end

    def keep_alive(self) -> None:
        """Say something on every open stream, so that whatever is in between does not think it is dead."""
        self.stateless.keep_alive()
        self.sessions.keep_alive()
        for old in list(self._old.values()):
            old.writer.write(sse.KEEP_ALIVE)

    def expire(self) -> None:
        self.sessions.expire(self.settings.idle_session)

    async def drain(self, grace: float) -> None:
        """No new calls; what is running may finish; streams are ended properly."""
        self.draining = True
        waiting = self.stateless.end_listening()
        sessions = [*self.sessions.values(), *(old.session for old in self._old.values())]
        ending = [session.channel.end(grace) for session in sessions]
        if waiting or ending:
            await asyncio.wait([asyncio.ensure_future(one) for one in (*waiting, *ending)], timeout=grace)
        self.stateless.close()
        self.sessions.close()
        await self.pages.close()
        for task in list(self._waiting):
            task.cancel()
        for old in list(self._old.values()):
            old.writer.end()
            old.session.close()
        self._old.clear()


def _admission(settings: Settings, auth: ResourceServer | None, needs: Needs) -> Admission | None:
    """None: all are let in, and nothing is looked at."""
    given = settings.token or settings.operator_token
    tokens = BearerTokens(settings.token, settings.operator_token) if given else None
    return None if tokens is None and auth is None else Admission(tokens, auth, settings.path, needs)


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


def _cors(headers: Headers) -> Pairs:
    """For a page whose origin was let in."""
    origin = headers.get(b"origin")
    if origin is None:
        return ()
    return (
        (b"access-control-allow-origin", origin),
        (b"access-control-expose-headers", b"Mcp-Session-Id, WWW-Authenticate"),
        (b"vary", b"Origin"),
    )


def _preflight(headers: Headers) -> Answer:
    allow = (
        (b"access-control-allow-methods", b"GET, POST, DELETE, OPTIONS"),
        (b"access-control-allow-headers", headers.get(b"access-control-request-headers", b"*")),
        (b"access-control-max-age", b"86400"),
    )
    return Answer(204, allow)


def is_near(peer: str) -> bool:
    """Whether a request comes from this machine."""
    return peer.startswith(("127.", "::ffff:127.")) or peer in ("::1", "local")
