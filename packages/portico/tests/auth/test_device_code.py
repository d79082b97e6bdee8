"""The device authorization grant of the client, with a scripted authorization server."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from portico.auth import device_code
from portico.auth.client_registration import DEVICE_CODE, ClientRegistration
from portico.auth.device_code import DeviceCode, UserLogin
from portico.auth.errors import AuthorizationError, DiscoveryError, GrantDenied, UnsafeUrl
from portico.auth.flow import BrowserRequest, DeviceCodeRequest, FetchResponse, WaitRequest, drive
from portico.auth.grants import TokenRequest
from portico.auth.metadata import AuthorizationServerMetadata, DiscoveredAuthorizationServer
from portico.auth.token_storage import TokenStorage
from portico.auth.tokens import Token
from portico.cli import call, login
from portico.transports.http_client.oauth import OAuthTransport
from support import logins, oidc

ISSUER = "https://login.example"
RESOURCE = "https://notes.example/mcp"
CODES = {
    "device_code": "d-1",
    "user_code": "WDJB-MJHT",
    "verification_uri": f"{ISSUER}/device",
    "expires_in": 60,
    "interval": 5,
}
TOKEN = {"access_token": "a-1", "token_type": "Bearer", "refresh_token": "r-1", "expires_in": 60}
PENDING, SLOW_DOWN = {"error": "authorization_pending"}, {"error": "slow_down"}


class BrowserOpened(Exception):
    """The flow asked for a browser."""


class Server:
    """Answers the requests of a flow, and records them; time passes only while the flow waits."""

    def __init__(self, polls: list[Any], codes: Any = CODES, **metadata: Any) -> None:
        self.polls = polls
        self.codes = codes
        self.now = 0.0
        self.waits: list[float] = []
        self.prompts: list[DeviceCodeRequest] = []
        self.forms: list[tuple[str, str]] = []
        options = {"device_authorization_endpoint": f"{ISSUER}/device_authorization", **metadata}
        self.metadata = AuthorizationServerMetadata(
            issuer=ISSUER, token_endpoint=f"{ISSUER}/token", registration_endpoint=f"{ISSUER}/register", **options
        )

    def token_request(self) -> TokenRequest:
        return TokenRequest(
            server=RESOURCE,
            authorization_server=DiscoveredAuthorizationServer(RESOURCE, self.metadata),
            scopes=("read",),
            credentials=TokenStorage(),
            clock=lambda: self.now,
        )

    def login(self, grant: Any) -> Token:
        flow, reply = grant.token(self.token_request()), None
        while True:
            try:
                response = flow.send(reply)
            except StopIteration as done:
                return done.value  # type: ignore[no-any-return]
            reply = self.perform(response)

    def perform(self, asked: Any) -> FetchResponse | None:
        if isinstance(asked, WaitRequest):
            self.waits.append(asked.seconds)
            self.now += asked.seconds
            return None
        if isinstance(asked, DeviceCodeRequest):
            self.prompts.append(asked)
            return None
        if isinstance(asked, BrowserRequest):
            raise BrowserOpened
        path = asked.url.removeprefix(ISSUER)
        self.forms.append((path, asked.body.decode()))
        if path == "/register":
            return FetchResponse(201, (), msgspec.json.encode({"client_id": "c-1"}))
        body = self.codes if path == "/device_authorization" else self.polls.pop(0)
        if isinstance(body, int):
            return FetchResponse(body)
        return FetchResponse(400 if "error" in body else 200, (), msgspec.json.encode(body))


GRANT = DeviceCode(client=ClientRegistration(client_id="c"))


def test_client_polls_at_the_interval_until_the_user_has_approved() -> None:
    server = Server([PENDING, SLOW_DOWN, PENDING, TOKEN])
    token = server.login(GRANT)
    assert (token.access_token, token.refresh_token, token.scope) == ("a-1", "r-1", "read")
    assert server.waits == [5.0, 5.0, 10.0, 10.0]
    assert server.prompts == [DeviceCodeRequest(f"{ISSUER}/device", "WDJB-MJHT", None, 60.0)]
    path, form = server.forms[0]
    assert path == "/device_authorization" and "client_id=c" in form and "scope=read" in form and "resource=" in form
    assert all("device_code=d-1" in form and "scope=" not in form for _, form in server.forms[1:])


def test_failing_server_is_polled_less_often() -> None:
    server = Server([503, 500, TOKEN], {**CODES, "expires_in": 600})
    server.login(GRANT)
    assert server.waits == [5.0, 10.0, 20.0]


async def test_polling_continues_after_the_network_failed() -> None:
    server = Server([PENDING, TOKEN])
    failures = [AuthorizationError("https://login.example/token could not be fetched: no route to host")] * 2

    async def perform(asked: Any) -> FetchResponse | None:
        if failures and getattr(asked, "url", "").endswith("/token"):
            raise failures.pop()
        return server.perform(asked)

    token = await drive(GRANT.token(server.token_request()), perform)
    assert token.access_token == "a-1"
    assert server.waits == [5.0, 10.0, 20.0, 20.0]


@pytest.mark.parametrize("failure", [AuthorizationError("no route to host"), UnsafeUrl("a private address")])
async def test_failed_request_for_codes_ends_the_login(failure: AuthorizationError) -> None:
    async def perform(asked: Any) -> FetchResponse | None:
        raise failure

    with pytest.raises(AuthorizationError) as raised:
        await drive(GRANT.token(Server([]).token_request()), perform)
    assert raised.value is failure


@pytest.mark.parametrize("error", ["access_denied", "expired_token", "invalid_grant", "unauthorized_client"])
def test_other_errors_end_the_login(error: str) -> None:
    with pytest.raises(GrantDenied) as denied:
        Server([PENDING, {"error": error}]).login(GRANT)
    assert denied.value.error == error


def test_login_ends_when_the_code_has_expired() -> None:
    server = Server([PENDING] * 20)
    with pytest.raises(AuthorizationError, match="code has expired"):
        server.login(GRANT)
    assert server.now <= 65


@pytest.mark.parametrize("change", [-1e9, 1e9])
def test_change_of_the_clock_neither_ends_nor_prolongs_the_login(change: float) -> None:
    server = Server([PENDING, TOKEN])
    perform = server.perform

    def change_clock(asked: Any) -> FetchResponse | None:
        if isinstance(asked, DeviceCodeRequest):
            server.now += change
        return perform(asked)

    server.perform = change_clock  # type: ignore[method-assign]
    assert server.login(GRANT).access_token == "a-1"
    server.polls = [PENDING] * 20
    with pytest.raises(AuthorizationError, match="code has expired"):
        server.login(GRANT)


@pytest.mark.parametrize(
    ("interval", "wait"), [(None, 5.0), (0, 5.0), (-1, 5.0), (0.001, 1.0), (1e9, 60.0), ("5", 5.0), (True, 5.0)]
)
def test_interval_of_the_server_is_bounded(interval: Any, wait: float) -> None:
    server = Server([TOKEN], {**CODES, "interval": interval, "expires_in": 1e300})
    server.login(GRANT)
    assert server.waits == [wait] and server.prompts[0].expires_in == 1800.0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"device_code": ""}, "no device_code"),
        ({"user_code": 7}, "no user_code"),
        ({"user_code": "AB\x1b[2J"}, "cannot be displayed"),
        ({"user_code": "A" * 65}, "cannot be displayed"),
        ({"verification_uri": "https://x.example/\n"}, "cannot be displayed"),
        ({"verification_uri_complete": "https://x.example/\u202e"}, "cannot be displayed"),
    ],
)
def test_unusable_response_is_rejected(change: dict[str, Any], message: str) -> None:
    with pytest.raises(AuthorizationError, match=message):
        Server([], {**CODES, **change}).login(GRANT)


def test_verification_page_must_be_encrypted() -> None:
    with pytest.raises(UnsafeUrl):
        Server([], {**CODES, "verification_uri": "http://x.example/device"}).login(GRANT)


def test_server_without_the_grant_is_named() -> None:
    with pytest.raises(DiscoveryError, match="does not support the device authorization grant"):
        Server([], device_authorization_endpoint=None).login(GRANT)


def test_client_registers_for_the_device_grant() -> None:
    server = Server([TOKEN])
    server.login(DeviceCode())
    registration = msgspec.json.decode(server.forms[0][1])
    assert registration["grant_types"] == [DEVICE_CODE, "refresh_token"] and registration["redirect_uris"] == []


def test_one_registration_serves_browser_and_device() -> None:
    server = Server([TOKEN])
    server.login(UserLogin("http://127.0.0.1:1/callback", lambda: False))
    registration = msgspec.json.decode(server.forms[0][1])
    assert registration["grant_types"] == ["authorization_code", DEVICE_CODE, "refresh_token"]
    assert len(server.prompts) == 1


@pytest.mark.parametrize(("has_browser", "endpoint"), [(True, f"{ISSUER}/d"), (False, None)])
def test_browser_is_used_where_there_is_one_or_the_server_has_no_device_grant(
    has_browser: bool, endpoint: str | None
) -> None:
    server = Server(
        [],
        device_authorization_endpoint=endpoint,
        authorization_endpoint=f"{ISSUER}/authorize",
        code_challenge_methods_supported=["S256"],
    )
    with pytest.raises(BrowserOpened):
        server.login(UserLogin("http://127.0.0.1:1/callback", lambda: has_browser))
    assert not server.prompts


def approve(url: str) -> None:
    """Open the page of the provider, confirm the code and log in, as the user would on another device."""
    browser = oidc.Browser()
    seen = browser.request("GET", url)
    while seen.location is not None or "<form" in seen.text:
        assert len(browser.seen) < 20, f"the login does not end: {seen.url}"
        seen = browser.request("GET", seen.location) if seen.location is not None else browser.submit(seen)


async def test_login_at_a_certified_provider(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`portico login` without a browser, then a call that uses the stored token."""
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER", "PORTICO_CLIENT_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PORTICO_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(device_code, "_DEFAULT_INTERVAL_SECONDS", 0.05)
    monkeypatch.setattr(device_code, "_MIN_INTERVAL_SECONDS", 0.05)
    loop = asyncio.get_running_loop()
    approvals: list[asyncio.Future[None]] = []

    def show(prompt: DeviceCodeRequest) -> None:
        approvals.append(loop.run_in_executor(None, approve, prompt.verification_uri_complete))

    monkeypatch.setattr(OAuthTransport.__init__, "__defaults__", (show,))
    with logins.provider(tmp_path) as issuer:
        async with logins.served(logins.notes(issuer)) as url:
            async with asyncio.timeout(60):
                assert await asyncio.to_thread(login.run, [url, "--scope", "notes:read"]) == 0
                await approvals[0]
                assert await asyncio.to_thread(call.run, [url, "who", "--format", "json"]) == 0
            output = capsys.readouterr().out
            assert "Logged in" in output and "anna notes:read" in output
            assert login.run_logout([url]) == 0 and "Deleted the token" in capsys.readouterr().out
            assert login.run_logout([url]) == 0 and "No token is stored" in capsys.readouterr().out
