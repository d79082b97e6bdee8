"""Corrupt and malicious files: partial results, typed errors, no hang, bounded memory."""

from __future__ import annotations

import gc
import struct
import subprocess
import sys
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest

from portico_services.system.errors import CorruptData
from portico_services.system.logs.journal import file as journal_file
from portico_services.system.logs.journal.file import JournalFile
from portico_services.system.registry.hive import Hive
from support import system_forgery as forgery
from support.paths import PROGRAMS

FUZZ = PROGRAMS / "system_fuzz.py"
HANGING = 300


def fuzz(kind: str, rounds: int, folder: Path, files: list[Path]) -> None:
    """In another process, with little memory. The time is only there to tell a hang from work."""
    command = [sys.executable, str(FUZZ), kind, "7", str(rounds), str(folder), *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=HANGING)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.skipif(sys.platform != "linux", reason="memory is limited as Linux does it")
class TestSpoilt:
    def test_journals_that_were_spoilt_are_read_as_far_as_they_go(self, tmp_path: Path) -> None:
        files = []
        for compact, packer in ((False, "zstd"), (True, "zstd"), (False, "lz4"), (True, "xz")):
            path = tmp_path / f"{compact}-{packer}.original"
            entries = [forgery.entry("m" * (n % 5 * 50), n % 8, f"s{n % 3}") for n in range(200)]
            path.write_bytes(forgery.journal(entries, compact=compact, packer=packer))
            files.append(path)
        fuzz("journal", 600, tmp_path, files)

    def test_journals_of_the_corpus_that_were_spoilt(self, tmp_path: Path, journal_files: list[Path]) -> None:
        fuzz("journal", 60, tmp_path, journal_files)

    def test_hives_that_were_spoilt_are_read_as_far_as_they_go(self, tmp_path: Path) -> None:
        files = []
        for kind in ("lf", "lh", "li", "ri"):
            files.append(tmp_path / f"{kind}.hive")
            files[-1].write_bytes(forgery.hive(kind))
        fuzz("hive", 1000, tmp_path, files)

    def test_hives_of_the_corpus_that_were_spoilt(self, tmp_path: Path, hive_files: dict[str, Path]) -> None:
        fuzz("hive", 60, tmp_path, [hive_files["NTUSER.DAT"], hive_files["corrupted_system_hive"]])

    def test_event_logs_of_windows_that_were_spoilt(self, tmp_path: Path, evtx_files: list[Path]) -> None:
        pytest.importorskip("evtx")
        fuzz("evtx", 60, tmp_path, [path for path in evtx_files if path.stat().st_size < 100_000])

    def test_text_that_was_spoilt(self, tmp_path: Path) -> None:
        path = tmp_path / "text"
        path.write_text(
            "".join(f"<{n % 192}>Oct 11 22:14:{n % 60:02} host app[{n}]: message {n}\n" for n in range(500))
        )
        fuzz("text", 100, tmp_path, [path])


# Journals, one harm at a time


def spoil(data: bytes, at: int, *values: int) -> bytes:
    out = bytearray(data)
    struct.pack_into(f"<{len(values)}Q", out, at, *values)
    return bytes(out)


def forged(count: int = 40) -> tuple[forgery.Journal, bytes]:
    made = forgery.Journal()
    for n in range(count):
        made.add(forgery.entry(f"message {n}"))
    return made, made.bytes()


def array_of(data: bytes) -> int:
    return int(struct.unpack_from("<Q", data, 176)[0])


def test_chain_of_arrays_that_goes_in_circles_ends() -> None:
    _, data = forged()
    first = array_of(data)
    file = JournalFile(spoil(spoil(data, first + 16, first), 152, 2**40))
    assert len(file.entries) == 4


@pytest.mark.parametrize("count", [2**31, 2**63, 2**64 - 1])
def test_array_length_is_limited_by_its_object(count: int) -> None:
    _, data = forged()
    assert len(JournalFile(spoil(data, 152, count)).entries) == 40


@pytest.mark.parametrize("size", [0, 15, 2**31, 2**63, 2**64 - 1])
def test_size_that_cannot_be_is_damaged(size: int) -> None:
    made, data = forged()
    file = JournalFile(spoil(data, made.entries[0] + 8, size))
    with pytest.raises(CorruptData):
        file.entry_header(made.entries[0])


def test_values_of_a_field_that_go_in_circles_end() -> None:
    made, data = forged()
    [last] = [at for payload, at in made.data.items() if payload == b"MESSAGE=message 39"]
    file = JournalFile(spoil(data, last + 32, last))
    assert len(list(file.values("MESSAGE"))) == 1


def test_bucket_that_goes_in_circles_ends() -> None:
    made, data = forged()
    field = made.fields["MESSAGE"]
    assert "MESSAGE" in JournalFile(spoil(data, field + 24, field))._fields()


def test_entry_cannot_unpack_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("zstandard")
    monkeypatch.setattr(journal_file, "MAX_ENTRY_BYTES", 2_000_000)
    entry = [(f"F{n}", b"x" * 900_000) for n in range(20)]
    file = JournalFile(forgery.journal([entry], packer="zstd"))
    [offset] = file.entries.backwards(1)
    assert len(file.fields(file.entry_header(offset))) == 2
    assert file.problems


def test_entry_with_too_many_fields_is_corrupt() -> None:
    file = JournalFile(forgery.journal([[(f"F{n}", "x") for n in range(journal_file.MAX_FIELDS + 1)]]))
    [offset] = file.entries.backwards(1)
    with pytest.raises(CorruptData, match="claims 1,025 fields"):
        file.fields(file.entry_header(offset))


def test_journal_of_a_later_version_is_not_guessed_at() -> None:
    _, data = forged()
    out = bytearray(data)
    struct.pack_into("<I", out, 12, 1 << 20)
    with pytest.raises(CorruptData, match="later version"):
        JournalFile(bytes(out))


@pytest.mark.parametrize("make", [lambda: JournalFile(forged()[1]), lambda: Hive(forgery.hive())])
def test_file_is_freed_without_the_garbage_collector(make: Callable[[], object]) -> None:
    """Its bytes may be many, and waiting for the collector would keep them."""
    gc.disable()
    try:
        file = make()
        gone = weakref.ref(file)
        if isinstance(file, JournalFile):
            list(file.values("MESSAGE"))
        elif isinstance(file, Hive):
            list(file.walk())
        del file
        assert gone() is None
    finally:
        gc.enable()


# Hives, one harm at a time


def test_key_that_is_its_own_subkey_is_met_once() -> None:
    made = forgery.Hive()
    inner = made.key("inner")
    outer = made.key("outer", subkeys=[inner])
    # The list of the inner key is the list of the outer one.
    struct.pack_into("<I", made.out, inner + 4 + 20, 1)
    made.out[inner + 4 + 28 : inner + 4 + 32] = made.out[outer + 4 + 28 : outer + 4 + 32]
    hive = Hive(made.bytes(outer))
    assert [key.name for _, key in hive.walk()] == ["outer", "inner"]


def test_list_of_lists_that_contains_itself_ends() -> None:
    made = forgery.Hive()
    listed = made.cell(struct.pack("<2sHII", b"ri", 2, 0, 0))
    struct.pack_into("<II", made.out, listed + 8, listed, listed)
    root = made.key("root", subkeys=[0])
    struct.pack_into("<I", made.out, root + 4 + 28, listed)
    assert list(Hive(made.bytes(root)).root.subkeys()) == []


@pytest.mark.parametrize("size", [2**31 - 1, 16 * 2**20 + 1, 100_000])
def test_value_larger_than_its_cell_is_rejected(size: int) -> None:
    made = forgery.Hive()
    value = made.value("v", 3, b"12345678")
    struct.pack_into("<I", made.out, value + 4 + 4, size)
    hive = Hive(made.bytes(made.key("root", values=[value])))
    assert list(hive.root.values()) == []
    assert hive.problems


@pytest.mark.parametrize("data", [b"", b"regf", b"regf" + bytes(5000), b"x" * 8192])
def test_invalid_hive_is_corrupt(data: bytes) -> None:
    with pytest.raises(CorruptData):
        Hive(data)
