"""Every service that we ship comes with its specification: generated from what it offers, without errors, and locked.

`python -m portico.services.contracts.shipped NAME` writes both files.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from portico.services import assembly
from portico.services.contracts import lock, shipped, specification
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
        anew = f"python -m portico.services.contracts.shipped {contract.server}"
        assert path.read_text(encoding="utf-8") == text, f"{path.name} is out of date: {anew}"


def test_the_specification_has_nothing_wrong_with_it(contract: Contract) -> None:
    text = (shipped.SERVICES / contract.server / specification.FILE).read_text(encoding="utf-8")
    assert [one for one in lint(text) if one.severity == "error"] == []


def test_nothing_has_drifted_from_the_lock(contract: Contract) -> None:
    pinned = lock.read((shipped.SERVICES / contract.server / lock.FILE).read_bytes())
    assert lock.check(pinned, contract).changes == []
