"""OpenTelemetry conventions for MCP (semconv, gen-ai/mcp), received over OTLP."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.otlp import SERVED, Receiver, attributes, call, receiving, serving

pytest.importorskip("opentelemetry.proto")

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"
SERVER, CLIENT, ERROR = 2, 3, 2


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Receiver]:
    """Calls from a client through a gateway to a server, all of which export; then all is over."""
    folder = tmp_path_factory.mktemp("seen")
    with receiving() as (kept, env):
        _make_calls(folder, env)
        yield kept


def _make_calls(folder: Path, env: dict[str, str]) -> None:
    with serving(SERVED, log=folder / "server.log", **env) as url:
        (folder / "gateway.json").write_text(json.dumps({"mcpServers": {"up": {"url": url}}}))
        with serving(folder / "gateway.json", log=folder / "gateway.log", **env, OTEL_SERVICE_NAME="gate") as gateway:
            assert call(gateway, "up_double", "n=4", **env).returncode == 0
        assert call(url, "refuse").returncode == 1
        assert call(url, "breaks").returncode == 1
        # A session of an older revision, of a client that exports too.
        assert (
            call(url, "double", "n=1", "--protocol-version", "2025-11-25", **env, OTEL_SERVICE_NAME="older").returncode
            == 0
        )
        _post(url, {"traceparent": PARENT}, {})
        _post(url, {}, {"traceparent": PARENT})


def _post(url: str, meta: dict[str, Any], headers: dict[str, str]) -> None:
    message = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
        **meta,
    }
    params = {"name": "double", "arguments": {"n": 1}, "_meta": message}
    body = json.dumps({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params})
    known_names = {
        "content-type": "application/json",
        "accept": "application/json, text/event-stream",
        "mcp-protocol-version": "2026-07-28",
        "mcp-method": "tools/call",
        "mcp-name": "double",
    }
    result = urllib.request.Request(url, body.encode(), {**known_names, **headers})
    with urllib.request.urlopen(result, timeout=30) as answer:
        assert json.load(answer)["result"]["structuredContent"] == {"result": 2}


def _named(kept: Receiver, service: str, name: str) -> list[Any]:
    return [span for whose, span in kept.spans if (whose, span.name) == (service, name)]


def test_one_call_is_one_trace_from_the_client_through_the_gateway_to_the_server(seen: Receiver) -> None:
    (request,) = _named(seen, "portico", "tools/call up_double")
    (entered,) = _named(seen, "gate", "tools/call up_double")
    (passed,) = [span for span in _named(seen, "gate", "tools/call double") if span.kind == CLIENT]
    (answered,) = [span for span in _named(seen, "watched", "tools/call double") if span.trace_id == request.trace_id]
    assert (request.kind, entered.kind, passed.kind, answered.kind) == (CLIENT, SERVER, CLIENT, SERVER)
    assert entered.parent_span_id == request.span_id
    assert passed.parent_span_id == entered.span_id
    assert answered.parent_span_id == passed.span_id
    assert {span.trace_id for span in (request, entered, passed, answered)} == {request.trace_id}


def test_server_span_follows_the_conventions(seen: Receiver) -> None:
    span = next(span for span in _named(seen, "watched", "tools/call double") if span.trace_id.hex() == TRACE)
    about = attributes(span)
    assert about["mcp.method.name"] == "tools/call"
    assert about["gen_ai.tool.name"] == "double"
    assert about["gen_ai.operation.name"] == "execute_tool"
    assert about["mcp.protocol.version"] == "2026-07-28"
    assert about["jsonrpc.request.id"] == "7"
    assert about["network.transport"] == "tcp"
    assert about["client.address"] == "127.0.0.1"
    assert "error.type" not in about


def test_trace_comes_from_meta_or_from_the_headers(seen: Receiver) -> None:
    inherited = [span for span in _named(seen, "watched", "tools/call double") if span.trace_id.hex() == TRACE]
    assert [span.parent_span_id.hex() for span in inherited] == ["b7ad6b7169203331"] * 2


def test_tool_error_sets_the_span_status(seen: Receiver) -> None:
    (span,) = _named(seen, "watched", "tools/call refuse")
    assert (span.status.code, attributes(span)["error.type"]) == (ERROR, "tool_error")
    assert not span.events


def test_exception_is_recorded_with_its_error_id(seen: Receiver) -> None:
    (span,) = _named(seen, "watched", "tools/call breaks")
    assert (span.status.code, attributes(span)["error.type"]) == (ERROR, "KeyError")
    assert len(attributes(span)["portico.error_id"]) == 8
    assert [event.name for event in span.events] == ["exception"]


@pytest.mark.parametrize(
    "service, name", [("watched", "mcp.server.operation.duration"), ("gate", "mcp.client.operation.duration")]
)
def test_durations_are_measured_in_seconds(seen: Receiver, service: str, name: str) -> None:
    results = [one for whose, one in seen.metrics if (whose, one.name) == (service, name)]
    assert results[-1].unit == "s"
    points = {attributes(point).get("gen_ai.tool.name"): point for point in results[-1].histogram.data_points}
    assert points["double"].count >= 1
    assert points["double"].explicit_bounds[0] == 0.01


@pytest.mark.parametrize(
    "service, name", [("watched", "mcp.server.session.duration"), ("older", "mcp.client.session.duration")]
)
def test_sessions_are_measured_from_both_ends(seen: Receiver, service: str, name: str) -> None:
    results = [item for whose, item in seen.metrics if (whose, item.name) == (service, name)]
    points = [point for item in results for point in item.histogram.data_points]
    assert points
    assert {attributes(point)["network.transport"] for point in points} == {"tcp"}
    assert all(point.count >= 1 and point.sum > 0 for point in points)


def test_opentelemetry_is_imported_only_if_configured(tmp_path: Path) -> None:
    """What is not used costs nothing."""
    code = (
        "import sys, asyncio\nfrom portico import Client\n"
        f"async def main():\n async with Client({str(SERVED)!r}) as c: await c.call_tool('double', {{'n': 1}})\n"
        "asyncio.run(main())\nprint([m for m in sys.modules if m.startswith('opentelemetry')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert (done.stdout, done.stderr) == ("[]\n", "")
