"""OAuth driver: performs the I/O that the authorization flows request, with sockets and a browser."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from typing import TypeVar

from portico.auth.flow import (
    AuthFlow,
    BrowserRequest,
    DeviceCodeRequest,
    FetchResponse,
    FlowRequest,
    FlowResponse,
    WaitRequest,
    drive,
    parse_redirect,
)
from portico.auth.oauth import OAuth
from portico.auth.url_policy import MAX_RESPONSE_BYTES
from portico.protocol.errors import ProtocolError
from portico.transports.http_client.browser_login import print_device_code
from portico.transports.http_client.connection import HttpClientResponse
from portico.transports.http_client.oauth_fetcher import OAuthFetcher, resolve_addresses
from portico.transports.http_client.pool import HeaderItems, HttpConnectionPool, HttpUrl
from portico.transports.http_client.timeouts import pause_timeout

T = TypeVar("T")

# Takes the URL to open and the redirect URI; returns the URL to which the browser was redirected.
LoginCallback = Callable[[str, str], Awaitable[str]]
# Shows the user code of a device login.
DeviceCodeCallback = Callable[[DeviceCodeRequest], None]


class OAuthTransport:
    """Sends requests with a token, and obtains one when the server requires it."""

    def __init__(
        self, oauth: OAuth, on_login: LoginCallback, on_device_code: DeviceCodeCallback = print_device_code
    ) -> None:
        self.auth_generation = 0
        self._oauth = oauth
        self._visitor = on_login
        self._show_device_code = on_device_code
        self._fetcher = OAuthFetcher(self._server_addresses)
        # The server's address at its last response. Unlike a new DNS lookup, it is known to be the server's.
        self._server_address: str | None = None
        # One flow at a time; waiting requests then find the token that the first one obtained.
        self._lock = asyncio.Lock()

    async def send(
        self,
        pool: HttpConnectionPool,
        method: str,
        location: HttpUrl,
        headers: HeaderItems,
        body: bytes,
        operation: str,
    ) -> HttpClientResponse:
        attempt = self._oauth.start_request(operation)
        while True:
            proof = await self._run_conversation(attempt.headers(method, location.url, body))
            answer = await pool.send(method, location, (*headers, *proof.items()), body)
            self._server_address = answer.connection.peer
            try:
                error_body = await _read_error_body(answer) if answer.status in (401, 403) else b""
                fetched = FetchResponse(answer.status, tuple(answer.headers.items()), error_body)
                if not await self._run_conversation(attempt.should_retry(fetched)):
                    return answer
            except BaseException:
                pool.release(location, answer)
                raise
            pool.release(location, answer)

    async def login(self) -> None:
        """Obtain a new token, even if one exists."""
        await self._run_conversation(self._oauth.authorize())

    async def close(self) -> None:
        """Close all connections. The transport can be used again."""
        await self._fetcher.close()

    async def _run_conversation(self, conversation: AuthFlow[T]) -> T:
        # The timeout of a request is paused while it waits for another request's login.
        with pause_timeout() if self._lock.locked() else nullcontext():
            await self._lock.acquire()
        try:
            return await drive(conversation, self._perform)
        finally:
            self._lock.release()

    async def _perform(self, request: FlowRequest) -> FlowResponse:
        if isinstance(request, BrowserRequest):
            self.auth_generation += 1
            with pause_timeout():
                return parse_redirect(await self._visitor(request.url, request.redirect_uri))
        if isinstance(request, DeviceCodeRequest):
            self.auth_generation += 1
            self._show_device_code(request)
            return None
        if isinstance(request, WaitRequest):
            with pause_timeout():
                await asyncio.sleep(request.seconds)
            return None
        return await self._fetcher.fetch(request)

    async def _server_addresses(self) -> list[str]:
        """Return the server's addresses: that of its last response, which is more reliable than DNS."""
        server = self._server_address
        return await resolve_addresses(self._oauth.server_url) if server is None else [server]


async def _read_error_body(answer: HttpClientResponse) -> bytes:
    """Return the body of an error response, or empty if it is too long."""
    try:
        return await answer.read(MAX_RESPONSE_BYTES)
    except ProtocolError:
        answer.discard_body()
        return b""
