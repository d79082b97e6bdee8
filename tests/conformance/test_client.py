"""The official conformance suite against examples/everything_client.py: `make conform`, as tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.conformance.runs import CLIENT_LEGS, Leg
from support.conformance.suite import Suite
from support.conformance.targets import our_client
from support.conformance.verdict import report


@pytest.mark.parametrize("leg", CLIENT_LEGS, ids=lambda leg: leg.name)
def test_conformance_suite_passes(leg: Leg, suite: Suite, tmp_path: Path) -> None:
    outcome = suite.run(leg, our_client().target, tmp_path, leg.expected_file)
    if outcome.complaints:
        pytest.fail(report(outcome), pytrace=False)
    assert outcome.passing >= outcome.due > 0
    assert list((tmp_path / "home").iterdir()) == [], "the client has written into the user's home"


def test_every_scenario_of_the_suite_is_run_at_every_revision_that_it_has(suite: Suite) -> None:
    run: dict[str, set[str]] = {}
    for leg in CLIENT_LEGS:
        extension = leg.name.startswith("client-extensions-")
        for scenario in leg.checks:
            run.setdefault(scenario, set()).add("extension" if extension else leg.name.removeprefix("client-"))
    assert run == suite.scenarios()


def test_client_that_does_nothing_passes_nothing(suite: Suite, tmp_path: Path) -> None:
    """`true` is green in the suite's eyes in all of these."""
    vacuous = {
        "initialize": 1,
        "http-standard-headers": 9,
        "sep-2640-client-no-prefetch": 1,
        "sep-2640-client-verify-digest": 1,
    }
    leg = Leg("nothing", "client", ("--spec-version", "2026-07-28", "--force"), vacuous)
    (tmp_path / "expected.yml").write_text("client: []\n")
    outcome = suite.run(leg, ["--command", "true"], tmp_path, tmp_path / "expected.yml")
    assert outcome.passed == frozenset()
    assert {complaint.scenario for complaint in outcome.complaints} == vacuous.keys()


@pytest.mark.parametrize(
    ("options", "checks"),
    [
        (("--spec-version", "2026-07-28"), {"http-invalid-tool-headers": 0}),
        (("--suite", "backcompat", "--spec-version", "2025-03-26"), {}),
    ],
    ids=["alone", "with others"],
)
def test_how_a_client_ends_counts_also_where_the_suite_forgives_it(
    suite: Suite, tmp_path: Path, options: tuple[str, ...], checks: dict[str, int]
) -> None:
    leg = Leg("ending", "client", options, checks)
    (tmp_path / "expected.yml").write_text("client: []\n")
    outcome = suite.run(leg, ["--command", "exec false"], tmp_path, tmp_path / "expected.yml")
    assert "the client exited with code 1" in report(outcome)
