"""The console at a Server's own address: the page at `/`, its files below `/console/`, and its API.

Nothing is created or imported before a browser has opened the page and signed in.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from portico.auth.principal import StaticTokens
from portico.rpc.metrics import Metrics
from portico.rpc.supervision import BackgroundTasks
from portico.server.server import Server
from portico.store.data_directory import resolve_data_directory
from portico.transports.event_loop import LifespanTask
from portico.transports.http_server.application import HttpApplication
from portico.transports.http_server.custom_routes import MAX_FORM_BYTES, CustomRoute, RouteFunction
from portico.transports.http_server.endpoint import Endpoint
from portico.transports.http_server.messages import (
    TEXT_HEADERS,
    HeaderPairs,
    HttpRequest,
    HttpResponse,
    ResponseWriter,
    TrafficCounters,
)
from portico_console.app_sandbox import SANDBOX_PATH, serve_sandbox
from portico_console.session_auth import (
    BASE_SECURITY_HEADERS,
    LOGIN_TOKEN_TTL_SECONDS,
    OWNER,
    SECURITY_HEADERS,
    ConsoleAccess,
    ConsoleAuthenticator,
)

if TYPE_CHECKING:
    from portico_console.console import Console

PAGE = Path(__file__).with_name("static")
INDEX = "index.html"

# Only files with these suffixes are served; an editor's backup file in the directory is not.
TYPES = {
    ".html": b"text/html; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".mjs": b"text/javascript; charset=utf-8",
    ".css": b"text/css; charset=utf-8",
    ".svg": b"image/svg+xml",
    ".png": b"image/png",
    ".ico": b"image/x-icon",
    ".woff2": b"font/woff2",
    ".json": b"application/json",
    ".webmanifest": b"application/manifest+json",
}


class StaticFiles:
    """The files of a directory by path. Requests only look up known paths, so nothing else can be read."""

    def __init__(self, folder: Path = PAGE) -> None:
        self._folder = folder
        # Read once on first use: the files are part of the package and do not change while the server runs.
        self._known: dict[str, HttpResponse] = {}
        self._tags: dict[str, bytes] = {}

    def _read(self) -> None:
        for path in sorted(self._folder.rglob("*")):
            kind = TYPES.get(path.suffix)
            if kind is None or not path.is_file():
                continue
            body = path.read_bytes()
            tag = b'"%b"' % sha256(body).hexdigest()[:20].encode()
            # Revalidated each time: a newer Portico has newer files under the same names.
            headers: HeaderPairs = (
                (b"content-type", kind),
                (b"etag", tag),
                (b"cache-control", b"no-cache"),
                *SECURITY_HEADERS,
            )
            name = path.relative_to(self._folder).as_posix()
            self._known[name], self._tags[name] = HttpResponse(200, headers, body), tag

    async def index(self, request: HttpRequest) -> HttpResponse:
        """Serve the page."""
        return self._respond(INDEX, request)

    async def file(self, request: HttpRequest) -> HttpResponse:
        """Serve a file of the page."""
        return self._respond(request.path.removeprefix("/console/") or INDEX, request)

    def _respond(self, name: str, request: HttpRequest) -> HttpResponse:
        if not self._known:
            self._read()
        result = self._known.get(name)
        if result is None:
            return HttpResponse(404, (*TEXT_HEADERS, *SECURITY_HEADERS), b"Not found\n")
        # A substring test is enough: tags are quoted hashes, so one is never part of another.
        if self._tags[name] in request.headers.get(b"if-none-match", b""):
            return HttpResponse(304, result.headers)
        return result


log = logging.getLogger("portico")

# The file of saved calls.
SAVED_CALLS_FILE = "console-calls.json"
ROOT_PATH, CONSOLE_PATH, ENDPOINT_PATH = "/", "/console/", "/console/mcp"


class ConsoleSite:
    """The routes of a console, attached to a Server."""

    def __init__(self, make_console: Callable[[], Console], authenticator: ConsoleAuthenticator) -> None:
        self.authenticator = authenticator
        # The path of the page.
        self.home_path = ROOT_PATH
        self._make = make_console
        self._exchange: HttpApplication | None = None
        self._endpoint: Endpoint | None = None
        self._held: LifespanTask | None = None
        self._opening = asyncio.Lock()
        self._waiting = BackgroundTasks()
        # Created for the first sign-in.
        self._login: RouteFunction | None = None

    def routes(self, is_taken: Callable[[str], bool]) -> list[CustomRoute]:
        """Return the routes of the console. It uses `/` unless the server has a page there."""
        files, visit, post = StaticFiles(), self.authenticator.check_page_request, self.authenticator.check_post_request
        pages = [
            CustomRoute("GET", CONSOLE_PATH, files.file, prefix=True, judge=visit),
            CustomRoute("GET", SANDBOX_PATH, serve_sandbox, judge=visit),
            CustomRoute("POST", "/console/login", judge=post, streamed=self._sign_in),
            CustomRoute("POST", "/console/logout", judge=post, streamed=self._sign_out),
            CustomRoute("POST", ENDPOINT_PATH, judge=self.authenticator.check_api_request, streamed=self._handle),
        ]
        # A page of the server itself has priority; the console is then found under /console/ only.
        if is_taken(ROOT_PATH):
            self.home_path = CONSOLE_PATH
        else:
            pages.append(CustomRoute("GET", ROOT_PATH, files.index, judge=visit))
        return pages

    def attach_exchange(self, exchange: HttpApplication) -> None:
        """Attach to the HTTP application when it starts."""
        self._exchange = exchange
        self.authenticator.identify = exchange.identify_principal
        settings = exchange.settings
        if settings.token or settings.operator_token:
            self.authenticator.tokens = StaticTokens(settings.token, settings.operator_token)
        if settings.path == ROOT_PATH:
            self.home_path = CONSOLE_PATH

    # API requests

    def _handle(self, request: HttpRequest, writer: ResponseWriter) -> None:
        # The session may have ended since the first check, which only the first worker knows.
        # Checked twice, by the worker that accepted the connection and here: a session that was ended in the first
        # worker is unknown to the others.
        refused = self.authenticator.check_api_request(request)
        if refused is not None:
            writer.respond(refused)
            return
        # The page has our own origin, so responses need no CORS headers.
        request.cors = BASE_SECURITY_HEADERS
        # The state of a page is in one process: open targets, pending requests and messages.
        self._forward_to_first_worker(request, writer, partial(self._answer_here, request, writer))

    def _forward_to_first_worker(
        self, request: HttpRequest, writer: ResponseWriter, handle_locally: Callable[[], None]
    ) -> None:
        """Handle a request in the first worker, so that all requests share its state."""
        others = None if self._exchange is None else self._exchange.cluster
        if others is None or not others.route_to_first_worker(request, writer, handle_locally):
            handle_locally()

    def _sign_in(self, request: HttpRequest, writer: ResponseWriter) -> None:
        """Sign in at the worker that handles the API requests, because it remembers the token."""
        if len(request.body) <= MAX_FORM_BYTES:
            self._forward_to_first_worker(
                request, writer, lambda: self._respond_async(writer, self._login_here(request, writer))
            )
        else:
            writer.respond(HttpResponse(413, TEXT_HEADERS, b"Content too large\n"))

    async def _login_here(self, request: HttpRequest, writer: ResponseWriter) -> None:
        if self._login is None:
            from portico.transports.http_server import ip_rate_limit

            self._login = ip_rate_limit.IpRateLimiter(ip_rate_limit.LOGINS_PER_MINUTE).wrap(self.authenticator.login)
        writer.respond(await self._login(request))

    def _sign_out(self, request: HttpRequest, writer: ResponseWriter) -> None:
        if self.authenticator.get_session(request) is None:
            writer.respond(self.authenticator.logout(request))
        else:
            self._forward_to_first_worker(request, writer, lambda: writer.respond(self.authenticator.logout(request)))

    def _answer_here(self, request: HttpRequest, writer: ResponseWriter) -> None:
        # Fast path without a task: the owner has no token that could be revoked.
        if self._endpoint is not None and request.principal == OWNER:
            self._endpoint.handle_post(request, writer)
        else:
            self._respond_async(writer, self._answer_later(request, writer))

    def _respond_async(self, writer: ResponseWriter, work: Coroutine[Any, Any, None]) -> None:
        async def run_guarded() -> None:
            try:
                await work
            except Exception:
                log.exception("error in a console request")
                writer.respond(HttpResponse(500, TEXT_HEADERS, b"Internal error\n"))

        # Held in a set until it ends, and cancelled when the browser disconnects.
        task = self._waiting.start(run_guarded())
        writer.on_close = task.cancel  # type: ignore[assignment]

    async def _answer_later(self, request: HttpRequest, writer: ResponseWriter) -> None:
        if not await self.authenticator.is_token_still_valid(request):
            writer.respond(self.authenticator.unauthorized_response())
            return
        async with self._opening:
            if self._endpoint is None:
                self._endpoint = await self._ensure_open(request)
        writer.on_close = None
        self._endpoint.handle_post(request, writer)

    async def _ensure_open(self, request: HttpRequest) -> Endpoint:
        exchange = self._exchange
        assert exchange is not None
        console = self._make()
        # The console is opened by the first request; its lifespan needs a task of its own, because contexts must be
        # left by the task that entered them.
        self._held = LifespanTask(console.lifespan)
        await self._held.entered
        host = request.headers.get(b"host", b"").decode("latin-1").strip(" \t")
        console.attach_exchange(exchange, f"{'https' if request.secure else 'http'}://{host}{exchange.settings.path}")
        # Options that affect authentication of the server's endpoint must not apply here: the console has its own
        # sessions.
        settings = replace(
            exchange.settings, stateless_session_key=None, default_protocol_version=None, path=ENDPOINT_PATH
        )
        # With separate metrics, so that console requests do not count as server traffic.
        endpoint = Endpoint(console.server, settings, Metrics(), TrafficCounters())
        exchange.add_endpoint(endpoint)
        return endpoint

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        try:
            yield
        finally:
            lifespan_task, self._held, self._endpoint = self._held, None, None
            if lifespan_task is not None:
                await lifespan_task.exit()


def attach_console(
    server: Server,
    access: ConsoleAccess,
    secret: bytes,
    *,
    login_hint: str = "",
    make: Callable[[], Any] | None = None,
    manage_lifespan: bool = True,
) -> ConsoleSite:
    """Attach a console to a Server before it is run over HTTP.

    * **access** – who may use it.
    * **secret** – the key that signs links and sessions; all processes of a server share it.
    * **login_hint** – how users get a new link.
    * **make** – creates the Console, instead of one for this server.
    * **manage_lifespan** – whether it shares the server's lifespan; otherwise the caller enters its lifespan.
    """

    def make_console() -> Any:
        from portico_console import console as console_module

        return console_module.Console(
            server, saved_calls_file=resolve_data_directory(server.data_dir) / SAVED_CALLS_FILE
        )

    started_at = int(time.time())

    async def spend(id: str, expires: float) -> bool:
        spent = server.used_states
        # The secret outlives this process. Without a shared store, tokens used before the start are not remembered, so
        # older tokens are rejected.
        if not spent.is_shared and expires < started_at + LOGIN_TOKEN_TTL_SECONDS:
            return False
        return await spent.add(id, expires)

    site = ConsoleSite(make or make_console, ConsoleAuthenticator(access, secret, spend, login_hint))
    server.custom_routes += site.routes(
        lambda path: any(route.path == path and route.method == "GET" for route in server.custom_routes)
    )
    server.on_http_start.append(site.attach_exchange)
    if manage_lifespan:
        server.add_lifespan(site.lifespan)
    return site
