"""A server of ours whose tokens come from a real provider, for clients of all kinds to log in to.

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
PATIENCE = 60.0
# Who the server is where it has to ask about tokens.
ASKING = {
    "client_id": "notes-server",
    "client_secret": "known to both",
    "redirect_uris": [],
    "response_types": [],
    "grant_types": ["client_credentials"],
}


# A program that the provider knows already. One that registers itself gets no other scopes than it registers with.
PROGRAM = {
    "client_id": "program",
    "token_endpoint_auth_method": "none",
    "application_type": "native",
    "redirect_uris": [REDIRECT_URI],
    "grant_types": ["authorization_code", "refresh_token"],
}


@contextmanager
def provider(folder: Path, **settings: Any) -> Iterator[str]:
    """npm's oidc-provider, where clients register themselves; skips where it cannot be had."""
    said = {"clients": [ASKING, PROGRAM], "scopes": SCOPES, "registration": True, **settings}
    try:
        with oidc.provider(folder, **said) as issuer:
            yield issuer
    except node.NotInstalled as why:
        if os.environ.get("CI"):
            pytest.fail(f"oidc-provider cannot be installed: {why}", pytrace=False)
        pytest.skip(f"oidc-provider cannot be installed: {why}")


def notes(auth: Any, **options: Any) -> Server:
    """A tool for everybody who is logged in, one that needs a scope, and one that needs two."""
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
    """The URL of a server on this loop."""
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    stop = asyncio.Event()
    options = {"port": 0, "shutdown_timeout": 1.0, **options}
    serving = asyncio.create_task(serve_http(server, on_ready=ready.set_result, stop=stop, **options))
    try:
        async with asyncio.timeout(PATIENCE):
            yield await ready
    finally:
        stop.set()
        async with asyncio.timeout(PATIENCE):
            await serving


class Visitor:
    """Shows pages to a person who says yes to everything."""

    def __init__(self, account: str = "anna") -> None:
        self.browser = oidc.Browser(account)
        self.visits: list[str] = []

    async def __call__(self, url: str, redirect_uri: str = REDIRECT_URI) -> str:
        self.visits.append(url)
        return await asyncio.to_thread(self.browser.visit, url, redirect_uri)


class Kept:
    """What the official Python client keeps, in memory."""

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
