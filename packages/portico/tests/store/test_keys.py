"""Keys of a store, which are stored outside of it."""

from __future__ import annotations

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from portico.protocol.errors import UsageError
from portico.store.keys import SigningKeys, load_keys


@pytest.fixture(autouse=True)
def no_configured_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PORTICO_ENCRYPTION_KEYS", raising=False)


def test_key_file_is_next_to_the_database_with_owner_only_mode(tmp_path: Path) -> None:
    store = tmp_path / "store.db"
    [key] = load_keys("sqlite", str(store))
    assert load_keys("sqlite", str(store)) == [key]
    assert stat.S_IMODE((tmp_path / "store.keys").stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == ["store.keys"]
    # A copy of the database alone has another key.
    (tmp_path / "copy").mkdir()
    assert load_keys("sqlite", str(tmp_path / "copy" / "store.db")) != [key]


def test_processes_that_start_together_have_one_key(tmp_path: Path) -> None:
    store = str(tmp_path / "store.db")
    with ThreadPoolExecutor(16) as pool:
        results = list(pool.map(lambda _: load_keys("sqlite", store), range(64)))
    assert all(item == results[0] for item in results)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o666])
def test_key_file_that_others_can_read_is_rejected(tmp_path: Path, mode: int) -> None:
    load_keys("sqlite", str(tmp_path / "store.db"))
    (tmp_path / "store.keys").chmod(mode)
    with pytest.raises(UsageError, match="chmod 600"):
        load_keys("sqlite", str(tmp_path / "store.db"))


def test_postgresql_has_the_configured_keys_or_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_keys("postgresql", "postgresql://db.example/portico") == []
    monkeypatch.setenv("PORTICO_ENCRYPTION_KEYS", "a new key of these tests,the old key of these tests")
    expected = [b"a new key of these tests", b"the old key of these tests"]
    assert load_keys("postgresql", "postgresql://db.example/portico") == expected
    monkeypatch.setenv("PORTICO_ENCRYPTION_KEYS", "short")
    with pytest.raises(UsageError, match="at least 16 bytes"):
        load_keys("postgresql", "postgresql://db.example/portico")


def test_row_is_signed_value_by_value() -> None:
    keys = SigningKeys([b"k" * 32])
    signature = keys.sign_row(b"rows", "ab", "c", None)
    assert keys.is_row_signed(b"rows", signature, "ab", "c", None)
    for values in (("a", "bc", None), ("ab", "c", ""), ("ab", "c"), ("ab", "c", None, None), ("ab2:c", None)):
        assert not keys.is_row_signed(b"rows", signature, *values)
    assert not keys.is_row_signed(b"other rows", signature, "ab", "c", None)
    for wrong in (None, "", "zz", signature[:-2], signature[:24]):
        assert not keys.is_row_signed(b"rows", wrong, "ab", "c", None)


def test_signatures_of_rotated_keys_verify_but_unknown_keys_do_not() -> None:
    old, new = b"o" * 32, b"n" * 32
    signature = SigningKeys([old]).sign_row(b"rows", "a")
    assert SigningKeys([new, old]).is_row_signed(b"rows", signature, "a")
    assert not SigningKeys([new]).is_row_signed(b"rows", signature, "a")
    assert not SigningKeys([]).is_row_signed(b"rows", signature, "a")
