"""Debian's packages that tests want: PostgreSQL, shells, systemd, hivex, nginx, HAProxy. Had where CI is set, and
nowhere else: a person's machine is left as it is."""

from __future__ import annotations

import fcntl
import os
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import NoReturn

INSTALL_SECONDS = 600
# Tests run in several processes, and only one at a time can install something.
LOCK = Path(tempfile.gettempdir()) / f"portico-tests-apt-{os.getuid()}.lock"


class NotInstalled(Exception):
    """The package cannot be had here; the text is the reason."""


def without(why: object) -> NoReturn:
    """Of a test that cannot run. Where it has to, that is a failure."""
    import pytest  # benchmarks use this module too, and have none

    if os.environ.get("CI"):
        pytest.fail(str(why), pytrace=False)
    pytest.skip(str(why))


def install(package: str) -> None:
    """Raises where it is not wanted as well as where it does not work."""
    if not os.environ.get("CI"):
        raise NotInstalled(f"{package} is not installed: apt-get install {package}")
    with LOCK.open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _update()
        # The lock is of one run of tests; another one, or the machine itself, may be installing something too.
        patience = f"DPkg::Lock::Timeout={INSTALL_SECONDS // 2}"
        _run(["apt-get", "install", "-y", "--no-install-recommends", "-o", patience, package])


def unpack(package: str, folder: Path, *libraries: str) -> Path:
    """Where a package lies that is not installed, so that nothing of it is started. Raises as `install` does."""
    if not os.environ.get("CI"):
        raise NotInstalled(f"{package} is not installed: apt-get install {package}")
    with LOCK.open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _update()
        _run(["apt-get", "download", package, *libraries], folder)
    for name in (package, *libraries):
        (archive,) = folder.glob(f"{name}_*.deb")
        _run(["dpkg-deb", "--extract", str(archive), str(folder / package)])
    return folder / package


@cache
def _update() -> None:
    _run(["apt-get", "update"])


def _run(command: list[str], folder: Path | None = None) -> None:
    shown = f"`{' '.join(command)}`"
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
        raise NotInstalled(f"{shown} did not work: {why}") from None
    if done.returncode != 0:
        said = "\n".join(done.stdout.decode(errors="replace").splitlines()[-10:])
        raise NotInstalled(f"{shown} ended with {done.returncode}:\n{said}")
