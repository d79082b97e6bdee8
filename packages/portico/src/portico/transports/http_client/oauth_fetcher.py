"""Driver of authorization flows that need no browser."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import TypeVar

from portico.auth.errors import AuthorizationError, UnsafeUrl, quote_untrusted
from portico.auth.flow import AuthFlow, FetchRequest, FetchResponse, drive_without_browser
from portico.auth.url_policy import MAX_RESPONSE_BYTES, check_addresses, check_redirect, split_url
from portico.protocol.errors import ProtocolError, TransportError
from portico.transports.http_client.pool import HttpConnectionPool, HttpUrl

T = TypeVar("T")

FETCH_TIMEOUT_SECONDS = 30.0
MAX_REDIRECTS = 3


class OAuthFetcher:
    """Fetches URLs on behalf of a server whose addresses `server_addresses` returns.

    Each host name is resolved once, checked, and connected to by the checked address (protection against DNS
    rebinding).
    """

    def __init__(self, server_addresses: Callable[[], Awaitable[list[str]]]) -> None:
        self._server_addresses = server_addresses
        # A proxy would resolve the name itself, possibly to another address than the checked one.
        self._pool = HttpConnectionPool(use_proxies=False)

    async def run_conversation(self, conversation: AuthFlow[T]) -> T:
        """Run an authorization flow that only fetches, and return its result."""
        return await drive_without_browser(conversation, self.fetch)

    async def fetch(self, request: FetchRequest) -> FetchResponse:
        try:
            async with asyncio.timeout(FETCH_TIMEOUT_SECONDS):
                return await self._fetch(request)
        except (TransportError, ProtocolError) as failure:
            raise AuthorizationError(f"{quote_untrusted(request.url)} could not be fetched: {failure}") from None
        except TimeoutError:
            raise AuthorizationError(
                f"{quote_untrusted(request.url)} did not respond within {FETCH_TIMEOUT_SECONDS:g} s."
            ) from None

    async def close(self) -> None:
        """Close all connections. The fetcher can be used again."""
        pool, self._pool = self._pool, HttpConnectionPool(use_proxies=False)
        await pool.close()

    async def _fetch(self, request: FetchRequest) -> FetchResponse:
        url = request.url
        for _ in range(MAX_REDIRECTS):
            parsed = HttpUrl(url, await self._resolve_allowed_address(url))
            answer = await self._pool.send(request.method, parsed, request.headers, request.body)
            try:
                body = await answer.read(MAX_RESPONSE_BYTES)
            finally:
                self._pool.release(parsed, answer)
            location = answer.headers.get("location")
            if answer.status not in (301, 302, 303, 307, 308) or location is None:
                return FetchResponse(answer.status, tuple(answer.headers.items()), body)
            url = check_redirect(request.method, url, location)
        raise UnsafeUrl(f"{quote_untrusted(request.url)} redirects too often.")

    async def _resolve_allowed_address(self, url: str) -> str:
        """Resolve and check the host of a URL. Return the address to connect to."""
        addresses = await resolve_addresses(url)
        check_addresses(url, addresses, await self._server_addresses())
        return addresses[0]


async def resolve_addresses(url: str) -> list[str]:
    parts = split_url(url)
    loop = asyncio.get_running_loop()
    try:
        result = await loop.getaddrinfo(parts.hostname, parts.port or 443, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        # UnicodeError: a label of the name is empty or longer than 63 characters.
        raise AuthorizationError(f"{quote_untrusted(url)}: host not found.") from None
    return [str(address[0]) for *_, address in result]
