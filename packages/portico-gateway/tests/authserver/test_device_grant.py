"""The device authorization grant of the authorization server, in front of a real login."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from typing import Any

import pytest

from portico import Client
from portico.auth import DeviceCode, OAuth, TokenStorage
from portico.auth.client_registration import DEVICE_CODE
from portico.transports.http_client.oauth import OAuthTransport
from portico_gateway.authserver import device_grant, store
from support import oidc

Stand = Callable[..., Any]
GRANT_TYPES = ["authorization_code", "refresh_token", DEVICE_CODE]


@pytest.fixture(autouse=True)
def _no_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_grant, "POLL_INTERVAL_SECONDS", 0.0)


async def start(face: Any, **form: str) -> tuple[dict[str, str], dict[str, Any]]:
    """Register a client and request codes; return the form of a poll and the response."""
    client = await face.register(grant_types=GRANT_TYPES)
    status, codes = await face.post("/device_authorization", {"client_id": client["client_id"], **form})
    assert status == 200, codes
    poll = {"grant_type": DEVICE_CODE, "device_code": codes["device_code"], "client_id": client["client_id"]}
    return poll, codes


def approve(url: str, browser: oidc.Browser, code: str | None = None) -> oidc.PageResponse:
    """Open the page, enter the code, decide and log in; return the last page."""
    seen = browser.request("GET", url)
    if code is not None:
        seen = browser.request("POST", seen.url, {"user_code": code})
    for _ in range(12):
        if seen.location is not None:
            seen = browser.request("GET", seen.location)
        elif "<form" in seen.text:
            seen = browser.submit(seen)
        else:
            return seen
    raise AssertionError(f"the login goes in circles at {seen.url}")


async def test_user_approves_on_another_device(stand: Stand) -> None:
    async with stand() as face:
        poll, codes = await start(face, scope="notes:write")
        assert re.fullmatch(r"[BCDFGHJKLMNPQRSTVWXZ]{4}-[BCDFGHJKLMNPQRSTVWXZ]{4}", codes["user_code"])
        assert codes["verification_uri"] == f"{face.issuer}/device" and codes["expires_in"] == 600
        assert (await face.post("/token", poll))[1]["error"] == "authorization_pending"
        browser = oidc.Browser()
        page = await asyncio.to_thread(approve, codes["verification_uri"], browser, codes["user_code"].lower())
        assert page.status == 200 and "Login complete" in page.text
        consent = next(seen for seen in browser.seen if codes["user_code"] in seen.text and "Allow" in seen.text)
        assert "write your notes" in consent.text and "not verified" in consent.text
        status, issued = await face.post("/token", poll)
        assert status == 200 and issued["scope"] == "notes:write" and issued["refresh_token"]
        # A device code is good for one token.
        assert (await face.post("/token", poll))[1]["error"] == "expired_token"


async def test_our_client_logs_in_without_a_browser(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("portico.auth.device_code._MIN_INTERVAL_SECONDS", 0.01)
    monkeypatch.setattr("portico.auth.device_code._DEFAULT_INTERVAL_SECONDS", 0.01)
    async with stand() as face:
        approvals: list[asyncio.Task[Any]] = []

        def show(prompt: Any) -> None:
            url = prompt.verification_uri_complete
            approvals.append(asyncio.create_task(asyncio.to_thread(approve, url, oidc.Browser())))

        async def no_browser(url: str, redirect_uri: str) -> str:
            raise AssertionError("no browser may be opened")

        oauth = OAuth(face.resource, DeviceCode(), clock=time.time, storage=TokenStorage())
        transport = OAuthTransport(oauth, no_browser, show)
        async with asyncio.timeout(60):
            await transport.login()
            await approvals[0]
        await transport.close()
        token = oauth.token
        assert token is not None and token.refresh_token
        async with Client(face.resource, auth=token.access_token) as client:
            await client.list_tools()


@pytest.mark.parametrize("declined_at", ["consent", "login"])
async def test_user_declines(stand: Stand, declined_at: str) -> None:
    async with stand() as face:
        poll, codes = await start(face)
        browser = oidc.Browser(answer="no" if declined_at == "consent" else "yes")
        if declined_at == "login":
            seen = await asyncio.to_thread(browser.request, "GET", codes["verification_uri_complete"])
            while "abort" not in seen.text:
                step = browser.submit if seen.location is None else lambda page: browser.request("GET", page.location)
                seen = await asyncio.to_thread(step, seen)
            abort = re.search(r'href="([^"]*abort[^"]*)"', seen.text)
            assert abort is not None
            url = abort[1] if "://" in abort[1] else seen.url.split("/interaction")[0] + abort[1]
            page = await asyncio.to_thread(approve, url, browser)
        else:
            page = await asyncio.to_thread(approve, codes["verification_uri_complete"], browser)
        assert "Access was declined" in page.text
        assert (await face.post("/token", poll))[1]["error"] == "access_denied"


async def test_code_is_bound_to_its_client(stand: Stand) -> None:
    async with stand() as face:
        poll, codes = await start(face)
        await asyncio.to_thread(approve, codes["verification_uri_complete"], oidc.Browser())
        other = await face.register(grant_types=GRANT_TYPES)
        assert (await face.post("/token", {**poll, "client_id": other["client_id"]}))[1]["error"] == "expired_token"
        assert (await face.post("/token", poll))[0] == 200


async def test_of_many_concurrent_polls_one_gets_the_token(stand: Stand) -> None:
    async with stand() as face:
        poll, codes = await start(face)
        await asyncio.to_thread(approve, codes["verification_uri_complete"], oidc.Browser())
        answers = await asyncio.gather(*(face.post("/token", poll) for _ in range(12)))
        assert sorted(status for status, _ in answers) == [200] + [400] * 11
        grants = await face.face.database.read(lambda tx: tx.fetch_one(int, "select count(*) from provider_grant"))
        assert grants == 1


async def test_client_that_polls_too_fast_is_slowed_down(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_grant, "POLL_INTERVAL_SECONDS", 5.0)
    async with stand() as face:
        poll, _ = await start(face)
        errors = [(await face.post("/token", poll))[1]["error"] for _ in range(3)]
        assert errors == ["authorization_pending", "slow_down", "slow_down"]


async def test_client_must_be_registered_for_the_grant(stand: Stand) -> None:
    async with stand() as face:
        client = await face.register()
        status, error = await face.post("/device_authorization", {"client_id": client["client_id"]})
        assert status == 400 and error["error"] == "unauthorized_client"
        status, error = await face.post("/device_authorization", {"client_id": "nobody"})
        assert status == 401 and error["error"] == "invalid_client"


@pytest.mark.parametrize("code", ["", "BBBB-BBBB", "<script>", "B" * 10_000])
async def test_unknown_codes_get_one_answer(stand: Stand, code: str) -> None:
    async with stand() as face:
        await start(face)
        browser = oidc.Browser()
        page = await asyncio.to_thread(browser.request, "POST", f"{face.issuer}/device", {"user_code": code})
        assert page.status == 400 and "unknown or has expired" in page.text and "script" not in page.text


async def test_code_is_entered_on_our_page_only(stand: Stand) -> None:
    async with stand() as face:
        _, codes = await start(face)
        headers = {"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"}
        form = {"user_code": codes["user_code"]}
        browser = oidc.Browser()
        page = await asyncio.to_thread(browser.request, "POST", f"{face.issuer}/device", form, headers)
        assert page.status == 403


async def test_guessing_codes_is_limited(stand: Stand) -> None:
    async with stand() as face:
        browser = oidc.Browser()
        form = {"user_code": "BBBB-BBBB"}
        pages = [await asyncio.to_thread(browser.request, "POST", f"{face.issuer}/device", form) for _ in range(11)]
        assert [page.status for page in pages] == [400] * 10 + [429]


async def test_forged_row_is_not_redeemed(stand: Stand) -> None:
    async with stand() as face:
        poll, codes = await start(face)
        await asyncio.to_thread(approve, codes["verification_uri_complete"], oidc.Browser())
        # A role that can write to the database points its own device code at another user's grant.
        victim = await face.face.database.read(lambda tx: tx.fetch_one(str, "select grant_id from provider_device"))
        mine, _ = await start(face)
        await face.face.database.write(
            lambda tx: tx.execute("update provider_device set grant_id = :g where grant_id is null", {"g": victim})
        )
        assert (await face.post("/token", mine))[1]["error"] == "expired_token"
        assert (await face.post("/token", poll))[0] == 200


async def test_login_that_was_revoked_is_not_redeemed(stand: Stand) -> None:
    async with stand() as face:
        poll, codes = await start(face)
        await asyncio.to_thread(approve, codes["verification_uri_complete"], oidc.Browser())
        # `portico tokens revoke` between the approval and the next poll.
        await face.face.database.write(
            lambda tx: store.revoke(tx, tx.fetch_one(str, "select grant_id from provider_device"), time.time())
        )
        assert (await face.post("/token", poll))[1]["error"] == "access_denied"


async def test_grant_can_be_switched_off(stand: Stand) -> None:
    async with stand(device_authorization=False) as face:
        page = await face.request(oidc.Browser(), "GET", "/.well-known/oauth-authorization-server")
        assert "device" not in page.text
        assert (await face.post("/device_authorization", {"client_id": "x"}))[0] == 404
        status, error = await face.post("/token", {"grant_type": DEVICE_CODE, "device_code": "x", "client_id": "x"})
        assert status in (400, 401) and error["error"] in ("invalid_client", "unsupported_grant_type")
