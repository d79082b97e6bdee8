"""Install and run the official conformance suite, a Node program (see ../node.py).

When its pin changes, update runs.py and expected/.
"""

from __future__ import annotations

import re
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from support import node, oidc
from support.conformance.child import Child
from support.conformance.runs import Leg
from support.conformance.verdict import ExitReport, Outcome, evaluate, read
from support.paths import ROOT

HERE = ROOT / "tests" / "conformance"
LEG_SECONDS = 300
# Timeouts of a client in one scenario, and of the scenario as a whole.
CLIENT_SECONDS, SCENARIO_SECONDS = 60, 90
AT_ONCE = 2
PAUSE = 0.02
# The suite starts all clients concurrently, and on a small machine they would time out. This runs one at a time.
IN_TURN = "exec 9>turn; flock 9 2>/dev/null;"

CLIENT_ENDED = re.compile(r"^Client (exited with code -?\d+|timed out after \d+ms)$", re.MULTILINE)
# The login page for the user.
SHOWN = re.compile(r"^http://127\.0\.0\.1:\d+/authorize\?\S+$", re.MULTILINE)
LISTED = re.compile(r"^  - (?P<scenario>\S+) \[(?P<revisions>\S+)\]$", re.MULTILINE)


@dataclass(frozen=True)
class Suite:
    """An installed suite."""

    node: Path
    script: Path

    def run(self, leg: Leg, target: list[str], folder: Path, expected: Path) -> Outcome:
        """Run one leg, with results in `folder`.

        `target` is `--url` and a URL, or `--command` and a client, which the suite starts once per scenario.
        """
        results = folder / "results"
        results.mkdir(parents=True)
        began = time.monotonic()
        if leg.side == "client" and "--suite" in leg.options:
            endings = self._run_clients(leg, target[1], folder, expected)
        elif leg.side == "client":
            endings = self._run_each(leg, target, folder)
        elif leg.side == "authorization":
            endings = self._run_with_browser(leg, target, folder)
        else:
            endings = self._run_all(leg, target, folder, expected)
        return evaluate(leg, read(results), expected, endings, time.monotonic() - began)

    def scenarios(self) -> dict[str, set[str]]:
        """Return the client scenarios of the suite, and their protocol versions."""
        done = subprocess.run(
            [str(self.node), str(self.script), "list", "--client"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env=node.environment(),
            timeout=SCENARIO_SECONDS,
            check=True,
        )
        return {result["scenario"]: set(result["revisions"].split(",")) for result in LISTED.finditer(done.stdout)}

    def _run_all(
        self, leg: Leg, target: list[str], folder: Path, expected: Path, env: dict[str, str] | None = None
    ) -> dict[str, ExitReport]:
        command = self._command(leg, [*target, "--expected-failures", str(expected)], folder)
        with Child(command, folder / "suite.log", cwd=folder, env=env or node.environment()) as child:
            child.wait(LEG_SECONDS)
            ending = how_it_ended(child, LEG_SECONDS)
        return {} if ending is None else {"": ending}

    def _run_clients(self, leg: Leg, command: str, folder: Path, expected: Path) -> dict[str, ExitReport]:
        """Run all scenarios in one Node process, because starting one takes longer than most scenarios."""
        target = ["--command", f"{IN_TURN} {command}", "--timeout", str(LEG_SECONDS * 1000)]
        return self._run_all(leg, target, folder, expected, _environment_without_home(folder / "home"))

    def _run_with_browser(self, leg: Leg, target: list[str], folder: Path) -> dict[str, ExitReport]:
        """Run a leg that needs a user: open the login page that the suite prints in a browser."""
        command = self._command(leg, target, folder)
        deadline = time.monotonic() + SCENARIO_SECONDS
        with Child(command, folder / "suite.log", cwd=folder, env=node.environment()) as child:
            output = None
            while child.code is None and time.monotonic() < deadline:
                found = SHOWN.search(child.output_tail(lines=10_000))
                if found is not None and output is None:
                    output, browser = found[0], oidc.Browser()
                    callback = parse_qs(urlsplit(output).query)["redirect_uri"][0]
                    browser.request("GET", browser.visit(output, until=callback))
                time.sleep(PAUSE)
            ending = how_it_ended(child)
        return {} if ending is None else {"": ending}

    def _run_each(self, leg: Leg, target: list[str], folder: Path) -> dict[str, ExitReport]:
        """Run the scenarios separately, a few concurrently, so that the exit status of each client counts.

        That is also why the suite is not told what is expected to fail: it would look at nothing else then, neither at
        the client's exit status nor at its time. A warning is a failure to it all the same.
        """
        env = _environment_without_home(folder / "home")
        more = [*target, "--timeout", str(CLIENT_SECONDS * 1000)]
        waiting = list(leg.checks)
        running: list[_RunningSuite] = []
        endings: dict[str, ExitReport] = {}
        try:
            while waiting or running:
                while waiting and len(running) < AT_ONCE:
                    scenario = waiting.pop(0)
                    command = self._command(leg, ["--scenario", scenario, *more], folder)
                    log = folder / f"{scenario.replace('/', '-')}.log"
                    child = Child(command, log, cwd=folder, env=env)
                    running.append(_RunningSuite(scenario, child, time.monotonic() + SCENARIO_SECONDS))
                for item in [item for item in running if item.over]:
                    endings |= {} if (ending := how_it_ended(item.child)) is None else {item.scenario: ending}
                    item.child.end()
                    running.remove(item)
                time.sleep(PAUSE)
        finally:
            for item in running:
                item.child.end()
        return endings

    def _command(self, leg: Leg, more: list[str], folder: Path) -> list[str]:
        results = ["--output-dir", str(folder / "results")]
        return [str(self.node), str(self.script), leg.side, *leg.options, *more, *results]


@dataclass(frozen=True)
class _RunningSuite:
    """A running scenario."""

    scenario: str
    child: Child
    deadline: float

    @property
    def over(self) -> bool:
        return self.child.code is not None or time.monotonic() > self.deadline


def _environment_without_home(home: Path) -> dict[str, str]:
    """Return an environment without the user's settings, and with a home folder that has to stay empty."""
    home.mkdir()
    kept = {name: value for name, value in node.environment().items() if not name.startswith(("PORTICO_", "XDG_"))}
    return {**kept, "HOME": str(home)}


def how_it_ended(child: Child, seconds: float = SCENARIO_SECONDS) -> ExitReport | None:
    """Return how a suite, or a client that it ran, failed, or None. Stricter than the suite about clients."""
    output = child.output_tail(lines=10_000)
    match = CLIENT_ENDED.search(output)
    if match is not None:
        return ExitReport(f"the client {match[1]}", child.output_tail())
    if child.code is None:
        return ExitReport(f"the suite did not end within {seconds:.0f} s", child.output_tail())
    return None if child.code == 0 else ExitReport(f"the suite ended with {child.code}", child.output_tail())


def install() -> Suite:
    """Install the pinned suite on the pinned Node."""
    packages = node.install(HERE, "suite")
    return Suite(packages.node, packages.modules / "@modelcontextprotocol" / "conformance" / "dist" / "index.js")
