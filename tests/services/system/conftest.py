"""What the tests of the system service share: the corpus that nobody here wrote, and the programs to compare with.

Both may be missing on a machine; then a test says so and is skipped. Where CI is set, programs are installed.
"""

from __future__ import annotations

import lzma
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

CORPUS = HERE.parents[3] / "shared" / "data"
PYTHON = "/usr/bin/python3"


def _corpus(folder: str) -> Path:
    path = CORPUS / folder
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
    """The journals of the corpus, unpacked."""
    zstandard = pytest.importorskip("zstandard")
    folder = tmp_path_factory.mktemp("journals")
    for packed in sorted(_corpus("journal").glob("*.journal*.zst")):
        with packed.open("rb") as source, (folder / packed.stem).open("wb") as target:
            zstandard.ZstdDecompressor().copy_stream(source, target)
    return sorted(folder.iterdir())


@pytest.fixture(scope="session")
def hive_files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The hives of the corpus, unpacked, by name."""
    folder = tmp_path_factory.mktemp("hives")
    for packed in _corpus("hives").glob("*.xz"):
        (folder / packed.stem).write_bytes(lzma.decompress(packed.read_bytes()))
    return {path.name: path for path in folder.iterdir()}


def _install(package: str) -> None:
    """Only where CI is set: a person's machine is left as it is."""
    if os.environ.get("CI") and shutil.which("apt-get"):
        subprocess.run(["apt-get", "install", "-y", "-qq", package], check=False, capture_output=True, timeout=600)


def _program(name: str, package: str, places: str | None = None) -> str:
    if shutil.which(name, path=places) is None:
        _install(package)
    found = shutil.which(name, path=places)
    if found is None:
        pytest.skip(f"{name} (of the package {package}) is not installed here")
    return found


@pytest.fixture(scope="session")
def journalctl() -> str:
    return _program("journalctl", "systemd")


@pytest.fixture(scope="session")
def journal_remote() -> str:
    return _program("systemd-journal-remote", "systemd-journal-remote", "/usr/lib/systemd:/lib/systemd")


@pytest.fixture(scope="session")
def hivex() -> str:
    """A Python that has hivex: the system's own, for Debian's package is made for that one."""
    for _ in range(2):
        if os.path.exists(PYTHON):
            done = subprocess.run([PYTHON, "-c", "import hivex"], capture_output=True, check=False, timeout=60)
            if done.returncode == 0:
                return PYTHON
        _install("python3-hivex")
    pytest.skip("python3-hivex is not installed here")
