"""Hosts with and without the hub: processes, memory, time to the first tool list; and the bridge alone.

    python benchmarks/hub_table.py [--hosts 6] [--servers filesystem,memory,thinking,time,calculator] [--no-calls]

The servers are those of tests/peers/real_servers.py and are installed when they are missing. Three cases are measured:
without the hub; with the hub, each server once per host; with the hub, every server declared `shared`. A case starts
all hosts with all servers, waits for every tool list, calls one tool of each server per host unless `--no-calls` is
given, and then counts processes and their proportional set size (PSS). The hub's cache of tool lists is warm, as on
every day but the first.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests/peers")]

import real_servers  # noqa: E402

from portico import Client  # noqa: E402
from portico.cli.install import portico_command  # noqa: E402
from portico.protocol.errors import PorticoError, ToolError  # noqa: E402

HANDSHAKE_VERSION = "2025-06-18"
ECHO = ROOT / "tests/support/programs/handshake_server.py"


class Figures(NamedTuple):
    processes: int
    memory_mb: float
    first_list_ms: float
    last_list_ms: float


def descendants(roots: list[int]) -> list[int]:
    """Return processes and all their descendants."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                fields = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
                children.setdefault(int(fields[1]), []).append(int(entry))
    result, queue = [], list(roots)
    while queue:
        pid = queue.pop()
        result.append(pid)
        queue += children.get(pid, [])
    return result


def memory_mb(pids: list[int]) -> float:
    """Return the proportional set size: shared pages are divided by the processes that map them."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                total += int(line.split()[1]) if line.startswith("Pss:") else 0
    return total / 1024


def hub_process() -> list[int]:
    status = subprocess.run([*portico_command(), "hub", "status", "--format", "json"], capture_output=True, text=True)
    import json

    about = json.loads(status.stdout or "{}")
    return [about["pid"]] if about.get("running") else []


async def measure(entries: dict[str, dict[str, Any]], hosts: int, calls: dict[str, Any], *, hub: bool) -> Figures:
    """Start all hosts, wait for the lists, call the tools, and count."""
    async with contextlib.AsyncExitStack() as stack:
        begun = time.perf_counter()
        times: list[float] = []

        async def attach(entry: dict[str, Any]) -> Client:
            client = await stack.enter_async_context(Client(entry, protocol_version=HANDSHAKE_VERSION))
            await client.list_tools()
            times.append(time.perf_counter() - begun)
            return client

        connected = await asyncio.gather(*(attach(entry) for _ in range(hosts) for entry in entries.values()))
        clients = list(zip([name for _ in range(hosts) for name in entries], connected, strict=True))

        async def use(name: str, client: Client) -> None:
            if name in calls:
                tool, arguments = calls[name]
                with contextlib.suppress(ToolError, PorticoError):
                    await client.call_tool(tool, arguments)

        await asyncio.gather(*(use(name, client) for name, client in clients))
        pids = [pid for pid in descendants([os.getpid(), *(hub_process() if hub else [])]) if pid != os.getpid()]
        return Figures(len(pids), memory_mb(pids), min(times) * 1000, max(times) * 1000)


def through_hub(name: str, entry: dict[str, Any]) -> dict[str, Any]:
    """Return an entry as `portico adopt` writes it."""
    first, *rest = portico_command()
    variables = [word for variable in entry.get("env", {}) for word in ("--env", variable)]
    words = [*rest, "connect", name, *variables, "--", entry["command"], *entry.get("args", [])]
    return {
        **entry,
        "command": first,
        "args": words,
        "env": {**entry.get("env", {}), "PORTICO_HUB": os.environ["PORTICO_HUB"]},
    }


async def latency(entry: dict[str, Any], calls: int = 2000) -> float:
    """Return the median time of a call in microseconds."""
    async with Client(entry, protocol_version=HANDSHAKE_VERSION) as client:
        times = []
        for _ in range(calls):
            begun = time.perf_counter()
            await client.call_tool("echo", {"text": "x"})
            times.append(time.perf_counter() - begun)
        return statistics.median(times) * 1e6


def bridge_start_ms(entry: dict[str, Any], repeats: int = 20) -> tuple[float, float]:
    """Return the median time from the start of a bridge to its first answer in ms, and its memory in MB."""
    times, memory = [], 0.0
    for _ in range(repeats):
        begun = time.perf_counter()
        process = subprocess.Popen(
            [entry["command"], *entry["args"]],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **entry["env"]},
        )
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(
            b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},'
            b'"clientInfo":{"name":"x","version":"1"}}}\n'
        )
        process.stdin.flush()
        process.stdout.readline()
        times.append(time.perf_counter() - begun)
        memory = int(Path(f"/proc/{process.pid}/status").read_text().partition("VmRSS:")[2].split()[0]) / 1024
        process.stdin.close()
        process.wait()
        process.stdout.close()
    return statistics.median(times) * 1000, memory


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=6)
    parser.add_argument("--servers", default="filesystem,memory,thinking,time,calculator")
    parser.add_argument("--no-calls", action="store_true")
    arguments = parser.parse_args()
    servers = {server.alias: server for server in real_servers.SERVERS}
    work = Path(tempfile.mkdtemp(prefix="hub-table-"))
    os.environ["PORTICO_HUB"] = str(work / "hub")
    (work / "hub").mkdir(mode=0o700)
    entries, calls = {}, {}
    for name in arguments.servers.split(","):
        server = servers.get(name) or sys.exit(f"unknown server {name!r}; known: {', '.join(servers)}")
        problem = real_servers.install(server)
        if problem is not None:
            sys.exit(f"{name} {problem}")
        (work / name).mkdir()
        words = real_servers.command_of(server, work / name)
        entries[name] = {"command": words[0], "args": words[1:]}
        if not arguments.no_calls:
            calls[name] = (server.tool, server.arguments)
    hub_entries = {name: through_hub(name, entry) for name, entry in entries.items()}
    rows = {}
    try:
        rows["without the hub"] = asyncio.run(measure(entries, arguments.hosts, calls, hub=False))
        # Fills the cache of lists.
        asyncio.run(measure(hub_entries, 1, {}, hub=True))
        rows["hub, one process per host"] = asyncio.run(measure(hub_entries, arguments.hosts, calls, hub=True))
        shared = "".join(f"[server.{name}]\nshared = true\n" for name in entries)
        (work / "hub/hub.toml").write_text(shared)
        rows["hub, shared"] = asyncio.run(measure(hub_entries, arguments.hosts, calls, hub=True))
        print(f"{arguments.hosts} hosts × {len(entries)} servers: {', '.join(entries)}\n")
        print(f"{'':28}{'processes':>10}{'memory MB':>11}{'first list ms':>15}{'last list ms':>14}")
        for name, row in rows.items():
            print(
                f"{name:28}{row.processes:>10}{row.memory_mb:>11.0f}{row.first_list_ms:>15.0f}{row.last_list_ms:>14.0f}"
            )
        echo = {"command": sys.executable, "args": [str(ECHO)]}
        bridged = through_hub("echo", echo)
        direct, through = asyncio.run(latency(echo)), asyncio.run(latency(bridged))
        start, memory = bridge_start_ms(bridged)
        print(f"\nbridge: {start:.0f} ms from its start to the answer of initialize, {memory:.1f} MB resident")
        print(f"call: {direct:.0f} µs without the hub, {through:.0f} µs through it, {through - direct:.0f} µs added")
    finally:
        subprocess.run([*portico_command(), "hub", "stop"], stdout=subprocess.DEVNULL)
        shutil.rmtree(work, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
