"""The curl transcripts and configuration blocks of the guide are executed."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from portico.cli.install import CLIENT_CONFIGS, build_entry as install_entry
from support.paths import ROOT

TRANSPORTS = (ROOT / "docs" / "how-to" / "choose-a-transport.md").read_text()
SERVICES = (ROOT / "docs" / "how-to" / "use-the-built-in-services.md").read_text()
BLOCKS = re.findall(r"<!-- configuration of (.*?) -->\n```jsonc\n(.*?)```", SERVICES, re.S)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def port(data: Path) -> Iterator[int]:
    """`make serve`, on a port that is free."""
    if shutil.which("curl") is None:
        assert "CI" not in os.environ, "CI has no curl"
        pytest.skip("the commands of the guide need curl, and this machine has none")
    with socket.create_server(("127.0.0.1", 0)) as free:
        number = free.getsockname()[1]
    recipe = re.search(
        r"^serve:.*\n\t@\$\(VENV\)/serve/\S+/portico (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE
    )
    assert recipe is not None
    command = [sys.executable, "-m", "portico", *recipe.group(1).split(), "--port", str(number)]
    env = {**os.environ, "PORTICO_DATA": str(data)}
    child = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True, env=env)
    try:
        assert child.stderr is not None
        # A machine may lack what a service needs; that is said before.
        output = iter(child.stderr.readline, "")
        assert f"Serving on http://127.0.0.1:{number}/mcp\n" in output
        yield number
    finally:
        child.terminate()
        child.communicate(timeout=20)
        assert child.returncode == 0


def command(name: str) -> str:
    """The command behind a comment, and not its sample output."""
    block = re.search(rf"<!-- curl: {name} -->\n```console\n\$ (.*?)^(?=[{{H])", TRANSPORTS, re.S | re.M)
    assert block is not None
    return block.group(1)


def printed(name: str, port: int, data: Path) -> str:
    token = re.search(r"<!-- token -->\n```console\n\$ (.*)\n", TRANSPORTS)
    assert token is not None
    first = token[1].replace("~/.local/share/portico", str(data)).replace("8080", str(port))
    line = first + "\n" + command(name).replace("127.0.0.1:8080", f"127.0.0.1:{port}")
    return subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=20, check=True).stdout


def test_newest_revision_is_answered_without_a_handshake(port: int, data: Path) -> None:
    output = printed("modern", port, data)
    assert '"resultType":"complete"' in output
    assert '"modes":["text"],"indexed":0,' in output


def test_older_ones_get_a_session(port: int, data: Path) -> None:
    output = printed("handshake", port, data)
    assert output.startswith("HTTP/1.1 200 OK")
    assert re.search(r"^mcp-session-id: [0-9a-f]{48}\r?$", output, re.MULTILINE)
    assert '"protocolVersion":"2025-11-25"' in output


@pytest.mark.parametrize("names, block", BLOCKS, ids=[names for names, _ in BLOCKS])
def test_configuration_block_matches_the_installed_entry(names: str, block: str) -> None:
    for name in names.split(", "):
        place = CLIENT_CONFIGS[name]["project" if "project" in CLIENT_CONFIGS[name] else "user"]
        (entry,) = json.loads(block)[place.key].values()
        assert {"type": "stdio", **entry} == {"type": "stdio", **install_entry(place, [], shared=True)}


def test_most_used_clients_have_a_block() -> None:
    """`portico install` has the others, whose files are not JSON or are at unusual places."""
    named = {name for names, _ in BLOCKS for name in names.split(", ")}
    assert named == {"claude-code", "claude-desktop", "cursor", "vscode"} <= set(CLIENT_CONFIGS)
