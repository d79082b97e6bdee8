"""The configuration file is watched continuously, whatever it or an upstream contains."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from portico import Client, Server
from portico.extend import http_request, serve_http
from portico_gateway import Gateway
from portico_gateway.cli.gateway import _format_report, _is_healthy
from portico_gateway.gateway import gateway as gateways

# A server whose second tool has an `x-mcp-header` DEPTH levels below its schema.
HOSTILE = r"""
import json, sys
depth = DEPTH
schema = '{"type":"object","properties":{"a":' * depth + '{"type":"string","x-mcp-header":"A"}' + '}}' * depth
tools = [
    '{"name":"good","inputSchema":{"type":"object"}}', '{"name":"deep","inputSchema":%s}' % schema,
    '{"name":"wide","inputSchema":{"type":"object","properties":{%s}}}'
    % ",".join('"p%d":{"type":"string","x-mcp-header":"P%d"}' % (n, n) for n in range(2000)),
]
for line in sys.stdin:
    message = json.loads(line)
    if "method" not in message or "id" not in message:
        continue
    result = "{}"
    if message["method"] == "initialize":
        result = json.dumps({
            "protocolVersion": "2025-06-18", "capabilities": {"tools": {}},
            "serverInfo": {"name": "hostile", "version": "1"},
        })
    elif message["method"] == "tools/list":
        result = '{"tools":[%s]}' % ",".join(tools)
    elif message["method"] == "tools/call":
        result = '{"content":[{"type":"text","text":"called"}]}'
    print('{"jsonrpc":"2.0","id":%s,"result":%s}' % (json.dumps(message["id"]), result), flush=True)
"""
RULES = '[[rule]]\ntool = "*.good"\ndeny = true\n[[rule]]\ntool = "*"\n'


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateways, "WATCH_SECONDS", 0.05)


def upstream(tmp_path: Path, alias: str, depth: int) -> str:
    script = tmp_path / f"{alias}.py"
    script.write_text(HOSTILE.replace("DEPTH", str(depth)))
    return f"[upstream.{alias}]\ncommand = {json.dumps([sys.executable, str(script)])}\n"


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(30):
        while not await condition():  # noqa: ASYNC110
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("depth", [300, 5_000, 100_000])
async def test_rule_added_with_a_deep_schema_upstream_takes_effect(
    tmp_path: Path, depth: int, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "gateway.toml"
    kind, hostile = upstream(tmp_path, "kind", 1), upstream(tmp_path, "hostile", depth)
    file.write_text(kind + hostile)
    gateway = Gateway.load(file, max_result_tokens=0)
    async with Client(gateway) as client:
        await gateway.wait_until_listed(30)
        names = {"kind_good", "kind_deep", "kind_wide"}

        async def lists(wanted: set[str]) -> bool:
            return {tool.name for tool in await client.list_tools(refresh=True)} == wanted

        await until(lambda: lists(names))
        assert "nested too deeply" in str(gateway.status_report()) + caplog.text
        file.write_text(kind + hostile + upstream(tmp_path, "third", 1))
        await until(lambda: lists(names | {"third_good", "third_deep", "third_wide"}))
        file.write_text(kind + hostile + RULES)
        await until(lambda: lists({"kind_deep", "kind_wide"}))
        assert gateway.status_report()["configuration"]["problem"] == ""


# Each is refused for another reason: its syntax, its depth, an exception that is no UsageError.
INVALID = {
    "syntax": "{",
    "depth": '{"mcpServers":' + "[" * 100_000,
    "unexpected": json.dumps({"mcpServers": {"b": {"command": "x", "env": {"A": "b"}}}}).replace(
        '"b"}', '{"a":' * 900 + "1" + "}" * 900 + "}"
    ),
}


@pytest.mark.parametrize("name", INVALID)
async def test_invalid_file_is_reported_and_the_server_stays_ready(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "mcp.json"
    file.write_text('{"mcpServers":{}}')
    gateway = Gateway.load(file, max_result_tokens=0)
    gateway.add_upstream("here", Server("here"))
    stop, ready = asyncio.Event(), asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(serve_http(gateway, port=0, on_ready=ready.set_result, stop=stop))
    url = (await asyncio.wait_for(ready, 20)).removesuffix("/mcp")

    async def get(path: str) -> str:
        answer = await http_request("GET", url + path, headers=[], timeout=20, max_response_bytes=1 << 20)
        assert answer.status == 200
        return answer.body.decode()

    async def fails(times: int) -> bool:
        return gateway.status_report()["configuration"]["failures"] >= times

    try:
        # It is ready when every upstream was tried.
        await gateway.wait_until_listed(20)
        assert "configuration: ok" in await get("/readyz")
        file.write_text(INVALID[name])
        await until(lambda: fails(1))
        file.write_text(INVALID[name] + " ")
        await until(lambda: fails(2))
        assert caplog.text.count("mcp.json is not applied") == 2
        assert "configuration: not applied since" in await get("/readyz")
        metrics = await get("/metrics")
        assert "portico_gateway_configuration_not_applied 1" in metrics
        assert "portico_gateway_reload_failures_total 2" in metrics
        report = gateway.status_report()
        assert not _is_healthy(report) and "configuration: not applied since" in _format_report(report)
        file.write_text('{"mcpServers":{}}')

        async def applied() -> bool:
            return "configuration: ok" in await get("/readyz")

        await until(applied)
        assert _is_healthy(gateway.status_report())
        assert "portico_gateway_configuration_not_applied 0" in await get("/metrics")
    finally:
        stop.set()
        await serving


async def test_upstream_that_cannot_be_added_hides_no_rule_and_no_other_upstream(tmp_path: Path) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text("")
    gateway = Gateway.load(file, max_result_tokens=0)
    # The file cannot add an upstream whose names would begin in the same way.
    gateway.add_upstream("h.b", Server("hub"))
    async with Client(gateway) as client:

        async def lists(wanted: set[str]) -> bool:
            return {tool.name for tool in await client.list_tools(refresh=True)} == wanted

        file.write_text(upstream(tmp_path, "h_b", 1) + upstream(tmp_path, "kind", 1) + RULES)
        await until(lambda: lists({"kind_deep", "kind_wide"}))
        problem = gateway.status_report()["configuration"]["problem"]
        assert problem.startswith("upstream h_b:") and "kind" not in problem
        file.write_text(upstream(tmp_path, "kind", 1))
        await until(lambda: lists({"kind_good", "kind_deep", "kind_wide"}))
        assert gateway.status_report()["configuration"]["problem"] == ""


async def test_status_lists_the_background_tasks(tmp_path: Path) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text("")
    async with Client(Gateway.load(file, max_result_tokens=0)):
        pass
    gateway = Gateway.load(file, max_result_tokens=0)
    async with gateway.lifespan():
        names = {task["name"]: task["state"] for task in gateway.status_report()["tasks"]}
        assert names["gateway configuration watcher"] == "running"
        assert names["gateway idle connections"] == "running"
