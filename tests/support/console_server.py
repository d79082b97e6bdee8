"""Serve a console over HTTP in this process, and send requests as a browser does."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

from msgspec import Struct

from portico import Client, Server
from portico.extend import serve_http
from portico_console import ConsoleAccess, ConsoleSite, attach_console

JSON = {"content-type": "application/json"}


class PageAnswer(Struct):
    status: int
    headers: dict[str, str]
    body: bytes


class Page(Struct):
    """The address of a console, and after signing in its cookie and key."""

    url: str
    site: ConsoleSite
    cookie: str = ""
    key: str = ""

    @property
    def origin(self) -> str:
        return self.url.rstrip("/")

    async def request(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> PageAnswer:
        """Send a raw request, because a client would refuse requests that a browser may be tricked into."""
        values = {"host": urlsplit(self.url).netloc, **(JSON if body is not None else {}), **(headers or {})}
        data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        values |= {"content-length": str(len(data)), "connection": "close"}
        head = f"{method} {path} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in values.items())
        reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(self.url).port)
        try:
            writer.write(head.encode() + b"\r\n" + data)
            message = await asyncio.wait_for(reader.read(), 20)
        finally:
            writer.close()
            await writer.wait_closed()
        top, _, rest = message.partition(b"\r\n\r\n")
        line, *lines = top.decode("latin-1").split("\r\n")
        pairs = (one.partition(": ") for one in lines)
        return PageAnswer(int(line.split()[1]), {name: value for name, _, value in pairs}, rest)

    async def sign_in(self, token: str | None = None, **headers: str) -> PageAnswer:
        """Exchange a token for a cookie and a key, as the page does."""
        answer = await self.request(
            "POST",
            "/console/login",
            {"token": token or self.site.authenticator.create_login_token()},
            {"origin": self.origin, **headers},
        )
        if answer.status == 200:
            message = answer.headers["set-cookie"]
            self.cookie, self.key = message.partition(";")[0], json.loads(answer.body)["key"]
        return answer

    @property
    def proof(self) -> dict[str, str]:
        return {"cookie": self.cookie, "portico-console": self.key}

    async def call(self, name: str = "about", arguments: dict[str, Any] | None = None, **headers: str) -> PageAnswer:
        """Call a tool of the console in a stateless request."""
        meta = {
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientInfo": {"name": "page", "version": "1"},
            "io.modelcontextprotocol/clientCapabilities": {},
        }
        params = {"name": name, "arguments": arguments or {}, "_meta": meta}
        message = {"mcp-protocol-version": "2026-07-28", "mcp-method": "tools/call", "mcp-name": name}
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        return await self.request("POST", "/console/mcp", body, {**message, **self.proof, **headers})

    def client(self, **options: Any) -> Client:
        return Client(f"{self.origin}/console/mcp", headers=self.proof, **options)


@asynccontextmanager
async def console_of(server: Server, access: str = "local", **options: Any) -> AsyncIterator[Page]:
    kind = ConsoleAccess.parse(access)
    assert kind is not None
    site = attach_console(server, kind, b"a secret of this test", login_hint="ask for a link")
    stop = asyncio.Event()
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(serve_http(server, port=0, on_ready=ready.set_result, stop=stop, **options))
    try:
        url = await asyncio.wait_for(ready, 20)
        place = urlsplit(url)
        yield Page(f"{place.scheme}://{place.netloc}/", site)
    finally:
        stop.set()
        await task
