"""HTTP client connection pool with TLS and proxy support."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import ssl
import sys
import time
from base64 import b64encode
from collections import deque
from collections.abc import Awaitable, Iterable
from functools import partial
from typing import Any
from urllib.parse import unquote, urljoin, urlsplit

from portico.auth.url_policy import is_loopback_address, is_loopback_name
from portico.caching import LruCache
from portico.protocol.errors import ConnectError, ConnectionClosed, ProtocolError, UsageError
from portico.transports.http_client.connection import (
    MAX_CACHED_HEADS,
    CachedResponseHead,
    HttpClientConnection,
    HttpClientResponse,
)

HeaderItems = Iterable[tuple[str, str]]

CONNECT_TIMEOUT_SECONDS = 15.0
# Servers commonly close idle connections after five seconds, and a request sent at that moment is lost.
IDLE_TIMEOUT_SECONDS = 4.0
MAX_IDLE_CONNECTIONS_PER_ORIGIN = 32
# A client has one pool per server. Further requests wait for a connection, within their own timeouts, instead of using
# up the descriptors of the process.
MAX_CONNECTIONS = 256

_DEFAULT_PORTS = {"http": 80, "https": 443}


class HttpUrl:
    """Parsed URL: the address to connect to, and the request target."""

    def __init__(self, url: str, address: str | None = None) -> None:
        try:
            parts = urlsplit(url)
            port = parts.port or _DEFAULT_PORTS.get(parts.scheme, 0)
        except ValueError as failure:
            raise UsageError(f"invalid URL {url!r}: {failure}") from None
        if parts.scheme not in _DEFAULT_PORTS or not parts.hostname:
            raise UsageError(f"expected an http or https URL, got {url!r}")
        if not url.isascii() or any(char <= " " or char == "\x7f" for char in url):
            raise UsageError(
                f"invalid URL {url!r}: spaces, control characters and non-ASCII characters must be percent-encoded"
            )
        self.url = url
        self.is_tls = parts.scheme == "https"
        self.host, self.port = parts.hostname, port
        # An address that was resolved and checked is not resolved again.
        self.connect_address = address or self.host
        self.authority = parts.netloc.rpartition("@")[2]
        self.path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self.pool_key = (self.is_tls, self.connect_address, self.host, self.port)
        # For display: without credentials, which precede the host, and without the query, which may contain keys.
        self.display_url = f"{parts.scheme}://{self.authority}{parts.path}"
        self._parts = parts

    def join(self, location: str) -> str:
        return urljoin(self.url, location)

    def resolve_same_origin(self, location: str) -> HttpUrl | None:
        """Return the location of a redirect if it has the same origin, else None."""
        try:
            target = HttpUrl(self.join(location))
        except (UsageError, ValueError):
            return None
        same = (target.is_tls, target.host, target.port) == (self.is_tls, self.host, self.port)
        # Connect to the address that was checked for this URL.
        return HttpUrl(target.url, self.connect_address) if same else None

    def basic_auth_headers(self, header: str) -> HeaderItems:
        """Return the credentials of the URL, if any, as a Basic authentication header (RFC 7617)."""
        if self._parts.username is None:
            return ()
        pair = f"{unquote(self._parts.username)}:{unquote(self._parts.password or '')}"
        return ((header, "Basic " + b64encode(pair.encode()).decode()),)


def _build_head(method: str, location: HttpUrl, target: str, headers: HeaderItems, length: int) -> bytes:
    lines = [f"{method} {target} HTTP/1.1", f"Host: {location.authority}"]
    for name, value in headers:
        lines.append(f"{name}: {value}")
    if length or method == "POST":
        lines.append(f"Content-Length: {length}")
    text = "\r\n".join(lines)
    if text.count("\r\n") != len(lines) - 1 or not text.replace("\r\n", "").replace("\t", "").isprintable():
        raise UsageError("a header contains a line break or another control character")
    try:
        return text.encode("ascii") + b"\r\n\r\n"
    except UnicodeEncodeError:
        raise UsageError("a header contains non-ASCII characters") from None


def build_post_head(location: HttpUrl, headers: HeaderItems) -> bytes:
    """Return the head of a POST request up to its length, for `HttpConnectionPool.post`. Reusable for many requests."""
    return _build_head("POST", location, location.path, headers, 0).removesuffix(b"0\r\n\r\n")


class HttpConnectionPool:
    """HTTP/1.1 connection pool. Idle connections are reused; each exchange has its own connection."""

    def __init__(self, ssl_context: ssl.SSLContext | None = None, *, use_proxies: bool = True) -> None:
        self._context = ssl_context
        # Whether requests never use a proxy.
        self.is_direct = not (use_proxies and _has_proxies())
        self._idle: dict[Any, list[HttpClientConnection]] = {}
        self._open: set[HttpClientConnection] = set()
        self._connecting = 0
        # Requests that wait for a connection, the oldest first.
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._head_cache: LruCache[bytes, CachedResponseHead] = LruCache(MAX_CACHED_HEADS)
        self._closed = False

    async def send(self, method: str, url: HttpUrl, headers: HeaderItems, body: bytes = b"") -> HttpClientResponse:
        """Send one request. Raises `ConnectError` if it was never sent, and `ConnectionClosed` if it may have been."""
        proxy = None if self.is_direct else self._proxy_for(url)
        target = url.path
        if proxy is not None and not url.is_tls:
            # RFC 9112, section 3.2.2: a request to a proxy has the absolute form. With TLS a tunnel is used
            # instead.
            target = f"http://{url.authority}{url.path}"
            headers = (*headers, *proxy.basic_auth_headers("Proxy-Authorization"))
        request = _build_head(method, url, target, headers, len(body)) + body
        return await self._exchange(url, proxy, request)

    def post(self, url: HttpUrl, head: bytes, body: bytes) -> Awaitable[HttpClientResponse]:
        """Send a POST request with a head of `build_post_head`. Only valid if the pool is direct."""
        return self._exchange(url, None, b"%b%d\r\n\r\n%b" % (head, len(body), body))

    async def _exchange(self, location: HttpUrl, proxy: HttpUrl | None, request: bytes) -> HttpClientResponse:
        # A request is never repeated on another connection here: only the caller knows whether it is
        # idempotent.
        connection = self._pop_idle(location) or await self._open_or_wait(location, proxy)
        if self._closed:
            connection.abort()
            raise ConnectionClosed("the client was closed")
        self._open.add(connection)
        try:
            return await connection.send_request(request)
        except BaseException:
            connection.abort()
            self._open.discard(connection)
            self._wake_waiter()
            raise

    def acquire(self, url: HttpUrl) -> HttpClientConnection | None:
        """Return an idle connection for one exchange, or None. It has to be released or discarded."""
        connection = self._pop_idle(url)
        if connection is not None:
            self._open.add(connection)
        return connection

    def discard(self, connection: HttpClientConnection) -> None:
        """Close a connection after a failed exchange. Does nothing if it was already released."""
        if connection in self._open:
            connection.abort()
            self._open.discard(connection)
            self._wake_waiter()

    def release(self, url: HttpUrl, response: HttpClientResponse) -> None:
        """Finish a response. Its connection returns to the pool if it is reusable."""
        if response.done:
            return
        response.done = True
        connection = response.connection
        connection.release()
        self._open.discard(connection)
        idle = self._idle.setdefault(url.pool_key, [])
        if connection.reusable and len(idle) < MAX_IDLE_CONNECTIONS_PER_ORIGIN and not self._closed:
            connection.idle_since = time.monotonic()
            idle.append(connection)
        else:
            connection.abort()
        if self._waiters:
            self._wake_waiter()

    def _pop_idle(self, location: HttpUrl) -> HttpClientConnection | None:
        idle = self._idle.get(location.pool_key, [])
        while idle:
            # The most recent one first, so that surplus connections become old and are closed.
            connection = idle.pop()
            fresh = time.monotonic() - connection.idle_since < IDLE_TIMEOUT_SECONDS
            # A readable idle connection was closed by the server, or has unsolicited data.
            if connection.reusable and fresh and not connection.is_readable():
                return connection
            connection.abort()
        return None

    async def close(self) -> None:
        self._closed = True
        for connection in [*self._open, *(item for idle in self._idle.values() for item in idle)]:
            connection.abort()
        self._open.clear()
        self._idle.clear()
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        # Let the transports process the abort.
        await asyncio.sleep(0)

    # Connecting

    async def _open_or_wait(self, location: HttpUrl, proxy: HttpUrl | None) -> HttpClientConnection:
        """Open a connection, or wait for one if there are MAX_CONNECTIONS."""
        while len(self._open) + self._connecting >= MAX_CONNECTIONS and not self._closed:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                # It may have been woken and cancelled in the same turn of the loop; the next one takes its place.
                self._wake_waiter()
                raise
            connection = self._pop_idle(location)
            if connection is not None:
                return connection
        self._connecting += 1
        try:
            return await self._connect(location, proxy)
        except BaseException:
            self._wake_waiter()
            raise
        finally:
            self._connecting -= 1

    def _wake_waiter(self) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    async def _connect(self, location: HttpUrl, proxy: HttpUrl | None) -> HttpClientConnection:
        if self._closed:
            raise ConnectionClosed("the client was closed")
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_SECONDS):
                if proxy is not None and location.is_tls:
                    return await self._tunnel(location, proxy)
                endpoint = proxy or location
                connection = await self._open_connection(
                    endpoint.connect_address, endpoint.port, endpoint.host if endpoint.is_tls else None
                )
                if proxy is None:
                    connection.peer = connection.transport.get_extra_info("peername")[0]
                    _check_loopback(location, connection)
                return connection
        except ConnectError:
            raise
        except (ConnectionClosed, ProtocolError) as failure:
            raise ConnectError(f"cannot connect to {location.authority} through the proxy: {failure}") from None
        except TimeoutError:
            raise ConnectError(
                f"cannot connect to {location.authority}: no response within {CONNECT_TIMEOUT_SECONDS:g} s"
            ) from None
        except ssl.SSLError as failure:
            raise ConnectError(f"cannot connect to {location.authority}: {_tls_reason(failure)}") from None
        except OSError as failure:
            raise ConnectError(f"cannot connect to {location.authority}: {_describe_failure(failure)}") from None
        except UnicodeError:
            # From the IDNA encoding of the host name.
            reason = "a label of the host name is empty or longer than 63 characters"
            raise ConnectError(f"cannot connect to {location.authority}: {reason}") from None

    async def _open_connection(self, address: str, port: int, tls_name: str | None) -> HttpClientConnection:
        loop = asyncio.get_running_loop()
        options: dict[str, Any] = {}
        if tls_name is not None:
            options = {"ssl": self._ssl_context(), "server_hostname": tls_name}
        _, connection = await loop.create_connection(
            partial(HttpClientConnection, self._head_cache), address, port, **options
        )
        return connection

    def _ssl_context(self) -> ssl.SSLContext:
        if self._context is None:
            self._context = ssl.create_default_context()
        return self._context

    def _proxy_for(self, location: HttpUrl) -> HttpUrl | None:
        """Return the proxy that the environment configures (HTTPS_PROXY, NO_PROXY, …). Never for the local machine."""
        import urllib.request  # slow to import, and rarely needed

        url = urllib.request.getproxies().get("https" if location.is_tls else "http")
        if not url or is_loopback_name(location.host):
            return None
        # NO_PROXY entries may contain a port.
        if urllib.request.proxy_bypass(location.host) or urllib.request.proxy_bypass(
            f"{location.host}:{location.port}"
        ):
            return None
        return HttpUrl(url if "://" in url else f"http://{url}")

    async def _tunnel(self, location: HttpUrl, proxy: HttpUrl) -> HttpClientConnection:
        """Open a tunnel with CONNECT (RFC 9110, section 9.3.6), then TLS with the server itself."""
        loop = asyncio.get_running_loop()
        first = await self._open_connection(proxy.connect_address, proxy.port, proxy.host if proxy.is_tls else None)
        target = (
            f"{location.host}:{location.port}" if ":" not in location.host else f"[{location.host}]:{location.port}"
        )
        hello = _build_head("CONNECT", location, target, proxy.basic_auth_headers("Proxy-Authorization"), 0)
        try:
            response = await first.send_request(hello)
            if not 200 <= response.status < 300:
                raise ConnectError(
                    f"cannot connect to {location.authority}: the proxy responded with HTTP status {response.status}"
                )
            connection = HttpClientConnection()
            transport = await loop.start_tls(
                first.transport, connection, self._ssl_context(), server_hostname=location.host
            )
        except BaseException:
            first.abort()
            raise
        assert transport is not None
        connection.connection_made(transport)
        return connection


def _tls_reason(failure: ssl.SSLError) -> str:
    """Return why a TLS handshake failed. A server without TLS sends invalid records."""
    if failure.reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST"):
        return "the server does not use TLS at this port; try http:// instead of https://"
    return f"TLS: {getattr(failure, 'verify_message', '') or failure.reason or failure}"


def _describe_failure(failure: OSError) -> str:
    """Return why a connection failed. asyncio replaces the system's message with addresses."""
    numbers = [failure.errno] if failure.errno else [int(item) for item in re.findall(r"\[Errno (\d+)\]", str(failure))]
    if isinstance(failure, ConnectionRefusedError) or errno.ECONNREFUSED in numbers:
        return "connection refused; is the server running, and is this its port?"
    code = next((number for number in numbers if number in errno.errorcode), None)
    return failure.strerror or str(failure) if code is None else os.strerror(code)


def _check_loopback(location: HttpUrl, connection: HttpClientConnection) -> None:
    """Raise `ConnectError` if a loopback URL led to another machine, before anything was sent to it.

    A hosts file or DNS server decides what `localhost` resolves to. Tokens for this machine are selected by the host
    name, and http is allowed for it, so the address must be a loopback address.
    """
    if is_loopback_name(location.host) and not is_loopback_address(connection.peer or ""):
        connection.abort()
        raise ConnectError(
            f"cannot connect to {location.authority}: it resolves to {connection.peer}, expected a loopback address; "
            "check the hosts file and the name server"
        )


def _has_proxies() -> bool:
    return sys.platform in ("darwin", "win32") or any(name.lower().endswith("_proxy") for name in os.environ)
