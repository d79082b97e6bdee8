"""Per-user credentials for upstreams are never used for another user."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import Any

import msgspec
import pytest

from portico import Client, Context, Server
from portico.auth import AuthorizationCode, ClientRegistration, OAuth, ResourceServer
from portico.auth.errors import RegistrationError
from portico.protocol.client_features import ElicitParams, ElicitResult
from portico.protocol.errors import InvalidParams, ToolError
from portico.server.policy import settings as access_settings
from portico_gateway import Gateway
from portico_gateway.credentials import token_vault as vaults, vault_store
from portico_gateway.credentials.encryption import KeyRing
from portico_gateway.credentials.upstream_accounts import UpstreamAccount
from portico_gateway.credentials.vault_store import CredentialKey
from support import oidc
from support.access_control import REDIRECT_URI, free_port, oauth_for, served, visitor
from support.node import NotInstalled

Stand = Callable[..., Any]
TIMEOUT_SECONDS = 60.0


@pytest.fixture(scope="module")
def upstream_issuer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where people have accounts for the upstream; it registers clients itself."""
    try:
        with oidc.provider(
            tmp_path_factory.mktemp("upstream"), clients=[], registration=True, scopes=["notes"], lifetime=300
        ) as issuer:
            yield issuer
    except NotInstalled as why:
        if os.environ.get("CI"):
            pytest.fail(f"oidc-provider cannot be installed: {why}", pytrace=False)
        pytest.skip(f"oidc-provider cannot be installed: {why}")


def notes(issuer: str, url: str) -> Server:
    server = Server("notes", auth=ResourceServer(issuer, audience=url, required_scopes=["notes"]))

    @server.tool
    async def mine(ctx: Context) -> str:
        """Whose notes these are."""
        return f"notes of {ctx.principal.id}"

    return server


class Place:
    """A gateway with a login of its own, and behind it a server where people have other names."""

    def __init__(self, standing: Any, upstream: str, issuer: str) -> None:
        self.standing = standing
        self.upstream = upstream
        self.issuer = issuer
        self.links: list[str] = []

    def browser(self, name: str) -> oidc.Browser:
        return oidc.Browser(name, accounts={self.issuer: f"{name}-elsewhere"})

    @contextlib.asynccontextmanager
    async def client(self, name: str, browser: Any = None, **options: Any) -> AsyncIterator[Client]:
        """Who opens every page that they are shown, in a browser of their own."""
        opened = browser or self.browser(name)

        async def show(asked: ElicitParams) -> ElicitResult:
            assert asked.url is not None
            self.links.append(asked.url)
            await asyncio.to_thread(connect, opened, asked.url)
            return ElicitResult("accept")

        url = self.standing.resource
        values = {"elicitation_handler": show, "elicitation_modes": ("url",), **options}
        async with Client(url, auth=oauth_for(url), open_browser=visitor(name), **values) as client:
            yield client


def connect(browser: oidc.Browser, link: str) -> oidc.PageResponse:
    """Open a link, and do what the pages want, to the end."""
    seen = browser.request("GET", link)
    for _ in range(oidc.MOST_STEPS):
        location = seen.location
        if location is not None:
            seen = browser.request("GET", location)
        elif "<form" in seen.text:
            seen = browser.submit(seen)
        else:
            return seen
    raise AssertionError(seen.url)


@pytest.fixture
def place(stand: Stand, upstream_issuer: str) -> Any:
    @contextlib.asynccontextmanager
    async def standing(store: str | None = None, **auth: Any) -> AsyncIterator[Place]:
        port = free_port()
        url = f"http://127.0.0.1:{port}/mcp"
        gateway = Gateway(name="desk", store=store or "sqlite://", max_result_tokens=0)
        gateway.add_upstream(
            "notes", url, auth={"type": "user_account", "scopes": ["notes"], "display_name": "The notes", **auth}
        )
        async with served(notes(upstream_issuer, url), port), stand(server=gateway) as face:
            yield Place(face, url, upstream_issuer)

    return standing


@pytest.mark.parametrize("revision", ["2025-11-25", "2026-07-28"])
async def test_each_user_connects_and_uses_their_own_account(place: Any, revision: Any) -> None:
    async with place() as at, at.client("anna", protocol_version=revision) as anna, at.client("ben") as ben:
        tools = [tool.name for tool in await anna.list_tools()]
        assert tools == ["notes_connect_account"]
        assert "connected" in (await anna.call_tool("notes_connect_account")).text
        assert "notes_mine" in [tool.name for tool in await anna.list_tools()]
        for _ in range(2):
            assert (await anna.call_tool("notes_mine")).text == "notes of anna-elsewhere"
            # Who has not connected is asked in the middle of the call.
            assert (await ben.call_tool("notes_mine")).text == "notes of ben-elsewhere"
        together = [(client.call_tool("notes_mine"), name) for client, name in ((anna, "anna"), (ben, "ben")) * 5]
        for answer, name in [(await call, name) for call, name in together]:
            assert answer.text == f"notes of {name}-elsewhere"
        assert len(at.links) == 2


@pytest.mark.parametrize("revision", ["2025-11-25", "2026-07-28"])
async def test_first_request_of_all_may_be_a_call(place: Any, revision: Any) -> None:
    async with place() as at, at.client("anna", protocol_version=revision) as anna:
        assert (await anna.call_tool("notes_mine")).text == "notes of anna-elsewhere"
        assert len(at.links) == 1
        with pytest.raises(InvalidParams, match="Unknown tool: notes_min"):
            await anna.call_tool("notes_min")


async def test_client_without_url_elicitation_gets_a_connect_link(place: Any) -> None:
    async with place() as at, at.client("anna", elicitation_handler=None, elicitation_modes=("form",)) as anna:
        with pytest.raises(ToolError, match="/connect/to/notes") as refused:
            await anna.call_tool("notes_connect_account")
        link = str(refused.value).partition("Open ")[2].partition(" ")[0]
        seen = await asyncio.to_thread(connect, at.browser("anna"), link)
        assert "The notes is connected" in seen.text
        assert "connected" in (await anna.call_tool("notes_connect_account")).text
        assert (await anna.call_tool("notes_mine")).text == "notes of anna-elsewhere"


async def test_connect_page_shows_user_and_upstream(place: Any) -> None:
    async with place() as at:
        connector = at.standing.server.account_connector
        async with at.client("anna", elicitation_handler=None, elicitation_modes=("form",)) as anna:
            with pytest.raises(ToolError):
                await anna.call_tool("notes_connect_account")
        link = connector.connect_url(CredentialKey(f"{at.standing.issuer} anna", "notes"))
        browser = at.browser("anna")
        page = await asyncio.to_thread(until_question, browser, link)
        assert "anna" in page.text and "The notes (127.0.0.1)" in page.text
        assert page.headers["x-frame-options"] == "DENY"


async def test_forwarded_link_connects_no_account(place: Any) -> None:
    """Mallory sends Anna his own link, to get at her notes; and finds hers, to put his notes in their place."""
    async with place() as at:
        connector = at.standing.server.account_connector
        async with at.client("anna", elicitation_handler=None, elicitation_modes=("form",)) as anna:
            with pytest.raises(ToolError):
                await anna.call_tool("notes_connect_account")
        slots = {name: CredentialKey(f"{at.standing.issuer} {name}", "notes") for name in ("anna", "mallory")}
        for made_for, opened_by in (("mallory", "anna"), ("anna", "mallory")):
            seen = await asyncio.to_thread(connect, at.browser(opened_by), connector.connect_url(slots[made_for]))
            assert seen.status == 403 and "made for another user" in seen.text
        # Guessed, made up, of another upstream, or out of date.
        link = connector.connect_url(slots["anna"])
        for wrong in (link[:-6] + "AAAAAA", link.partition("?")[0], link.replace("to/notes", "to/other")):
            assert (await asyncio.to_thread(connect, at.browser("anna"), wrong)).status == 400
        for slot in slots.values():
            assert await connector.vault.database.read(partial(vault_store.find_token, slot=slot)) is None


async def test_consent_and_return_are_tied_to_the_browser(place: Any) -> None:
    """Mallory goes through his own account's login, and has Anna's browser open the last step: nothing is kept."""
    async with place() as at:
        connector = at.standing.server.account_connector
        async with at.client("anna", elicitation_handler=None, elicitation_modes=("form",)) as anna:
            with pytest.raises(ToolError):
                await anna.call_tool("notes_connect_account")
        mallory, victim = at.browser("mallory"), at.browser("anna")
        link = connector.connect_url(CredentialKey(f"{at.standing.issuer} mallory", "notes"))
        page = await asyncio.to_thread(until_question, mallory, link)
        going = await asyncio.to_thread(mallory.submit, page)
        back = await asyncio.to_thread(mallory.visit, going.location, f"{at.standing.issuer}/connect/return")
        assert (await asyncio.to_thread(victim.request, "GET", back)).status == 400
        # And the one who went there cannot use it twice.
        assert (await asyncio.to_thread(mallory.request, "GET", back)).status == 200
        assert (await asyncio.to_thread(mallory.request, "GET", back)).status == 400


def until_question(browser: oidc.Browser, link: str) -> oidc.PageResponse:
    seen = browser.request("GET", link)
    for _ in range(oidc.MOST_STEPS):
        if 'name="flow"' in seen.text:
            return seen
        location = seen.location
        seen = browser.request("GET", location) if location is not None else browser.submit(seen)
    raise AssertionError(seen.url)


async def test_token_is_renewed_ahead_once_for_all_processes(
    place: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with place(store=f"sqlite://{tmp_path}/store.db") as at, at.client("anna") as anna:
        await anna.call_tool("notes_connect_account")
        connector = at.standing.server.account_connector
        slot, account = CredentialKey(f"{at.standing.issuer} anna", "notes"), connector.accounts["notes"]
        first = await connector.vault.get_token(account, slot)
        other = vaults.TokenVault(connector.vault.base_url, f"sqlite://{tmp_path}/store.db", connector.vault._keyring)
        async with other.lifespan():
            await age(connector.vault, slot)
            response = await asyncio.gather(*(item.get_token(account, slot) for item in (connector.vault, other) * 4))
            assert (
                len({token.access_token for token in response}) == 1 and response[0].access_token != first.access_token
            )
        assert (await anna.call_tool("notes_mine")).text == "notes of anna-elsewhere"


async def test_credential_is_bound_to_the_url_of_its_upstream(place: Any) -> None:
    """An alias may be given to another server, which must not see what users stored for the first."""
    async with place() as at, at.client("anna") as anna:
        await anna.call_tool("notes_connect_account")
        vault, account = (connector := at.standing.server.account_connector).vault, connector.accounts["notes"]
        slot = CredentialKey(f"{at.standing.issuer} anna", "notes")
        held = await vault.get_token(account, slot)
        assert held.server == account.url
        others = ("https://evil.example/mcp", f"{account.url}/other", account.url.replace("127.0.0.1", "localhost"))
        # Those of an older version have no URL, and go by their resource.
        for server in (account.url, ""):
            await age(vault, slot, server=server, expires_at=held.expires_at)
            for url in others[: None if server else 1]:
                moved = msgspec.structs.replace(account, url=url)
                for refused in (None, held.access_token):
                    assert await vault.get_token(moved, slot, refused) is None
                assert not await vault.wait_until_connected(moved, slot, 0.0)
            assert (await vault.get_token(account, slot)).access_token == held.access_token
        assert (await anna.call_tool("notes_mine")).text == "notes of anna-elsewhere"


async def test_configured_client_is_bound_to_its_first_issuer() -> None:
    """An upstream that names another issuer later does not get the client's secret sent there."""
    client = ClientRegistration(client_id="desk", client_secret="s")
    account = UpstreamAccount(alias="notes", url="https://notes.example/mcp", client=client)
    vault = vaults.TokenVault("https://desk.example", "sqlite://", KeyRing([b"k" * 32]))
    async with vault.lifespan():
        await vault._store_client(account, "https://login.example", await vault._client_credentials(account))
        known = await vault._client_credentials(account)
        known.bind_issuer(account.url, "desk", "https://login.example")
        with pytest.raises(RegistrationError, match="is registered with"):
            known.bind_issuer(account.url, "desk", "https://evil.example")
        # The operator has configured another URL: nothing is known of that one.
        moved = msgspec.structs.replace(account, url="https://notes.example/new")
        (await vault._client_credentials(moved)).bind_issuer(moved.url, "desk", "https://other.example")


async def test_users_of_another_issuer_log_in_at_connect_pages(login_issuer: str, upstream_issuer: str) -> None:
    """Tokens come from the company's own issuer; `[auth.login]` says that this is where our pages send people too."""
    port, home = free_port(), f"http://127.0.0.1:{free_port()}"
    url = f"http://127.0.0.1:{port}/mcp"
    gateway = Gateway(name="desk", store="sqlite://", max_result_tokens=0)
    gateway.add_upstream("notes", url, auth={"type": "user_account", "scopes": ["notes"]})
    login = {"issuer": login_issuer, "client_id": "portico", "client_secret": "known to both"}
    message = {"auth": {"public_url": home, "issuers": [login_issuer], "required_scopes": ["desk"], "login": login}}
    access_settings.apply(gateway, access_settings.read(message))
    client = ClientRegistration(client_id="portico", client_secret="known to both", issuer=login_issuer)
    oauth = OAuth(f"{home}/mcp", AuthorizationCode(REDIRECT_URI, client=client), clock=time.time)
    browser = oidc.Browser("anna", accounts={upstream_issuer: "anna-elsewhere"})

    async def show(asked: ElicitParams) -> ElicitResult:
        await asyncio.to_thread(connect, browser, asked.url or "")
        return ElicitResult("accept")

    async with served(notes(upstream_issuer, url), port), served(gateway, int(home.rpartition(":")[2])):
        options: dict[str, Any] = {"elicitation_handler": show, "elicitation_modes": ("url",)}
        async with Client(f"{home}/mcp", auth=oauth, open_browser=visitor("anna"), **options) as anna:
            await anna.call_tool("notes_connect_account")
            assert (await anna.call_tool("notes_mine")).text == "notes of anna-elsewhere"


@pytest.mark.parametrize("engine", ["sqlite", "postgresql"])
async def test_link_of_one_process_can_be_opened_at_another(
    place: Any, stand: Stand, engine: str, tmp_path: Any, request: pytest.FixtureRequest, monkeypatch: Any
) -> None:
    monkeypatch.setenv("PORTICO_ENCRYPTION_KEYS", "a key that both of them have")
    store = f"sqlite://{tmp_path}/store.db" if engine == "sqlite" else request.getfixturevalue("postgres_url")
    async with place(store=store) as at:
        vault = at.standing.server.account_connector.vault
        slot = CredentialKey(f"{at.standing.issuer} anna", "notes")
        link = at.standing.server.account_connector.connect_url(slot)
        # Nothing was asked of this process yet, and what it keeps is seen by another.
        other = vaults.TokenVault(vault.base_url, store, vault._keyring)
        async with other.lifespan():
            waiting = asyncio.create_task(
                other.wait_until_connected(at.standing.server.connected_accounts["notes"], slot, TIMEOUT_SECONDS)
            )
            seen = await asyncio.to_thread(connect, at.browser("anna"), link)
            assert "is connected" in seen.text
            assert await waiting
            assert (await other.get_token(at.standing.server.connected_accounts["notes"], slot)) is not None


async def test_rejected_refresh_requests_a_new_connection(place: Any) -> None:
    async with place() as at, at.client("anna") as anna:
        await anna.call_tool("notes_connect_account")
        vault = at.standing.server.account_connector.vault
        slot = CredentialKey(f"{at.standing.issuer} anna", "notes")
        await age(vault, slot, refresh_token="revoked elsewhere")
        assert (await anna.call_tool("notes_mine")).text == "notes of anna-elsewhere"
        assert len(at.links) == 2


async def age(vault: Any, slot: CredentialKey, **changes: Any) -> None:
    """As if the token had run out."""
    row = await vault.database.read(partial(vault_store.find_token, slot=slot))
    token = msgspec.json.decode(vault._keyring.decrypt(row.body, row.seal_context), type=vaults.Token)
    old = msgspec.structs.replace(token, **{"expires_at": time.time() - 1, **changes})
    body = vault._keyring.encrypt(msgspec.json.encode(old), row.seal_context)
    assert await vault.database.write(partial(vault_store.replace_token, row=row, body=body, now=time.time()))
    vault._known.clear()


async def test_stored_token_cannot_be_moved_to_another_principal(place: Any, tmp_path: Any) -> None:
    """Who can write to the store cannot put one person's row in another's place."""
    async with place(store=f"sqlite://{tmp_path}/store.db") as at, at.client("anna") as anna:
        await anna.call_tool("notes_connect_account")
        vault = at.standing.server.account_connector.vault
        slot = CredentialKey(f"{at.standing.issuer} anna", "notes")
        row = await vault.database.read(partial(vault_store.find_token, slot=slot))
        token = msgspec.json.decode(vault._keyring.decrypt(row.body, row.seal_context), type=vaults.Token)
        assert token.access_token not in row.body
        stolen = msgspec.structs.replace(row, principal=f"{at.standing.issuer} mallory")
        await vault.database.write(partial(vault_store.put_token, row=stolen))
        account = at.standing.server.account_connector.accounts["notes"]
        assert await vault.get_token(account, CredentialKey(stolen.principal, "notes")) is None


async def test_user_disconnects_only_their_own_account(place: Any) -> None:
    async with place() as at, at.client("anna") as anna, at.client("ben") as ben:
        for client in (anna, ben):
            await client.call_tool("notes_connect_account")
        page = f"{at.standing.issuer}/connect"
        # Who has connected nothing sees nothing, and another's form does nothing in this browser.
        mallory = at.browser("mallory")
        assert "has no connected accounts" in (await asyncio.to_thread(connect, mallory, page)).text
        browser = at.browser("anna")
        message = await asyncio.to_thread(until_question, browser, page)
        assert "The notes" in message.text and message.headers["x-frame-options"] == "DENY"
        mallory.answer = browser.answer = "notes"
        assert (await asyncio.to_thread(mallory.submit, message)).status == 400
        done = await asyncio.to_thread(browser.submit, message)
        assert "The notes is disconnected" in done.text
        # A form is good once; Ben has lost nothing; Anna is asked again.
        assert (await asyncio.to_thread(browser.submit, message)).status == 400
        assert (await ben.call_tool("notes_mine")).text == "notes of ben-elsewhere"
        vault = at.standing.server.account_connector.vault
        assert await vault.connected_upstreams(f"{at.standing.issuer} anna") == []
        result = len(at.links)
        assert (await anna.call_tool("notes_mine")).text == "notes of anna-elsewhere"
        assert len(at.links) == result + 1


async def test_operator_revokes_all_credentials_of_a_user(place: Any, tmp_path: Any) -> None:
    store = str(tmp_path / "desk.db")
    async with place(store=store) as at, at.client("anna") as anna, at.client("ben") as ben:
        for client in (anna, ben):
            await client.call_tool("notes_connect_account")
        message = await asyncio.to_thread(
            portico_tokens, "revoke-user", "anna", "--upstream", "notes", "--store", store
        )
        assert message == "The account at notes is disconnected.\n"
        assert (await anna.call_tool("notes_mine")).text == "notes of anna-elsewhere"
        # A program of hers, which holds a token and one to renew it with.
        face = at.standing
        login = await face.login((await face.register())["client_id"], oidc.Browser("anna"))
        _, value = await login.redeem()
        ping = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'
        bearer = {"Authorization": f"Bearer {value['access_token']}", "Accept": "application/json, text/event-stream"}
        assert (await face.post("/mcp", body=ping, **bearer))[0] != 401
        name = f"{face.issuer}#anna"
        message = await asyncio.to_thread(portico_tokens, "revoke-user", name, "--store", store)
        assert message == f"2 programs can no longer act for {name}.\nThe account at notes is disconnected.\n"
        until = time.monotonic() + TIMEOUT_SECONDS
        while (await face.post("/mcp", body=ping, **bearer))[0] != 401:
            assert time.monotonic() < until
        assert (await login.refresh(value["refresh_token"]))[1]["error"] == "invalid_grant"
        assert (await ben.call_tool("notes_mine")).text == "notes of ben-elsewhere"
        with pytest.raises(AssertionError, match="has no grants or accounts of 'anna'"):
            await asyncio.to_thread(portico_tokens, "revoke-user", "anna", "--store", store)


def portico_tokens(*words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "portico", "tokens", *words], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
