"""How requests get to an API: over HTTP, into an ASGI application, or by a client that is given."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

from msgspec import Struct

from portico.auth.errors import UnsafeAddress
from portico.auth.url_policy import check_addresses
from portico.protocol.errors import ConnectFailed, ProtocolError, ToolError, TransportError, UsageError
from portico.server.providers.openapi.binding import ApiRequest
from portico.transports.http_client.connection import Response
from portico.transports.http_client.pool import Headers, Location, Pool

log = logging.getLogger("portico.openapi")

MOST_REDIRECTS = 3
_REDIRECTS = (301, 302, 303, 307, 308)


class ApiAnswer(Struct):
    """What came back, whatever its status."""

    status: int
    # Names in lower case.
    headers: Mapping[str, str]
    body: bytes = b""


class ApiSender(Protocol):
    """Sends a request to an API. `base` is where the document says that it is; empty: it does not."""

    async def send(self, request: ApiRequest, base: str, longest: int, call: Any) -> ApiAnswer: ...
    def lifespan(self) -> Any: ...


class RequestCarrier(Protocol):
    """Sends with a credential of its own: what a gateway has for an upstream."""

    async def send(
        self, pool: Pool, method: str, location: Location, headers: Headers, body: bytes, operation: str
    ) -> Response: ...


class HttpApiSender:
    """Over HTTP. `url` is where the API is, said by the operator; without it the document says so, and then that has to
    be https on the open internet, unless `private`."""

    def __init__(self, url: str | None, headers: Mapping[str, str], *, private: bool = False) -> None:
        self._url = url.rstrip("/") if url is not None else None
        if self._url is not None:
            Location(self._url)
        self._headers = tuple(headers.items())
        self._judges = url is None and not private
        self._pool = Pool(proxies=not self._judges)
        # What sends with a credential of each caller's, if that is wanted.
        self.carrier: Any = None

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        self._pool = Pool(proxies=not self._judges)
        try:
            yield
        finally:
            await self._pool.close()

    async def send(self, request: ApiRequest, base: str, longest: int, call: Any) -> ApiAnswer:
        place = await self._located((self._url or base) + request.target)
        headers = (*request.all_headers, ("Accept-Encoding", "identity"), *self._headers)
        method, body = request.method, request.body
        for _ in range(MOST_REDIRECTS + 1):
            response = await self._exchange(method, place, headers, body, call)
            location = response.headers.get("location")
            if response.status not in _REDIRECTS or location is None:
                return await self._read(place, response, longest, method)
            there = place.neighbour(location)
            self._drop(place, response)
            if there is None:
                raise ToolError(
                    "The API redirects to another origin, where nothing was sent.", kind="ToolExecutionError"
                )
            if response.status not in (307, 308) and method != "HEAD":
                if method != "GET" and response.status != 303:
                    raise ToolError(f"The API redirects a {method}, which was not repeated.", kind="ToolExecutionError")
                method, body = "GET", b""
                headers = tuple(one for one in headers if one[0].lower() != "content-type")
            place = there
        raise ToolError("The API redirects in circles.", kind="ToolExecutionError")

    async def _exchange(self, method: str, place: Location, headers: Headers, body: bytes, call: Any) -> Response:
        if self.carrier is None:
            return await self._pool.send(method, place, headers, body)
        carried: Response = await self.carrier(call).send(self._pool, method, place, headers, body, method)
        return carried

    async def _read(self, place: Location, response: Response, longest: int, method: str) -> ApiAnswer:
        if method == "HEAD":
            # Its length is of a body that does not come, so nothing can be read after it on this connection.
            self._drop(place, response)
            return ApiAnswer(response.status, response.headers)
        try:
            body = await response.read(longest)
        finally:
            self._pool.give_back(place, response)
        return ApiAnswer(response.status, response.headers, body)

    def _drop(self, place: Location, response: Response) -> None:
        response.connection.drop()
        self._pool.give_back(place, response)

    async def _located(self, url: str) -> Location:
        if not self._judges:
            return Location(url)
        place = Location(url)
        if not place.secure:
            raise ConnectFailed("the document names a place without https: give its url yourself if it is meant")
        try:
            found = await asyncio.get_running_loop().getaddrinfo(place.host, place.port, type=socket.SOCK_STREAM)
            addresses = [str(one[4][0]) for one in found]
            check_addresses(url, addresses, ())
        except OSError:
            raise ConnectFailed("there is no such host") from None
        except UnsafeAddress:
            raise ConnectFailed(
                f"{place.host} is on a private network: give the url yourself, or private=True, if it is meant"
            ) from None
        return Location(url, addresses[0])


class AsgiApiSender:
    """Into an ASGI application of this process, without a socket."""

    def __init__(self, app: Any, headers: Mapping[str, str], base: str = "") -> None:
        self._app = app
        self._headers = tuple(headers.items())
        self._base = urlsplit(base).path.rstrip("/")

    async def send(self, request: ApiRequest, base: str, longest: int, call: Any) -> ApiAnswer:
        path, _, query = request.target.partition("?")
        path = (self._base or urlsplit(base).path.rstrip("/")) + path
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
            "client": ("127.0.0.1", 0),
            "server": ("portico.local", 80),
            "state": {},
        }
        return await _AsgiExchange(request.body, longest).run(self._app, scope)

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        async with _asgi_lifespan(self._app):
            yield


class _AsgiExchange:
    def __init__(self, body: bytes, longest: int) -> None:
        self._incoming: list[dict[str, Any]] = [{"type": "http.request", "body": body, "more_body": False}]
        self._longest = longest
        self._body = bytearray()
        self._answer = ApiAnswer(0, {})
        self._ended = asyncio.Event()

    async def run(self, app: Any, scope: dict[str, Any]) -> ApiAnswer:
        try:
            await app(scope, self._receive, self._send)
        except (ToolError, ProtocolError):
            raise
        except Exception as failure:
            # Starlette raises again what it has answered with 500 already: that is for the log of the application.
            if self._answer.status < 500:
                raise ToolError("The application failed.", kind="ToolExecutionError") from failure
        if not self._answer.status:
            raise ToolError("The application gave no answer.", kind="ToolExecutionError")
        self._answer.body = bytes(self._body)
        return self._answer

    async def _receive(self) -> dict[str, Any]:
        if self._incoming:
            return self._incoming.pop()
        await self._ended.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            pairs: dict[str, str] = {}
            for name, value in message.get("headers", ()):
                key, text = name.decode("latin-1").lower(), value.decode("latin-1")
                pairs[key] = f"{pairs[key]}, {text}" if key in pairs else text
            self._answer = ApiAnswer(message["status"], pairs)
        elif message["type"] == "http.response.body":
            self._body += message.get("body", b"")
            if len(self._body) > self._longest:
                raise _too_long(self._longest)
            if not message.get("more_body", False):
                self._ended.set()


@asynccontextmanager
async def _asgi_lifespan(app: Any) -> AsyncIterator[None]:
    """Start and stop an application, if it wants to be told."""
    incoming: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    said: asyncio.Queue[str] = asyncio.Queue()

    async def send(message: dict[str, Any]) -> None:
        said.put_nowait(message["type"])

    async def run() -> None:
        try:
            await app({"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}, incoming.get, send)
        except Exception:
            # An application without a lifespan says so by failing.
            pass
        finally:
            said.put_nowait("ended")

    task = asyncio.create_task(run())
    incoming.put_nowait({"type": "lifespan.startup"})
    if await said.get() == "lifespan.startup.failed":
        await task
        raise UsageError("the application could not be started")
    try:
        yield
    finally:
        incoming.put_nowait({"type": "lifespan.shutdown"})
        await task


async def _read_up_to(chunks: AsyncIterator[bytes], longest: int) -> bytes:
    """A body that is unpacked while it is read: few bytes may come to many."""
    body = bytearray()
    async for chunk in chunks:
        body += chunk
        if len(body) > longest:
            raise _too_long(longest)
    return bytes(body)


def _answered(answer: Any, body: bytes) -> ApiAnswer:
    """What a client of another library gives: its body is unpacked already."""
    headers = {name.lower(): value for name, value in answer.headers.items()}
    headers.pop("content-encoding", None)
    return ApiAnswer(answer.status_code, headers, body)


def _too_long(longest: int) -> ProtocolError:
    return ProtocolError(f"the answer is longer than {longest} bytes")


class ClientApiSender:
    """By a client of another library, such as an `httpx.AsyncClient`: it knows where the API is, and what it wants."""

    def __init__(self, client: Any, headers: Mapping[str, str]) -> None:
        self._client = client
        self._headers = tuple(headers.items())

    async def send(self, request: ApiRequest, base: str, longest: int, call: Any) -> ApiAnswer:
        url = request.target if str(getattr(self._client, "base_url", "")) else base + request.target
        headers = dict((*request.all_headers, *self._headers))
        how: dict[str, Any] = {"headers": headers, "content": request.body or None}
        try:
            if hasattr(self._client, "stream"):
                async with self._client.stream(request.method, url, **how) as answer:
                    return _answered(answer, await _read_up_to(answer.aiter_bytes(), longest))
            answer = await self._client.request(request.method, url, **how)
        except ProtocolError:
            raise
        except Exception as failure:
            log.warning("the client of an API failed", exc_info=failure)
            raise TransportError(f"its client failed ({type(failure).__name__})") from None
        if len(answer.content) > longest:
            raise _too_long(longest)
        return _answered(answer, answer.content)

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        yield
