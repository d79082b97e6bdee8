"""A hub per test, in a directory of the test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from portico_gateway.hub.daemon import Hub
from support.hub_hosts import running_hub


@pytest.fixture(autouse=True)
def hub_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PORTICO_HUB", str(tmp_path / "hub"))
    return tmp_path / "hub"


@pytest_asyncio.fixture
async def hub(hub_directory: Path) -> AsyncIterator[Hub]:
    async with running_hub() as hub:
        yield hub
