"""Count the instructions of a stdio server from its spawn to its first response: a measure for busy machines.

    python benchmarks/start_instructions.py

Valgrind counts them. Its dependencies are counted separately, as a lower bound. The kernel is not included.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import compiled  # noqa: F401
from driver import CLIENT, HANDSHAKE

# The end of the process is not in it.
END = "import os; os._exit(0)"
SERVE = f"import sys; sys.argv = ['portico', 'serve', {{}}]; from portico.cli.main import main; main(); {END}"
MEMORY = SERVE.format("'--services', 'memory'")
PARAMS = {"protocolVersion": HANDSHAKE, "capabilities": {}, "clientInfo": CLIENT}
HELLO = [{"id": 1, "method": "initialize", "params": PARAMS}, {"method": "notifications/initialized"}]
CALL = {"name": "memory_recall", "arguments": {"query": "the parser of the configuration"}}
RECALL = [*HELLO, {"id": 2, "method": "tools/call", "params": CALL}]
PROGRAMS: dict[str, tuple[str, list[dict[str, Any]]]] = {
    "Python alone": (END, []),
    "asyncio, msgspec, uvloop": (f"import gc; gc.disable(); import asyncio, msgspec, uvloop; {END}", []),
    "a server with one tool": (f"import portico_server as s; s.serve(s.build(1)); {END}", HELLO[:1]),
    "the memory": (MEMORY, HELLO),
    "… and its first recall": (MEMORY, RECALL),
    "… and the list of its tools": (MEMORY, [*RECALL, {"id": 3, "method": "tools/list", "params": {}}]),
    "all services": (SERVE.format(""), HELLO),
}


def instructions(program: str, said: list[dict[str, Any]], folder: str) -> int:
    result = "".join(json.dumps({"jsonrpc": "2.0", **item}) + "\n" for item in said)
    command = ["valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null"]
    # With hashes that are the same each time the count is too, nearly.
    fixed = {"PYTHONHASHSEED": "0", "PORTICO_DATA": folder}
    env = {**os.environ, **fixed, "PYTHONPATH": str(Path(__file__).parent / "servers")}
    # Once without, so that everything is compiled.
    subprocess.run([sys.executable, "-c", program], input=result, env=env, capture_output=True, text=True, check=True)
    done = subprocess.run(
        [*command, sys.executable, "-c", program], input=result, env=env, capture_output=True, text=True, check=True
    )
    (found,) = re.findall(r"I\s+refs:\s+([\d,]+)", done.stderr)
    return int(found.replace(",", ""))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="portico-start-") as data:
        for name, (program, said) in PROGRAMS.items():
            print(f"{name:28} {instructions(program, said, data) / 1e6:8.1f} million")
