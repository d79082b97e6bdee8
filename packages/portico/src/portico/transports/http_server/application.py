"""HTTP application: access checks and routing of requests to endpoints. Free of sockets."""

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

from portico.auth.principal import Principal, StaticTokens
from portico.auth.resource_server import ResourceServer
from portico.protocol import jsonrpc
from portico.protocol.errors import UsageError
from portico.protocol.versions import LATEST_PROTOCOL_VERSION, SUPPORTED_PROTOCOL_VERSIONS, ProtocolVersion
from portico.rpc import supervision
from portico.rpc.call import Call, Handler, get_capabilities
from portico.rpc.handshake.session import LifecycleMode
from portico.rpc.identity import client_network
from portico.rpc.metrics import Metrics, filter_hidden_tools
from portico.rpc.observers import OBSERVERS, notify_rejected_http_request
from portico.transports.http_server import error_responses, headers as http
from portico.transports.http_server.authentication import RequestAuthenticator, add_cors_headers
from portico.transports.http_server.cluster_hooks import FORWARDED_HEADER, ClusterHooks
from portico.transports.http_server.custom_routes import CustomRoute, CustomRoutes
from portico.transports.http_server.endpoint import Endpoint, RouteHandler, RouteTable
from portico.transports.http_server.headers import Headers, HostPolicy, TrustedProxies
from portico.transports.http_server.messages import (
    JSON_HEADERS,
    TEXT_HEADERS,
    HeaderPairs,
    HttpRequest,
    HttpResponse,
    ResponseWriter,
    TrafficCounters,
)
from portico.transports.http_server.session_manager import IDLE_TIMEOUT_SECONDS

log = logging.getLogger("portico")

MAX_BODY_BYTES = 4 * 1024 * 1024
MAX_TOTAL_BODY_BYTES = 256 * 1024 * 1024
KEEP_ALIVE_INTERVAL_SECONDS = 15.0
# Time for active calls of an endpoint that was removed.
ENDPOINT_DRAIN_SECONDS = 10.0
_ACCEPTABLE = re.compile(rb"json|\*/\*|event-stream|application/\*").search
# Headers that decide whether a request is accepted, and headers that repeat parts of the body: see
# `Headers.validated_body`.
_DECISIVE_HEADERS = (
    b"host",
    b"origin",
    b"content-type",
    b"accept",
    http.PROTOCOL_VERSION_HEADER,
    http.METHOD_HEADER,
    http.NAME_HEADER,
    FORWARDED_HEADER,
)
_HEALTH_PATHS = frozenset({"/health", "/healthz", "/readyz"})
_METRICS_HEADERS: HeaderPairs = ((b"content-type", b"text/plain; version=0.0.4; charset=utf-8"),)


class HttpServerSettings(Struct, kw_only=True):
    """Settings of an HTTP server."""

    path: str = "/mcp"
    allowed_hosts: Sequence[str] = ()
    allowed_origins: Sequence[str] = ()
    # Loopback names are allowed without being listed; a public server lists its own names.
    allow_loopback: bool = True
    token: str | None = None
    # Requests with this token have the scope `operator`, and no other.
    operator_token: str | None = None
    # Addresses and networks of proxies whose X-Forwarded-For and Forwarded headers are trusted.
    trusted_proxies: Sequence[str] = ()
    # Whether requests from other machines are rejected, whatever Host they name and however they arrive.
    local_only: bool = False
    # The two endpoints of 2024-11-05, /sse and /messages.
    sse: bool = False
    # Protocol version for clients without a session that do not use 2026-07-28. None rejects them.
    default_protocol_version: ProtocolVersion | None = None
    # "strict": sessions wait for `initialized`, although POST requests may overtake each other.
    lifecycle: LifecycleMode = "auto"
    # Key that signs session ids which contain the session state. None stores sessions on the server.
    stateless_session_key: bytes | None = None
    max_body_size: int = MAX_BODY_BYTES
    # Total size of the bodies of all requests, from their first byte until they are answered.
    max_total_body_size: int = MAX_TOTAL_BODY_BYTES
    max_concurrent_requests: int = 10_000
    max_concurrent_requests_per_client: int = 1000
    max_sessions: int = 100_000
    max_sessions_per_client: int = 10_000
    session_idle_timeout: float = IDLE_TIMEOUT_SECONDS


class HttpApplication:
    """Serves HTTP requests with a Handler at the configured path, and with the handler's additional endpoints."""

    def __init__(
        self,
        handler: Handler,
        settings: HttpServerSettings,
        server_info: Callable[[], dict[str, Any]],
        routes: Sequence[CustomRoute] = (),
        auth: ResourceServer | None = None,
    ) -> None:
        self.settings = settings
        self.metrics = Metrics()
        self.handler = handler
        self.draining = False
        # The other processes that serve the same clients.
        self.cluster: ClusterHooks | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._describe = server_info
        self._host_policy = HostPolicy(
            settings.allowed_hosts, settings.allowed_origins, allow_loopback=settings.allow_loopback
        )
        self._auth = auth
        self._authenticator = self._create_authenticator(auth)
        self._forbidden = None if self._authenticator is None else self._authenticator.insufficient_scope_response
        # Other headers do not influence the checks: requests with equal values here are accepted or rejected alike.
        self.decisive_headers = (
            _DECISIVE_HEADERS
            if self._authenticator is None
            else (*_DECISIVE_HEADERS, *self._authenticator.credential_headers)
        )
        # Requests whose tokens are being verified.
        self._pending_auth = supervision.BackgroundTasks()
        self.trusted_proxies = TrustedProxies(settings.trusted_proxies)
        self._started_at = time.monotonic()
        self.traffic = TrafficCounters()
        main = Endpoint(handler, settings, self.metrics, self.traffic, self._forbidden)
        self.sessions = main.sessions
        # An application may replace the health routes.
        custom_paths = {page.path for page in routes}
        self._builtin_routes: RouteTable = {
            **{("GET", path): self._serve_health for path in ("/health", "/healthz") if path not in custom_paths},
            ("GET", "/readyz"): self._serve_readiness,
            ("GET", "/metrics"): self._serve_metrics,
            ("POST", "/"): main.handle_post,
            **main.routes(settings.path),
            **(main.sse_routes() if settings.sse else {}),
        }
        own = self._authenticator.metadata_routes() if self._authenticator is not None else ()
        self.custom_routes = CustomRoutes(routes, own, self._builtin_routes.keys())
        self._routes = self._builtin_routes
        self._endpoints = {settings.path: main}
        # Endpoints behind custom routes, which authenticate their users themselves.
        self._extra_endpoints: list[Endpoint] = []
        self._list_endpoints = get_capabilities(handler).operations.endpoints
        self._ending = supervision.BackgroundTasks()
        wrong = [
            path
            for path in self._list_endpoints()
            if any(path == builtin_path for _, builtin_path in self._builtin_routes)
        ]
        if wrong:
            raise UsageError(
                f"{wrong[0]} cannot be an endpoint in addition to {settings.path}: the path is already in use"
            )
        self._sync_endpoints()

    def bind_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        """Bind the application to one event loop."""
        self._loop = loop
        for endpoint in self._all_endpoints():
            endpoint.stateless.dispatcher.loop = loop

    def bind(self, origins: Iterable[str]) -> None:
        """Register the origins of the bound sockets. See `RequestAuthenticator.bind`."""
        if self._authenticator is not None:
            self._authenticator.bind(origins)

    def join_cluster(self, cluster: ClusterHooks) -> None:
        """Join a cluster of processes that serve the same clients."""
        self.cluster = cluster
        for endpoint in self._endpoints.values():
            endpoint.join_cluster(cluster)

    @property
    def endpoints(self) -> Mapping[str, Endpoint]:
        """Return the endpoints by path."""
        return self._endpoints

    def add_endpoint(self, endpoint: Endpoint) -> None:
        """Manage the streams of an endpoint behind a custom route: keep-alives, and their end."""
        self._extra_endpoints.append(endpoint)

    def _all_endpoints(self) -> list[Endpoint]:
        return [*self._endpoints.values(), *self._extra_endpoints]

    async def identify_principal(self, request: HttpRequest) -> Any:
        """Return the principal of a request to any path, or None without valid credentials."""
        if self._authenticator is None:
            return None
        refused = self._authenticator.authenticate(request)
        if refused == "wait":
            refused = await self._authenticator.authenticate_async(request)
        return None if refused is not None else request.principal

    def handle_forwarded(self, request: HttpRequest, writer: ResponseWriter) -> None:
        """Serve a request that another process authenticated. Its credentials may have been revoked since."""
        if self._auth is not None and self._auth.is_revoked(request.principal):
            writer.respond(
                error_responses.error_response(
                    request, 401, ("Unauthorized: the credentials were revoked"), request.cors
                )
            )
            return
        route = self._routes.get((request.method, request.path))
        if route is not None:
            route(request, writer)
            return
        page = self.custom_routes.find(request.method, request.path)
        if page is not None and page.merge is not None:
            self.custom_routes.dispatch(page, request, writer)
            return
        # Custom routes authenticate their own users; other processes do not vouch for them.
        if page is None or page.streamed is None or page.judge is None:
            writer.respond(self._not_found_response(request))
        elif (refused := page.judge(request)) is not None:
            writer.respond(refused)
        else:
            page.streamed(request, writer)

    def is_page(self, request: HttpRequest) -> bool:
        """Return whether a custom route handles the request, rather than an endpoint."""
        result = self.custom_routes.find(request.method, request.path)
        return result is not None and (request.method, request.path) not in self._routes

    def _sync_endpoints(self) -> None:
        """Update the endpoints: the handler's list may have changed."""
        reserved = {path for _, path in self._builtin_routes}
        handlers = {path: handler for path, handler in self._list_endpoints().items() if path not in reserved}
        current = {
            path: current_endpoint for path, current_endpoint in self._endpoints.items() if path != self.settings.path
        }
        if {path: current_endpoint.handler for path, current_endpoint in current.items()} == handlers:
            return
        removed = [
            current_endpoint
            for path, current_endpoint in current.items()
            if current_endpoint.handler is not handlers.get(path)
        ]
        remaining = {
            path: current_endpoint for path, current_endpoint in current.items() if current_endpoint not in removed
        }
        added = {
            path: remaining.get(path) or Endpoint(handler, self.settings, self.metrics, self.traffic, self._forbidden)
            for path, handler in handlers.items()
        }
        for endpoint in added.values():
            endpoint.stateless.dispatcher.loop = self._loop
            if self.cluster is not None:
                endpoint.join_cluster(self.cluster)
        self._endpoints = {self.settings.path: self._endpoints[self.settings.path], **added}
        self._routes = dict(self._builtin_routes)
        for path, endpoint in added.items():
            self._routes |= endpoint.routes(path)
        if removed:
            self._ending.start(self._drain_endpoints(removed, ENDPOINT_DRAIN_SECONDS))

    def is_endpoint_path(self, path: str) -> bool:
        """Return whether a path belongs to an endpoint."""
        return path in self._endpoints or path in self._list_endpoints()

    # Checks before the body

    def precheck(self, request: HttpRequest) -> HttpResponse | None:
        """Return the error response for a request before its body is read, or None. The order of checks is fixed."""
        answer = self._precheck_endpoint(request)
        return None if answer is None else self.report_rejection(request, answer)

    def report_rejection(self, request: HttpRequest, answer: HttpResponse) -> HttpResponse:
        """Report a rejected request to the observers, and return the response."""
        if OBSERVERS and request.method != "OPTIONS":
            notify_rejected_http_request(
                request.peer, f"{request.method} {request.path}", answer.status, len(answer.body)
            )
        return answer

    def is_precheck_cacheable(self, request: HttpRequest) -> bool:
        """Return whether the result of `precheck` is valid for all requests with equal decisive headers.

        Custom routes check more than the headers, and forwarded requests are not checked here.
        """
        return (request.method, request.path) in self._routes and FORWARDED_HEADER not in request.headers

    def _precheck_endpoint(self, request: HttpRequest) -> HttpResponse | None:
        if request.internal or FORWARDED_HEADER in request.headers:
            return self._refuse_sent_on(request)
        # Health probes use an address, not a host name.
        gate = self._host_policy.check_origin if self._is_probe(request) else self._host_policy.check
        reason = gate(request.headers)
        if reason is not None:
            return error_responses.error_response(request, 403, f"Forbidden: {reason}")
        if b"origin" in request.headers:
            request.cors = cors_headers(request.headers)
        answer = self._precheck(request)
        return None if answer is None else add_cors_headers(answer, request)

    def _refuse_sent_on(self, request: HttpRequest) -> HttpResponse | None:
        """Return the error response for a forwarded request, or None.

        Forwarded requests must arrive at an internal listener, which accepts nothing else.
        """
        if self.cluster is None or not request.internal or FORWARDED_HEADER not in request.headers:
            return error_responses.error_response(
                request, 403, "Forbidden: requests may only be forwarded to internal addresses"
            )
        return self.cluster.reject_forwarded(request)

    def _precheck(self, request: HttpRequest) -> HttpResponse | None:
        if request.headers.duplicates and request.headers.has_conflicting_duplicates():
            return error_responses.error_response(request, 400, "Bad request: duplicate header that must be unique")
        if request.method == "OPTIONS":
            return _preflight_response(request.headers)
        if (request.method, request.path) not in self._routes:
            self._sync_endpoints()
            if (request.method, request.path) not in self._routes:
                return self._precheck_route(request)
        if self._is_probe(request):
            return None
        if self._authenticator is not None:
            unknown = self._authenticator.reject_early(request)
            if unknown is not None:
                return unknown
        if request.method == "POST":
            return self._check_media_types(request) or self.check_capacity(request)
        return self._reject_remote(request)

    def _precheck_route(self, request: HttpRequest) -> HttpResponse | None:
        route = self.custom_routes.find(request.method, request.path)
        if route is None:
            return self._not_found_response(request)
        if self.draining:
            return error_responses.overloaded_response(request)
        if route.judge is not None:
            return route.judge(request) or self._reject_remote(request)
        if route.guarded and self._authenticator is not None:
            return self._authenticator.reject_early(request) or self._reject_remote(request)
        return self._reject_remote(request)

    def _is_probe(self, request: HttpRequest) -> bool:
        """Return whether the request is a health probe, which needs no authentication."""
        return request.path in _HEALTH_PATHS and request.path != self.settings.path and request.method == "GET"

    def _reject_remote(self, request: HttpRequest) -> HttpResponse | None:
        if self.settings.local_only and not is_local_peer(request.peer):
            return error_responses.error_response(
                request, 403, "Forbidden: a service of this server is restricted to the local machine"
            )
        return None

    def check_capacity(self, request: HttpRequest) -> HttpResponse | None:
        """Return the error response if limits are exceeded, or None. Depends on the current load, not on the request's
        content.
        """
        if self.draining or self.metrics.in_flight >= self.settings.max_concurrent_requests:
            return error_responses.overloaded_response(request)
        if self.settings.local_only and not is_local_peer(request.peer):
            return self._reject_remote(request)
        by_client = self.traffic.in_flight_by_client
        if (
            by_client
            and by_client.get(client_network(request.peer), 0) >= self.settings.max_concurrent_requests_per_client
        ):
            return error_responses.overloaded_response(request)
        return None

    def _check_media_types(self, request: HttpRequest) -> HttpResponse | None:
        kind = request.headers.get(b"content-type", b"")
        if kind != b"application/json" and kind.partition(b";")[0].strip().lower() != b"application/json":
            return error_responses.error_response(
                request, 415, "Unsupported media type: the body must be application/json"
            )
        accept = request.headers.get(b"accept")
        if accept is None or _ACCEPTABLE(accept) is not None:
            return None
        return error_responses.error_response(
            request, 406, "Not acceptable: this server sends application/json and text/event-stream"
        )

    def _not_found_response(self, request: HttpRequest) -> HttpResponse:
        methods = {method for method, path in self._routes if path == request.path}
        allowed = sorted(methods | self.custom_routes.allowed_methods(request.path))
        if not allowed:
            return HttpResponse(404, TEXT_HEADERS, f"Not found: the MCP endpoint is {self.settings.path}\n".encode())
        return HttpResponse(405, (*TEXT_HEADERS, (b"allow", ", ".join(allowed).encode())), b"Method not allowed\n")

    def handle(self, request: HttpRequest, writer: ResponseWriter) -> None:
        """Serve a request that passed `precheck`."""
        self.traffic.received_bytes += len(request.body)
        if request.internal:
            assert self.cluster is not None
            self.cluster.receive_forwarded(request, writer)
            return
        route = self._routes.get((request.method, request.path))
        if route is None:
            self._serve_route(request, writer)
            return
        if self._authenticator is None or self._is_probe(request):
            route(request, writer)
        else:
            self._authenticate(self._authenticator, route, request, writer)

    def _serve_route(self, request: HttpRequest, writer: ResponseWriter) -> None:
        result = self.custom_routes.find(request.method, request.path)
        if result is None:
            writer.respond(self._not_found_response(request))
            return
        if result.merge is not None and self.cluster is not None:
            result = replace(result, page=partial(self._merge_page, result, self.cluster))
        show = partial(self.custom_routes.dispatch, result)
        if result.guarded and self._authenticator is not None:
            self._authenticate(self._authenticator, show, request, writer)
        else:
            show(request, writer)

    @staticmethod
    async def _merge_page(route: CustomRoute, others: ClusterHooks, request: HttpRequest) -> HttpResponse:
        """Return the merged responses of all workers of this machine."""
        assert route.page is not None and route.merge is not None
        own = await route.page(request)
        if own.status != 200:
            return own
        bodies = await others.ask_others(route.path, request.principal)
        return HttpResponse(own.status, own.headers, route.merge([own.body, *bodies]))

    # Authentication

    def _create_authenticator(self, auth: ResourceServer | None) -> RequestAuthenticator | None:
        """Create the authenticator. None accepts all requests."""
        settings = self.settings
        has_static_token = settings.token or settings.operator_token
        tokens = StaticTokens(settings.token, settings.operator_token) if has_static_token else None
        if tokens is None and auth is None:
            return None
        if auth is not None:
            auth.on_revoked.append(self.end_streams_for)
        about = get_capabilities(self.handler)
        return RequestAuthenticator(
            tokens,
            auth,
            settings.path,
            lambda: self._endpoints,
            about.directory.required_scopes,
            on_rejected=about.operations.on_rejected_request,
            hosts=settings.allowed_hosts,
        )

    def _authenticate(
        self, admission: RequestAuthenticator, route: RouteHandler, request: HttpRequest, writer: ResponseWriter
    ) -> None:
        """Authenticate and serve a request. Cached credentials may have expired since the precheck, or need
        verification.
        """
        refused = admission.authenticate(request)
        if refused is None:
            route(request, writer)
        elif isinstance(refused, HttpResponse):
            writer.respond(add_cors_headers(refused, request))
        else:
            task = self._pending_auth.start(self._authenticate_async(admission, route, request, writer))
            writer.on_close = task.cancel  # type: ignore[assignment]

    async def _authenticate_async(
        self, admission: RequestAuthenticator, route: RouteHandler, request: HttpRequest, writer: ResponseWriter
    ) -> None:
        try:
            refused = await admission.authenticate_async(request)
            writer.on_close = None
            if refused is None:
                route(request, writer)
            else:
                writer.respond(add_cors_headers(refused, request))
        except Exception:
            log.exception("error while answering %s %s", request.method, request.path)
            writer.respond(HttpResponse(500, TEXT_HEADERS, b"Internal error\n"))

    # Health and metrics

    def _serve_health(self, request: HttpRequest, writer: ResponseWriter) -> None:
        health = {
            "status": "draining" if self.draining else "ok",
            **self._describe(),
            "revisions": list(SUPPORTED_PROTOCOL_VERSIONS),
            "uptime": round(time.monotonic() - self._started_at, 3),
        }
        writer.respond(HttpResponse(200, (*JSON_HEADERS, *request.cors), jsonrpc.encode(health)))

    def _serve_readiness(self, request: HttpRequest, writer: ResponseWriter) -> None:
        """Report whether calls can be handled, and which background tasks fail repeatedly.

        Only authenticated clients see the dependencies and conditions.
        """
        operations, failing = get_capabilities(self.handler).operations, supervision.failing()
        depends = operations.readiness()
        started = (self.cluster is None or self.cluster.is_ready) and operations.is_settled()
        ready = not self.draining and started and not failing and not (depends and all(depends.values()))
        word = "draining" if self.draining else "ok" if ready else "not ready"
        lines = "".join(f"{line}\n" for line in (word, *(f"{name}: {why}" for name, why in failing.items())))
        brief = HttpResponse(200 if ready else 503, (*TEXT_HEADERS, *request.cors), lines.encode())
        depends = {**depends, **operations.conditions()}
        admission = self._authenticator
        if admission is None or not depends:
            self._respond_readiness(brief, depends, writer, None)
            return
        refused = admission.authenticate(request)
        if refused != "wait":
            self._respond_readiness(brief, depends, writer, refused)
            return
        # Do not block the probe: details follow only if the token turns out to be valid.
        task = self._pending_auth.start(self._respond_readiness_async(admission, request, brief, depends, writer))
        writer.on_close = task.cancel  # type: ignore[assignment]

    async def _respond_readiness_async(
        self,
        admission: RequestAuthenticator,
        request: HttpRequest,
        brief: HttpResponse,
        depends: Mapping[str, str],
        writer: ResponseWriter,
    ) -> None:
        refused: HttpResponse | None = brief
        try:
            refused = await admission.authenticate_async(request)
        except Exception:
            log.exception("error while answering %s %s", request.method, request.path)
        writer.on_close = None
        self._respond_readiness(brief, depends, writer, refused)

    @staticmethod
    def _respond_readiness(
        brief: HttpResponse, depends: Mapping[str, str], writer: ResponseWriter, refused: HttpResponse | None
    ) -> None:
        more = "" if refused is not None else "".join(f"{name}: {wrong or 'ok'}\n" for name, wrong in depends.items())
        writer.respond(HttpResponse(brief.status, brief.headers, brief.body + more.encode()))

    def render_metrics(self) -> str:
        """Return the metrics of this process in the Prometheus text format."""
        gauges = {
            "mcp_server_sessions": sum(map(len, self._endpoints.values())),
            "mcp_server_streams": sum(len(endpoint.stateless.replies) for endpoint in self._endpoints.values()),
            "mcp_server_uptime_seconds": time.monotonic() - self._started_at,
            "mcp_server_received_bytes_total": self.traffic.received_bytes,
            "mcp_server_sent_bytes_total": self.traffic.sent_bytes,
        }
        more = (*get_capabilities(self.handler).operations.render_metrics(), *supervision.metrics())
        return self.metrics.render_prometheus(gauges) + "".join(f"{line}\n" for line in more)

    def _serve_metrics(self, request: HttpRequest, writer: ResponseWriter) -> None:
        def respond(text: str) -> None:
            writer.respond(HttpResponse(200, _METRICS_HEADERS, self._filter_metrics(request, text).encode()))

        own = self.render_metrics()
        if self.cluster is None or request.hops:
            respond(own)
        else:
            self.cluster.aggregate_metrics(own, respond)

    def _filter_metrics(self, request: HttpRequest, text: str) -> str:
        """Return the metrics that the caller may see: all tools for operators, otherwise the tools visible to the
        caller.
        """
        principal = request.principal
        trusted = isinstance(principal, Principal) and not principal.missing_scopes({"operator"})
        if self._authenticator is None or request.hops or trusted:
            return text
        hides = get_capabilities(self.handler).directory.is_hidden
        call = Call(
            method="tools/list",
            id=0,
            principal=principal,
            address=request.peer,
            protocol_version=LATEST_PROTOCOL_VERSION,
        )
        return filter_hidden_tools(text, lambda name: hides(call, "tool", name))

    # Timers and shutdown

    def send_keep_alives(self) -> None:
        for endpoint in self._all_endpoints():
            endpoint.send_keep_alives()

    def expire_sessions(self) -> None:
        self._sync_endpoints()
        if self._auth is not None:
            self._auth.check_revocations()
        for endpoint in self._all_endpoints():
            endpoint.expire_sessions()

    def end_subscriptions(self) -> None:
        """End all `subscriptions/listen` requests. Other requests continue."""
        for endpoint in self._all_endpoints():
            endpoint.stateless.end_subscriptions()

    def end_streams_for(self, is_revoked: Callable[[Any], bool]) -> None:
        for endpoint in self._all_endpoints():
            endpoint.end_streams_for(is_revoked)

    def end_streams(self) -> None:
        """Stop accepting calls and end all streams. Active calls continue."""
        self.draining = True
        for endpoint in self._all_endpoints():
            endpoint.end_streams()

    async def drain(self, timeout: float) -> None:
        """Stop accepting calls, wait for active calls, and end all streams."""
        self.draining = True
        if self.cluster is not None:
            await self.cluster.leave()
        await self._drain_endpoints(self._all_endpoints(), timeout)
        await self.custom_routes.close()
        self._pending_auth.cancel()

    async def _drain_endpoints(self, endpoints: list[Endpoint], timeout: float) -> None:
        ending = [item for endpoint in endpoints for item in endpoint.begin_shutdown(timeout)]
        if ending:
            await asyncio.wait([asyncio.ensure_future(item) for item in ending], timeout=timeout)
        for endpoint in endpoints:
            endpoint.close()


def cors_headers(headers: Headers) -> HeaderPairs:
    """Return the CORS headers for a page whose origin is allowed."""
    origin = headers.get(b"origin")
    if origin is None:
        return ()
    return (
        (b"access-control-allow-origin", origin),
        (b"access-control-expose-headers", b"Mcp-Session-Id, WWW-Authenticate, DPoP-Nonce"),
        (b"vary", b"Origin"),
    )


def _preflight_response(headers: Headers) -> HttpResponse:
    allow = (
        (b"access-control-allow-methods", b"GET, POST, DELETE, OPTIONS"),
        (b"access-control-allow-headers", headers.get(b"access-control-request-headers", b"*")),
        (b"access-control-max-age", b"86400"),
    )
    return HttpResponse(204, allow)


def is_local_peer(peer: str) -> bool:
    """Return whether a request comes from this machine."""
    return peer.startswith(("127.", "::ffff:127.")) or peer in ("::1", "local")
