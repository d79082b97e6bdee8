"""Run the scripts of typescript/ and the Inspector on Node, and read their conversations."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

from support import node
from support.paths import ROOT

PINS = ROOT / "tests" / "peers" / "typescript"
SECONDS = 60.0


class ScriptResult(NamedTuple):
    code: int
    out: str
    err: str


class Scripts:
    """The scripts in a folder with their packages, where Node finds them."""

    def __init__(self, packages: node.Packages, folder: Path) -> None:
        self._node = packages.node
        self._folder = folder
        self._inspector = packages.modules / "@modelcontextprotocol/inspector/clients/launcher/build/index.js"
        for script in PINS.glob("*.mjs"):
            shutil.copy(script, folder)
        (folder / "node_modules").symlink_to(packages.modules)

    def run(self, name: str, *arguments: str) -> ScriptResult:
        return self._run(str(self._folder / name), *arguments)

    def inspect(self, *arguments: str) -> ScriptResult:
        return self._run(str(self._inspector), "--cli", *arguments)

    def _run(self, *arguments: str) -> ScriptResult:
        # The Inspector stores a catalog in the home folder; it must not find the user's.
        environment = node.environment() | {"HOME": str(self._folder)}
        process = subprocess.Popen(
            [str(self._node), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self._folder,
            env=environment,
            start_new_session=True,
        )
        with process:
            try:
                out, err = process.communicate(timeout=SECONDS)
            except BaseException:
                # Including the servers that it has started.
                os.killpg(process.pid, signal.SIGKILL)
                raise
        return ScriptResult(process.returncode, out, err)


class Conversation:
    """The messages of one run, by the names of the steps."""

    def __init__(self, ended: ScriptResult) -> None:
        lines = [json.loads(line) for line in ended.out.splitlines()]
        self._steps = {line.pop("step"): line for line in lines}
        self._rest = f"Node ended with {ended.code}; the last step was {[*self._steps][-1:]}.\n{ended.err}"

    def _step(self, step: str) -> dict[str, Any]:
        assert step in self._steps, self._rest
        return self._steps[step]

    def __getitem__(self, step: str) -> Any:
        result = self._step(step)
        assert "error" not in result, result
        return result["value"]

    def error(self, step: str) -> Any:
        result = self._step(step)
        assert "error" in result, result
        return result["error"]
