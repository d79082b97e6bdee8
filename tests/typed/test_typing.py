"""Type checkers report misspelled names and accept correct code."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support import node

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
GOOD, BAD = HERE / "good.py", HERE / "bad.py"

Found = dict[str, dict[int, str]]
"""What a type checker reports: for each file the lines, and the words."""


def mypy(paths: list[Path]) -> Found:
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--hide-error-context", *map(str, paths)]
    # The configuration of `make check`, so that what it has checked already is not checked again.
    done = subprocess.run([*command, "--config-file", "pyproject.toml"], cwd=ROOT, capture_output=True, text=True)
    assert not done.stderr, done.stderr
    results: Found = {path.name: {} for path in paths}
    for line in done.stdout.splitlines():
        reported = re.fullmatch(r"(?:.*/)?([^/:]+):(\d+): (?:error|note): (.*)", line)
        assert reported, line
        results[reported[1]].setdefault(int(reported[2]), reported[3])
    return results


def pyright(paths: list[Path]) -> Found:
    try:
        packages = node.install(HERE / "pyright", "pyright")
    except node.NotInstalled as why:
        reason = f"pyright is not installed and cannot be: {why}"
        if os.environ.get("CI"):
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)
    command = [packages.node, packages.modules / "pyright" / "index.js", "--outputjson", "--pythonpath"]
    done = subprocess.run(
        [*command, sys.executable, *paths], cwd=HERE, capture_output=True, text=True, env=node.environment()
    )
    results: Found = {path.name: {} for path in paths}
    for general_diagnostic in json.loads(done.stdout)["generalDiagnostics"]:
        if general_diagnostic["severity"] == "error":
            results[Path(general_diagnostic["file"]).name][general_diagnostic["range"]["start"]["line"] + 1] = (
                general_diagnostic["message"]
            )
    return results


@pytest.fixture(scope="module")
def readme(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The server of the README."""
    code = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)[0]
    assert "@server.tool" in code
    path = tmp_path_factory.mktemp("readme") / "readme.py"
    path.write_text(code)
    return path


@pytest.fixture(scope="module", params=[mypy, pyright], ids=["mypy", "pyright"])
def found(request: pytest.FixtureRequest, readme: Path) -> Found:
    """Of all the files at once, for what they import takes longer than they do."""
    checked: Found = request.param([GOOD, BAD, readme])
    return checked


def test_correct_code_has_no_type_errors(found: Found) -> None:
    assert found[GOOD.name] == {}


def test_incorrect_code_is_reported(found: Found) -> None:
    marked = {number for number, line in enumerate(BAD.read_text().splitlines(), 1) if line.endswith("# error")}
    assert len(marked) > 30
    assert set(found[BAD.name]) == marked


def test_server_of_the_readme_is_typed(found: Found, readme: Path) -> None:
    assert found[readme.name] == {}
