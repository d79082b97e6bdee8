"""Install Debian packages that tests need (PostgreSQL, shells, systemd, hivex, nginx, HAProxy, Chromium).

Only in CI: the machine of a developer is not changed."""

from __future__ import annotations

import fcntl
import os
import subprocess
import tempfile
import time
from pathlib import Path
from typing import NoReturn, TextIO

INSTALL_SECONDS = 600
UPDATE_SECONDS = 3600
# Tests run in several processes, and apt allows one at a time.
LOCK = Path(tempfile.gettempdir()) / f"portico-tests-apt-{os.getuid()}.lock"


class NotInstalled(Exception):
    """The package is not available; the message says why."""


def without(why: object) -> NoReturn:
    """Skip a test that cannot run here. In CI it fails instead."""
    import pytest  # benchmarks import this module without pytest

    if os.environ.get("CI"):
        pytest.fail(str(why), pytrace=False)
    pytest.skip(str(why))


def install(package: str) -> None:
    """Install a package in CI. Raises `NotInstalled` elsewhere, and if the installation fails."""
    if not os.environ.get("CI"):
        raise NotInstalled(f"{package} is not installed: apt-get install {package}")
    with LOCK.open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _update(lock)
        # Our lock covers the processes of one test run; another program may hold the lock of dpkg.
        patience = f"DPkg::Lock::Timeout={INSTALL_SECONDS // 2}"
        _run(["apt-get", "install", "-y", "--no-install-recommends", "-o", patience, package])


def unpack(package: str, folder: Path, *libraries: str) -> Path:
    """Unpack a package without installing it, so that none of its services start, and return the folder. Raises as
    `install` does."""
    if not os.environ.get("CI"):
        raise NotInstalled(f"{package} is not installed: apt-get install {package}")
    with LOCK.open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _update(lock)
        _run(["apt-get", "download", package, *libraries], folder)
    for name in (package, *libraries):
        (archive,) = folder.glob(f"{name}_*.deb")
        _run(["dpkg-deb", "--extract", str(archive), str(folder / package)])
    return folder / package


def _update(lock: TextIO) -> None:
    """Fetch the package lists, once for all processes of a test run: the lock file records when."""
    state = os.fstat(lock.fileno())
    if state.st_size == 0 or time.time() - state.st_mtime > UPDATE_SECONDS:
        _run(["apt-get", "update"])
        lock.write("updated\n")
        lock.flush()


def _run(command: list[str], folder: Path | None = None) -> None:
    text = f"`{' '.join(command)}`"
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=INSTALL_SECONDS,
            check=False,
            cwd=folder,
            env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
        )
    except (OSError, subprocess.TimeoutExpired) as why:
        raise NotInstalled(f"{text} did not work: {why}") from None
    if done.returncode != 0:
        output = "\n".join(done.stdout.decode(errors="replace").splitlines()[-10:])
        raise NotInstalled(f"{text} ended with {done.returncode}:\n{output}")
