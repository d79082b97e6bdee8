"""Results of upstreams are bounded by the gateway."""

from __future__ import annotations

import json
import re
import sys
from typing import Any

import pytest
from msgspec import Raw

from portico import Client, Server, ToolError, UsageError
from portico.auth.principal import Principal
from portico.extend import Call, ResultLimits, configure_access
from portico.protocol.content import ResourceLink, TextContent
from portico.protocol.jsonrpc import encode
from portico.search import ToolSearchServer
from portico.server.results.settings import MAX_RESULT_SIZE_META_KEY
from portico.tokens import estimate_tokens
from portico_gateway import Gateway
from support.paths import ROOT

VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28")


def upstream() -> Server:
    server = Server("upstream")

    @server.tool(structured_output=False)
    def text(size: int) -> str:
        return ("A line of the text.\n" * (size // 20 + 1))[:size]

    @server.tool
    def rows(count: int) -> list[dict[str, Any]]:
        return [{"id": at, "name": f"name {at}"} for at in range(count)]

    @server.tool(output_schema={"type": "object", "properties": {"ids": {"type": "array", "minItems": 9_000}}})
    def strict(count: int) -> dict[str, Any]:
        return {"ids": [f"id {at}" for at in range(count)]}

    @server.tool(task="optional")
    async def slow(size: int) -> str:
        return "A line.\n" * (size // 8)

    return server


def tokens_of(result: Any) -> int:
    return sum(estimate_tokens(block.text) for block in result.content if isinstance(block, TextContent))


def id_in(result: Any) -> str:
    match = re.search(r"result://([A-Za-z0-9_-]{32})", str(result))
    assert match is not None
    return match[1]


@pytest.mark.parametrize("inner", ["2024-11-05", "2025-11-25", "2026-07-28"])
@pytest.mark.parametrize("version", VERSIONS)
async def test_results_are_bounded_between_all_versions(version: Any, inner: Any) -> None:
    gateway = Gateway()
    gateway.add_upstream("up", upstream(), protocol_version=inner)
    async with Client(gateway, protocol_version=version) as client:
        small = await client.call_tool("up_text", {"size": 1_000})
        assert len(small.text) == 1_000
        large = await client.call_tool("up_text", {"size": 300_000})
        assert 10_000 < tokens_of(large) <= 20_000
        assert any(isinstance(block, ResourceLink) for block in large.content) == (version >= "2025-06-18")
        read = await client.call_tool("read_result", {"id": id_in(large), "offset": 299_980})
        assert read.content[0].text == "A line of the text.\n"
        # The client validates structured content against the listed schema.
        rows = await client.call_tool("up_rows", {"count": 5_000})
        assert not rows.is_error and tokens_of(rows) <= 20_000
        read = await client.call_tool("read_result", {"id": id_in(rows), "path": "[4999].name"})
        assert read.content[0].text == "name 4999"
        [contents, *_] = await client.read_resource(f"result://{id_in(large)}")
        assert len(contents.text) == 300_000


BOUNDED_SERVER = [sys.executable, "-m", "portico", "serve", f"{ROOT / 'tests/peers/server.py'}:bounded"]


@pytest.mark.parametrize("kind", ["process", "in process"])
@pytest.mark.parametrize("version", ["2025-11-25", "2026-07-28"])
async def test_results_of_an_upstream_with_a_budget_are_read_at_the_gateway(version: Any, kind: str) -> None:
    gateway = Gateway(max_result_tokens=1_000)
    if kind == "process":
        gateway.add_upstream("up", {"command": BOUNDED_SERVER[0], "args": BOUNDED_SERVER[1:]})
    else:
        inner = upstream()
        inner.add(ResultLimits(2_000))
        gateway.add_upstream("up", inner)
    async with Client(gateway, protocol_version=version) as client:
        tool = "up_long_text" if kind == "process" else "up_text"
        large = await client.call_tool(tool, {"size": 100_000})
        assert tokens_of(large) <= 1_000
        read = await client.call_tool("read_result", {"id": id_in(large), "offset": 99_980})
        assert read.content[0].text == "A line of the text.\n"
        # Only the gateway stores it: nobody can read it at the upstream, where all callers may be one.
        with pytest.raises(ToolError, match="Unknown or expired"):
            await client.call_tool("up_read_result", {"id": id_in(large)})


async def test_upstream_bounds_its_results_if_the_gateway_does_not() -> None:
    inner = upstream()
    inner.add(ResultLimits(2_000))
    async with Client(Gateway({"up": inner}, max_result_tokens=0)) as client:
        large = await client.call_tool("up_text", {"size": 100_000})
        assert tokens_of(large) <= 2_000
        read = await client.call_tool("up_read_result", {"id": id_in(large), "offset": 99_980})
        assert read.content[0].text == "A line of the text.\n"


async def test_structured_content_that_cannot_be_shortened_is_an_error_with_the_link() -> None:
    async with Client(Gateway({"up": upstream()})) as client:
        result = await client.call_tool("up_strict", {"count": 50_000}, raise_on_error=False)
        assert result.is_error and result.structured is None
        read = await client.call_tool("read_result", {"id": id_in(result), "path": "/ids/49999"})
        assert read.content[0].text == "id 49999"


async def test_upstream_has_its_own_budget_and_declares_it() -> None:
    gateway = Gateway()
    gateway.add_upstream("tight", upstream(), max_result_tokens=1_000)
    gateway.add_upstream("free", upstream(), max_result_tokens=0)
    gateway.add_upstream("plain", upstream())
    async with Client(gateway) as client:
        assert tokens_of(await client.call_tool("tight_text", {"size": 50_000})) <= 1_000
        assert len((await client.call_tool("free_text", {"size": 500_000})).text) == 500_000
        assert tokens_of(await client.call_tool("plain_text", {"size": 500_000})) <= 20_000
        sizes = {tool.name: (tool.meta or {}).get(MAX_RESULT_SIZE_META_KEY) for tool in await client.list_tools()}
    assert sizes["tight_text"] == 5_000 and sizes["free_text"] == 500_000 and sizes["plain_text"] is None
    with pytest.raises(UsageError, match="at least 500"):
        gateway.add_upstream("small", upstream(), max_result_tokens=10)


async def test_size_declared_by_an_upstream_is_honoured_for_claude_code() -> None:
    server = upstream()
    server.tool(name="declared", structured_output=False, meta={MAX_RESULT_SIZE_META_KEY: 200_000})(
        lambda: "1 2 3 4 5 " * 20_000
    )
    async with Client(Gateway({"up": server}), client_name="claude-code") as client:
        assert len((await client.call_tool("up_declared", {})).text) == 200_000
    async with Client(Gateway({"up": server})) as client:
        assert tokens_of(await client.call_tool("up_declared", {})) <= 20_000


async def test_gateway_without_budget_has_no_tool() -> None:
    async with Client(Gateway({"up": upstream()}, max_result_tokens=0)) as client:
        assert "read_result" not in [tool.name for tool in await client.list_tools()]
        assert len((await client.call_tool("up_text", {"size": 500_000})).text) == 500_000


async def test_views_bound_their_results() -> None:
    gateway = Gateway({"up": upstream()})
    view = gateway.add_view("part", include=["up.text"])
    async with Client(view) as client:
        assert sorted(tool.name for tool in await client.list_tools()) == ["read_result", "up_text"]
        large = await client.call_tool("up_text", {"size": 500_000})
        assert tokens_of(large) <= 20_000
        await client.call_tool("read_result", {"id": id_in(large)})
        assert len((await client.read_resource(f"result://{id_in(large)}"))[0].text) == 500_000


async def test_tool_search_bounds_results_and_lists_the_tool() -> None:
    gateway = Gateway({"up": upstream()})
    async with Client(ToolSearchServer(gateway)) as client:
        assert "read_result" in [tool.name for tool in await client.list_tools()]
        call = {"name": "up_text", "arguments": {"size": 500_000}}
        large = await client.call_tool("call_tool", call)
        assert tokens_of(large) <= 20_000
        await client.call_tool("read_result", {"id": id_in(large)})


def call_as(principal: Any, method: str, params: dict[str, Any]) -> Call:
    return Call(
        method=method,
        params=Raw(encode(params)),
        id=1,
        protocol_version="2026-07-28",
        principal=principal,
        address="192.0.2.1",
    )


async def test_rules_do_not_apply_to_own_results_and_others_cannot_read_them() -> None:
    gateway = Gateway({"up": upstream()})
    configure_access(gateway, {"rule": [{"principal": "*", "tool": "up.text"}]})
    alice, bob = Principal("alice"), Principal("bob")
    async with gateway.lifespan():
        listed = await gateway(call_as(alice, "tools/list", {}))
        assert sorted(tool["name"] for tool in json.loads(encode(listed))["tools"]) == ["read_result", "up_text"]
        large = await gateway(call_as(alice, "tools/call", {"name": "up_text", "arguments": {"size": 500_000}}))
        id = id_in(encode(large))
        read = {"name": "read_result", "arguments": {"id": id}}
        assert b"A line" in encode(await gateway(call_as(alice, "tools/call", read)))
        assert b"A line" in encode(await gateway(call_as(alice, "resources/read", {"uri": f"result://{id}"})))
        with pytest.raises(ToolError, match="Unknown or expired"):
            await gateway(call_as(bob, "tools/call", read))
        with pytest.raises(Exception, match=r"not found|Unknown"):
            await gateway(call_as(bob, "resources/read", {"uri": f"result://{id}"}))


@pytest.mark.parametrize("version", ["2025-11-25", "2026-07-28"])
async def test_results_of_tasks_are_bounded(version: Any) -> None:
    async with Client(Gateway({"up": upstream()}), protocol_version=version) as client:
        task = await client.start_task("up_slow", {"size": 500_000})
        result = await task.result()
        assert tokens_of(result) <= 20_000
        read = await client.call_tool("read_result", {"id": id_in(result), "offset": 499_992})
        assert read.content[0].text == "A line.\n"
