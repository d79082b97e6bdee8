"""The face over HTTP: its documents, its pages and its endpoints."""

from __future__ import annotations

import logging
import time

import msgspec
from msgspec import Raw, Struct

from portico.auth.assertions import ALGORITHM
from portico.transports.http_server import ip_rate_limit
from portico.transports.http_server.custom_routes import PageRoute
from portico.transports.http_server.ip_rate_limit import AddressPace
from portico.transports.http_server.messages import Answer, Pairs, Request
from portico_gateway.authserver import html, requests
from portico_gateway.authserver.clients import (
    KnownClient,
    destination,
    read_registration,
    redirect_kind,
    registration_answer,
)
from portico_gateway.authserver.cookies import fresh_value
from portico_gateway.authserver.errors import GrantRefused, PageRefused, SentBack
from portico_gateway.authserver.identity_providers import host_of
from portico_gateway.authserver.login_flow import Arrived, Flow
from portico_gateway.authserver.requests import AuthorizationRequest
from portico_gateway.authserver.responses import NO_STORE, document, parameters_of, redirect, shown, told
from portico_gateway.authserver.server import Face

log = logging.getLogger("portico.access")

_CACHED: Pairs = ((b"cache-control", b"max-age=300"),)
_PURPOSE = "authorize"
WELL_KNOWN = ("/.well-known/oauth-authorization-server", "/.well-known/openid-configuration")


class _ConsentAsked(Struct, frozen=True):
    """What a client wants, while its person is asked and logs in."""

    request: AuthorizationRequest
    client: KnownClient


class FaceEndpoints:
    def __init__(self, face: Face) -> None:
        self._face = face
        self._logins = face.logins
        self._logins.onward[_PURPOSE] = self.logged_in

    def pages(self) -> list[PageRoute]:
        own = [
            ("GET", "/authorize", AddressPace(ip_rate_limit.LOGINS).around(shown(self.authorize))),
            ("POST", "/consent", AddressPace(ip_rate_limit.LOGINS).around(shown(self.consent))),
            ("POST", "/token", AddressPace(ip_rate_limit.TOKENS).around(told(self.token))),
            ("POST", "/revoke", AddressPace(ip_rate_limit.TOKENS).around(told(self.revoke))),
            ("GET", "/jwks.json", self.jwks),
        ]
        if self._face.settings.registration:
            own.append(("POST", "/register", AddressPace(ip_rate_limit.REGISTRATIONS).around(told(self.register))))
        root = self._logins.root
        known = {path + end for path in WELL_KNOWN for end in ("", root)} | {root + WELL_KNOWN[1]}
        return [*self._logins.placed(own), *(PageRoute("GET", path, self.metadata) for path in sorted(known))]

    # Documents

    async def metadata(self, request: Request) -> Answer:
        return document(200, requests.metadata(self._face.settings, [ALGORITHM]), _CACHED)

    async def jwks(self, request: Request) -> Answer:
        return document(200, {"keys": await self._face.known_keys()}, _CACHED)

    # A browser's way: the client's request, consent, the login elsewhere, and back to the client

    async def authorize(self, request: Request) -> Answer:
        said = parameters_of(request.query)
        client = await self._face.client(said.get("client_id", ""), request.peer)
        try:
            asked = requests.read_authorization(said, client, self._face.settings)
        except SentBack as refusal:
            uri = said["redirect_uri"]
            if not await self._face.is_approved(client, uri):
                # Every program can register: its links must not lead from this host to another without a decision.
                raise PageRefused(
                    f"The program that sent you here made a request that cannot be granted: {refusal} ({refusal.error})"
                ) from None
            return redirect(self._refusal(uri, said.get("state"), refusal.error, str(refusal)))
        cookie = self._logins.cookie
        browser, flow = cookie.read(request) or fresh_value(), fresh_value()
        body = Raw(msgspec.json.encode(_ConsentAsked(asked, client)))
        await self._logins.begin(flow, browser, Flow(_PURPOSE, body), request.peer)
        return self._consent_page(client, asked, flow, cookie.write(browser))

    def _consent_page(self, client: KnownClient, asked: AuthorizationRequest, flow: str, more: Pairs) -> Answer:
        settings = self._face.settings
        known = f"{client.host} (verified)" if client.host else "not verified: any program can use this name"
        program = client.name or client.host or client.id
        called = f"a program that calls itself “{client.name}”" if client.name else client.host or "this program"
        if client.kind == "configured":
            known, called = "registered by the operator of this server", program
        elif client.name:
            program = f"{client.name} (what it calls itself)"
        facts = [
            ("Program", program),
            ("Known by", known),
            ("The answer goes to", destination(asked.redirect_uri)),
            ("Gets access to", f"{settings.title} ({settings.resource})"),
            ("May", "; ".join(settings.scopes.get(one) or one for one in asked.scopes) or "use it in your name"),
            ("You log in at", host_of(self._logins.where)),
        ]
        care = "Go on only if you have just started this from a program that you trust."
        return html.question(
            f"Let {called} in?", facts, care, settings.url("/consent"), flow, "Allow, and log in", more
        )

    async def consent(self, request: Request) -> Answer:
        said = self._logins.check_own_form(request)
        cookie = self._logins.cookie
        browser = cookie.read(request)
        flow = await self._logins.resume(said.get("flow", ""), browser, _PURPOSE)
        if flow.pending is not None or browser is None:
            raise PageRefused("This page is out of date. Start again from your program.")
        if said.get("answer") != "yes":
            asked = msgspec.json.decode(flow.body, type=_ConsentAsked)
            uri, state = asked.request.redirect_uri, asked.request.state
            url = self._refusal(uri, state, "access_denied", "Access was declined.")
            local = redirect_kind(uri) == "loopback"
            if local or await self._face.is_approved(asked.client, uri):
                return html.going(url, destination(uri))
            return html.declined(url, destination(uri))
        url = await self._logins.send_to_login(browser, _PURPOSE, flow.body, request.peer)
        return html.going(url, host_of(self._logins.where), cookie.write(browser))

    async def logged_in(self, arrived: Arrived) -> Answer:
        asked = msgspec.json.decode(arrived.body, type=_ConsentAsked).request
        if arrived.who is None:
            return redirect(self._refusal(asked.redirect_uri, asked.state, "access_denied", "The login was declined."))
        said = {"code": await self._face.grant(asked, arrived.who)}
        return redirect(requests.answer_url(asked.redirect_uri, self._face.settings.issuer, asked.state, said))

    def _refusal(self, uri: str, state: str | None, error: str, text: str) -> str:
        said = {"error": error, "error_description": text}
        return requests.answer_url(uri, self._face.settings.issuer, state, said)

    # Endpoints of clients

    async def token(self, request: Request) -> Answer:
        form, client = await self._form_of_client(request)
        issued = await self._face.token(client, form)
        said = {
            "access_token": issued.access_token,
            "token_type": "Bearer",
            "expires_in": int(self._face.settings.access_seconds),
            "refresh_token": issued.refresh_token,
            "scope": issued.scope,
        }
        return document(200, said, NO_STORE)

    async def revoke(self, request: Request) -> Answer:
        form, client = await self._form_of_client(request)
        await self._face.revoke(client, form.get("token", ""))
        return document(200, {}, NO_STORE)

    async def register(self, request: Request) -> Answer:
        client, secret = read_registration(request.body)
        await self._face.register(client, request.peer)
        log.info("the client %s has registered: %s", client.id, client.name)
        return document(201, registration_answer(client, secret, time.time()), NO_STORE)

    async def _form_of_client(self, request: Request) -> tuple[dict[str, str], KnownClient]:
        if request.headers.get(b"content-type", b"").partition(b";")[0].strip().lower() != html.FORM:
            raise GrantRefused("invalid_request", "The body is a form.")
        form = requests.parameters(request.body.decode("latin-1"))
        header = request.headers.get(b"authorization")
        basic = requests.basic_credentials(None if header is None else header.decode("latin-1"))
        return form, await self._face.authenticate(form, basic)
