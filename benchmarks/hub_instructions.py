"""Instructions and system calls per tool call in the bridge and in the hub: for machines too busy to be timed.

    python benchmarks/hub_instructions.py [--shared]

Valgrind counts instructions, strace system calls, in two runs that differ only in the number of calls. The server is a
small Python program and is not counted. `--shared` declares it stateless, as for servers that serve all hosts.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ECHO = ROOT / "tests/support/programs/handshake_server.py"
FEW, MANY = 200, 1000
TIMEOUT_SECONDS = 60.0
# The daemon without its fork, so that a tool can count it.
HUB = """
import asyncio, os
from portico_gateway.hub import daemon, location
directory = location.open_directory()
listener = daemon.bind(directory)
daemon.serve(directory, listener)
"""
HANDSHAKE = [
    {
        "id": 0,
        "method": "initialize",
        "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}},
    },
    {"method": "notifications/initialized"},
]
TOOLS = {
    "instructions": ["valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null"],
    "system calls": ["strace", "-c", "-qq"],
}


def count(counted: str, tool: str, calls: int, *, shared: bool) -> tuple[int, dict[str, int]]:
    """Return the cost of one of the two processes for a number of calls: a total, and system calls by name."""
    folder = Path(tempfile.mkdtemp(prefix="portico-hub-count-"))
    (folder / "hub").mkdir(mode=0o700)
    if shared:
        (folder / "hub/hub.toml").write_text("[server.echo]\nshared = true\n")
    env = {**os.environ, "PORTICO_HUB": str(folder / "hub"), "PYTHONHASHSEED": "0"}
    output = folder / "count"
    prefix = [*TOOLS[tool], *(["-o", str(output)] if tool == "system calls" else [f"--log-file={output}"])]
    hub = subprocess.Popen([*(prefix if counted == "hub" else []), sys.executable, "-P", "-c", HUB], env=env)
    try:
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while not (folder / "hub/hub.sock").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        words = [sys.executable, "-m", "portico", "connect", "echo", "--", sys.executable, str(ECHO)]
        bridge = subprocess.Popen(
            [*(prefix if counted == "bridge" else []), *words], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert bridge.stdin is not None and bridge.stdout is not None
        messages = [*HANDSHAKE]
        for number in range(1, calls + 1):
            params = {"name": "echo", "arguments": {"text": "x"}}
            messages.append({"id": number, "method": "tools/call", "params": params})
        for message in messages:
            bridge.stdin.write(json.dumps({"jsonrpc": "2.0", **message}, separators=(",", ":")).encode() + b"\n")
            bridge.stdin.flush()
            if "id" in message:
                answer = json.loads(bridge.stdout.readline())
                assert answer["id"] == message["id"] and "result" in answer, answer
        bridge.stdin.close()
        bridge.wait(TIMEOUT_SECONDS)
        bridge.stdout.close()
    finally:
        # strace forwards no signals to its child.
        running = subprocess.run(["pgrep", "-P", str(hub.pid)], capture_output=True, text=True).stdout.split()
        os.kill(int(running[0]) if counted == "hub" and tool == "system calls" and running else hub.pid, signal.SIGTERM)
        hub.wait(TIMEOUT_SECONDS)
        text = output.read_text() if output.exists() else ""
        shutil.rmtree(folder, ignore_errors=True)
    if tool == "instructions":
        found = re.search(r"I\s+refs:\s+([\d,]+)", text)
        assert found is not None, text
        return int(found[1].replace(",", "")), {}
    rows = re.findall(r"^\s*[\d.]+\s+[\d.]+\s+\d+\s+(\d+)\s+(?:\d+\s+)?(\w+)$", text, re.MULTILINE)
    names = {name: int(number) for number, name in rows if name != "total"}
    return sum(names.values()), names


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shared", action="store_true")
    arguments = parser.parse_args()
    for counted in ("bridge", "hub"):
        for tool in TOOLS:
            few, few_names = count(counted, tool, FEW, shared=arguments.shared)
            many, names = count(counted, tool, MANY, shared=arguments.shared)
            about = {name: (number - few_names.get(name, 0)) / (MANY - FEW) for name, number in names.items()}
            listed = ", ".join(f"{name} {n:.2f}" for name, n in sorted(about.items(), key=lambda i: -i[1]) if n > 0.05)
            print(f"{counted:8} {tool:14} {(many - few) / (MANY - FEW):12,.2f}  {listed}", flush=True)


if __name__ == "__main__":
    main()
