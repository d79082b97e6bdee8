"""A server over HTTP with access rules, a login through the authorization server, and a user's browser."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import http.client
import secrets
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import msgspec
from msgspec import Raw

from portico import Server
from portico.auth import AuthorizationCode, MemoryStorage, OAuth
from portico.auth.principal import Principal
from portico.auth.token_storage import TokenStorage
from portico.rpc.call import Call
from portico.server.http import serve_http
from portico.server.policy import settings as access_settings
from portico_gateway.authserver.server import AuthorizationServer
from support import oidc

TIMEOUT_SECONDS = 60.0
REDIRECT_URI = "http://127.0.0.1:9/callback"
ANN = Principal("ann", frozenset())
STRANGER = "10.0.0.1"


@contextmanager
def login_provider(folder: Path) -> Iterator[str]:
    """Run an OpenID provider that knows one client, ours, and yield its issuer."""
    client = {
        "client_id": "portico",
        "client_secret": "known to both",
        "application_type": "native",
        "token_endpoint_auth_method": "client_secret_basic",
        "redirect_uris": ["http://127.0.0.1/callback", "http://127.0.0.1/auth/callback"],
    }
    accounts = {
        "anna": {
            "preferred_username": "anna",
            "name": "Anna A.",
            "email": "anna@example.com",
            "email_verified": True,
            "groups": ["ops"],
        },
        "mallory": {"preferred_username": "mallory", "email": "anna@example.com", "email_verified": False},
    }
    with oidc.provider(folder, clients=[client], accounts=accounts, scopes=["desk"]) as issuer:
        yield issuer


@asynccontextmanager
async def standing_face(
    login_issuer: str,
    store: str | None = None,
    server: Server | None = None,
    auth: dict[str, Any] | None = None,
    **options: Any,
) -> AsyncIterator[RunningServer]:
    """Run a server with an authorization server in front of that provider."""
    issuer = f"http://127.0.0.1:{free_port()}"
    server = server or Server("desk", store=store or "sqlite://")
    proxy = {
        "provider": "oidc",
        "issuer": login_issuer,
        "client_id": "portico",
        "client_secret": "known to both",
        "scopes": {"notes:read": "read your notes", "notes:write": "write your notes"},
        "default_scopes": ["notes:read"],
        **options,
    }
    message = {"auth": {"public_url": issuer, "proxy": proxy, **(auth or {})}}
    access_settings.apply(server, access_settings.read(message))
    async with served(server, urlsplit(issuer).port or 0):
        yield RunningServer(server, issuer)


def visitor(account: str = "anna") -> Any:
    """Open login pages as a user who accepts everything."""
    browser = oidc.Browser(account)

    async def visit(url: str, redirect_uri: str) -> str:
        return await asyncio.to_thread(browser.visit, url, redirect_uri)

    visit.browser = browser  # type: ignore[attr-defined]
    return visit


def oauth_for(url: str, store: MemoryStorage | None = None) -> OAuth:
    return OAuth(url, AuthorizationCode(REDIRECT_URI), clock=time.time, storage=TokenStorage(store or MemoryStorage()))


def free_port() -> int:
    with socket.socket() as item:
        item.bind(("127.0.0.1", 0))
        port: int = item.getsockname()[1]
        return port


class RunningServer:
    """A running authorization server, and requests of its clients."""

    def __init__(self, server: Server, issuer: str) -> None:
        self.server = server
        assert server.auth is not None
        self.face: AuthorizationServer = server.auth.verifier._server  # type: ignore[attr-defined]
        self.issuer = issuer
        self.resource = f"{issuer}/mcp"

    async def request(self, browser: oidc.Browser, method: str, path: str, **how: Any) -> oidc.PageResponse:
        return await asyncio.to_thread(browser.request, method, self.issuer + path, **how)

    async def post(
        self, path: str, form: dict[str, str] | None = None, body: bytes | None = None, **headers: str
    ) -> tuple[int, dict[str, Any]]:
        """Send a request as a client, not as a browser."""
        return await asyncio.to_thread(_post, self.issuer + path, form, body, headers)

    async def register(self, **said: Any) -> dict[str, Any]:
        more = {"redirect_uris": [REDIRECT_URI], "token_endpoint_auth_method": "none", "client_name": "A program"}
        status, client = await self.post("/register", body=msgspec.json.encode({**more, **said}))
        assert status == 201, client
        return client

    def prepare(self, client_id: str, **more: str) -> Login:
        return Login(self, client_id, more)

    async def login(self, client_id: str, browser: oidc.Browser | None = None, **more: str) -> Login:
        login = self.prepare(client_id, **more)
        until = more.get("redirect_uri", REDIRECT_URI)
        login.answer = await asyncio.to_thread((browser or oidc.Browser()).visit, login.url, until)
        return login


class Login:
    """One authorization code flow, with the state of its client."""

    def __init__(self, standing: RunningServer, client_id: str, more: dict[str, str]) -> None:
        self._standing = standing
        self.client_id = client_id
        self.verifier = secrets.token_urlsafe(48)
        challenge = base64.urlsafe_b64encode(hashlib.sha256(self.verifier.encode()).digest()).rstrip(b"=").decode()
        self.said = {
            "response_type": "code",
            "client_id": client_id,
            "redirect_uri": REDIRECT_URI,
            "state": "what the client remembers",
            "code_challenge": challenge,
            "code_challenge_method": "S256",
            "resource": standing.resource,
            **more,
        }
        self.url = f"{standing.issuer}/authorize?{urlencode(self.said)}"
        self.answer = ""

    @property
    def parameters(self) -> dict[str, str]:
        return {name: values[0] for name, values in parse_qs(urlsplit(self.answer).query).items()}

    async def redeem(self, **more: str) -> tuple[int, dict[str, Any]]:
        form = {
            "grant_type": "authorization_code",
            "code": self.parameters["code"],
            "redirect_uri": self.said["redirect_uri"],
            "code_verifier": self.verifier,
            "client_id": self.client_id,
            **more,
        }
        return await self._standing.post("/token", form)

    async def refresh(self, token: str, **more: str) -> tuple[int, dict[str, Any]]:
        form = {"grant_type": "refresh_token", "refresh_token": token, "client_id": self.client_id, **more}
        return await self._standing.post("/token", form)


def _post(
    url: str, form: dict[str, str] | None, body: bytes | None, headers: dict[str, str]
) -> tuple[int, dict[str, Any]]:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=TIMEOUT_SECONDS)
    kind = "application/json" if form is None else "application/x-www-form-urlencoded"
    try:
        sent = urlencode(form) if form is not None else body
        connection.request("POST", parts.path, sent, {"Content-Type": kind, **headers})
        answer = connection.getresponse()
        message = answer.read()
        return answer.status, msgspec.json.decode(message) if message[:1] == b"{" else {"text": message.decode()}
    finally:
        connection.close()


@asynccontextmanager
async def served(server: Server, port: int = 0) -> AsyncIterator[str]:
    """Serve over HTTP, and yield the URL."""
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    stop = asyncio.Event()
    serving = asyncio.create_task(serve_http(server, port=port, on_ready=ready.set_result, stop=stop))
    try:
        await asyncio.wait([ready, serving], timeout=TIMEOUT_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        if serving.done():
            await serving
        yield ready.result()
    finally:
        stop.set()
        async with asyncio.timeout(TIMEOUT_SECONDS):
            await serving


async def post(
    app: Any, body: Any, headers: dict[str, str], address: str = "10.0.0.1"
) -> tuple[int, dict[bytes, bytes], Any]:
    values = {"host": "127.0.0.1", "content-type": "application/json", **headers}
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/mcp",
        "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in values.items()],
        "client": (address, 1),
        "root_path": "",
        "scheme": "http",
        "http_version": "1.1",
    }
    sent: list[Any] = []

    requests: list[bool] = []

    async def receive() -> Any:
        if sent or requests:
            await asyncio.get_running_loop().create_future()
        requests.append(True)
        return {"type": "http.request", "body": msgspec.json.encode(body), "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    async with asyncio.timeout(10):
        await app(scope, receive, send)
    whole = b"".join(item.get("body", b"") for item in sent)
    return sent[0]["status"], dict(sent[0]["headers"]), msgspec.json.decode(whole)


def call(method: str, principal: Any = None, address: str | None = STRANGER, **params: Any) -> Call:
    return Call(
        method=method,
        id=1,
        params=Raw(msgspec.json.encode(params)),
        protocol_version="2026-07-28",
        principal=principal,
        address=address,
    )
