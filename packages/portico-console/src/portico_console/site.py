"""The console at a Server's own address: the page at `/`, its files below `/console/`, and what it asks.

Nothing of it is made, or even imported, before a browser has opened the page and signed in.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from portico._lazy import LazyModule
from portico.auth.principal import BearerTokens
from portico.rpc.metrics import Metrics
from portico.server.server import Server
from portico.store.data_directory import data_directory
from portico.transports.event_loop import HeldLifespan
from portico.transports.http_server.application import Exchange
from portico.transports.http_server.custom_routes import LONGEST_FORM, Page, PageRoute
from portico.transports.http_server.endpoint import Endpoint
from portico.transports.http_server.messages import TEXT, Answer, Request, ResponseWriter, Traffic
from portico_console.app_sandbox import FRAME, frame
from portico_console.session_auth import APART, OWNER, TOKEN_SECONDS, ConsoleAccess, ConsoleGate
from portico_console.static_files import PageFiles

if TYPE_CHECKING:
    from portico.transports.http_server import ip_rate_limit
    from portico_console import console as console_module
    from portico_console.console import Console
else:
    ip_rate_limit = LazyModule("portico.transports.http_server.ip_rate_limit")
    console_module = LazyModule("portico_console.console")

log = logging.getLogger("portico")

# The calls that people have saved.
SAVED = "console-calls.json"
ROOT, PATH, ENDPOINT = "/", "/console/", "/console/mcp"


class ConsoleSite:
    """Where a console is reached. It comes and goes with the Server that it is attached to."""

    def __init__(self, make: Callable[[], Console], gate: ConsoleGate) -> None:
        self.gate = gate
        # Where people begin.
        self.home = ROOT
        self._make = make
        self._exchange: Exchange | None = None
        self._endpoint: Endpoint | None = None
        self._held: HeldLifespan | None = None
        self._opening = asyncio.Lock()
        self._waiting: set[asyncio.Task[None]] = set()
        # Made for the first who signs in.
        self._login: Page | None = None

    def pages(self, taken: Callable[[str], bool]) -> list[PageRoute]:
        """Everything but the endpoint is a page like any other. `/` is ours unless the server has a page there."""
        files, visit, post = PageFiles(), self.gate.refuse_visit, self.gate.refuse_post
        pages = [
            PageRoute("GET", PATH, files.file, prefix=True, judge=visit),
            PageRoute("GET", FRAME, frame, judge=visit),
            PageRoute("POST", "/console/login", judge=post, streamed=self._sign_in),
            PageRoute("POST", "/console/logout", judge=post, streamed=self._sign_out),
            PageRoute("POST", ENDPOINT, judge=self.gate.refuse_call, streamed=self._answer),
        ]
        if taken(ROOT):
            self.home = PATH
        else:
            pages.append(PageRoute("GET", ROOT, files.index, judge=visit))
        return pages

    def use(self, exchange: Exchange) -> None:
        """HTTP is opened."""
        self._exchange = exchange
        self.gate.identify = exchange.identify
        given = exchange.settings
        if given.token or given.operator_token:
            self.gate.tokens = BearerTokens(given.token, given.operator_token)
        if given.path == ROOT:
            self.home = PATH

    # Answering the page

    def _answer(self, request: Request, writer: ResponseWriter) -> None:
        # Who has left since it was let in is out, and only one process knows.
        refused = self.gate.refuse_call(request)
        if refused is not None:
            writer.answer(refused)
            return
        # The page is of our own origin: no other one hears an answer, nor takes it for something else.
        request.cors = APART
        # What a page looks at is in one process: what is open, what was asked, what was said.
        self._by_first(request, writer, partial(self._answer_here, request, writer))

    def _by_first(self, request: Request, writer: ResponseWriter, here: Callable[[], None]) -> None:
        """Have one and the same process see to a request."""
        others = None if self._exchange is None else self._exchange.elsewhere
        if others is None or not others.send_to_first(request, writer, here):
            here()

    def _sign_in(self, request: Request, writer: ResponseWriter) -> None:
        """In the process that will be asked, which remembers who came with what."""
        if len(request.body) <= LONGEST_FORM:
            self._by_first(request, writer, lambda: self._later(writer, self._login_here(request, writer)))
        else:
            writer.answer(Answer(413, TEXT, b"Content too large\n"))

    async def _login_here(self, request: Request, writer: ResponseWriter) -> None:
        if self._login is None:
            self._login = ip_rate_limit.AddressPace(ip_rate_limit.LOGINS).around(self.gate.login)
        writer.answer(await self._login(request))

    def _sign_out(self, request: Request, writer: ResponseWriter) -> None:
        if self.gate.visitor(request) is None:
            writer.answer(self.gate.logout(request))
        else:
            self._by_first(request, writer, lambda: writer.answer(self.gate.logout(request)))

    def _answer_here(self, request: Request, writer: ResponseWriter) -> None:
        if self._endpoint is not None and request.principal == OWNER:
            self._endpoint.post(request, writer)
        else:
            self._later(writer, self._answer_later(request, writer))

    def _later(self, writer: ResponseWriter, work: Coroutine[Any, Any, None]) -> None:
        async def guarded() -> None:
            try:
                await work
            except Exception:
                log.exception("the console cannot answer")
                writer.answer(Answer(500, TEXT, b"Internal error\n"))

        task = asyncio.get_running_loop().create_task(guarded())
        self._waiting.add(task)
        task.add_done_callback(self._waiting.discard)
        writer.on_close = task.cancel  # type: ignore[assignment]

    async def _answer_later(self, request: Request, writer: ResponseWriter) -> None:
        if not await self.gate.stands(request):
            writer.answer(self.gate.unknown())
            return
        async with self._opening:
            if self._endpoint is None:
                self._endpoint = await self._opened(request)
        writer.on_close = None
        self._endpoint.post(request, writer)

    async def _opened(self, request: Request) -> Endpoint:
        exchange = self._exchange
        assert exchange is not None
        console = self._make()
        self._held = HeldLifespan(console.lifespan)
        await self._held.entered
        host = request.headers.get(b"host", b"").decode("latin-1").strip(" \t")
        console.serve_by(exchange, f"{'https' if request.secure else 'http'}://{host}{exchange.settings.path}")
        settings = replace(exchange.settings, carried_key=None, assume=None, path=ENDPOINT)
        # With numbers of its own: who looks is not what is looked at.
        endpoint = Endpoint(console.server, settings, Metrics(), Traffic())
        exchange.keep(endpoint)
        return endpoint

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        try:
            yield
        finally:
            held, self._held, self._endpoint = self._held, None, None
            if held is not None:
                await held.leave()


def attach(
    server: Server,
    access: ConsoleAccess,
    secret: bytes,
    *,
    how: str = "",
    make: Callable[[], Any] | None = None,
    held: bool = True,
) -> ConsoleSite:
    """Put a console on a Server, before it is run over HTTP.

    * **access** – who is let in.
    * **secret** – what links and sessions are signed with; the processes of one server have the same.
    * **how** – how people get a new link.
    * **make** – makes the Console, in place of one for this server.
    * **held** – whether its life is the server's; otherwise the caller enters its lifespan.
    """

    def usual() -> Any:
        return console_module.Console(server, saved=data_directory(server.data) / SAVED)

    began = int(time.time())

    async def spend(id: str, expires: float) -> bool:
        spent = server.spent
        # The secret outlives this process; without a store, what was used before it began is not remembered.
        if not spent.is_shared and expires < began + TOKEN_SECONDS:
            return False
        return await spent.add(id, expires)

    site = ConsoleSite(make or usual, ConsoleGate(access, secret, spend, how))
    server.pages += site.pages(lambda path: any(one.path == path and one.method == "GET" for one in server.pages))
    server.on_http.append(site.use)
    if held:
        server.hold(site.lifespan)
    return site
