"""The authorization server in front of a real login: metadata, pages, errors."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pytest

from portico.auth.assertions import verify_signature
from portico.rpc.rate_limit import MAX_BUCKETS
from portico.transports.http_server import ip_rate_limit
from portico_gateway.credentials.revocation import revoke_principal
from support import oidc
from support.worker_processes import HttpConnection, Session

Stand = Callable[..., Any]


def claims_of(token: str) -> dict[str, Any]:
    body = token.split(".")[1]
    data: dict[str, Any] = msgspec.json.decode(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    return data


async def test_client_registers_logs_in_refreshes_and_revokes(stand: Stand) -> None:
    async with stand() as face:
        client = await face.register()
        login = await face.login(client["client_id"], scope="notes:write unknown offline_access")
        assert login.parameters["iss"] == face.issuer and login.parameters["state"] == login.said["state"]
        status, value = await login.redeem()
        assert status == 200 and value["token_type"] == "Bearer" and value["scope"] == "notes:write"
        claims = claims_of(value["access_token"])
        assert (claims["iss"], claims["sub"], claims["aud"]) == (face.issuer, "anna", face.resource)
        assert claims["email"] == "anna@example.com" and claims["groups"] == ["ops"]
        keys = await face.request(oidc.Browser(), "GET", "/jwks.json")
        assert verify_signature(value["access_token"], msgspec.json.decode(keys.text), ["ES256"]) is not None

        status, next_one = await login.refresh(value["refresh_token"])
        assert status == 200 and next_one["refresh_token"] != value["refresh_token"]
        form = {"token": next_one["refresh_token"], "client_id": client["client_id"]}
        assert (await face.post("/revoke", form))[0] == 200
        assert (await login.refresh(next_one["refresh_token"]))[1]["error"] == "invalid_grant"
        assert face.face.is_revoked(claims["gid"])


async def test_metadata_is_where_clients_look(stand: Stand) -> None:
    async with stand() as face:
        browser = oidc.Browser()
        for path in ("/.well-known/oauth-authorization-server", "/.well-known/openid-configuration"):
            seen = await face.request(browser, "GET", path)
            data = msgspec.json.decode(seen.text)
            assert data["issuer"] == face.issuer and data["code_challenge_methods_supported"] == ["S256"]
            assert data["client_id_metadata_document_supported"] is True


async def test_consent_page_names_the_client_and_cannot_be_framed(stand: Stand) -> None:
    async with stand() as face:
        client = await face.register(client_name="<b>Bank</b>\u202e")
        login = await face.login(client["client_id"])
        browser = oidc.Browser()
        page = await asyncio.to_thread(browser.request, "GET", login.url)
        assert "&lt;b&gt;Bank&lt;/b&gt;" in page.text and "\u202e" not in page.text
        assert "an application on this computer" in page.text and "read your notes" in page.text
        assert "not verified" in page.text and urlsplit(face.face.login_flow.provider.issuer).hostname in page.text
        assert "frame-ancestors 'none'" in page.headers["content-security-policy"]
        assert page.headers["x-frame-options"] == "DENY" and page.headers["cache-control"] == "no-store"
        assert "HttpOnly" in page.headers["set-cookie"] and "SameSite=Lax" in page.headers["set-cookie"]


async def test_declined_consent_redirects_with_access_denied(stand: Stand) -> None:
    async with stand() as face:
        client = await face.register()
        login = await face.login(client["client_id"], oidc.Browser(answer="no"))
        assert login.parameters["error"] == "access_denied" and login.parameters["iss"] == face.issuer


async def test_only_allowed_users_can_log_in(stand: Stand) -> None:
    async with stand(allow=["anna@example.com"]) as face:
        client = await face.register()
        assert (await face.login(client["client_id"])).parameters["code"]
        # The same address, which the provider has not verified.
        with pytest.raises(AssertionError, match="HTTP 403"):
            await face.login(client["client_id"], oidc.Browser("mallory"))


async def test_requests_per_address_are_limited(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("REGISTRATIONS_PER_MINUTE", "LOGINS_PER_MINUTE", "TOKENS_PER_MINUTE"):
        monkeypatch.setattr(ip_rate_limit, name, 3.0)
    async with stand() as face:
        browser = oidc.Browser()
        requests = [
            lambda: face.request(browser, "POST", "/register", form={}),
            lambda: face.request(browser, "POST", "/token", form={"grant_type": "refresh_token"}),
            lambda: face.request(browser, "GET", "/authorize?client_id=x"),
        ]
        for ask in requests:
            seen = [await ask() for _ in range(4)]
            assert 429 not in [item.status for item in seen[:3]]
            assert seen[3].status == 429 and 1 <= int(seen[3].headers["retry-after"]) <= 20
        # What everybody may read is not counted.
        assert (await face.request(browser, "GET", "/jwks.json")).status == 200


def test_ip_rate_limiter_evicts_the_oldest_addresses() -> None:
    pace = ip_rate_limit.IpRateLimiter(1.0)
    assert pace.acquire("192.0.2.1") == 0 and pace.acquire("192.0.2.1") > 50
    # A household has one network of IPv6, however many addresses.
    assert pace.acquire("2001:db8::1") == 0 and pace.acquire("2001:db8::2") > 50
    for at in range(MAX_BUCKETS):
        pace.acquire(f"198.51.{at >> 8}.{at & 255}")
    assert len(pace._limiter._due) == MAX_BUCKETS
    assert pace.acquire("192.0.2.1") == 0


async def test_revoking_tokens_ends_the_streams_of_their_user(stand: Stand, tmp_path: Path) -> None:
    """By another process with the same store, as `portico tokens revoke-user` is one."""
    store = str(tmp_path / "store.db")
    async with stand(store=store) as face:
        port = urlsplit(face.issuer).port
        client = await face.register()
        tokens = []
        for account in ("anna", "mallory"):
            login = await face.login(client["client_id"], oidc.Browser(account))
            tokens.append((await login.redeem())[1]["access_token"])
        listening, modern, other = [await HttpConnection.to(port) for _ in range(3)]
        session = Session(port)
        session.fields["authorization"] = f"Bearer {tokens[0]}"
        await session.begin()
        await listening.send("GET", **session.fields)
        result = HttpConnection.stand_alone("subscriptions/listen", {"notifications": {"toolsListChanged": True}})
        for item, token in ((modern, tokens[0]), (other, tokens[1])):
            await item.send("POST", **result, authorization=f"Bearer {token}")
        for item in (listening, modern, other):
            assert (await item.head())[0] == 200
        await other.chunk()
        assert (await revoke_principal(store, "anna")).grants == 1
        for item in (listening, modern):
            while await item.chunk():
                pass
        assert (await session.send({"id": 1, "method": "ping"})).status == 401
        # Nobody else's.
        face.server.tool("more")(lambda: 1)
        assert b"list_changed" in await other.chunk()
        for item in (listening, modern, other):
            await item.close()
