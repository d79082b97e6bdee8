"""Responses of pages and endpoints, and decorators that convert errors into responses."""

from __future__ import annotations

import logging
from typing import Any

import msgspec

from portico.auth.errors import AuthorizationError
from portico.store.errors import StoreError
from portico.transports.http_server.custom_routes import RouteFunction
from portico.transports.http_server.messages import JSON_HEADERS, HeaderPairs, HttpRequest, HttpResponse
from portico_gateway.authserver import html, requests
from portico_gateway.authserver.errors import ErrorPageResponse, OAuthErrorResponse

log = logging.getLogger("portico.access")

# RFC 6749, section 5.1, requires both headers on responses with tokens.
NO_STORE: HeaderPairs = ((b"cache-control", b"no-store"), (b"pragma", b"no-cache"))
MAX_REQUEST_BYTES = 16 * 1024


def parse_parameters(text: str) -> dict[str, str]:
    """Parse the query or form of a page. Raises ErrorPageResponse if it is too long."""
    # Before parsing, because these pages are open to anyone who can reach the server.
    if len(text) > MAX_REQUEST_BYTES:
        raise ErrorPageResponse("The request is too long.")
    return requests.parse_parameters(text)


def redirect(url: str, more: HeaderPairs = ()) -> HttpResponse:
    return HttpResponse(302, ((b"location", url.encode("ascii")), *html.SECURITY_HEADERS[1:], *more))


def json_response(status: int, body: Any, more: HeaderPairs = ()) -> HttpResponse:
    return HttpResponse(status, (*JSON_HEADERS, *more), msgspec.json.encode(body))


def html_errors(page: RouteFunction) -> RouteFunction:
    """Wrap a page so that errors are returned as HTML."""

    async def answer(request: HttpRequest) -> HttpResponse:
        try:
            return await page(request)
        except (ErrorPageResponse, OAuthErrorResponse) as refusal:
            return html.render_error(str(refusal), refusal.status)
        except AuthorizationError as failure:
            # The message concerns the two servers and may contain internal details; it is only logged.
            log.warning("login failed: %s", failure)
            return html.render_error(
                ("The login failed. The operator of this server can find the reason in its log."), 502
            )
        except StoreError as failure:
            log.error("login failed: %s", failure)
            return html.render_error("This server is temporarily unavailable. Try again later.", 503)

    return answer


def oauth_errors(page: RouteFunction) -> RouteFunction:
    """Wrap an endpoint so that errors are returned as OAuth JSON."""

    async def answer(request: HttpRequest) -> HttpResponse:
        try:
            return await page(request)
        except OAuthErrorResponse as refusal:
            # RFC 9110, section 15.5.2: a 401 response must have a WWW-Authenticate header.
            more: HeaderPairs = ((b"www-authenticate", b"Basic"),) if refusal.status == 401 else ()
            body = {"error": refusal.error, "error_description": str(refusal)}
            return json_response(refusal.status, body, (*NO_STORE, *more))
        except StoreError as failure:
            log.error("OAuth request failed: %s", failure)
            return json_response(503, {"error": "temporarily_unavailable"}, NO_STORE)

    return answer
