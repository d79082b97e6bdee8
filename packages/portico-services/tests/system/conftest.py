"""Fixtures of the system tests: an external corpus, and programs for comparison.

Both may be missing on a machine; then a test says so and is skipped. Where CI is set, programs are installed.
"""

from __future__ import annotations

import lzma
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from portico_services.system.logs import timestamps
from support import debian
from support.paths import DATA

PYTHON = "/usr/bin/python3"


def _corpus(folder: str) -> Path:
    path = DATA / folder
    if not path.is_dir():
        pytest.skip(f"the corpus of test data is not on this machine: {path}")
    return path


@pytest.fixture(scope="session")
def evtx_files() -> list[Path]:
    return sorted(_corpus("evtx").glob("*.evtx"))


@pytest.fixture(scope="session")
def syslog_files() -> list[Path]:
    return sorted(_corpus("syslog").glob("*.log"))


@pytest.fixture(scope="session")
def journal_files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Unpack the journals of the corpus."""
    zstandard = pytest.importorskip("zstandard")
    folder = tmp_path_factory.mktemp("journals")
    for packed in sorted(_corpus("journal").glob("*.journal*.zst")):
        with packed.open("rb") as source, (folder / packed.stem).open("wb") as target:
            zstandard.ZstdDecompressor().copy_stream(source, target)
    return sorted(folder.iterdir())


@pytest.fixture(scope="session")
def hive_files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Unpack the hives of the corpus, by name."""
    folder = tmp_path_factory.mktemp("hives")
    for packed in _corpus("hives").glob("*.xz"):
        (folder / packed.stem).write_bytes(lzma.decompress(packed.read_bytes()))
    return {path.name: path for path in folder.iterdir()}


def _program(name: str, package: str, places: str | None = None) -> str:
    try:
        if shutil.which(name, path=places) is None:
            debian.install(package)
    except debian.NotInstalled as why:
        debian.without(why)
    result = shutil.which(name, path=places)
    assert result is not None
    return result


@pytest.fixture(scope="session")
def journalctl() -> str:
    return _program("journalctl", "systemd")


@pytest.fixture(scope="session")
def journal_remote() -> str:
    return _program("systemd-journal-remote", "systemd-journal-remote", "/usr/lib/systemd:/lib/systemd")


@pytest.fixture(scope="session")
def hivex() -> str:
    """Locate a Python with hivex: the system's, which Debian's package is built for."""
    if not _has_hivex():
        try:
            debian.install("python3-hivex")
        except debian.NotInstalled as why:
            debian.without(why)
    assert _has_hivex()
    return PYTHON


def _has_hivex() -> bool:
    if not os.path.exists(PYTHON):
        return False
    done = subprocess.run([PYTHON, "-c", "import hivex"], capture_output=True, check=False, timeout=60)
    return done.returncode == 0


@pytest.fixture
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Set the time zone to UTC: most log formats omit the zone and mean the machine's."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "UTC")
        time.tzset()
        timestamps._at_minute.cache_clear()
        yield
    time.tzset()
    timestamps._at_minute.cache_clear()
