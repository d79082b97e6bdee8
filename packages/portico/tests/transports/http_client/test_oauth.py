"""OAuth with real sockets: the driver, the redirect page, and redirects."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest

from portico import Client
from portico.auth.authorization_code import AuthorizationCode
from portico.auth.errors import AuthorizationError, DiscoveryError, InvalidRedirect, TokenRejected, UnsafeUrl
from portico.auth.oauth import OAuth
from portico.protocol.errors import RequestTimeout
from portico.transports.http_client import browser_login as browsing, oauth as driving, oauth_fetcher
from portico.transports.http_client.browser_login import BrowserLogin, headless_login
from portico.transports.http_client.pool import HttpConnectionPool
from support.scripted import Endpoint, Peer, Request, Site, wait_until

Serve = Callable[..., Any]
Listen = Callable[..., Any]
TIMEOUT_SECONDS = 10.0


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


class Issuer:
    """An authorization server that asks nobody: whoever comes is sent back with a code."""

    def __init__(self) -> None:
        self.site = Site(self._converse)
        self.seen: list[Request] = []
        self.codes = 0
        self.tokens: list[str] = []
        self.rules: dict[str, Callable[[Peer, Request], Any]] = {}

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.site.port}"

    def asked(self, path: str) -> list[Request]:
        return [item for item in self.seen if urlsplit(item.target).path == path]

    async def _converse(self, peer: Peer) -> None:
        while True:
            request = await peer.request()
            self.seen.append(request)
            path = urlsplit(request.target).path
            response = self.rules.get(path, self._properly)(peer, request)
            if asyncio.iscoroutine(response):
                await response

    def _properly(self, peer: Peer, request: Request) -> None:
        path = urlsplit(request.target).path
        if path == "/.well-known/oauth-authorization-server":
            peer.json(self.metadata())
        elif path == "/register":
            peer.json({"client_id": "registered", **request.json}, 201)
        elif path == "/authorize":
            result = parse_qs(urlsplit(request.target).query)
            self.codes += 1
            back = urlencode({"code": f"code-{self.codes}", "state": result["state"][0], "iss": self.origin})
            peer.answer(302, location=f"{result['redirect_uri'][0]}?{back}")
        elif path == "/token":
            self.tokens.append(f"token-{len(self.tokens) + 1}")
            peer.json({"access_token": self.tokens[-1], "token_type": "Bearer", "expires_in": 3600})
        else:
            peer.answer(404)

    def metadata(self) -> dict[str, Any]:
        return {
            "issuer": self.origin,
            "authorization_endpoint": f"{self.origin}/authorize",
            "token_endpoint": f"{self.origin}/token",
            "registration_endpoint": f"{self.origin}/register",
            "code_challenge_methods_supported": ["S256"],
            "response_types_supported": ["code"],
            "authorization_response_iss_parameter_supported": True,
        }


class Guarded(Endpoint):
    """An MCP server that lets nobody in without a token of its issuer."""

    def __init__(self, issuer: Issuer) -> None:
        super().__init__()
        self.issuer = issuer
        self.refused: set[str] = set()

    async def _converse(self, peer: Peer) -> None:
        while True:
            request = await peer.request()
            path = urlsplit(request.target).path
            if path.startswith("/.well-known/oauth-protected-resource"):
                peer.json({"resource": self.url, "authorization_servers": [self.issuer.origin]})
                continue
            self.seen.append(request)
            token = request.headers.get("authorization", "").removeprefix("Bearer ")
            if token not in self.issuer.tokens or token in self.refused:
                where = f"http://127.0.0.1:{self.site.port}/.well-known/oauth-protected-resource/mcp"
                peer.answer(401, "{}", WWW_Authenticate=f'Bearer resource_metadata="{where}"')
                continue
            response = self.rules.get(request.says, self._properly)(peer, request)
            if asyncio.iscoroutine(response):
                await response


@pytest.fixture
async def issuer(listen: Listen) -> Any:
    issuer = Issuer()
    await issuer.site.start()
    yield issuer
    await issuer.site.stop()
    assert not issuer.site.failures, issuer.site.failures


def oauth_for(url: str, port: int | None = None) -> OAuth:
    redirect = f"http://127.0.0.1:{port or free_port()}/callback"
    return OAuth(url, AuthorizationCode(redirect), clock=lambda: 1_000_000.0)


# The driver


async def test_server_that_requires_a_token_receives_it(serve: Serve, issuer: Issuer) -> None:
    there = await serve(Guarded(issuer))
    async with (
        asyncio.timeout(TIMEOUT_SECONDS),
        Client(there.url, auth=oauth_for(there.url), open_browser=headless_login) as client,
    ):
        await asyncio.gather(*(client.list_tools() for _ in range(10)))
    assert issuer.tokens == ["token-1"]
    assert "authorization" not in there.seen[0].headers
    assert all(item.headers["authorization"] == "Bearer token-1" for item in there.seen[1:])
    # Each of them says for which server it is.
    assert parse_qs(urlsplit(issuer.asked("/authorize")[0].target).query)["resource"] == [there.url]
    assert parse_qs(issuer.asked("/token")[0].body.decode())["resource"] == [there.url]
    # And nobody is left on the line, neither there nor here.
    await wait_until(lambda: issuer.site.open == there.site.open == 0)


async def test_client_can_be_reopened_with_stored_tokens(serve: Serve, issuer: Issuer) -> None:
    there = await serve(Guarded(issuer))
    client = Client(there.url, auth=oauth_for(there.url), open_browser=headless_login)
    for _ in range(3):
        async with asyncio.timeout(TIMEOUT_SECONDS), client:
            await client.list_tools()
    assert issuer.tokens == ["token-1"]


@pytest.mark.requirement("caching.private")
async def test_private_cache_is_dropped_after_a_new_login(serve: Serve, issuer: Issuer) -> None:
    """2026-07-28, server/utilities/caching: private answers belong to who asked."""
    there = await serve(Guarded(issuer))
    there.rules["tools/list"] = lambda peer, request: peer.result(
        request, {"resultType": "complete", "tools": [], "ttlMs": 60_000, "cacheScope": "private"}
    )
    async with (
        asyncio.timeout(TIMEOUT_SECONDS),
        Client(there.url, auth=oauth_for(there.url), open_browser=headless_login) as client,
    ):
        for _ in range(3):
            await client.list_tools()
        lists = [item for item in there.requests_for("tools/list") if "authorization" in item.headers]
        assert len(lists) == 1
        # Somebody else logs in: the old token is refused.
        there.refused.add("token-1")
        await client.ping()
        await client.list_tools()
    assert [item.headers["authorization"] for item in there.requests_for("tools/list")] == [
        "Bearer token-1",
        "Bearer token-2",
    ]


async def test_login_has_no_short_timeout(serve: Serve, issuer: Issuer) -> None:
    """The time that a request may take is for the server; also whoever waits for the same login has it."""
    there = await serve(Guarded(issuer))
    slow = 1.2

    async def person(url: str, redirect_uri: str) -> str:
        await asyncio.sleep(slow)
        return await headless_login(url, redirect_uri)

    client = Client(there.url, auth=oauth_for(there.url), open_browser=person, timeout=1.0, max_retries=0)
    async with asyncio.timeout(TIMEOUT_SECONDS), client:
        there.refused.add("token-1")
        await asyncio.gather(*(client.list_tools() for _ in range(3)))
        # And afterwards time runs again.
        there.rules["prompts/list"] = lambda peer, request: peer.gone()
        with pytest.raises(RequestTimeout):
            await client.list_prompts()
    assert issuer.tokens == ["token-1", "token-2"]


async def test_page_of_any_length_may_come_with_a_rejection(serve: Serve, issuer: Issuer) -> None:
    there = await serve()
    there.rules["server/discover"] = lambda peer, request: peer.answer(403, "x" * 2_000_000, "text/html")
    with pytest.raises(AuthorizationError, match="forbids"):
        async with (
            asyncio.timeout(TIMEOUT_SECONDS),
            Client(there.url, auth=oauth_for(there.url), open_browser=headless_login),
        ):
            pass


async def test_server_that_rejects_every_token_is_left(serve: Serve, issuer: Issuer) -> None:
    there = await serve(Guarded(issuer))
    there.refused |= {f"token-{number}" for number in range(100)}
    with pytest.raises(TokenRejected):
        async with (
            asyncio.timeout(TIMEOUT_SECONDS),
            Client(there.url, auth=oauth_for(there.url), open_browser=headless_login),
        ):
            pass
    assert len(issuer.tokens) < 10


@pytest.mark.parametrize(
    "path", ["/.well-known/oauth-authorization-server", "/register", "/token"], ids=lambda path: path.rpartition("/")[2]
)
@pytest.mark.parametrize("habit", ["endless", "redirects away", "slams the door", "silent", "is no JSON"])
async def test_issuer_that_misbehaves_is_an_error_and_no_harm(
    serve: Serve, issuer: Issuer, path: str, habit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oauth_fetcher, "FETCH_TIMEOUT_SECONDS", 0.3)

    async def rule(peer: Peer, request: Request) -> None:
        if habit == "endless":
            peer.send("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n")
            while peer.is_there:
                peer.send(b"x" * 65536)
                await peer.drained()
        elif habit == "redirects away":
            peer.answer(307, location="http://127.0.0.1:1/elsewhere")
        elif habit == "slams the door":
            peer.abort()
        elif habit == "silent":
            await peer.gone()
        else:
            peer.answer(200, "<html>")

    issuer.rules[path] = rule
    there = await serve(Guarded(issuer))
    with pytest.raises(AuthorizationError):
        async with (
            asyncio.timeout(TIMEOUT_SECONDS),
            Client(there.url, auth=oauth_for(there.url), open_browser=headless_login),
        ):
            pass
    assert all("authorization" not in item.headers for item in there.seen)


@pytest.mark.requirement("auth.no-private-networks")
@pytest.mark.parametrize("named", [["93.184.216.34"], ["93.184.216.34", "127.0.0.1"], ["127.0.0.1"]])
async def test_metadata_on_a_network_that_only_we_can_reach_is_not_fetched(
    serve: Serve, issuer: Issuer, monkeypatch: pytest.MonkeyPatch, named: list[str]
) -> None:
    """A server out there may not send us to our own machines, whatever its name server says when it is asked again."""
    there = await serve(Guarded(issuer))
    addresses, connect = oauth_fetcher.resolve_addresses, HttpConnectionPool._connect

    async def told(url: str) -> list[str]:
        return named if url.startswith(there.url) and "well-known" not in url else await addresses(url)

    async def abroad(*arguments: Any) -> Any:
        connection = await connect(*arguments)
        connection.peer = "93.184.216.34"
        return connection

    monkeypatch.setattr(driving, "resolve_addresses", told)
    monkeypatch.setattr(oauth_fetcher, "resolve_addresses", told)
    monkeypatch.setattr(HttpConnectionPool, "_connect", abroad)
    with pytest.raises((UnsafeUrl, DiscoveryError)):
        async with (
            asyncio.timeout(TIMEOUT_SECONDS),
            Client(there.url, auth=oauth_for(there.url), open_browser=headless_login),
        ):
            pass
    assert issuer.seen == []


async def test_host_is_resolved_once_and_the_checked_address_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or else it could be one address for the judge, and another for the connection."""
    looked_up: list[str] = []
    loop = asyncio.get_running_loop()
    lookup = loop.getaddrinfo

    async def watched(host: Any, *arguments: Any, **options: Any) -> Any:
        looked_up.append(host)
        return await lookup(host, *arguments, **options)

    monkeypatch.setattr(loop, "getaddrinfo", watched)
    driver = driving.OAuthTransport(oauth_for("http://localhost:1/mcp"), headless_login)
    assert await driver._fetcher._resolve_allowed_address("http://localhost:1/x") in ("127.0.0.1", "::1")
    assert set(looked_up) == {"localhost"}


# The page a browser comes back to


async def page(port: int, target: str, method: str = "GET") -> tuple[int, str]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"{method} {target} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
    async with asyncio.timeout(TIMEOUT_SECONDS):
        message = (await reader.read()).decode()
    writer.close()
    return int(message.split(" ")[1]), message


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a browser was asked to open."""
    urls: list[str] = []
    monkeypatch.setattr(browsing.webbrowser, "open", lambda url: bool(urls.append(url)) or True)
    return urls


async def test_browser_comes_back(opened: list[str]) -> None:
    port = free_port()
    notifications: list[str] = []
    redirect = f"http://127.0.0.1:{port}/callback"
    login = asyncio.ensure_future(BrowserLogin(notifications.append)("https://issuer.test/authorize?x=1", redirect))
    await wait_until(lambda: opened)
    assert opened == notifications == ["https://issuer.test/authorize?x=1"]
    # Others knock here too, and are not taken for it.
    for target, method in [
        ("/favicon.ico", "GET"),
        ("/callback", "GET"),
        ("/other?code=1&state=2", "GET"),
        ("/callback?code=1&state=2", "POST"),
    ]:
        assert (await page(port, target, method))[0] == 404
    assert not login.done()
    status, message = await page(port, "/callback?code=a%26b&state=s")
    assert (status, "You can close this window" in message) == (200, True)
    assert "no-store" in message
    assert await asyncio.wait_for(login, TIMEOUT_SECONDS) == f"{redirect}?code=a%26b&state=s"
    with pytest.raises(OSError):
        await page(port, "/callback?code=1")


async def test_rejected_browser_is_reported_so(opened: list[str]) -> None:
    port = free_port()
    redirect = f"http://127.0.0.1:{port}/callback"
    login = asyncio.ensure_future(BrowserLogin(lambda url: None)("https://issuer.test/", redirect))
    await wait_until(lambda: opened)
    _, message = await page(port, "/callback?error=access_denied&state=<script>")
    assert "Access denied" in message
    assert "<script>" not in message
    assert "error=access_denied" in await asyncio.wait_for(login, TIMEOUT_SECONDS)


async def test_idle_connections_do_not_block_the_login_callback(opened: list[str]) -> None:
    port = free_port()
    login = asyncio.ensure_future(
        BrowserLogin(lambda url: None)("https://issuer.test/", f"http://127.0.0.1:{port}/callback")
    )
    await wait_until(lambda: opened)
    idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(5)]
    idle[0][1].write(b"x" * 100_000)
    idle[1][1].write(b"GET /callback?code=")
    idle[2][1].write(b"\x00\xff\r\n\r\n")
    await page(port, "/callback?code=1&state=2")
    assert await asyncio.wait_for(login, TIMEOUT_SECONDS)
    for _, writer in idle:
        writer.close()


async def test_browser_login_times_out(opened: list[str]) -> None:
    redirect = f"http://127.0.0.1:{free_port()}/callback"
    with pytest.raises(AuthorizationError, match=r"not completed within 0\.05 s"):
        await BrowserLogin(lambda url: None, timeout=0.05)("https://issuer.test/", redirect)


async def test_port_in_use_is_reported(opened: list[str]) -> None:
    with socket.socket() as item:
        item.bind(("127.0.0.1", 0))
        item.listen()
        redirect = f"http://127.0.0.1:{item.getsockname()[1]}/callback"
        with pytest.raises(AuthorizationError, match="cannot listen on"):
            await BrowserLogin(lambda url: None)("https://issuer.test/", redirect)
    assert opened == []


@pytest.mark.parametrize("habit", ["a page", "elsewhere"])
async def test_without_a_person_only_a_redirect_will_do(issuer: Issuer, habit: str) -> None:
    issuer.rules["/authorize"] = lambda peer, request: (
        peer.answer(200, "<form>", "text/html")
        if habit == "a page"
        else peer.answer(302, location="http://elsewhere.test/?code=1")
    )
    with pytest.raises(InvalidRedirect):
        await headless_login(f"{issuer.origin}/authorize?state=1", "http://127.0.0.1:1/callback")


def test_metadata_is_json() -> None:
    """The scripted issuer is what a real one is."""
    assert json.loads(json.dumps(Issuer().metadata()))["code_challenge_methods_supported"] == ["S256"]
