"""Registry hives: every key and value matches hivex."""

from __future__ import annotations

import base64
import json
import subprocess
from pathlib import Path

import pytest

from portico_services.system.errors import SystemToolError
from portico_services.system.registry.hive import Hive
from portico_services.system.registry.values import VALUE_TYPES, decode_value, encode_value, type_name, type_number
from support import system_forgery as forgery
from support.outcomes import has_outcome

# Run by the system's Python, which has hivex. Times are tenths of microseconds since 1601.
THEIRS = """
import base64, hivex, json, sys
hive = hivex.Hivex(sys.argv[1], unsafe=len(sys.argv) > 2)
waiting = [((), hive.root())]
while waiting:
    path, key = waiting.pop()
    try:
        values = [(hive.value_key(v), *hive.value_value(v)) for v in hive.node_values(key)]
        below = [(path + (hive.node_name(k),), k) for k in hive.node_children(key)]
    except RuntimeError:
        continue
    rows = sorted((n, t, base64.b64encode(d).decode()) for n, t, d in values)
    print(json.dumps([path, hive.node_timestamp(key), rows]))
    waiting += below
"""
EPOCH = 11_644_473_600_000_000


def theirs(python: str, path: Path, *unsafe: str) -> dict[tuple[str, ...], list[object]]:
    command = [python, "-c", THEIRS, str(path), *unsafe]
    done = subprocess.run(command, capture_output=True, check=True, timeout=120)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    return {tuple(path): [time // 10 - EPOCH, values] for path, time, values in rows}


def ours(path: Path) -> dict[tuple[str, ...], list[object]]:
    results: dict[tuple[str, ...], list[object]] = {}
    for place, key in Hive(path.read_bytes()).walk():
        values = [[item.name, item.number, base64.b64encode(item.data).decode()] for item in key.values()]
        results[place] = [key.written, sorted(values)]
    return results


@pytest.mark.parametrize("name", ["NTUSER.DAT", "NTUSER_with_winscp.DAT", "SYSTEM"])
def test_corpus_keys_match_hivex(name: str, hive_files: dict[str, Path], hivex: str) -> None:
    result, expected = ours(hive_files[name]), theirs(hivex, hive_files[name])
    assert result.keys() == expected.keys()
    for place, content in expected.items():
        assert result[place] == content, place


def test_of_a_corrupted_hive_no_less_is_read_than_by_hivex(hive_files: dict[str, Path], hivex: str) -> None:
    path = hive_files["corrupted_system_hive"]
    result, expected = ours(path), theirs(hivex, path, "unsafe")
    assert expected.keys() <= result.keys()
    assert all(result[place] == content for place, content in expected.items())
    hive = Hive(path.read_bytes())
    assert list(hive.walk())
    assert hive.problems


def test_hive_with_pending_writes_is_dirty(hive_files: dict[str, Path]) -> None:
    assert Hive(hive_files["NTUSER_with_winscp.DAT"].read_bytes()).is_dirty
    assert not Hive(hive_files["SYSTEM"].read_bytes()).is_dirty


@pytest.mark.parametrize("kind", ["lf", "lh", "li", "ri"])
def test_every_kind_of_list_is_read(kind: str) -> None:
    hive = Hive(forgery.hive(kind))
    assert [path for path, _ in hive.walk()] == [(), ("branch",), *(("branch", f"leaf{n}") for n in range(5))]
    leaf = hive.find(["BRANCH", "Leaf3"])
    assert leaf is not None
    assert [decode_value(value.number, value.data) for value in leaf.values()] == [3]
    assert hive.find(["branch", "leaf9"]) is None


def test_values_of_all_lengths_are_read() -> None:
    values = {value.name: decode_value(value.number, value.data) for value in Hive(forgery.hive()).root.values()}
    assert values == {"": "default", "number": 42, "long": bytes(range(256)) * 100, "several": ["one", "two"]}


@pytest.mark.parametrize(
    "name, value",
    [
        ("REG_SZ", "text ÄÖ 🙂"),
        ("REG_EXPAND_SZ", "%PATH%"),
        ("REG_DWORD", 2**32 - 1),
        ("REG_DWORD_BIG_ENDIAN", 1),
        ("REG_QWORD", 2**64 - 1),
        ("REG_MULTI_SZ", ["one", "two"]),
    ],
)
def test_registry_value_round_trips(name: str, value: object) -> None:
    assert decode_value(type_number(name), encode_value(type_number(name), value)) == value


def test_bytes_are_written_as_digits() -> None:
    assert decode_value(3, encode_value(3, "00ff")) == b"\0\xff"


@pytest.mark.parametrize("name, value", [("REG_DWORD", -1), ("REG_DWORD", 2**32), ("REG_SZ", 1), ("REG_BINARY", "xyz")])
def test_value_of_another_type_is_rejected(name: str, value: object) -> None:
    with pytest.raises(SystemToolError, check=has_outcome("invalid"), match=name):
        encode_value(type_number(name), value)


def test_types_have_names() -> None:
    assert [type_name(type_number(name)) for name in VALUE_TYPES] == list(VALUE_TYPES)
    assert type_name(0x20001) == "REG_0x20001"
