"""How pages and endpoints answer, and how their refusals are told."""

from __future__ import annotations

import logging
from typing import Any

import msgspec

from portico.auth.errors import AuthorizationFailed
from portico.store.errors import StoreError
from portico.transports.http_server.custom_routes import Page
from portico.transports.http_server.messages import JSON, Answer, Pairs, Request
from portico_gateway.authserver import html, requests
from portico_gateway.authserver.errors import GrantRefused, PageRefused

log = logging.getLogger("portico.access")

NO_STORE: Pairs = ((b"cache-control", b"no-store"), (b"pragma", b"no-cache"))
LONGEST_REQUEST = 16 * 1024


def parameters_of(text: str) -> dict[str, str]:
    """A query or a form of a page."""
    if len(text) > LONGEST_REQUEST:
        raise PageRefused("The request is too long.")
    return requests.parameters(text)


def redirect(url: str, more: Pairs = ()) -> Answer:
    return Answer(302, ((b"location", url.encode("ascii")), *html.PROTECTED[1:], *more))


def document(status: int, said: Any, more: Pairs = ()) -> Answer:
    return Answer(status, (*JSON, *more), msgspec.json.encode(said))


def shown(page: Page) -> Page:
    """A page whose refusals are for people."""

    async def answer(request: Request) -> Answer:
        try:
            return await page(request)
        except (PageRefused, GrantRefused) as refusal:
            return html.refused(str(refusal), refusal.status)
        except AuthorizationFailed as failure:
            # What it says is about the two servers, and may name what the person has no business with.
            log.warning("a login failed: %s", failure)
            return html.refused("The login did not work. The operator of this server can see why in its log.", 502)
        except StoreError as failure:
            log.error("a login failed: %s", failure)
            return html.refused("This server cannot do that now. Try again later.", 503)

    return answer


def told(page: Page) -> Page:
    """An endpoint whose refusals are for clients."""

    async def answer(request: Request) -> Answer:
        try:
            return await page(request)
        except GrantRefused as refusal:
            more: Pairs = ((b"www-authenticate", b"Basic"),) if refusal.status == 401 else ()
            said = {"error": refusal.error, "error_description": str(refusal)}
            return document(refusal.status, said, (*NO_STORE, *more))
        except StoreError as failure:
            log.error("a client was not served: %s", failure)
            return document(503, {"error": "temporarily_unavailable"}, NO_STORE)

    return answer
