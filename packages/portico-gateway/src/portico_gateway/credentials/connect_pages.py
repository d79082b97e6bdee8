"""The connect page: where a person lets us use their account at an upstream, in their name.

A link leads here that was made for one principal. The page demands the same login as the server does, so that a link
that was forwarded, or found, is of no use: who logs in has to be the one it was made for. They are shown who they are
and what is to be connected, and only then does the upstream's own login begin. At /connect they see what they have
connected, and can take it back.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from html import escape
from urllib.parse import urlencode, urlsplit

import msgspec
from msgspec import Raw, Struct

from portico.auth.authorization_code import PendingCode
from portico.auth.errors import GrantDenied
from portico.transports.http_server import ip_rate_limit
from portico.transports.http_server.custom_routes import PageRoute
from portico.transports.http_server.ip_rate_limit import AddressPace
from portico.transports.http_server.messages import Answer, Request
from portico_gateway.authserver import html
from portico_gateway.authserver.cookies import fresh_value
from portico_gateway.authserver.errors import PageRefused
from portico_gateway.authserver.login_flow import Arrived, BrowserLogins, Flow
from portico_gateway.authserver.responses import document, parameters_of, redirect, shown
from portico_gateway.credentials.encryption import Unsealable
from portico_gateway.credentials.token_vault import Vault
from portico_gateway.credentials.upstream_accounts import UpstreamAccount, client_document
from portico_gateway.credentials.vault_store import CredentialSlot

log = logging.getLogger("portico.access")

LINK_SECONDS = 900.0
_LOGIN, _CONSENT, _RETURN = "connect", "connect consent", "connect return"
_OVERVIEW, _OFF = "connections", "disconnect"
_OLD = "This link is out of date. Use the tool again to get another one."


class _Ticket(Struct, frozen=True, array_like=True):
    """For whom a link was made, and for what."""

    principal: str
    upstream: str
    expires: float


class _Connecting(Struct, frozen=True):
    """A user who is about to connect an account; `shown` is the name that is displayed, `url` the upstream's."""

    principal: str
    upstream: str
    shown: str = ""
    pending: PendingCode | None = None
    url: str = ""


class Connector:
    """`issuer` is who names principals: a person that logs in as `subject` is the principal `issuer subject`."""

    def __init__(
        self, logins: BrowserLogins, vault: Vault, issuer: str, title: str, accounts: Mapping[str, UpstreamAccount]
    ) -> None:
        self.vault = vault
        # By alias: those where people have accounts.
        self.accounts = accounts
        self._logins = logins
        self._issuer = issuer
        self._title = title
        logins.onward[_LOGIN] = self.logged_in
        logins.onward[_OVERVIEW] = self.connections

    def link(self, slot: CredentialSlot) -> str:
        """Where this principal can connect this upstream. It means nothing to others."""
        ticket = msgspec.json.encode(_Ticket(slot.principal, slot.upstream, time.time() + LINK_SECONDS))
        sealed = self._logins.ring.seal(ticket, "connect")
        return f"{self._logins.home}/connect/to/{slot.upstream}?{urlencode({'ticket': sealed})}"

    def pages(self) -> list[PageRoute]:
        return self._logins.placed(
            [
                ("GET", "/connect/client.json", self.describe),
                ("GET", "/connect/return", shown(self.returned)),
                ("POST", "/connect", shown(self.consent)),
                ("GET", "/connect", AddressPace(ip_rate_limit.LOGINS).around(shown(self.overview))),
                ("POST", "/connect/off", shown(self.disconnect)),
                ("GET", "/connect/to/", shown(self.open)),
            ]
        )

    async def describe(self, request: Request) -> Answer:
        return document(200, client_document(self._logins.home, self._title))

    async def open(self, request: Request) -> Answer:
        """The link. First of all the person who opens it logs in."""
        ticket = self._ticket(parameters_of(request.query).get("ticket", ""))
        if request.path.rpartition("/")[2] != ticket.upstream or ticket.upstream not in self.accounts:
            raise PageRefused(_OLD)
        browser = self._logins.cookie.read(request) or fresh_value()
        body = _packed(_Connecting(ticket.principal, ticket.upstream))
        url = await self._logins.send_to_login(browser, _LOGIN, body, request.peer)
        return redirect(url, self._logins.cookie.write(browser))

    async def logged_in(self, arrived: Arrived) -> Answer:
        """The person who logged in has to be the one that the link was made for."""
        about = msgspec.json.decode(arrived.body, type=_Connecting)
        who = arrived.who
        if who is None:
            raise PageRefused("You did not log in, so nothing was connected.")
        if f"{self._issuer} {who.subject}" != about.principal:
            log.warning("%s opened a link that was made for another principal", who.subject)
            raise PageRefused(
                f"You are logged in as {who.shown}, and this link was made for another person. Nothing was connected. "
                "If you did not ask for it yourself, the sender may have wanted to use your account.",
                403,
            )
        account = self._account(about.upstream)
        flow = fresh_value()
        body = _packed(msgspec.structs.replace(about, shown=who.shown, url=account.url))
        await self._logins.begin(flow, arrived.browser, Flow(_CONSENT, body), arrived.address)
        facts = [
            ("You are", who.shown),
            ("You connect", f"{account.title or account.alias} ({urlsplit(account.url).hostname})"),
            ("So that", f"{self._title} can use it for you, in your name"),
            ("It may", " ".join(account.scopes) or "what you allow on the next page"),
        ]
        care = "Go on only if you have just asked for this. Others who use this server never get your account."
        action = f"{self._logins.home}/connect"
        title = f"Connect {account.title or account.alias}?"
        return html.question(title, facts, care, action, flow, "Connect", self._logins.cookie.write(arrived.browser))

    async def consent(self, request: Request) -> Answer:
        said = self._logins.check_own_form(request)
        browser = self._logins.cookie.read(request)
        about = _unpacked(await self._logins.resume(said.get("flow", ""), browser, _CONSENT))
        if said.get("answer") != "yes" or browser is None:
            return html.page(200, "Nothing was connected", "<p>You can close this window.</p>")
        account = self._account(about.upstream, about.url)
        url, pending = await self.vault.begin(account)
        body = _packed(msgspec.structs.replace(about, pending=pending))
        await self._logins.begin(pending.state, browser, Flow(_RETURN, body), request.peer)
        return html.going(url, account.title or account.alias, self._logins.cookie.write(browser))

    async def returned(self, request: Request) -> Answer:
        """Back from the upstream's login, in the browser that went there."""
        said = parameters_of(request.query)
        browser = self._logins.cookie.read(request)
        about = _unpacked(await self._logins.resume(said.get("state", ""), browser, _RETURN))
        account = self._account(about.upstream, about.url)
        if about.pending is None:
            raise PageRefused(_OLD)
        try:
            await self.vault.connect(account, CredentialSlot(about.principal, about.upstream), about.pending, said)
        except GrantDenied as denial:
            log.info("%s was not connected: %s", about.upstream, denial)
            return html.page(200, "Nothing was connected", "<p>Access was declined. You can close this window.</p>")
        name = account.title or account.alias
        return html.page(200, f"{name} is connected", "<p>You can close this window and go back to your program.</p>")

    # What is connected, and how it ends

    async def overview(self, request: Request) -> Answer:
        """First of all the person logs in, who sees their own."""
        browser = self._logins.cookie.read(request) or fresh_value()
        url = await self._logins.send_to_login(browser, _OVERVIEW, _packed(_Connecting("", "")), request.peer)
        return redirect(url, self._logins.cookie.write(browser))

    async def connections(self, arrived: Arrived) -> Answer:
        who = arrived.who
        if who is None:
            raise PageRefused("You did not log in.")
        principal = f"{self._issuer} {who.subject}"
        # What an operator has taken out of the file meanwhile can be forgotten all the same.
        found = {alias: self._title_of(alias) for alias in await self.vault.connected(principal)}
        if not found:
            return html.page(200, "Nothing is connected", f"<p>{escape(who.shown)} has connected no account.</p>")
        flow = fresh_value()
        about = Flow(_OFF, _packed(_Connecting(principal, "", who.shown)))
        await self._logins.begin(flow, arrived.browser, about, arrived.address)
        care = "What is disconnected is used no more. The account itself, and what was done with it, stays as it is."
        action, cookie = f"{self._logins.home}/connect/off", self._logins.cookie.write(arrived.browser)
        return html.choice(f"What {who.shown} has connected", found, care, action, flow, "Disconnect", cookie)

    async def disconnect(self, request: Request) -> Answer:
        said = self._logins.check_own_form(request)
        flow = await self._logins.resume(said.get("flow", ""), self._logins.cookie.read(request), _OFF)
        alias, about = said.get("answer", ""), _unpacked(flow)
        if not await self.vault.disconnect(CredentialSlot(about.principal, alias)):
            return html.page(200, "Nothing was disconnected", "<p>It was not connected. You can close this window.</p>")
        log.info("%s was disconnected by its person", alias)
        return html.page(200, f"{self._title_of(alias)} is disconnected", "<p>You can close this window.</p>")

    def _title_of(self, alias: str) -> str:
        account = self.accounts.get(alias)
        return alias if account is None else account.title or alias

    def _ticket(self, sealed: str) -> _Ticket:
        try:
            ticket = msgspec.json.decode(self._logins.ring.open(sealed, "connect"), type=_Ticket)
        except (Unsealable, msgspec.DecodeError):
            raise PageRefused(_OLD) from None
        if ticket.expires < time.time():
            raise PageRefused(_OLD)
        return ticket

    def _account(self, alias: str, url: str | None = None) -> UpstreamAccount:
        """Return the account at an upstream. Raises PageRefused if it is gone, or at another URL than the user saw."""
        account = self.accounts.get(alias)
        if account is None or url not in (None, account.url):
            raise PageRefused(_OLD)
        return account


def _packed(about: _Connecting) -> Raw:
    return Raw(msgspec.json.encode(about))


def _unpacked(flow: Flow) -> _Connecting:
    return msgspec.json.decode(flow.body, type=_Connecting)
