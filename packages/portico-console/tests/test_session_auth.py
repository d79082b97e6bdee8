"""Access to the console: a browser with the link, on the console's page, on this machine; nothing else.

Source: the same-origin rules of Fetch, RFC 6265bis (cookies), and 2026-07-28, basic/transports, Security Warning.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlencode

import pytest
import pytest_asyncio

from portico import Server
from portico.auth import InvalidToken, Principal
from portico.protocol.errors import UsageError
from portico_console import ConsoleAccess
from support.console_server import Page, console_of


def adding() -> Server:
    server = Server("adding")

    @server.tool
    async def add(a: int, b: int) -> int:
        return a + b

    return server


@pytest_asyncio.fixture
async def page() -> AsyncIterator[Page]:
    async with console_of(adding()) as made:
        yield made


@pytest.mark.parametrize(
    "csp, connections",
    [
        ({}, "()"),
        ({"baseUriDomains": ["https://base.example"]}, "()"),
        (
            {"connectDomains": ["wss://a.example", "https://*.b.example:8443"], "resourceDomains": ["wss://a.example"]},
            '("wss://a.example" "https://*.b.example:8443"); redirects=allow',
        ),
        ({"frameDomains": ["*", 'https://x") "*', "https://c.example"]}, '("https://c.example"); redirects=allow'),
    ],
)
async def test_frame_of_apps_may_connect_to_the_hosts_of_its_policy_only(
    page: Page, csp: dict[str, list[str]], connections: str
) -> None:
    answer = await page.request("GET", f"/console/frame?{urlencode({'csp': json.dumps(csp)})}")
    assert answer.headers["connection-allowlist"] == connections


async def test_page_at_root_runs_only_its_own_code(page: Page) -> None:
    answer = await page.request("GET", "/")
    headers = answer.headers
    assert answer.status == 200 and headers["content-type"] == "text/html; charset=utf-8"
    policy = dict(part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'" and policy["script-src"] == "'self'" and policy["style-src"] == "'self'"
    assert policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff" and headers["x-frame-options"] == "DENY"
    assert headers["referrer-policy"] == "no-referrer" and headers["cross-origin-resource-policy"] == "same-origin"
    assert "set-cookie" not in headers


async def test_files_have_tags_and_are_asked_about_each_time(page: Page) -> None:
    first = await page.request("GET", "/console/index.html")
    tag = first.headers["etag"]
    again = await page.request("GET", "/console/index.html", headers={"if-none-match": tag})
    assert again.status == 304 and again.body == b"" and again.headers["cache-control"] == "no-cache"


@pytest.mark.parametrize(
    "path", ["/console/../__init__.py", "/console/%2e%2e/gate.py", "/console//etc/passwd", "/console/page/index.html"]
)
async def test_only_files_of_the_page_are_present(page: Page, path: str) -> None:
    assert (await page.request("GET", path)).status == 404


async def test_link_is_valid_once(page: Page) -> None:
    token = page.site.authenticator.create_login_token()
    assert (await page.sign_in(token)).status == 200
    again = await page.sign_in(token)
    assert again.status == 401 and "already used" in json.loads(again.body)["error"]


async def test_cookie_is_out_of_reach_for_scripts_and_for_other_sites(page: Page) -> None:
    message = (await page.sign_in()).headers["set-cookie"]
    assert "HttpOnly" in message and "SameSite=Strict" in message and "Path=/console" in message
    assert message.startswith(f"portico_console_{page.origin.rpartition(':')[2]}=")


async def test_both_the_cookie_and_the_key_are_needed(page: Page) -> None:
    await page.sign_in()
    assert (await page.call()).status == 200
    for missing in ("cookie", "portico-console"):
        answer = await page.call(**{missing: ""})
        assert answer.status == 401 and json.loads(answer.body)["error"]["data"]["how"] == "ask for a link"
    other = Page(page.url, page.site)
    await other.sign_in()
    assert (await page.call(**{"portico-console": other.key})).status == 401


@pytest.mark.parametrize("wrong", ["", "x", "a.b.c", "AAAA.9999999999.AAAA", "\u00e9", "x" * 100_000])
async def test_malformed_token_is_rejected_without_a_traceback(page: Page, wrong: str) -> None:
    answer = await page.request("POST", "/console/login", {"token": wrong})
    assert answer.status in (401, 413) and b"Traceback" not in answer.body


@pytest.mark.parametrize("body", [b"", b"[]", b'{"token": 1}', b"\xff"])
async def test_malformed_login_body_is_rejected(page: Page, body: bytes) -> None:
    assert (await page.request("POST", "/console/login", body)).status == 400


async def test_logout_ends_the_session(page: Page) -> None:
    await page.sign_in()
    assert (await page.call()).status == 200
    left = await page.request("POST", "/console/logout", {}, page.proof)
    assert left.status == 204 and "Max-Age=0" in left.headers["set-cookie"]
    # The head of the call has been let in before: it is not remembered.
    assert (await page.call()).status == 401


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "http://localhost:3000"},
        {"origin": "http://127.0.0.1:1"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"sec-fetch-site": "none"},
    ],
    ids=str,
)
async def test_other_origins_are_rejected_even_with_the_cookie(headers: dict[str, str]) -> None:
    """Another port of this machine is the same site, so that SameSite is not enough."""
    async with console_of(adding(), allowed_origins=["http://localhost:3000", "http://evil.example"]) as page:
        await page.sign_in()
        assert (await page.call(**headers)).status == 403
        assert (
            await page.request(
                "POST", "/console/login", {"token": page.site.authenticator.create_login_token()}, headers
            )
        ).status == 403


async def test_our_own_page_is_accepted(page: Page) -> None:
    await page.sign_in(**{"sec-fetch-site": "same-origin"})
    answer = await page.call(origin=page.origin, **{"sec-fetch-site": "same-origin"})
    assert answer.status == 200 and "access-control-allow-origin" not in answer.headers
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cross-origin-resource-policy"] == "same-origin"


async def test_hostile_host_name_is_rejected() -> None:
    """DNS rebinding: the name is the attacker's, the address is ours; also where the server has allowed the name."""
    async with console_of(adding(), allowed_hosts=["rebound.example"]) as page:
        token = page.site.authenticator.create_login_token()
        for host in ("rebound.example", "rebound.example:80", "localhost.rebound.example"):
            for method, path, body in (("GET", "/", None), ("POST", "/console/login", {"token": token})):
                assert (await page.request(method, path, body, {"host": host})).status in (403, 404)
        assert (await page.sign_in(token)).status == 200


@pytest.mark.parametrize("header", ["x-forwarded-for", "forwarded", "x-forwarded-host", "via", "x-real-ip"])
async def test_proxied_requests_are_not_treated_as_local(page: Page, header: str) -> None:
    assert (await page.request("GET", "/", headers={header: "for=1.2.3.4"})).status == 404
    assert (await page.request("POST", "/console/login", {"token": "x"}, {header: "1.2.3.4"})).status == 404


async def test_no_get_changes_anything(page: Page) -> None:
    await page.sign_in()
    for path in ("/console/mcp", "/console/login", "/console/logout"):
        answer = await page.request(
            "GET", f"{path}?token={page.site.authenticator.create_login_token()}", headers=page.proof
        )
        assert answer.status in (404, 405) and "set-cookie" not in answer.headers
    assert (await page.call()).status == 200


async def test_form_of_another_page_cannot_be_posted(page: Page) -> None:
    await page.sign_in()
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
        assert (await page.call(**{"content-type": kind})).status == 415


async def test_user_of_this_machine_without_the_link_sees_nothing(page: Page) -> None:
    """The port can be reached by every user: what they get is the page, and nothing that it shows."""
    assert (await page.call()).status == 401
    forged = Page(page.url, page.site, page.cookie or "portico_console_1=e30=.x", "x")
    assert (await forged.call()).status == 401


async def test_servers_own_token_signs_in_and_others_do_not() -> None:
    async with console_of(adding(), token="the server's", operator_token="the operator's") as page:
        for good in ("the server's".replace(" ", "%20"), "another"):
            assert (await page.sign_in(good)).status == 401
    async with console_of(adding(), token="servers", operator_token="operators") as page:
        for good in ("servers", "operators"):
            assert (await page.sign_in(good)).status == 200
            assert (await page.call()).status == 200
        # And the console is no way around the token.
        assert (await page.request("POST", "/mcp", {}, page.proof)).status == 401


async def verify(credentials: Any) -> Principal:
    scopes = {"boss": frozenset({"admin"}), "guest": frozenset({"read"})}
    if credentials.token not in scopes:
        raise InvalidToken("unknown")
    return Principal(credentials.token, scopes[credentials.token], issuer="https://login.example")


async def test_scope_mode_requires_login_and_reports_the_principal() -> None:
    server = adding()
    server.auth = Server("x", auth=verify).auth
    async with console_of(server, "scope:admin") as page:
        assert (await page.request("GET", "/")).status == 200
        assert (await page.sign_in("guest")).status == 401
        # Links are for the machine, and here there is a login.
        assert (await page.sign_in(page.site.authenticator.create_login_token())).status == 401
        assert (await page.sign_in("boss")).status == 200
        data = json.loads((await page.call()).body)["result"]["structuredContent"]
        assert data["principal"] == {"id": "boss", "scopes": ["admin"]}


async def test_revoked_token_ends_the_session_immediately() -> None:
    good = {"boss": "boss"}

    async def verify(credentials: Any) -> Principal:
        if credentials.token not in good:
            raise InvalidToken("revoked")
        return Principal(good[credentials.token], frozenset({"admin"}), issuer="https://login.example")

    server = Server("revoking", auth=verify)

    async def status_with(**now: str) -> int:
        good.clear()
        good.update(now)
        server.auth.clear_cache()  # as the server does when a token of its own is taken back; others are asked about in a minute
        return (await page.call()).status

    async with console_of(server, "scope:admin") as page:
        assert (await page.sign_in("boss")).status == 200
        assert await status_with(boss="boss") == 200
        assert await status_with(boss="another") == 401
        assert await status_with(boss="boss") == 200
        assert await status_with() == 401


async def test_watch_ends_at_the_recheck_for_token_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("portico_console.live_updates.AUTH_RECHECK_SECONDS", 0.01)
    async with console_of(adding(), token="servers") as page:
        await page.sign_in("servers")
        data = json.loads((await page.call("watch", {"topics": ["targets"]})).body)
        assert data["result"]["structuredContent"] == {"ended": "time"}


async def test_address_signs_in_so_often_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("portico.transports.http_server.ip_rate_limit.LOGINS_PER_MINUTE", 3.0)
    async with console_of(adding()) as page:
        assert [(await page.sign_in("guessed")).status for _ in range(4)] == [401, 401, 401, 429]
        refused = await page.sign_in()
        assert refused.status == 429 and int(refused.headers["retry-after"]) in range(1, 61)


@pytest.mark.parametrize("text", ["on", "", "scope", "scope:", "scope:a b", "Local"])
def test_unknown_access_mode_is_rejected(text: str) -> None:
    with pytest.raises(UsageError, match="off, local or scope:NAME"):
        ConsoleAccess.parse(text)
