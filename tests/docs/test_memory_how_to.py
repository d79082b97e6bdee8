"""The commands of "Give Claude Code a memory" print what the page shows."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import msgspec

from portico_services.settings import SettingsFile
from support.paths import ROOT

PAGE = (ROOT / "docs" / "how-to" / "give-an-assistant-a-memory.md").read_text()


def run(command: str, folder: Path) -> str:
    """Run a command with an empty home directory."""
    environment = {
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
        "HOME": str(folder),
        "PORTICO_DATA": str(folder),
    }
    done = subprocess.run(
        ["bash", "-c", command], cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_session_matches_the_printed_output(tmp_path: Path) -> None:
    block = re.search(r"<!-- session -->\n```console\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    assert block is not None
    for command, printed in re.findall(r"^\$ (.+)\n([^$].*)\n", block[1], re.MULTILINE):
        pattern = ".*".join(re.escape(part) for part in printed.split("…"))
        output = run(command, tmp_path)
        assert re.search(pattern, output), output


def test_install_and_hooks_write_the_configuration(tmp_path: Path) -> None:
    for command in re.findall(r"^\$ (portico (?:install|memory hooks) .+)$", PAGE, re.MULTILINE):
        run(command, tmp_path)
    assert "memory" in (tmp_path / ".claude.json").read_text()
    assert "session-start" in (tmp_path / ".claude" / "settings.json").read_text()


def test_settings_are_valid() -> None:
    block = re.search(r"^```toml\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    assert block is not None
    assert msgspec.convert(tomllib.loads(block[1]), SettingsFile).services
