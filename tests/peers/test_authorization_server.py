"""The official client logs in through our authorization server: registration, step-up, renewal, revocation."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

try:
    import fastmcp
    import httpx2
    import mcp
    from mcp.client.auth import OAuthClientProvider
    from mcp.client.streamable_http import streamable_http_client
    from mcp.shared.auth import AuthorizationCodeResult, OAuthClientMetadata
except ImportError as missing:
    pytest.skip(f"The peers are not installed ({missing})", allow_module_level=True)

from portico import Client, Context, Server
from portico.auth import AuthorizationError
from portico.compat.fastmcp import OIDCProxy, get_access_token
from support import oidc
from support.access_control import REDIRECT_URI, free_port, login_provider, oauth_for, served, standing_face, visitor
from support.logins import MemoryTokens
from support.node import NotInstalled

TIMEOUT_SECONDS = 60.0


@pytest.fixture(scope="module")
def login(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    try:
        with login_provider(tmp_path_factory.mktemp("oidc")) as issuer:
            yield issuer
    except NotInstalled as why:
        if os.environ.get("CI"):
            pytest.fail(f"oidc-provider cannot be installed: {why}", pytrace=False)
        pytest.skip(f"oidc-provider cannot be installed: {why}")


class Person:
    """Opens the page, logs in, says yes, and comes back."""

    def __init__(self) -> None:
        self.browser = oidc.Browser()
        self.visits = 0
        self._back = ""

    async def open(self, url: str) -> None:
        self.visits += 1
        self._back = await asyncio.to_thread(self.browser.visit, url, REDIRECT_URI)

    async def come_back(self) -> AuthorizationCodeResult:
        message = {name: values[0] for name, values in parse_qs(urlsplit(self._back).query).items()}
        return AuthorizationCodeResult(code=message["code"], state=message.get("state"), iss=message.get("iss"))


@asynccontextmanager
async def talking(url: str, kept: MemoryTokens, person: Person) -> AsyncIterator[Any]:
    result = OAuthClientMetadata(
        client_name="The official client",
        redirect_uris=[REDIRECT_URI],
        grant_types=["authorization_code", "refresh_token"],
        response_types=["code"],
    )
    provider = OAuthClientProvider(url, result, kept, person.open, person.come_back)
    async with (
        httpx2.AsyncClient(auth=provider, timeout=TIMEOUT_SECONDS) as http,
        mcp.Client(streamable_http_client(url, http_client=http)) as client,
    ):
        yield client


def desk() -> Server:
    server = Server("desk", store="sqlite://")

    @server.tool
    async def whoami(ctx: Context) -> str:
        """Who asks."""
        return f"{ctx.principal.id} with {' '.join(sorted(ctx.principal.scopes))}"

    @server.tool(scopes={"notes:write"})
    async def write(text: str) -> str:
        """Write a note."""
        return text

    return server


async def said_by(client: Any, tool: str, arguments: dict[str, Any] | None = None) -> str:
    async with asyncio.timeout(TIMEOUT_SECONDS):
        return str((await client.call_tool(tool, arguments or {})).content[0].text)


async def test_official_client_logs_in_steps_up_renews_and_is_revoked(login: str) -> None:
    async with standing_face(login, server=desk()) as face:
        kept, person = MemoryTokens(), Person()
        async with talking(face.resource, kept, person) as client:
            assert await said_by(client, "whoami") == "anna with notes:read"
            assert await said_by(client, "write", {"text": "hello"}) == "hello"
            assert person.visits == 2
        # Its access token is gone, as when it ran out: the refresh token brings another, and no page is shown.
        first = kept.tokens.access_token
        kept.tokens = kept.tokens.model_copy(update={"expires_in": -1})
        async with talking(face.resource, kept, person) as client:
            assert (await said_by(client, "whoami")).startswith("anna")
        await face.post(
            "/revoke",
            {
                "token": kept.tokens.refresh_token,
                "client_id": kept.client.client_id,
                "client_secret": kept.client.client_secret or "",
            },
        )
        visits = person.visits
        async with talking(face.resource, kept, person) as client:
            assert (await said_by(client, "whoami")).startswith("anna")
        assert person.visits == visits + 1 and kept.tokens.access_token != first


# A server that says with FastMCP's words how people log in


def familiar(login: str, home: str) -> Server:
    proxy = OIDCProxy(
        config_url=f"{login}/.well-known/openid-configuration",
        client_id="portico",
        client_secret="known to both",
        base_url=home,
        allow=["*@example.com"],
    )
    server = Server("familiar", auth=proxy, store="sqlite://")

    @server.tool
    async def whoami() -> str:
        token = get_access_token()
        return "nobody" if token is None else str(token.subject)

    return server


async def test_fastmcp_login_provider_accepts_all_clients(login: str) -> None:
    home = f"http://127.0.0.1:{free_port()}"
    async with served(familiar(login, home), urlsplit(home).port or 0):
        url = f"{home}/mcp"
        person = Person()
        async with talking(url, MemoryTokens(), person) as client:
            assert await said_by(client, "whoami") == "anna"
        result = OAuthClientMetadata(client_name="FastMCP's", redirect_uris=[REDIRECT_URI])
        provider = OAuthClientProvider(url, result, MemoryTokens(), person.open, person.come_back)
        async with asyncio.timeout(TIMEOUT_SECONDS), fastmcp.Client(url, auth=provider) as theirs:
            assert (await theirs.call_tool("whoami", {})).data == "anna"
        async with Client(url, auth=oauth_for(url), open_browser=visitor()) as ours:
            assert (await ours.call_tool("whoami", {})).data == "anna"
        with pytest.raises(AuthorizationError):
            async with Client(url, auth="made-up"):
                pass
