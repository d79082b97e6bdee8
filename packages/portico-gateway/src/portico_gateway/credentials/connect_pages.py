"""Connect pages, where users authorize the gateway to use their account at an upstream.

A connect link is made for one principal. The page requires the same login as the server, so a forwarded or stolen link
is useless: the user who logs in must be the principal of the link. The page then shows the user and the account, and
only after confirmation does the upstream's own login begin. At /connect users see and disconnect their accounts.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from html import escape
from urllib.parse import urlencode, urlsplit

import msgspec
from msgspec import Raw, Struct

from portico.auth.authorization_code import PendingAuthorization
from portico.auth.errors import GrantDenied
from portico.transports.http_server import ip_rate_limit
from portico.transports.http_server.custom_routes import CustomRoute
from portico.transports.http_server.ip_rate_limit import IpRateLimiter
from portico.transports.http_server.messages import HttpRequest, HttpResponse
from portico_gateway.authserver import html
from portico_gateway.authserver.cookies import new_cookie_value
from portico_gateway.authserver.errors import ErrorPageResponse
from portico_gateway.authserver.login_flow import LoginFlow, LoginResult, LoginState
from portico_gateway.authserver.responses import html_errors, json_response, parse_parameters, redirect
from portico_gateway.credentials.encryption import DecryptionFailed
from portico_gateway.credentials.token_vault import TokenVault
from portico_gateway.credentials.upstream_accounts import UpstreamAccount, client_metadata_document
from portico_gateway.credentials.vault_store import CredentialKey

log = logging.getLogger("portico.access")

CONNECT_LINK_TTL_SECONDS = 900.0
_LOGIN, _CONSENT, _RETURN = "connect", "connect consent", "connect return"
_OVERVIEW, _DISCONNECT = "connections", "disconnect"
_EXPIRED_MESSAGE = "This link has expired. Call the tool again to get a new one."


class _ConnectTicket(Struct, frozen=True, array_like=True):
    """Encrypted content of a connect link."""

    principal: str
    upstream: str
    expires: float


class _PendingConnection(Struct, frozen=True):
    """State of a connection in progress. `shown` is the displayed user name, `url` the upstream's URL at consent."""

    principal: str
    upstream: str
    shown: str = ""
    pending: PendingAuthorization | None = None
    url: str = ""


class AccountConnector:
    """Pages that connect upstream accounts.

    `issuer` qualifies subjects: a user who logs in as `subject` is the principal `issuer subject`.
    """

    def __init__(
        self, logins: LoginFlow, vault: TokenVault, issuer: str, title: str, accounts: Mapping[str, UpstreamAccount]
    ) -> None:
        self.vault = vault
        # Upstreams with per-user accounts, by alias.
        self.accounts = accounts
        self._logins = logins
        self._issuer = issuer
        self._title = title
        logins.handlers[_LOGIN] = self.on_login
        logins.handlers[_OVERVIEW] = self.render_connections

    def connect_url(self, key: CredentialKey) -> str:
        """Return a link where this principal can connect the account. It is useless to other users."""
        ticket = msgspec.json.encode(
            _ConnectTicket(key.principal, key.upstream, time.time() + CONNECT_LINK_TTL_SECONDS)
        )
        # The link carries its own state, so that any process can open it. It is encrypted, because the principal
        # should not appear in browser histories.
        sealed = self._logins.keyring.encrypt(ticket, "connect")
        return f"{self._logins.base_url}/connect/to/{key.upstream}?{urlencode({'ticket': sealed})}"

    def routes(self) -> list[CustomRoute]:
        """Return the routes of the pages."""
        return self._logins.mount_routes(
            [
                ("GET", "/connect/client.json", self.client_metadata),
                ("GET", "/connect/return", html_errors(self.callback)),
                ("POST", "/connect", html_errors(self.consent)),
                (
                    "GET",
                    "/connect",
                    IpRateLimiter(ip_rate_limit.LOGINS_PER_MINUTE).wrap(html_errors(self.list_connections)),
                ),
                ("POST", "/connect/off", html_errors(self.disconnect)),
                ("GET", "/connect/to/", html_errors(self.open_link)),
            ]
        )

    async def client_metadata(self, request: HttpRequest) -> HttpResponse:
        return json_response(200, client_metadata_document(self._logins.base_url, self._title))

    async def open_link(self, request: HttpRequest) -> HttpResponse:
        """Handle a connect link: send the user to the login first."""
        ticket = self._ticket(parse_parameters(request.query).get("ticket", ""))
        # The path is for the user to read; it must agree with the ticket, or the user would confirm one upstream and
        # connect another.
        if request.path.rpartition("/")[2] != ticket.upstream or ticket.upstream not in self.accounts:
            raise ErrorPageResponse(_EXPIRED_MESSAGE)
        browser = self._logins.cookie.read(request) or new_cookie_value()
        # Log in first, always: anyone who opens the link must prove to be the principal for whom it was made.
        body = _encode_flow(_PendingConnection(ticket.principal, ticket.upstream))
        url = await self._logins.redirect_to_login(browser, _LOGIN, body, request.peer)
        return redirect(url, self._logins.cookie.write(browser))

    async def on_login(self, arrived: LoginResult) -> HttpResponse:
        """Show the confirmation page, if the user who logged in is the principal of the link.

        Raises ErrorPageResponse otherwise: an attacker could make a victim connect their account to the attacker's
        principal.
        """
        about = msgspec.json.decode(arrived.body, type=_PendingConnection)
        identity = arrived.who
        if identity is None:
            raise ErrorPageResponse("You did not log in. No account was connected.")
        # The attack: an attacker sends a victim the attacker's own link. Without this check the victim's upstream
        # account would be stored for the attacker.
        if f"{self._issuer} {identity.subject}" != about.principal:
            log.warning("%s opened a connect link that was made for another principal", identity.subject)
            raise ErrorPageResponse(
                f"You are logged in as {identity.display_name}, but this link was made for another user. No account "
                "was connected. If you did not request it yourself, the sender may have tried to use your "
                "account.",
                403,
            )
        account = self._account(about.upstream)
        flow = new_cookie_value()
        # The URL is part of the state. If the operator changes the upstream between this page and the return, the
        # token must not go to the new server.
        body = _encode_flow(msgspec.structs.replace(about, shown=identity.display_name, url=account.url))
        await self._logins.save_state(flow, arrived.browser, LoginState(_CONSENT, body), arrived.address)
        facts = [
            ("You are", identity.display_name),
            ("You connect", f"{account.title or account.alias} ({urlsplit(account.url).hostname})"),
            ("So that", f"{self._title} can use it for you, in your name"),
            ("It may", " ".join(account.scopes) or "what you allow on the next page"),
        ]
        care = "Continue only if you requested this yourself. Other users of this server cannot use your account."
        action = f"{self._logins.base_url}/connect"
        title = f"Connect {account.title or account.alias}?"
        return html.render_confirmation(
            title, facts, care, action, flow, "Connect", self._logins.cookie.write(arrived.browser)
        )

    async def consent(self, request: HttpRequest) -> HttpResponse:
        form = self._logins.check_same_origin(request)
        browser = self._logins.cookie.read(request)
        about = _decode_flow(await self._logins.take_state(form.get("flow", ""), browser, _CONSENT))
        if form.get("answer") != "yes" or browser is None:
            return html.render_page(200, "No account was connected", "<p>You can close this window.</p>")
        account = self._account(about.upstream, about.url)
        url, pending = await self.vault.begin_authorization(account)
        body = _encode_flow(msgspec.structs.replace(about, pending=pending))
        await self._logins.save_state(pending.state, browser, LoginState(_RETURN, body), request.peer)
        return html.render_redirect(url, account.title or account.alias, self._logins.cookie.write(browser))

    async def callback(self, request: HttpRequest) -> HttpResponse:
        """Handle the return from the upstream's authorization server."""
        parameters = parse_parameters(request.query)
        browser = self._logins.cookie.read(request)
        about = _decode_flow(await self._logins.take_state(parameters.get("state", ""), browser, _RETURN))
        account = self._account(about.upstream, about.url)
        if about.pending is None:
            raise ErrorPageResponse(_EXPIRED_MESSAGE)
        try:
            await self.vault.complete_authorization(
                account, CredentialKey(about.principal, about.upstream), about.pending, parameters
            )
        except GrantDenied as denial:
            log.info("%s was not connected: %s", about.upstream, denial)
            return html.render_page(
                200, "No account was connected", "<p>Access was declined. You can close this window.</p>"
            )
        name = account.title or account.alias
        return html.render_page(
            200, f"{name} is connected", "<p>You can close this window and go back to your application.</p>"
        )

    # Connected accounts

    async def list_connections(self, request: HttpRequest) -> HttpResponse:
        """Send the user to the login, which leads to the list of connected accounts."""
        browser = self._logins.cookie.read(request) or new_cookie_value()
        url = await self._logins.redirect_to_login(
            browser, _OVERVIEW, _encode_flow(_PendingConnection("", "")), request.peer
        )
        return redirect(url, self._logins.cookie.write(browser))

    async def render_connections(self, arrived: LoginResult) -> HttpResponse:
        identity = arrived.who
        if identity is None:
            raise ErrorPageResponse("You did not log in.")
        principal = f"{self._issuer} {identity.subject}"
        # The list includes upstreams that were removed from the configuration, so that users can delete those
        # credentials too.
        result = {alias: self._display_name(alias) for alias in await self.vault.connected_upstreams(principal)}
        if not result:
            return html.render_page(
                200, "No connected accounts", f"<p>{escape(identity.display_name)} has no connected accounts.</p>"
            )
        flow = new_cookie_value()
        about = LoginState(_DISCONNECT, _encode_flow(_PendingConnection(principal, "", identity.display_name)))
        await self._logins.save_state(flow, arrived.browser, about, arrived.address)
        care = "A disconnected account is no longer used. The account itself is not changed."
        action, cookie = f"{self._logins.base_url}/connect/off", self._logins.cookie.write(arrived.browser)
        return html.render_choice(
            f"Connected accounts of {identity.display_name}", result, care, action, flow, "Disconnect", cookie
        )

    async def disconnect(self, request: HttpRequest) -> HttpResponse:
        form = self._logins.check_same_origin(request)
        # The principal comes from the sealed flow, never from the form: a form can only choose among the user's own
        # accounts.
        flow = await self._logins.take_state(form.get("flow", ""), self._logins.cookie.read(request), _DISCONNECT)
        alias, about = form.get("answer", ""), _decode_flow(flow)
        if not await self.vault.disconnect(CredentialKey(about.principal, alias)):
            return html.render_page(
                200, "Nothing was disconnected", "<p>It was not connected. You can close this window.</p>"
            )
        log.info("%s was disconnected by its user", alias)
        return html.render_page(
            200, f"{self._display_name(alias)} is disconnected", "<p>You can close this window.</p>"
        )

    def _display_name(self, alias: str) -> str:
        account = self.accounts.get(alias)
        return alias if account is None else account.title or alias

    def _ticket(self, sealed: str) -> _ConnectTicket:
        """Decrypt a connect link. Raises ErrorPageResponse if it is invalid or has expired."""
        try:
            ticket = msgspec.json.decode(self._logins.keyring.decrypt(sealed, "connect"), type=_ConnectTicket)
        except (DecryptionFailed, msgspec.DecodeError):
            raise ErrorPageResponse(_EXPIRED_MESSAGE) from None
        if ticket.expires < time.time():
            raise ErrorPageResponse(_EXPIRED_MESSAGE)
        return ticket

    def _account(self, alias: str, url: str | None = None) -> UpstreamAccount:
        """Return the account at an upstream.

        Raises ErrorPageResponse if the upstream was removed, or has another URL than the user confirmed.
        """
        account = self.accounts.get(alias)
        if account is None or url not in (None, account.url):
            raise ErrorPageResponse(_EXPIRED_MESSAGE)
        return account


def _encode_flow(about: _PendingConnection) -> Raw:
    return Raw(msgspec.json.encode(about))


def _decode_flow(flow: LoginState) -> _PendingConnection:
    return msgspec.json.decode(flow.body, type=_PendingConnection)
