"""docs/reference/profiles.md: its samples are run, and its table names all profiles."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from portico.server.settings import ServerSection, ServeSection
from portico_services.profiles import loader
from portico_services.settings import CompatSection, SettingsFile
from support.paths import ROOT

PAGE = (ROOT / "docs" / "reference" / "profiles.md").read_text()
SAMPLES = [
    sample
    for block in re.findall(r"^```console\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    for sample in re.findall(r"^\$ (portico profiles .+)\n((?:[^$].*\n|\n)*)", block, re.MULTILINE)
]


@pytest.mark.parametrize("line, printed", SAMPLES, ids=[line for line, _ in SAMPLES])
def test_sample_matches_the_printed_output(line: str, printed: str) -> None:
    command, _, cut = line.partition(" | head -")
    words = [sys.executable, "-m", *command.split()]
    output = subprocess.run(words, capture_output=True, text=True, timeout=30, cwd=ROOT).stdout.splitlines(True)
    assert "".join(output[: int(cut)] if cut else output) == printed


def test_samples_exist() -> None:
    assert len(SAMPLES) == 2


def test_every_profile_has_a_row() -> None:
    for name in loader.list_profiles():
        assert f"\n| `{name}` |" in PAGE


def test_every_setting_is_in_the_linked_reference() -> None:
    pages = [ROOT / "docs" / "reference" / name for name in ("settings.md", "settings-services.md")]
    assert all(f"]({page.name}" in PAGE for page in pages)
    text = "".join(page.read_text() for page in pages)
    for struct in (SettingsFile, ServerSection, ServeSection, CompatSection):
        for name in struct.__struct_fields__:
            assert f"\n| `{name}` |" in text, name


def test_configuration_on_the_page_is_one(tmp_path: Path) -> None:
    match = re.search(r"^\$ cat loud.toml\n(.*?)^\$ ", PAGE, re.DOTALL | re.MULTILINE)
    assert match is not None
    (tmp_path / "loud.toml").write_text(match[1])
    command = [sys.executable, "-m", "portico", "serve", "--profile", "subcog", "--config", str(tmp_path / "loud.toml")]
    done = subprocess.run(
        [*command, "--data", str(tmp_path)],
        input='{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"clientInfo":{"name":"x","version":"1"}}}\n',
        capture_output=True,
        text=True,
        timeout=30,
        cwd=tmp_path,
    )
    assert '"resources":{"subscribe":false,"listChanged":true}' in done.stdout
