"""The service tables with small sizes: output, goals and missing peers."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from portico_services.livepython.sandbox.landlock import unavailable_reason
from portico_services.livepython.sandbox.limits import SandboxLimits
from support.paths import ROOT
from support.scripts import load_scripts

FOLDER = ROOT / "benchmarks"
NAMES = ("peers", "scenarios", "goals", "table", "driver", "apt", "services_table", "journal_generator", "file_search")
NAMES += ("system_table", "live_table", "run")
NOTHING = "nothing to be had here"

jail_only = pytest.mark.skipif(unavailable_reason(SandboxLimits()) is not None, reason="the jail cannot be built here")


@pytest.fixture(scope="module")
def bench() -> Iterator[SimpleNamespace]:
    with load_scripts(NAMES, FOLDER) as scripts:
        yield scripts


@pytest.fixture
def alone(bench: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that has none of the others, and cannot get them."""

    def nothing(*_: Any, **__: Any) -> Any:
        raise bench.peers.NotInstalled(NOTHING)

    monkeypatch.setattr(bench.apt, "had", nothing)
    monkeypatch.setattr(bench.peers, "environment", nothing)
    monkeypatch.setattr(bench.live_table, "environment", nothing)


@pytest.fixture
def tiny(bench: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> Any:
    system = bench.system_table.SystemSize(entries=20, files=400, megabytes=1, repeats=2, least=0.0)
    monkeypatch.setattr(bench.system_table, "SYSTEM_QUICK", system)
    live = bench.live_table.LiveSize(warm=2, fresh=1, many=2, escapes=2)
    monkeypatch.setattr(bench.live_table, "LIVE_QUICK", live)
    return bench.services_table.SERVICES_QUICK


def peer(bench: SimpleNamespace, key: str, package: str = "", **fields: Any) -> Any:
    return bench.peers.Peer(key=key, title=key, package=package or key, **fields)


def some_table(bench: SimpleNamespace) -> Any:
    """Ours has answered, one has failed, and one is absent."""
    answers, item = bench.scenarios.Answers(), bench.scenarios.Question("one", "a first thing", "ms")
    two = bench.scenarios.Question("two", "a second thing", "per s", more_is_better=True)
    ours, failing = peer(bench, "portico", version="1"), peer(bench, "failing", version="2")
    absent = peer(bench, "absent", reason="no such wheel")
    answers.add("one", ours, 1.0, 3.0, 2.0)
    answers.add("two", ours, 1234.0)
    answers.fail("one", failing, "it fell over")
    grids = [bench.services_table.Grid([item], [ours, failing]), bench.services_table.Grid([two], [ours, absent])]
    goals = [bench.goals.limit("a first thing: below 5 ms", 2.0, 5, "ms"), bench.goals.missing("another goal")]
    return bench.services_table.Table("some service", grids, answers, goals, ["The corpus is not here."], ["A legend."])


def report(bench: SimpleNamespace, table: Any, size: Any, markdown: bool = False) -> str:
    return str(bench.services_table.report(bench.table.machine(), table, size, markdown))


def said_to_be_absent(text: str, name: str) -> bool:
    return any(line.startswith(f"{name}: not installed: ") and line.endswith(NOTHING) for line in text.splitlines())


# What a table is


@pytest.mark.parametrize("markdown", [False, True])
def test_table_is_printed_with_goals_and_failures(bench: SimpleNamespace, markdown: bool) -> None:
    text = report(bench, some_table(bench), bench.services_table.SERVICES_FULL, markdown)
    lines = text.splitlines()
    assert lines[0].startswith("some service: ")
    (first,) = [line for line in lines if "a first thing " in line]
    assert "2.00 ~" in first
    assert "failed" in first
    (second,) = [line for line in lines if "a second thing" in line]
    assert "1,234" in second
    assert "not installed" in second
    bullet = "- " if markdown else ""
    assert f"{bullet}absent: not installed: no such wheel" in lines
    assert f"{bullet}failed: failing, one: it fell over" in lines
    assert f"{bullet}The corpus is not here." in lines
    assert "A legend." in lines
    assert [line for line in lines if "below 5 ms" in line and "met" in line]
    assert [line for line in lines if "another goal" in line and "not measured" in line]
    assert ("| question | unit | portico | failing |" in lines) == markdown


def test_table_for_programs_has_every_sample(bench: SimpleNamespace) -> None:
    result = bench.services_table.told({"cores": 2}, some_table(bench), bench.services_table.SERVICES_QUICK)
    result = json.loads(json.dumps(result))
    assert result["size"] == {"quick": True, "rounds": 1}
    assert [peer["key"] for peer in result["peers"]] == ["portico", "failing", "absent"]
    assert result["rows"][0]["rounds"] == {"portico": [1.0, 3.0, 2.0]}
    assert result["rows"][1]["values"]["absent"] is None
    assert [goal["verdict"] for goal in result["goals"]] == ["met", "not measured"]
    assert result["notes"] == ["The corpus is not here."]


def test_only_our_own_failure_is_a_failure_of_the_run(bench: SimpleNamespace) -> None:
    table = some_table(bench)
    assert not bench.services_table.ours_failed(table)
    table.answers.fail("two", peer(bench, "portico"), "it fell over")
    assert bench.services_table.ours_failed(table)


def test_every_service_has_its_table_in_the_run(bench: SimpleNamespace) -> None:
    assert {"system", "live"} <= set(bench.run.SERVICES)
    for module in bench.run.SERVICES.values():
        assert module.NAME
        assert callable(module.measure)


def test_page_on_performance_has_the_rows_that_the_find_table_prints(bench: SimpleNamespace) -> None:
    find = bench.run.SERVICES["find"]
    page = (
        (FOLDER.parent / "docs" / "research" / "measurements-operations.md")
        .read_text()
        .partition("## Finding tools\n")[2]
        .partition("\n## ")[0]
    )
    rows = [line.split("|")[1].strip() for line in page.splitlines() if line.startswith("| ")]
    request = (*find.QUALITY, *find.SPEED, *find.TOKENS, *find.code_mode.QUESTIONS)
    assert rows == ["question", *(item.text for item in request)]


def test_run_for_some_peers_leaves_out_the_services(bench: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["run.py", "--only", "portico"])
    assert bench.run.arguments().tables == list(bench.run.PROTOCOL)
    monkeypatch.setattr(sys, "argv", ["run.py"])
    assert bench.run.arguments().tables == list(bench.run.TABLES)
    monkeypatch.setattr(sys, "argv", ["run.py", "--table", "system", "--only", "portico"])
    with pytest.raises(SystemExit):
        bench.run.arguments()


def test_run_prints_a_services_table(
    bench: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table, request = some_table(bench), []
    monkeypatch.setattr(bench.system_table, "measure", lambda size: request.append(size) or table)
    result = tmp_path / "found.json"
    monkeypatch.setattr(sys, "argv", ["run.py", "--quick", "--table", "system", "--json", str(result)])
    monkeypatch.setattr(bench.run.signal, "signal", lambda *_: None)
    assert bench.run.main() == 0
    assert request == [bench.services_table.SERVICES_QUICK]
    assert capsys.readouterr().out.startswith("some service: ")
    assert set(json.loads(result.read_text())) == {"system"}


# Programs of the distribution


def test_program_that_is_there_is_not_installed_again(bench: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench.apt, "run", lambda _: pytest.fail("nothing is to be installed"))
    assert bench.apt.had("x", lambda: "/bin/x") == "/bin/x"


@pytest.mark.parametrize(
    ("apt", "uid", "reason"), [(None, 0, "no apt-get to install x with"), ("/apt-get", 1000, "only root")]
)
def test_program_that_cannot_be_had_is_a_reason(
    bench: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, apt: str | None, uid: int, reason: str
) -> None:
    monkeypatch.setattr(bench.apt.shutil, "which", lambda *_, **__: apt)
    monkeypatch.setattr(bench.apt.os, "geteuid", lambda: uid)
    with pytest.raises(bench.peers.NotInstalled, match=reason):
        bench.apt.had("x", lambda: None)


def test_apt_install_updates_the_package_lists_and_retries(
    bench: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []

    def run(command: list[str]) -> None:
        ran.append(command[1])
        if ran == ["install"]:
            raise bench.peers.NotInstalled("Unable to locate package x")

    monkeypatch.setattr(bench.apt.shutil, "which", lambda *_, **__: "/apt-get")
    monkeypatch.setattr(bench.apt.os, "geteuid", lambda: 0)
    monkeypatch.setattr(bench.apt, "run", run)
    assert bench.apt.had("x", lambda: "/bin/x" if len(ran) == 3 else None) == "/bin/x"
    assert ran == ["install", "update", "install"]


# The system service


@pytest.mark.usefixtures("alone")
def test_system_table_reports_missing_peers_and_measures_the_rest(
    bench: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tiny: Any
) -> None:
    monkeypatch.setattr(bench.system_table, "CORPUS", tmp_path)
    table = bench.system_table.measure(tiny)
    text = report(bench, table, tiny)
    assert not bench.services_table.ours_failed(table), table.answers.failures
    for name in ("journalctl", "cysystemd", "libregf", "hivex", "regipy", "find", "fd", "plocate"):
        assert said_to_be_absent(text, name)
    assert len(table.notes) == 3
    for key in bench.file_search.SEARCHES:
        for column in ("index", "fs_search", "walk"):
            assert table.answers.value(key, column)
    verdicts = [goal.verdict for goal in table.goals]
    assert verdicts[2:4] == ["not measured", "not measured"]
    assert {verdicts[0], verdicts[-1]} <= {"met", "missed"}


def test_goals_of_the_system_table_follow_from_the_numbers(bench: SimpleNamespace) -> None:
    answers = bench.scenarios.Answers()
    for question, column, value in (
        ("journal_json", "portico", 100_000),
        ("journal_json", "journalctl", 51_000),
        ("hive", "portico", 100_000),
        ("hive", "libregf", 100_000),
        *((key, "index", 999) for key in bench.file_search.SEARCHES),
    ):
        answers.add(question, peer(bench, column), value)
    goals = bench.system_table.judge(answers, bench.system_table.SYSTEM_FULL)
    assert [goal.verdict for goal in goals] == [*["not measured"] * 2, "missed", "met", "met"]
    answers.add("none", peer(bench, "index"), 1100, 1100)
    goals = bench.system_table.judge(answers, bench.system_table.SYSTEM_FULL)
    assert (goals[-1].measured, goals[-1].verdict) == ("1100.0 µs", "missed")


@pytest.mark.usefixtures("tiny")
def test_journals_are_measured_against_journalctl(
    bench: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if not os.environ.get("CI") and not bench.apt.shutil.which("systemd-journal-remote", path=bench.apt.PLACES):
        pytest.skip("systemd-journal-remote is not installed, and only CI installs it")
    monkeypatch.setattr(bench.system_table, "prepare", lambda item: bench.peers.replace(item, reason=NOTHING))
    answers, notes = bench.scenarios.Answers(), []
    how, ours = bench.system_table.SYSTEM_QUICK, bench.services_table.this_tree()
    bench.system_table.journals(answers, ours, how, 1, tmp_path, notes)
    assert notes == []
    for question in bench.system_table.JOURNAL_QUESTIONS:
        assert answers.value(question.key, "portico")
    assert answers.value("journal_json", "journalctl")


def test_wrong_search_is_an_error_and_no_number(bench: SimpleNamespace) -> None:
    with pytest.raises(bench.driver.DriverError, match="it found 0"):
        bench.file_search.median_of("one", lambda: 0, 1)
    with pytest.raises(bench.driver.DriverError, match="it found 2"):
        bench.file_search.median_of("none", lambda: 2, 1)
    assert bench.file_search.median_of("none", lambda: 0, 3)["none"] >= 0


def test_program_is_read_no_further_than_a_page(bench: SimpleNamespace) -> None:
    endless = [sys.executable, "-I", "-S", "-c", "while True: print('x')"]
    assert bench.file_search.lines(endless) == bench.file_search.MOST
    assert bench.file_search.lines([sys.executable, "-I", "-S", "-c", "print('x')"]) == 1


def test_program_that_fails_is_an_error_and_no_number(bench: SimpleNamespace) -> None:
    with pytest.raises(bench.driver.DriverError, match="no such luck"):
        bench.system_table.spent_by([sys.executable, "-I", "-S", "-c", "raise SystemExit('no such luck')"], 0)


# Live Python


@jail_only
@pytest.mark.usefixtures("alone")
def test_live_table_reports_missing_peers_and_measures_the_rest(bench: SimpleNamespace, tiny: Any) -> None:
    table = bench.live_table.measure(tiny)
    text = report(bench, table, tiny)
    assert table.answers.failures == {}
    for name in ("Portico, strict", "pydantic-monty", "pyeryx"):
        assert said_to_be_absent(text, name)
    for key in bench.live_table.SPEED:
        for column in ("jail", "cold", "process"):
            assert table.answers.value(key, column)
    assert all(table.answers.value(key, "jail") for key in ("pss", "rss", "ping"))
    assert {goal.verdict for goal in table.goals} <= {"met", "missed"}
    assert "were tried)" in table.goals[3].measured


@pytest.mark.usefixtures("alone")
def test_live_table_reports_why_the_sandbox_is_unavailable(
    bench: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, tiny: Any
) -> None:
    monkeypatch.setattr(bench.live_table, "unavailable_reason", lambda _: "this kernel has no Landlock")
    table = bench.live_table.measure(tiny)
    assert "Portico, jail: not installed: this kernel has no Landlock" in report(bench, table, tiny).splitlines()
    assert {goal.verdict for goal in table.goals} == {"not measured"}
    assert not bench.services_table.ours_failed(table)


def test_goals_of_the_live_table_follow_from_the_numbers(bench: SimpleNamespace) -> None:
    answers = bench.scenarios.Answers()
    for question, value in {"warm": 499, "fresh": 41, "pss": 1999, "ping": 101}.items():
        answers.add(question, peer(bench, "jail"), value)
    goals = bench.live_table.judge(answers, bench.live_table.LIVE_FULL, bench.live_table.Aside(" (recurses)"))
    assert [goal.verdict for goal in goals] == ["met", "missed", "met", "missed"]
    assert goals[3].measured == "101.0 ms (recurses)"


def test_new_python_enough_is_searched(bench: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(bench.live_table, "candidates", lambda: iter([str(tmp_path / "none"), sys.executable]))
    monkeypatch.setattr(bench.live_table, "SUITS", "pass")
    assert bench.live_table.newer_python() == sys.executable
    monkeypatch.setattr(bench.live_table, "SUITS", "raise SystemExit(1)")
    with pytest.raises(bench.peers.NotInstalled, match=r"Python 3\.12 or newer"):
        bench.live_table.newer_python()
