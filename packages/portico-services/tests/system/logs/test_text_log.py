"""Text logs: newest first, across rotated files, with stable pages."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from portico_services.system.logs import text_file
from portico_services.system.logs.discovery import DirectoryLog
from portico_services.system.logs.entries import LogEntry, LogQuery
from portico_services.system.logs.text_log import TextLog, find_rotated_files
from portico_services.system.path_access import AllowedPaths


def line(n: int) -> str:
    return f"2026-01-01T{n // 3600:02}:{n // 60 % 60:02}:{n % 60:02}+00:00 host app: message {n}\n"


def lines(first: int, last: int) -> str:
    return "".join(map(line, range(first, last)))


def log_of(path: Path) -> TextLog:
    roots = AllowedPaths([path.parent])
    return TextLog("test", "", roots, partial(find_rotated_files, roots, str(path)))


def read(log: TextLog | DirectoryLog, after: object = None) -> list[LogEntry]:
    return [entry for entry in log.scan_newest_first(LogQuery(), after, []) if entry is not None]


def numbers(entries: list[LogEntry]) -> list[int]:
    return [int(entry.message.split()[1]) for entry in entries]


def page(log: TextLog | DirectoryLog, after: object, size: int) -> tuple[list[LogEntry], object]:
    results: list[LogEntry] = []
    position = after
    for entry in log.scan_newest_first(LogQuery(), after, []):
        if entry is not None:
            results.append(entry)
            position = json.loads(json.dumps(entry.position))
            if len(results) == size:
                break
    return results, position


def test_newest_line_is_first(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(lines(0, 5000))
    assert numbers(read(log_of(tmp_path / "log"))) == list(range(4999, -1, -1))


@pytest.mark.parametrize("end", ["", "\n", "\n\n"])
def test_empty_or_unfinished_last_line_is_ignored(tmp_path: Path, end: str) -> None:
    (tmp_path / "log").write_text(lines(0, 3).rstrip("\n") + end)
    assert numbers(read(log_of(tmp_path / "log"))) == [2, 1, 0]


def test_rotated_files_follow_newest_first(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(lines(40, 50))
    (tmp_path / "log.1").write_text(lines(30, 40))
    (tmp_path / "log.2.gz").write_bytes(gzip.compress(lines(20, 30).encode()))
    (tmp_path / "log.3.xz").write_bytes(lzma.compress(lines(10, 20).encode()))
    (tmp_path / "log.10.bz2").write_bytes(bz2.compress(lines(0, 10).encode()))
    (tmp_path / "another.log").write_text("not ours\n")
    assert numbers(read(log_of(tmp_path / "log"))) == list(range(49, -1, -1))


def test_files_rotated_by_date_follow_newest_first(tmp_path: Path) -> None:
    (tmp_path / "messages").write_text(lines(20, 30))
    (tmp_path / "messages-20260102").write_text(lines(10, 20))
    (tmp_path / "messages-20260101").write_text(lines(0, 10))
    assert numbers(read(log_of(tmp_path / "messages"))) == list(range(29, -1, -1))


def rotate_by_name(log: Path) -> None:
    log.rename(log.with_name("log.1"))
    log.write_text(lines(50, 55))


def rotate_and_pack(log: Path) -> None:
    log.with_name("log.1.gz").write_bytes(gzip.compress(log.read_bytes()))
    log.write_text(lines(50, 55))


def rotate_by_copy(log: Path) -> None:
    log.with_name("log.1").write_bytes(log.read_bytes())
    log.write_text(lines(50, 55))


def grow(log: Path) -> None:
    with log.open("a") as file:
        file.write(lines(50, 60))


@pytest.mark.parametrize("meanwhile", [rotate_by_name, rotate_and_pack, rotate_by_copy, grow])
def test_next_page_continues_after_file_changes(tmp_path: Path, meanwhile: Callable[[Path], None]) -> None:
    (tmp_path / "log").write_text(lines(0, 50))
    log = log_of(tmp_path / "log")
    first, position = page(log, None, 20)
    meanwhile(tmp_path / "log")
    rest, _ = page(log, position, 1000)
    assert numbers(first + rest) == list(range(49, -1, -1))


def test_files_that_begin_the_same_are_distinguished(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("# a header\n" + lines(50, 100))
    (tmp_path / "log.1").write_text("# a header\n" + lines(0, 50))
    log = log_of(tmp_path / "log")
    _, position = page(log, None, 60)
    rest = [entry for entry in read(log, position) if "message" in entry.message]
    assert numbers(rest) == list(range(40, -1, -1))


def test_cursor_of_a_removed_file_ends(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(lines(0, 50))
    log = log_of(tmp_path / "log")
    _, position = page(log, None, 20)
    (tmp_path / "log").write_text(lines(100, 110))
    assert read(log, position) == []


def test_entry_is_found_by_its_id(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(lines(0, 50) + "  continued\n\tand again\n")
    log = log_of(tmp_path / "log")
    for entry in read(log):
        again = log.entry(entry.id)
        assert again is not None
        assert again.message == entry.message
    assert log.entry(read(log)[0].id + 1) is None


def test_indented_lines_belong_to_the_one_before(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(line(0) + "  at one\n\tat two\n" + line(1))
    assert [entry.message for entry in read(log_of(tmp_path / "log"))] == ["message 1", "message 0\n  at one\n\tat two"]


def test_very_long_line_is_cut_and_the_others_are_not_lost(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(line(0) + "x" * 1_000_000 + "\n" + line(1))
    entries = read(log_of(tmp_path / "log"))
    assert len(entries) == 3
    assert len(entries[1].message) == text_file.MAX_LINE_BYTES
    assert numbers([entries[0], entries[2]]) == [1, 0]


def test_packed_file_that_is_a_bomb_or_damaged_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_file, "MAX_UNCOMPRESSED_BYTES", 1_000_000)
    (tmp_path / "log").write_text(lines(0, 3))
    (tmp_path / "log.1.gz").write_bytes(gzip.compress(bytes(50_000_000)))
    (tmp_path / "log.2.gz").write_bytes(b"\x1f\x8b nonsense")
    problems: list[str] = []
    results = [entry for entry in log_of(tmp_path / "log").scan_newest_first(LogQuery(), None, problems) if entry]
    assert numbers(results) == [2, 1, 0]
    assert len(problems) == 2


def test_binary_file_is_skipped_and_reported(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"\0\1\2" * 100)
    problems: list[str] = []
    assert list(log_of(tmp_path / "log").scan_newest_first(LogQuery(), None, problems)) == []
    assert problems == ["log: not a text file: it starts with NUL bytes."]


def test_binary_files_in_a_directory_log_are_skipped(tmp_path: Path) -> None:
    (tmp_path / "wtmp").write_bytes(b"\0\1\2" * 100)
    problems: list[str] = []
    folder = DirectoryLog("folder", "", AllowedPaths([tmp_path]), str(tmp_path))
    assert list(folder.scan_newest_first(LogQuery(), None, problems)) == []
    assert problems == []


# Folders


def test_folder_is_one_log_by_time(tmp_path: Path) -> None:
    for part in range(3):
        (tmp_path / f"{part}.log").write_text("".join(line(n) for n in range(part, 60, 3)))
    log = DirectoryLog("test", "", AllowedPaths([tmp_path]), str(tmp_path))
    assert numbers(read(log)) == list(range(59, -1, -1))


def test_directory_pages_are_stable_under_growth(tmp_path: Path) -> None:
    for part in range(3):
        (tmp_path / f"{part}.log").write_text("".join(line(n) for n in range(part, 60, 3)))
    log = DirectoryLog("test", "", AllowedPaths([tmp_path]), str(tmp_path))
    results: list[LogEntry] = []
    position = None
    for n in range(100, 200):
        entries, position = page(log, position, 7)
        results += entries
        if len(entries) < 7:
            break
        with (tmp_path / f"{n % 3}.log").open("a") as file:
            file.write(line(n))
        (tmp_path / f"late{n}.log").write_text(line(3000 + n))
    assert numbers(results) == list(range(59, -1, -1))


def test_entries_of_a_folder_are_found_again_by_their_ids(tmp_path: Path) -> None:
    for part in range(3):
        (tmp_path / f"{part}.log").write_text("".join(line(n) for n in range(part, 60, 3)))
    log = DirectoryLog("test", "", AllowedPaths([tmp_path]), str(tmp_path))
    for entry in read(log):
        again = log.entry(entry.id)
        assert again is not None
        assert again.message == entry.message


def test_folder_that_grows_has_another_stamp(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(line(0))
    log = DirectoryLog("test", "", AllowedPaths([tmp_path]), str(tmp_path))
    before = log.change_stamp()
    (tmp_path / "log").write_text(lines(0, 2))
    assert log.change_stamp() != before


@pytest.mark.parametrize("gone", [False, True])
def test_page_continues_in_older_files_after_truncation(tmp_path: Path, gone: bool) -> None:
    """Nothing is left out that is still there, and what is not there any more is said."""
    (tmp_path / "log.2").write_text(lines(0, 100))
    (tmp_path / "log.1").write_text(lines(100, 200))
    log = log_of(tmp_path / "log")
    result, position = page(log, None, 10)
    assert numbers(result) == list(range(199, 189, -1))
    if gone:
        (tmp_path / "log.1").unlink()
    else:
        (tmp_path / "log.1").write_text(lines(200, 205))
    problems: list[str] = []
    rest = [item for item in log.scan_newest_first(LogQuery(), position, problems) if isinstance(item, LogEntry)]
    assert numbers(rest) == list(range(99, -1, -1))
    assert len(problems) == 1 and "was truncated or removed" in problems[0]
