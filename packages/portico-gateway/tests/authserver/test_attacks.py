"""Attacks on the authorization server: replayed codes and tokens, open redirects, mix-up, SSRF, forged consent."""

from __future__ import annotations

import asyncio
import base64
import re
import secrets
import time
from collections.abc import Callable
from functools import partial
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest
from msgspec.structs import replace

from portico.store.database import Database
from portico_gateway.authserver import device_grant, store
from portico_gateway.authserver.clients import OAuthClient, matches_redirect_uri, validate_redirect_uris
from portico_gateway.authserver.errors import OAuthErrorResponse
from portico_gateway.authserver.login_flow import MIGRATIONS, source_of
from portico_gateway.credentials.encryption import KeyRing, digest
from support import oidc
from support.access_control import REDIRECT_URI

Stand = Callable[..., Any]
TIMEOUT_SECONDS = 60.0


async def test_reused_code_revokes_its_tokens(stand: Stand) -> None:
    async with stand() as face:
        login = await face.login((await face.register())["client_id"])
        _, value = await login.redeem()
        status, message = await login.redeem()
        assert (status, message["error"]) == (400, "invalid_grant")
        assert (await login.refresh(value["refresh_token"]))[1]["error"] == "invalid_grant"


async def test_of_many_that_redeem_a_code_at_once_one_succeeds_at_most(stand: Stand) -> None:
    async with stand() as face:
        login = await face.login((await face.register())["client_id"])
        answers = await asyncio.gather(*(login.redeem() for _ in range(5)))
        assert sum(status == 200 for status, _ in answers) <= 1


async def test_reused_refresh_token_revokes_the_grant(stand: Stand) -> None:
    async with stand() as face:
        login = await face.login((await face.register())["client_id"])
        _, first = await login.redeem()
        _, second = await login.refresh(first["refresh_token"])
        assert (await login.refresh(first["refresh_token"]))[1]["error"] == "invalid_grant"
        assert (await login.refresh(second["refresh_token"]))[1]["error"] == "invalid_grant"


@pytest.mark.parametrize(
    "wrong",
    [
        {"code_verifier": "v" * 43},
        {"code_verifier": ""},
        {"redirect_uri": "http://127.0.0.1:10/callback"},
        {"resource": "https://elsewhere.example/mcp"},
        {"client_id": "another"},
    ],
    ids=lambda wrong: next(iter(wrong)) + str(len(next(iter(wrong.values())))),
)
async def test_stolen_code_is_of_no_use(stand: Stand, wrong: dict[str, str]) -> None:
    async with stand() as face:
        login = await face.login((await face.register())["client_id"])
        status, message = await login.redeem(**wrong)
        assert status in (400, 401) and "access_token" not in message


async def test_another_client_cannot_redeem_or_revoke(stand: Stand) -> None:
    async with stand() as face:
        login = await face.login((await face.register())["client_id"])
        other = (await face.register())["client_id"]
        assert (await login.redeem(client_id=other))[0] == 400
        status, value = await login.redeem()
        assert status == 200
        await face.post("/revoke", {"token": value["refresh_token"], "client_id": other})
        await face.post("/revoke", {"token": value["access_token"], "client_id": other})
        assert (await login.refresh(value["refresh_token"]))[0] == 200


async def test_client_with_a_secret_has_to_show_it(stand: Stand) -> None:
    async with stand() as face:
        client = await face.register(token_endpoint_auth_method="client_secret_basic")
        login = await face.login(client["client_id"])
        assert (await login.redeem())[0] == 401
        assert (await login.redeem(client_secret="guessed"))[0] == 401
        pair = base64.b64encode(f"{client['client_id']}:{client['client_secret']}".encode()).decode()
        form = {
            "grant_type": "authorization_code",
            "code": login.parameters["code"],
            "redirect_uri": login.said["redirect_uri"],
            "code_verifier": login.verifier,
        }
        assert (await face.post("/token", form, Authorization=f"Basic {pair}"))[0] == 200


# Redirects


@pytest.mark.parametrize(
    "uri",
    [
        "https://evil.example/callback",
        "http://127.0.0.1:9/callback/../other",
        "http://127.0.0.1:9/callback?next=https://evil.example",
        "http://127.0.0.1:9@evil.example/callback",
        "http://127.0.0.1.evil.example:9/callback",
        "http://localhost:9/callback",
        "//evil.example/callback",
        "javascript:alert(1)//callback",
        "",
    ],
)
async def test_no_browser_is_sent_where_the_client_is_not(stand: Stand, uri: str) -> None:
    async with stand() as face:
        client = await face.register()
        login = face.prepare(client["client_id"], redirect_uri=uri)
        seen = await asyncio.to_thread(oidc.Browser().request, "GET", login.url)
        assert seen.status == 400 and seen.location is None and "<form" not in seen.text


async def test_on_the_clients_own_machine_any_port_is_its_own(stand: Stand) -> None:
    async with stand() as face:
        client = await face.register()
        login = await face.login(client["client_id"], redirect_uri="http://127.0.0.1:19999/callback")
        assert (await login.redeem())[0] == 200


def test_only_loopback_has_free_ports() -> None:
    client = OAuthClient(id="x", redirect_uris=("https://example.com:1/callback", "com.example.app:/done"))
    assert matches_redirect_uri(client, "https://example.com:1/callback") and matches_redirect_uri(
        client, "com.example.app:/done"
    )
    assert not matches_redirect_uri(client, "https://example.com:2/callback")


@pytest.mark.parametrize(
    "uri",
    [
        "javascript:alert(1)",
        "data:text/html,x",
        "http://example.com/x",
        "https://a.example/#x",
        "https://u@a.example/",
        "https://%D1%81laude.ai/cb",
        "https://сlaude.ai/cb",
        "",
        "ms-appinstaller:?source=https://evil.example/x.msix",
        "MS-Appinstaller:?source=https://evil.example/x.msix",
        "search-ms:query=x",
        "search:query=x",
        "ms-word:ofe|u|https://evil.example/x",
        "ms-office.example.com:/x",
        "file:///etc/passwd",
        "vbscript:x",
        "view-source:https://a.example/",
        "web+mcp://claude.ai/cb",
        "evilapp://login.example/",
        "intent://a.example/#Intent;end",
        "shell:startup",
        "ftp://a.example/",
        "http://localhost.evil.example/",
    ],
)
async def test_redirect_uri_that_cannot_be_trusted_is_not_registered(stand: Stand, uri: str) -> None:
    async with stand() as face:
        status, message = await face.post("/register", body=b'{"redirect_uris": ["' + uri.encode() + b'"]}')
        assert (status, message["error"]) == (400, "invalid_redirect_uri")


@pytest.mark.parametrize(
    ("uri", "destination"),
    [
        ("https://claude.ai/api/callback", "<dd>claude.ai</dd>"),
        ("https://claude.ai:8443/api/callback", "<dd>claude.ai:8443</dd>"),
        ("https://xn--laude-2fg.ai/cb", "<dd>xn--laude-2fg.ai</dd>"),
        ("http://localhost:9/cb", "<dd>an application on this computer</dd>"),
        ("https://127.0.0.1:9/cb", "<dd>an application on this computer</dd>"),
        ("com.evil.app://claude.ai/cb", "<dd>an application on this device, by the scheme com.evil.app:</dd>"),
        ("cursor://anysphere.cursor-retrieval/cb", "<dd>an application on this device, by the scheme cursor:</dd>"),
        ("vscode-insiders://claude.ai/", "<dd>an application on this device, by the scheme vscode-insiders:</dd>"),
        ("claude://claude.ai/mcp", "<dd>an application on this device, by the scheme claude:</dd>"),
    ],
)
async def test_consent_page_shows_the_redirect_host(stand: Stand, uri: str, destination: str) -> None:
    async with stand() as face:
        client = await face.register(redirect_uris=[uri], client_name="Claude")
        login = face.prepare(client["client_id"], redirect_uri=uri)
        seen = await asyncio.to_thread(oidc.Browser().request, "GET", login.url)
        assert f"<dt>Returns to</dt>{destination}" in seen.text
        assert "Claude (self-declared name)" in seen.text and "Allow “Claude” to access" in seen.text
        assert "Let Claude in?" not in seen.text


def test_operator_may_register_any_scheme_that_is_not_dangerous() -> None:
    client = OAuthClient(id="x", redirect_uris=validate_redirect_uris(["ourapp://done"], configured=True))
    assert matches_redirect_uri(client, "ourapp://done")
    assert not matches_redirect_uri(replace(client, kind="registered"), "ourapp://done")
    for uri in ("javascript:x", "ms-appinstaller:x", "search-ms:x", "file:///x", "http://a.example/"):
        with pytest.raises(OAuthErrorResponse):
            validate_redirect_uris([uri], configured=True)


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"redirect_uris": 5}', b'{"redirect_uris": []}', b"[" * 30_000])
async def test_registration_that_makes_no_sense_is_rejected(stand: Stand, body: bytes) -> None:
    async with stand() as face:
        status, message = await face.post("/register", body=body)
        assert status == 400 and message["error"].startswith("invalid_")


async def test_registration_can_be_turned_off(stand: Stand) -> None:
    async with stand(dynamic_client_registration=False) as face:
        assert (await face.post("/register", body=b"{}"))[0] == 404


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"code_challenge_method": "plain"}, "invalid_request"),
        ({"code_challenge": ""}, "invalid_request"),
        ({"response_type": "token"}, "unsupported_response_type"),
        ({"resource": "https://elsewhere.example/mcp"}, "invalid_target"),
        ({"request_uri": "https://evil.example/"}, "request_not_supported"),
    ],
)
async def test_error_details_are_sent_only_after_consent(stand: Stand, wrong: dict[str, str], error: str) -> None:
    """RFC 9700, 4.11.2: anybody can register, so a link of this host would lead anywhere."""
    async with stand() as face:
        client = (await face.register(redirect_uris=[REDIRECT_URI, "https://evil.example/phish"]))["client_id"]
        other = (await face.register())["client_id"]

        async def ask(client: str, **more: str) -> oidc.PageResponse:
            login = face.prepare(client, **wrong, **more)
            return await asyncio.to_thread(oidc.Browser().request, "GET", login.url)

        seen = await ask(client)
        assert seen.status == 400 and seen.location is None and error in seen.text and "http-equiv" not in seen.text
        assert (await face.login(client)).parameters["code"]
        login = await face.login(client, **wrong)
        assert login.parameters["error"] == error and login.parameters["iss"] == face.issuer
        # Neither another client, nor another address of the same one.
        for seen in (await ask(other), await ask(client, redirect_uri="https://evil.example/phish")):
            assert seen.status == 400 and seen.location is None


async def test_declined_consent_does_not_redirect_to_an_unapproved_host(stand: Stand) -> None:
    async with stand() as face:
        uri = "https://evil.example/phish"
        client = (await face.register(redirect_uris=[uri]))["client_id"]
        browser = oidc.Browser(answer="no")
        page = await asyncio.to_thread(browser.request, "GET", face.prepare(client, redirect_uri=uri).url)
        seen = await asyncio.to_thread(browser.submit, page)
        assert seen.status == 200 and seen.location is None
        assert "Access was declined" in seen.text and "evil.example" in seen.text and "http-equiv" not in seen.text


# Floods


@pytest.mark.parametrize("engine", ["sqlite", "postgresql"])
@pytest.mark.parametrize("table", ["flows", "clients", "devices"])
async def test_flood_from_one_network_leaves_capacity_for_others(
    engine: str, table: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("MAX_FLOWS", 40), ("MAX_CLIENTS", 40), ("MAX_PER_NETWORK", 10), ("MAX_PER_WIDER_NETWORK", 20)):
        monkeypatch.setattr(store, name, value)
    monkeypatch.setattr(device_grant, "MAX_DEVICE_CODES", 40)
    url = "sqlite://" if engine == "sqlite" else request.getfixturevalue("postgres_url")
    made = 0

    def begin(address: str) -> Callable[[Any], None]:
        nonlocal made
        made += 1
        now, name, source = 1000.0 + made / 1000, f"{address} {made}", source_of(address)
        if table == "flows":
            return partial(store.create_login, flow=name, browser="b", body="x", now=now, source=source)
        ring = KeyRing([b"a key that signs the clients of this test"])
        if table == "devices":
            row = device_grant.DeviceRow(name, name, "c", "", "", now + 600, 5.0, 0.0)
            return partial(device_grant.create_device_login, row=row, now=now, source=source, ring=ring)
        client = OAuthClient(id=name, redirect_uris=(REDIRECT_URI,), kind="registered")
        return partial(store.keep_client, client=client, now=now, expires_at=now + 600, ring=ring, source=source)

    async with Database(url) as database:
        await database.migrate("provider", MIGRATIONS)

        async def left(*addresses: str) -> list[int]:
            kind = f"provider_{table[:-1]}"
            counts = f"select count(*) from {kind} where network = :network"
            return [
                await database.read(lambda tx, one=one: tx.fetch_one(int, counts, {"network": source_of(one).network}))
                for one in addresses
            ]

        for address in ("192.0.2.1", "192.0.2.2", "2001:db8:1::1", "203.0.113.7"):
            await database.write(begin(address))
        # One address, one /64, one /24, one /48, and several networks together.
        for address in ("198.51.100.1", "2001:db8:2::1", "2001:db8:2::2"):
            for _ in range(30):
                await database.write(begin(address))
            assert await left(address) == [10]
        for last in range(60):
            await database.write(begin(f"198.51.100.{last}"))
        for last in range(60):
            await database.write(begin(f"2001:db8:2:{last:x}::1"))
        for last in range(60):
            await database.write(begin(f"198.51.{last % 3}.{last}"))
        assert await left("192.0.2.1", "192.0.2.2", "2001:db8:1::1", "203.0.113.7") == [1, 1, 1, 1]
        await database.write(begin("192.0.2.3"))
        assert await left("192.0.2.3", "192.0.2.1") == [1, 1]
        kind = f"provider_{table[:-1]}"
        assert await database.read(lambda tx: tx.fetch_one(int, f"select count(*) from {kind}")) <= 40


def test_source_groups_addresses_by_network() -> None:
    assert source_of("192.0.2.7") == store.Source("192.0.2.7", "192.0.2.0/24")
    assert source_of("::ffff:192.0.2.7") == source_of("192.0.2.7")
    assert source_of("2001:db8:1:2:3::4") == store.Source("2001:db8:1:2::", "2001:db8:1::/48")
    assert source_of("local") == store.Source("local", "local")


# Consent


async def test_consent_from_another_origin_is_rejected(stand: Stand) -> None:
    """A page of somebody else's can make a browser post a form, and cannot read ours."""
    async with stand() as face:
        browser, page, flow = await consent_page(face)
        forged = {"flow": flow, "answer": "yes"}
        for headers in (
            {"Origin": "https://evil.example"},
            {"Sec-Fetch-Site": "cross-site"},
            {"Origin": "null"},
        ):
            seen = await asyncio.to_thread(browser.request, "POST", f"{face.issuer}/consent", forged, headers)
            assert seen.status == 403 and seen.location is None
        del page


async def test_consent_is_tied_to_the_browser_that_was_asked(stand: Stand) -> None:
    """One who opens the page himself, and has another person's browser post the form, gets nothing."""
    async with stand() as face:
        _, _, flow = await consent_page(face)
        victim, _, own = await consent_page(face)
        for guess in (flow, "", secrets.token_urlsafe(32)):
            seen = await post_consent(face, victim, guess)
            assert seen.status == 400 and seen.location is None
        assert (await post_consent(face, oidc.Browser(), own)).status == 400
        assert (await post_consent(face, victim, own)).location is not None
        # Once.
        assert (await post_consent(face, victim, own)).status == 400


async def test_login_of_another_browser_is_rejected(stand: Stand) -> None:
    """The attacker logs in up to the last step, and has the victim open that: nothing is given to anyone."""
    async with stand() as face:
        login = face.prepare((await face.register())["client_id"])
        callback = await asyncio.to_thread(oidc.Browser("mallory").visit, login.url, f"{face.issuer}/callback")
        seen = await asyncio.to_thread(oidc.Browser().request, "GET", callback)
        assert seen.status == 400 and seen.location is None


# Mixed-up issuers


@pytest.mark.parametrize("iss", ["https://other.example", None])
async def test_response_of_another_issuer_is_rejected(stand: Stand, iss: str | None) -> None:
    async with stand() as face:
        browser, login = oidc.Browser(), face.prepare((await face.register())["client_id"])
        callback = await asyncio.to_thread(browser.visit, login.url, f"{face.issuer}/callback")
        query = {name: values[0] for name, values in parse_qs(urlsplit(callback).query).items()}
        assert query.pop("iss") == face.face.login_flow.provider.issuer
        more = "" if iss is None else f"&iss={iss}"
        url = f"{face.issuer}/callback?state={query['state']}&code={query['code']}{more}"
        seen = await asyncio.to_thread(browser.request, "GET", url)
        assert seen.status == 502 and seen.location is None
        # And the code is not to be tried again with the right name.
        assert (await asyncio.to_thread(browser.request, "GET", callback)).status == 400


async def consent_page(face: Any) -> tuple[oidc.Browser, oidc.PageResponse, str]:
    browser, login = oidc.Browser(), face.prepare((await face.register())["client_id"])
    page = await asyncio.to_thread(browser.request, "GET", login.url)
    text = re.search(r'name="flow" value="([^"]+)"', page.text)
    assert text is not None
    return browser, page, text[1]


async def post_consent(face: Any, browser: oidc.Browser, flow: str) -> oidc.PageResponse:
    form = {"flow": flow, "answer": "yes"}
    return await asyncio.to_thread(browser.request, "POST", f"{face.issuer}/consent", form)


# What is kept


@pytest.mark.parametrize("engine", ["sqlite", "postgresql"])
async def test_stored_data_contains_no_usable_credentials(
    stand: Stand, engine: str, tmp_path: Any, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither codes nor tokens, nor the keys that sign them, nor who somebody is, can be read from the store."""
    monkeypatch.setenv("PORTICO_ENCRYPTION_KEYS", "a key for this test alone")
    url = f"sqlite://{tmp_path}/store.db" if engine == "sqlite" else request.getfixturevalue("postgres_url")
    async with stand(store=url) as face:
        login = await face.login((await face.register())["client_id"])
        _, value = await login.redeem()
        tables = ("key", "client", "flow", "grant", "code", "refresh")
        kept = repr([await face.face.database.read(partial(_everything, table)) for table in tables])
        for secret in (login.parameters["code"], value["refresh_token"], '"d"', "anna@example.com"):
            assert secret not in kept
        status, again = await login.refresh(value["refresh_token"])
        assert status == 200
        # A second process sees what the first revokes.
        async with stand(store=url) as other:
            heard = asyncio.Event()
            other.face.on_revoked = heard.set
            await face.post("/revoke", {"token": again["access_token"], "client_id": login.client_id})
            async with asyncio.timeout(TIMEOUT_SECONDS):
                await heard.wait()
            assert other.face.is_revoked(_grant_of(again["access_token"]))


async def test_store_writer_cannot_forge_grants_for_another_user(stand: Stand) -> None:
    """Neither a refresh token nor a code for their grant, nor a wider grant, nor another place for a client's codes."""
    async with stand() as face:
        client = (await face.register())["client_id"]
        login = await face.login(client)
        _, value = await login.redeem()
        grant, database = _grant_of(value["access_token"]), face.face.database

        def forge(tx: Any) -> None:
            until = time.time() + 3600
            tx.execute(
                "insert into provider_refresh (id, grant_id, expires_at, signature) select ?, ?, ?, signature "
                "from provider_refresh",
                (digest("forged"), grant, until),
            )
            tx.execute(
                "insert into provider_code (id, grant_id, redirect_uri, challenge, expires_at) "
                "select ?, grant_id, redirect_uri, challenge, ? from provider_code",
                (digest("forged"), until),
            )

        await database.write(forge)
        status, _ = await login.refresh("forged")
        assert status == 400
        match = partial(store.find_client, client_id=client, now=time.time(), ring=face.face.keyring)
        assert await database.read(match) is not None
        widened = "update provider_grant set scope = 'everything'"
        elsewhere = "update provider_client set body = replace(body, 'http', 'https')"
        for sql in (widened, elsewhere):
            assert await database.write(lambda tx, sql=sql: tx.execute(sql)) == 1
        status, _ = await login.refresh(value["refresh_token"])
        assert status in (400, 401)
        assert await database.read(match) is None


@pytest.mark.parametrize("column", ["scope", "subject", "resource", "client", "identity"])
async def test_changed_grant_gives_no_token(stand: Stand, column: str) -> None:
    async with stand() as face:
        login = await face.login((await face.register())["client_id"])
        _, value = await login.redeem()
        change = f"update provider_grant set {column} = {column} || 'x'"
        assert await face.face.database.write(lambda tx: tx.execute(change)) == 1
        status, message = await login.refresh(value["refresh_token"])
        assert (status, message["error"]) == (400, "invalid_grant")


def _everything(table: str, tx: Any) -> list[tuple[Any, ...]]:
    return list(tx.fetch_all(tuple, f"select * from provider_{table}"))


def _grant_of(token: str) -> str:
    body = token.split(".")[1]
    return str(msgspec.json.decode(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))["gid"])


async def test_rotated_keys_still_verify_old_signatures(stand: Stand) -> None:
    async with stand(key_rotation_interval="1h") as face:
        login = await face.login((await face.register())["client_id"])
        await login.redeem()
        before = await face.face.get_public_keys()
        await face.face.database.write(_age_keys)
        await face.face.get_public_keys()
        keys = await face.face.get_signing_keys()
        assert len(keys.jwks_keys()) == 2 and keys.signing_key_id != before[0]["kid"]
        assert before[0]["kid"] in {key["kid"] for key in keys.jwks_keys()}


def _age_keys(tx: Any) -> None:
    tx.execute("update provider_key set created_at = created_at - 3605")


async def test_unused_registrations_are_forgotten_and_used_ones_stay(stand: Stand) -> None:
    async with stand() as face:
        used, unused = [(await face.register())["client_id"] for _ in range(2)]
        await (await face.login(used)).redeem()
        later = time.time() + 2 * store.UNUSED_CLIENT_TTL_SECONDS
        find = face.face.database.read
        assert await find(partial(store.find_client, client_id=used, now=later, ring=face.face.keyring)) is not None
        assert await find(partial(store.find_client, client_id=unused, now=later, ring=face.face.keyring)) is None
