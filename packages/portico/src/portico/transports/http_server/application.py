"""Who may come in, and to which endpoint: a request and a way back in, JSON or events out. No sockets here."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from portico.auth.principal import BearerTokens, Principal
from portico.auth.resource_server import ResourceServer
from portico.protocol import jsonrpc
from portico.protocol.errors import UsageError
from portico.protocol.versions import LATEST, REVISIONS, Revision
from portico.rpc import supervision
from portico.rpc.call import Call, Handler, members
from portico.rpc.handshake.session import Lifecycle
from portico.rpc.metrics import Metrics, without_tools
from portico.rpc.observers import OBSERVERS, turn_away
from portico.transports.http_server import error_responses
from portico.transports.http_server import headers as http
from portico.transports.http_server.authentication import Admission, with_cors
from portico.transports.http_server.cluster_hooks import SENT_ON, Elsewhere
from portico.transports.http_server.custom_routes import PageRoute, WebPages
from portico.transports.http_server.endpoint import Endpoint, Route, Routes
from portico.transports.http_server.headers import Gate, Headers, Proxies
from portico.transports.http_server.messages import JSON, TEXT, Answer, Pairs, Request, ResponseWriter, Traffic
from portico.transports.http_server.session_manager import IDLE_SECONDS

log = logging.getLogger("portico")

LONGEST_BODY = 4 * 1024 * 1024
MOST_BODY_BYTES = 256 * 1024 * 1024
KEEP_ALIVE_SECONDS = 15.0
# How long calls may still take at a path that is no more.
ENDING_SECONDS = 10.0
_ACCEPTED = re.compile(rb"json|\*/\*|event-stream|application/\*").search
# The headers that `refuse` looks at, and those that say again what a body says: see `Headers.agreed`.
_JUDGED = (b"host", b"origin", b"content-type", b"accept", http.VERSION, http.METHOD, http.NAME, SENT_ON)
_HEALTH = frozenset({"/health", "/healthz", "/readyz"})
_NUMBERS: Pairs = ((b"content-type", b"text/plain; version=0.0.4; charset=utf-8"),)


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
    # What the ids of sessions are signed with that clients carry; None: sessions are kept here.
    carried_key: bytes | None = None
    longest_body: int = LONGEST_BODY
    # How much the bodies of all requests may have together, from their first byte to their answers.
    most_body_bytes: int = MOST_BODY_BYTES
    most_in_flight: int = 10_000
    most_in_flight_per_client: int = 1000
    most_sessions: int = 100_000
    most_sessions_per_client: int = 10_000
    idle_session: float = IDLE_SECONDS


class Exchange:
    """Answers HTTP requests: with a Handler at the path of the settings, and with those that it has for other paths."""

    def __init__(
        self,
        handler: Handler,
        settings: Settings,
        describe: Callable[[], dict[str, Any]],
        pages: Sequence[PageRoute] = (),
        auth: ResourceServer | None = None,
    ) -> None:
        self.settings = settings
        self.metrics = Metrics()
        self.handler = handler
        self.draining = False
        # The other processes that serve the same clients.
        self.elsewhere: Elsewhere | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._describe = describe
        self._gate = Gate(settings.allow_hosts, settings.allow_origins, loopback=settings.loopback)
        self._auth = auth
        self._admission = self._made_admission(auth)
        self._forbidden = None if self._admission is None else self._admission.forbidden
        # What else a head says decides nothing: two that have the same in these are let in, or refused, alike.
        self.judged = _JUDGED if self._admission is None else (*_JUDGED, *self._admission.judged)
        # Requests whose tokens are being verified.
        self._waiting: set[asyncio.Task[None]] = set()
        self.proxies = Proxies(settings.trusted_proxies)
        self._began = time.monotonic()
        self.traffic = Traffic()
        main = Endpoint(handler, settings, self.metrics, self.traffic, self._forbidden)
        self.sessions = main.sessions
        # An author may say it in other words.
        said = {page.path for page in pages}
        self._fixed: Routes = {
            **{("GET", path): self._health for path in ("/health", "/healthz") if path not in said},
            ("GET", "/readyz"): self._show_readiness,
            ("GET", "/metrics"): self._show_metrics,
            ("POST", "/"): main.post,
            **main.routes(settings.path),
            **(main.old_routes() if settings.sse else {}),
        }
        own = self._admission.pages() if self._admission is not None else ()
        self.pages = WebPages(pages, own, self._fixed.keys())
        self._routes = self._fixed
        self._endpoints = {settings.path: main}
        # Those of pages, which let their visitors in themselves.
        self._beside: list[Endpoint] = []
        self._others = members(handler).endpoints
        self._ending: set[asyncio.Task[None]] = set()
        wrong = [path for path in self._others() if any(path == taken for _, taken in self._fixed)]
        if wrong:
            raise UsageError(f"{wrong[0]} cannot be an endpoint beside {settings.path}: something else is there")
        self._follow()

    def stay_on(self, loop: asyncio.AbstractEventLoop) -> None:
        """Answer on this loop and no other."""
        self._loop = loop
        for endpoint in self._all_endpoints():
            endpoint.stateless.door.loop = loop

    def bind(self, origins: Iterable[str]) -> None:
        """Note the origins of sockets that are bound: see `Admission.bind`."""
        if self._admission is not None:
            self._admission.bind(origins)

    def join(self, elsewhere: Elsewhere) -> None:
        """Be one of several processes that serve the same clients."""
        self.elsewhere = elsewhere
        for endpoint in self._endpoints.values():
            endpoint.join(elsewhere)

    @property
    def endpoints(self) -> Mapping[str, Endpoint]:
        """By their paths."""
        return self._endpoints

    def keep(self, endpoint: Endpoint) -> None:
        """See to the streams of an endpoint that is behind a page: that they stay alive, and that they end."""
        self._beside.append(endpoint)

    def _all_endpoints(self) -> list[Endpoint]:
        return [*self._endpoints.values(), *self._beside]

    async def identify(self, request: Request) -> Any:
        """The principal that a request shows, wherever it was sent to; None if it shows none that is good."""
        if self._admission is None:
            return None
        refused = self._admission.admit(request)
        if refused == "wait":
            refused = await self._admission.wait(request)
        return None if refused is not None else request.principal

    def answer_at(self, request: Request, writer: ResponseWriter) -> None:
        """Answer a request whose sender is known to another process. What they were let in by may be revoked by now."""
        if self._auth is not None and self._auth.is_revoked(request.principal):
            writer.answer(error_responses.error(request, 401, "Unauthorized: it was revoked", request.cors))
            return
        route = self._routes.get((request.method, request.path))
        if route is not None:
            route(request, writer)
            return
        page = self.pages.find(request.method, request.path)
        if page is not None and page.merge is not None:
            self.pages.answer(page, request, writer)
            return
        # Pages know their own visitors, whom no other process vouches for.
        if page is None or page.streamed is None or page.judge is None:
            writer.answer(self._nowhere(request))
        elif (refused := page.judge(request)) is not None:
            writer.answer(refused)
        else:
            page.streamed(request, writer)

    def is_page(self, request: Request) -> bool:
        """Whether a page answers it, and no endpoint."""
        found = self.pages.find(request.method, request.path)
        return found is not None and (request.method, request.path) not in self._routes

    def _follow(self) -> None:
        """The handler may have other endpoints by now."""
        taken = {path for _, path in self._fixed}
        wanted = {path: handler for path, handler in self._others().items() if path not in taken}
        known = {path: one for path, one in self._endpoints.items() if path != self.settings.path}
        if {path: one.handler for path, one in known.items()} == wanted:
            return
        gone = [one for path, one in known.items() if one.handler is not wanted.get(path)]
        kept = {path: one for path, one in known.items() if one not in gone}
        made = {
            path: kept.get(path) or Endpoint(handler, self.settings, self.metrics, self.traffic, self._forbidden)
            for path, handler in wanted.items()
        }
        for endpoint in made.values():
            endpoint.stateless.door.loop = self._loop
            if self.elsewhere is not None:
                endpoint.join(self.elsewhere)
        self._endpoints = {self.settings.path: self._endpoints[self.settings.path], **made}
        self._routes = dict(self._fixed)
        for path, endpoint in made.items():
            self._routes |= endpoint.routes(path)
        if gone:
            task = asyncio.get_running_loop().create_task(self._end(gone, ENDING_SECONDS))
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    def has(self, path: str) -> bool:
        """Whether it is the path of an endpoint."""
        return path in self._endpoints or path in self._others()

    # Coming in

    def refuse(self, request: Request) -> Answer | None:
        """What is wrong with a request before its body matters. The order is that of the ladder."""
        answer = self._judge(request)
        return None if answer is None else self.turned_away(request, answer)

    def turned_away(self, request: Request, answer: Answer) -> Answer:
        """The answer, of which those who watch have heard."""
        if OBSERVERS and request.method != "OPTIONS":
            turn_away(request.peer, f"{request.method} {request.path}", answer.status, len(answer.body))
        return answer

    def may_be_known(self, request: Request) -> bool:
        """Whether of one that says the same in the headers that are `judged` only `refuse_now` is asked. Pages judge by
        more than what a head says, and what other processes send on was not judged here at all."""
        return (request.method, request.path) in self._routes and SENT_ON not in request.headers

    def _judge(self, request: Request) -> Answer | None:
        if request.internal or SENT_ON in request.headers:
            return self._refuse_sent_on(request)
        # A probe knows an address, and no name.
        gate = self._gate.refuse_origin if self._is_probe(request) else self._gate.refusal
        reason = gate(request.headers)
        if reason is not None:
            return error_responses.error(request, 403, f"Forbidden: {reason}")
        if b"origin" in request.headers:
            request.cors = cors_of(request.headers)
        answer = self._refuse(request)
        return None if answer is None else with_cors(answer, request)

    def _refuse_sent_on(self, request: Request) -> Answer | None:
        """Why a request is refused that claims to be let in by another process: it must come by an internal listener,
        which takes nothing else."""
        if self.elsewhere is None or not request.internal or SENT_ON not in request.headers:
            return error_responses.error(
                request, 403, "Forbidden: workers send requests on to internal addresses alone"
            )
        return self.elsewhere.refuse(request)

    def _refuse(self, request: Request) -> Answer | None:
        if request.headers.repeated and request.headers.ambiguous():
            return error_responses.error(request, 400, "Bad request: a header that must stand once stands twice")
        if request.method == "OPTIONS":
            return _preflight(request.headers)
        if (request.method, request.path) not in self._routes:
            self._follow()
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
            return error_responses.busy(request)
        if route.judge is not None:
            return route.judge(request) or self._refuse_far(request)
        if route.guarded and self._admission is not None:
            return self._admission.refuse(request) or self._refuse_far(request)
        return self._refuse_far(request)

    def _is_probe(self, request: Request) -> bool:
        """Whether it only asks if we are well, which is no secret."""
        return request.path in _HEALTH and request.path != self.settings.path and request.method == "GET"

    def _refuse_far(self, request: Request) -> Answer | None:
        if self.settings.local_only and not is_near(request.peer):
            return error_responses.error(
                request, 403, "Forbidden: this server has a service that is for its own machine alone"
            )
        return None

    def refuse_now(self, request: Request) -> Answer | None:
        """The part of it that depends on the moment, and not on what the request says."""
        if self.draining or self.metrics.in_flight >= self.settings.most_in_flight:
            return error_responses.busy(request)
        if self.settings.local_only and not is_near(request.peer):
            return self._refuse_far(request)
        by_client = self.traffic.by_client
        if by_client and by_client.get(request.peer, 0) >= self.settings.most_in_flight_per_client:
            return error_responses.busy(request)
        return None

    def _refuse_kind(self, request: Request) -> Answer | None:
        kind = request.headers.get(b"content-type", b"")
        if kind != b"application/json" and kind.partition(b";")[0].strip().lower() != b"application/json":
            return error_responses.error(request, 415, "Unsupported media type: the body must be application/json")
        accept = request.headers.get(b"accept")
        if accept is None or _ACCEPTED(accept) is not None:
            return None
        return error_responses.error(
            request, 406, "Not acceptable: application/json and text/event-stream are what we have"
        )

    def _nowhere(self, request: Request) -> Answer:
        known = {method for method, path in self._routes if path == request.path}
        allowed = sorted(known | self.pages.methods(request.path))
        if not allowed:
            return Answer(404, TEXT, f"Not found: the MCP endpoint is {self.settings.path}\n".encode())
        return Answer(405, (*TEXT, (b"allow", ", ".join(allowed).encode())), b"Method not allowed\n")

    def handle(self, request: Request, writer: ResponseWriter) -> None:
        """Answer a request that was not refused."""
        self.traffic.received += len(request.body)
        if request.internal:
            assert self.elsewhere is not None
            self.elsewhere.receive(request, writer)
            return
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
        if found.merge is not None and self.elsewhere is not None:
            found = replace(found, page=partial(self._merge_page, found, self.elsewhere))
        show = partial(self.pages.answer, found)
        if found.guarded and self._admission is not None:
            self._admit(self._admission, show, request, writer)
        else:
            show(request, writer)

    @staticmethod
    async def _merge_page(route: PageRoute, others: Elsewhere, request: Request) -> Answer:
        """Answer with what all workers of this machine have at a path."""
        assert route.page is not None and route.merge is not None
        own = await route.page(request)
        if own.status != 200:
            return own
        bodies = await others.ask_others(route.path, request.principal)
        return Answer(own.status, own.headers, route.merge([own.body, *bodies]))

    # Who comes in

    def _made_admission(self, auth: ResourceServer | None) -> Admission | None:
        """None: all are let in, and nothing is looked at."""
        settings = self.settings
        given = settings.token or settings.operator_token
        tokens = BearerTokens(settings.token, settings.operator_token) if given else None
        if tokens is None and auth is None:
            return None
        if auth is not None:
            auth.on_revoked.append(self.end_streams_of)
        about = members(self.handler)
        return Admission(
            tokens,
            auth,
            settings.path,
            lambda: self._endpoints,
            about.needs,
            told=about.refused,
            hosts=settings.allow_hosts,
        )

    def _admit(self, admission: Admission, route: Route, request: Request, writer: ResponseWriter) -> None:
        """It was let in before its body was read, but what it shows may be good no longer, or wait to be verified."""
        refused = admission.admit(request)
        if refused is None:
            route(request, writer)
        elif isinstance(refused, Answer):
            writer.answer(with_cors(refused, request))
        else:
            task = asyncio.get_running_loop().create_task(self._admit_later(admission, route, request, writer))
            self._waiting.add(task)
            task.add_done_callback(self._waiting.discard)
            writer.on_close = task.cancel  # type: ignore[assignment]

    async def _admit_later(self, admission: Admission, route: Route, request: Request, writer: ResponseWriter) -> None:
        try:
            refused = await admission.wait(request)
            writer.on_close = None
            if refused is None:
                route(request, writer)
            else:
                writer.answer(with_cors(refused, request))
        except Exception:
            log.exception("error while answering %s %s", request.method, request.path)
            writer.answer(Answer(500, TEXT, b"Internal error\n"))

    # Looking in

    def _health(self, request: Request, writer: ResponseWriter) -> None:
        health = {
            "status": "draining" if self.draining else "ok",
            **self._describe(),
            "revisions": list(REVISIONS),
            "uptime": round(time.monotonic() - self._began, 3),
        }
        writer.answer(Answer(200, (*JSON, *request.cors), jsonrpc.encode(health)))

    def _show_readiness(self, request: Request, writer: ResponseWriter) -> None:
        """Answer whether calls can be handled, and which background tasks fail repeatedly.

        Only admitted clients see the dependencies and conditions.
        """
        handler, failing = members(self.handler), supervision.failing()
        depends = handler.readiness()
        known = (self.elsewhere is None or self.elsewhere.is_ready) and handler.is_settled()
        ready = not self.draining and known and not failing and not (depends and all(depends.values()))
        word = "draining" if self.draining else "ok" if ready else "not ready"
        lines = "".join(f"{line}\n" for line in (word, *(f"{name}: {why}" for name, why in failing.items())))
        brief = Answer(200 if ready else 503, (*TEXT, *request.cors), lines.encode())
        depends = {**depends, **handler.conditions()}
        admission = self._admission
        if admission is None or not depends:
            self._tell_more(brief, depends, writer, None)
            return
        refused = admission.admit(request)
        if refused != "wait":
            self._tell_more(brief, depends, writer, refused)
            return
        # A token that is still to be verified lets no client in.
        task = asyncio.get_running_loop().create_task(self._tell_later(admission, request, brief, depends, writer))
        self._waiting.add(task)
        task.add_done_callback(self._waiting.discard)
        writer.on_close = task.cancel  # type: ignore[assignment]

    async def _tell_later(
        self, admission: Admission, request: Request, brief: Answer, depends: Mapping[str, str], writer: ResponseWriter
    ) -> None:
        refused: Answer | None = brief
        try:
            refused = await admission.wait(request)
        except Exception:
            log.exception("error while answering %s %s", request.method, request.path)
        writer.on_close = None
        self._tell_more(brief, depends, writer, refused)

    @staticmethod
    def _tell_more(brief: Answer, depends: Mapping[str, str], writer: ResponseWriter, refused: Answer | None) -> None:
        more = "" if refused is not None else "".join(f"{name}: {wrong or 'ok'}\n" for name, wrong in depends.items())
        writer.answer(Answer(brief.status, brief.headers, brief.body + more.encode()))

    def numbers(self) -> str:
        """What this process has counted, as Prometheus reads it."""
        gauges = {
            "mcp_server_sessions": sum(map(len, self._endpoints.values())),
            "mcp_server_streams": sum(len(one.stateless.replies) for one in self._endpoints.values()),
            "mcp_server_uptime_seconds": time.monotonic() - self._began,
            "mcp_server_received_bytes_total": self.traffic.received,
            "mcp_server_sent_bytes_total": self.traffic.sent,
        }
        more = (*members(self.handler).measures(), *supervision.metrics())
        return self.metrics.text(gauges) + "".join(f"{line}\n" for line in more)

    def _show_metrics(self, request: Request, writer: ResponseWriter) -> None:
        def tell(text: str) -> None:
            writer.answer(Answer(200, _NUMBERS, self._numbers_for(request, text).encode()))

        own = self.numbers()
        if self.elsewhere is None or request.hops:
            tell(own)
        else:
            self.elsewhere.sum_metrics(own, tell)

    def _numbers_for(self, request: Request, text: str) -> str:
        """Where clients are told apart, the operator sees the numbers of all tools, others of those they may have."""
        principal = request.principal
        trusted = isinstance(principal, Principal) and not principal.lacks({"operator"})
        if self._admission is None or request.hops or trusted:
            return text
        hides = members(self.handler).hides
        call = Call(method="tools/list", id=0, principal=principal, address=request.peer, revision=LATEST)
        return without_tools(text, lambda name: hides(call, "tool", name))

    # Time, and the end

    def keep_alive(self) -> None:
        for endpoint in self._all_endpoints():
            endpoint.keep_alive()

    def expire(self) -> None:
        self._follow()
        if self._auth is not None:
            self._auth.tend()
        for endpoint in self._all_endpoints():
            endpoint.expire()

    def end_listening(self) -> None:
        """An end to `subscriptions/listen`; all else goes on."""
        for endpoint in self._all_endpoints():
            endpoint.stateless.end_listening()

    def end_streams_of(self, revoked: Callable[[Any], bool]) -> None:
        for endpoint in self._all_endpoints():
            endpoint.end_streams_of(revoked)

    def end_streams(self) -> None:
        """No new calls, and an end to what would have none by itself; calls go on."""
        self.draining = True
        for endpoint in self._all_endpoints():
            endpoint.end_streams()

    async def drain(self, grace: float) -> None:
        """No new calls; what is running may finish; streams are ended properly."""
        self.draining = True
        if self.elsewhere is not None:
            await self.elsewhere.leave()
        await self._end(self._all_endpoints(), grace)
        await self.pages.close()
        for task in list(self._waiting):
            task.cancel()

    async def _end(self, endpoints: list[Endpoint], grace: float) -> None:
        ending = [one for endpoint in endpoints for one in endpoint.ending(grace)]
        if ending:
            await asyncio.wait([asyncio.ensure_future(one) for one in ending], timeout=grace)
        for endpoint in endpoints:
            endpoint.close()


def cors_of(headers: Headers) -> Pairs:
    """For a page whose origin was let in."""
    origin = headers.get(b"origin")
    if origin is None:
        return ()
    return (
        (b"access-control-allow-origin", origin),
        (b"access-control-expose-headers", b"Mcp-Session-Id, WWW-Authenticate, DPoP-Nonce"),
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
