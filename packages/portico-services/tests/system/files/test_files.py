"""Files: walking, reading and the index."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from portico_services.system.cursors import EncryptedCursorCodec
from portico_services.system.errors import MissingDependency, NotFound, PathNotAllowed, SystemToolError
from portico_services.system.files import content_search, queries
from portico_services.system.files.index_writer import DirectoryWatcher
from portico_services.system.files.name_index import FileNameIndex
from portico_services.system.files.queries import FileQueries
from portico_services.system.files.walk import FileCriteria, walk
from portico_services.system.path_access import AllowedPaths, OpenDirectory
from support.outcomes import has_outcome

TIMEOUT_SECONDS = 30.0


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    top = tmp_path / "top"
    for folder in ("a", "a/b", "c", "reports 2026"):
        (top / folder).mkdir(parents=True, exist_ok=True)
    for n, name in enumerate(
        ("a/one.txt", "a/two.TXT", "a/b/three.pdf", "c/four.log", "c/Report.pdf", "reports 2026/summary.txt", "z")
    ):
        (top / name).write_text(f"number {n}\n" * (n + 1))
        os.utime(top / name, ns=(0, (1_700_000_000 + n) * 10**9))
    (top / "c" / "link").symlink_to("../a")
    (top / "out").symlink_to("/etc")
    (top / "id_rsa").write_text("secret number")
    return top


def below(top: Path, paths: Any) -> list[str]:
    return sorted(str(Path(path).relative_to(top)) for path in paths)


def walked(top: Path, wanted: FileCriteria) -> list[str]:
    return below(
        top, [row.path for row in walk(AllowedPaths([top]).open_directory(str(top)), wanted, [], print) if row]
    )


SEARCHES = [
    (
        FileCriteria(),
        ["a", "a/b", "a/b/three.pdf", "a/one.txt", "a/two.TXT", "c", "c/Report.pdf", "c/four.log", "c/link", "out",
         "reports 2026", "reports 2026/summary.txt", "z"],
    ),
    (FileCriteria(text="report"), ["c/Report.pdf", "reports 2026"]),
    (FileCriteria(text="o"), ["a/one.txt", "a/two.TXT", "c/Report.pdf", "c/four.log", "out", "reports 2026"]),
    (FileCriteria(text="a/b"), ["a/b", "a/b/three.pdf"]),
    (FileCriteria(text="2026 SUMM", mode="FREETEXT"), ["reports 2026/summary.txt"]),
    (FileCriteria(text="pdf report", mode="FREETEXT"), ["c/Report.pdf"]),
    (FileCriteria(names=("*.txt",)), ["a/one.txt", "a/two.TXT", "reports 2026/summary.txt"]),
    (FileCriteria(names=("t*.*", "?")), ["a", "a/b", "a/b/three.pdf", "a/two.TXT", "c", "z"]),
    (FileCriteria(names=("[!a-y]",)), ["z"]),
    (FileCriteria(type="pdf"), ["a/b/three.pdf", "c/Report.pdf"]),
    (FileCriteria(type=".PDF"), ["a/b/three.pdf", "c/Report.pdf"]),
    (FileCriteria(type="directory"), ["a", "a/b", "c", "reports 2026"]),
    (FileCriteria(type="link"), ["c/link", "out"]),
    (FileCriteria(type="file", min_size=40), ["c/Report.pdf", "reports 2026/summary.txt", "z"]),
    (FileCriteria(type="file", max_size=20), ["a/one.txt", "a/two.TXT"]),
    (
        FileCriteria(type="file", after=1_700_000_002 * 10**6, before=1_700_000_003 * 10**6),
        ["a/b/three.pdf", "c/four.log"],
    ),
    (FileCriteria(text="100%_'\""), []),
]  # fmt: skip


@pytest.mark.parametrize("wanted, expected", SEARCHES, ids=[repr(wanted)[:50] for wanted, _ in SEARCHES])
def test_walk_finds_the_matching_files(tree: Path, wanted: FileCriteria, expected: list[str]) -> None:
    assert walked(tree, wanted) == sorted(expected)


@pytest.fixture
def index(tree: Path) -> Iterator[FileNameIndex]:
    made = FileNameIndex(AllowedPaths([tree]))
    made.start()
    assert made.wait(1, TIMEOUT_SECONDS)
    yield made
    made.close()


@pytest.mark.parametrize("wanted, expected", SEARCHES, ids=[repr(wanted)[:50] for wanted, _ in SEARCHES])
def test_index_finds_the_same(tree: Path, index: FileNameIndex, wanted: FileCriteria, expected: list[str]) -> None:
    assert below(tree, [row.path for row in index.search(wanted, str(tree), 0, 100)]) == sorted(expected)


def test_secret_files_are_not_found(tree: Path, index: FileNameIndex) -> None:
    assert walked(tree, FileCriteria(text="id_rsa")) == []
    assert index.search(FileCriteria(text="id_rsa"), str(tree), 0, 100) == []


def test_walk_looks_no_closer_than_it_must(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[str] = []
    monkeypatch.setattr("portico_services.system.files.walk.fill_stat", lambda row, entry: looked.append(row.name))
    walked(tree, FileCriteria(text="report"))
    assert looked == []


def test_walk_resumes_at_its_position(tree: Path) -> None:
    everything = [row for row in walk(AllowedPaths([tree]).open_directory(str(tree)), FileCriteria(), [], print) if row]
    for n, row in enumerate(everything):
        rest = walk(AllowedPaths([tree]).open_directory(str(tree)), FileCriteria(), row.position, print)  # type: ignore[arg-type]
        assert [item.path for item in rest if item] == [item.path for item in everything[n + 1 :]]


def test_walk_leaves_no_folder_open(tree: Path) -> None:
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    for stop in (1, 3, 100):
        rows = walk(AllowedPaths([tree]).open_directory(str(tree)), FileCriteria(), [], print)
        for _ in zip(range(stop), rows, strict=False):
            pass
        rows.close()  # type: ignore[attr-defined]
    if before:
        assert len(os.listdir("/proc/self/fd")) == before


# The index


def wait_until(index: FileNameIndex, test: Any) -> None:
    """Until something holds of the index; it is looked at each time the index has taken something in."""
    for _ in range(100):
        passes = index.passes
        if test():
            return
        assert index.wait(passes + 1, TIMEOUT_SECONDS), "the index heard of nothing"
    raise AssertionError("it never came true")


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="folders are watched on Linux")
def test_index_follows_created_changed_and_removed_files(tree: Path, index: FileNameIndex) -> None:
    def found(text: str) -> list[str]:
        return below(tree, [row.path for row in index.search(FileCriteria(text=text), str(tree), 0, 100)])

    (tree / "a" / "fresh.txt").write_text("x")
    wait_until(index, lambda: found("fresh") == ["a/fresh.txt"])
    (tree / "new" / "deep").mkdir(parents=True)
    (tree / "new" / "deep" / "hidden.txt").write_text("x")
    wait_until(index, lambda: found("hidden") == ["new/deep/hidden.txt"])
    (tree / "new").rename(tree / "renamed")
    wait_until(index, lambda: found("hidden") == ["renamed/deep/hidden.txt"])
    (tree / "a" / "fresh.txt").write_text("x" * 1000)
    wait_until(index, lambda: index.search(FileCriteria(text="fresh"), str(tree), 0, 1)[0].size == 1000)
    shutil.rmtree(tree / "renamed")
    wait_until(index, lambda: found("hidden") == [] and found("deep") == [])


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells of changes")
def test_search_reflects_files_just_written_and_removed(tree: Path, index: FileNameIndex) -> None:
    files = FileQueries(AllowedPaths([tree]), EncryptedCursorCodec(b"k" * 32), index)
    for n in range(20):
        path = tree / f"fresh-{n}.txt"
        path.write_text("x")
        match = files.search(FileCriteria(text=path.name), None, None, 10, None)
        assert match.used_index and match.problems == []
        assert [row.name for row in match.files] == [path.name]
        path.unlink()
        assert files.search(FileCriteria(text=path.name), None, None, 10, None).files == []


def test_search_reports_an_incomplete_index(tree: Path, index: FileNameIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index._watch, "is_complete", False)
    files = FileQueries(AllowedPaths([tree]), EncryptedCursorCodec(b"k" * 32), index)
    match = files.search(FileCriteria(text="txt"), None, None, 10, None)
    assert match.used_index and "may lack the latest changes" in match.problems[0]


def test_index_without_a_watcher_rescans_periodically(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "portico_services.system.files.index_writer.DirectoryWatcher.add", lambda self, folder, number: None
    )
    made = FileNameIndex(AllowedPaths([tree]), rewalk_seconds=0.05)
    made.start()
    assert made.wait(1, TIMEOUT_SECONDS)
    (tree / "unheard.txt").write_text("x")
    (tree / "z").unlink()
    wait_until(made, lambda: made.search(FileCriteria(text="unheard"), str(tree), 0, 10))
    assert made.search(FileCriteria(names=("z",)), str(tree), 0, 10) == []
    made.close()


def test_index_is_reused_after_a_restart(tree: Path, tmp_path: Path) -> None:
    file = tmp_path / "kept.sqlite"
    for _ in range(2):
        made = FileNameIndex(AllowedPaths([tree]), str(file))
        made.start()
        assert made.wait(1, TIMEOUT_SECONDS)
        numbers = {row.path: row.position for row in made.search(FileCriteria(), str(tree), 0, 100)}
        made.close()
        assert file.stat().st_mode & 0o077 == 0
        (tree / "z").unlink(missing_ok=True)
    assert numbers
    assert not [path for path in numbers if path.endswith("/z")]


def test_index_closed_during_start_releases_files(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on = threading.Event(), threading.Event()
    watches: list[DirectoryWatcher] = []

    def slow() -> DirectoryWatcher:
        begun.set()
        assert go_on.wait(TIMEOUT_SECONDS)
        watches.append(DirectoryWatcher())
        return watches[0]

    monkeypatch.setattr("portico_services.system.files.name_index.DirectoryWatcher", slow)
    made = FileNameIndex(AllowedPaths([tree]))
    starting, closing = threading.Thread(target=made.start), threading.Thread(target=made.close)
    starting.start()
    assert begun.wait(TIMEOUT_SECONDS)
    closing.start()
    closing.join(0.05)
    go_on.set()
    starting.join(TIMEOUT_SECONDS)
    closing.join(TIMEOUT_SECONDS)
    assert [watch.is_open for watch in watches] == [False]


@pytest.mark.skipif(os.name == "nt", reason="names as Unix has them")
def test_file_name_that_is_not_utf8_is_found_and_read(tree: Path, index: FileNameIndex) -> None:
    name = os.fsdecode(b"caf\xe9.txt")
    (tree / "a" / name).write_text("coffee")
    wait_until(index, lambda: index.search(FileCriteria(text="caf"), str(tree), 0, 1))
    [row] = index.search(FileCriteria(text="caf"), str(tree), 0, 1)
    row.path.encode()
    result = FileQueries(AllowedPaths([tree]), EncryptedCursorCodec())
    assert result.read(row.path, 0, 100).content == "coffee"
    assert result.search(FileCriteria(text="caf"), None, None, 10, None).files[0].path == row.path


# Questions


@pytest.fixture
def files(tree: Path) -> FileQueries:
    return FileQueries(AllowedPaths([tree]), EncryptedCursorCodec())


@pytest.mark.parametrize("indexed", [False, True])
def test_pages_together_are_the_whole(tree: Path, index: FileNameIndex, indexed: bool) -> None:
    result = FileQueries(AllowedPaths([tree]), EncryptedCursorCodec(), index if indexed else None)
    found, cursor = [], None
    while True:
        page = result.search(FileCriteria(), None, None, 2, cursor)
        assert page.used_index is indexed
        found += [hit.path for hit in page.files]
        cursor = page.next_cursor
        if cursor is None:
            break
    assert below(tree, found) == walked(tree, FileCriteria())


def test_several_roots_are_searched(tree: Path) -> None:
    result = FileQueries(AllowedPaths([tree / "a", tree / "c"]), EncryptedCursorCodec())
    found, cursor = [], None
    while True:
        page = result.search(FileCriteria(type="file"), None, None, 2, cursor)
        found += [hit.path for hit in page.files]
        cursor = page.next_cursor
        if cursor is None:
            break
    assert below(tree, found) == ["a/b/three.pdf", "a/one.txt", "a/two.TXT", "c/Report.pdf", "c/four.log"]


def test_search_below_a_folder(tree: Path, files: FileQueries) -> None:
    match = files.search(FileCriteria(type="file"), str(tree / "a"), None, 10, None)
    assert below(tree, [hit.path for hit in match.files]) == ["a/b/three.pdf", "a/one.txt", "a/two.TXT"]
    with pytest.raises(PathNotAllowed):
        files.search(FileCriteria(), "/etc", None, 10, None)


def test_search_without_allowed_paths_is_empty() -> None:
    with pytest.raises(PathNotAllowed, match="--allow-path PATH"):
        FileQueries(AllowedPaths([]), EncryptedCursorCodec()).search(FileCriteria(), None, None, 10, None)


def test_file_contents_are_searched(tree: Path, files: FileQueries) -> None:
    found = files.search(FileCriteria(), None, "NUMBER 3", 10, None)
    assert [(hit.name, [match.line for match in hit.matches]) for hit in found.files] == [("four.log", [1, 2, 3, 4])]


def test_file_contents_are_searched_by_pattern(tree: Path, files: FileQueries) -> None:
    pytest.importorskip("re2")
    match = files.search(FileCriteria(), None, "/^number [24]$/", 10, None)
    assert sorted(hit.name for hit in match.files) == ["Report.pdf", "three.pdf"]


def test_catastrophic_pattern_completes(tree: Path, files: FileQueries) -> None:
    pytest.importorskip("re2")
    (tree / "evil.txt").write_text("a" * 100_000)
    assert files.search(FileCriteria(), None, "/(a+)+$x/", 10, None).files == []


@pytest.mark.parametrize(
    "pattern, said",
    [
        ("/(/", r"missing \), at '\('\.$"),
        ("/a**/", r"bad repetition operator, at '\*\*'"),
        ("/a)|(b/", "unexpected \\)"),
    ],
)
def test_invalid_pattern_is_reported_with_the_reason(files: FileQueries, pattern: str, said: str) -> None:
    pytest.importorskip("re2")
    with pytest.raises(SystemToolError, check=has_outcome("invalid"), match=said):
        files.search(FileCriteria(), None, pattern, 10, None)


@pytest.mark.parametrize("pattern", ["/(/", "/(?=x)/", "/" + "(" * 400 + "/", "x" * 501, ""])
def test_pattern_that_cannot_be_is_rejected(files: FileQueries, pattern: str) -> None:
    pytest.importorskip("re2")
    with pytest.raises(SystemToolError, check=has_outcome("invalid")):
        files.search(FileCriteria(), None, pattern, 10, None)


def test_without_the_engine_texts_are_still_found(files: FileQueries, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str, purpose: str) -> None:
        raise MissingDependency(f"{purpose} needs {name}")

    monkeypatch.setattr(content_search, "require_package", missing)
    assert files.search(FileCriteria(), None, "number 3", 10, None).files
    with pytest.raises(MissingDependency, match="re2"):
        files.search(FileCriteria(), None, "/number/", 10, None)


def test_matches_across_blocks_are_found_with_the_right_lines(tree: Path) -> None:
    path = tree / "large.txt"
    lines = [f"line {n}" for n in range(1, 200_000)]
    lines[120_000] = "needle at the edge"
    lines[150_000] = "another needle"
    path.write_text("\n".join(lines))
    with AllowedPaths([tree]).open(str(path)) as file:
        result = content_search.LineSearch("needle")(file, content_search.FILE_START, lambda: False).matches
    assert [(match.line, match.text) for match in result] == [
        (120_001, "needle at the edge"),
        (150_001, "another needle"),
    ]


@pytest.mark.parametrize("offset", range(-12, 13, 3))
def test_match_on_the_edge_of_a_block_is_found_once(tree: Path, offset: int) -> None:
    path = tree / "edge.txt"
    path.write_text("x" * (content_search.READ_BLOCK_BYTES + offset - 1) + "\nneedle\n" + "y" * 5000)
    with AllowedPaths([tree]).open(str(path)) as file:
        result = content_search.LineSearch("needle")(file, content_search.FILE_START, lambda: False).matches
    assert [(match.line, match.text) for match in result] == [(2, "needle")]


def test_search_over_the_deadline_returns_a_partial_page_and_a_cursor(tree: Path) -> None:
    for n in range(500):
        (tree / "a" / f"file{n:03}").write_text("x")
    now = iter(range(10**9))
    result = FileQueries(AllowedPaths([tree]), EncryptedCursorCodec(), clock=lambda: float(next(now)))
    found, cursor, pages = [], None, 0
    while True:
        page = result.search(FileCriteria(names=("file*5",)), None, None, 1000, cursor)
        found += [hit.name for hit in page.files]
        cursor, pages = page.next_cursor, pages + 1
        if cursor is None:
            break
    assert found == [f"file{n:03}" for n in range(5, 500, 10)]
    assert pages > 2


def test_search_of_contents_stops_when_its_time_is_up(
    tree: Path, index: FileNameIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where every file is a candidate and none matches."""
    for n in range(100):
        (tree / "a" / f"file{n:03}").write_text("x")
    passes = index.passes
    wait_until(index, lambda: index.count() > 100 or index.passes > passes + 50)
    looked: list[str] = []
    result = FileQueries(AllowedPaths([tree]), EncryptedCursorCodec(), index, clock=lambda: float(len(looked)))
    opened = OpenDirectory.open
    monkeypatch.setattr(OpenDirectory, "open", lambda folder, name: looked.append(name) or opened(folder, name))
    page = result.search(FileCriteria(), None, "nowhere", 10, None)
    assert page.timed_out
    assert page.next_cursor is not None
    assert len(looked) < 10


def test_stat_reports_type_size_and_modification_time(tree: Path, files: FileQueries) -> None:
    about = files.stat(str(tree / "a" / "one.txt"))
    assert (about.type, about.size, about.modified) == ("file", 9, "2023-11-14T22:13:20Z")
    assert files.stat(str(tree / "a")).type == "directory"
    with pytest.raises(NotFound):
        files.stat(str(tree / "nothing"))
    with pytest.raises(SystemToolError, check=has_outcome("denied")):
        files.stat(str(tree / "id_rsa"))


def test_folder_is_listed_by_pages(tree: Path, files: FileQueries) -> None:
    result, cursor = [], None
    while True:
        page = files.list_directory(str(tree), 2, cursor)
        result, cursor = [*result, *(row.name for row in page.files)], page.next_cursor
        if cursor is None:
            break
    assert result == ["a", "c", "out", "reports 2026", "z"]
    assert page.total_count == 5


def test_file_is_read_in_parts_that_fit_together(tree: Path, files: FileQueries) -> None:
    text = "Grüße, 世界! 🙂 " * 50
    (tree / "text").write_text(text)
    result, offset = "", 0
    while offset < len(text.encode()):
        part = files.read(str(tree / "text"), offset, 7)
        assert part.encoding == "utf-8"
        result, offset = result + part.content, offset + part.length
    assert result == text


def test_other_encodings(tree: Path, files: FileQueries) -> None:
    (tree / "wide").write_bytes("wide text".encode("utf-16"))
    (tree / "bytes").write_bytes(bytes(range(256)))
    assert (files.read(str(tree / "wide"), 0, 100).encoding, files.read(str(tree / "wide"), 0, 100).content) == (
        "utf-16",
        "wide text",
    )
    assert files.read(str(tree / "bytes"), 0, 1000).encoding == "base64"


@pytest.mark.parametrize("algorithm", ["sha256", "sha512", "sha1", "md5", "blake2b"])
def test_checksum_is_that_of_the_whole_file(tree: Path, files: FileQueries, algorithm: Any) -> None:
    data = os.urandom(3_000_000)
    (tree / "data").write_bytes(data)
    result = files.checksum(str(tree / "data"), algorithm)
    digest, size = result.checksum, result.size
    assert (digest, size) == (hashlib.new(algorithm, data).hexdigest(), len(data))


def test_file_over_the_size_limit_is_not_hashed(
    tree: Path, files: FileQueries, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queries, "MAX_HASHED_BYTES", 5)
    with pytest.raises(SystemToolError, check=has_outcome("invalid"), match="the limit is"):
        files.checksum(str(tree / "a" / "one.txt"), "sha256")
