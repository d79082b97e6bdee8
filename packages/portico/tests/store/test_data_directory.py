"""The order in which the store and the data directory are resolved."""

from __future__ import annotations

from pathlib import Path

import pytest

from portico.store.data_directory import find_store, named_store, resolve_data_directory


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PORTICO_STORE", raising=False)
    monkeypatch.delenv("PORTICO_DATA", raising=False)


def test_given_store_precedes_the_variable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PORTICO_STORE", "env.db")
    assert find_store("given.db", str(tmp_path), "name") == "given.db"
    assert find_store(None, str(tmp_path), "name") == "env.db"


def test_without_a_store_it_is_a_file_in_the_data_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PORTICO_DATA", str(tmp_path / "env"))
    assert named_store() is None
    assert find_store(None, tmp_path / "given", "name") == str(tmp_path / "given" / "name.db")
    assert find_store("", None, "../my server") == str(tmp_path / "env" / ".._my_server.db")


def test_home_directory_is_expanded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("PORTICO_STORE", "~/x.db")
    assert named_store() == "/home/me/x.db"
    assert resolve_data_directory("~/data") == Path("/home/me/data")
