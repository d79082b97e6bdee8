"""Journals: entries match journalctl, and pages continue without gaps."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from portico_services.system.errors import CorruptData
from portico_services.system.logs.entries import ERROR, LogEntry, LogQuery
from portico_services.system.logs.journal.file import LZ4, XZ, ZSTD, JournalFile, decompress
from portico_services.system.logs.journal.log import JournalctlLog, JournalLog
from portico_services.system.path_access import AllowedPaths
from support import system_forgery as forgery
from support.paths import DATA

EXPORTED = 2000


def plain(value: Any) -> Any:
    """A field as both sides can have it: what is no text is a list of numbers to journalctl, and bytes to us."""
    if isinstance(value, list) and value and all(isinstance(item, int) for item in value):
        return bytes(value).decode("utf-8", "backslashreplace")
    if isinstance(value, list):
        return sorted(map(plain, value))
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else value


def theirs(journalctl: str, *arguments: str) -> list[dict[str, Any]]:
    command = [journalctl, "--output=json", "--all", "--no-pager", *arguments]
    done = subprocess.run(command, capture_output=True, check=True, timeout=120)
    return [json.loads(line) for line in done.stdout.splitlines()]


def ours(path: Path) -> tuple[JournalFile, list[tuple[int, dict[str, Any]]]]:
    """All entries of a file, oldest first: their times and fields."""
    file = JournalFile(path.read_bytes())
    results = []
    for offset in reversed(list(file.entries.backwards(len(file.entries)))):
        try:
            head = file.entry_header(offset)
        except CorruptData:
            continue
        fields: dict[str, Any] = {}
        for name, value in file.fields(head):
            fields.setdefault(name, []).append(value)
        results.append((head[3], {name: plain(one[0] if len(one) == 1 else one) for name, one in fields.items()}))
    return file, results


def check(journalctl: str, path: Path) -> None:
    _, result = ours(path)
    expected = theirs(journalctl, f"--file={path}")
    assert len(result) == len(expected)
    for (time, fields), entry in zip(result, expected, strict=True):
        assert time == int(entry["__REALTIME_TIMESTAMP"])
        # journalctl adds the boot that the entry's head names; a field of that name says the same.
        wanted = {name: plain(value) for name, value in entry.items() if not name.startswith("__")}
        assert fields | {"_BOOT_ID": ""} == wanted | {"_BOOT_ID": ""}


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory, journal_remote: str) -> Path:
    """A journal that systemd itself has written, with long, binary and repeated fields."""
    lines = []
    for n in range(EXPORTED):
        lines.append(f"__REALTIME_TIMESTAMP={forgery.START + n * 1000}\n__MONOTONIC_TIMESTAMP={n + 1}\n".encode())
        lines.append(b"_BOOT_ID=4f2fd2ad2a2b4a2ea2e5e5b2ad7bd5ae\n_HOSTNAME=maschine\n")
        lines.append(f"PRIORITY={n % 8}\nSYSLOG_IDENTIFIER=source{n % 5}\n".encode())
        body = b"line one\nline two \x00\xff %d" % n if n % 10 == 0 else b"message %d " % n + b"x" * (n % 4 * 900)
        lines.append(b"MESSAGE\n" + len(body).to_bytes(8, "little") + body + b"\n")
        lines.append(b"TWICE=a\nTWICE=b\n\n" if n % 7 == 0 else b"\n")
    folder = tmp_path_factory.mktemp("exported")
    (folder / "export").write_bytes(b"".join(lines))
    command = [journal_remote, f"--output={folder}/made.journal", str(folder / "export")]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    return folder / "made.journal"


def test_corpus_entries_match_journalctl(journal_files: list[Path], journalctl: str) -> None:
    for path in journal_files:
        check(journalctl, path)


def test_entries_written_by_systemd_match_journalctl(exported: Path, journalctl: str) -> None:
    check(journalctl, exported)


@pytest.mark.parametrize("compact", [False, True])
@pytest.mark.parametrize("packer", ["", "xz", "lz4", "zstd"])
def test_every_layout_is_read_as_journalctl_reads_it(
    tmp_path: Path, journalctl: str, packer: str, compact: bool
) -> None:
    entries = [forgery.entry(f"message {n} {'y' * (n % 3 * 100)}", n % 8, f"source{n % 4}") for n in range(100)]
    path = tmp_path / "forged.journal"
    path.write_bytes(forgery.journal(entries, packer=packer, compact=compact))
    check(journalctl, path)


def test_index_of_fields_has_every_entry(journal_files: list[Path]) -> None:
    for path in journal_files:
        if path.name.startswith("user-"):
            continue  # the end of this one is damaged, and its index goes further than its entries
        file, entries = ours(path)
        for field in ("PRIORITY", "_SYSTEMD_UNIT", "SYSLOG_IDENTIFIER"):
            counted = Counter(fields[field] for _, fields in entries if field in fields)
            assert {value: len(list(file.entries_with(data))) for value, data in file.values(field)} == counted


def log_of(path: Path, **options: Any) -> JournalLog:
    return JournalLog("test", "", AllowedPaths([path]), [str(path)], **options)


def read(log: Any, query: LogQuery = LogQuery(), after: Any = None) -> list[LogEntry]:
    return [entry for entry in log.scan_newest_first(query, after, []) if entry is not None]


@pytest.mark.parametrize(
    "query", [LogQuery(min_level=ERROR), LogQuery(source="systemd"), LogQuery(min_level=3, source="kernel")]
)
def test_index_lookup_returns_the_same_entries_as_a_full_scan(journal_files: list[Path], query: LogQuery) -> None:
    log = log_of(journal_files[0].parent)
    everything = [entry.id for entry in read(log) if query.matches(entry)]
    assert [entry.id for entry in read(log, query) if query.matches(entry)] == everything
    assert everything


def test_time_limits_are_found_by_halving(tmp_path: Path) -> None:
    (tmp_path / "a.journal").write_bytes(forgery.journal([forgery.entry(f"message {n}") for n in range(50)]))
    second = 1_000_000
    query = LogQuery(start=forgery.START + 10 * second, end=forgery.START + 19 * second)
    assert [entry.message for entry in read(log_of(tmp_path), query)] == [f"message {n}" for n in range(19, 9, -1)]


def test_where_narrows_a_log(tmp_path: Path) -> None:
    entries = [forgery.entry(f"message {n}", _TRANSPORT=("kernel", "syslog")[n % 2]) for n in range(10)]
    (tmp_path / "a.journal").write_bytes(forgery.journal(entries))
    log = log_of(tmp_path, field_filter={"_TRANSPORT": frozenset({"kernel"})})
    message = read(log)
    assert [entry.message for entry in message] == [f"message {n}" for n in range(8, -1, -2)]
    assert log.entry(message[0].id) is not None
    assert log.entry(message[0].id + 1) is None


def test_entry_is_found_by_its_id(journal_files: list[Path]) -> None:
    log = log_of(journal_files[0].parent)
    entries = read(log)
    assert len({entry.id for entry in entries}) == len(entries)
    for entry in entries[::500]:
        again = log.entry(entry.id)
        assert again is not None
        assert (again.time, again.message) == (entry.time, entry.message)


def pages(log: JournalLog, size: int, meanwhile: Any = lambda: None) -> list[int]:
    results: list[int] = []
    position = None
    while True:
        page = []
        for entry in log.scan_newest_first(LogQuery(), position, []):
            if entry is not None:
                page.append(entry)
                if len(page) == size:
                    break
        results += [entry.id for entry in page]
        if len(page) < size:
            return results
        position = json.loads(json.dumps(page[-1].position))
        meanwhile()


def test_pages_together_are_the_whole(journal_files: list[Path]) -> None:
    log = log_of(journal_files[0].parent)
    assert pages(log, 97) == [entry.id for entry in read(log)]


def test_pages_stay_right_while_the_log_grows_and_rotates(tmp_path: Path) -> None:
    made = forgery.Journal()
    for n in range(30):
        made.add(forgery.entry(f"message {n}"))
    (tmp_path / "system.journal").write_bytes(made.bytes())
    log = log_of(tmp_path)
    before = [entry.id for entry in read(log)]
    rounds = iter(range(100))

    def meanwhile() -> None:
        """The file is archived, and a new one of the same counter begins."""
        n = next(rounds)
        if n == 0:
            (tmp_path / "system.journal").rename(tmp_path / "system@1.journal")
        grown = forgery.Journal(first=31)
        for more in range(n + 1):
            grown.add(forgery.entry(f"later {more}"), forgery.START + (100 + more) * 1_000_000)
        (tmp_path / "system.journal").write_bytes(grown.bytes())

    assert pages(log, 7, meanwhile) == before


def test_paging_continues_after_vacuuming(tmp_path: Path) -> None:
    for part, first in (("system@1", 1), ("system@2", 11), ("system", 21)):
        made = forgery.Journal(first=first)
        for n in range(10):
            made.add(forgery.entry(f"message {first + n}"), forgery.START + (first + n) * 1_000_000)
        (tmp_path / f"{part}.journal").write_bytes(made.bytes())
    log = log_of(tmp_path)
    first_page = read(log)[:5]
    (tmp_path / "system@1.journal").unlink()
    rest = read(log, after=first_page[-1].position)
    assert [entry.message for entry in rest] == [f"message {n}" for n in range(25, 10, -1)]


def test_files_of_different_counters_are_one_log_by_time(tmp_path: Path) -> None:
    for number, identity in enumerate((b"a" * 16, b"b" * 16)):
        made = forgery.Journal(seqnum_id=identity)
        for n in range(20):
            made.add(forgery.entry(f"{number}"), forgery.START + (2 * n + number) * 1_000_000)
        (tmp_path / f"{number}.journal").write_bytes(made.bytes())
    log = log_of(tmp_path)
    entries = read(log)
    assert [entry.message for entry in entries] == ["1", "0"] * 20
    assert pages(log, 3) == [entry.id for entry in entries]


def test_log_that_has_grown_has_another_stamp(tmp_path: Path) -> None:
    path = tmp_path / "system.journal"
    path.write_bytes(forgery.journal([forgery.entry("one")]))
    log = log_of(tmp_path)
    before = log.change_stamp()
    assert log.change_stamp() == before
    path.write_bytes(forgery.journal([forgery.entry("one"), forgery.entry("two")]))
    assert log.change_stamp() != before


def test_journalctl_gives_the_same_where_files_may_not_be_read(exported: Path, journalctl: str, tmp_path: Path) -> None:
    shutil.copy(exported, tmp_path / "made.journal")
    by_file, by_program = log_of(tmp_path), JournalctlLog("test", "", (f"--directory={tmp_path}",))
    for query in (LogQuery(), LogQuery(min_level=ERROR), LogQuery(end=forgery.START + 500_000)):
        item, other = ([entry for entry in read(log, query) if query.matches(entry)] for log in (by_file, by_program))
        assert [(entry.id, entry.time, entry.message) for entry in item] == [
            (entry.id, entry.time, entry.message) for entry in other
        ]
    half = read(by_program)[EXPORTED // 2]
    assert [entry.id for entry in read(by_program, after=half.position)] == [
        entry.id for entry in read(by_file) if entry.time < half.time
    ]


def test_journal_that_cannot_be_read_is_a_problem_and_not_the_end(tmp_path: Path) -> None:
    (tmp_path / "good.journal").write_bytes(forgery.journal([forgery.entry("kept")]))
    (tmp_path / "short.journal").write_bytes(b"LPKSHHRH")
    (tmp_path / "other.journal").write_bytes(b"x" * 4096)
    os.mkfifo(tmp_path / "pipe.journal")
    problems: list[str] = []
    results = [entry for entry in log_of(tmp_path).scan_newest_first(LogQuery(), None, problems) if entry is not None]
    assert [entry.message for entry in results] == ["kept"]
    assert len(problems) == 3


# Compression


@pytest.mark.parametrize("kind, packer", [(XZ, "xz"), (LZ4, "lz4"), (ZSTD, "zstd")])
def test_bomb_is_not_unpacked(kind: int, packer: str) -> None:
    packed = forgery._PACKERS[packer][2](b"x" * 10_000_000)
    assert len(decompress(kind, packed, 10_000_000)) == 10_000_000
    with pytest.raises(CorruptData, match="the limit is 100,000 bytes"):
        decompress(kind, packed, 100_000)


@pytest.mark.parametrize("kind", [XZ, LZ4, ZSTD, XZ | ZSTD])
@pytest.mark.parametrize("data", [b"", b"x", b"\xff" * 100, bytes(100)])
def test_invalid_compressed_data_is_corrupt(kind: int, data: bytes) -> None:
    try:
        decompress(kind, data, 1000)
    except CorruptData:
        return
    assert kind == LZ4, "an lz4 block of no bytes is a block"


def test_truncated_frame_of_the_corpus_is_left_out(journal_files: list[Path]) -> None:
    zstandard = pytest.importorskip("zstandard")
    packed = (DATA / "journal" / "zstd-truncated-frame.zst").read_bytes()
    file = JournalFile(zstandard.ZstdDecompressor().decompressobj().decompress(packed))
    [offset] = file.entries.backwards(1)
    assert file.fields(file.entry_header(offset)) == []
    assert file.problems == {"invalid zstd frame in a field"}
