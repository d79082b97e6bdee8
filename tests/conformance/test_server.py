"""The official conformance suite against examples/everything.py over HTTP: `make conform`, as tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.conformance.runs import AUTHORIZATION_LEGS, GATEWAY_LEGS, SERVER_LEGS, Leg
from support.conformance.suite import Suite
from support.conformance.targets import Face, Server, facing, serving
from support.conformance.verdict import report


@pytest.fixture(scope="session")
def server(suite: Suite, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("server") / "log") as server:
        yield server


@pytest.fixture(scope="session")
def gateway(suite: Suite, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("gateway") / "log", "2026-07-28") as server:
        yield server


@pytest.mark.parametrize("leg", [leg for leg in GATEWAY_LEGS if leg.upstream == "2026-07-28"], ids=lambda leg: leg.name)
def test_gateway_changes_no_verdict(leg: Leg, suite: Suite, gateway: Server, tmp_path: Path) -> None:
    """The pairs with an older server behind the gateway start a process for each session: `make conform` has them."""
    outcome = suite.run(leg, gateway.target, tmp_path, leg.expected_file)
    if outcome.complaints:
        pytest.fail(f"{report(outcome)}\n\n{gateway.output_tail()}", pytrace=False)
    assert outcome.passing >= outcome.due > 0


@pytest.mark.parametrize("leg", SERVER_LEGS, ids=lambda leg: leg.name)
def test_conformance_suite_passes(leg: Leg, suite: Suite, server: Server, tmp_path: Path) -> None:
    outcome = suite.run(leg, server.target, tmp_path, leg.expected_file)
    if outcome.complaints:
        pytest.fail(f"{report(outcome)}\n\n{server.output_tail()}", pytrace=False)
    assert outcome.passing >= outcome.due > 0


@pytest.fixture(scope="session")
def face(suite: Suite, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Face]:
    with facing(tmp_path_factory.mktemp("face") / "log") as face:
        yield face


@pytest.mark.parametrize("leg", AUTHORIZATION_LEGS, ids=lambda leg: leg.name)
def test_conformance_suite_passes_for_the_authorization_server(
    leg: Leg, suite: Suite, face: Face, tmp_path: Path
) -> None:
    outcome = suite.run(leg, face.target, tmp_path, leg.expected_file)
    if outcome.complaints:
        pytest.fail(f"{report(outcome)}\n\n{face.output_tail()}", pytrace=False)
    assert outcome.passing >= outcome.due > 0
