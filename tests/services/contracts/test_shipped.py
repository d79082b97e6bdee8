"""Every service that we ship has its specification in docs/: generated from what it offers, without errors, and locked.

`make specifications` writes both files.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "docs" / "specifications"))

import write as shipped

from portico.services import assembly
from portico.services.contracts import lock, specification
from portico.services.contracts.definitions import Contract
from portico.services.contracts.lint import lint
from portico.wire.errors import UsageError


@pytest.fixture(params=list(assembly.HOMES))
async def contract(request: pytest.FixtureRequest, tmp_path: Path) -> Contract:
    place = assembly.ServicePlace(data=tmp_path, store=str(tmp_path / "store.db"))
    try:
        return await shipped.contract_of(shipped.made(request.param, place))
    except UsageError as reason:
        pytest.skip(f"the service {request.param!r} cannot be had on this machine: {reason}")


def test_the_files_are_those_that_would_be_written(contract: Contract) -> None:
    for path, text in shipped.files(contract).items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name} is out of date: make specifications"


def test_the_specification_has_nothing_wrong_with_it(contract: Contract) -> None:
    text = (shipped.HERE / contract.server / specification.FILE).read_text(encoding="utf-8")
    assert [one for one in lint(text) if one.severity == "error"] == []


def test_nothing_has_drifted_from_the_lock(contract: Contract) -> None:
    pinned = lock.read((shipped.HERE / contract.server / lock.FILE).read_bytes())
    assert lock.check(pinned, contract).changes == []
