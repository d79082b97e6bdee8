"""Status of a gateway: for operators, health probes and metrics."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from portico import Client, Server
from portico.auth import InvalidToken, Principal
from portico.cli.main import main
from portico.extend import http_request, serve_http
from portico.transports.http_server.workers import metrics as sums
from portico_gateway import Gateway
from portico_gateway.cli.gateway import _format_report, _is_healthy
from portico_gateway.gateway.status import merge_reports
from support.paths import PROGRAMS

SERVER = PROGRAMS / "elicitation_server.py"
DYING = "import sys; print('cannot find the KEY-42', file=sys.stderr); sys.exit(1)"


def upstream() -> Server:
    server = Server("a")

    @server.tool
    async def work() -> str:
        return "done"

    return server


class Served:
    """A gateway over HTTP, for as long as it is needed."""

    def __init__(self, gateway: Gateway, **options: Any) -> None:
        self.stop = asyncio.Event()
        self.ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.task = asyncio.create_task(
            serve_http(gateway, port=0, on_ready=self.ready.set_result, stop=self.stop, **options)
        )

    async def __aenter__(self) -> Served:
        self.url = (await asyncio.wait_for(self.ready, 20)).removesuffix("/mcp")
        return self

    async def __aexit__(self, *_: object) -> None:
        self.stop.set()
        await self.task

    async def get(self, path: str, token: str | None = None) -> tuple[int, str]:
        headers = [("Authorization", f"Bearer {token}")] if token else []
        answer = await http_request("GET", self.url + path, headers=headers, timeout=20, max_response_bytes=1 << 20)
        return answer.status, answer.body.decode()


def broken() -> Gateway:
    return Gateway({"a": upstream(), "b": [sys.executable, "-c", DYING]})


async def test_status_is_for_the_operator_alone() -> None:
    async with Served(broken(), operator_token="op-token") as served:
        async with Client(f"{served.url}/mcp") as client:
            await client.call_tool("a_work")
        assert (await served.get("/gateway/status"))[0] == 403
        assert (await served.get("/gateway/status", "wrong"))[0] in (401, 403)
        status, message = await served.get("/gateway/status", "op-token")
        assert status == 200
        a, b = json.loads(message)["upstreams"]
        assert (a["up"], a["calls"] >= 1, a["lists_from"]) == (True, True, "upstream")
        assert (b["up"], b["stderr"]) == (False, ["cannot find the KEY-42"])
        assert b["since"] and b["retry_after"] > 0


async def test_status_requires_a_token() -> None:
    async with Served(broken()) as served:
        assert (await served.get("/gateway/status"))[0] == 403


async def test_probe_has_a_line_for_each_upstream() -> None:
    async with Served(broken()) as served:
        async with Client(f"{served.url}/mcp") as client:
            await client.list_tools()
        status, message = await served.get("/readyz")
        lines = message.splitlines()
        assert (status, lines[:2]) == (200, ["ok", "a: ok"])
        assert lines[2].startswith("b: unavailable since") and "KEY-42" not in message


async def test_probe_without_a_token_learns_only_whether_it_is_ready() -> None:
    gateway = Gateway({"b": [sys.executable, "-c", DYING]})
    async with Served(gateway, token="secret") as served:
        async with Client(f"{served.url}/mcp", auth="secret") as client:
            await client.list_tools()
        assert await served.get("/readyz") == (503, "not ready\n")
        assert (await served.get("/readyz", "secret"))[1].startswith("not ready\nb: unavailable")


async def test_unverified_token_reveals_nothing_to_probes() -> None:
    async def verify(credentials: Any) -> Principal:
        await asyncio.sleep(0)
        if credentials.token != "good":
            raise InvalidToken("unknown")
        return Principal("ann")

    gateway = Gateway({"b": [sys.executable, "-c", DYING]}, auth=verify)
    async with Served(gateway) as served:
        assert [line[:2] for line in (await served.get("/readyz", "made-up"))[1].splitlines()[1:]] == []
        assert [line[:2] for line in (await served.get("/readyz", "good"))[1].splitlines()[1:]] == ["b:"]


async def test_metrics_by_upstream() -> None:
    async with Served(broken()) as served:
        async with Client(f"{served.url}/mcp") as client:
            await client.call_tool("a_work")
        lines = (await served.get("/metrics"))[1].splitlines()
    assert 'mcp_client_operation_duration_seconds_count{upstream="a"} 1' in lines
    assert 'portico_upstream_up{upstream="a"} 1' in lines
    assert 'portico_upstream_up{upstream="b"} 0' in lines
    assert "portico_gateway_name_conflicts 0" in lines


@pytest.fixture
def served(tmp_path: Path) -> Iterator[str]:
    """`portico serve` of a file, in a process of its own."""
    file = tmp_path / "mcp.json"
    item = {"command": sys.executable, "args": [str(SERVER)]}
    file.write_text(
        json.dumps({"mcpServers": {"one": item, "dead": {"command": sys.executable, "args": ["-c", DYING]}}})
    )
    environment = {key: value for key, value in os.environ.items() if key != "PORTICO_OPERATOR_TOKEN"}
    child = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "portico",
            "serve",
            str(file),
            "--transport",
            "http",
            "--port",
            "0",
            "--data",
            str(tmp_path),
        ],
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    assert child.stderr is not None
    try:
        yield next(line for line in child.stderr if "Serving on" in line).split()[-1].removesuffix("/mcp")
    finally:
        child.send_signal(signal.SIGTERM)
        child.wait(20)
        child.stderr.close()


async def until_ready(url: str) -> None:
    async def is_ready() -> bool:
        return (
            await http_request("GET", f"{url}/readyz", headers=[], timeout=20, max_response_bytes=1 << 20)
        ).status == 200

    async with asyncio.timeout(60):
        while not await is_ready():  # noqa: ASYNC110
            await asyncio.sleep(0.05)


def test_command_finds_the_token_of_its_user(
    served: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PORTICO_OPERATOR_TOKEN", raising=False)
    asyncio.run(until_ready(served))
    main(["call", f"{served}/mcp", "one_add", "a=1", "b=2", "--data", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        main(["gateway", "status", served, "--data", str(tmp_path)])
    output = capsys.readouterr().out
    # One of the two is away.
    assert ended.value.code == 1
    assert "dead: unavailable since" in output and "dead: cannot find the KEY-42" in output
    with pytest.raises(SystemExit) as refused:
        main(["gateway", "status", served, "--data", str(tmp_path / "other"), "--token", "wrong"])
    assert refused.value.code == 2


@pytest.mark.parametrize("name", ["gateway.toml", "./mcp.json", "/etc/portico/gateway.toml", "my gateway.toml"])
def test_status_of_a_file_asks_for_a_url(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        main(["gateway", "status", name])
    assert refused.value.code == 2
    message = capsys.readouterr().err
    assert "expected the URL of a running gateway, such as http://127.0.0.1:8080, got the file" in message
    assert f"`portico gateway check {shlex.quote(name)}`" in message


SLOW = "import time; time.sleep(1.0)\nfrom portico import Server\nserver = Server('slow')\nserver.run()\n"


async def test_not_ready_until_every_upstream_was_tried_once(tmp_path: Path) -> None:
    script = tmp_path / "slow.py"
    script.write_text(SLOW)
    gateway = Gateway({"slow": [sys.executable, str(script)], "dead": ["/there/is/no/such/program"]})
    async with Served(gateway) as served:
        assert "portico_upstream_up{" not in (await served.get("/metrics"))[1]
        status, message = await served.get("/readyz")
        assert (status, message.splitlines()[:2]) == (503, ["not ready", "slow: not tried yet"])
        # The probe itself has started the first attempts.
        await until_ready(served.url)
        assert [status_item["state"] for status_item in gateway.status()] == ["ok", "away"]
        metrics = (await served.get("/metrics"))[1].splitlines()
        assert {'portico_upstream_up{upstream="slow"} 1', 'portico_upstream_up{upstream="dead"} 0'} <= set(metrics)


def test_upstream_that_was_not_tried_is_shown_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    report = Gateway({"dead": ["/there/is/no/such/program"]}).status_report()
    assert [(upstream["state"], upstream["up"]) for upstream in report["upstreams"]] == [("not tried", False)]
    assert "not tried yet" in _format_report(report) and _is_healthy(report)


def test_stderr_of_a_working_upstream_is_not_repeated() -> None:
    report = Gateway({"a": upstream()}).status_report()
    (state,) = report["upstreams"]
    state.update(state="ok", up=True, stderr=["npm warn deprecated"])
    assert "npm warn" not in _format_report(report)
    state.update(state="away", up=False, since=1.0)
    assert "npm warn" in _format_report(report)


def test_reports_of_workers_are_merged() -> None:
    gateway = Gateway({"a": upstream()})
    untried, well, away = (gateway.status_report() for _ in range(3))
    well["upstreams"][0].update(state="ok", up=True, calls=3, connections=1)
    away["upstreams"][0].update(state="away", up=False, since=5.0, error="boom", calls=2, connections=1)
    merged = merge_reports([untried, well])["upstreams"][0]
    assert (merged["state"], merged["up"], merged["calls"]) == ("ok", True, 3)
    for order in ([untried, well, away], [away, well, untried]):
        report = merge_reports(order)
        (merged,) = report["upstreams"]
        assert (merged["state"], merged["up"], merged["since"], merged["error"]) == ("away", False, 5.0, "boom")
        assert (merged["calls"], merged["connections"], report["workers"]) == (5, 2, 3)


def test_up_is_the_minimum_over_workers() -> None:
    up = 'portico_upstream_up{upstream="a"}'
    kind = "# TYPE portico_upstream_up gauge"
    texts = [f"{kind}\n{up} {value}\n" for value in (1, 1)]
    assert f"{up} 1\n" in sums.aggregate_metrics([*texts, f"{kind}\n"])
    assert f"{up} 0\n" in sums.aggregate_metrics([*texts, f"{kind}\n{up} 0\n"])
