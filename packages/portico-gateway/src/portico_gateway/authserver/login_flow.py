"""Login flow of a browser: started here, continued at the identity provider, and finished at the callback.

A flow is a row that can be used once and is bound to one browser. Its purpose decides what follows the login: a client
receives a code, or an upstream account is connected.
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
from portico.rpc.identity import client_network, wider_network_of
from portico.store.database import Database
from portico.transports.http_client.oauth_fetcher import OAuthFetcher, resolve_addresses
from portico.transports.http_server.custom_routes import CustomRoute
from portico.transports.http_server.messages import HttpRequest, HttpResponse
from portico_gateway.authserver import html, store as rows, upstream_login
from portico_gateway.authserver.cookies import BrowserCookie
from portico_gateway.authserver.errors import ErrorPageResponse
from portico_gateway.authserver.identity_providers import IdentityProviderSettings
from portico_gateway.authserver.responses import html_errors, parse_parameters
from portico_gateway.authserver.upstream_login import Identity, PendingLogin, is_allowed
from portico_gateway.credentials.encryption import DecryptionFailed, KeyRing, digest

log = logging.getLogger("portico.access")

MIGRATIONS = Path(portico_gateway.authserver.__file__).with_name("migrations")


class LoginState(Struct, frozen=True):
    """Stored state of a flow.

    `purpose` selects the handler that receives `body`; `pending` is set once the browser was sent to the identity
    provider.
    """

    purpose: str
    body: Raw
    pending: PendingLogin | None = None


class LoginResult(Struct, frozen=True):
    """Result of a login, passed to the handler of the flow. `who` is None if the user declined."""

    browser: str
    body: Raw
    who: Identity | None
    address: str = ""


LoginHandler = Callable[[LoginResult], Awaitable[HttpResponse]]
"Handler that continues after a login; registered by purpose."


def _encryption_context(flow: str, browser: str) -> str:
    """Return the encryption context of a flow. It prevents moving a row to another flow or browser in the database."""
    return f"provider_flow {digest(flow)} {digest(browser)}"


class LoginFlow:
    """Login flow of a server's pages. `home` is their public base URL without a trailing slash."""

    def __init__(self, home: str, where: IdentityProviderSettings, store: str | None, ring: KeyRing) -> None:
        self.base_url = home
        self.provider = where
        self.keyring = ring
        parts = urlsplit(home)
        self.root = parts.path
        self.origin = f"{parts.scheme}://{parts.netloc}"
        # Binds a flow to the browser that started it. Otherwise an attacker could log in up to the last step and let
        # a victim's browser finish (login CSRF, RFC 9700, section 4.7).
        self.cookie = BrowserCookie(
            "portico-login", secure=parts.scheme == "https", max_age=int(rows.LOGIN_TTL_SECONDS)
        )
        self.handlers: dict[str, LoginHandler] = {}
        self._callback = home + where.callback_path
        self._store = store or "sqlite://"
        self._database: Database | None = None
        self._fetcher = OAuthFetcher(partial(resolve_addresses, where.issuer))

    @property
    def database(self) -> Database:
        if self._database is None:
            raise UsageError("the login store is not open")
        return self._database

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        async with Database(self._store) as database:
            await database.migrate("provider", MIGRATIONS)
            self._database = database
            try:
                yield
            finally:
                await self._fetcher.close()
                self._database = None

    def routes(self) -> list[CustomRoute]:
        return self.mount_routes([("GET", self.provider.callback_path, html_errors(self.callback))])

    def mount_routes(
        self, pages: list[tuple[str, str, Callable[[HttpRequest], Awaitable[HttpResponse]]]]
    ) -> list[CustomRoute]:
        """Return routes for the pages, both at the root and below the path of the base URL.

        A reverse proxy may or may not strip the path prefix.
        """
        roots = dict.fromkeys(("", self.root))
        return [
            CustomRoute(method, root + path, page, prefix=path.endswith("/"))
            for method, path, page in pages
            for root in roots
        ]

    async def save_state(self, flow: str, browser: str, about: LoginState, address: str) -> None:
        """Store the state of a flow until the browser returns. `address` is the client address, used for limits."""
        # Encrypted because the state contains the PKCE verifier and the nonce; a reader of the database must not be
        # able to complete a login.
        body = self.keyring.encrypt(msgspec.json.encode(about), _encryption_context(flow, browser))
        now, source = time.time(), source_of(address)
        await self.database.write(
            partial(rows.create_login, flow=flow, browser=browser, body=body, now=now, source=source)
        )

    async def take_state(self, flow: str, browser: str | None, purpose: str | None = None) -> LoginState:
        """Return the state of a flow and delete it.

        Raises ErrorPageResponse if the flow was used before, has expired, or belongs to another browser.
        """
        # Read and delete in one transaction: of two requests with the same state only one continues.
        body = None
        if browser is not None and flow:
            body = await self.database.write(partial(rows.consume_login, flow=flow, browser=browser, now=time.time()))
        try:
            if body is not None:
                result = msgspec.json.decode(
                    self.keyring.decrypt(body, _encryption_context(flow, browser or "")), type=LoginState
                )
                if purpose is None or result.purpose == purpose:
                    return result
        except (DecryptionFailed, msgspec.DecodeError):
            pass
        # One message for unknown, used, expired and foreign flows, so that the page does not reveal which of them
        # exist.
        raise ErrorPageResponse(
            "This page has expired or was opened in another browser. Start again from your application."
        )

    def check_same_origin(self, request: HttpRequest) -> dict[str, str]:
        """Parse a form and check that one of our pages submitted it.

        Browsers send Origin and Sec-Fetch-Site. Clients that send neither are still bound by the cookie.
        """
        # Defence against cross-site request forgery in addition to the flow's token: a form on another site cannot
        # approve a client for the user.
        origin = request.headers.get(b"origin")
        site = request.headers.get(b"sec-fetch-site", b"same-origin")
        if (origin is not None and origin != self.origin.encode()) or site != b"same-origin":
            raise ErrorPageResponse("This form was sent by another site. Start again from your application.", 403)
        if request.headers.get(b"content-type", b"").partition(b";")[0].strip().lower() != html.FORM_CONTENT_TYPE:
            raise ErrorPageResponse("The request must be a form.", 415)
        return parse_parameters(request.body.decode("latin-1"))

    async def redirect_to_login(self, browser: str, purpose: str, body: Raw, address: str) -> str:
        """Return the URL of the identity provider's login page. After the login, `handlers[purpose]` is called."""
        url, pending = await self._fetcher.run_conversation(upstream_login.begin(self.provider, self._callback))
        await self.save_state(pending.state, browser, LoginState(purpose, body, pending), address)
        return url

    async def callback(self, request: HttpRequest) -> HttpResponse:
        """Handle the browser's return from the identity provider."""
        parameters = parse_parameters(request.query)
        browser = self.cookie.read(request)
        flow = await self.take_state(parameters.get("state", ""), browser)
        if flow.pending is None or browser is None:
            raise ErrorPageResponse("This page has expired. Start again from your application.")
        identity = await self._fetch_identity(flow.pending, parameters)
        # Checked for every login and again for every refresh, because `allow` may change.
        if identity is not None and not is_allowed(self.provider, identity):
            log.warning("%s logged in but is not allowed to use this server", identity.subject)
            text = (
                f"You are logged in as {identity.display_name}, but this account may not use this server. Ask its "
                "operator for access."
            )
            return html.render_error(text, 403)
        return await self.handlers[flow.purpose](LoginResult(browser, flow.body, identity, request.peer))

    async def _fetch_identity(self, pending: PendingLogin, parameters: Mapping[str, str]) -> Identity | None:
        """Return the identity of the user, or None if the user declined the login."""
        finish = upstream_login.finish(self.provider, pending, parameters, self._callback, time.time())
        try:
            return await self._fetcher.run_conversation(finish)
        except GrantDenied as denial:
            log.info("login denied: %s", denial)
            return None


def source_of(address: str) -> rows.Source:
    return rows.Source(client_network(address), wider_network_of(address))
