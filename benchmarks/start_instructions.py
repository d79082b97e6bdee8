"""How many instructions a server on stdio takes from its spawn to its first answer: for machines too busy to be timed.

    python benchmarks/start_instructions.py

Valgrind counts them. The packages that it stands on are counted alone too: what a server without a line of ours would
take. What the kernel does is not in it.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from driver import CLIENT, HANDSHAKE

# The end of the process is not in it.
END = "import os; os._exit(0)"
PROGRAMS = {
    "Python alone": END,
    "asyncio, msgspec, uvloop": f"import gc; gc.disable(); import asyncio, msgspec, uvloop; {END}",
    "a server with one tool": f"import portico_server as s; s.serve(s.build(1)); {END}",
}


def instructions(program: str) -> int:
    params = {"protocolVersion": HANDSHAKE, "capabilities": {}, "clientInfo": CLIENT}
    asked = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}) + "\n"
    command = ["valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null"]
    # With hashes that are the same each time the count is too, nearly; and what was compiled before is used.
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    env = {**kept, "PYTHONHASHSEED": "0", "PYTHONPATH": str(Path(__file__).parent / "servers")}
    # Once without, so that everything is compiled.
    subprocess.run([sys.executable, "-c", program], input=asked, env=env, capture_output=True, text=True, check=True)
    done = subprocess.run(
        [*command, sys.executable, "-c", program], input=asked, env=env, capture_output=True, text=True, check=True
    )
    (found,) = re.findall(r"I\s+refs:\s+([\d,]+)", done.stderr)
    return int(found.replace(",", ""))


if __name__ == "__main__":
    for name, program in PROGRAMS.items():
        print(f"{name:26} {instructions(program) / 1e6:8.1f} million")
