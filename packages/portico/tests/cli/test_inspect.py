"""`portico inspect`: the table for a terminal."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from portico.cli import inspect
from portico.cli.main import main
from portico.protocol.errors import UsageError
from support.paths import ROOT


def test_without_the_services_package_the_table_names_the_package_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(*_: Any) -> Any:
        raise UsageError("checking tools needs portico-services: pip install 'portico[services]'")

    monkeypatch.setattr(inspect, "require_plugin", missing)
    main(["inspect", str(ROOT / "examples" / "hello.py"), "--format", "table"])
    shown = capsys.readouterr()
    assert "not checked" in shown.out
    assert "the tools were not checked: checking tools needs portico-services" in shown.err


@pytest.mark.parametrize("version, name", [("", "quiet"), ("version='1.2.0'", "quiet 1.2.0")])
def test_only_a_version_that_the_server_states_is_shown(
    version: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "quiet.py"
    path.write_text(f"from portico import Server\nserver = Server('quiet', {version})\n", encoding="utf-8")
    main(["inspect", str(path), "--format", "table"])
    assert re.search(rf"^name +{re.escape(name)} *$", capsys.readouterr().out, re.M)
    main(["doctor", str(path), "--format", "table"])
    assert re.search(rf" {re.escape(name)} answers", " ".join(capsys.readouterr().out.split()))
