"""The runner reports runs that checked nothing. No Node is needed here."""

from __future__ import annotations

import json
import os
import select
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.conformance.child import Child
from support.conformance.runs import EXPECTED, LEGS, Leg, expected_failures
from support.conformance.suite import how_it_ended
from support.conformance.verdict import ExitReport, Outcome, evaluate, read, report, table

LEG = Leg("small", "server", (), {"ping": 2, "tools-list": 1, "tasks-status-notifications": 0}, frozenset({"ping"}))
TIMEOUT_SECONDS = 10.0
STAMP = "2026-11-15T10-15-57-921Z"


def check(status: str = "SUCCESS", **more: Any) -> dict[str, Any]:
    return {"id": "an-id", "name": "AName", "description": "What is looked at", "status": status, **more}


@pytest.fixture
def found(tmp_path: Path) -> Callable[..., Outcome]:
    """The verdict when the suite has written this, over what is right."""

    def write(
        changed: dict[str, Any] | None = None,
        *,
        expected: str = "server: []\n",
        endings: dict[str, ExitReport] | None = None,
    ) -> Outcome:
        skipped = check("SKIPPED", name="TasksStatusNotificationsScenario")
        right = {"ping": [check(), check()], "tools-list": [check()], "tasks-status-notifications": [skipped]}
        for scenario, checks in {**right, **(changed or {})}.items():
            if checks is not None:
                folder = tmp_path / f"server-{scenario}-{STAMP}"
                folder.mkdir(parents=True)
                (folder / "checks.json").write_text(json.dumps(checks))
        (tmp_path / "expected.yml").write_text(expected)
        return evaluate(LEG, read(tmp_path), tmp_path / "expected.yml", endings or {}, 1.5)

    return write


def test_correct_run_passes(found: Callable[..., Outcome]) -> None:
    outcome = found()
    assert outcome.complaints == ()
    assert outcome.passed == LEG.checks.keys()
    assert table([outcome]).splitlines()[1].split() == ["small", "3/3", "3", "0", "0", "1", "3/3", "2/2", "1.5", "ok"]


@pytest.mark.parametrize("status", ["FAILURE", "WARNING", "SKIPPED", "SOMETHING"])
def test_only_success_statuses_are_accepted(found: Callable[..., Outcome], status: str) -> None:
    bad = check(status, errorMessage="it is blue", details={"colour": "blue"})
    outcome = found({"ping": [check(), check(), bad]})
    assert [complaint.scenario for complaint in outcome.complaints] == ["ping"]
    for part in ("small / ping", status, "an-id", "What is looked at", "error: it is blue", '"colour": "blue"'):
        assert part in report(outcome)


def test_information_is_neither_right_nor_wrong(found: Callable[..., Outcome]) -> None:
    assert found({"ping": [check(), check(), check("INFO")]}).complaints == ()


def test_fewer_checks_than_there_are_is_wrong(found: Callable[..., Outcome]) -> None:
    outcome = found({"ping": [check(), check("INFO", details={"message": "not applicable"})]})
    assert "only 1 checks passed; 2 must" in report(outcome)
    assert "not applicable" in report(outcome)
    assert "1 checks passed in the required scenarios; 2 must" in report(outcome)


def test_scenario_that_was_not_run_is_wrong(found: Callable[..., Outcome]) -> None:
    assert report(found({"tools-list": None})) == "small / tools-list\n  was not run"


def test_cut_result_short_is_wrong(found: Callable[..., Outcome], tmp_path: Path) -> None:
    (tmp_path / f"tools-list-{STAMP}").mkdir()
    (tmp_path / f"tools-list-{STAMP}" / "checks.json").write_text('[{"id": "an-')
    assert "UNREADABLE  checks.json" in report(found({"tools-list": None}))


def test_scenario_that_the_table_does_not_have_is_wrong(found: Callable[..., Outcome]) -> None:
    assert "is not in the table" in report(found({"auth/more": [check()]}))


def test_expected_failure_is_accepted(found: Callable[..., Outcome]) -> None:
    outcome = found({"tools-list": [check("FAILURE")]}, expected="server:\n  - tools-list\n")
    assert outcome.complaints == ()
    assert outcome.due == 2
    assert "tools-list" not in outcome.passed


def test_expected_failure_that_passes_is_a_complaint(found: Callable[..., Outcome]) -> None:
    assert "passes now" in report(found(expected="server:\n  - tools-list\n"))


def test_expectation_for_another_leg_is_wrong(found: Callable[..., Outcome]) -> None:
    assert "no part of this leg" in report(found(expected="server:\n  - caching\n"))


def test_failed_suite_is_a_complaint_despite_good_results(found: Callable[..., Outcome]) -> None:
    endings = {"": ExitReport("the suite ended with 1", "the last words")}
    assert report(found(endings=endings)) == "small\n  the suite ended with 1:\n  the last words"


def test_failed_scenario_is_a_complaint_despite_good_results(found: Callable[..., Outcome]) -> None:
    outcome = found(endings={"ping": ExitReport("the client exited with code 1", "the last words")})
    assert report(outcome) == "small / ping\n  the client exited with code 1:\n  the last words"
    assert "ping" not in outcome.passed


def test_expected_failure_may_exit_with_an_error(found: Callable[..., Outcome]) -> None:
    endings = {"tools-list": ExitReport("the client exited with code 1", "")}
    outcome = found({"tools-list": [check("FAILURE")]}, expected="server:\n  - tools-list\n", endings=endings)
    assert outcome.complaints == ()


def test_only_the_checks_that_cannot_be_had_may_be_skipped(found: Callable[..., Outcome]) -> None:
    outcome = found({"tasks-status-notifications": [check("SKIPPED", name="Another")]})
    assert [complaint.scenario for complaint in outcome.complaints] == ["tasks-status-notifications"]


@pytest.mark.parametrize(
    ("said", "code", "text"),
    [
        ("Checks:\nall well", 0, None),
        ("Checks:\nnone", 3, "the suite ended with 3"),
        ("\nClient exited with code 1\n\nStderr:\nits last words", 0, "the client exited with code 1"),
        ("\nClient timed out after 60000ms", 1, "the client timed out after 60000ms"),
    ],
)
def test_client_ending_is_parsed_from_the_suite_output(tmp_path: Path, said: str, code: int, text: str | None) -> None:
    command = [sys.executable, "-c", "import sys; print(sys.argv[1]); sys.exit(int(sys.argv[2]))", said, str(code)]
    with Child(command, tmp_path / "log", cwd=tmp_path) as child:
        assert child.wait(TIMEOUT_SECONDS) == code
        ending = how_it_ended(child)
    assert (ending.text if ending is not None else None) == text


def test_table_has_the_numbers_that_were_measured() -> None:
    sums = {name: (len(leg.checks), sum(leg.checks.values()), leg.required_checks) for name, leg in LEGS.items()}
    tasks, skills = 44, 45
    assert sums == {
        "server-required-2025-11-25": (30 + 3, 84, 70),
        "server-required-2026-07-28": (37 + 13, 152 + tasks, 120),
        "server-all-2025-06-18": (27, 56, 0),
        "server-all-2025-11-25": (33, 84, 0),
        "server-all-2026-07-28": (40, 152, 0),
        "server-all": (65, 187 + tasks + skills, 0),
        "authorization-2025-11-25": (2, 3, 0),
        "authorization-2026-07-28": (2, 3, 0),
        "gateway-2025-11-25-to-2025-11-25": (33, 83, 0),
        "gateway-2025-11-25-to-2026-07-28": (33, 83, 0),
        "gateway-2026-07-28-to-2025-11-25": (40, 152, 0),
        "gateway-2026-07-28-to-2026-07-28": (40, 152, 0),
        "client-2025-03-26": (2, 19, 0),
        "client-2025-06-18": (5, 60, 0),
        "client-2025-11-25": (18 + 1, 257, 248),
        "client-2026-07-28": (32 + 1, 424, 415),
        "client-extensions-2025-11-25": (10, 63, 0),
        "client-extensions-2026-07-28": (10, 61, 0),
    }


def test_only_tasks_have_expected_failures() -> None:
    """And what a server of 2025 behind a gateway has no word for."""
    assert {path.name for path in EXPECTED.iterdir()} == {leg.expected_file.name for leg in LEGS.values()}
    for leg in LEGS.values():
        if leg.name == "gateway-2026-07-28-to-2025-11-25":
            continue
        expected = expected_failures(leg.expected_file, leg.side)
        assert expected <= {scenario for scenario in leg.checks if scenario.startswith("tasks-")}


@pytest.mark.parametrize("line", ["  - ping: an-id", "- ping", "  - ping extra", "servers:", "  - ", '  - "ping"'])
def test_ambiguous_expected_failure_line_is_rejected(tmp_path: Path, line: str) -> None:
    path = tmp_path / "expected.yml"
    path.write_text(f"server:\n  - caching  # why\n{line}\n")
    with pytest.raises(ValueError, match="line 3"):
        expected_failures(path, "server")


FAMILY = """
import os, signal, sys, time
pipe = os.open(sys.argv[1], os.O_WRONLY)
if os.fork() == 0:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.write(pipe, b"!")
time.sleep(60)
"""


def test_killing_a_child_kills_its_children(tmp_path: Path) -> None:
    """The pipe is readable to its end when the last of them has gone, also the one that ignores a polite request."""
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        command = [sys.executable, "-c", FAMILY, str(tmp_path / "pipe")]
        with Child(command, tmp_path / "log", cwd=tmp_path):
            assert _read(reader) == b"!"
        assert _read(reader) == b""
    finally:
        os.close(reader)


def _read(reader: int) -> bytes:
    assert select.select([reader], [], [], TIMEOUT_SECONDS)[0], "nothing to read, and no end either"
    return os.read(reader, 1)
