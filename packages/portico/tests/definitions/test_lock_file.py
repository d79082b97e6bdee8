"""Lock files: one format for the contract of a server and the pins of a gateway."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

from portico import UsageError
from portico.definitions import LockFileError, format_lock, lock_file, lock_kind, parse_lock, read_lock, write_lock


class Pins(Struct):
    upstreams: dict[str, Any]


TEXT = format_lock("pins", {"upstreams": {"b": 1, "a": 2}})


def test_lock_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "pins.lock"
    assert read_lock(path, "pins", Pins) is None
    assert lock_kind(path) == ""
    write_lock(path, "pins", TEXT)
    assert read_lock(path, "pins", Pins) == Pins({"a": 2, "b": 1})
    assert lock_kind(path) == "pins"
    assert [item.name for item in tmp_path.iterdir()] == ["pins.lock"]


def test_same_members_give_the_same_text() -> None:
    assert format_lock("pins", {"upstreams": {"a": 2, "b": 1}}) == TEXT
    assert list(json.loads(TEXT)) == ["kind", "lock", "upstreams"]


def test_hidden_characters_are_escaped() -> None:
    text = format_lock("pins", {"upstreams": {"a": "é\u200b\u202e\U000e0041\x7f"}})
    assert '"é\\u200b\\u202e\\udb40\\udc41\\u007f"' in text
    assert parse_lock(text, "pins", Pins).upstreams == {"a": "é\u200b\u202e\U000e0041\x7f"}


@pytest.mark.parametrize(
    "text, reason",
    [
        ("", "expected a lock file of kind 'pins'"),
        ("[" * 100_000, "expected a lock file of kind 'pins'"),
        ('{"kind": "pins", "upstreams": {}}', "lock"),
        ('{"lock": 3, "kind": "pins", "upstreams": {}}', "lock must be 2 or 1, got 3"),
        ('{"lock": 2}', "got none"),
        ('{"lock": 2, "kind": "cargo", "upstreams": {}}', "got 'cargo'"),
        ('{"lock": 2, "kind": "contracts", "upstreams": {}}', "got 'contracts', the contract of a server"),
        ('{"lock": 1, "contract": "1.0.0"}', "got 'contracts', the contract of a server"),
        ('{"lock": 2, "kind": "pins"}', "upstreams"),
    ],
)
def test_another_file_is_rejected(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(LockFileError, match=reason):
        parse_lock(text, "pins", Pins)
    path = tmp_path / "pins.lock"
    path.write_text(text)
    with pytest.raises(UsageError, match=rf"pins\.lock: .*{reason}"):
        read_lock(path, "pins", Pins)


@pytest.mark.parametrize("version", [1, 2])
def test_file_without_a_kind_is_read(version: int) -> None:
    assert parse_lock(f'{{"lock": {version}, "upstreams": {{"a": 1}}}}', "pins", Pins) == Pins({"a": 1})


def test_file_of_another_type_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "contracts.lock"
    write_lock(path, "contracts", format_lock("contracts", {"contract": "1.0.0"}))
    before = path.read_text()
    with pytest.raises(UsageError, match=r"the contract of a server.*write the pins to another file"):
        write_lock(path, "pins", TEXT)
    assert path.read_text() == before
    path.write_text("{")
    write_lock(path, "pins", TEXT)
    assert path.read_text() == TEXT


def test_failed_write_leaves_the_file_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "pins.lock"
    write_lock(path, "pins", TEXT)

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(lock_file.os, "replace", fail)
    with pytest.raises(UsageError, match=r"pins\.lock cannot be written: No space left on device"):
        write_lock(path, "pins", format_lock("pins", {"upstreams": {}}))
    assert path.read_text() == TEXT
    assert [item.name for item in tmp_path.iterdir()] == ["pins.lock"]


def test_size_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock_file, "MAX_LOCK_BYTES", len(TEXT) - 1)
    path = tmp_path / "pins.lock"
    path.write_text(TEXT)
    with pytest.raises(UsageError, match=f"must not exceed {len(TEXT) - 1} bytes"):
        read_lock(path, "pins", Pins)
