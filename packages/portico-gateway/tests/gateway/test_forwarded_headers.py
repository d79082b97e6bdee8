"""Only configured headers are forwarded to upstreams, and never the client's credentials."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import Any

import pytest

from portico import Client, Server, UsageError
from portico.extend import serve_http
from portico_gateway import Gateway


@asynccontextmanager
async def served(server: Server, **options: Any) -> Any:
    stop = asyncio.Event()
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(serve_http(server, port=0, on_ready=ready.set_result, stop=stop, **options))
    try:
        yield await asyncio.wait_for(ready, 20)
    finally:
        stop.set()
        await task


def upstream(seen: list[dict[str, str]]) -> Server:
    server = Server("upstream")

    @server.tool
    async def work() -> str:
        return "done"

    def watch(inner: Any) -> Any:
        async def watched(call: Any) -> Any:
            if call.method == "tools/call":
                seen.append({name.decode(): value.decode() for name, value in (call.headers or {}).items()})
            return await inner(call)

        return watched

    server.add_middleware(watch)
    return server


@pytest.mark.parametrize("revision", ["2025-11-25", "2026-07-28"])
async def test_only_configured_headers_are_forwarded(revision: Any) -> None:
    seen: list[dict[str, str]] = []
    async with served(upstream(seen)) as below:
        gateway = Gateway()
        gateway.add_upstream(
            "a",
            below,
            protocol_version=revision,
            forward_headers={"X-Tenant": "x-tenant", "x-jira-token": "authorization"},
        )
        async with served(gateway, token="gateway-secret") as url:
            for who in ("one", "two", "one"):
                headers = {"x-tenant": who, "x-jira-token": f"Bearer {who}", "x-other": "kept back"}
                async with Client(url, auth="gateway-secret", headers=headers) as client:
                    assert (await client.call_tool("a_work")).text == "done"
            async with Client(url, auth="gateway-secret") as client:
                await client.call_tool("a_work")
    assert [item.get("x-tenant") for item in seen] == ["one", "two", "one", None]
    assert [item.get("authorization") for item in seen] == ["Bearer one", "Bearer two", "Bearer one", None]
    assert not any("x-other" in item for item in seen)
    assert "gateway-secret" not in str(seen)


async def test_no_header_is_forwarded_by_default() -> None:
    seen: list[dict[str, str]] = []
    async with (
        served(upstream(seen)) as below,
        served(Gateway({"a": below}), token="gateway-secret") as url,
        Client(url, auth="gateway-secret", headers={"x-tenant": "one"}) as client,
    ):
        await client.call_tool("a_work")
    assert "x-tenant" not in seen[0] and "authorization" not in seen[0]


@pytest.mark.parametrize(
    "forward, what",
    [
        (["Authorization"], "a credential for the gateway"),
        ({"authorization": "x-token"}, "a credential for the gateway"),
        (["cookie"], "a credential for the gateway"),
        (["Mcp-Session-Id"], "cannot be forwarded"),
        ({"x-a": "host"}, "cannot be forwarded"),
        (["x a"], "cannot be forwarded"),
    ],
)
def test_forwarding_of_credential_headers_raises_usage_error(forward: Any, what: str) -> None:
    with pytest.raises(UsageError, match=what):
        Gateway().add_upstream("a", "https://a.example/mcp", forward_headers=forward)


def test_command_has_no_headers() -> None:
    with pytest.raises(UsageError, match="with a url"):
        Gateway().add_upstream("a", ["x"], forward_headers=["x-tenant"])
