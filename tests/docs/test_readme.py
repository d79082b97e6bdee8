"""The README: its length, its first server and its commands."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from support.paths import ROOT

README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```sh\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
COMMANDS = [re.sub(r"\s+#.*", "", line) for block in BLOCKS for line in block.splitlines()]
PYTHON = re.findall(r"^```python(?: fragment)?\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
MAX_WORDS = 700


def command(start: str) -> str:
    return next(line for line in COMMANDS if line.startswith(start))


def run(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a `portico` command line of the README in a folder."""
    words = [sys.executable, "-m", *line.split()]
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=60, check=False)


def test_readme_is_short() -> None:
    assert len(README.split()) <= MAX_WORDS


def test_first_server_answers_the_first_call(tmp_path: Path) -> None:
    (tmp_path / "calculator.py").write_text(PYTHON[0])
    # Without a terminal the command prints the whole result as JSON.
    finished = run(command("portico call"), tmp_path)
    assert finished.returncode == 0, finished.stderr
    assert json.loads(finished.stdout)["structuredContent"] == {"result": 3}


def test_first_server_can_be_installed_into_a_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "calculator.py").write_text(PYTHON[0])
    finished = run(command("portico install"), tmp_path)
    assert finished.returncode == 0, finished.stderr
    assert "calculator" in (tmp_path / ".cursor" / "mcp.json").read_text()


def test_first_server_is_tested_without_settings_of_pytest(tmp_path: Path) -> None:
    (tmp_path / "calculator.py").write_text(PYTHON[0])
    (tmp_path / "test_calculator.py").write_text(PYTHON[1])
    finished = run("pytest -q -p no:cacheprovider", tmp_path)
    assert (finished.returncode, "1 passed" in finished.stdout) == (0, True), finished.stdout + finished.stderr


def test_first_server_is_called_with_a_token(tmp_path: Path) -> None:
    (tmp_path / "calculator.py").write_text(PYTHON[0])
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    token, serve, call = (line for block in BLOCKS[1:3] for line in block.splitlines())
    ready = "for i in $(seq 200); do curl -s -o /dev/null http://127.0.0.1:8080/health && break; sleep 0.1; done"
    lines = [
        "trap 'kill $(jobs -p)' EXIT",
        token,
        serve,
        ready,
        call,
        "PORTICO_CLIENT_TOKEN=x portico list http://127.0.0.1:8080/mcp",
    ]
    finished = subprocess.run(
        ["bash", "-c", "\n".join(lines).replace("8080", port)],
        cwd=tmp_path,
        env={
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PORTICO_DATA": str(tmp_path / "data"),
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert json.loads(finished.stdout)["structuredContent"] == {"result": 3}, finished.stderr
    assert "rejected the token" in finished.stderr


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"`make ([\w-]+)`", README):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_every_package_is_installed() -> None:
    words = subprocess.run(
        ["bash", "-c", f"printf '%s\n' {command('pip install').removeprefix('pip install')}"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    packages = {f"../portico/{path.parent.relative_to(ROOT)}" for path in ROOT.glob("packages/*/pyproject.toml")}
    assert {re.sub(r"\[.*\]", "", word) for word in words} == packages
    for path in re.findall(r"(?:pytest|python|serve) (\S+/\S+\.(?:py|toml))", README):
        assert (ROOT / path).exists(), path


def _column(page: Path, question: str, label: str) -> list[float]:
    """Return the numbers in a row of a table of the performance page."""
    section = page.read_text().partition(f"## {question}")[2].partition("\n## ")[0]
    row = next(line for line in section.splitlines() if line.startswith(f"| {label} |"))
    return [float(cell.replace(",", "")) for cell in re.findall(r"\| ([\d,]+) (?=\|)", row)]


def test_ratios_are_those_of_the_performance_page() -> None:
    page = ROOT / "docs" / "explanation" / "performance.md"
    http = [
        _column(page, "How many calls per second over HTTP?", name)[0]
        for name in ("Portico", "official SDK on uvicorn", "FastMCP on uvicorn")
    ]
    stdio = _column(page, "How much does a call cost over stdio?", "calls per second, 64 in flight")
    ratios = [round(http[0] / http[1]), int(http[0] / http[2]), *(int(stdio[0] / peer) for peer in stdio[1:3])]
    text = " ".join(README.split())
    assert f"Over HTTP {ratios[0]} times the calls per second of the official SDK and {ratios[1]} times" in text
    assert f"over stdio {ratios[2]} and {ratios[3]} times" in text
    assert f"{ratios[0]} times the HTTP throughput of the official SDK" in text


def test_share_of_migrated_servers_is_that_of_the_migration_page() -> None:
    page = (ROOT / "docs" / "how-to" / "migrate-from-fastmcp.md").read_text()
    total, renamed, ported = re.findall(r"^\| examples \| (\d+) \| (\d+) \| (\d+) ", page, re.MULTILINE)[0]
    text = " ".join(README.split())
    assert f"{ported} of the {total} example servers" in text and f"{renamed} with nothing but the import" in text


def test_size_is_at_most_what_the_sources_have() -> None:
    (lines,) = re.findall(r"The SDK alone has more than ([\d,]+) lines", README)
    sources = (ROOT / "packages" / "portico" / "src").rglob("*.py")
    assert 0 <= sum(path.read_text().count("\n") for path in sources) - int(lines.replace(",", "")) < 10_000


def test_design_page_quotes_the_performance_page() -> None:
    folder = ROOT / "docs" / "explanation"
    design = (folder / "design.md").read_text()
    quoted = set(re.findall(r"\d[\d,]*(?= (?:requests per second|ms\b|Python calls))|(?<=against )[\d,]+", design))
    assert quoted
    missing = {number for number in quoted if f" {number} " not in (folder / "performance.md").read_text()}
    assert not missing
