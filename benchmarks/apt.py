"""Programs of the distribution that ours are measured beside: there already, or installed where that is possible."""

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
    """A program by one of its names, wherever the package puts it."""
    return had(package, lambda: next((found for name in names if (found := shutil.which(name, path=PLACES))), None))


def had(package: str, look: Callable[[], str | None]) -> str:
    """What `look` finds, before or after the package is installed."""
    if found := look():
        return found
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
    if found := look():
        return found
    raise NotInstalled(f"apt-get installed {package}, and it is still not there")


def version(package: str) -> str:
    command = ["dpkg-query", "--show", "--showformat=${Version}", package]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except OSError:
        return UNKNOWN
    return said.stdout.strip() or UNKNOWN


def prepare(peer: Peer, *names: str) -> Peer:
    """The peer with its program, called by its title unless other names are given; or with the reason why not."""
    try:
        found = program(peer.package, *(names or (peer.title,)))
    except NotInstalled as why:
        return replace(peer, reason=str(why))
    return replace(peer, program=(found,), version=version(peer.package))
