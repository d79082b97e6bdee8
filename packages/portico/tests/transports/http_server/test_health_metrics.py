"""Health checks and metrics."""

from __future__ import annotations

import asyncio
import math
import re
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest

from portico import Server
from portico.protocol.content import TextContent
from portico.protocol.tools import CallToolResult

Serve = Callable[..., Any]
DURATION = "mcp_server_operation_duration_seconds"

# The text format of Prometheus, version 0.0.4.
_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\["\\n])*"'
_LINE = re.compile(rf"({_NAME})(?:\{{((?:{_LABEL},)*(?:{_LABEL})?)\}})? ([^ ]+)")


class Numbers:
    """/metrics, parsed strictly."""

    def __init__(self, text: str) -> None:
        assert text.endswith("\n")
        self.kinds: dict[str, str] = {}
        self.samples: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
        for line in text[:-1].split("\n"):
            if line.startswith("#"):
                _, word, name, kind = line.split(" ", 3)
                if word == "TYPE":
                    assert name not in self.kinds, f"{name} has two types"
                    self.kinds[name] = kind
                continue
            match = _LINE.fullmatch(line)
            assert match is not None, line
            name, labels, value = match.groups()
            pairs = frozenset(
                (item[0], _plain(item[1])) for item in re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', labels or "")
            )
            assert (name, pairs) not in self.samples, f"{line} stands twice"
            self.samples[name, pairs] = float(value)

    def get(self, name: str, **labels: str) -> float:
        """The sum of all samples with these labels."""
        result = set(labels.items())
        return sum(value for (one, pairs), value in self.samples.items() if one == name and result <= pairs)

    def series(self, name: str = f"{DURATION}_count") -> list[dict[str, str]]:
        return [dict(pairs) for one, pairs in self.samples if one == name]


def _plain(value: str) -> str:
    return re.sub(r"\\(.)", lambda result: {"n": "\n"}.get(result[1], result[1]), value)


async def anything(call: Any) -> Any:
    """A handler for which every name is a tool."""
    return CallToolResult(content=[TextContent(text="x")], is_error=False)


async def numbers(site: Any) -> Numbers:
    response = await site.request("GET", "/metrics")
    assert response.status == 200
    assert response["content-type"].startswith("text/plain; version=0.0.4")
    return Numbers(response.body.decode())


# Health


@pytest.mark.parametrize("path", ["/health", "/healthz"])
async def test_health_has_name_and_version(serve: Serve, server: Server, path: str) -> None:
    """docs/how-to/deploy.md: 200 with name, version, revisions and uptime."""
    site = await serve(server)
    response = await site.request("GET", path)
    assert response.status == 200
    health = response.json
    assert (health["status"], health["name"], health["version"]) == ("ok", "tested", "1.2.3")
    assert health["revisions"][0] == "2024-11-05"
    assert health["revisions"][-1] == "2026-07-28"
    assert health["uptime"] >= 0


@pytest.mark.parametrize("path", ["/health", "/healthz"])
async def test_health_needs_no_token(serve: Serve, server: Server, path: str) -> None:
    """docs/how-to/deploy.md: whoever restarts processes has none."""
    site = await serve(server, token="right")
    assert (await site.request("GET", path, {"authorization": None})).status == 200


async def test_health_is_answered_while_everything_is_busy(serve: Serve, server: Server, held: Any) -> None:
    """docs/how-to/deploy.md: limits are for calls; a busy process is not a dead one."""
    site = await serve(server, max_concurrent_requests=1)
    raw = await site.connect()
    raw.send(site.modern_bytes("tools/call", {"name": "hold", "arguments": {}}))
    await held.has_started()
    assert (await site.call("echo", {"text": "x"})).status == 503
    assert (await site.request("GET", "/health")).status == 200
    assert (await site.request("GET", "/metrics")).status == 200
    held.release.set()
    await raw.response()


async def test_metrics_need_the_token(serve: Serve, server: Server) -> None:
    """docs/how-to/deploy.md: only health is for everybody."""
    site = await serve(server, token="right")
    assert (await site.request("GET", "/metrics", {"authorization": None})).status == 401
    assert (await site.request("GET", "/metrics")).status == 200


# Metrics


async def test_numbers_of_a_fresh_server_can_be_read(serve: Serve, server: Server) -> None:
    """Prometheus, Exposition formats: also when there is nothing to tell yet."""
    site = await serve(server)
    result = await numbers(site)
    assert result.kinds[DURATION] == "histogram"
    assert result.get("mcp_server_in_flight") == 0
    assert result.kinds["mcp_server_received_bytes_total"] == "counter"


async def test_calls_are_counted_by_method_tool_and_outcome(serve: Serve, server: Server) -> None:
    """OpenTelemetry, Semantic conventions for MCP: mcp.method.name, gen_ai.tool.name, error.type."""
    site = await serve(server)
    for _ in range(3):
        await site.call("echo", {"text": "x"})
    await site.call("later", {"text": "x"})
    await site.request_stateless("tools/list")
    await site.call("talk", {"count": 0, "fail": True})
    await site.call("echo", {"text": 1})
    await site.call("ask")
    await site.call("unknown_tool")
    session = await site.initialize("2025-11-25")
    await session.call("echo", {"text": "x"})
    result = await numbers(site)
    count = f"{DURATION}_count"
    call = "tools/call"
    assert result.get(count, mcp_method_name="tools/list") == 1
    assert result.get(count, mcp_method_name=call, gen_ai_tool_name="later") == 1
    good = [item for item in result.series() if item.get("gen_ai_tool_name") == "echo" and "error_type" not in item]
    assert len(good) == 1
    assert result.samples[count, frozenset(good[0].items())] == 4
    assert result.get(count, gen_ai_tool_name="talk", error_type="tool_error") == 1
    assert result.get(count, gen_ai_tool_name="echo", error_type="tool_error") == 1
    assert result.get(count, gen_ai_tool_name="ask", error_type="-32021") == 1
    assert result.get(count, mcp_method_name=call, error_type="-32602") == 1
    assert not [item for item in result.series() if item.get("gen_ai_tool_name") == "unknown_tool"]


async def test_histogram_adds_up(serve: Serve, server: Server, held: Any) -> None:
    """Prometheus, Histograms: buckets are cumulative, the last is the count, and the sum is between the bounds."""
    site = await serve(server)
    for _ in range(50):
        await site.call("echo", {"text": "x"})
        await site.call("later", {"text": "x"})
    result = await numbers(site)
    buckets: dict[frozenset[tuple[str, str]], list[tuple[float, float]]] = defaultdict(list)
    for (name, pairs), value in result.samples.items():
        if name == f"{DURATION}_bucket":
            bound = dict(pairs)["le"]
            rest = frozenset(pair for pair in pairs if pair[0] != "le")
            buckets[rest].append((math.inf if bound == "+Inf" else float(bound), value))
    assert buckets
    for labels, series in buckets.items():
        bounds, counts = zip(*sorted(series), strict=True)
        assert bounds[-1] == math.inf
        assert list(counts) == sorted(counts)
        count, total = result.samples[f"{DURATION}_count", labels], result.samples[f"{DURATION}_sum", labels]
        assert counts[-1] == count
        each = [after - before for before, after in zip((0, *counts), counts, strict=False)]
        least = sum(number * bound for number, bound in zip(each[1:], bounds[:-1], strict=True))
        assert total >= least
        if each[-1] == 0:
            assert total <= sum(number * bound for number, bound in zip(each, bounds, strict=True) if number)


async def test_running_calls_and_sessions_are_gauges(serve: Serve, server: Server, held: Any) -> None:
    """docs/how-to/deploy.md: calls in flight, sessions, streams, bytes."""
    site = await serve(server)
    raw = await site.connect()
    raw.send(site.modern_bytes("tools/call", {"name": "hold", "arguments": {}}))
    await held.has_started()
    session = await site.initialize("2025-11-25")
    listen = await site.listen(1, toolsListChanged=True)
    await listen.message()
    during = await numbers(site)
    assert during.get("mcp_server_in_flight") == 1
    assert during.get("mcp_server_sessions") == 1
    assert during.get("mcp_server_streams") >= 1
    held.release.set()
    await raw.response()
    await session.delete()
    listen.abort()
    async with asyncio.timeout(5):
        while True:
            after = await numbers(site)
            if after.get("mcp_server_streams") == 0:
                break
    assert after.get("mcp_server_in_flight") == 0
    assert after.get("mcp_server_sessions") == 0
    assert after.get("mcp_server_uptime_seconds") >= during.get("mcp_server_uptime_seconds")
    assert after.get("mcp_server_received_bytes_total") > 0
    assert after.get("mcp_server_sent_bytes_total") > 0


async def test_bytes_are_counted_in_sessions_too(serve: Serve, server: Server) -> None:
    """docs/how-to/deploy.md: bytes. Most deployed clients are in sessions."""
    site = await serve(server)
    session = await site.initialize("2025-11-25")
    before = (await numbers(site)).get("mcp_server_sent_bytes_total")
    await session.call("large", {"size": 100_000})
    assert (await numbers(site)).get("mcp_server_sent_bytes_total") - before >= 100_000


async def test_cancelled_call_is_counted_as_such(serve: Serve, server: Server, held: Any, wait_until: Any) -> None:
    """OpenTelemetry, error.type: the name of the exception."""
    site = await serve(server)
    raw = await site.connect()
    raw.send(site.modern_bytes("tools/call", {"name": "hold", "arguments": {}}))
    await held.has_started()
    raw.abort()
    await held.was_cancelled()
    await wait_until(lambda: site.exchange.metrics.in_flight == 0)
    assert (await numbers(site)).get(f"{DURATION}_count", error_type="CancelledError") == 1


async def test_hostile_names_do_not_become_series(serve: Serve, server: Server) -> None:
    """Prometheus, Naming: labels of unbounded cardinality kill whoever scrapes them."""
    site = await serve(server)
    raw = await site.connect()
    session = await site.initialize("2025-11-25")
    for number in range(300):
        for data in (
            site.modern_bytes("tools/call", {"name": f"made-up-{number}", "arguments": {}}),
            site.modern_bytes(f"made/up/{number}"),
            site.modern_bytes("prompts/get", {"name": f"made-up-{number}"}),
            site.modern_bytes("resources/read", {"uri": f"made-up://{number}"}),
        ):
            raw.send(data)
            await raw.response()
    for number in range(20):
        await session.call(f"made-up-{number}")
        await session.request(f"made/up/{number}")
    result = await numbers(site)
    assert len(result.series()) < 15
    assert not [item for item in result.series() if "made" in str(item)]


async def test_metric_label_values_are_escaped(serve: Serve, server: Server) -> None:
    """Prometheus, Exposition formats: backslash, quote and line feed. A mounted handler may have any name."""
    server.mount(anything)
    site = await serve(server)
    strange = 'quote" back\\slash'
    await site.call(strange, headers={"mcp-name": strange})
    result = await numbers(site)
    assert [item for item in result.series() if item.get("gen_ai_tool_name") == strange]


async def test_mounted_handler_that_takes_any_name_does_not_fill_the_series(serve: Serve, server: Server) -> None:
    """The same: where every name is a tool, the number of series has an end."""
    server.mount(anything)
    site = await serve(server)
    raw = await site.connect()
    for number in range(2500):
        raw.send(site.modern_bytes("tools/call", {"name": f"any-{number}", "arguments": {}}))
        await raw.response()
    result = await numbers(site)
    assert len(result.series()) <= 2010
    assert result.get(f"{DURATION}_count") == 2500
