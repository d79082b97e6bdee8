"""The gateway table: a call directly and through gateways, lists of twenty servers, and the first list."""

from __future__ import annotations

import http.client
import json
import signal
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import wrk
from driver import META, MODERN, DriverError, cpu_ns, rss_bytes
from goals import Goal, limit, verdict
from http_driver import HttpDriver, free_port, read_message
from http_scenarios import cores
from peers import PEERS, SERVERS, NotInstalled, Peer, install_pinned
from scenarios import Answers, Question, take_turns
from services_table import Grid, Size, Table, this_tree

NAME = "gateway"
PROGRAMS = Path(__file__).resolve().parent / "gateway_programs"
MANY, TOOLS = 20, 50
WINDOW = 16
LISTS = 50
FILLING_SECONDS = 180.0

CALL_QUESTIONS = (
    Question("cpu", f"CPU of the process for a tools/call, {WINDOW} connections", "µs"),
    Question("rate", f"tools/call, {WINDOW} connections", "per s", more_is_better=True),
    Question("p50", f"latency, p50, {WINDOW} connections", "µs"),
    Question("alone", "latency, p50, one connection", "µs"),
)
CALLS = tuple(question.key for question in CALL_QUESTIONS)
LIST_QUESTIONS = (
    Question("list", f"tools/list of {MANY * TOOLS:,} tools of {MANY} servers, p50", "ms"),
    Question("list_cpu", "CPU of the process for such a list", "ms"),
    Question("asked", "requests to those servers for each list", ""),
    Question("memory", f"resident memory with {MANY} HTTP servers, all listed and called", "MB"),
    Question("first", f"start to first list, {MANY} stdio servers, from cached lists", "ms"),
)
LISTING = ("list", "list_cpu", "asked", "memory")
LEGEND = (
    "Every column answers the same call of the same tool; the first one is the server itself, and it is behind all that"
    " are over HTTP. mcp-proxy has programs behind it, not URLs: the same server on stdio is behind it, and it is asked"
    " at 2025-11-25; our gateway has a column of that kind beside it. All others are asked at 2026-07-28. CPU is of the"
    " one process in the middle, without its upstreams. wrk and the server share a core, the one in the middle has"
    " the other. From cached lists: the gateway ran before, and its servers were listed then; they are not running.",
)


@dataclass(frozen=True)
class GatewayPeer(Peer):
    """One column: its start command and its upstreams."""

    behind: str = "http"
    tool: str = "bench_add_async"
    session: bool = False
    seconds: int = 1
    lists: int = LISTS


def measure(size: Size) -> Table:
    answers, columns = Answers(), gateway_columns()
    notes = []
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        try:
            ask_calls(answers, [peer for peer in columns if not peer.reason], size, stack, home)
        except NotInstalled as why:
            notes.append(f"no calls were measured: {why}")
    listing = [replace(peer) for peer in columns if peer.key in ("portico", "fastmcp")]
    for peer in (peer for peer in listing if not peer.reason):
        take_turns(answers, 1, [(peer, LISTING, lambda peer=peer: ask_lists(peer))])
    ours = listing[0]
    take_turns(answers, 1, [(ours, ("first",), lambda: ask_first(ours, size.rounds))])
    grids = [Grid(CALL_QUESTIONS, columns), Grid(LIST_QUESTIONS, listing)]
    return Table("gateway", grids, answers, judge(answers), notes, LEGEND)


def gateway_columns() -> list[GatewayPeer]:
    ours = this_tree()
    own = {"package": "portico", "python": ours.python, "version": ours.version}
    fast = next(peer for peer in PEERS if peer.key == "fastmcp")
    gateway = ("gateway_server.py", "{port}", "{file}")
    proxy = ("-m", "mcp_proxy", "--host", "127.0.0.1", "--port", "{port}", "--log-level", "CRITICAL", "--")
    return [
        GatewayPeer("direct", "Portico, no gateway", program=("adding_server.py", "{port}"), tool="add_async", **own),
        GatewayPeer("portico", "Portico's gateway", program=gateway, **own),
        GatewayPeer("stdio", "Portico's gateway, stdio behind it", program=gateway, behind="stdio", **own),
        prepared(
            GatewayPeer(
                "fastmcp",
                "FastMCP's proxy",
                "fastmcp",
                program=("fast_proxy.py", "{port}", "{file}"),
                tool="add_async",
                seconds=5,
                lists=3,
                env=fast.env,
            )
        ),
        prepared(
            GatewayPeer(
                "mcp-proxy",
                "mcp-proxy, stdio behind it",
                "mcp-proxy",
                program=(*proxy, "{server}"),
                behind="stdio",
                tool="add_async",
                session=True,
                seconds=2,
            )
        ),
    ]


def prepared(peer: GatewayPeer) -> GatewayPeer:
    try:
        pinned = install_pinned(peer.package)
        return replace(peer, python=pinned.python, version=pinned.version, note="; ".join(pinned.rejected))
    except NotInstalled as why:
        return replace(peer, reason=str(why))


def judge(answers: Answers) -> list[Goal]:
    def of(question: str, peer: str = "portico") -> float | None:
        return answers.value(question, peer)

    return [
        cheap(of("cpu"), of("cpu", "direct")),
        times("at least 100 times FastMCP's proxy per CPU", of("cpu"), of("cpu", "fastmcp"), 100),
        limit(f"tools/list of {MANY * TOOLS:,} tools: at most 1 ms of CPU", of("list_cpu"), 1, "ms"),
        limit("and without a request to the servers", of("asked"), 1, "requests"),
        limit("first list from cached lists: at most 300 ms", of("first"), 300, "ms"),
        limit(f"memory with {MANY} HTTP servers: below 45 MB", of("memory"), 45, "MB"),
    ]


def cheap(through: float | None, direct: float | None) -> Goal:
    text = "CPU for a call: at most 70 µs, or 2.2 times that of the server"
    if through is None or direct is None:
        return Goal(text, "a number is missing", "not measured")
    return Goal(
        text, f"{through:.1f} µs, {through / direct:.2f} times", verdict(through <= 70 or through <= 2.2 * direct)
    )


def times(text: str, ours: float | None, theirs: float | None, least: float) -> Goal:
    if ours is None or theirs is None:
        return Goal(text, "a number is missing", "not measured")
    return Goal(text, f"{theirs / ours:,.0f} times", verdict(theirs >= ours * least))


# Calls


def ask_calls(answers: Answers, peers: list[GatewayPeer], size: Size, stack: ExitStack, home: Path) -> None:
    program = wrk.find()
    direct = peers[0]
    server = started(direct, stack, home, {}, core=cores()[1])
    files = {
        "http": {"url": f"http://127.0.0.1:{server.port}/mcp"},
        "stdio": {"command": direct.python, "args": [str(PROGRAMS / "adding_server.py")]},
    }
    drivers = {direct.key: server}
    for peer in peers[1:]:
        try:
            drivers[peer.key] = started(peer, stack, home, {"bench": files[peer.behind]}, core=cores()[0])
        except (DriverError, OSError, ValueError, KeyError) as why:
            for question in CALLS:
                answers.fail(question, peer, why)
    turns = [
        (peer, CALLS, lambda peer=peer: ask(drivers[peer.key], program, peer)) for peer in peers if peer.key in drivers
    ]
    # Lazy parts fall into place.
    take_turns(Answers(), 1, turns)
    take_turns(answers, size.rounds, turns)


def started(peer: GatewayPeer, stack: ExitStack, home: Path, behind: dict[str, Any], core: int) -> HttpDriver:
    file = home / f"{peer.key}.json"
    file.write_text(json.dumps({"mcpServers": behind}), encoding="utf-8")
    driver = stack.enter_context(driver_of(peer, core, file))
    driver.open()
    return driver


def driver_of(peer: GatewayPeer, core: int, file: Path, *more: str) -> HttpDriver:
    words = [*peer.program, *more]
    if words[0].endswith(".py"):
        words[0] = str(PROGRAMS / words[0])
    at = words.index("{server}") if "{server}" in words else None
    if at is not None:
        words[at:] = [this_tree().python, str(PROGRAMS / "adding_server.py")]
    words = [word.replace("{file}", str(file)) for word in words]
    return HttpDriver([peer.python, *words], peer.env, tool=peer.tool, session=peer.session, core=core)


def ask(driver: HttpDriver, program: str, peer: GatewayPeer) -> dict[str, float]:
    driver.check(int(wrk.NUMBER) + 1)
    # The measured server shares no core with wrk.
    core = cores()[1 if driver.core == cores()[0] else 0]
    cpu = cpu_ns(driver.child.pid)
    load = wrk.ask(program, driver.port, driver.request, WINDOW, peer.seconds, core)
    cpu = cpu_ns(driver.child.pid) - cpu
    alone = wrk.ask(program, driver.port, driver.request, 1, peer.seconds, core)
    values = (cpu / load.requests / 1000, load.per_second, load.p50_us, alone.p50_us)
    return dict(zip(CALLS, values, strict=True))


# Lists


@contextmanager
def many_servers(python: str) -> Iterator[list[int]]:
    ports = [free_port() for _ in range(MANY)]
    with HttpDriver([python, str(PROGRAMS / "many_servers.py"), str(TOOLS), *map(str, ports)]) as servers:
        until = time.monotonic() + servers.timeout
        while True:
            try:
                for port in ports:
                    requests_to(port)
                break
            except OSError:
                if servers.child.poll() is not None or time.monotonic() > until:
                    raise servers.failure("did not begin to listen") from None
                time.sleep(0.05)
        yield ports


def requests_to(port: int) -> int:
    """Return the number of protocol requests that an upstream has answered."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", "/metrics")
        lines = connection.getresponse().read().decode().splitlines()
    finally:
        connection.close()
    return sum(int(float(line.rpartition(" ")[2])) for line in lines if "_count{" in line)


def ask_lists(peer: GatewayPeer) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder, many_servers(this_tree().python) as ports:
        file = Path(folder) / "servers.json"
        behind = {f"s{number}": {"url": f"http://127.0.0.1:{port}/mcp"} for number, port in enumerate(ports)}
        file.write_text(json.dumps({"mcpServers": behind}), encoding="utf-8")
        with driver_of(peer, cores()[0], file) as driver:
            driver.wait()
            filled(driver)
            for number in range(MANY):
                post(driver, "tools/call", {"name": f"s{number}_tool_0", "arguments": {"a": 1, "b": 1}})
            before = sum(map(requests_to, ports))
            cpu = cpu_ns(driver.child.pid)
            took = [timed_list(driver) for _ in range(peer.lists)]
            cpu = cpu_ns(driver.child.pid) - cpu
            request = sum(map(requests_to, ports)) - before
            return {
                "list": statistics.median(took),
                "list_cpu": cpu / peer.lists / 1e6,
                "asked": request / peer.lists,
                "memory": rss_bytes(driver.child.pid) / 1e6,
            }


def filled(driver: HttpDriver) -> None:
    """Wait until the tools of all upstreams are listed."""
    until = time.monotonic() + FILLING_SECONDS
    while len(listed(driver)) < MANY * TOOLS:
        if time.monotonic() > until:
            raise driver.failure(f"did not list {MANY * TOOLS} tools within {FILLING_SECONDS:g} s")
        time.sleep(0.1)


def listed(driver: HttpDriver) -> list[Any]:
    """Fetch all pages."""
    tools: list[Any] = []
    cursor: dict[str, Any] = {}
    while True:
        result = post(driver, "tools/list", cursor)
        tools += result["tools"]
        if not result.get("nextCursor"):
            return tools
        cursor = {"cursor": result["nextCursor"]}


def timed_list(driver: HttpDriver) -> float:
    """Return milliseconds from the request to the last byte of the last page."""
    took, tools, cursor = 0.0, 0, {}
    while True:
        began = time.perf_counter()
        body = exchanged(driver, "tools/list", cursor)
        took += time.perf_counter() - began
        result = read_message(*body)["result"]
        tools += sum(tool["name"] != "read_result" for tool in result["tools"])  # a tool of Portico's gateway itself
        if not result.get("nextCursor"):
            break
        cursor = {"cursor": result["nextCursor"]}
    if tools != MANY * TOOLS:
        raise DriverError(f"{tools} tools were listed")
    return 1000 * took


def post(driver: HttpDriver, method: str, params: dict[str, Any]) -> dict[str, Any]:
    answer = read_message(*exchanged(driver, method, params))
    if "result" not in answer:
        raise DriverError(f"{method} gave {str(answer)[:200]}")
    return answer["result"]


def exchanged(driver: HttpDriver, method: str, params: dict[str, Any]) -> tuple[bytes, str]:
    """Send a request of 2026-07-28 and return the size and the kind of its response."""
    message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": META}}
    headers = {
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": MODERN,
        "Mcp-Method": method,
        **({"Mcp-Name": params["name"]} if "name" in params else {}),
    }
    with closing(http.client.HTTPConnection("127.0.0.1", driver.port, timeout=60)) as connection:
        connection.request("POST", "/mcp", json.dumps(message), headers)
        response = connection.getresponse()
        return response.read(), response.getheader("content-type", "")


# The first list


def ask_first(peer: GatewayPeer, rounds: int) -> dict[str, tuple[float, ...]]:
    with tempfile.TemporaryDirectory() as folder:
        file, store = Path(folder) / "servers.json", f"{folder}/kept.db"
        command = {"command": peer.python, "args": [str(SERVERS / "portico_server.py"), "--tools", str(TOOLS)]}
        file.write_text(json.dumps({"mcpServers": {f"s{at}": command for at in range(MANY)}}), encoding="utf-8")
        with driver_of(peer, cores()[0], file, store) as driver:
            driver.wait()
            filled(driver)
            kept(Path(store))
            stopped(driver)
        took = []
        for _ in range(rounds):
            began = time.perf_counter()
            with driver_of(peer, cores()[0], file, store) as driver:
                took.append(first_list(driver, began))
                stopped(driver)
    return {"first": tuple(took)}


def kept(store: Path) -> None:
    """Wait until all catalogs are written."""
    until = time.monotonic() + FILLING_SECONDS
    while True:
        with closing(sqlite3.connect(store)) as database:
            if database.execute("select count(*) from portico_upstream_list").fetchone()[0] == MANY:
                return
        if time.monotonic() > until:
            raise DriverError("the lists were not cached")
        time.sleep(0.1)


def stopped(driver: HttpDriver) -> None:
    """Stop the process with its children."""
    driver.child.send_signal(signal.SIGTERM)
    driver.child.wait(60)


def first_list(driver: HttpDriver, began: float) -> float:
    until = time.monotonic() + driver.timeout
    while True:
        try:
            result = sum(tool["name"] != "read_result" for tool in listed(driver))
            break
        except OSError:
            if driver.child.poll() is not None or time.monotonic() > until:
                raise driver.failure("did not begin to listen") from None
            time.sleep(0.002)
    took = 1000 * (time.perf_counter() - began)
    if result != MANY * TOOLS:
        raise DriverError(f"the first list had {result} tools")
    return took
