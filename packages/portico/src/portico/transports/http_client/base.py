"""Common base of the HTTP client transports: the server's URL, headers, and authentication."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import Protocol

from portico.protocol.errors import UsageError
from portico.transports.base import MAX_MESSAGE_BYTES
from portico.transports.http_client.connection import HttpClientResponse
from portico.transports.http_client.pool import HeaderItems, HttpConnectionPool, HttpUrl

# Set by the protocol or by HTTP framing. Users must not override them.
_RESERVED_HEADERS = frozenset(
    {"host", "content-type", "content-length", "accept", "connection", "transfer-encoding", "last-event-id"}
)


class AuthenticatedTransport(Protocol):
    """Sends requests with credentials, and repeats them as the authorization flow requires."""

    @property
    def auth_generation(self) -> int: ...

    async def send(
        self, pool: HttpConnectionPool, method: str, url: HttpUrl, headers: HeaderItems, body: bytes, operation: str
    ) -> HttpClientResponse: ...

    async def close(self) -> None: ...


class HttpTransportBase:
    """Client side of an HTTP transport."""

    name: str
    auth_generation: int

    def _configure(
        self,
        url: str,
        headers: Mapping[str, str] | None = None,
        auth: AuthenticatedTransport | None = None,
        pool: HttpConnectionPool | None = None,
        max_response_bytes: int = MAX_MESSAGE_BYTES,
    ) -> None:
        self._url = HttpUrl(url)
        self.name = self._url.display_url
        self._pool = pool or HttpConnectionPool()
        self._custom_headers = validate_custom_headers(headers or {}, self._url)
        self._auth = auth
        self._max_response_bytes = max_response_bytes

    @property
    def _sends_token(self) -> bool:
        """Return whether requests carry credentials: a token, or a custom Authorization header."""
        return self._auth is not None or any(name.lower() == "authorization" for name, _ in self._custom_headers)

    @property
    def pool(self) -> HttpConnectionPool:
        """Return the connection pool of the transport."""
        return self._pool

    def _send_http_request(
        self, method: str, url: HttpUrl, headers: HeaderItems, body: bytes = b"", operation: str = ""
    ) -> Awaitable[HttpClientResponse]:
        if self._auth is None:
            return self._pool.send(method, url, headers, body)
        return self._auth.send(self._pool, method, url, headers, body, operation or method)


def validate_custom_headers(headers: Mapping[str, str], location: HttpUrl) -> tuple[tuple[str, str], ...]:
    """Return the user's headers, with credentials from the URL. Raises `UsageError` for reserved headers."""
    for name in headers:
        if name.lower() in _RESERVED_HEADERS or name.lower().startswith("mcp-"):
            raise UsageError(f"the header {name!r} is reserved for the protocol")
    names = {name.lower() for name in headers}
    introduced = () if "authorization" in names else location.basic_auth_headers("Authorization")
    return (*headers.items(), *introduced)
