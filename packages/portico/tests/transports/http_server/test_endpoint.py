"""Several endpoints on one port, each with its own handler and sessions."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from portico import Client, Server, UsageError

REVISIONS = ["2025-11-25", "2026-07-28"]


def pair() -> tuple[Server, Server]:
    server, other = Server("main"), Server("other")

    @server.tool
    async def here() -> str:
        return "here"

    @other.tool
    async def there() -> str:
        return "there"

    return server, other


def at(site: Any, path: str) -> str:
    return f"http://127.0.0.1:{site.port}{path}"


async def names(site: Any, path: str, revision: Any) -> list[str]:
    async with Client(at(site, path), protocol_version=revision) as client:
        return [tool.name for tool in await client.list_tools()]


@pytest.mark.parametrize("revision", REVISIONS)
async def test_each_path_has_its_own_handler(serve: Any, revision: Any) -> None:
    server, other = pair()
    server.add_endpoint("/mcp/other", other)
    site = await serve(server)
    assert await names(site, "/mcp", revision) == ["here"]
    assert await names(site, "/mcp/other", revision) == ["there"]


async def test_session_belongs_to_its_path(serve: Any) -> None:
    server, other = pair()
    server.add_endpoint("/mcp/other", other)
    site = await serve(server)
    session = await site.initialize("2025-11-25")
    headers = {"mcp-session-id": session.id, "mcp-protocol-version": "2025-11-25"}
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    assert (await site.post(message, headers)).status == 200
    assert (await site.post(message, headers, path="/mcp/other")).status == 404


async def test_endpoints_can_be_added_and_removed_while_serving(serve: Any) -> None:
    server, other = pair()
    site = await serve(server)
    message = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    assert (await site.post(message, path="/mcp/other")).status == 404
    server.add_endpoint("/mcp/other", other)
    assert await names(site, "/mcp/other", "2026-07-28") == ["there"]
    async with Client(at(site, "/mcp/other"), protocol_version="2025-11-25") as client:
        assert (await client.call_tool("there")).text == "there"
        server.remove_endpoint("/mcp/other")
        site.exchange.expire_sessions()
        assert (await site.post(message, path="/mcp/other")).status == 404
    # What has ended is waited for, so that nothing is left behind.
    await asyncio.gather(*site.exchange._ending)
    assert await names(site, "/mcp", "2026-07-28") == ["here"]


async def test_calls_of_all_endpoints_count_together(serve: Any) -> None:
    server, other = pair()
    server.add_endpoint("/mcp/other", other)
    site = await serve(server)
    await names(site, "/mcp", "2026-07-28")
    await names(site, "/mcp/other", "2026-07-28")
    assert await site.metric('mcp_server_operation_duration_seconds_count{mcp_method_name="tools/list"}') == 2


@pytest.mark.parametrize("path", ["/mcp", "/health", "/metrics"])
async def test_two_cannot_have_one_path(serve: Any, path: str) -> None:
    server, other = pair()
    server.add_endpoint(path, other)
    with pytest.raises(UsageError, match="already in use"):
        await serve(server)


@pytest.mark.parametrize("path", ["", "/", "mcp", "/mcp?x", "/a b", "/a\n"])
def test_invalid_endpoint_paths_raise_usage_error(path: str) -> None:
    server, other = pair()
    with pytest.raises(UsageError, match="endpoint path must start with"):
        server.add_endpoint(path, other)


@pytest.mark.parametrize("root, path", [("", "/mcp/other"), ("/api", "/api/mcp/other"), ("/mcp", "/mcp/other")])
async def test_asgi_application_has_custom_routes(root: str, path: str) -> None:
    server, other = pair()
    server.add_endpoint("/mcp/other", other)
    application = server.http_app(allowed_hosts=["there.example"])
    client = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": client}).encode()
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": body}

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"host", b"there.example"), (b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": path, "root_path": root, "headers": headers}
    await application(scope, receive, send)
    await application.stop()
    assert sent[0]["status"] == 200
    assert b'"name":"other"' in b"".join(item.get("body", b"") for item in sent)
