"""An API over HTTP: credentials, redirects, private hosts, limits; and as a gateway upstream."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from portico import Client, Server, UsageError
from portico_gateway import Gateway


class Peer:
    """Says what it was asked; or redirects, waits or says too much, by its path."""

    def __init__(self) -> None:
        self.url = ""
        self.seen: list[str] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                lines = head.split("\r\n")
                headers = {k.lower(): v for k, _, v in (line.partition(": ") for line in lines[1:] if line)}
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                self.seen.append(lines[0])
                method, target, _ = lines[0].split()
                await self._answer(writer, method, target, headers, body)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _answer(self, writer: asyncio.StreamWriter, method: str, target: str, headers: Any, body: bytes) -> None:
        status, more = "200 OK", "Content-Type: application/json\r\n"
        result = json.dumps({"target": target, "headers": headers, "body": body.decode()}).encode()
        if target == "/token":
            result = b'{"access_token": "minted", "expires_in": 600}'
        elif target.startswith("/away"):
            status, more = "302 Found", "Location: http://127.0.0.2:1/x\r\n"
        elif target.startswith("/near"):
            status, more = "302 Found", "Location: /echo?here=1\r\n"
        elif target.startswith("/big"):
            result = b'"' + b"x" * 5000 + b'"'
        elif target.startswith("/slow"):
            await asyncio.Event().wait()
        length = len(result)
        writer.write(f"HTTP/1.1 {status}\r\n{more}Content-Length: {length}\r\n\r\n".encode())
        writer.write(b"" if method == "HEAD" else result)
        await writer.drain()


@pytest.fixture
async def peer() -> AsyncIterator[Peer]:
    result = Peer()
    tasks: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.create_task(result.serve(reader, writer)))

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    result.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    yield result
    server.close()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


SCHEMES = {
    "header": {"type": "apiKey", "in": "header", "name": "X-Key"},
    "query": {"type": "apiKey", "in": "query", "name": "key"},
    "cookie": {"type": "apiKey", "in": "cookie", "name": "key"},
    "basic": {"type": "http", "scheme": "basic"},
    "bearer": {"type": "http", "scheme": "bearer"},
    "oauth": {"type": "oauth2", "flows": {"clientCredentials": {"tokenUrl": "https://x.invalid/t", "scopes": {}}}},
}


def spec(security: list[Any] | None = None, servers: list[Any] | None = None) -> dict[str, Any]:
    return {
        "openapi": "3.1.0",
        "info": {"title": "t", "version": "1"},
        "servers": servers or [],
        "security": security or [],
        "paths": {
            f"/{name}": {method: {"operationId": f"{name}_{method}", "responses": {}}}
            for name, method in [
                *[("echo", "get"), ("away", "get"), ("near", "get"), ("big", "get"), ("slow", "get")],
                *[("looked", "head"), ("near-post", "post")],
            ]
        },
        "components": {"securitySchemes": SCHEMES},
    }


async def called(server: Server, name: str = "echo_get") -> Any:
    async with asyncio.timeout(30), Client(server) as client:
        return await client.call_tool(name, {}, raise_on_error=False)


@pytest.mark.parametrize(
    "scheme, auth, where, value",
    [
        ("header", "k", "x-key", "k"),
        ("cookie", {"cookie": "k"}, "cookie", "key=k"),
        ("basic", ("me", "pw"), "authorization", "Basic bWU6cHc="),
        ("bearer", "tok", "authorization", "Bearer tok"),
        ("query", "a b", "target", "/echo?key=a%20b"),
        ("oauth", "client", "authorization", "Bearer minted"),
    ],
)
async def test_credential_is_placed_by_its_security_scheme(
    peer: Peer, scheme: str, auth: Any, where: str, value: str
) -> None:
    if auth == "client":
        auth = {"client_id": "c", "client_secret": "s", "token_url": f"{peer.url}/token"}
    response = (await called(Server.from_openapi(spec([{scheme: []}]), base_url=peer.url, auth=auth))).structured
    assert (response["target"] if where == "target" else response["headers"][where]) == value


async def test_redirects_stay_at_the_origin(peer: Peer) -> None:
    server = Server.from_openapi(spec(), base_url=peer.url)
    away = await called(server, "away_get")
    assert away.is_error and "another origin" in away.content[0].text
    assert (await called(server, "near_get")).structured["target"] == "/echo?here=1"
    posted = await called(server, "near-post_post")
    assert posted.is_error and "was not repeated" in posted.content[0].text


async def test_answers_and_time_are_bounded(peer: Peer) -> None:
    server = Server.from_openapi(spec(), base_url=peer.url, max_response_size=1000, timeout=0.2)
    big, slow = await called(server, "big_get"), await called(server, "slow_get")
    assert big.is_error and "longer than 1000 bytes" in big.content[0].text
    assert slow.is_error and "did not finish" in slow.content[0].text


async def test_head_is_answered_without_a_body(peer: Peer) -> None:
    assert (await called(Server.from_openapi(spec(), base_url=peer.url), "looked_head")).structured["status"] == 200


async def test_document_cannot_send_us_into_a_private_network(peer: Peer, caplog: pytest.LogCaptureFixture) -> None:
    refused = await called(Server.from_openapi(spec(servers=[{"url": "https://127.0.0.1:9/"}])))
    assert refused.is_error and "error id" in refused.content[0].text
    assert "127.0.0.1" not in refused.content[0].text and "is in a private network" in caplog.text
    plain = await called(Server.from_openapi(spec(servers=[{"url": peer.url}])))
    assert plain.is_error and "must use https" in caplog.text
    assert peer.seen == []
    assert not (await called(Server.from_openapi(spec(servers=[{"url": peer.url}]), allow_private_hosts=True))).is_error


async def test_servers_variables_are_filled_in(peer: Peer) -> None:
    port = {"port": {"default": peer.url.rpartition(":")[2]}, "version": {"default": "v1", "enum": ["v1", "v2"]}}
    servers = [{"url": "http://127.0.0.1:{port}/{version}", "variables": port}]
    server = Server.from_openapi(spec(servers=servers), allow_private_hosts=True, variables={"version": "v2"})
    assert (await called(server)).structured["target"] == "/v2/echo"
    with pytest.raises(UsageError, match="v1, v2"):
        Server.from_openapi(spec(servers=servers), allow_private_hosts=True, variables={"version": "v3"})


def test_place_is_needed() -> None:
    with pytest.raises(UsageError, match="set base_url"):
        Server.from_openapi(spec())


async def test_api_is_an_upstream_of_a_gateway(peer: Peer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CRM_KEY", "secret")
    (tmp_path / "crm.json").write_text(json.dumps(spec([{"header": []}])))
    (tmp_path / "gateway.toml").write_text(
        f'[upstream.crm]\nopenapi = "crm.json"\nurl = "{peer.url}"\n'
        'auth = { type = "static_header", value = "${env:CRM_KEY}" }\n'
        f'[upstream.few]\nopenapi = {{ path = "crm.json", paths = ["/echo"] }}\nurl = "{peer.url}"\n'
        'auth = { type = "static_header", header = "X-Other", value = "o" }\n'
    )
    async with asyncio.timeout(30), Client(Gateway.load(tmp_path / "gateway.toml")) as client:
        names = [tool.name for tool in await client.list_tools()]
        assert [name for name in names if name.startswith("few")] == ["few_echo_get"]
        assert "crm_echo_get" in names
        result = (await client.call_tool("crm_echo_get", {})).structured
        assert result["headers"]["x-key"] == "secret"
        assert (await client.call_tool("few_echo_get", {})).structured["headers"]["x-other"] == "o"


@pytest.mark.parametrize(
    "table, reason",
    [
        ('openapi = "none.yaml"', "cannot read none.yaml"),
        ("openapi = { tags = [] }", "path is required"),
        ('openapi = { path = "crm.json", tag = ["x"] }', "tags"),
        ('openapi = "crm.json"', "set base_url"),
    ],
)
def test_wrong_upstream_is_one_sentence(tmp_path: Path, table: str, reason: str) -> None:
    (tmp_path / "crm.json").write_text(json.dumps(spec()))
    (tmp_path / "gateway.toml").write_text(f"[upstream.crm]\n{table}\n")
    with pytest.raises(UsageError, match=reason):
        Gateway.load(tmp_path / "gateway.toml")
