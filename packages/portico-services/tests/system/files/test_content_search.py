"""Content search: a page that hits its time limit continues in the middle of a file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from portico_services.system.cursors import EncryptedCursorCodec
from portico_services.system.files import content_search
from portico_services.system.files.queries import FileQueries
from portico_services.system.files.walk import FileCriteria
from portico_services.system.path_access import AllowedPaths
from portico_services.system.results import FilePage


class Clock:
    """Time that passes each time one looks, a little of it or all there is."""

    def __init__(self, step: float) -> None:
        self.now = 0.0
        self.step = step

    def __call__(self) -> float:
        self.now += self.step
        return self.now


def pages(queries: FileQueries, text: str) -> list[FilePage]:
    results = [queries.search(FileCriteria(), None, text, 100, None)]
    while results[-1].next_cursor is not None:
        assert results[-1].timed_out
        assert results[-1].has_more
        results.append(queries.search(FileCriteria(), None, text, 100, results[-1].next_cursor))
        assert len(results) < 1000
    return results


@pytest.mark.parametrize("step", [0.0, 0.9, 10.0])
def test_every_file_is_searched_within_any_time_budget(tmp_path: Path, step: float) -> None:
    for n in range(40):
        (tmp_path / f"{n:02}.txt").write_text("a needle\n" if n % 10 == 9 else "hay\n")
    result = pages(FileQueries(AllowedPaths([tmp_path]), EncryptedCursorCodec(b"k" * 32), clock=Clock(step)), "needle")
    assert [row.name for page in result for row in page.files] == ["09.txt", "19.txt", "29.txt", "39.txt"]
    assert (len(result) > 1) == (step > 0)


def test_large_file_search_resumes_inside_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(content_search, "READ_BLOCK_BYTES", 10_000)
    lines = [f"line {n}" for n in range(1, 20_001)]
    lines[17_320] = "the needle"
    (tmp_path / "a.txt").write_text("before\n")
    (tmp_path / "large.txt").write_text("\n".join(lines))
    (tmp_path / "z.txt").write_text("a needle after it\n")
    result = pages(FileQueries(AllowedPaths([tmp_path]), EncryptedCursorCodec(b"k" * 32), clock=Clock(1.0)), "needle")
    hits = [(row.name, match.line, match.text) for page in result for row in page.files for match in row.matches]
    assert hits == [("large.txt", 17_321, "the needle"), ("z.txt", 1, "a needle after it")]
    # A page that has found nothing has looked at something.
    assert 3 < len(result) < 100


def test_file_removed_between_two_pages_does_not_stop_the_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(content_search, "READ_BLOCK_BYTES", 10_000)
    (tmp_path / "large.txt").write_text("x\n" * 100_000)
    (tmp_path / "z.txt").write_text("needle\n")
    queries = FileQueries(AllowedPaths([tmp_path]), EncryptedCursorCodec(b"k" * 32), clock=Clock(1.0))
    first = queries.search(FileCriteria(), None, "needle", 10, None)
    assert first.files == []
    assert first.timed_out
    (tmp_path / "large.txt").unlink()
    second = queries.search(FileCriteria(), None, "needle", 10, first.next_cursor)
    assert [row.name for row in second.files] == ["z.txt"]


def test_links_and_secret_files_are_not_searched(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "outside.txt").write_text("needle\n")
    (tmp_path / "root" / ".env").write_text("needle\n")
    (tmp_path / "root" / "inside.txt").write_text("needle\n")
    (tmp_path / "root" / "link.txt").symlink_to(tmp_path / "outside.txt")
    os.link(tmp_path / "root" / ".env", tmp_path / "root" / "copy.txt")
    queries = FileQueries(AllowedPaths([tmp_path / "root"]), EncryptedCursorCodec(b"k" * 32))
    page = queries.search(FileCriteria(), None, "needle", 10, None)
    assert [row.name for row in page.files] == ["inside.txt"]
    assert page.problems == ["1 files could not be read: they were removed or access was denied."]


def test_folder_that_becomes_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "root" / "a").mkdir(parents=True)
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "one.txt").write_text("needle\n")
    (tmp_path / "root" / "a" / "one.txt").write_text("hay\n")
    roots = AllowedPaths([tmp_path / "root"])
    with roots.open_directory(str(tmp_path / "root" / "a")) as folder:
        (tmp_path / "root" / "a").rename(tmp_path / "root" / "b")
        (tmp_path / "root" / "a").symlink_to(tmp_path / "secret")
        with folder.open("one.txt") as file:
            assert file.read(0, 10) == b"hay\n"
        for name in ("../a/one.txt", "missing", ".env"):
            with pytest.raises(OSError):
                folder.open(name)


@pytest.mark.parametrize("with_re2", [True, False])
@pytest.mark.parametrize(
    "text, hit", [("NEEDLE", True), ("größe", True), ("GRÖSSE", False), ("a.b", False), ("a*b", True), ("[", True)]
)
def test_texts_are_recognized_in_any_case(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, hit: bool, with_re2: bool
) -> None:
    if not with_re2:
        monkeypatch.setattr("portico_services.system.text.find_spec", lambda name: None)
    (tmp_path / "one.txt").write_bytes("A Needle, Größe, a*b [\n".encode() + b"\xff\xfe bad bytes\n")
    queries = FileQueries(AllowedPaths([tmp_path]), EncryptedCursorCodec(b"k" * 32))
    assert bool(queries.search(FileCriteria(), None, text, 10, None).files) is hit


def test_letters_beyond_ascii_have_cases_too(tmp_path: Path) -> None:
    pytest.importorskip("re2")
    (tmp_path / "one.txt").write_text("Die Länge\n")
    queries = FileQueries(AllowedPaths([tmp_path]), EncryptedCursorCodec(b"k" * 32))
    for text in ("LÄNGE", "länge", "/LÄNGE/"):
        [file] = queries.search(FileCriteria(), None, text, 10, None).files
        assert [match.text for match in file.matches] == ["Die Länge"]
