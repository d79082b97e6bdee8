"""The commands of the tutorial print what the page shows, run in one shell in their order."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from support.paths import ROOT

PAGE = (ROOT / "docs" / "tutorial" / "first-server.md").read_text()
BLOCKS = re.findall(r"<!-- run -->\n```console\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
COMMAND = re.compile(r"^\$ (.+)\n((?:[^$].*\n|\n)*)", re.MULTILINE)
READY = "for i in $(seq 200); do curl -s -o /dev/null http://127.0.0.1:{port}/health && break; read -t 0.1 < <(:); done"


def expected(printed: str) -> str:
    return ".*".join(re.escape(part) for part in printed.strip().split("…"))


def test_commands_print_the_output_shown_in_the_tutorial(tmp_path: Path) -> None:
    if shutil.which("curl") is None:
        assert "CI" not in os.environ, "CI has no curl"
        pytest.skip("the tutorial needs curl, and this machine has none")
    for name in ("tutorial.py", "test_tutorial.py"):
        shutil.copy(ROOT / "examples" / name, tmp_path)
    (tmp_path / "pytest.ini").write_text(re.findall(r"^```ini\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)[0])
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    commands = [pair for block in BLOCKS for pair in COMMAND.findall(block)]
    lines = []
    for command, _ in commands:
        # Readers have a terminal, where this is the default.
        lines += [f"{command} --format table" if "portico call" in command else command, "echo @@@"]
        if command.endswith("&"):
            lines.append(READY.format(port=port))
    # The server ends with the shell.
    script = "trap 'kill $(jobs -p)' EXIT\n" + "\n".join(lines)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", script.replace("8080", port)],
        cwd=tmp_path,
        env={**os.environ, "PATH": path, "PORTICO_DATA": str(tmp_path / "data")},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        check=False,
    )
    outputs = done.stdout.split("@@@\n")
    for (command, printed), output in zip(commands, outputs, strict=False):
        if printed.strip():
            shown = output.replace(port, "8080").strip()
            assert re.search(expected(printed), shown, re.DOTALL), f"{command}\n{shown}"
