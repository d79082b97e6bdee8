"""Hosts with and without the hub: processes, memory, time to the first tool list; and the bridge alone.

    python benchmarks/hub_table.py [--hosts 6] [--servers filesystem,memory,thinking,time,calculator]

The servers are listed in tests/peers/real_servers.py and are installed when they are missing. Three cases are measured:
without the hub; with the hub, each server once per host; with the hub, every server declared `shared`. A case starts
all hosts with all servers and waits for every tool list; then it calls one tool of each server per host. After each of
the two steps it counts the processes and their proportional set size (PSS), in which pages that several processes share
count once. The hub's cache of tool lists is warm, as on every day but the first.

Then a single bridge is measured: its start, its memory, and the time that it and the hub add to a call of a small
server. Direct and bridged calls alternate in rounds, so that a change of the machine's load affects both.
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


# For the start of all processes of a case on a busy machine.
TIMEOUT_SECONDS = 120.0


class Memory(NamedTuple):
    """Processes and their memory in MB: in total, of the bridges, and of the hub."""

    processes: int
    total: float
    bridges: float
    hub: float


class Figures(NamedTuple):
    listed: Memory
    called: Memory
    list_ms: list[float]


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


def count_memory(hub: list[int]) -> Memory:
    """Return the processes of this benchmark and of the hub."""
    pids = [pid for pid in descendants([os.getpid(), *hub]) if pid != os.getpid()]
    bridges = []
    for pid in pids:
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            bridges += [pid] if b"connect" in words[:5] else []
    return Memory(len(pids), memory_mb(pids), memory_mb(bridges), memory_mb(hub))


async def measure(entries: dict[str, dict[str, Any]], hosts: int, calls: dict[str, Any], *, hub: bool) -> Figures:
    """Start all hosts, wait for the lists, call the tools, and count after each step."""
    async with contextlib.AsyncExitStack() as stack, asyncio.timeout(TIMEOUT_SECONDS):
        begun = time.perf_counter()
        times: list[float] = []

        async def attach(entry: dict[str, Any]) -> Client:
            client = await stack.enter_async_context(Client(entry, protocol_version=HANDSHAKE_VERSION))
            await client.list_tools()
            times.append((time.perf_counter() - begun) * 1000)
            return client

        connected = await asyncio.gather(*(attach(entry) for _ in range(hosts) for entry in entries.values()))
        clients = list(zip([name for _ in range(hosts) for name in entries], connected, strict=True))
        hub_pids = hub_process() if hub else []
        listed = count_memory(hub_pids)

        async def use(name: str, client: Client) -> None:
            tool, arguments = calls[name]
            with contextlib.suppress(ToolError, PorticoError):
                await client.call_tool(tool, arguments)

        await asyncio.gather(*(use(name, client) for name, client in clients if name in calls))
        return Figures(listed, count_memory(hub_pids), sorted(times))


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


async def latencies(entries: list[dict[str, Any]], rounds: int = 10, calls: int = 300) -> list[float]:
    """Return the median time of a call through each entry in microseconds."""
    async with contextlib.AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(Client(entry, protocol_version=HANDSHAKE_VERSION)) for entry in entries
        ]
        times: list[list[float]] = [[] for _ in clients]
        for _ in range(rounds):
            for client, measured in zip(clients, times, strict=True):
                # Not measured: the processor's caches hold the data of the other process.
                for number in range(calls + 20):
                    begun = time.perf_counter()
                    await client.call_tool("echo", {"text": "x"})
                    if number >= 20:
                        measured.append((time.perf_counter() - begun) * 1e6)
        return [statistics.median(measured) for measured in times]


def bridge_start_ms(entry: dict[str, Any], repeats: int = 30) -> tuple[float, float, float]:
    """Return the median times from the start of a bridge to its first answer, and of an empty Python program, in ms;
    and the bridge's resident memory in MB.
    """
    times, empty, memory = [], [], 0.0
    for _ in range(repeats):
        begun = time.perf_counter()
        subprocess.run([sys.executable, "-c", "pass"], check=True)
        empty.append(time.perf_counter() - begun)
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
    return statistics.median(times) * 1000, statistics.median(empty) * 1000, memory


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=6)
    parser.add_argument("--servers", default="filesystem,memory,thinking,time,calculator")
    arguments = parser.parse_args()
    # Installed packages are compiled; a process that compiles them again would be measured doing that.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
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
        calls[name] = (server.tool, server.arguments)
    hub_entries = {name: through_hub(name, entry) for name, entry in entries.items()}
    rows = {}
    try:
        rows["without the hub"] = asyncio.run(measure(entries, arguments.hosts, calls, hub=False))
        # Fills the cache of lists.
        asyncio.run(measure(hub_entries, 1, {}, hub=True))
        rows["hub, one process per host"] = asyncio.run(measure(hub_entries, arguments.hosts, calls, hub=True))
        shared = "".join(f"[server.{name}]\nshared = true\n" for name in entries)
        (work / "hub/hub.toml").write_text(shared + "[server.shared]\nshared = true\n")
        rows["hub, shared"] = asyncio.run(measure(hub_entries, arguments.hosts, calls, hub=True))
        print(f"{arguments.hosts} hosts × {len(entries)} servers: {', '.join(entries)}\n")
        print(f"{'':28}{'time to the tool list, ms':>27}{'after the lists':>23}{'after a call of each server':>41}")
        print(
            f"{'':28}{'first':>9}{'median':>9}{'last':>9}{'processes':>13}{'MB':>10}{'processes':>13}{'MB':>10}"
            f"{'bridges':>9}{'hub':>9}"
        )
        for name, (listed, called, times) in rows.items():
            print(
                f"{name:28}{times[0]:>9.0f}{statistics.median(times):>9.0f}{times[-1]:>9.0f}"
                f"{listed.processes:>13}{listed.total:>10.0f}"
                f"{called.processes:>13}{called.total:>10.0f}{called.bridges:>9.0f}{called.hub:>9.0f}"
            )
        echo = {"command": sys.executable, "args": [str(ECHO)]}
        bridged, shared_echo = through_hub("echo", echo), through_hub("shared", echo)
        direct, through, shared_through = asyncio.run(latencies([echo, bridged, shared_echo]))
        start, empty, memory = bridge_start_ms(bridged)
        print(
            f"\nbridge: {start:.0f} ms from its start to the answer of initialize, {memory:.1f} MB resident "
            f"(an empty Python program takes {empty:.0f} ms)"
        )
        print(
            f"call: {direct:.0f} µs without the hub, {through:.0f} µs through it, {through - direct:.0f} µs added; "
            f"{shared_through - direct:.0f} µs with a shared server"
        )
    finally:
        subprocess.run([*portico_command(), "hub", "stop"], stdout=subprocess.DEVNULL)
        shutil.rmtree(work, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
