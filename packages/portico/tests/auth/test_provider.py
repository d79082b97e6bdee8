"""Client and server with a certified provider, npm's oidc-provider."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from portico import Client
from portico.auth import AuthorizationCode, IntrospectionVerifier, MemoryStorage, OAuth
from portico.auth.token_storage import TokenStorage
from portico.extend import http_request
from support import debian, logins, nginx
from support.logins import Visitor, notes, served


@pytest.fixture(scope="module")
def issuer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with logins.provider(tmp_path_factory.mktemp("provider")) as issuer:
        yield issuer


def oauth_for(url: str, store: MemoryStorage | None = None) -> OAuth:
    grant = AuthorizationCode(logins.REDIRECT_URI)
    return OAuth(url, grant, clock=time.time, storage=TokenStorage(store or MemoryStorage()))


@pytest.mark.parametrize("revision", ["2025-06-18", "2026-07-28"])
async def test_our_client_logs_in_and_steps_up(issuer: str, revision: Any) -> None:
    async with served(notes(issuer)) as url:
        visit = Visitor()
        async with Client(url, auth=oauth_for(url), open_browser=visit, protocol_version=revision) as client:
            assert (await client.call_tool("who")).text == "anna notes:read"
            assert len(visit.visits) == 1
            assert (await client.call_tool("write", {"text": "hello"})).text == "wrote hello"
            # It has registered with fewer scopes, so it registers again.
            assert len(visit.visits) > 1
            assert (await client.call_tool("who")).text == "anna notes:read notes:write"
        # What needs more than it has been given yet is listed all the same: it can be had.
        async with Client(url, auth=oauth_for(url), open_browser=Visitor(), protocol_version=revision) as client:
            assert [tool.name for tool in await client.list_tools()] == ["who", "write"]


async def test_token_that_ran_out_is_renewed(issuer: str) -> None:
    async with served(notes(issuer)) as url:
        store, visit = MemoryStorage(), Visitor()
        oauth = oauth_for(url, store)
        async with Client(url, auth=oauth, open_browser=visit) as client:
            await client.call_tool("who")
            held = oauth.token
            assert held is not None and held.refresh_token is not None
            # Its end has come, as far as the client knows.
            TokenStorage(store).store_token(url, msgspec.structs.replace(held, expires_at=1.0))
        again = oauth_for(url, store)
        async with Client(url, auth=again, open_browser=visit) as client:
            assert (await client.call_tool("who")).text == "anna notes:read"
            assert len(visit.visits) == 1
            assert again.token is not None and again.token.access_token != held.access_token


async def test_token_for_one_server_is_not_good_at_another(issuer: str) -> None:
    async with served(notes(issuer)) as url, served(notes(issuer)) as other:
        oauth = oauth_for(url)
        async with Client(url, auth=oauth, open_browser=Visitor()) as client:
            await client.call_tool("who")
            assert oauth.token is not None
            token = oauth.token.access_token
        for place, status in ((url, 400), (other, 401)):
            headers = [("authorization", f"Bearer {token}"), ("content-type", "application/json")]
            answer = await http_request(
                "POST", place, headers=headers, body=b"{}", timeout=30, max_response_bytes=10_000
            )
            assert answer.status == status


async def test_opaque_tokens_are_asked_about(tmp_path: Path) -> None:
    with logins.provider(tmp_path, format="opaque") as issuer:
        verifier = IntrospectionVerifier(issuer, logins.ASKING["client_id"], logins.ASKING["client_secret"])
        async with (
            served(notes(verifier)) as url,
            Client(url, auth=oauth_for(url), open_browser=Visitor("bob")) as client,
        ):
            assert (await client.call_tool("who")).text == "bob notes:read"


async def test_team_logs_in_behind_nginx(issuer: str) -> None:
    """A proxy with a public name takes a prefix away; the client finds the metadata, the login and the server."""
    with socket.socket() as item:
        item.bind(("127.0.0.1", 0))
        port = item.getsockname()[1]
    try:
        with nginx.in_front_of(port, pooled=2, prefix="/tools") as front:
            outside = f"http://127.0.0.1:{front}/tools"
            server = notes(issuer, public_url=outside)
            async with served(server, port=port, trusted_proxies=["127.0.0.1"]):
                url = f"{outside}/mcp"
                async with Client(url, auth=oauth_for(url), open_browser=Visitor()) as client:
                    assert (await client.call_tool("who")).text == "anna notes:read"
                    assert (await client.call_tool("write", {"text": "hello"})).text == "wrote hello"
    except debian.NotInstalled as why:
        if os.environ.get("CI"):
            pytest.fail(f"nginx cannot be had: {why}", pytrace=False)
        pytest.skip(f"nginx cannot be had: {why}")
