"""Connections to servers: TLS, proxies, and those that can be used once more."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import ssl
import sys
import time
from base64 import b64encode
from collections.abc import Awaitable, Iterable
from functools import partial
from typing import Any
from urllib.parse import unquote, urljoin, urlsplit

from portico.auth.url_policy import is_loopback_address, names_loopback
from portico.protocol.errors import Closed, ConnectFailed, ProtocolError, UsageError
from portico.transports.http_client.connection import HttpConnection, KnownHead, Response

Headers = Iterable[tuple[str, str]]

CONNECT_SECONDS = 15.0
# Servers close what is idle, commonly after five seconds, and what is sent at that very moment is lost.
IDLE_SECONDS = 4.0
MOST_IDLE = 32

_PORTS = {"http": 80, "https": 443}


class Location:
    """Where a URL leads: what has to be connected to, and what the request says."""

    def __init__(self, url: str, address: str | None = None) -> None:
        try:
            parts = urlsplit(url)
            port = parts.port or _PORTS.get(parts.scheme, 0)
        except ValueError as failure:
            raise UsageError(f"{url!r} is no URL: {failure}") from None
        if parts.scheme not in _PORTS or not parts.hostname:
            raise UsageError(f"{url!r} is no http or https URL")
        if not url.isascii() or any(char <= " " or char == "\x7f" for char in url):
            raise UsageError(f"{url!r} is no URL: it has characters that a URL does not have")
        self.url = url
        self.secure = parts.scheme == "https"
        self.host, self.port = parts.hostname, port
        # A name that was looked up already, and judged, is not looked up again.
        self.address = address or self.host
        self.authority = parts.netloc.rpartition("@")[2]
        self.path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self.key = (self.secure, self.address, self.host, self.port)
        # For people to read: passwords stand before the host, and keys in queries.
        self.shown = f"{parts.scheme}://{self.authority}{parts.path}"
        self._parts = parts

    def join(self, location: str) -> str:
        return urljoin(self.url, location)

    def neighbour(self, location: str) -> Location | None:
        """The location that a server sends us on to, if it is of the same origin."""
        try:
            there = Location(self.join(location))
        except (UsageError, ValueError):
            return None
        same = (there.secure, there.host, there.port) == (self.secure, self.host, self.port)
        # It is reached the way that was found good for this one.
        return Location(there.url, self.address) if same else None

    def introduced(self, header: str) -> Headers:
        """The name and password that stand in the URL, if they do, as HTTP has them (RFC 7617)."""
        if self._parts.username is None:
            return ()
        pair = f"{unquote(self._parts.username)}:{unquote(self._parts.password or '')}"
        return ((header, "Basic " + b64encode(pair.encode()).decode()),)


def _head(method: str, location: Location, target: str, headers: Headers, length: int) -> bytes:
    lines = [f"{method} {target} HTTP/1.1", f"Host: {location.authority}"]
    for name, value in headers:
        lines.append(f"{name}: {value}")
    if length or method == "POST":
        lines.append(f"Content-Length: {length}")
    text = "\r\n".join(lines)
    if text.count("\r\n") != len(lines) - 1 or not text.replace("\r\n", "").replace("\t", "").isprintable():
        raise UsageError("a header has a line break in it, or another character that cannot be seen")
    try:
        return text.encode("ascii") + b"\r\n\r\n"
    except UnicodeEncodeError:
        raise UsageError("a header has characters in it that are not ASCII") from None


def ready_head(location: Location, headers: Headers) -> bytes:
    """The head of a POST up to its length, for `Pool.post`: the same for many requests."""
    return _head("POST", location, location.path, headers, 0).removesuffix(b"0\r\n\r\n")


class Pool:
    """HTTP/1.1 for a client. A connection that is idle is used again; each exchange has one to itself."""

    def __init__(self, context: ssl.SSLContext | None = None, *, proxies: bool = True) -> None:
        self._context = context
        # Whether no proxy can be between us and a server.
        self.direct = not (proxies and _has_proxies())
        self._idle: dict[Any, list[HttpConnection]] = {}
        self._open: set[HttpConnection] = set()
        self._known: dict[bytes, KnownHead] = {}
        self._closed = False

    async def send(self, method: str, location: Location, headers: Headers, body: bytes = b"") -> Response:
        """One request. ConnectFailed: it was never sent. Closed: it may have been."""
        proxy = None if self.direct else self._proxy_for(location)
        target = location.path
        if proxy is not None and not location.secure:
            target = f"http://{location.authority}{location.path}"
            headers = (*headers, *proxy.introduced("Proxy-Authorization"))
        request = _head(method, location, target, headers, len(body)) + body
        return await self._exchange(location, proxy, request)

    def post(self, location: Location, head: bytes, body: bytes) -> Awaitable[Response]:
        """The same for a head that `ready_head` has made, where the pool is direct."""
        return self._exchange(location, None, b"%b%d\r\n\r\n%b" % (head, len(body), body))

    async def _exchange(self, location: Location, proxy: Location | None, request: bytes) -> Response:
        connection = self._take(location) or await self._connect(location, proxy)
        if self._closed:
            connection.drop()
            raise Closed("the client was closed")
        self._open.add(connection)
        try:
            return await connection.exchange(request)
        except BaseException:
            connection.drop()
            self._open.discard(connection)
            raise

    def take(self, location: Location) -> HttpConnection | None:
        """A connection that is idle, for one exchange; it is given back, or lost."""
        connection = self._take(location)
        if connection is not None:
            self._open.add(connection)
        return connection

    def lose(self, connection: HttpConnection) -> None:
        """The exchange on it came to nothing. One that has been given back already is left alone."""
        if connection in self._open:
            connection.drop()
            self._open.discard(connection)

    def give_back(self, location: Location, response: Response) -> None:
        """The caller is done with an response: if its connection can be used again, it will be."""
        if response.done:
            return
        response.done = True
        connection = response.connection
        connection.leave()
        self._open.discard(connection)
        idle = self._idle.setdefault(location.key, [])
        if connection.reusable and len(idle) < MOST_IDLE and not self._closed:
            connection.idle_since = time.monotonic()
            idle.append(connection)
        else:
            connection.drop()

    def _take(self, location: Location) -> HttpConnection | None:
        idle = self._idle.get(location.key, [])
        while idle:
            connection = idle.pop()
            fresh = time.monotonic() - connection.idle_since < IDLE_SECONDS
            if connection.reusable and fresh and not connection.is_readable():
                return connection
            connection.drop()
        return None

    async def close(self) -> None:
        self._closed = True
        for connection in [*self._open, *(one for idle in self._idle.values() for one in idle)]:
            connection.drop()
        self._open.clear()
        self._idle.clear()
        # Lets the transports notice.
        await asyncio.sleep(0)

    # Getting there

    async def _connect(self, location: Location, proxy: Location | None) -> HttpConnection:
        if self._closed:
            raise Closed("the client was closed")
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                if proxy is not None and location.secure:
                    return await self._tunnel(location, proxy)
                there = proxy or location
                connection = await self._dial(there.address, there.port, there.host if there.secure else None)
                if proxy is None:
                    connection.peer = connection.transport.get_extra_info("peername")[0]
                    _check_loopback(location, connection)
                return connection
        except ConnectFailed:
            raise
        except (Closed, ProtocolError) as failure:
            raise ConnectFailed(f"cannot connect to {location.authority} through the proxy: {failure}") from None
        except TimeoutError:
            raise ConnectFailed(f"cannot connect to {location.authority}: no answer in {CONNECT_SECONDS:g} s") from None
        except ssl.SSLError as failure:
            raise ConnectFailed(f"cannot connect to {location.authority}: {_tls_reason(failure)}") from None
        except OSError as failure:
            raise ConnectFailed(f"cannot connect to {location.authority}: {_reason(failure)}") from None
        except UnicodeError:
            # From the IDNA encoding of the name.
            reason = "a label of the host name is empty or longer than 63 characters"
            raise ConnectFailed(f"cannot connect to {location.authority}: {reason}") from None

    async def _dial(self, address: str, port: int, tls_name: str | None) -> HttpConnection:
        loop = asyncio.get_running_loop()
        options: dict[str, Any] = {}
        if tls_name is not None:
            options = {"ssl": self._tls(), "server_hostname": tls_name}
        _, connection = await loop.create_connection(partial(HttpConnection, self._known), address, port, **options)
        return connection

    def _tls(self) -> ssl.SSLContext:
        if self._context is None:
            self._context = ssl.create_default_context()
        return self._context

    def _proxy_for(self, location: Location) -> Location | None:
        """What the environment says (HTTPS_PROXY, NO_PROXY and their like); never for this machine itself."""
        import urllib.request  # slow to import, and most have no proxy

        url = urllib.request.getproxies().get("https" if location.secure else "http")
        if not url or names_loopback(location.host):
            return None
        # NO_PROXY may name a port.
        if urllib.request.proxy_bypass(location.host) or urllib.request.proxy_bypass(
            f"{location.host}:{location.port}"
        ):
            return None
        return Location(url if "://" in url else f"http://{url}")

    async def _tunnel(self, location: Location, proxy: Location) -> HttpConnection:
        """CONNECT (RFC 9110, section 9.3.6), then TLS with the server itself."""
        loop = asyncio.get_running_loop()
        first = await self._dial(proxy.address, proxy.port, proxy.host if proxy.secure else None)
        target = (
            f"{location.host}:{location.port}" if ":" not in location.host else f"[{location.host}]:{location.port}"
        )
        hello = _head("CONNECT", location, target, proxy.introduced("Proxy-Authorization"), 0)
        try:
            response = await first.exchange(hello)
            if not 200 <= response.status < 300:
                raise ConnectFailed(f"cannot connect to {location.authority}: the proxy answers {response.status}")
            connection = HttpConnection()
            transport = await loop.start_tls(first.transport, connection, self._tls(), server_hostname=location.host)
        except BaseException:
            first.drop()
            raise
        assert transport is not None
        connection.connection_made(transport)
        return connection


def _tls_reason(failure: ssl.SSLError) -> str:
    """Return why a TLS handshake failed. A server without TLS answers it with something else."""
    if failure.reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST"):
        return "the server does not use TLS at this port; try http:// instead of https://"
    return f"TLS: {getattr(failure, 'verify_message', '') or failure.reason or failure}"


def _reason(failure: OSError) -> str:
    """Return why no connection was made. asyncio replaces the text of the system with addresses."""
    numbers = [failure.errno] if failure.errno else [int(one) for one in re.findall(r"\[Errno (\d+)\]", str(failure))]
    if isinstance(failure, ConnectionRefusedError) or errno.ECONNREFUSED in numbers:
        return "connection refused; is the server running, and is this its port?"
    known = next((number for number in numbers if number in errno.errorcode), None)
    return failure.strerror or str(failure) if known is None else os.strerror(known)


def _check_loopback(location: Location, connection: HttpConnection) -> None:
    """Raise ConnectFailed if a loopback URL led to another machine, before anything was sent there.

    A hosts file or a name server decides what `localhost` means. Tokens for this machine are chosen by the name in the
    URL, and http is allowed for it, so the address must be one of this machine.
    """
    if names_loopback(location.host) and not is_loopback_address(connection.peer or ""):
        connection.drop()
        raise ConnectFailed(
            f"cannot connect to {location.authority}: it resolves to {connection.peer}, expected a loopback address; "
            "check the hosts file and the name server"
        )


def _has_proxies() -> bool:
    return sys.platform in ("darwin", "win32") or any(name.lower().endswith("_proxy") for name in os.environ)
