"""Client ID metadata documents: fetched from public addresses only."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import json
import socket
import ssl
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from portico.auth.flow import FetchResponse
from portico.transports.http_client.pool import HttpConnectionPool
from portico_gateway.authserver import client_metadata
from portico_gateway.authserver.client_metadata import ClientMetadataFetcher
from portico_gateway.authserver.config import AuthorizationServerConfig
from portico_gateway.authserver.errors import ErrorPageResponse
from support import oidc
from support.http_threads import running

Stand = Callable[..., Any]
HERE = ["127.0.0.0/8", "::1/128"]


class Documents(ThreadingHTTPServer):
    """A host of documents over TLS, on this machine."""

    def __init__(self, certificate: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Answering)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        self.socket = context.wrap_socket(self.socket, server_side=True)
        self.asked: list[str] = []
        self.origin = f"https://localhost:{self.server_port}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that does not like what it sees goes away."""


class _Answering(BaseHTTPRequestHandler):
    server: Documents

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        url = self.server.origin + self.path
        message: dict[str, Any] = {
            "client_id": url,
            "client_name": "A program with a document",
            "redirect_uris": ["http://127.0.0.1:9/callback"],
            "token_endpoint_auth_method": "none",
        }
        if self.path == "/another":
            message["client_id"] = "https://another.example/client"
        if self.path == "/secretive":
            message["token_endpoint_auth_method"] = "client_secret_basic"
        if self.path == "/script":
            message["redirect_uris"] = ["javascript:alert(1)"]
        body = json.dumps(message).encode()
        if self.path == "/long":
            body = b" " * 100_000 + body
        if self.path == "/text":
            body = b"<html>"
        self.send_response(302 if self.path == "/moved" else 404 if self.path == "/missing" else 200)
        if self.path == "/moved":
            self.send_header("Location", "/client")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=24))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = tmp_path_factory.mktemp("tls") / "both.pem"
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path.write_bytes(private + made.public_bytes(serialization.Encoding.PEM))
    return path


@pytest.fixture
def host(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Documents]:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    server = Documents(certificate)
    with running(server):
        yield server


async def test_client_id_metadata_document_identifies_a_client(stand: Stand, host: Documents) -> None:
    async with stand(allowed_client_networks=HERE) as face:
        login = await face.login(f"{host.origin}/client")
        assert (await login.redeem())[0] == 200
        browser = oidc.Browser()
        page = await asyncio.to_thread(browser.request, "GET", login.url)
        assert "localhost (verified)" in page.text and "A program with a document" in page.text
        assert host.asked == ["/client"]  # it is remembered for a while


@pytest.mark.parametrize("path", ["/another", "/secretive", "/script", "/long", "/text", "/moved", "/missing"])
async def test_invalid_client_metadata_documents_are_rejected(stand: Stand, host: Documents, path: str) -> None:
    async with stand(allowed_client_networks=HERE) as face:
        for _ in range(2):
            seen = await visited(face, host.origin + path)
            assert seen.status == 400 and seen.location is None and "<form" not in seen.text
        assert host.asked == [path]  # once, and no redirect was followed


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", "[::1]", "[::ffff:127.0.0.1]", "2130706433"])
async def test_document_on_this_machine_is_not_fetched(stand: Stand, host: Documents, name: str) -> None:
    async with stand() as face:
        assert (await visited(face, f"https://{name}:{host.server_port}/client")).status == 400
        assert host.asked == []


@pytest.mark.parametrize(
    "url",
    [
        "https://169.254.169.254/latest/meta-data",
        "https://10.0.0.1/client",
        "https://192.168.1.1/client",
        "https://100.64.0.1/client",
        "https://[fd00::1]/client",
        "https://[fe80::1]/client",
        "https://0.0.0.0/client",
        "https://[64:ff9b::a00:1]/client",
        "http://example.com/client",
        "https://example.com",
        "https://example.com/",
        "https://user@example.com/client",
        "https://example.com/a/../client",
        "https://example.com/client#part",
        "file:///etc/passwd",
    ],
)
async def test_nothing_is_connected_to_that_is_not_on_the_open_internet(
    stand: Stand, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    dialled: list[str] = []

    async def dial(pool: HttpConnectionPool, address: str, port: int, tls_name: str | None) -> Any:
        dialled.append(address)
        raise OSError("not in a test")

    async with stand() as face:
        monkeypatch.setattr(HttpConnectionPool, "_open_connection", dial)
        assert (await visited(face, url)).status == 400
        assert dialled == []


async def test_host_is_resolved_once_and_every_address_is_checked(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name server that says one thing to the judge and another to the connection gets nothing by it."""
    answers = [["93.184.216.34"], ["127.0.0.1"]]
    looked_up: list[str] = []
    dialled: list[str] = []
    loop = asyncio.get_running_loop()
    lookup = loop.getaddrinfo

    async def rebinding(host: Any, port: Any, **options: Any) -> Any:
        if host != "rebind.example":
            return await lookup(host, port, **options)
        looked_up.append(host)
        return [(0, 0, 0, "", (address, port)) for address in answers[len(looked_up) - 1]]

    async def dial(pool: HttpConnectionPool, address: str, port: int, tls_name: str | None) -> Any:
        dialled.append(address)
        raise OSError("not in a test")

    async with stand() as face:
        monkeypatch.setattr(loop, "getaddrinfo", rebinding)
        monkeypatch.setattr(HttpConnectionPool, "_open_connection", dial)
        assert (await visited(face, "https://rebind.example/client")).status == 400
        assert looked_up == ["rebind.example"] and dialled == ["93.184.216.34"]
        answers[:] = [[], ["93.184.216.34", "127.0.0.1"]]
        assert (await visited(face, "https://rebind.example/other")).status == 400
        assert dialled == ["93.184.216.34"]


async def test_host_that_does_not_answer_is_not_waited_for(
    stand: Stand, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_metadata, "FETCH_TIMEOUT_SECONDS", 0.2)
    # It takes connections, and says nothing on them.
    with socket.create_server(("127.0.0.1", 0)) as silent:
        async with stand(allowed_client_networks=HERE) as face:
            assert (await visited(face, f"https://127.0.0.1:{silent.getsockname()[1]}/client")).status == 400


async def test_hosts_that_hang_take_no_fetches_of_other_networks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client_metadata, "MAX_CONCURRENT_FETCHES", 4)
    go_on, all_hang, hanging = asyncio.Event(), asyncio.Event(), 0

    async def request(method: str, url: str, **options: Any) -> FetchResponse:
        nonlocal hanging
        if "hang" in url:
            hanging += 1
            if hanging == 4:
                all_hang.set()
            await go_on.wait()
        document = {"client_id": url, "client_name": "x", "redirect_uris": ["http://127.0.0.1:9/callback"]}
        return FetchResponse(200, (), json.dumps(document | {"token_endpoint_auth_method": "none"}).encode())

    monkeypatch.setattr(client_metadata, "http_request", request)
    fetcher = ClientMetadataFetcher(
        AuthorizationServerConfig(issuer="https://as.example", resource="https://as.example/mcp")
    )
    addresses = ["2001:db8:1::1", "2001:db8:1:1::1", "2001:db8:1:2::1", "2001:db8:1:3::1"]
    fetches = [
        asyncio.ensure_future(fetcher.fetch(f"https://hang.example/{number}", address))
        for number, address in enumerate(addresses)
    ]
    # One /48 network has its share; the rest is refused immediately.
    async with asyncio.timeout(10):
        refused = await asyncio.gather(*fetches[2:], return_exceptions=True)
    assert [getattr(item, "status", None) for item in refused] == [503, 503]
    assert hanging == 2
    assert (await fetcher.fetch("https://good.example/client", "2001:db8:2::1")).kind == "document"
    # Even where several networks take all, the wait of others is bounded.
    monkeypatch.setattr(client_metadata, "FETCH_TIMEOUT_SECONDS", 0.05)
    fetches[2:] = [
        asyncio.ensure_future(fetcher.fetch(f"https://hang.example/x{number}", f"192.0.{number}.1"))
        for number in range(2)
    ]
    async with asyncio.timeout(10):
        await all_hang.wait()
        with pytest.raises(ErrorPageResponse, match="Try again"):
            await fetcher.fetch("https://good.example/other", "198.51.100.1")
    go_on.set()
    await asyncio.gather(*fetches)
    assert not fetcher._fetches_by_network
    assert (await fetcher.fetch("https://good.example/third", "198.51.100.1")).kind == "document"


async def test_only_documents_of_allowed_hosts_are_fetched(stand: Stand, host: Documents) -> None:
    async with stand(allowed_client_networks=HERE, allowed_client_hosts=["claude.ai"]) as face:
        assert (await visited(face, f"{host.origin}/client")).status == 400
        assert host.asked == []


async def visited(face: Any, client_id: str) -> oidc.PageResponse:
    return await asyncio.to_thread(oidc.Browser().request, "GET", face.prepare(client_id).url)
