"""Connecting: TLS, proxies from the environment, IPv4 and IPv6."""

from __future__ import annotations

import asyncio
import socket
import ssl
from base64 import b64encode
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

import pytest

from portico.protocol.errors import ConnectError, UsageError
from portico.transports.http_client import pool as pools
from portico.transports.http_client.pool import HttpConnectionPool, HttpUrl
from portico.transports.http_client.simple_request import http_request
from support.scripted import Peer, Request, Site, wait_until

Listen = Callable[..., Any]
TIMEOUT_SECONDS = 10.0


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "no_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture
async def pool_of() -> AsyncIterator[Callable[..., HttpConnectionPool]]:
    """Made when the environment is as it should be."""
    made: list[HttpConnectionPool] = []

    def make(*arguments: Any, **options: Any) -> HttpConnectionPool:
        made.append(HttpConnectionPool(*arguments, **options))
        return made[-1]

    yield make
    for pool in made:
        assert not pool._open, "a connection was not given back"
        await pool.close()


async def get(pool: HttpConnectionPool, url: str, **headers: str) -> bytes:
    place = HttpUrl(url)
    async with asyncio.timeout(TIMEOUT_SECONDS):
        answer = await pool.send("GET", place, headers.items())
        try:
            return await answer.read(1000)
        finally:
            pool.release(place, answer)


def remembering(seen: list[Request], status: int = 200) -> Callable[[Peer], Any]:
    async def script(peer: Peer) -> None:
        while True:
            seen.append(await peer.request())
            peer.answer(status, "ok")

    return script


# TLS


async def test_tls_with_a_certificate_that_is_known(
    listen: Listen, pool_of: Any, tls_server: ssl.SSLContext, tls_client: ssl.SSLContext
) -> None:
    seen: list[Request] = []
    site = await listen(remembering(seen), tls=tls_server)
    pool = pool_of(tls_client)
    for _ in range(2):
        assert await get(pool, f"https://localhost:{site.port}/x") == b"ok"
    assert await get(pool, f"https://127.0.0.1:{site.port}/x") == b"ok"
    # By another name it is another server.
    assert len(site.peers) == 2
    assert seen[0].headers["host"] == f"localhost:{site.port}"


async def test_untrusted_certificate_is_rejected(listen: Listen, pool_of: Any, tls_server: ssl.SSLContext) -> None:
    seen: list[Request] = []
    site = await listen(remembering(seen), tls=tls_server)
    with pytest.raises(ConnectError, match=rf"localhost:{site.port}: TLS: self.signed certificate"):
        await get(pool_of(), f"https://localhost:{site.port}/x")
    assert seen == []


async def test_certificate_for_another_name_is_rejected(
    listen: Listen, pool_of: Any, tls_server: ssl.SSLContext, tls_client: ssl.SSLContext
) -> None:
    seen: list[Request] = []
    site = await listen(remembering(seen), tls=tls_server)
    place = HttpUrl(f"https://elsewhere.test:{site.port}/x", "127.0.0.1")
    with pytest.raises(ConnectError, match="TLS: Hostname mismatch"):
        await pool_of(tls_client).send("GET", place, ())
    assert seen == []


async def test_plain_http_server_at_an_https_url_is_reported(
    listen: Listen, pool_of: Any, tls_client: ssl.SSLContext
) -> None:
    async def script(peer: Peer) -> None:
        await peer.reader.read(10)
        peer.send("HTTP/1.1 400 Bad Request\r\n\r\n")

    site = await listen(script)
    with pytest.raises(ConnectError, match=f"localhost:{site.port}: .*does not use TLS"):
        await get(pool_of(tls_client), f"https://localhost:{site.port}/x")


async def test_handshake_that_does_not_end_is_given_up(
    listen: Listen, pool_of: Any, tls_client: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pools, "CONNECT_TIMEOUT_SECONDS", 0.05)
    site = await listen(lambda peer: peer.gone())
    with pytest.raises(ConnectError, match=r"no response within 0\.05 s"):
        await get(pool_of(tls_client), f"https://localhost:{site.port}/x")
    await wait_until(lambda: site.open == 0)


# Addresses


async def test_ipv6(listen: Listen, pool_of: Any) -> None:
    try:
        with socket.socket(socket.AF_INET6) as sock:
            sock.bind(("::1", 0))
    except OSError:
        pytest.skip("this machine has no IPv6 loopback")
    seen: list[Request] = []
    site = await listen(remembering(seen), host="::1")
    assert await get(pool_of(), f"http://[::1]:{site.port}/x") == b"ok"
    assert seen[0].headers["host"] == f"[::1]:{site.port}"


async def test_connection_error_names_the_address(pool_of: Any) -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    with pytest.raises(ConnectError, match=rf"cannot connect to 127\.0\.0\.1:{port}: .*[Rr]efused|.*failed"):
        await get(pool_of(), f"http://127.0.0.1:{port}/x")


async def test_no_such_host_is_reported_with_its_name(pool_of: Any) -> None:
    with pytest.raises(ConnectError, match=r"cannot connect to no-such-host\.invalid"):
        await get(pool_of(), "http://no-such-host.invalid/x")


@pytest.mark.parametrize("host", ["a..b", f"{'a' * 64}.example"])
async def test_host_name_that_cannot_be_encoded_is_a_failed_connection(pool_of: Any, host: str) -> None:
    with pytest.raises(ConnectError, match="host name"):
        await get(pool_of(), f"http://{host}/")
    with pytest.raises(ConnectError, match="host not found"):
        await http_request("GET", f"https://{host}/", timeout=20, max_response_bytes=100, public_only=True)


async def test_resolved_host_is_cached(listen: Listen, pool_of: Any) -> None:
    seen: list[Request] = []
    site = await listen(remembering(seen))
    place = HttpUrl(f"http://no-such-host.invalid:{site.port}/x", "127.0.0.1")
    pool = pool_of()
    answer = await pool.send("GET", place, ())
    pool.release(place, answer)
    assert seen[0].headers["host"] == f"no-such-host.invalid:{site.port}"


async def test_name_and_a_password_in_a_url_are_not_part_of_the_request(listen: Listen, pool_of: Any) -> None:
    seen: list[Request] = []
    site = await listen(remembering(seen))
    place = HttpUrl(f"http://us%40er:pass%3Aword@127.0.0.1:{site.port}/x?q=1")
    pool = pool_of()
    answer = await pool.send("GET", place, place.basic_auth_headers("Authorization"))
    pool.release(place, answer)
    assert (seen[0].target, seen[0].headers["host"]) == ("/x?q=1", f"127.0.0.1:{site.port}")
    assert seen[0].headers["authorization"] == "Basic " + b64encode(b"us@er:pass:word").decode()


@pytest.mark.parametrize(
    "location, target",
    [
        ("/other", "/other"),
        ("other?x=1", "/a/other?x=1"),
        ("http://H:81/y", "/y"),
        ("", "/a/b"),
        ("http://h:82/y", None),
        ("https://h:81/y", None),
        ("http://i:81/y", None),
        ("//i:81/y", None),
        ("file:///etc/passwd", None),
        ("http://[::1", None),
        ("/a b", None),
        ("/\r\nX: y", None),
    ],
)
def test_only_same_origin_urls_share_credentials(location: str, target: str | None) -> None:
    there = HttpUrl("http://me:secret@h:81/a/b").resolve_same_origin(location)
    assert (there.path if there is not None else None) == target


def test_display_url_has_no_credentials() -> None:
    """It stands in errors and logs. Keys are in queries too."""
    assert HttpUrl("https://me:secret@h:81/a/b?key=secret#x").display_url == "https://h:81/a/b"


# Proxies


@pytest.mark.parametrize("name", ["HTTP_PROXY", "http_proxy"])
async def test_plain_http_is_asked_of_the_proxy(
    listen: Listen, pool_of: Any, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    seen: list[Request] = []
    proxy = await listen(remembering(seen))
    monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
    pool = pool_of()
    for _ in range(2):
        assert await get(pool, "http://server.test:81/x?y", X="1") == b"ok"
    assert seen[0].target == "http://server.test:81/x?y"
    assert seen[0].headers == {"host": "server.test:81", "x": "1"}
    assert len(proxy.peers) == 1


async def test_proxy_receives_our_credentials(listen: Listen, pool_of: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Request] = []
    proxy = await listen(remembering(seen))
    monkeypatch.setenv("HTTP_PROXY", f"http://me:p%20w@127.0.0.1:{proxy.port}")
    await get(pool_of(), "http://server.test/x")
    assert seen[0].headers["proxy-authorization"] == "Basic " + b64encode(b"me:p w").decode()


@pytest.mark.parametrize("url", ["127.0.0.1:{port}", "http://127.0.0.1:{port}/"])
async def test_proxy_may_be_named_without_a_scheme(
    listen: Listen, pool_of: Any, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    proxy = await listen(remembering([]))
    monkeypatch.setenv("HTTP_PROXY", url.format(port=proxy.port))
    assert await get(pool_of(), "http://server.test/x") == b"ok"


@pytest.mark.parametrize("exempt", ["server.test", "*", ".test", "other,server.test:{port}"])
async def test_no_proxy_hosts_bypass_the_proxy(
    listen: Listen, pool_of: Any, monkeypatch: pytest.MonkeyPatch, exempt: str
) -> None:
    site = await listen(remembering([]))
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("NO_PROXY", exempt.format(port=site.port))
    place = HttpUrl(f"http://server.test:{site.port}/x", "127.0.0.1")
    pool = pool_of()
    answer = await pool.send("GET", place, ())
    assert await answer.read(10) == b"ok"
    pool.release(place, answer)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "[::ffff:127.0.0.1]"])
async def test_this_machine_is_never_asked_of_a_proxy(
    listen: Listen, pool_of: Any, monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    site = await listen(remembering([]))
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    assert await get(pool_of(), f"http://{host}:{site.port}/x") == b"ok"


@pytest.mark.parametrize("host", ["127.9.9.9", "localhost.", "app.localhost", "[::1]"])
async def test_proxies_get_no_request_for_any_loopback_host(
    listen: Listen, pool_of: Any, monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    """Whether or not the request itself succeeds: not every machine resolves or routes these."""
    seen: list[Request] = []
    proxy = await listen(remembering(seen))
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{proxy.port}")
    with suppress(ConnectError):
        await get(pool_of(), f"http://{host}:1/x")
    assert not seen


def own_address() -> str | None:
    """Return an address of this machine that is not a loopback one. Nothing is sent: UDP only picks a route."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return None
        return str(probe.getsockname()[0])


@pytest.mark.parametrize("host", ["localhost", "app.localhost"])
async def test_localhost_that_resolves_to_another_address_gets_no_request(pool_of: Any, host: str) -> None:
    address = own_address()
    if address is None:
        pytest.skip("this machine has loopback addresses only")
    received: list[bytes] = []

    async def read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.append(await reader.read(100))
        writer.close()

    async with await asyncio.start_server(read, address, 0) as server, asyncio.timeout(TIMEOUT_SECONDS):
        port = server.sockets[0].getsockname()[1]
        place = HttpUrl(f"http://{host}:{port}/x", address)
        with pytest.raises(ConnectError, match="expected a loopback address"):
            await pool_of().send("GET", place, [("Authorization", "Bearer secret")])
        await wait_until(lambda: received)
    assert received == [b""]


async def test_pool_may_do_without_proxies(listen: Listen, pool_of: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    site = await listen(remembering([]))
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    pool = pool_of(use_proxies=False)
    place = HttpUrl(f"http://server.test:{site.port}/x", "127.0.0.1")
    answer = await pool.send("GET", place, ())
    pool.release(place, answer)
    assert answer.status == 200


async def test_unsupported_proxy_scheme_is_rejected(pool_of: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is meant for a tunnel of SOCKS is not said to it in the clear."""
    monkeypatch.setenv("HTTP_PROXY", "socks5://127.0.0.1:1080")
    with pytest.raises(UsageError, match="socks5"):
        await get(pool_of(), "http://server.test/x")


def tunnel(seen: list[Request], site: Site, answer: str = "HTTP/1.1 200 Connection established\r\n\r\n") -> Any:
    """A proxy that takes CONNECT and leads to the site, whatever was asked for."""

    async def script(peer: Peer) -> None:
        seen.append(await peer.request())
        peer.send(answer)
        await peer.drained()
        if " 2" not in answer[:14]:
            return
        reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
        await asyncio.gather(_pipe(peer.reader, writer), _pipe(reader, peer.writer))

    return script


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()


@pytest.mark.parametrize("status", ["200 Connection established", "299 Fine"])
async def test_https_goes_through_a_tunnel(
    listen: Listen,
    pool_of: Any,
    tls_server: ssl.SSLContext,
    tls_client: ssl.SSLContext,
    monkeypatch: pytest.MonkeyPatch,
    status: str,
) -> None:
    requests: list[Request] = []
    seen: list[Request] = []
    site = await listen(remembering(seen), tls=tls_server)
    proxy = await listen(tunnel(requests, site, f"HTTP/1.1 {status}\r\nX: y\r\n\r\n"))
    monkeypatch.setenv("HTTPS_PROXY", f"http://me:pw@127.0.0.1:{proxy.port}")
    pool = pool_of(tls_client)
    for _ in range(2):
        assert await get(pool, "https://server.test/x", Authorization="secret") == b"ok"
    [hello] = requests
    assert (hello.method, hello.target) == ("CONNECT", "server.test:443")
    assert hello.headers["proxy-authorization"] == "Basic " + b64encode(b"me:pw").decode()
    assert "authorization" not in hello.headers
    # The proxy's password is the proxy's.
    assert "proxy-authorization" not in seen[0].headers
    assert seen[0].target == "/x"


async def test_tunnel_to_another_server_fails_tls_verification(
    listen: Listen,
    pool_of: Any,
    tls_server: ssl.SSLContext,
    tls_client: ssl.SSLContext,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[Request] = []
    site = await listen(remembering(seen), tls=tls_server)
    proxy = await listen(tunnel([], site))
    monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{proxy.port}")
    with pytest.raises(ConnectError, match=r"elsewhere\.test: TLS: Hostname mismatch"):
        await get(pool_of(tls_client), "https://elsewhere.test/x")
    assert seen == []
    await wait_until(lambda: proxy.open == 0)


@pytest.mark.parametrize(
    "answer, complaint",
    [
        (
            "HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n",
            "the proxy responded with HTTP status 407",
        ),
        ("HTTP/1.1 502 Bad Gateway\r\nContent-Length: 2\r\n\r\nno", "the proxy responded with HTTP status 502"),
        ("SSH-2.0\r\n", "through the proxy: the response is not valid HTTP"),
        ("", "through the proxy: the server closed the connection"),
    ],
)
async def test_proxy_that_rejects_is_reported_to(
    listen: Listen, pool_of: Any, monkeypatch: pytest.MonkeyPatch, answer: str, complaint: str
) -> None:
    proxy = await listen(tunnel([], None, answer))  # type: ignore[arg-type]
    monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{proxy.port}")
    with pytest.raises(ConnectError, match=rf"cannot connect to server\.test.*{complaint}"):
        await get(pool_of(), "https://server.test/x")
    await wait_until(lambda: proxy.open == 0)


async def test_cancelled_tunnel_leaves_no_connection(
    listen: Listen,
    pool_of: Any,
    tls_server: ssl.SSLContext,
    tls_client: ssl.SSLContext,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    site = await listen(remembering([]), tls=tls_server)
    proxy = await listen(tunnel([], site))
    monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{proxy.port}")
    for turns in range(0, 60, 3):
        pool = pool_of(tls_client)
        task = asyncio.ensure_future(get(pool, "https://server.test/x"))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task}, timeout=TIMEOUT_SECONDS)
        await pool.close()
        await wait_until(lambda: proxy.open == 0)


# Limits


async def test_requests_wait_for_a_connection(listen: Listen, pool_of: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "MAX_CONNECTIONS", 2)
    open_now, most = 0, 0
    go_on = asyncio.Event()

    async def script(peer: Peer) -> None:
        nonlocal open_now, most
        open_now += 1
        most = max(most, open_now)
        try:
            while True:
                await peer.request()
                await go_on.wait()
                peer.answer(200, "ok")
        finally:
            open_now -= 1

    site = await listen(script)
    pool = pool_of()
    gets = [asyncio.create_task(get(pool, f"http://127.0.0.1:{site.port}/x")) for _ in range(10)]
    await wait_until(lambda: len(pool._waiters) == 8)
    # A request that gives up does not take the place of another.
    gets[4].cancel()
    go_on.set()
    results = await asyncio.gather(*gets, return_exceptions=True)
    assert isinstance(results.pop(4), asyncio.CancelledError) and results == [b"ok"] * 9
    assert most == 2 and not pool._connecting


async def test_waiting_requests_end_with_the_pool(
    listen: Listen, pool_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pools, "MAX_CONNECTIONS", 0)
    pool = pool_of()
    waiting = asyncio.create_task(get(pool, "http://127.0.0.1:9/x"))
    await wait_until(lambda: len(pool._waiters) == 1)
    await pool.close()
    with pytest.raises(ConnectionError):
        await waiting
