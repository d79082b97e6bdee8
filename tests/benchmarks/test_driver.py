"""The benchmark harness, with minimal servers instead of peers."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from support.paths import ROOT
from support.scripts import load_scripts

FOLDER = ROOT / "benchmarks"
NAMES = ("driver", "peers", "call_counts", "scenarios", "goals", "table")

# Speaks both eras. Its argument is the way in which it misbehaves.
FAKE = """
import json, sys, time
how = sys.argv[1] if len(sys.argv) > 1 else ""
def say(**message): sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\\n"); sys.stdout.flush()
held = []
for line in sys.stdin:
    m = json.loads(line); p = m.get("params") or {}
    if "id" not in m: continue
    if m["method"] == "initialize": r = {"protocolVersion": p["protocolVersion"]}
    elif m["method"] == "tools/call": r = {"content": [{"type": "text", "text": str(sum(p["arguments"].values()))}]}
    elif m["method"] == "tools/list": r = {"tools": [{}] * 500, **({} if p.get("cursor") else {"nextCursor": "2"})}
    else: r = {"seen": p}
    if m["method"] != "initialize":
        if how == "silent": time.sleep(60)
        if how == "dies": sys.exit("no such luck")
        if how == "chatty": say(method="notifications/message", params={})
        if how == "wrong": r = {"content": [{"type": "text", "text": "7"}]}
        if how == "refuses": say(id=m["id"], error={"code": -32601, "message": "no"}); continue
        if how == "swaps" and not held: held.append((m["id"], r)); continue
    say(id=m["id"], result=r)
    if held: i, r = held.pop(); say(id=i, result=r)
"""


@pytest.fixture(scope="module")
def bench() -> Iterator[SimpleNamespace]:
    with load_scripts(NAMES, FOLDER) as scripts:
        yield scripts


def fake(bench: SimpleNamespace, how: str = "", **options: Any) -> Any:
    return bench.driver.Driver(
        [sys.executable, "-I", "-S", "-c", FAKE, how], timeout=options.pop("timeout", 10), **options
    )


def peer(bench: SimpleNamespace, key: str = "portico", **fields: Any) -> Any:
    return bench.peers.Peer(key=key, title=key, package=key, server="x.py", **fields)


def test_handshake_measures_time_to_first_response(bench: SimpleNamespace) -> None:
    with fake(bench) as driver:
        assert 0 < driver.open() < 10e9


def test_modern_requests_carry_their_metadata(bench: SimpleNamespace) -> None:
    with fake(bench, modern=True) as driver:
        driver.open()
        seen = driver.ask("x", {"a": 1})["seen"]
    assert seen["a"] == 1
    assert seen["_meta"]["io.modelcontextprotocol/protocolVersion"] == "2026-07-28"
    assert seen["_meta"]["io.modelcontextprotocol/clientCapabilities"] == {}


def test_sequential_batch_has_cpu_and_a_latency_for_each(bench: SimpleNamespace) -> None:
    with fake(bench) as driver:
        driver.open()
        batch = bench.scenarios.call(driver, "add", 30)
        assert driver.rss_bytes() > 1_000_000
    assert batch.count == len(batch.latencies_ns) == 30
    assert batch.cpu_ns > 0
    assert sum(batch.latencies_ns) <= batch.wall_ns


@pytest.mark.parametrize("window", [1, 4, 64])
def test_pipelined_answers_are_put_in_the_order_of_the_requests(bench: SimpleNamespace, window: int) -> None:
    with fake(bench, "swaps" if window > 1 else "") as driver:
        driver.open()
        requests = [{"arguments": {"a": n, "b": 1}} for n in range(100)]
        batch, results = driver.pipelined("tools/call", requests, window)
    assert [result["content"][0]["text"] for result in results] == [str(n + 1) for n in range(100)]
    assert batch.count == 100


def test_cpu_clock_is_that_of_the_whole_process(bench: SimpleNamespace) -> None:
    before = time.process_time_ns()
    between = bench.driver.cpu_ns(os.getpid())
    assert before <= between <= time.process_time_ns()


def test_child_is_gone_afterwards_even_after_a_failure(bench: SimpleNamespace) -> None:
    driver = fake(bench, "silent")
    with pytest.raises(ZeroDivisionError), driver:
        raise ZeroDivisionError
    assert driver.child.returncode is not None
    assert not Path(f"/proc/{driver.pid}").exists()


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("silent", "no answer in 0.2 s"),
        ("dies", "ended: no such luck"),
        ("chatty", "an unasked message"),
        ("wrong", "gave"),
        ("refuses", "error -32601: no"),
    ],
)
def test_wrong_response_is_a_driver_error(bench: SimpleNamespace, how: str, reason: str) -> None:
    with fake(bench, how) as driver:
        driver.open()
        driver.timeout = 0.2 if how == "silent" else 10
        with pytest.raises(bench.driver.DriverError, match=reason):
            bench.scenarios.call(driver, "add", 3)


def test_server_out_of_step_is_not_asked_again(bench: SimpleNamespace) -> None:
    with fake(bench, "silent") as driver:
        driver.open()
        driver.timeout = 0.1
        for _ in range(2):
            with pytest.raises(bench.driver.DriverError, match="no answer"):
                driver.ask("ping")


def test_every_page_of_a_list_is_requested(bench: SimpleNamespace) -> None:
    answers = bench.scenarios.Answers()
    with fake(bench) as driver:
        driver.open()
        response = bench.scenarios.ask_lists(answers, peer(bench), driver)
    assert answers.own_tools == {"portico": 1000}
    assert response["list_cpu"] > 0


def test_benchmark_alternates_peers_and_reports_failures(bench: SimpleNamespace) -> None:
    order = []

    def ask(key: str) -> dict[str, float]:
        order.append(key)
        if key == "mcp":
            raise bench.driver.DriverError("fell over")
        return {"ping": float(len(order))}

    answers = bench.scenarios.Answers()
    turns = [(peer(bench, key), ("ping",), lambda key=key: ask(key)) for key in ("portico", "mcp", "fastmcp")]
    bench.scenarios.take_turns(answers, 3, turns)
    assert order == ["portico", "mcp", "fastmcp", "portico", "fastmcp", "portico", "fastmcp"]
    assert answers.value("ping", "portico") == 4.0
    assert answers.value("ping", "mcp") is None
    assert answers.failures == {"ping": {"mcp": "fell over"}}


def test_verdicts_follow_from_the_numbers(bench: SimpleNamespace) -> None:
    answers = bench.scenarios.Answers()
    measured = {
        "call_async": (40, 800),
        "call_inline": (41, None),
        "call_sync": (150, 900),
        "start": (100, 900),
        "import_package": (61, 500),
        "memory": (34.9, 70),
        "call_one": (40, 800),
        "call_many": (50, 800),
    }
    for question, pair in measured.items():
        for key, value in zip(("portico", "mcp"), pair, strict=True):
            if value is not None:
                answers.add(question, peer(bench, key), value)
    answers.add("ping", peer(bench, "go"), 120)
    verdicts = [goal.verdict for goal in bench.goals.judge(answers, bench.scenarios.FULL)]
    assert verdicts[:4] == ["met", "missed", "missed", "undecided"]
    assert verdicts[4:8] == ["met", "missed", "met", "missed"]
    assert verdicts[8:] == ["not measured", "not measured"]


@pytest.mark.parametrize("markdown", [False, True])
def test_peer_that_cannot_be_had_is_shown_with_the_reason(bench: SimpleNamespace, markdown: bool) -> None:
    answers, size = bench.scenarios.Answers(), bench.scenarios.QUICK
    answers.add("ping", peer(bench), 12.345)
    peers = [peer(bench), peer(bench, "mcp", reason="no such wheel")]
    goals = bench.goals.judge(answers, size)
    text = bench.table.report(bench.table.machine(), answers, peers, size, goals, markdown)
    assert "mcp: not installed: no such wheel" in text
    (row,) = [line for line in text.splitlines() if "per ping" in line]
    assert "12.3" in row
    assert "not installed" in row


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        ("WARNING: x\nERROR: Nothing for a in b\nERROR: No a>=2 in /some/where/a.whl\n\n", "No a>=2 in …"),
        ("error: No solution found\n  cause: Because a is not there\n  and so on", "Because a is not there"),
        ("npm error code ETARGET\nnpm error notarget No a@2.\nnpm error notarget In most cases", "No a@2."),
        ("what a day", "what a day"),
    ],
)
def test_complaint_is_the_reason_without_paths_of_this_machine(
    bench: SimpleNamespace, output: str, reason: str
) -> None:
    assert bench.peers.complaint(output) == reason


def test_counts_are_of_one_request_and_of_own_files(bench: SimpleNamespace, tmp_path: Path, monkeypatch: Any) -> None:
    package = tmp_path / "tiny"
    package.mkdir()
    (package / "__init__.py").write_text("def start(): pass\n")
    (package / "inner.py").write_text("def add(n): return n + 1\n")
    (package / "outer.py").write_text("from tiny.inner import add\ndef answer(n): return add(add(n))\n")
    (tmp_path / "server.py").write_text(
        "import sys, tiny\nfrom tiny.outer import answer\n"
        "def build(): return None\n"
        "def serve(server):\n"
        "    tiny.start()\n"
        "    for line in iter(sys.stdin.buffer.readline, b''):\n"
        "        m = eval(line)\n"
        "        if 'id' not in m: continue\n"
        "        answer(1)\n"
        '        sys.stdout.write(\'{"id": %d, "result": {"protocolVersion": "2025-11-25"}}\\n\' % m[\'id\'])\n'
        "        sys.stdout.flush()\n"
    )
    monkeypatch.setattr(bench.peers, "SERVERS", tmp_path)
    tiny = bench.peers.Peer("t", "t", "t", modules=("tiny",), server="server.py", python=sys.executable)
    result = bench.call_counts.count(bench.peers.replace(tiny, env={"PYTHONPATH": str(tmp_path)}))
    assert result.files == {"tiny": 2}
    # answer, add and add; and what eval compiles from the line is one call more, each time from the same place.
    assert result.calls == 4
