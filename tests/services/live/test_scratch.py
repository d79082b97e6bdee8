"""Directories that somebody else has filled."""

from __future__ import annotations

import os
from pathlib import Path

from portico.services.live.scratch import remove, usage


def test_what_is_on_the_disk_counts_and_not_what_it_claims_to_be(tmp_path: Path) -> None:
    with open(tmp_path / "sparse", "wb") as file:
        file.truncate(10**9)
    (tmp_path / "full").write_bytes(os.urandom(100_000))
    used, entries = usage(str(tmp_path), most=100)
    assert entries == 2
    assert 100_000 <= used < 10**6


def test_a_symlink_is_an_entry_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "big").write_bytes(bytes(10**6))
    (tmp_path / "inside").mkdir()
    (tmp_path / "inside" / "link").symlink_to(tmp_path / "outside")
    used, entries = usage(str(tmp_path / "inside"), most=100)
    assert entries == 1
    assert used < 10**5


def test_counting_ends_soon_after_the_bound(tmp_path: Path) -> None:
    for number in range(50):
        (tmp_path / str(number)).touch()
    assert usage(str(tmp_path), most=10)[1] == 11


def test_files_that_have_lost_their_name_count_for_whoever_has_them_open(tmp_path: Path) -> None:
    before, _ = usage(str(tmp_path), os.getpid(), most=10)
    with open(tmp_path / "a", "wb", 0) as file:
        file.write(os.urandom(10**6))
        os.unlink(tmp_path / "a")
        os.fsync(file.fileno())
        after, entries = usage(str(tmp_path), os.getpid(), most=10)
    assert entries == 0
    assert after - before >= 10**6


def test_a_directory_deeper_than_any_path_is_removed(tmp_path: Path) -> None:
    home = os.getcwd()
    top = tmp_path / "top"
    top.mkdir()
    try:
        os.chdir(top)
        for _ in range(1500):
            os.mkdir("a-directory-with-a-long-name")
            os.chdir("a-directory-with-a-long-name")
        Path("file").touch()
    finally:
        os.chdir(home)
    assert remove(str(top))
    assert not top.exists()


def test_what_a_symlink_points_to_stays(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file").touch()
    top = tmp_path / "top"
    (top / "in").mkdir(parents=True)
    (top / "in" / "link").symlink_to(tmp_path / "outside")
    (top / "link").symlink_to(tmp_path / "outside" / "file")
    assert remove(str(top))
    assert (tmp_path / "outside" / "file").exists()


def test_a_directory_that_not_even_its_owner_may_enter_is_removed(tmp_path: Path) -> None:
    top = tmp_path / "top"
    (top / "a" / "b").mkdir(parents=True)
    (top / "a" / "b" / "file").touch()
    (top / "a" / "b").chmod(0)
    (top / "a").chmod(0)
    assert remove(str(top))


def test_what_cannot_be_removed_is_said_to_be_left(tmp_path: Path) -> None:
    assert not remove(str(tmp_path / "never-was"))
