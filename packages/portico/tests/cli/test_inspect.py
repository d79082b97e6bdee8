"""`portico inspect`: the table for a terminal."""

from __future__ import annotations

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
