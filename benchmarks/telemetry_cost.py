"""Measure the CPU time of a call on `portico serve` on stdio: without telemetry, with a request log, and with
OpenTelemetry exporting to a fast receiver.

    python benchmarks/telemetry_cost.py [calls]
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

# In flight.
AT_ONCE = 50
META = {"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {}}
SERVER = """
from portico import Server
server = Server("watched")
@server.tool
async def add(a: int, b: int) -> int:
    "Add."
    return a + b
"""


def cpu_seconds(calls: int, words: list[str], env: dict[str, str], folder: Path) -> float:
    """Return the CPU seconds of a server from its start to its end."""
    params = {"name": "add", "arguments": {"a": 1, "b": 2}, "_meta": META}
    before = os.times()
    with (folder / "log").open("w") as log:
        child = subprocess.Popen(
            [sys.executable, "-m", "portico", "serve", str(folder / "server.py"), *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env={**os.environ, **env},
        )
    assert child.stdin is not None and child.stdout is not None
    for first in range(0, calls, AT_ONCE):
        for id in range(first, first + AT_ONCE):
            request = {"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}
            child.stdin.write(json.dumps(request).encode() + b"\n")
        child.stdin.flush()
        for _ in range(AT_ONCE):
            assert b'"isError":false' in child.stdout.readline()
    child.stdin.close()
    child.wait()
    child.stdout.close()
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


@contextmanager
def collector() -> Iterator[str]:
    class Taking(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *words: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Taking)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def main() -> None:
    calls = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    print(f"{'':24}CPU µs a call, {calls:,} calls")
    with tempfile.TemporaryDirectory() as name, collector() as address:
        folder = Path(name)
        (folder / "server.py").write_text(SERVER)
        ways = {
            "nothing": ([], {}),
            "text": (["--log-format", "text"], {}),
            "json": (["--log-format", "json"], {}),
            "OpenTelemetry": ([], {"OTEL_EXPORTER_OTLP_ENDPOINT": address}),
        }
        for way, (words, env) in ways.items():
            costs = [cpu_seconds(calls, words, env, folder) - cpu_seconds(0, words, env, folder) for _ in range(3)]
            print(f"{way:24}{min(costs) / calls * 1e6:10.1f}", flush=True)


if __name__ == "__main__":
    main()
