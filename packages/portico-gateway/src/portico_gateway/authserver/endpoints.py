"""HTTP endpoints of the authorization server: metadata documents, consent pages, token, revocation and registration."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

import msgspec
from msgspec import Raw, Struct

from portico.auth.assertions import DPOP_ALGORITHM
from portico.transports.http_server import ip_rate_limit
from portico.transports.http_server.custom_routes import CustomRoute
from portico.transports.http_server.ip_rate_limit import IpRateLimiter
from portico.transports.http_server.messages import HeaderPairs, HttpRequest, HttpResponse
from portico_gateway.authserver import html, requests
from portico_gateway.authserver.clients import (
    OAuthClient,
    destination,
    parse_registration,
    redirect_kind,
    registration_response,
)
from portico_gateway.authserver.cookies import new_cookie_value
from portico_gateway.authserver.errors import ErrorPageResponse, OAuthErrorResponse, RedirectErrorResponse
from portico_gateway.authserver.identity_providers import provider_host
from portico_gateway.authserver.login_flow import LoginResult, LoginState
from portico_gateway.authserver.requests import AuthorizationRequest
from portico_gateway.authserver.responses import (
    NO_STORE,
    html_errors,
    json_response,
    oauth_errors,
    parse_parameters,
    redirect,
)
from portico_gateway.authserver.server import AuthorizationServer

log = logging.getLogger("portico.access")

_CACHE_CONTROL: HeaderPairs = ((b"cache-control", b"max-age=300"),)
_PURPOSE = "authorize"
WELL_KNOWN_PATHS = ("/.well-known/oauth-authorization-server", "/.well-known/openid-configuration")


class _PendingConsent(Struct, frozen=True):
    """Authorization request that waits for the user's consent and login."""

    request: AuthorizationRequest
    client: OAuthClient


class OAuthEndpoints:
    """HTTP endpoints of an authorization server."""

    def __init__(self, server: AuthorizationServer) -> None:
        self._server = server
        self._logins = server.login_flow
        self._logins.handlers[_PURPOSE] = self.on_login

    def routes(self) -> list[CustomRoute]:
        """Return the routes of all endpoints."""
        own = [
            ("GET", "/authorize", IpRateLimiter(ip_rate_limit.LOGINS_PER_MINUTE).wrap(html_errors(self.authorize))),
            ("POST", "/consent", IpRateLimiter(ip_rate_limit.LOGINS_PER_MINUTE).wrap(html_errors(self.consent))),
            ("POST", "/token", IpRateLimiter(ip_rate_limit.TOKENS_PER_MINUTE).wrap(oauth_errors(self.token))),
            ("POST", "/revoke", IpRateLimiter(ip_rate_limit.TOKENS_PER_MINUTE).wrap(oauth_errors(self.revoke))),
            ("GET", "/jwks.json", self.jwks),
        ]
        if self._server.settings.dynamic_client_registration:
            own.append(
                (
                    "POST",
                    "/register",
                    IpRateLimiter(ip_rate_limit.REGISTRATIONS_PER_MINUTE).wrap(oauth_errors(self.register)),
                )
            )
        root = self._logins.root
        # Clients build the metadata URL with the issuer's path before the well-known path (OpenID Connect Discovery,
        # section 4.1) or after it (RFC 8414, section 3.1), and a reverse proxy may strip the path. Serve all forms.
        paths = {path + end for path in WELL_KNOWN_PATHS for end in ("", root)} | {root + WELL_KNOWN_PATHS[1]}
        return [*self._logins.mount_routes(own), *(CustomRoute("GET", path, self.metadata) for path in sorted(paths))]

    # Documents

    async def metadata(self, request: HttpRequest) -> HttpResponse:
        return json_response(200, requests.server_metadata(self._server.settings, [DPOP_ALGORITHM]), _CACHE_CONTROL)

    async def jwks(self, request: HttpRequest) -> HttpResponse:
        return json_response(200, {"keys": await self._server.get_public_keys()}, _CACHE_CONTROL)

    # Browser flow: authorization request, consent, login at the identity provider, redirect to the client

    async def authorize(self, request: HttpRequest) -> HttpResponse:
        parameters = parse_parameters(request.query)
        client = await self._server.get_client(parameters.get("client_id", ""), request.peer)
        try:
            authorization_request = requests.parse_authorization_request(parameters, client, self._server.settings)
        except RedirectErrorResponse as refusal:
            uri = parameters["redirect_uri"]
            if not await self._server.is_approved(client, uri):
                # Any program can register. Redirecting without the user's decision would make this host an open
                # redirector.
                raise ErrorPageResponse(
                    f"The program that sent you here made an invalid request: {refusal} ({refusal.error})"
                ) from None
            return redirect(self._error_redirect(uri, parameters.get("state"), refusal.error, str(refusal)))
        cookie = self._logins.cookie
        browser, flow = cookie.read(request) or new_cookie_value(), new_cookie_value()
        body = Raw(msgspec.json.encode(_PendingConsent(authorization_request, client)))
        await self._logins.save_state(flow, browser, LoginState(_PURPOSE, body), request.peer)
        return self._consent_page(client, authorization_request, flow, cookie.write(browser))

    def _consent_page(
        self, client: OAuthClient, request: AuthorizationRequest, flow: str, more: HeaderPairs
    ) -> HttpResponse:
        settings = self._server.settings
        title, facts = describe_client(self._server, client, request.scopes)
        facts.insert(2, ("Returns to", destination(request.redirect_uri)))
        care = "Continue only if you started this login yourself from a program that you trust."
        return html.render_confirmation(title, facts, care, settings.url("/consent"), flow, "Allow, and log in", more)

    async def consent(self, request: HttpRequest) -> HttpResponse:
        form = self._logins.check_same_origin(request)
        cookie = self._logins.cookie
        browser = cookie.read(request)
        flow = await self._logins.take_state(form.get("flow", ""), browser, _PURPOSE)
        if flow.pending is not None or browser is None:
            raise ErrorPageResponse("This page has expired. Start again from your application.")
        if form.get("answer") != "yes":
            pending = msgspec.json.decode(flow.body, type=_PendingConsent)
            uri, state = pending.request.redirect_uri, pending.request.state
            url = self._error_redirect(uri, state, "access_denied", "Access was declined.")
            local = redirect_kind(uri) == "loopback"
            if local or await self._server.is_approved(pending.client, uri):
                return html.render_redirect(url, destination(uri))
            return html.access_denied_page(url, destination(uri))
        url = await self._logins.redirect_to_login(browser, _PURPOSE, flow.body, request.peer)
        return html.render_redirect(url, provider_host(self._logins.provider), cookie.write(browser))

    async def on_login(self, arrived: LoginResult) -> HttpResponse:
        authorization_request = msgspec.json.decode(arrived.body, type=_PendingConsent).request
        if arrived.who is None:
            return redirect(
                self._error_redirect(
                    authorization_request.redirect_uri,
                    authorization_request.state,
                    "access_denied",
                    "The login was declined.",
                )
            )
        parameters = {"code": await self._server.issue_code(authorization_request, arrived.who)}
        return redirect(
            requests.redirect_url(
                authorization_request.redirect_uri,
                self._server.settings.issuer,
                authorization_request.state,
                parameters,
            )
        )

    def _error_redirect(self, uri: str, state: str | None, error: str, text: str) -> str:
        parameters = {"error": error, "error_description": text}
        return requests.redirect_url(uri, self._server.settings.issuer, state, parameters)

    # Endpoints called by clients

    async def token(self, request: HttpRequest) -> HttpResponse:
        form, client = await authenticate_form(self._server, request)
        issued = await self._server.exchange_token(client, form)
        body = {
            "access_token": issued.access_token,
            "token_type": "Bearer",
            "expires_in": int(self._server.settings.access_seconds),
            "refresh_token": issued.refresh_token,
            "scope": issued.scope,
        }
        return json_response(200, body, NO_STORE)

    async def revoke(self, request: HttpRequest) -> HttpResponse:
        form, client = await authenticate_form(self._server, request)
        await self._server.revoke(client, form.get("token", ""))
        return json_response(200, {}, NO_STORE)

    async def register(self, request: HttpRequest) -> HttpResponse:
        client, secret = parse_registration(request.body, requests.supported_grant_types(self._server.settings))
        await self._server.register_client(client, request.peer)
        log.info("client %s registered: %s", client.id, client.name)
        return json_response(201, registration_response(client, secret, time.time()), NO_STORE)


def describe_client(
    server: AuthorizationServer, client: OAuthClient, scopes: Sequence[str], *, is_proven: bool = True
) -> tuple[str, list[tuple[str, str]]]:
    """Return the title of the consent page for a client, and the facts that the user decides by.

    `is_proven`: the request is known to come from the client, by its redirect URI or its secret.
    """
    settings = server.settings
    is_trusted = (
        f"{client.metadata_host} (verified)"
        if client.metadata_host and is_proven
        else "not verified: any application can use this name"
    )
    program = client.name or client.metadata_host or client.id
    called = f"“{client.name}”" if client.name else client.metadata_host or "this application"
    if client.kind == "configured" and is_proven:
        is_trusted, called = "registered by the operator of this server", program
    elif client.name:
        program = f"{client.name} (self-declared name)"
    facts = [
        ("Application", program),
        ("Identity", is_trusted),
        ("Access to", f"{settings.title} ({settings.resource})"),
        (
            "Permissions",
            "; ".join(settings.scopes.get(scope) or scope for scope in scopes) or "use it on your behalf",
        ),
        ("Sign-in at", provider_host(server.login_flow.provider)),
    ]
    return f"Allow {called} to access {settings.title}?", facts


async def authenticate_form(server: AuthorizationServer, request: HttpRequest) -> tuple[dict[str, str], OAuthClient]:
    """Parse the form of a client's request and authenticate the client. Raises OAuthErrorResponse."""
    if request.headers.get(b"content-type", b"").partition(b";")[0].strip().lower() != html.FORM_CONTENT_TYPE:
        raise OAuthErrorResponse("invalid_request", "The request body must be application/x-www-form-urlencoded.")
    form = requests.parse_parameters(request.body.decode("latin-1"))
    header = request.headers.get(b"authorization")
    basic = requests.parse_basic_credentials(None if header is None else header.decode("latin-1"))
    return form, await server.authenticate_client(form, basic)
