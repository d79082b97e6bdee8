"""Clients log in at the authorization server, use the server, renew and revoke tokens, in every protocol version."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from portico import Client, Context, Server
from portico.auth import MemoryStorage
from portico.auth.token_storage import TokenStorage
from support.access_control import oauth_for, visitor

Stand = Callable[..., Any]


def desk(store: str | None = None) -> Server:
    server = Server("desk", store=store or "sqlite://")

    @server.tool
    async def whoami(ctx: Context) -> str:
        """Who asks."""
        return f"{ctx.principal.id} by {ctx.principal.client_id[:3]} with {' '.join(sorted(ctx.principal.scopes))}"

    @server.tool(scopes={"notes:write"})
    async def write(text: str) -> str:
        """Write a note."""
        return text

    return server


@pytest.mark.parametrize("revision", ["2025-06-18", "2026-07-28"])
async def test_our_client_logs_in_and_steps_up(stand: Stand, revision: Any) -> None:
    async with stand(server=desk()) as face:
        oauth = oauth_for(face.resource)
        visit = visitor()
        async with Client(face.resource, auth=oauth, open_browser=visit, protocol_version=revision) as client:
            assert (await client.call_tool("whoami")).text == "anna by dcr with notes:read"
            assert (await client.call_tool("write", {"text": "hello"})).text == "hello"
            assert (await client.call_tool("whoami")).text == "anna by dcr with notes:read notes:write"


async def test_expired_token_is_renewed_and_a_revoked_one_is_not(stand: Stand) -> None:
    async with stand(server=desk()) as face:
        store = MemoryStorage()
        oauth, visit = oauth_for(face.resource, store), visitor()
        async with Client(face.resource, auth=oauth, open_browser=visit) as client:
            await client.call_tool("whoami")
            held = oauth.token
            assert held is not None and held.refresh_token is not None
            registration = TokenStorage(store).registration(face.issuer)
            assert registration is not None
            pages = len(visit.browser.seen)
            # Its end has come, as far as the client knows.
            TokenStorage(store).store_token(face.resource, msgspec.structs.replace(held, expires_at=1.0))
        again = oauth_for(face.resource, store)
        async with Client(face.resource, auth=again, open_browser=visit) as client:
            assert (await client.call_tool("whoami")).text.startswith("anna")
            assert len(visit.browser.seen) == pages  # no page was shown
            renewed = again.token
            assert renewed is not None and renewed.access_token != held.access_token
            form = {"token": renewed.refresh_token or "", "client_id": registration.client_id}
            assert (await face.post("/revoke", form))[0] == 200
            # The access token of the grant goes with it, at once: the person has to log in again.
            assert (await client.call_tool("whoami")).text.startswith("anna")
            assert len(visit.browser.seen) > pages


async def test_logins_survive_restart_and_audience_may_change(stand: Stand, tmp_path: Any) -> None:
    """Without a store of the server's own they are in a file of the data directory."""
    store = f"sqlite://{tmp_path}/store.db"
    async with stand(store=store) as face:
        login = await face.login((await face.register())["client_id"])
        _, first = await login.redeem()
    async with stand(store=store) as again:
        form = {"grant_type": "refresh_token", "client_id": login.client_id, "refresh_token": first["refresh_token"]}
        status, second = await again.post("/token", form)
        assert status == 200
    async with stand(store=store, allow=["user:ben"]) as narrower:
        status, message = await narrower.post("/token", {**form, "refresh_token": second["refresh_token"]})
        assert (status, message["error"]) == (400, "invalid_grant")


async def test_server_accepts_only_its_own_tokens(stand: Stand, login_issuer: str) -> None:
    async with stand(server=desk()) as face, stand(server=desk()) as other:
        login = await other.login((await other.register())["client_id"])
        _, value = await login.redeem()
        body = b'{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{}}'
        for url, token, expected in (
            (other, value["access_token"], 400),
            (face, value["access_token"], 401),
            (other, value["refresh_token"], 401),
            (other, value["access_token"][:-4] + "AAAA", 401),
        ):
            status, _ = await url.post(
                "/mcp", body=body, Authorization=f"Bearer {token}", Accept="application/json, text/event-stream"
            )
            assert status == expected
