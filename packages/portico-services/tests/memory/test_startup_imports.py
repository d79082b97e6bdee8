"""Modules that the memory service imports before its first response."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import sys
sys.argv = ["portico", "serve", "--services", "memory"]
from portico.cli.main import main
main()
print("modules:", *sys.modules, file=sys.stderr)
"""
CLIENT = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "me", "version": "1"}}
RECALL = {"name": "memory_recall", "arguments": {"query": "the parser of the configuration"}}
ASKED = [
    {"id": 1, "method": "initialize", "params": CLIENT},
    {"method": "notifications/initialized"},
    {"id": 2, "method": "tools/call", "params": RECALL},
]
# For captures, for sharing, for those who look after memories, for files of settings, for HTTP.
LATER = {
    "portico.cli.local_token",
    "portico.screening",
    "portico_services.contracts.definitions",
    "portico_services.memory.tools.overview",
    "portico_services.memory.extras.tools",
    "portico_services.memory.tools.maintenance",
    "portico_services.memory.extras.webhooks",
    "portico_services.memory.sync.engine",
    "portico_services.memory.store.capture",
    "portico_services.memory.store.entities",
    "portico_services.memory.store.as_of",
    "portico_services.profiles.adapter",
    "portico.transports.http_client.pool",
    "shutil",
    "tomllib",
}
# With the search face, which lists a few of the tools and finds the rest.
MOST_MODULES = 225


def test_startup_loads_only_modules_needed_for_a_recall(tmp_path: Path) -> None:
    result = "".join(json.dumps({"jsonrpc": "2.0", **item}) + "\n" for item in ASKED)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input=result,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PORTICO_DATA": str(tmp_path)},
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["result"]["structuredContent"]["count"] == 0
    modules = set(done.stderr.partition("modules:")[2].split())
    assert modules.isdisjoint(LATER)
    ours = {name for name in modules if name.startswith("portico")}
    assert "portico_services.memory.search.retrieval" in ours
    assert len(ours) <= MOST_MODULES, len(ours)
