"""The README: its length, its first server and its commands."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.paths import ROOT

README = (ROOT / "README.md").read_text()
COMMANDS = re.findall(r"^\$ (\S.*?)(?:\s+#.*)?$", README, re.MULTILINE)
MAX_WORDS = 700


def run(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a `portico` command line of the README in a folder."""
    words = [sys.executable, "-m", *line.split()]
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=60, check=False)


def test_readme_is_short() -> None:
    assert len(README.split()) <= MAX_WORDS


def test_first_server_answers_the_first_call(tmp_path: Path) -> None:
    code = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)[0]
    (tmp_path / "calculator.py").write_text(code)
    line = next(line for line in COMMANDS if line.startswith("portico call"))
    # Without a terminal the command prints the whole result as JSON.
    finished = run(line, tmp_path)
    assert finished.returncode == 0, finished.stderr
    assert json.loads(finished.stdout)["structuredContent"] == {"result": 3}


def test_first_server_can_be_installed_into_a_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "calculator.py").write_text(re.findall(r"^```python\n(.*?)^```", README, re.M | re.S)[0])
    line = next(line for line in COMMANDS if line.startswith("portico install"))
    finished = run(line, tmp_path)
    assert finished.returncode == 0, finished.stderr
    assert "calculator" in (tmp_path / ".cursor" / "mcp.json").read_text()


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"`make ([\w-]+)`", README):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_every_package_is_installed() -> None:
    install = next(line for line in COMMANDS if line.startswith("pip install"))
    packages = {f"./{path.parent.relative_to(ROOT)}" for path in ROOT.glob("packages/*/pyproject.toml")}
    assert {re.sub(r"\[.*\]|'", "", word) for word in install.split()[2:]} == packages
    for path in re.findall(r"(?:pytest|python) (\S+\.py)", README):
        assert (ROOT / path).exists(), path


def test_access_tokens_protect_the_first_server(tmp_path: Path) -> None:
    """The last two commands are understood; docs/tutorial shows what they do."""
    add, serve = (
        next(line for line in COMMANDS if line.startswith(start)) for start in ("portico tokens", "portico serve calc")
    )
    assert run(add, tmp_path).stdout.startswith("ptk_")
    assert (tmp_path / serve.split()[-1]).exists()
