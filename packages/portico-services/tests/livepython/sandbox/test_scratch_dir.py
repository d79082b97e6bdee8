"""Scratch directories with hostile contents."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from portico_services.livepython.sandbox import scratch_dir
from portico_services.livepython.sandbox.forked_worker import ForkedProcess
from portico_services.livepython.sandbox.limits import SandboxLimits
from portico_services.livepython.sandbox.scratch_dir import disk_usage, remove_tree


def test_disk_usage_counts_allocated_blocks(tmp_path: Path) -> None:
    with open(tmp_path / "sparse", "wb") as file:
        file.truncate(10**9)
    (tmp_path / "full").write_bytes(os.urandom(100_000))
    used, entries = disk_usage(str(tmp_path), limit=100)
    assert entries == 2
    assert 100_000 <= used < 10**6


def test_symlink_is_an_entry_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "big").write_bytes(bytes(10**6))
    (tmp_path / "inside").mkdir()
    (tmp_path / "inside" / "link").symlink_to(tmp_path / "outside")
    used, entries = disk_usage(str(tmp_path / "inside"), limit=100)
    assert entries == 1
    assert used < 10**5


def test_counting_ends_soon_after_the_bound(tmp_path: Path) -> None:
    for number in range(50):
        (tmp_path / str(number)).touch()
    assert disk_usage(str(tmp_path), limit=10)[1] == 11


def test_disk_usage_includes_deleted_files_that_are_still_open(tmp_path: Path) -> None:
    before, _ = disk_usage(str(tmp_path), os.getpid(), limit=10)
    with open(tmp_path / "a", "wb", 0) as file:
        file.write(os.urandom(10**6))
        os.unlink(tmp_path / "a")
        os.fsync(file.fileno())
        after, entries = disk_usage(str(tmp_path), os.getpid(), limit=10)
    assert entries == 0
    assert after - before >= 10**6


def test_directory_deeper_than_any_path_is_removed(tmp_path: Path) -> None:
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
    assert remove_tree(str(top))
    assert not top.exists()


def test_remove_tree_does_not_follow_symlinks(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file").touch()
    top = tmp_path / "top"
    (top / "in").mkdir(parents=True)
    (top / "in" / "link").symlink_to(tmp_path / "outside")
    (top / "link").symlink_to(tmp_path / "outside" / "file")
    assert remove_tree(str(top))
    assert (tmp_path / "outside" / "file").exists()


def test_directory_that_not_even_its_owner_may_enter_is_removed(tmp_path: Path) -> None:
    top = tmp_path / "top"
    (top / "a" / "b").mkdir(parents=True)
    (top / "a" / "b" / "file").touch()
    (top / "a" / "b").chmod(0)
    (top / "a").chmod(0)
    assert remove_tree(str(top))


def test_remove_tree_reports_failure(tmp_path: Path) -> None:
    assert not remove_tree(str(tmp_path / "never-was"))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="what Linux says of a process")
async def test_disk_usage_is_not_measured_again_for_an_idle_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a session that sleeps over many files, the files are counted once."""
    counted: list[str] = []
    ran: list[int | None] = [5, 5, 5, 7, 7, None, None]
    monkeypatch.setattr(
        scratch_dir, "disk_usage", lambda directory, process, *, limit: counted.append(directory) or (0, 0)
    )
    monkeypatch.setattr(scratch_dir, "cpu_time_ns", lambda process: ran.pop(0))
    ours, theirs = socket.socketpair()
    ends = ForkedProcess(ours, os.open(os.devnull, os.O_RDONLY), str(tmp_path))
    counts = []
    while ran:
        assert ends.limit_exceeded(SandboxLimits()) is None
        counts.append(len(counted))
    # Where it is not known whether it has run, it is counted.
    assert counts == [1, 1, 1, 2, 2, 3, 4]
    theirs.close()
    ends.close()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="what Linux says of a process")
def test_how_long_a_process_has_run_is_the_same_while_it_does_not() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        os.kill(other.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, other.pid, os.WSTOPPED)
        before = scratch_dir.cpu_time_ns(other.pid)
        assert before == scratch_dir.cpu_time_ns(other.pid)
        other.kill()
    assert scratch_dir.cpu_time_ns(other.pid) is None
    mine = scratch_dir.cpu_time_ns(os.getpid())
    assert mine is None or mine > 0
