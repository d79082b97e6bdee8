"""The HTTP benchmark without peers and wrk: pure functions and a minimal server."""

from __future__ import annotations

import asyncio
import json
import os
import select
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from portico import Server
from portico.rpc.channel import Channel
from support.paths import ROOT
from support.scripts import load_scripts

FOLDER = ROOT / "benchmarks"
NAMES = ("driver", "peers", "call_counts", "scenarios", "goals", "table", "wrk", "bare")
NAMES += ("http_driver", "http_peers", "http_scenarios", "http_table")

# Its second argument is the way in which it misbehaves.
FAKE = """
import http.server, json, os, sys, time
how = sys.argv[2] if len(sys.argv) > 2 else ""
if how == "dies": sys.exit("no such luck")
if how == "forks" and os.fork() == 0: time.sleep(60)
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *_): pass
    def do_POST(self):
        m = json.loads(self.rfile.read(int(self.headers["content-length"]))); p = m.get("params") or {}
        said = {"jsonrpc": "2.0", "id": 7 if how == "confuses" else m.get("id")}
        if m["method"] == "initialize": said["result"] = {"protocolVersion": p["protocolVersion"]}
        elif how == "refuses": said["error"] = {"code": -32601, "message": "no"}
        elif m["method"] == "tools/call":
            total = 7 if how == "wrong" else sum(p["arguments"].values())
            said["result"] = {"content": [{"type": "text", "text": str(total)}]}
        else: said["result"] = {}
        session = self.headers.get("mcp-session-id")
        status = 404 if how == "forgets" and session else 503 if how == "busy" else 200
        body = json.dumps(said).encode()
        if how == "events": body = b"event: message\\ndata: " + body + b"\\n\\n"
        self.send_response(status)
        if m["method"] == "initialize": self.send_header("mcp-session-id", "s1")
        self.send_header("content-type", "text/event-stream" if how == "events" else "application/json")
        self.send_header("content-length", str(len(body))); self.end_headers(); self.wfile.write(body)
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""

DONE = {"requests": 1000, "microseconds": 2_000_000, "p50": 1500, "p99": 9000}
TROUBLE = {"connect": 0, "read": 0, "write": 0, "status": 0, "timeout": 0}


@pytest.fixture(scope="module")
def bench() -> Iterator[SimpleNamespace]:
    with load_scripts(NAMES, FOLDER, FOLDER / "servers") as scripts:
        yield scripts


def fake(bench: SimpleNamespace, how: str = "", tool: str | None = "add", **options: Any) -> Any:
    command = [sys.executable, "-I", "-S", "-c", FAKE, "{port}", how]
    # The fake has braces of its own, which the port must not be looked for in.
    command[4] = FAKE.replace("{", "{{").replace("}", "}}")
    core = min(os.sched_getaffinity(0))
    return bench.http_driver.HttpDriver(command, tool=tool, core=core, timeout=10, **options)


def peer(bench: SimpleNamespace, key: str = "portico", **fields: Any) -> Any:
    return bench.http_peers.HttpPeer(key=key, title=key, package=key, **fields)


# What wrk says


def test_numbers_are_read_from_the_line_of_our_script(bench: SimpleNamespace) -> None:
    text = f"Running 2s test @ http://127.0.0.1:1/\n  Requests/sec: 9\n{json.dumps({**DONE, **TROUBLE})}\n"
    load = bench.wrk.parse(text)
    assert (load.requests, load.seconds, load.p50_us, load.p99_us) == (1000, 2.0, 1500, 9000)
    assert load.per_second == 500


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        ("unable to connect to 127.0.0.1:1 Connection refused", "without its numbers"),
        (json.dumps({**DONE, **TROUBLE, "status": 3}), "of 1000 requests: 3 non-2xx answers"),
        (json.dumps({**DONE, **TROUBLE, "read": 1, "timeout": 2}), "1 failed reads, 2 timeouts"),
        (json.dumps({**DONE, **TROUBLE, "connect": 1}), "1 failed connects"),
        (json.dumps({**DONE, **TROUBLE, "write": 1}), "1 failed writes"),
        (json.dumps({**DONE, **TROUBLE, "requests": 0}), "no answer at all"),
    ],
)
def test_one_invalid_response_fails_the_run(bench: SimpleNamespace, output: str, reason: str) -> None:
    with pytest.raises(bench.driver.DriverError, match=reason):
        bench.wrk.parse(output)


def test_every_request_of_the_script_has_its_own_number(bench: SimpleNamespace) -> None:
    request = bench.http_driver.post(1, {"id": 1000000, "params": {"a": 1000000, "b": '"\\'}})
    text = bench.wrk.script(request)
    assert text.count(" .. n .. ") == 2
    assert "1000000" not in text.split("function request")[1]
    (line,) = [line for line in text.splitlines() if line.startswith("  return")]
    parts = [json.loads(part) for part in line.removeprefix("  return ").split(" .. n .. ")]
    assert "1000001".join(parts).encode() == request.replace(b"1000000", b"1000001")


def test_wrk_that_cannot_be_had_is_a_reason(bench: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench.wrk.shutil, "which", lambda name: None if name == "wrk" else "/apt-get")
    monkeypatch.setattr(bench.wrk.os, "geteuid", lambda: 1000)
    with pytest.raises(bench.peers.NotInstalled, match="only root"):
        bench.wrk.find()


# What is sent


def test_modern_request_repeats_itself_in_its_headers(bench: SimpleNamespace) -> None:
    head, _, body = fake(bench).compose({}).decode().partition("\r\n\r\n")
    lines = head.split("\r\n")
    assert {"mcp-protocol-version: 2026-07-28", "mcp-method: tools/call", "mcp-name: add"} <= set(lines)
    assert f"content-length: {len(body)}" in lines
    message = json.loads(body)
    assert message["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"] == "2026-07-28"
    assert message["id"] == message["params"]["arguments"]["a"] == int(bench.wrk.NUMBER)


def test_fresh_request_has_a_head_that_never_repeats(bench: SimpleNamespace) -> None:
    same, fresh = fake(bench).compose({}), fake(bench, fresh=True).compose({})
    assert bench.wrk.NUMBER.encode() not in same.partition(b"\r\n\r\n")[0]
    assert b"x-request-id: " + bench.wrk.NUMBER.encode() in fresh.partition(b"\r\n\r\n")[0]


def test_request_in_a_session_names_it_and_no_metadata(bench: SimpleNamespace) -> None:
    with fake(bench, session=True) as driver:
        driver.open()
    assert b"mcp-session-id: s1\r\n" in driver.request
    assert b"mcp-protocol-version: 2025-11-25\r\n" in driver.request
    assert b"_meta" not in driver.request


# What comes back


@pytest.mark.parametrize(
    ("how", "tool", "session"), [("", "add", False), ("events", None, True), ("events", "add", True)]
)
def test_right_answer_passes(bench: SimpleNamespace, how: str, tool: str | None, session: bool) -> None:
    with fake(bench, how, tool, session=session) as driver:
        driver.open()
        driver.check(1000007)
        assert driver.rss_bytes() > 1_000_000
        assert driver.cpu_ns() > 0


@pytest.mark.parametrize(
    ("how", "session", "reason"),
    [
        ("dies", False, "the server ended: no such luck"),
        ("busy", False, "status 503"),
        ("forgets", True, "status 404"),
        ("refuses", False, "error -32601: no"),
        ("wrong", False, "gave"),
        ("confuses", False, "answered as 7"),
    ],
)
def test_wrong_answer_is_an_error(bench: SimpleNamespace, how: str, session: bool, reason: str) -> None:
    with fake(bench, how, session=session) as driver, pytest.raises(bench.driver.DriverError, match=reason):
        driver.open()


def test_server_of_several_processes_is_counted_and_ended_as_one(bench: SimpleNamespace) -> None:
    with fake(bench, "forks") as driver:
        driver.open()
        pids = list(bench.http_driver.tree(driver.child.pid))
        alone = bench.driver.rss_bytes(driver.child.pid)
        assert len(pids) == 2
        assert driver.rss_bytes() > alone
        assert all(os.sched_getaffinity(pid) == {driver.core} for pid in pids)
        fork = os.pidfd_open(pids[1])
    gone = select.poll()
    gone.register(fork, select.POLLIN)
    try:
        assert gone.poll(10_000)
    finally:
        os.close(fork)


def test_runner_itself_is_not_left_on_one_core(bench: SimpleNamespace) -> None:
    before = os.sched_getaffinity(0)
    with pytest.raises(ZeroDivisionError), bench.wrk.on_core(min(before)):
        assert os.sched_getaffinity(0) == {min(before)}
        raise ZeroDivisionError
    assert os.sched_getaffinity(0) == before


async def test_bare_servers_return_the_same_response_as_portico(bench: SimpleNamespace) -> None:
    server = Server("bench", version="1.0.0")

    @server.tool
    async def add(a: int, b: int) -> int:
        return a + b

    body = fake(bench).compose({}).partition(b"\r\n\r\n")[2]
    answered = asyncio.get_running_loop().create_future()
    assert Channel(server, answered.set_result).receive(body) is None
    assert bench.bare.answer(body) == await answered


# What follows


def test_verdicts_follow_from_the_numbers(bench: SimpleNamespace) -> None:
    answers = bench.scenarios.Answers()
    rates = {"portico": 40_000, "portico-fresh": 30_000, "mcp": 2_000, "go": 21_000, "bare-protocol": 90_000}
    processor = {"portico-granian": 80, "bare-granian": 50, "portico-uvicorn": 81, "bare-uvicorn": 50}
    for key, value in rates.items():
        answers.add("rate_32", peer(bench, key), value)
    for key, value in processor.items():
        answers.add("cpu_32", peer(bench, key), value)
    goals = bench.goals.judge_http(answers)
    assert [goal.verdict for goal in goals] == ["met", "undecided", "missed", "met", "met", "missed"]
    assert [goal.measured.partition(" (")[0] for goal in goals] == [
        "20.00 times",
        "1.90 times",
        "0.44 times",
        "0.33 times",
        "1.60 times",
        "1.62 times",
    ]


def test_http_goal_reports_the_rate_with_new_headers(bench: SimpleNamespace) -> None:
    answers = bench.scenarios.Answers()
    for key, value in {"portico": 40_000, "portico-fresh": 20_000, "mcp": 2_000}.items():
        answers.add("rate_32", peer(bench, key), value)
    goal = bench.goals.judge_http(answers)[0]
    assert (goal.measured, goal.verdict) == ("20.00 times (10.00 with new heads)", "met")


def test_goals_without_numbers_are_not_measured(bench: SimpleNamespace) -> None:
    goals = bench.goals.judge_http(bench.scenarios.Answers())
    assert {goal.verdict for goal in goals} == {"not measured"}


@pytest.mark.parametrize("markdown", [False, True])
def test_table_has_a_line_for_each_server_and_number_of_connections(bench: SimpleNamespace, markdown: bool) -> None:
    answers, size = bench.scenarios.Answers(), bench.http_scenarios.HTTP_QUICK
    peers = [peer(bench), peer(bench, "mcp"), peer(bench, "go", tool=None, session=True, reason="no npm")]
    answers.add("rate_32", peers[0], 30_000)
    answers.add("rate_32", peers[1], 1_000)
    answers.fail("rate_1", peers[1], "wrk, of 9 requests: 3 non-2xx answers")
    goals = bench.goals.judge_http(answers)
    text = bench.http_table.report(bench.table.machine(), answers, peers, size, goals, "4.1", markdown)
    rows = [line for line in text.splitlines() if "ping, session" in line and "not installed" in line]
    assert len(rows) == len(bench.http_scenarios.CONNECTIONS)
    assert "failed: mcp: tools/call, async def, rate_1: wrk, of 9 requests: 3 non-2xx answers" in text
    assert "30.0 ×" in text
    assert "go: not installed: no npm" in text


def test_every_row_can_be_chosen_and_has_its_own_key(bench: SimpleNamespace) -> None:
    peers = bench.http_peers.HTTP_PEERS
    assert len({peer.key for peer in peers}) == len(peers)
    assert {"portico", "mcp", "fastmcp", "go", "typescript", "bare"} == set(bench.http_peers.FAMILIES)
    assert all("{port}" in peer.serve for peer in peers)
