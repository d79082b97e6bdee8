"""Validation of Host and Origin, and CORS."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from portico import Server
from portico.protocol.errors import UsageError
from portico.transports.http_server.application import is_local_peer
from portico.transports.http_server.headers import Headers, HostPolicy, TrustedProxies

Serve = Callable[..., Any]

OURS = [
    "localhost",
    "localhost:8080",
    "LOCALHOST",
    "LocalHost:80",
    "localhost.",
    "localhost.:8080",
    "localhost:",
    "127.0.0.1",
    "127.0.0.1:1",
    "127.0.0.1:65535",
    "[::1]",
    "[::1]:8080",
]
NOT_OURS = [
    "",
    " ",
    ".",
    ":8080",
    "evil.example",
    "evil.example:8080",
    "localhost.evil.example",
    "localhost.evil.example:8080",
    "127.0.0.1.evil.example",
    "127.0.0.1.evil",
    "127.0.0.1evil.example",
    "evil-localhost",
    "notlocalhost",
    "xlocalhost:80",
    "localhostx",
    "localhost@evil.example",
    "localhost:80@evil.example",
    "evil.example@localhost",
    "user:secret@localhost",
    "localhost:x",
    "localhost:80x",
    "localhost:80:80",
    "localhost:99999",
    "localhost:-1",
    "localhost:+80",
    "localhost:8_0",
    "localhost,evil.example",
    "localhost, evil.example",
    "localhost evil.example",
    "localhost/evil",
    "localhost?evil",
    "localhost#evil",
    "localhost\\evil.example",
    "localhost%2eevil.example",
    "local%68ost",
    "localhost;evil",
    "http://localhost",
    "//localhost",
    "::1",
    "::1:8080",
    "[::1",
    "::1]",
    "[::1]evil.example",
    "[::1].evil.example",
    "[::1]:80.evil.example",
    "[::1]x:80",
    "evil.example[::1]",
    "evil.example[::1]:80",
    "[::1%25lo]",
    "[localhost]",
    "[evil.example]",
    "[::2]",
    "[]",
    "0.0.0.0",
    "[::]",
    "127.1",
    "2130706433",
    "0x7f000001",
    "0177.0.0.1",
    "127.0.0.2",
    "\xef\xbd\x8c\xef\xbd\x8f\xef\xbd\x83\xef\xbd\x81\xef\xbd\x8chost",
    "loc\xadalhost",
]


@pytest.mark.requirement("http.host")
@pytest.mark.parametrize("host", OURS)
async def test_names_of_this_machine_are_accepted(serve: Serve, server: Server, host: str) -> None:
    """A localhost server accepts a localhost Host, with any port."""
    site = await serve(server)
    assert (await site.call("echo", {"text": "x"}, headers={"host": host})).status == 200


@pytest.mark.requirement("http.host")
@pytest.mark.parametrize("host", NOT_OURS)
async def test_unknown_host_names_are_rejected(serve: Serve, server: Server, host: str) -> None:
    """The same: a foreign Host is refused, parsed and never compared by its beginning."""
    site = await serve(server)
    assert (await site.call("echo", {"text": "x"}, headers={"host": host})).status in (400, 403)


@pytest.mark.parametrize("host", ["localhost..", "127.0.0.1.."])
async def test_name_ends_with_one_dot_at_most(serve: Serve, server: Server, host: str) -> None:
    """RFC 1035 3.1: two dots would have an empty label between them."""
    site = await serve(server)
    assert (await site.call("echo", {"text": "x"}, headers={"host": host})).status in (400, 403)


FOREIGN = [
    "null",
    "",
    "http://evil.example",
    "https://localhost.evil.example",
    "http://127.0.0.1.evil.example",
    "http://localhost@evil.example",
    "http://localhost:80@evil.example",
    "http://evil.example@localhost",
    "http://evil.example#localhost",
    "http://evil.example?localhost",
    "http://evil.example/localhost",
    "http://[::1].evil.example",
    "http://[::1]evil.example",
    "http://[::1",
    "http://[evil.example]",
    "http://localhost, http://evil.example",
    "http://localhost:80, http://evil.example",
    "http://localhost http://evil.example",
    "http://localhost:80 http://evil.example",
    "http://evil.example, http://localhost",
    "http://localhost:x",
    "http://localhost:99999",
    "http://",
    "http:///",
    "//localhost",
    "localhost",
    "localhost:3000",
    "file://",
    "file://localhost",
    "ftp://localhost",
    "javascript://localhost",
    "chrome-extension://abcdef",
    "vscode-webview://localhost",
]


@pytest.mark.parametrize("host", ["localhost:{}", "127.0.0.1:{}", "[::1]:{}", "LOCALHOST:{}"])
async def test_our_own_pages_are_accepted(serve: Serve, server: Server, host: str) -> None:
    """2025-11-25, basic/transports, Security Warning; no Origin is no browser, and no danger."""
    site = await serve(server)
    own = host.format(site.port)
    for origin in (None, f"http://{own}", f"https://{own}", f"HTTP://{own}"):
        assert (await site.call("echo", {"text": "x"}, headers={"host": own, "origin": origin})).status == 200


@pytest.mark.parametrize(
    "origin", ["http://localhost", "http://localhost:3000", "http://127.0.0.1:1", "http://[::1]:1"]
)
async def test_other_local_origins_are_rejected_unless_allowed(serve: Serve, server: Server, origin: str) -> None:
    """Any user of a machine can have a page on it."""
    site = await serve(server)
    assert (await site.call("echo", {"text": "x"}, headers={"origin": origin})).status == 403
    named = await serve(server, allowed_origins=[origin])
    assert (await named.call("echo", {"text": "x"}, headers={"origin": origin})).status == 200


@pytest.mark.requirement("http.origin")
@pytest.mark.parametrize("origin", FOREIGN)
async def test_other_pages_are_403(serve: Serve, server: Server, origin: str) -> None:
    """2025-11-25, basic/transports, Security Warning: present and invalid MUST be 403."""
    site = await serve(server)
    assert (await site.call("echo", {"text": "x"}, headers={"origin": origin})).status == 403


@pytest.mark.parametrize("origin", FOREIGN)
def test_no_origin_makes_the_gate_fail(origin: str) -> None:
    """The gate says yes or no. An exception would be a 500 behind ASGI."""
    gate = HostPolicy()
    assert gate.check(Headers([(b"host", b"localhost"), (b"origin", origin.encode())]))


@pytest.mark.requirement("http.origin")
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/mcp"),
        ("POST", "/"),
        ("GET", "/mcp"),
        ("DELETE", "/mcp"),
        ("OPTIONS", "/mcp"),
        ("GET", "/metrics"),
        ("GET", "/sse"),
        ("POST", "/messages"),
        ("GET", "/nowhere"),
    ],
)
async def test_every_request_is_checked(serve: Serve, server: Server, method: str, path: str) -> None:
    """Not on POST alone."""
    site = await serve(server, sse=True)
    for fields in ({"host": "evil.example"}, {"origin": "http://evil.example"}):
        assert (await site.request(method, path, fields)).status == 403


async def test_rejection_names_the_setting(serve: Serve, server: Server) -> None:
    """docs/how-to/deploy.md: a refusal says which setting would have allowed it."""
    site = await serve(server)
    host = await site.request("GET", "/metrics", {"host": "evil.example"})
    assert "--allowed-host" in host.json["error"]["message"]
    assert "PORTICO_ALLOWED_HOSTS" in host.json["error"]["message"]
    assert "evil.example" in host.json["error"]["message"]
    origin = await site.request("GET", "/metrics", {"origin": "http://evil.example"})
    assert "--allowed-origin" in origin.json["error"]["message"]
    assert "PORTICO_ALLOWED_ORIGINS" in origin.json["error"]["message"]


async def test_rejection_quotes_a_bounded_text(serve: Serve, server: Server) -> None:
    """docs/explanation/security.md: a value quoted in an error is cut off."""
    site = await serve(server)
    response = await site.request("GET", "/metrics", {"host": "e" * 5000})
    assert len(response.body) < 500


@pytest.mark.parametrize(
    "host", ["tools.example", "TOOLS.example", "tools.example:443", "tools.example.", "[2001:db8::1]:1"]
)
async def test_listed_host_is_accepted(serve: Serve, server: Server, host: str) -> None:
    """docs/how-to/deploy.md: a name, with or without a port, that clients reach us by."""
    site = await serve(server, allowed_hosts=["tools.example", "2001:db8::1"])
    assert (await site.request("GET", "/metrics", {"host": host})).status == 200
    assert (await site.request("GET", "/metrics", {"host": f"x{host}"})).status in (400, 403)


async def test_allowed_host_with_port_is_accepted_with_it(serve: Serve, server: Server) -> None:
    """The same: with a port, that port alone."""
    site = await serve(server, allowed_hosts=["tools.example:8443"])
    assert (await site.request("GET", "/metrics", {"host": "tools.example:8443"})).status == 200
    assert (await site.request("GET", "/metrics", {"host": "tools.example:8444"})).status == 403
    assert (await site.request("GET", "/metrics", {"host": "tools.example"})).status == 403


async def test_listed_origin_is_accepted(serve: Serve, server: Server) -> None:
    """docs/how-to/deploy.md: an origin is a scheme, a name and a port, and all three count."""
    site = await serve(server, allowed_origins=["https://app.example", "https://other.example:8443/"])
    for origin, status in {
        "https://app.example": 200,
        "https://other.example:8443": 200,
        "http://app.example": 403,
        "https://app.example:444": 403,
        "https://app.example.evil": 403,
        "https://x.app.example": 403,
    }.items():
        assert (await site.request("GET", "/metrics", {"origin": origin})).status == status, origin


async def test_wildcard_host_accepts_any_host(serve: Serve, server: Server) -> None:
    """docs/how-to/deploy.md: behind something else that looks."""
    site = await serve(server, allowed_hosts=["*"], allowed_origins=["*"])
    fields = {"host": "whatever.example", "origin": "http://evil.example"}
    assert (await site.request("GET", "/metrics", fields)).status == 200


async def test_this_machine_can_be_left_out(serve: Serve, server: Server) -> None:
    """Settings.loopback: a server for others lists its own names, and these alone."""
    site = await serve(server, allow_loopback=False, allowed_hosts=["tools.example"])
    assert (await site.request("GET", "/metrics")).status == 403
    assert (await site.request("GET", "/metrics", {"host": "tools.example"})).status == 200
    local = {"host": "tools.example", "origin": "http://localhost:3000"}
    assert (await site.request("GET", "/metrics", local)).status == 403


def test_gate_does_not_remember_without_end() -> None:
    """Hosts are made up by clients: what is remembered of them is bounded."""
    gate = HostPolicy()
    for number in range(5000):
        assert gate.check(Headers([(b"host", b"evil%d.example" % number)]))
    assert gate.check(Headers([(b"host", b"localhost")])) is None
    assert len(gate._known) <= 1000


# The environment

SCRIPT = """
from portico import Server
server = Server("small", version="1")
"""


async def test_environment_is_received(run: Any, at: Any, tmp_path: Path) -> None:
    """docs/how-to/deploy.md: PORTICO_ALLOWED_HOSTS and PORTICO_ALLOWED_ORIGINS, with commas; and the options too."""
    (tmp_path / "small.py").write_text(SCRIPT)
    environment = {
        "PORTICO_ALLOWED_HOSTS": "tools.example, other.example",
        "PORTICO_ALLOWED_ORIGINS": "https://app.example",
        "PORTICO_TOKEN": "right",
    }
    options = ("--allowed-host", "third.example", "--allowed-origin", "https://page.example")
    arguments = ("-m", "portico", "serve", tmp_path / "small.py", "--transport", "http", "--port", "0")
    child = await run(*arguments, *options, env=environment)
    url = (await child.read_until("Serving on ")).strip()
    site = at(int(url.rpartition(":")[2].partition("/")[0]), token="right")
    for host, status in {
        "tools.example": 200,
        "other.example": 200,
        "third.example": 200,
        "localhost": 200,
        "fourth.example": 403,
    }.items():
        assert (await site.request_stateless("tools/list", headers={"host": host})).status == status, host
    for origin, status in {"https://app.example": 200, "https://page.example": 200, "https://x.example": 403}.items():
        assert (await site.request_stateless("tools/list", headers={"origin": origin})).status == status, origin
    assert (await site.request_stateless("tools/list", headers={"authorization": None})).status == 401


@pytest.mark.requirement("auth.invalid-token")
@pytest.mark.parametrize("given", [None, "Bearer wrong", "Bearer", "Basic cmlnaHQ=", "Bearer right2"])
async def test_wrong_token_is_said_to_be_one(serve: Serve, server: Server, given: str | None) -> None:
    """RFC 6750, 3.1: `invalid_token` for a token that is wrong, and no error code where none was sent."""
    site = await serve(server, token="right")
    refused = await site.request_stateless("tools/list", headers={"authorization": given})
    assert refused.status == 401
    challenge = 'Bearer realm="mcp"' if given is None else 'Bearer realm="mcp", error="invalid_token"'
    assert refused["www-authenticate"] == challenge


# Pages


PAGES = ["http://localhost:3000"]
PREFLIGHT = {
    "origin": "http://localhost:3000",
    "access-control-request-method": "POST",
    "access-control-request-headers": "content-type, mcp-method, mcp-name, mcp-protocol-version, authorization",
}


async def test_allowed_origin_may_send_preflight(serve: Serve, server: Server) -> None:
    """Fetch, 3.2: the preflight has no token, and needs none; it says what is allowed."""
    site = await serve(server, token="right", allowed_origins=PAGES)
    response = await site.request("OPTIONS", "/mcp", {**PREFLIGHT, "authorization": None})
    assert response.status in (200, 204)
    assert response["access-control-allow-origin"] == "http://localhost:3000"
    allowed = {item.strip() for item in response["access-control-allow-methods"].split(",")}
    assert {"GET", "POST", "DELETE"} <= allowed
    headers = {item.strip().lower() for item in response["access-control-allow-headers"].split(",")}
    assert headers >= {"content-type", "mcp-method", "mcp-name", "mcp-protocol-version", "authorization"}
    assert "origin" in response["vary"].lower()


async def test_rejected_origin_gets_no_cors_headers(serve: Serve, server: Server) -> None:
    """Fetch, 3.2: no CORS header at all."""
    site = await serve(server, allowed_origins=PAGES)
    response = await site.request("OPTIONS", "/mcp", {**PREFLIGHT, "origin": "http://evil.example"})
    assert response.status == 403
    assert not [name for name, _ in response.fields if name.startswith("access-control")]


async def test_allowed_origin_can_read_responses(serve: Serve, server: Server) -> None:
    """Fetch, 3.2: on JSON, on streams, in sessions, and on errors; the session's id is exposed."""
    site = await serve(server, allowed_origins=PAGES)
    page = {"origin": "http://localhost:3000"}
    stream = await site.open_call("talk", {"count": 1}, meta={"progressToken": 1}, headers=page)
    session = await site.initialize("2025-11-25", headers=page)
    listening = await session.get()
    for response in (
        await site.call("echo", {"text": "x"}, headers=page),
        await site.call("nothing", headers=page),
        await site.request_stateless("nonsense", headers=page),
        await site.request_stateless("tools/list", meta={"clientCapabilities": None}, headers=page),
        stream.head,
        session.response,
        listening.head,
        await session.notify("notifications/unknown"),
        await session.call("echo", {"text": "x"}),
        await site.request("GET", "/health", page),
    ):
        assert response["access-control-allow-origin"] == "http://localhost:3000", response
        assert "origin" in response["vary"].lower()
    exposed = {item.strip().lower() for item in session.response["access-control-expose-headers"].split(",")}
    assert "mcp-session-id" in exposed
    assert "access-control-allow-origin" not in await site.call("echo", {"text": "x"})


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"authorization": "Bearer wrong"}, 401),
        ({"content-type": "text/plain"}, 415),
        ({"mcp-session-id": "gone", "mcp-protocol-version": "2025-11-25"}, 404),
    ],
)
async def test_page_that_is_accepted_can_read_rejections(
    serve: Serve, server: Server, fields: dict[str, str | None], status: int
) -> None:
    """Fetch, 3.2: without the header a page sees a network failure, and cannot know that it must log in again."""
    site = await serve(server, token="right", allowed_origins=PAGES)
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    response = await site.post(message, {"origin": "http://localhost:3000", "authorization": "Bearer right", **fields})
    assert response.status == status
    assert response["access-control-allow-origin"] == "http://localhost:3000"


async def test_credentials_are_never_offered(serve: Serve, server: Server) -> None:
    """Fetch, 3.2.5: no cookie decides anything here."""
    site = await serve(server, allowed_origins=["*"])
    response = await site.request("OPTIONS", "/mcp", {**PREFLIGHT, "origin": "http://any.example"})
    assert "access-control-allow-credentials" not in response


def test_host_policy_cache_is_bounded_in_bytes() -> None:
    """Hosts and origins are read before the token: what anybody can make up must not fill the memory."""
    gate = HostPolicy()
    tracemalloc.start()
    try:
        for number in range(2000):
            long = b"x" * 30_000 + b"%d" % number
            assert gate.check(Headers({b"host": long, b"origin": long})) is not None
        assert tracemalloc.get_traced_memory()[0] < 1_000_000
    finally:
        tracemalloc.stop()


# Probes, domains, proxies


@pytest.mark.parametrize("path", ["/health", "/healthz"])
async def test_probe_may_call_us_anything(serve: Serve, server: Server, path: str) -> None:
    """docs/how-to/deploy.md: a probe knows the address of a pod, and no name. No page of another origin is one."""
    site = await serve(server, token="right", allow_loopback=False)
    for method in ("GET", "HEAD"):
        assert (await site.request(method, path, {"host": "192.0.2.2:8080"})).status == 200
    assert (await site.request("GET", path, {"host": "192.0.2.2", "origin": "http://evil.example"})).status == 403
    for elsewhere in ("/metrics", "/mcp", "/", path + "/", path + "/x"):
        assert (await site.request("GET", elsewhere, {"host": "192.0.2.2:8080"})).status == 403
    assert (await site.request("POST", path, {"host": "192.0.2.2:8080"})).status == 403


async def test_domain_has_many_names(serve: Serve, server: Server) -> None:
    """docs/how-to/deploy.md: `*.example.com` is what is below it, and not itself."""
    site = await serve(server, allowed_hosts=["*.example.com"])
    for host in ("a.example.com", "b.a.example.com:8443", "A.EXAMPLE.COM"):
        assert (await site.request_stateless("tools/list", headers={"host": host})).status == 200, host
    for host in ("example.com", ".example.com", "aexample.com", "example.com.evil.example", "a.example.com.evil"):
        assert (await site.request_stateless("tools/list", headers={"host": host})).status in (400, 403), host


FORWARDED = [
    ({}, "10.0.0.1"),
    ({b"x-forwarded-for": b"192.0.2.7"}, "192.0.2.7"),
    ({b"x-forwarded-for": b"6.6.6.6, 192.0.2.7"}, "192.0.2.7"),
    ({b"x-forwarded-for": b"6.6.6.6, 192.0.2.7, 10.0.0.9"}, "192.0.2.7"),
    ({b"x-forwarded-for": b"192.0.2.7:1234"}, "192.0.2.7"),
    ({b"x-forwarded-for": b"2001:db8::1"}, "2001:db8::1"),
    ({b"x-forwarded-for": b"[2001:db8::1]:99"}, "2001:db8::1"),
    ({b"x-forwarded-for": b"10.0.0.8"}, "10.0.0.8"),
    ({b"x-forwarded-for": b"nonsense"}, "10.0.0.1"),
    ({b"x-forwarded-for": b"6.6.6.6, unknown"}, "10.0.0.1"),
    ({b"forwarded": b'for="[2001:db8::1]:4711";proto=https'}, "2001:db8::1"),
    ({b"forwarded": b"for=6.6.6.6, proto=http;For=192.0.2.7;by=10.0.0.1"}, "192.0.2.7"),
    ({b"forwarded": b"for=_hidden"}, "10.0.0.1"),
    ({b"forwarded": b"for=unknown"}, "10.0.0.1"),
    ({b"forwarded": b'for="192.0.2.7:_port"'}, "10.0.0.1"),
    ({b"forwarded": b"for=192.0.2.7;for=6.6.6.6"}, "10.0.0.1"),
    ({b"forwarded": b"x-for=6.6.6.6;host=for=6.6.6.6"}, "10.0.0.1"),
    # The proxy copies a Host that has a comma in it.
    ({b"forwarded": b'for=192.0.2.7;host="a, for=6.6.6.6"'}, "192.0.2.7"),
    # A client leaves a string open, to swallow what the proxy appends.
    ({b"forwarded": b'for=6.6.6.6;a=", for="192.0.2.7:80"'}, "10.0.0.1"),
    ({b"forwarded": b'for=6.6.6.6;a="\\", for="192.0.2.7:80"'}, "10.0.0.1"),
    ({b"x-forwarded-for": b"::ffff:192.0.2.7"}, "192.0.2.7"),
    ({b"x-forwarded-for": b"2001:DB8:0:0::1"}, "2001:db8::1"),
    ({b"x-forwarded-for": b"192.0.2.7, "}, "10.0.0.1"),
    ({b"x-forwarded-for": b"192.0.2.7", b"forwarded": b"for=192.0.2.7:5"}, "192.0.2.7"),
    # Nothing says yet which of the two the proxy writes.
    ({b"x-forwarded-for": b"192.0.2.7", b"forwarded": b"for=6.6.6.6"}, "0.0.0.0"),
]

LOOPBACK_CLAIMS = [
    {header: prefix + address}
    for header, prefix in ((b"x-forwarded-for", b""), (b"forwarded", b"for="))
    for address in (b"127.0.0.1", b"127.9.9.9", b'"[::1]"', b'"[::ffff:127.0.0.1]:8"', b'"[::ffff:7f00:1]"')
] + [
    {b"x-forwarded-for": b"::1"},
    {b"x-forwarded-for": b"::ffff:127.0.0.1"},
    {b"x-forwarded-for": b"0:0:0:0:0:0:0:1"},
    {b"x-forwarded-for": b"6.6.6.6, 127.0.0.1"},
    {b"x-forwarded-for": b""},
    {b"forwarded": b"for=unknown"},
    {b"forwarded": b"for=_hidden"},
    {b"forwarded": b"proto=https"},
    {b"x-forwarded-for": b"127.0.0.1", b"forwarded": b"for=127.0.0.1"},
]


@pytest.mark.parametrize(("headers", "client"), FORWARDED)
def test_proxy_header_sets_the_client_address(headers: dict[bytes, bytes], client: str) -> None:
    """RFC 7239, 5.2: the last address that is not a proxy of ours; what stands before it is the client's own word."""
    proxies = TrustedProxies(["10.0.0.0/8", "::1"])
    assert proxies.trusts("10.0.0.1")
    assert proxies.trusts("::ffff:10.0.0.1")
    assert not proxies.trusts("11.0.0.1")
    assert proxies.client_address(Headers(headers), "10.0.0.1") == client


@pytest.mark.parametrize("headers", LOOPBACK_CLAIMS)
@pytest.mark.parametrize("peer", ["127.0.0.1", "::1", "::ffff:127.0.0.1"])
def test_no_header_makes_a_client_local(headers: dict[bytes, bytes], peer: str) -> None:
    proxies = TrustedProxies(["127.0.0.0/8", "::1"])
    assert not is_local_peer(proxies.client_address(Headers(headers), peer))
    assert proxies.client_address(Headers(), peer) == peer


@pytest.mark.parametrize(
    ("alone", "both"),
    [
        ({b"forwarded": b"for=192.0.2.7"}, {b"forwarded": b"for=192.0.2.7", b"x-forwarded-for": b"6.6.6.6"}),
        ({b"x-forwarded-for": b"192.0.2.7"}, {b"x-forwarded-for": b"192.0.2.7", b"forwarded": b"for=6.6.6.6"}),
    ],
)
def test_header_that_the_proxy_writes_outranks_the_other(alone: dict[bytes, bytes], both: dict[bytes, bytes]) -> None:
    """A proxy passes on the header that it does not write itself, so that one is the client's claim."""
    proxies = TrustedProxies(["10.0.0.0/8"])
    assert proxies.client_address(Headers(both), "10.0.0.1") == "0.0.0.0"
    assert proxies.client_address(Headers(alone), "10.0.0.1") == "192.0.2.7"
    assert proxies.client_address(Headers(both), "10.0.0.1") == "192.0.2.7"
    # Another proxy may write another one.
    assert proxies.client_address(Headers(both), "10.0.0.2") == "0.0.0.0"


async def test_limits_count_the_clients_behind_a_proxy(
    serve: Serve, server: Server, held: Any, wait_until: Callable[..., Any]
) -> None:
    """docs/how-to/deploy.md: behind a proxy all would be one address. A stranger is not believed."""
    for trusted, status in ((["127.0.0.1"], 200), ([], 503)):
        site = await serve(server, max_concurrent_requests_per_client=1, trusted_proxies=trusted)
        busy = await site.connect()
        busy.send(site.modern_bytes("tools/call", {"name": "hold"}, headers={"x-forwarded-for": "192.0.2.1"}))
        metrics = site.listener.application.metrics
        await wait_until(lambda metrics=metrics: metrics.in_flight == 1)
        for _ in range(3):
            other = {"x-forwarded-for": "192.0.2.2"}
            assert (await site.call("echo", {"text": "x"}, headers=other)).status == status
            same = {"x-forwarded-for": "192.0.2.1"}
            assert (await site.call("echo", {"text": "x"}, headers=same)).status == 503
        held.release.set()
        assert (await busy.response()).status == 200
        held.release.clear()


def test_proxy_is_an_address_or_a_network() -> None:
    with pytest.raises(UsageError, match="trusted proxy"):
        TrustedProxies(["proxy.example"])
