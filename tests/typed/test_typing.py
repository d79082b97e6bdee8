"""Type checkers find what is misspelt, and have nothing to say about what is not."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import node

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
GOOD, BAD = HERE / "good.py", HERE / "bad.py"

Check = Callable[[Path], dict[int, str]]
"""What a type checker reports of a file: the lines, and the words."""


def mypy(path: Path) -> dict[int, str]:
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--hide-error-context", str(path)]
    # The configuration of `make check`, so that what it has checked already is not checked again.
    done = subprocess.run([*command, "--config-file", "pyproject.toml"], cwd=ROOT, capture_output=True, text=True)
    assert not done.stderr, done.stderr
    found = re.findall(rf"^.*{path.name}:(\d+): error: (.*)$", done.stdout, re.MULTILINE)
    assert found or not done.stdout, done.stdout
    return {int(line): words for line, words in found}


@pytest.fixture(scope="session")
def pyright() -> Check:
    try:
        packages = node.install(HERE / "pyright", "pyright")
    except node.NotInstalled as why:
        reason = f"pyright is not installed and cannot be: {why}"
        if os.environ.get("CI"):
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)

    def check(path: Path) -> dict[int, str]:
        command = [packages.node, packages.modules / "pyright" / "index.js", "--outputjson", "--pythonpath"]
        done = subprocess.run(
            [*command, sys.executable, path], cwd=path.parent, capture_output=True, text=True, env=node.environment()
        )
        reported = json.loads(done.stdout)["generalDiagnostics"]
        return {one["range"]["start"]["line"] + 1: one["message"] for one in reported if one["severity"] == "error"}

    return check


@pytest.fixture(params=["mypy", "pyright"])
def check(request: pytest.FixtureRequest) -> Check:
    return mypy if request.param == "mypy" else request.getfixturevalue("pyright")


def test_what_is_right_is_not_reported(check: Check) -> None:
    assert check(GOOD) == {}


def test_what_is_misspelt_is_reported(check: Check) -> None:
    marked = {number for number, line in enumerate(BAD.read_text().splitlines(), 1) if line.endswith("# error")}
    assert len(marked) > 30
    assert set(check(BAD)) == marked


def test_the_server_of_the_readme_is_typed(check: Check, tmp_path: Path) -> None:
    code = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)[0]
    assert "@server.tool" in code
    path = tmp_path / "server.py"
    path.write_text(code)
    assert check(path) == {}
