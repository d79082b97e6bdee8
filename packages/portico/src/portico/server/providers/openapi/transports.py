"""Transports to an API: HTTP, an ASGI application in this process, or a client object."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

from msgspec import Struct

from portico.auth.errors import UnsafeUrl
from portico.auth.url_policy import check_addresses
from portico.protocol.errors import ConnectError, ProtocolError, ToolError, TransportError, UsageError
from portico.server.providers.openapi.binding import ApiRequest
from portico.transports.http_client.connection import HttpClientResponse
from portico.transports.http_client.pool import HeaderItems, HttpConnectionPool, HttpUrl

log = logging.getLogger("portico.openapi")

# Within one origin; APIs redirect once, for a trailing slash or a moved resource.
MAX_REDIRECTS = 3
_REDIRECT_STATUSES = (301, 302, 303, 307, 308)


class ApiResponse(Struct):
    """A response with any status."""

    status: int
    # Header names are in lower case.
    headers: Mapping[str, str]
    body: bytes = b""


class ApiTransport(Protocol):
    """Sends requests to an API. `base_url` is the document's server URL, or empty."""

    async def send(self, request: ApiRequest, base_url: str, max_response_bytes: int, call: Any) -> ApiResponse: ...
    def lifespan(self) -> Any: ...


class AuthenticatedSender(Protocol):
    """Sends requests with its own credentials, such as those a gateway holds for an upstream."""

    async def send(
        self,
        pool: HttpConnectionPool,
        method: str,
        location: HttpUrl,
        headers: HeaderItems,
        body: bytes,
        operation: str,
    ) -> HttpClientResponse: ...


class HttpApiTransport:
    """Transport over HTTP.

    `base_url` is configured by the operator. Without it the document's URL is used, which must be https on a public
    address unless `allow_private_hosts` is set.
    """

    def __init__(self, base_url: str | None, headers: Mapping[str, str], *, allow_private_hosts: bool = False) -> None:
        self._url = base_url.rstrip("/") if base_url is not None else None
        if self._url is not None:
            HttpUrl(self._url)
        self._headers = tuple(headers.items())
        self._public_only = base_url is None and not allow_private_hosts
        # No proxy for URLs from the document: the proxy would resolve the host itself and bypass
        # the check of the address.
        self._pool = HttpConnectionPool(use_proxies=not self._public_only)
        # Returns the transport with the caller's credentials, if callers have their own.
        self.transport_for_call: Any = None

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        self._pool = HttpConnectionPool(use_proxies=not self._public_only)
        try:
            yield
        finally:
            await self._pool.close()

    async def send(self, request: ApiRequest, base_url: str, max_response_bytes: int, call: Any) -> ApiResponse:
        location = await self._resolve_url((self._url or base_url) + request.path_and_query)
        headers = (*request.all_headers, ("Accept-Encoding", "identity"), *self._headers)
        method, body = request.method, request.body
        for _ in range(MAX_REDIRECTS + 1):
            response = await self._exchange(method, location, headers, body, call)
            url = response.headers.get("location")
            if response.status not in _REDIRECT_STATUSES or url is None:
                return await self._read_response(location, response, max_response_bytes, method)
            # Follow redirects within the origin only: credentials must not go to another host.
            target = location.resolve_same_origin(url)
            self._discard(location, response)
            if target is None:
                raise ToolError(
                    "The API redirects to another origin; the redirect was not followed.",
                    error_type="ToolExecutionError",
                )
            if response.status not in (307, 308) and method != "HEAD":
                # RFC 9110, 15.4: clients may change a redirected POST to GET for 301 and 302. A
                # write that silently becomes a read would look successful to the model, so it
                # fails.
                if method != "GET" and response.status != 303:
                    raise ToolError(
                        f"The API redirects a {method}; the request was not repeated.", error_type="ToolExecutionError"
                    )
                method, body = "GET", b""
                headers = tuple(item for item in headers if item[0].lower() != "content-type")
            location = target
        raise ToolError("The API redirects too often.", error_type="ToolExecutionError")

    async def _exchange(
        self, method: str, url: HttpUrl, headers: HeaderItems, body: bytes, call: Any
    ) -> HttpClientResponse:
        if self.transport_for_call is None:
            return await self._pool.send(method, url, headers, body)
        carried: HttpClientResponse = await self.transport_for_call(call).send(
            self._pool, method, url, headers, body, method
        )
        return carried

    async def _read_response(
        self, url: HttpUrl, response: HttpClientResponse, max_bytes: int, method: str
    ) -> ApiResponse:
        if method == "HEAD":
            # Content-Length describes a body that is not sent, so the connection cannot be reused.
            self._discard(url, response)
            return ApiResponse(response.status, response.headers)
        try:
            body = await response.read(max_bytes)
        finally:
            self._pool.release(url, response)
        return ApiResponse(response.status, response.headers, body)

    def _discard(self, url: HttpUrl, response: HttpClientResponse) -> None:
        response.connection.abort()
        self._pool.release(url, response)

    async def _resolve_url(self, url: str) -> HttpUrl:
        if not self._public_only:
            return HttpUrl(url)
        target = HttpUrl(url)
        if not target.is_tls:
            raise ConnectError("the document's server URL must use https; set base_url to override it")
        try:
            result = await asyncio.get_running_loop().getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
            addresses = [str(item[4][0]) for item in result]
            check_addresses(url, addresses, ())
        except OSError:
            raise ConnectError("host not found") from None
        except UnsafeUrl:
            raise ConnectError(
                f"{target.host} is in a private network; set base_url or allow_private_hosts=True to allow it"
            ) from None
        # Connect to the checked address: resolving again could return a private one (DNS rebinding).
        return HttpUrl(url, addresses[0])


class AsgiApiTransport:
    """Transport to an ASGI application in this process, without a socket."""

    def __init__(self, app: Any, headers: Mapping[str, str], base_url: str = "") -> None:
        self._app = app
        self._headers = tuple(headers.items())
        self._base = urlsplit(base_url).path.rstrip("/")

    async def send(self, request: ApiRequest, base_url: str, max_response_bytes: int, call: Any) -> ApiResponse:
        path, _, query = request.path_and_query.partition("?")
        path = (self._base or urlsplit(base_url).path.rstrip("/")) + path
        headers = [("host", "portico.local"), *request.all_headers, *self._headers]
        if request.body:
            headers.append(("content-length", str(len(request.body))))
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": request.method,
            "scheme": "http",
            "path": unquote(path),
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers],
            # Applications with access logs or rate limits expect an address.
            "client": ("127.0.0.1", 0),
            "server": ("portico.local", 80),
            "state": {},
        }
        return await _AsgiExchange(request.body, max_response_bytes).run(self._app, scope)

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        async with _asgi_lifespan(self._app):
            yield


class _AsgiExchange:
    def __init__(self, body: bytes, max_response_bytes: int) -> None:
        self._incoming: list[dict[str, Any]] = [{"type": "http.request", "body": body, "more_body": False}]
        self._max_bytes = max_response_bytes
        self._body = bytearray()
        self._answer = ApiResponse(0, {})
        self._closed_event = asyncio.Event()

    async def run(self, app: Any, scope: dict[str, Any]) -> ApiResponse:
        try:
            await app(scope, self._receive, self._send)
        except (ToolError, ProtocolError):
            raise
        except Exception as failure:
            # Starlette raises the exception again after its 500 response; the application logs it.
            if self._answer.status < 500:
                raise ToolError("The application failed.", error_type="ToolExecutionError") from failure
        if not self._answer.status:
            raise ToolError("The application sent no response.", error_type="ToolExecutionError")
        self._answer.body = bytes(self._body)
        return self._answer

    async def _receive(self) -> dict[str, Any]:
        if self._incoming:
            return self._incoming.pop()
        # A second `receive` means that the application waits for the client to disconnect, as
        # streaming responses do.
        await self._closed_event.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            pairs: dict[str, str] = {}
            for name, value in message.get("headers", ()):
                key, text = name.decode("latin-1").lower(), value.decode("latin-1")
                pairs[key] = f"{pairs[key]}, {text}" if key in pairs else text
            self._answer = ApiResponse(message["status"], pairs)
        elif message["type"] == "http.response.body":
            self._body += message.get("body", b"")
            if len(self._body) > self._max_bytes:
                raise _response_too_large_error(self._max_bytes)
            if not message.get("more_body", False):
                self._closed_event.set()


@asynccontextmanager
async def _asgi_lifespan(app: Any) -> AsyncIterator[None]:
    """Start and stop an application with the ASGI lifespan protocol, if it supports it."""
    incoming: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    events: asyncio.Queue[str] = asyncio.Queue()

    async def send(message: dict[str, Any]) -> None:
        events.put_nowait(message["type"])

    async def run() -> None:
        try:
            await app({"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}, incoming.get, send)
        except Exception:
            # An application without lifespan support raises (ASGI specification, Lifespan).
            pass
        finally:
            events.put_nowait("ended")

    task = asyncio.create_task(run())
    incoming.put_nowait({"type": "lifespan.startup"})
    # Any other event is either the completed startup or the end of an application without lifespan
    # support.
    if await events.get() == "lifespan.startup.failed":
        await task
        raise UsageError("the application failed to start")
    try:
        yield
    finally:
        incoming.put_nowait({"type": "lifespan.shutdown"})
        await task


async def _read_limited(chunks: AsyncIterator[bytes], max_bytes: int) -> bytes:
    """Read a body that is decompressed on the fly.

    Raises ProtocolError above the limit, against decompression bombs.
    """
    body = bytearray()
    async for chunk in chunks:
        body += chunk
        if len(body) > max_bytes:
            raise _response_too_large_error(max_bytes)
    return bytes(body)


def _to_response(answer: Any, body: bytes) -> ApiResponse:
    """Return the response of another library's client, whose body is already decompressed."""
    headers = {name.lower(): value for name, value in answer.headers.items()}
    headers.pop("content-encoding", None)
    return ApiResponse(answer.status_code, headers, body)


def _response_too_large_error(max_bytes: int) -> ProtocolError:
    return ProtocolError(f"the response must have at most {max_bytes} bytes")


class ClientApiTransport:
    """Transport through another library's client, such as an `httpx.AsyncClient`, which may have a base URL and
    credentials.
    """

    def __init__(self, client: Any, headers: Mapping[str, str]) -> None:
        self._client = client
        self._headers = tuple(headers.items())

    async def send(self, request: ApiRequest, base_url: str, max_response_bytes: int, call: Any) -> ApiResponse:
        url = (
            request.path_and_query if str(getattr(self._client, "base_url", "")) else base_url + request.path_and_query
        )
        headers = dict((*request.all_headers, *self._headers))
        how: dict[str, Any] = {"headers": headers, "content": request.body or None}
        try:
            if hasattr(self._client, "stream"):
                async with self._client.stream(request.method, url, **how) as answer:
                    return _to_response(answer, await _read_limited(answer.aiter_bytes(), max_response_bytes))
            answer = await self._client.request(request.method, url, **how)
        except ProtocolError:
            raise
        except Exception as failure:
            log.warning("the HTTP client of an API failed", exc_info=failure)
            raise TransportError(f"its client failed ({type(failure).__name__})") from None
        if len(answer.content) > max_response_bytes:
            raise _response_too_large_error(max_response_bytes)
        return _to_response(answer, answer.content)

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        yield
