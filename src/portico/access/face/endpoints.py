"""The face over HTTP: its documents, its pages and its endpoints."""

from __future__ import annotations

import logging
import time
from typing import Any
from urllib.parse import urlsplit

import msgspec

from portico.access.face import html
from portico.access.face.cookies import BrowserCookie, fresh_value
from portico.access.face.face import Face, Flow
from portico.auth.assertions import ALGORITHM
from portico.auth.errors import AuthorizationFailed, GrantDenied
from portico.auth.provider import requests
from portico.auth.provider.clients import KnownClient, read_registration, registration_answer
from portico.auth.provider.login import admits
from portico.auth.provider.presets import host_of
from portico.auth.provider.refusals import GrantRefused, PageRefused, SentBack
from portico.auth.provider.requests import AuthorizationRequest
from portico.auth.provider.rows import FLOW_SECONDS
from portico.store.errors import StoreError
from portico.transport.http.pages import Page, PageRoute
from portico.transport.http.response import JSON, Answer, Pairs, Request

log = logging.getLogger("portico.access")

_NO_STORE: Pairs = ((b"cache-control", b"no-store"), (b"pragma", b"no-cache"))
_FORM = b"application/x-www-form-urlencoded"

LONGEST_REQUEST = 16 * 1024
WELL_KNOWN = ("/.well-known/oauth-authorization-server", "/.well-known/openid-configuration")


class FaceEndpoints:
    def __init__(self, face: Face) -> None:
        self._face = face
        settings = face.settings
        parts = urlsplit(settings.issuer)
        self._root = parts.path.rstrip("/")
        self._origin = f"{parts.scheme}://{parts.netloc}"
        self._cookie = BrowserCookie("portico-login", secure=parts.scheme == "https", seconds=int(FLOW_SECONDS))
        self._callback = settings.url("/callback")

    def pages(self) -> list[PageRoute]:
        """Each at the root, where what stands in front of us may have cut the prefix off, and below the prefix."""
        own: list[tuple[str, str, Page]] = [
            ("GET", "/authorize", _shown(self.authorize)),
            ("POST", "/consent", _shown(self.consent)),
            ("GET", "/callback", _shown(self.callback)),
            ("POST", "/token", _told(self.token)),
            ("POST", "/revoke", _told(self.revoke)),
            ("GET", "/jwks.json", self.jwks),
        ]
        if self._face.settings.registration:
            own.append(("POST", "/register", _told(self.register)))
        places = [(method, root + path, page) for method, path, page in own for root in dict.fromkeys(("", self._root))]
        known = {path + root for path in WELL_KNOWN for root in ("", self._root)} | {self._root + WELL_KNOWN[1]}
        places += [("GET", path, self.metadata) for path in sorted(known)]
        return [PageRoute(method, path, page) for method, path, page in places]

    # Documents

    async def metadata(self, request: Request) -> Answer:
        return _json(200, requests.metadata(self._face.settings, [ALGORITHM]), ((b"cache-control", b"max-age=300"),))

    async def jwks(self, request: Request) -> Answer:
        return _json(200, {"keys": await self._face.known_keys()}, ((b"cache-control", b"max-age=300"),))

    # A browser's way: the client's request, consent, the login elsewhere, and back to the client

    async def authorize(self, request: Request) -> Answer:
        said = _page_parameters(request.query)
        client = await self._face.client(said.get("client_id", ""))
        try:
            asked = requests.read_authorization(said, client, self._face.settings)
        except SentBack as refusal:
            return _redirect(self._refusal(said["redirect_uri"], said.get("state"), refusal.error, str(refusal)))
        browser, flow = self._cookie.read(request) or fresh_value(), fresh_value()
        await self._face.begin(flow, browser, Flow(asked, client))
        return self._consent_page(client, asked, flow, self._cookie.write(browser))

    def _consent_page(self, client: KnownClient, asked: AuthorizationRequest, flow: str, more: Pairs) -> Answer:
        settings = self._face.settings
        answered_at = urlsplit(asked.redirect_uri)
        local = answered_at.scheme == "http"
        there = (
            "a program on this computer" if local else answered_at.hostname or f"{answered_at.scheme}: (an application)"
        )
        known = f"{client.host} (verified)" if client.host else "not verified: any program can use this name"
        if client.kind == "configured":
            known = "registered by the operator of this server"
        facts = [
            ("Program", client.name or client.host or client.id),
            ("Known by", known),
            ("The answer goes to", there),
            ("Gets access to", f"{settings.title} ({settings.resource})"),
            ("May", "; ".join(settings.scopes.get(one) or one for one in asked.scopes) or "use it in your name"),
            ("You log in at", host_of(self._face.where)),
        ]
        care = "Go on only if you have just started this from a program that you trust."
        title = f"Let {client.name or client.host or 'this program'} in?"
        return html.question(title, facts, care, settings.url("/consent"), flow, "Allow, and log in", more)

    async def consent(self, request: Request) -> Answer:
        self._check_own_form(request)
        said = _page_parameters(request.body.decode("latin-1"))
        browser = self._cookie.read(request)
        flow = await self._face.resume(said.get("flow", ""), browser)
        if flow.pending is not None or browser is None:
            raise PageRefused("This page is out of date. Start again from your program.")
        if said.get("answer") != "yes":
            url = self._refusal(flow.asked.redirect_uri, flow.asked.state, "access_denied", "Access was declined.")
            return html.going(url, flow.client.name or "your program")
        url, pending = await self._face.login_url(self._callback)
        await self._face.begin(pending.state, browser, Flow(flow.asked, flow.client, pending))
        return html.going(url, host_of(self._face.where), self._cookie.write(browser))

    def _check_own_form(self, request: Request) -> None:
        """A form is posted by our own page. Browsers say so, and what no browser says is tied to the cookie anyway."""
        origin = request.headers.get(b"origin")
        site = request.headers.get(b"sec-fetch-site", b"same-origin")
        if (origin is not None and origin != self._origin.encode()) or site != b"same-origin":
            raise PageRefused("This was sent by another page. Start again from your program.", 403)
        if request.headers.get(b"content-type", b"").partition(b";")[0].strip().lower() != _FORM:
            raise PageRefused("This is no form.", 415)

    async def callback(self, request: Request) -> Answer:
        said = _page_parameters(request.query)
        flow = await self._face.resume(said.get("state", ""), self._cookie.read(request))
        if flow.pending is None:
            raise PageRefused("This page is out of date. Start again from your program.")
        asked = flow.asked
        try:
            who = await self._face.logged_in(flow.pending, said, self._callback)
        except GrantDenied as denial:
            log.info("a login was denied: %s", denial)
            return _redirect(self._refusal(asked.redirect_uri, asked.state, "access_denied", "The login was declined."))
        if not admits(self._face.where, who):
            log.warning("%s logged in, and is none of those who may", who.subject)
            text = f"You are logged in as {who.shown}, who may not use this server. Its operator decides who may."
            return html.refused(text, 403)
        code = await self._face.grant(asked, who)
        return _redirect(
            requests.answer_url(asked.redirect_uri, self._face.settings.issuer, asked.state, {"code": code})
        )

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
        return _json(200, said, _NO_STORE)

    async def revoke(self, request: Request) -> Answer:
        form, client = await self._form_of_client(request)
        await self._face.revoke(client, form.get("token", ""))
        return _json(200, {}, _NO_STORE)

    async def register(self, request: Request) -> Answer:
        client, secret = read_registration(request.body)
        await self._face.register(client)
        log.info("the client %s has registered: %s", client.id, client.name)
        return _json(201, registration_answer(client, secret, time.time()), _NO_STORE)

    async def _form_of_client(self, request: Request) -> tuple[dict[str, str], KnownClient]:
        if request.headers.get(b"content-type", b"").partition(b";")[0].strip().lower() != _FORM:
            raise GrantRefused("invalid_request", "The body is a form.")
        form = requests.parameters(request.body.decode("latin-1"))
        header = request.headers.get(b"authorization")
        basic = requests.basic_credentials(None if header is None else header.decode("latin-1"))
        return form, await self._face.authenticate(form, basic)


def _shown(page: Page) -> Page:
    """A page whose refusals are for people."""

    async def answer(request: Request) -> Answer:
        try:
            return await page(request)
        except PageRefused as refusal:
            return html.refused(str(refusal), refusal.status)
        except GrantRefused as refusal:
            return html.refused(str(refusal), refusal.status)
        except AuthorizationFailed as failure:
            # What it says is about the two servers, and may name what the person has no business with.
            log.warning("a login failed: %s", failure)
            return html.refused("The login did not work. The operator of this server can see why in its log.", 502)
        except StoreError as failure:
            log.error("a login failed: %s", failure)
            return html.refused("This server cannot do that now. Try again later.", 503)

    return answer


def _told(page: Page) -> Page:
    """An endpoint whose refusals are for clients."""

    async def answer(request: Request) -> Answer:
        try:
            return await page(request)
        except GrantRefused as refusal:
            more: Pairs = ((b"www-authenticate", b"Basic"),) if refusal.status == 401 else ()
            said = {"error": refusal.error, "error_description": str(refusal)}
            return _json(refusal.status, said, (*_NO_STORE, *more))
        except StoreError as failure:
            log.error("a client was not served: %s", failure)
            return _json(503, {"error": "temporarily_unavailable"}, _NO_STORE)

    return answer


def _page_parameters(text: str) -> dict[str, str]:
    if len(text) > LONGEST_REQUEST:
        raise PageRefused("The request is too long.")
    return requests.parameters(text)


def _redirect(url: str) -> Answer:
    return Answer(302, ((b"location", url.encode("ascii")), *html.PROTECTED[1:]))


def _json(status: int, said: Any, more: Pairs = ()) -> Answer:
    return Answer(status, (*JSON, *more), msgspec.json.encode(said))
