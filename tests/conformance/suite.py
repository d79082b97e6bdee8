"""The official conformance suite: installed once, run leg by leg.

The suite is a Node program, installed as ../node.py says. When its pin changes, reconcile legs.py and expected/.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from child import Child
from legs import Leg
from verdict import Outcome, judge, read

import node

HERE = Path(__file__).resolve().parent
LEG_SECONDS = 300


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
        began = time.monotonic()
        with Child(command, folder / "suite.log", cwd=folder, env=node.environment()) as child:
            code = child.wait(LEG_SECONDS)
        seconds = time.monotonic() - began
        ending = "" if code == 0 else f"the suite ended with {code}"
        if code is None:
            ending = f"the suite did not end within {LEG_SECONDS} s"
        return judge(leg, read(results), expected, ending, child.said(), seconds)


def install() -> Suite:
    """The pinned suite on the pinned Node."""
    packages = node.install(HERE, "suite")
    return Suite(packages.node, packages.modules / "@modelcontextprotocol" / "conformance" / "dist" / "index.js")
