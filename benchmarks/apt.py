"""Programs of the distribution to compare with: already present, or installed if possible."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace

from peers import NotInstalled, Peer, run

# Some are not meant to be called by hand, and lie where no PATH leads.
PLACES = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/usr/lib/systemd", "/lib/systemd"))
UNKNOWN = "of unknown version"


def program(package: str, *names: str) -> str:
    """Return a program by one of its names, wherever the package puts it."""
    return had(package, lambda: next((result for name in names if (result := shutil.which(name, path=PLACES))), None))


def had(package: str, look: Callable[[], str | None]) -> str:
    """Return the result of `look`, before or after installing the package."""
    if result := look():
        return result
    if not (apt := shutil.which("apt-get")):
        raise NotInstalled(f"it is not on this machine, and there is no apt-get to install {package} with")
    if os.geteuid() != 0:
        raise NotInstalled(f"it is not on this machine, and only root can apt-get install {package}")
    install = [apt, "install", "--yes", "--quiet", "--no-install-recommends", package]
    try:
        run(install)
    except NotInstalled:
        # A machine that was just made does not know yet what there is.
        run([apt, "update", "--quiet"])
        run(install)
    if result := look():
        return result
    raise NotInstalled(f"apt-get installed {package}, and it is still not there")


def version(package: str) -> str:
    command = ["dpkg-query", "--show", "--showformat=${Version}", package]
    try:
        output = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except OSError:
        return UNKNOWN
    return output.stdout.strip() or UNKNOWN


def prepare(peer: Peer, *names: str) -> Peer:
    """Return the peer with its program, or with the reason why it is not available."""
    try:
        result = program(peer.package, *(names or (peer.title,)))
    except NotInstalled as why:
        return replace(peer, reason=str(why))
    return replace(peer, program=(result,), version=version(peer.package))
