"""Run a server that accepts tokens of a real OpenID provider, for clients to log in to.

with provider(tmp_path) as issuer:
    async with served(notes(issuer)) as url:
        …
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from portico import Context, Server
from portico.auth import ResourceServer
from portico.extend import serve_http
from support import node, oidc

REDIRECT_URI = "http://127.0.0.1:9/callback"
SCOPES = ["notes:read", "notes:write"]
TIMEOUT_SECONDS = 60.0
# The client credentials of the server for token introspection.
ASKING = {
    "client_id": "notes-server",
    "client_secret": "known to both",
    "redirect_uris": [],
    "response_types": [],
    "grant_types": ["client_credentials"],
}


# A registered client. Clients that register themselves get only the scopes that they register with.
PROGRAM = {
    "client_id": "program",
    "token_endpoint_auth_method": "none",
    "application_type": "native",
    "redirect_uris": [REDIRECT_URI],
    "grant_types": ["authorization_code", "refresh_token"],
}


@contextmanager
def provider(folder: Path, **settings: Any) -> Iterator[str]:
    """Run npm's oidc-provider with dynamic registration. Skips the test where it is not available."""
    message = {"clients": [ASKING, PROGRAM], "scopes": SCOPES, "registration": True, **settings}
    try:
        with oidc.provider(folder, **message) as issuer:
            yield issuer
    except node.NotInstalled as why:
        if os.environ.get("CI"):
            pytest.fail(f"oidc-provider cannot be installed: {why}", pytrace=False)
        pytest.skip(f"oidc-provider cannot be installed: {why}")


def notes(auth: Any, **options: Any) -> Server:
    """Return a server with tools that need no scope, one scope and two scopes."""
    server = Server("notes", auth=ResourceServer(auth, **{"required_scopes": ["notes:read"], **options}))

    @server.tool
    async def who(ctx: Context) -> str:
        return f"{ctx.principal.id} {' '.join(sorted(ctx.principal.scopes))}"

    @server.tool(scopes=["notes:read", "notes:write"])
    async def write(text: str) -> str:
        return f"wrote {text}"

    return server


@asynccontextmanager
async def served(server: Server, **options: Any) -> AsyncIterator[str]:
    """Serve on this event loop, and yield the URL."""
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    stop = asyncio.Event()
    options = {"port": 0, "shutdown_timeout": 1.0, **options}
    serving = asyncio.create_task(serve_http(server, on_ready=ready.set_result, stop=stop, **options))
    try:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            yield await ready
    finally:
        stop.set()
        async with asyncio.timeout(TIMEOUT_SECONDS):
            await serving


class Visitor:
    """Open pages as a user who accepts everything."""

    def __init__(self, account: str = "anna") -> None:
        self.browser = oidc.Browser(account)
        self.visits: list[str] = []

    async def __call__(self, url: str, redirect_uri: str = REDIRECT_URI) -> str:
        self.visits.append(url)
        return await asyncio.to_thread(self.browser.visit, url, redirect_uri)


class MemoryTokens:
    """Token storage of the official Python client, in memory."""

    def __init__(self) -> None:
        self.tokens: Any = None
        self.client: Any = None

    async def get_tokens(self) -> Any:
        return self.tokens

    async def set_tokens(self, tokens: Any) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> Any:
        return self.client

    async def set_client_info(self, client_info: Any) -> None:
        self.client = client_info
