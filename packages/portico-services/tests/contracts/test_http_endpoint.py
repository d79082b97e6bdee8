"""Tool calls over plain HTTP have the same caller and permissions as at the MCP endpoint."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from portico import Context, Server
from portico.protocol.json_depth import MAX_JSON_DEPTH
from portico.server.policy import settings as access_settings
from portico_services.contracts.http_endpoint import add_call_endpoint

TIMEOUT_SECONDS = 20.0


@pytest.fixture
def server() -> Server:
    server = Server("shop", version="1")

    @server.tool(name="shop.refund", scopes=["refunds"])
    def refund() -> str:
        return "refunded"

    @server.tool(name="shop.close")
    def close() -> str:
        return "closed"

    @server.tool(name="shop.browse")
    def browse(ctx: Context) -> str:
        return f"{ctx.transport} {ctx.client_address}"

    @server.tool(name="shop.echo")
    def echo(value: Any) -> str:
        return "echoed"

    add_call_endpoint(server, "/call")
    return server


class Site:
    """The ASGI application of a server, called from any address."""

    def __init__(self, application: Any) -> None:
        self.application = application

    async def post(self, body: bytes, address: str = "192.0.2.1", token: str | None = None) -> tuple[int, Any]:
        headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
        if token is not None:
            headers.append((b"authorization", f"Bearer {token}".encode()))
        scope = {
            "type": "http",
            "method": "POST",
            "path": "/call",
            "root_path": "",
            "query_string": b"",
            "headers": headers,
            "client": (address, 1),
        }
        pending: list[Any] = [{"type": "http.request", "body": body}]
        sent: list[Any] = []

        async def receive() -> Any:
            return pending.pop(0) if pending else await asyncio.Event().wait()

        async def send(message: Any) -> None:
            sent.append(message)

        async with asyncio.timeout(TIMEOUT_SECONDS):
            await self.application(scope, receive, send)
        return sent[0]["status"], json.loads(b"".join(part.get("body", b"") for part in sent[1:]))

    async def call(self, tool: str, arguments: Any = None, **options: Any) -> Any:
        """Call a tool and return its result, or the type of the error."""
        body = json.dumps({"tool_name": tool, "arguments": arguments or {}}).encode()
        status, outcome = await self.post(body, **options)
        assert status == 200, outcome
        return outcome["data"]["result"] if outcome["status"] == "success" else outcome["error"]["error_type"]


@pytest.fixture
async def sites() -> AsyncIterator[Any]:
    applications: list[Any] = []

    def make(server: Server, **options: Any) -> Site:
        applications.append(server.http_app(**options))
        return Site(applications[-1])

    yield make
    for application in applications:
        await application.stop()


async def test_anonymous_bare_call_is_not_one_of_the_local_user(server: Server, sites: Any) -> None:
    rules = [{"principal": "local"}, {"tool": ["shop.shop.browse", "shop.shop.refund"]}]
    access_settings.apply(server, access_settings.read({"rule": rules}))
    site = sites(server)
    assert await site.call("shop.browse") == "streamable-http 192.0.2.1"
    # `shop.close` is for the local user only, and `shop.refund` requires a scope.
    assert await site.call("shop.close") == "ResourceNotFound"
    assert await site.call("shop.refund") != "refunded"


async def test_limit_by_address_counts_bare_calls(server: Server, sites: Any) -> None:
    limit = {"by": ["ip"], "tool": "shop.shop.browse", "rate": "2/min"}
    access_settings.apply(server, access_settings.read({"limit": [limit]}))
    site = sites(server)
    assert [await site.call("shop.browse") for _ in range(3)] == ["streamable-http 192.0.2.1"] * 2 + [
        "ApiLimitExceeded"
    ]
    assert await site.call("shop.browse", address="192.0.2.2") == "streamable-http 192.0.2.2"


@pytest.mark.parametrize("token", [None, "secret"])
async def test_bare_calls_are_audited_with_their_caller(
    server: Server, sites: Any, tmp_path: Path, token: str | None
) -> None:
    log = tmp_path / "audit.jsonl"
    table = {"audit": {"store": False, "sinks": [f"file:{log}"]}}
    access_settings.apply(server, access_settings.read(table, tmp_path))
    site = sites(server, **({} if token is None else {"token": token}))
    assert await site.call("shop.echo", {"value": 1}, token=token) == "echoed"
    await site.application.stop()
    records = [line for line in log.read_text().splitlines() if "shop.echo" in line]
    assert len(records) == 1
    assert "192.0.2.1" in records[0]
    assert token is None or '"token"' in records[0]


@pytest.mark.parametrize("levels, status", [(MAX_JSON_DEPTH - 2, 200), (MAX_JSON_DEPTH - 1, 400), (20_000, 400)])
async def test_deep_arguments_of_a_bare_call_are_rejected(server: Server, sites: Any, levels: int, status: int) -> None:
    body = b'{"tool_name":"shop.echo","arguments":{"value":' + b"[" * levels + b"]" * levels + b"}}"
    assert (await sites(server).post(body))[0] == status
