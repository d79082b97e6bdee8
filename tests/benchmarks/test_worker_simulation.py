"""The worker simulation: invariants of its results."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from support.paths import ROOT
from support.scripts import load_scripts

FOLDER = ROOT / "benchmarks"


@pytest.fixture(scope="module")
def simulation() -> Iterator[Any]:
    with load_scripts(["worker_simulator"], FOLDER) as scripts:
        yield scripts.worker_simulator


@pytest.fixture(scope="module")
def costs(simulation: Any) -> Any:
    return simulation.Costs(
        call=0.001, session=0.002, forwarded=0.004, passing=0.004, answering=0.004, publishing=0.001, hearing=0.001,
        telling=0.0001, asking=0.0005,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("workers", "cores", "expected"),
    [(1, 2, 1000), (2, 4, 2000), (2, 2, 2 / 0.0015), (4, 2, 2 / 0.0015), (4, 8, 2000)],
)
def test_loaded_fleet_throughput_is_limited_by_cores_and_client(
    simulation: Any, costs: Any, workers: int, cores: int, expected: float
) -> None:
    """With few cores the asker takes its share of them; with many it is one process, and can do no more."""
    plan = simulation.Plan(workers=workers, cores=cores)
    assert simulation.closed(plan, costs, connections=64, seconds=5) == pytest.approx(expected, rel=0.05)


def test_forwarded_calls_add_their_cost(simulation: Any, costs: Any) -> None:
    """Of two workers, each second call is for the other one."""
    plan = simulation.Plan(workers=2, cores=4)
    result = simulation.closed(plan, costs, connections=64, seconds=5, sessions=64)
    assert result == pytest.approx(2 / (0.002 + 0.004 / 2), rel=0.08)


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        ({"cores": 1}, 1000),
        ({"cores": 1, "speed": 0.5}, 500),
        ({"machines": 4, "cores": 1}, 4000),
        ({"cores": 1, "sessions": 1.0}, 500),
        # Three of four calls come to another machine.
        ({"machines": 4, "cores": 1, "sessions": 1.0}, 4 / (0.25 * 0.002 + 0.75 * 0.008)),
        ({"machines": 4, "cores": 1, "sessions": 1.0, "kept": 1.0}, 2000),
        # Half of each core is for what all of them hear.
        ({"machines": 2, "cores": 1, "events": 500.0}, 1000),
        # Parts of the bus halve what is heard.
        ({"machines": 2, "cores": 1, "events": 500.0, "shards": 2}, 1250),
    ],
)
def test_saturation_is_one_second_of_work_per_second(
    simulation: Any, costs: Any, plan: dict[str, Any], expected: float
) -> None:
    result = simulation.saturation(simulation.Plan(**plan), costs, calls=3000)
    assert 0.8 * expected < result < 1.12 * expected
