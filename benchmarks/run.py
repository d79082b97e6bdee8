"""Portico beside its peers, on stdio, over HTTP, as clients, with tasks, and its services: one run, a table for each.

    python benchmarks/run.py [--quick] [--table stdio|http|client|tasks|gateway|audit|system|live|memory|items|…]
                             [--only portico,mcp] [--markdown] [--json FILE]

Peers are installed under `.bench/` on first use, at the versions pinned in peers.py and http_peers.py.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import audit_table
import backend_table
import client_table
import compiled  # noqa: F401
import console_table
import gateway_table
import http_table
import live_table
import memory_table
import services_table
import system_table
import table
import task_scenarios
import tool_search_table
import work_items
import workers_table
import wrk
from client_scenarios import CLIENT_FULL, CLIENT_QUESTIONS, CLIENT_QUICK, PROGRAMS, ask_clients
from goals import judge, judge_http
from http_peers import FAMILIES, HTTP_PEERS, HttpPeer, prepare_http
from http_scenarios import HTTP_FULL, HTTP_QUESTIONS, HTTP_QUICK, ask_http
from peers import PEERS, NotInstalled, Peer, prepare, versions
from scenarios import FULL, QUICK, SECTIONS, Answers, Size

PROTOCOL = ("stdio", "http", "client", "tasks")
# A service's table is a line here: see services_table.py.
SERVICES = {
    "gateway": gateway_table,
    "audit": audit_table,
    "system": system_table,
    "live": live_table,
    "memory": memory_table,
    "items": work_items,
    "workers": workers_table,
    "backend": backend_table,
    "find": tool_search_table,
    "console": console_table,
}
TABLES = (*PROTOCOL, *SERVICES)
NAMES = tuple(dict.fromkeys([*(peer.key for peer in PEERS), *FAMILIES]))
P = TypeVar("P", bound=Peer)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds and 1,000 tools instead of 10,000")
    parser.add_argument("--table", choices=TABLES, help="only this one")
    parser.add_argument("--only", metavar="NAMES", help=f"of {','.join(NAMES)}; leaves out the tables of services")
    parser.add_argument("--markdown", action="store_true", help="print Markdown tables")
    parser.add_argument("--json", metavar="FILE", type=Path, help="also write every sample to FILE")
    options = parser.parse_args()
    if options.only and options.table in SERVICES:
        parser.error(f"--only is for {', '.join(PROTOCOL)}: the table {options.table} has columns of its own")
    options.tables = [options.table] if options.table else list(PROTOCOL if options.only else TABLES)
    options.only = set(options.only.split(",")) if options.only else set(NAMES)
    if unknown := options.only - set(NAMES):
        parser.error(f"no peer named {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    return options


def say(text: str) -> None:
    """Progress goes to stderr, so that stdout holds the tables and nothing else."""
    print(text, file=sys.stderr, flush=True)


def prepared(peers: Sequence[P], make_ready: Callable[[P], P]) -> list[P]:
    results = []
    for peer in peers:
        say(f"preparing {peer.label}")
        results.append(make_ready(peer))
    return results


def facts_before() -> dict[str, Any]:
    facts = table.machine()
    if facts["load"] > facts["cores"] / 4:
        facts["warning"] = f"The machine was busy (load {facts['load']}): read the ratios, not the times."
    return facts


def measure(peers: list[Peer], size: Size) -> Answers:
    answers = Answers()
    able = [peer for peer in peers if not peer.reason]
    for section in SECTIONS:
        began = time.perf_counter()
        section(answers, able, size)
        say(f"{section.__name__}: {time.perf_counter() - began:.0f} s")
    return answers


def stdio(facts: dict[str, Any], peers: list[Peer], options: argparse.Namespace) -> tuple[dict[str, Any], bool]:
    size = QUICK if options.quick else FULL
    answers = measure(peers, size)
    goals = judge(answers, size)
    print(table.report(facts, answers, peers, size, goals, options.markdown), flush=True)
    installed = {peer.key: versions(peer) for peer in peers}
    return table.as_json(facts, answers, peers, size, goals, installed), ours_failed(peers, answers)


def over_http(facts: dict[str, Any], peers: list[HttpPeer], options: argparse.Namespace) -> tuple[dict[str, Any], bool]:
    size, answers = HTTP_QUICK if options.quick else HTTP_FULL, Answers()
    began = time.perf_counter()
    try:
        program = wrk.find()
        asker = wrk.version(program)
        ask_http(answers, [peer for peer in peers if not peer.reason], size, program)
    except NotInstalled as why:
        asker = f"not installed, so nothing was measured: {why}"
    say(f"http: {time.perf_counter() - began:.0f} s")
    goals = judge_http(answers)
    print(http_table.report(facts, answers, peers, size, goals, asker, options.markdown), flush=True)
    installed = {peer.key: versions(peer) for peer in peers}
    whole = table.as_json({**facts, "wrk": asker}, answers, peers, size, goals, installed, HTTP_QUESTIONS)
    return whole, ours_failed(peers, answers)


def as_clients(facts: dict[str, Any], peers: list[Peer], options: argparse.Namespace) -> tuple[dict[str, Any], bool]:
    size, answers = CLIENT_QUICK if options.quick else CLIENT_FULL, Answers()
    began = time.perf_counter()
    ask_clients(answers, [peer for peer in peers if not peer.reason], size)
    say(f"clients: {time.perf_counter() - began:.0f} s")
    print(client_table.report(facts, answers, peers, size, options.markdown), flush=True)
    installed = {peer.key: versions(peer) for peer in peers}
    whole = table.as_json(facts, answers, peers, size, [], installed, CLIENT_QUESTIONS)
    return whole, ours_failed(peers, answers)


def with_tasks(facts: dict[str, Any], peers: list[Peer], options: argparse.Namespace) -> tuple[dict[str, Any], bool]:
    size, answers = CLIENT_QUICK if options.quick else CLIENT_FULL, Answers()
    columns = task_scenarios.task_peers(peers)
    began = time.perf_counter()
    task_scenarios.ask_tasks(answers, [peer for peer in columns if not peer.reason], size)
    say(f"tasks: {time.perf_counter() - began:.0f} s")
    print(task_scenarios.report(facts, answers, columns, size, options.markdown), flush=True)
    installed = {peer.key: versions(peer) for peer in columns}
    whole = table.as_json(facts, answers, columns, size, [], installed, task_scenarios.TASK_QUESTIONS)
    return whole, ours_failed(columns, answers)


def of_service(facts: dict[str, Any], name: str, options: argparse.Namespace) -> tuple[dict[str, Any], bool]:
    size = services_table.SERVICES_QUICK if options.quick else services_table.SERVICES_FULL
    module = SERVICES[name]
    say(f"preparing and measuring {module.NAME}")
    began = time.perf_counter()
    result = module.measure(size)
    say(f"{module.NAME}: {time.perf_counter() - began:.0f} s")
    print(services_table.report(facts, result, size, options.markdown), flush=True)
    return services_table.told(facts, result, size), services_table.ours_failed(result)


def ours_failed(peers: Sequence[Peer], answers: Answers) -> bool:
    """A missed goal or an absent peer is a result; Portico not answering its own benchmark is a failure."""
    ours = {peer.key for peer in peers if peer.package == "portico"}
    absent = any(peer.key in ours and peer.reason for peer in peers)
    return absent or any(ours & set(by_peer) for by_peer in answers.failures.values())


def main() -> int:
    # A terminated run unwinds as an interrupted one does, and takes its servers with it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    options = arguments()
    expected = options.tables
    on_stdio = [peer for peer in PEERS if peer.key in options.only and {"stdio", "client", "tasks"} & set(expected)]
    on_http = [peer for peer in HTTP_PEERS if peer.family in options.only and "http" in expected]
    ready, ready_http = prepared(on_stdio, prepare), prepared(on_http, prepare_http)
    # Before the first table, for both: after it, the load would be our own.
    facts = facts_before()
    results: dict[str, Any] = {}
    failed = False
    if ready and "stdio" in expected:
        results["stdio"], failed = stdio(facts, ready, options)
    if ready_http:
        print("\n" if ready else "", end="", flush=True)
        results["http"], failed_http = over_http(facts, ready_http, options)
        failed = failed or failed_http
    if ready and "client" in expected:
        print("\n", end="", flush=True)
        clients = [peer for peer in ready if peer.key in PROGRAMS]
        results["client"], failed_client = as_clients(facts, clients, options)
        failed = failed or failed_client
    if ready and "tasks" in expected:
        print("\n", end="", flush=True)
        results["tasks"], failed_tasks = with_tasks(facts, ready, options)
        failed = failed or failed_tasks
    for name in (name for name in SERVICES if name in expected):
        print("\n" if results else "", end="", flush=True)
        results[name], failed_service = of_service(facts, name, options)
        failed = failed or failed_service
    if options.json:
        options.json.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
