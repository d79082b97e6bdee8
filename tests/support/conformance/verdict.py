"""Evaluate the results of the conformance suite.

The suite's own exit status is not enough: it is 0 when a scenario was skipped, when a check outside a requirement set
failed, and when hardly anything was looked at. So every checks.json is read, and held against the leg.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.conformance.runs import ALWAYS_SKIPPED, Leg, expected_failures

STATUSES = ("SUCCESS", "FAILURE", "WARNING", "SKIPPED")
NOT_COUNTED = "INFO"
FOLDER = re.compile(r"(?:authorization-server-|server-)?(?P<scenario>.+)-\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d-\d{3}Z")
DETAILS_LINES = 40

Check = dict[str, Any]
Results = dict[str, list[Check]]


@dataclass(frozen=True)
class CheckFailure:
    """One thing that is not as it must be."""

    scenario: str  # or nothing, when it is the leg as a whole
    text: str


@dataclass(frozen=True)
class ExitReport:
    """Exit status and last output of a failed process."""

    text: str
    said: str


@dataclass(frozen=True)
class Outcome:
    """A leg that has been run."""

    leg: Leg
    seconds: float
    expected: frozenset[str]
    counts: Counter[str]  # of checks, by status
    passed: frozenset[str]  # the scenarios of which nothing is to be said
    passing: int  # checks, in the scenarios that are not expected to fail
    required_passing: int
    complaints: tuple[CheckFailure, ...]

    @property
    def due(self) -> int:
        """Return the number of checks that must pass."""
        return sum(number for scenario, number in self.leg.checks.items() if scenario not in self.expected)


def read(folder: Path) -> Results:
    """Read every checks.json below the suite's output folder, by scenario."""
    results: Results = {}
    for path in sorted(folder.rglob("checks.json")):
        # A scenario's name may have a slash in it (`auth/…`), and then its folder is nested.
        name = path.parent.relative_to(folder).as_posix()
        named = FOLDER.fullmatch(name)
        scenario = named["scenario"] if named else name
        if scenario in results:
            raise ValueError(f"{scenario} has two results in {folder}")
        try:
            results[scenario] = json.loads(path.read_bytes())
        except ValueError as why:  # the suite was ended while it wrote
            results[scenario] = [{"id": path.name, "status": "UNREADABLE", "errorMessage": f"{why}"}]
    return results


def evaluate(
    leg: Leg, results: Results, expected_file: Path, endings: Mapping[str, ExitReport], seconds: float
) -> Outcome:
    """Evaluate the checks. `endings` has failed processes by scenario, or without a name for the suite as a whole."""
    expected = expected_failures(expected_file, leg.side)
    complaints = []
    for scenario in leg.checks:
        complaints += _judge_scenario(leg, scenario, results.get(scenario), scenario in expected)
        if scenario in endings and scenario not in expected:
            complaints.append(CheckFailure(scenario, f"{endings[scenario].text}:\n{endings[scenario].said}"))
    complaints += [CheckFailure(name, "is not in the table of runs.py") for name in results.keys() - leg.checks.keys()]
    astray = expected - leg.checks.keys()
    complaints += [CheckFailure(name, "is expected to fail, but is no part of this leg") for name in astray]
    held = leg.checks.keys() - expected
    required_passing = _count_passing(results, leg.required)
    if required_passing < leg.required_checks:
        text = f"{required_passing} checks passed in the required scenarios; {leg.required_checks} must"
        complaints.append(CheckFailure("", text))
    ending = endings.get("")
    if ending is not None:
        # A failure that we have found too needs no other witness.
        complaints.append(CheckFailure("", ending.text if complaints else f"{ending.text}:\n{ending.said}"))
    blamed = {complaint.scenario for complaint in complaints}
    return Outcome(
        leg=leg,
        seconds=seconds,
        expected=expected,
        counts=Counter(check["status"] for checks in results.values() for check in checks),
        passed=frozenset(held - blamed),
        passing=_count_passing(results, held),
        required_passing=required_passing,
        complaints=tuple(complaints),
    )


def _judge_scenario(leg: Leg, scenario: str, checks: list[Check] | None, expected: bool) -> list[CheckFailure]:
    if checks is None:
        return [CheckFailure(scenario, "was not run")]
    bad = [check for check in checks if check["status"] in ("FAILURE", "WARNING")]
    if expected:
        return [] if bad else [CheckFailure(scenario, f"passes now: take it out of expected/{leg.expected_file.name}")]
    # What is skipped may be all of a scenario; and a status that we do not know is no success.
    unfit = [c for c in checks if c["status"] not in ("SUCCESS", NOT_COUNTED) and not _always_skipped(scenario, c)]
    complaints = [CheckFailure(scenario, text) for text in describe(unfit)]
    passing = sum(check["status"] == "SUCCESS" for check in checks)
    if passing < leg.checks[scenario] and not complaints:
        # The suite explains skips in uncounted checks.
        notes = describe([check for check in checks if check["status"] == NOT_COUNTED])
        count = f"only {passing} checks passed; {leg.checks[scenario]} must"
        complaints += [CheckFailure(scenario, text) for text in (count, *notes)]
    return complaints


def _always_skipped(scenario: str, check: Check) -> bool:
    return check["status"] == "SKIPPED" and check["name"] in ALWAYS_SKIPPED.get(scenario, ())


def _count_passing(results: Results, scenarios: Any) -> int:
    return sum(check["status"] == "SUCCESS" for scenario in scenarios for check in results.get(scenario, ()))


def describe(checks: list[Check]) -> list[str]:
    """Format the checks; equal ones are grouped."""
    alike: dict[str, list[str]] = {}
    for check in checks:
        alike.setdefault("\n    ".join(_details(check)), []).append(f"{check['status']}  {check['id']}")
    return ["\n".join(heads) + f"\n    {text}" for text, heads in alike.items()]


def _details(check: Check) -> list[str]:
    """Return the checked value, the problem, and the notes of the suite."""
    lines = _wrapped(check.get("description"))
    if check.get("errorMessage") != check.get("description"):
        lines += _wrapped(check.get("errorMessage"), "error: ")
    if check.get("details"):
        lines += _shorten(json.dumps(check["details"], indent=2, ensure_ascii=False).splitlines())
    lines += [f"log: {line}" for line in check.get("logs") or ()]
    lines += [f"see {reference['url']}" for reference in check.get("specReferences") or () if reference.get("url")]
    return lines


def _wrapped(text: str | None, head: str = "") -> list[str]:
    return textwrap.wrap(f"{head}{text}", 110, subsequent_indent=" " * len(head)) if text else []


def _shorten(lines: list[str]) -> list[str]:
    if len(lines) <= DETAILS_LINES:
        return lines
    return [*lines[:DETAILS_LINES], f"… and {len(lines) - DETAILS_LINES} lines more, which --keep keeps"]


def report(outcome: Outcome) -> str:
    """Report every failure by scenario."""
    lines = []
    last = None
    for complaint in outcome.complaints:
        if complaint.scenario != last:
            lines.append(f"\n{outcome.leg.name}{' / ' if complaint.scenario else ''}{complaint.scenario}")
            last = complaint.scenario
        lines.append("  " + complaint.text.replace("\n", "\n  "))
    return "\n".join(lines).lstrip("\n")


def table(outcomes: list[Outcome]) -> str:
    """Return one line per run: checks by status, and the required ones that passed."""
    head = ("leg", "scenarios", "passed", "failed", "warned", "skipped", "due", "required", "seconds", "")
    rows = [head, *map(_row, outcomes)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for leg, *cells, word in rows:
        numbers = [cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=False)]
        lines.append("  ".join([leg.ljust(widths[0]), *numbers, word]).rstrip())
    return "\n".join(lines)


def _row(outcome: Outcome) -> tuple[str, ...]:
    leg = outcome.leg
    word = "NOT OK" if outcome.complaints else "ok"
    return (
        leg.name,
        f"{len(outcome.passed)}/{len(leg.checks)}",
        *(str(outcome.counts[status]) for status in STATUSES),
        f"{outcome.passing}/{outcome.due}",
        f"{outcome.required_passing}/{leg.required_checks}" if leg.required else "-",
        f"{outcome.seconds:.1f}",
        f"{word}, {len(outcome.expected)} scenarios expected to fail" if outcome.expected else word,
    )
