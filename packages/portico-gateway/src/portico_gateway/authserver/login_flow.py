"""Browsers on their way through a login: begun here, finished elsewhere, and back, each tied to one browser.

A flow is a row that is used once. What it is for says what happens when its person has logged in: a client gets a code,
or an account elsewhere is connected.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
from msgspec import Raw, Struct

import portico_gateway.authserver
from portico.auth.errors import GrantDenied
from portico.protocol.errors import UsageError
from portico.rpc.networks import network_of, wider_network_of
from portico.store.database import Database
from portico.transports.http_client.oauth_fetcher import Fetcher, addresses_of
from portico.transports.http_server.custom_routes import PageRoute
from portico.transports.http_server.messages import Answer, Request
from portico_gateway.authserver import html, upstream_login
from portico_gateway.authserver import store as rows
from portico_gateway.authserver.cookies import BrowserCookie
from portico_gateway.authserver.errors import PageRefused
from portico_gateway.authserver.identity_providers import LoginSettings
from portico_gateway.authserver.responses import parameters_of, shown
from portico_gateway.authserver.upstream_login import Identity, PendingLogin, admits
from portico_gateway.credentials.encryption import KeyRing, Unsealable, digest

log = logging.getLogger("portico.access")

MIGRATIONS = Path(portico_gateway.authserver.__file__).with_name("migrations")


class Flow(Struct, frozen=True):
    """What a browser is about: `purpose` says who goes on with `body`; `pending` is its login, once that has begun."""

    purpose: str
    body: Raw
    pending: PendingLogin | None = None


class Arrived(Struct, frozen=True):
    """A browser that is back: its cookie, what it was about, and who logged in; None: they declined."""

    browser: str
    body: Raw
    who: Identity | None
    address: str = ""


Onward = Callable[[Arrived], Awaitable[Answer]]
"""What follows a login, by its purpose."""


def _place(flow: str, browser: str) -> str:
    """What a flow is sealed for: it cannot be moved to another one, or to another browser, by who can write rows."""
    return f"provider_flow {digest(flow)} {digest(browser)}"


class BrowserLogins:
    """`home` is what our pages are called from outside, without a slash at its end."""

    def __init__(self, home: str, where: LoginSettings, store: str | None, ring: KeyRing) -> None:
        self.home = home
        self.where = where
        self.ring = ring
        parts = urlsplit(home)
        self.root = parts.path
        self.origin = f"{parts.scheme}://{parts.netloc}"
        self.cookie = BrowserCookie("portico-login", secure=parts.scheme == "https", seconds=int(rows.FLOW_SECONDS))
        self.onward: dict[str, Onward] = {}
        self._callback = home + where.callback_path
        self._store = store or "sqlite://"
        self._database: Database | None = None
        self._fetcher = Fetcher(partial(addresses_of, where.issuer))

    @property
    def database(self) -> Database:
        if self._database is None:
            raise UsageError("the store of the logins is not open")
        return self._database

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        async with Database(self._store) as database:
            await database.migrate("provider", MIGRATIONS)
            self._database = database
            try:
                yield
            finally:
                await self._fetcher.close()
                self._database = None

    def routes(self) -> list[PageRoute]:
        return self.placed([("GET", self.where.callback_path, shown(self.callback))])

    def placed(self, pages: list[tuple[str, str, Callable[[Request], Awaitable[Answer]]]]) -> list[PageRoute]:
        """Each at the root, where what stands in front of us may have cut the prefix off, and below the prefix."""
        roots = dict.fromkeys(("", self.root))
        return [
            PageRoute(method, root + path, page, prefix=path.endswith("/"))
            for method, path, page in pages
            for root in roots
        ]

    async def begin(self, flow: str, browser: str, about: Flow, address: str) -> None:
        """Store what a browser is about until it comes back; `address` is where it comes from."""
        body = self.ring.seal(msgspec.json.encode(about), _place(flow, browser))
        now, source = time.time(), source_of(address)
        await self.database.write(
            partial(rows.begin_flow, flow=flow, browser=browser, body=body, now=now, source=source)
        )

    async def resume(self, flow: str, browser: str | None, purpose: str | None = None) -> Flow:
        """What a browser was about, once. Raises PageRefused for another browser, or a second time."""
        body = None
        if browser is not None and flow:
            body = await self.database.write(partial(rows.end_flow, flow=flow, browser=browser, now=time.time()))
        try:
            if body is not None:
                found = msgspec.json.decode(self.ring.open(body, _place(flow, browser or "")), type=Flow)
                if purpose is None or found.purpose == purpose:
                    return found
        except (Unsealable, msgspec.DecodeError):
            pass
        raise PageRefused("This page is out of date, or was opened in another browser. Start again from your program.")

    def check_own_form(self, request: Request) -> dict[str, str]:
        """A form is posted by our own page. Browsers say so, and what no browser says is tied to the cookie anyway."""
        origin = request.headers.get(b"origin")
        site = request.headers.get(b"sec-fetch-site", b"same-origin")
        if (origin is not None and origin != self.origin.encode()) or site != b"same-origin":
            raise PageRefused("This was sent by another page. Start again from your program.", 403)
        if request.headers.get(b"content-type", b"").partition(b";")[0].strip().lower() != html.FORM:
            raise PageRefused("This is no form.", 415)
        return parameters_of(request.body.decode("latin-1"))

    async def send_to_login(self, browser: str, purpose: str, body: Raw, address: str) -> str:
        """The page to send a browser to; when it comes back, `onward[purpose]` goes on."""
        url, pending = await self._fetcher.hold(upstream_login.begin(self.where, self._callback))
        await self.begin(pending.state, browser, Flow(purpose, body, pending), address)
        return url

    async def callback(self, request: Request) -> Answer:
        said = parameters_of(request.query)
        browser = self.cookie.read(request)
        flow = await self.resume(said.get("state", ""), browser)
        if flow.pending is None or browser is None:
            raise PageRefused("This page is out of date. Start again from your program.")
        who = await self._who(flow.pending, said)
        if who is not None and not admits(self.where, who):
            log.warning("%s logged in, and is none of those who may", who.subject)
            text = f"You are logged in as {who.shown}, who may not use this server. Its operator decides who may."
            return html.refused(text, 403)
        return await self.onward[flow.purpose](Arrived(browser, flow.body, who, request.peer))

    async def _who(self, pending: PendingLogin, said: Mapping[str, str]) -> Identity | None:
        finish = upstream_login.finish(self.where, pending, said, self._callback, time.time())
        try:
            return await self._fetcher.hold(finish)
        except GrantDenied as denial:
            log.info("a login was denied: %s", denial)
            return None


def source_of(address: str) -> rows.Source:
    return rows.Source(network_of(address), wider_network_of(address))
